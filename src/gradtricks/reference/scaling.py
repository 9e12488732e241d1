"""Scaling a gradient without touching the value."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradtricks.reference._arrays import as_floating


def scale_gradient(x: ArrayLike, scale: ArrayLike) -> NDArray[np.floating]:
    """Identity forward; multiplies the incoming gradient by ``scale``.

    Args:
        x: Any shape.
        scale: Finite; broadcasts to the shape of ``x``. Only the backward pass uses it.

    Returns:
        A copy of ``x``, bit for bit.
    """
    del scale
    return np.array(x)


def scale_gradient_vjp(cotangent: ArrayLike, x: ArrayLike, scale: ArrayLike) -> NDArray[np.floating]:
    """Return the gradient that reaches ``x``: ``cotangent * scale``, and 0 wherever ``scale`` is 0.

    A scale of 0 stops the gradient even where ``cotangent`` is infinite or NaN.

    Args:
        cotangent: Shape of ``x``.
        x: Any shape.
        scale: Finite; broadcasts to the shape of ``x``.

    Returns:
        Shape of ``x``.
    """
    scale, cotangent = np.broadcast_to(scale, np.shape(x)), as_floating(cotangent)
    return np.multiply(cotangent, scale, out=np.zeros_like(cotangent), where=scale != 0)


def reverse_gradient(x: ArrayLike) -> NDArray[np.floating]:
    """Identity forward; reverses the sign of the incoming gradient.

    Args:
        x: Any shape.

    Returns:
        A copy of ``x``, bit for bit.
    """
    return np.array(x)


def reverse_gradient_vjp(cotangent: ArrayLike, x: ArrayLike) -> NDArray[np.floating]:
    """Return the gradient that reaches ``x``: ``-cotangent``.

    Args:
        cotangent: Shape of ``x``.
        x: Any shape.

    Returns:
        Shape of ``x``.
    """
    del x
    return -as_floating(cotangent)
