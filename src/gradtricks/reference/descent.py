"""One step of gradient descent."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradtricks._core.structures import map_structure
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

    return map_structure(step, parameters, gradients)


def gradient_descent_step_vjp(
    cotangents: Any, parameters: Any, gradients: Any, learning_rate: ArrayLike
) -> tuple[Any, Any, NDArray[np.floating]]:
    """``cotangent``, ``-learning_rate * cotangent``, and the scalar ``-sum(cotangent * gradient)``."""
    rate, to_rate = as_floating(learning_rate), np.zeros(())

    def pull(cotangent: ArrayLike, gradient: ArrayLike) -> NDArray[np.floating]:
        nonlocal to_rate
        to_rate = to_rate - np.sum(as_floating(cotangent) * as_floating(gradient))
        return np.asarray(-rate * as_floating(cotangent))

    to_gradients = map_structure(pull, cotangents, gradients)
    return cotangents, to_gradients, to_rate
