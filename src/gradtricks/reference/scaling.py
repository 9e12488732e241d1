"""Scaling a gradient without touching the value."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradtricks.reference._arrays import as_floating


def scale_gradient(x: ArrayLike, scale: ArrayLike) -> NDArray[np.floating]:
    """Identity forward, bit for bit; multiplies the incoming gradient by ``scale``, which broadcasts."""
    return np.array(x)


def scale_gradient_vjp(cotangent: ArrayLike, x: ArrayLike, scale: ArrayLike) -> NDArray[np.floating]:
    """``cotangent * scale``, and 0 wherever ``scale`` is 0, even where ``cotangent`` is infinite or NaN."""
    scale, cotangent = np.broadcast_to(scale, np.shape(x)), as_floating(cotangent)
    return np.multiply(cotangent, scale, out=np.zeros_like(cotangent), where=scale != 0)


def reverse_gradient(x: ArrayLike) -> NDArray[np.floating]:
    """Identity forward, bit for bit; reverses the sign of the incoming gradient."""
    return np.array(x)


def reverse_gradient_vjp(cotangent: ArrayLike, x: ArrayLike) -> NDArray[np.floating]:
    """``-cotangent``."""
    return -as_floating(cotangent)
