"""Choosing between a function and a fallback, element by element."""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradtricks._core.branching import WhereGradients
from gradtricks.reference._arrays import as_floating


def safe_where(
    condition: ArrayLike,
    x: ArrayLike,
    function: Callable[[NDArray[np.floating]], ArrayLike],
    fallback: ArrayLike,
    *,
    safe_value: float | None = None,
) -> NDArray[np.floating]:
    """Return ``function(x)`` where the condition holds, and the fallback elsewhere.

    The function sees only elements for which the condition holds, so nothing has to stand in for the others.
    """
    x = as_floating(x)
    chosen = np.broadcast_to(condition, x.shape)
    result = np.array(np.broadcast_to(as_floating(fallback), x.shape))
    result[chosen] = function(x[chosen])
    return result


def safe_where_vjp(
    cotangent: ArrayLike,
    condition: ArrayLike,
    x: ArrayLike,
    derivative: Callable[[NDArray[np.floating]], ArrayLike],
    fallback: ArrayLike,
) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
    """``cotangent * derivative(x)`` where the condition holds, for ``x``; what is left, for the fallback."""
    x, cotangent = as_floating(x), as_floating(cotangent)
    chosen = np.broadcast_to(condition, x.shape)
    to_x = np.zeros(x.shape)
    to_x[chosen] = cotangent[chosen] * derivative(x[chosen])
    return to_x, _summed_to(np.shape(fallback), np.where(chosen, 0, cotangent))


def where_gradients(
    condition: ArrayLike,
    x: ArrayLike,
    derivative: Callable[[NDArray[np.floating]], ArrayLike],
    fallback: ArrayLike,
    *,
    safe_value: float | None = None,
) -> WhereGradients:
    """Say what flows where, by the chain rule in IEEE arithmetic; a constant fallback has no gradient."""
    x = as_floating(x)
    to_function = np.broadcast_to(condition, x.shape).astype(x.dtype)
    with np.errstate(all="ignore"):  # what goes wrong here is the answer
        slope = np.asarray(derivative(x))
        gradient = to_function * slope
    safe_gradient, _ = safe_where_vjp(np.ones(x.shape), condition, x, derivative, 0.0)
    poisoned = ~np.isfinite(gradient) & np.isfinite(safe_gradient)
    return WhereGradients(to_function, 1 - to_function, slope, gradient, safe_gradient, poisoned)


def where_gradients_vjp(
    cotangent: ArrayLike,
    condition: ArrayLike,
    x: ArrayLike,
    second_derivative: Callable[[NDArray[np.floating]], ArrayLike],
) -> NDArray[np.floating]:
    """The gradient that reaches ``x`` from the field ``safe_gradient``."""
    return safe_where_vjp(cotangent, condition, x, second_derivative, 0.0)[0]


def _summed_to(shape: tuple[int, ...], x: NDArray[np.floating]) -> NDArray[np.floating]:
    x = x.sum(axis=tuple(range(x.ndim - len(shape))))
    return x.sum(axis=tuple(i for i, n in enumerate(shape) if n == 1), keepdims=True)
