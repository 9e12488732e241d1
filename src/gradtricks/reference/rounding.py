"""Weights of 16 bits: rounding that is right on average, and sums whose rounding errors are carried on."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradtricks.reference._arrays import as_floating

# Digits in base 2, exponent of the smallest normal number, and the largest number.
_FORMATS = {"bfloat16": (8, -126, (2 - 2.0**-7) * 2.0**127), "float16": (11, -14, 65504.0)}


def round_stochastically(x: ArrayLike, noise: ArrayLike, dtype: str) -> NDArray[np.floating]:
    """Go to the neighbour away from 0 where ``noise`` is below the share of the gap that ``x`` has crossed.

    Beyond the largest number of ``dtype``, round to nearest.
    """
    x, noise = as_floating(x), as_floating(noise)
    digits, smallest, largest = _FORMATS[dtype]
    size = np.abs(x)
    gap = 2.0 ** (np.maximum(np.frexp(size)[1] - 1, smallest) - digits + 1)
    low = np.floor(size / gap) * gap
    rounded = low + gap * (noise < (size - low) / gap)
    half_way = largest * (1 + 1 / (2.0 ** (digits + 1) - 2))  # to what would be the next number
    beyond = np.where(np.isfinite(size), np.where(size < half_way, largest, np.inf), size)
    return np.copysign(np.where(size < largest, rounded, beyond), x)


def round_stochastically_vjp(
    cotangent: ArrayLike, x: ArrayLike, noise: ArrayLike, dtype: str
) -> NDArray[np.floating]:
    """Return the cotangent: on average the value is ``x``."""
    return np.array(cotangent)


def add_compensated(
    weights: ArrayLike, update: ArrayLike, compensation: ArrayLike
) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
    """Return ``weights + (update + compensation)``, and how much of the bracket didn't arrive in it."""
    weights, update, compensation = map(as_floating, (weights, update, compensation))
    owed = update + compensation
    total = weights + owed
    return total, np.where(np.isfinite(total), owed - (total - weights), 0)


def add_compensated_vjp(
    cotangent: ArrayLike, weights: ArrayLike, update: ArrayLike, compensation: ArrayLike
) -> tuple[NDArray[np.floating], ...]:
    """Return the gradients that reach the three arguments from the new weights."""
    return (np.array(cotangent),) * 3
