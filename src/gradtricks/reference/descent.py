"""One step of gradient descent."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradtricks.reference._arrays import as_floating


def gradient_descent_step(parameters: Any, gradients: Any, learning_rate: ArrayLike) -> Any:
    """Subtract ``learning_rate`` times its gradient from every parameter.

    Args:
        parameters: An array, or tuples, lists and dicts of arrays.
        gradients: The same structure; None stands for no gradient, and leaves its parameter as it is.
        learning_rate: Scalar.

    Returns:
        Structure of ``parameters``.
    """
    rate = as_floating(learning_rate)

    def step(place: str, parameter: ArrayLike, gradient: ArrayLike | None) -> NDArray[np.floating]:
        if gradient is None:
            return as_floating(parameter)
        return np.asarray(as_floating(parameter) - rate * as_floating(gradient))

    return map_pairs(step, parameters, gradients)


def gradient_descent_step_vjp(
    cotangents: Any, parameters: Any, gradients: Any, learning_rate: ArrayLike
) -> tuple[Any, Any, NDArray[np.floating]]:
    """Return the gradients that reach the parameters, the gradients and the learning rate.

    Args:
        cotangents: Structure of ``parameters``.
        parameters: An array, or tuples, lists and dicts of arrays.
        gradients: The same structure, without None.
        learning_rate: Scalar.

    Returns:
        ``cotangent``, ``-learning_rate * cotangent``, and the scalar ``-sum(cotangent * gradient)``.
    """
    del parameters
    rate, to_rate = as_floating(learning_rate), np.zeros(())

    def pull(place: str, cotangent: ArrayLike, gradient: ArrayLike) -> NDArray[np.floating]:
        nonlocal to_rate
        to_rate = to_rate - np.sum(as_floating(cotangent) * as_floating(gradient))
        return np.asarray(-rate * as_floating(cotangent))

    to_gradients = map_pairs(pull, cotangents, gradients)
    return cotangents, to_gradients, to_rate


def map_pairs(function: Callable[[str, Any, Any], Any], parameters: Any, gradients: Any) -> Any:
    """Apply ``function(place, parameter, gradient)`` to what stands at the same place of two structures.

    A list may be paired with a tuple: frameworks return a tuple of gradients for a list of parameters.

    Args:
        function: ``place`` is how to index the structure, such as ``['dense'][0]``.
        parameters: Tuples, lists and dicts of anything else.
        gradients: The same structure.

    Returns:
        Structure of ``parameters``.

    Raises:
        TypeError: The parameters are an iterator, which gives no structure back.
        ValueError: The structures differ, or every gradient is None.
    """
    if isinstance(parameters, Iterator):
        got = type(parameters).__name__
        raise TypeError(
            f"parameters must be a list rather than an iterator; got {got}; remedy: list(parameters)"
        )
    found: list[bool] = []

    def leaf(place: str, parameter: Any, gradient: Any) -> Any:
        found.append(gradient is not None)
        return function(place, parameter, gradient)

    mapped = _map_pairs(leaf, "", parameters, gradients)
    if found and not any(found):
        raise ValueError("gradients must hold a gradient; got only None; remedy: explain_gradient says why")
    return mapped


def _map_pairs(leaf: Callable[[str, Any, Any], Any], place: str, parameters: Any, gradients: Any) -> Any:
    entries = _entries(parameters)
    if entries is None:
        return leaf(place, parameters, gradients)
    _check_entries(place, entries, _entries(gradients), type(gradients).__name__)
    items = [_map_pairs(leaf, f"{place}[{key!r}]", parameters[key], gradients[key]) for key in entries]
    if isinstance(parameters, defaultdict):
        return defaultdict(parameters.default_factory, zip(entries, items))
    if isinstance(parameters, dict):
        return type(parameters)(zip(entries, items))
    return type(parameters)(*items) if hasattr(parameters, "_fields") else type(parameters)(items)


def _entries(structure: Any) -> list[Any] | None:
    if isinstance(structure, dict):
        return list(structure)
    return list(range(len(structure))) if isinstance(structure, tuple | list) else None


def _check_entries(place: str, expected: list[Any], got: list[Any] | None, kind: str) -> None:
    if got is None or set(got) != set(expected):
        found = kind if got is None else f"the entries {got}"
        raise ValueError(
            f"gradients{place} must hold the entries of parameters{place}, {expected}; got {found}"
        )
