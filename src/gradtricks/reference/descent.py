"""One step of gradient descent."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradtricks.reference._arrays import as_floating


def gradient_descent_step(parameters: Any, gradients: Any, learning_rate: ArrayLike) -> Any:
    """Subtract ``learning_rate`` times its gradient from every parameter of a structure.

    Where the gradient is None, a parameter stays as it is.
    """
    rate = as_floating(learning_rate)

    def step(parameter: ArrayLike, gradient: ArrayLike | None) -> NDArray[np.floating]:
        if gradient is None:
            return as_floating(parameter)
        return np.asarray(as_floating(parameter) - rate * as_floating(gradient))

    return _map_pairs(step, parameters, gradients)


def gradient_descent_step_vjp(
    cotangents: Any, parameters: Any, gradients: Any, learning_rate: ArrayLike
) -> tuple[Any, Any, NDArray[np.floating]]:
    """``cotangent``, ``-learning_rate * cotangent``, and the scalar ``-sum(cotangent * gradient)``."""
    rate, to_rate = as_floating(learning_rate), np.zeros(())

    def pull(cotangent: ArrayLike, gradient: ArrayLike) -> NDArray[np.floating]:
        nonlocal to_rate
        to_rate = to_rate - np.sum(as_floating(cotangent) * as_floating(gradient))
        return np.asarray(-rate * as_floating(cotangent))

    to_gradients = _map_pairs(pull, cotangents, gradients)
    return cotangents, to_gradients, to_rate


def _map_pairs(function: Callable[[Any, Any], Any], structure: Any, other: Any) -> Any:
    if isinstance(structure, dict):  # a walk of the oracle's own: the frameworks share theirs
        return {key: _map_pairs(function, value, other[key]) for key, value in structure.items()}
    if isinstance(structure, list | tuple):
        items = [_map_pairs(function, *pair) for pair in zip(structure, other, strict=True)]
        return type(structure)(*items) if hasattr(structure, "_fields") else type(structure)(items)
    return function(structure, other)
