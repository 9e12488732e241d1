"""Derivatives of each sample's output with respect to its own input, for a whole batch at once."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.floating]
_STEP = 1e-30  # of a complex step, which subtracts nothing and so rounds nothing
_HALF_STEP = 1e-4  # of central differences of that


def input_gradients(function: Callable[[Any], Any], x: ArrayLike, *, check: bool = True) -> Array:
    """Differentiate each sample's number with respect to its own input: ``d function(x)_i / d x_i``.

    Nothing is checked: each sample is moved by itself.
    """
    del check
    jacobians = input_jacobians(function, x)
    return jacobians.reshape(np.shape(x))


def input_gradients_vjp(cotangent: ArrayLike, function: Callable[[Any], Any], x: ArrayLike) -> Array:
    """Return what reaches ``x`` through its input gradients: each sample's Hessian times ``cotangent``.

    By central differences: exact but for rounding where third derivatives are constant.
    """
    return _vjp(cotangent, lambda x: input_gradients(function, x), x)


def input_jacobians(function: Callable[[Any], Any], x: ArrayLike, *, check: bool = True) -> Array:
    """Differentiate each sample's outputs with respect to its own input, one element of ``x`` at a time.

    Args:
        function: Maps ``[B, I...]`` to ``[B, O...]``; analytic, since it is called on complex arrays.
        x: ``[B, I...]``.
        check: Ignored: each sample is moved by itself.

    Returns:
        ``[B, O..., I...]``.
    """
    del check
    x = np.asarray(x, complex)
    jacobians = np.zeros((*np.shape(function(x)), *x.shape[1:]))
    for sample, *element in np.ndindex(x.shape):
        moved = x.copy()
        moved[sample, *element] += 1j * _STEP
        jacobians[(sample, ..., *element)] = function(moved)[sample].imag / _STEP
    return jacobians


def input_jacobians_vjp(cotangent: ArrayLike, function: Callable[[Any], Any], x: ArrayLike) -> Array:
    """Return the gradient that reaches ``x`` through its Jacobians, by central differences."""
    return _vjp(cotangent, lambda x: input_jacobians(function, x), x)


def _vjp(cotangent: ArrayLike, derivative: Callable[[Any], Array], x: ArrayLike) -> Array:
    x = np.asarray(x, float)
    gradient = np.zeros(x.shape)
    for element in np.ndindex(x.shape):
        step = np.zeros(x.shape)
        step[element] = _HALF_STEP
        difference = derivative(x + step) - derivative(x - step)
        gradient[element] = np.sum(np.asarray(cotangent) * difference) / (2 * _HALF_STEP)
    return gradient
