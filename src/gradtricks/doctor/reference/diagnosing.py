"""Which updates are lost to rounding, from the definition of the formats.

Diagnosing has no value and no gradient. What it compares weights for can be computed beforehand.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray


def moving(weights: ArrayLike, updates: ArrayLike, *, mantissa: int) -> NDArray[np.bool_]:
    """Say which weights move when an update is added to them in a floating-point format.

    Where it is less than half a unit in the last place, the nearest number of the format is the weight;
    a tie goes to the even number. Towards 0 the unit below a power of two is half as large.

    Args:
        weights: Numbers of the format, not 0 and not subnormal.
        updates: What is added, of the same shape, exact.
        mantissa: Bits of the format's mantissa: 7 for bfloat16, 10 for float16, 23 for float32.
    """
    w, d = np.asarray(weights, np.float64), np.asarray(updates, np.float64)
    significand, exponent = np.frexp(np.abs(w))  # in [0.5, 1)
    unit = np.ldexp(1.0, exponent - 1 - mantissa)
    inward = (np.sign(w) != np.sign(d)) & (significand == 0.5)
    half = np.where(inward, unit / 4, unit / 2)
    odd = np.round(np.abs(w) / unit) % 2 == 1
    return (np.abs(d) > half) | ((np.abs(d) == half) & odd)
