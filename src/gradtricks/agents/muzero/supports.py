"""Numbers as distributions over categories: what MuZero's value and reward heads predict."""

from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradtricks._core.checks import check_shape

Array = NDArray[np.floating]

_ROUNDING = 1e-12
_SLOPE = 0.001  # the paper's epsilon, without which the transform would flatten out


class Support(NamedTuple):
    """Categories that stand for evenly spaced transformed numbers.

    Attributes:
        low: The first category's number.
        high: The last one's.
        size: How many there are, at least two.
    """

    low: float
    high: float
    size: int


CARTPOLE_SUPPORT = Support(0, 20, 21)  # transformed returns of up to 422


def transform_value(x: ArrayLike) -> Array:
    """Compress returns of any shape as the paper does: sign(x) (sqrt(|x| + 1) - 1) + 0.001 x."""
    x = np.asarray(x, np.float64)
    transformed: Array = np.sign(x) * (np.sqrt(np.abs(x) + 1) - 1) + _SLOPE * x
    return transformed


def restore_value(transformed: ArrayLike) -> Array:
    """Undo `transform_value`, for any shape."""
    y = np.asarray(transformed, np.float64)
    # sqrt(|x| + 1) - 1 solves a quadratic equation; this form of its root loses no digits near zero.
    size, linear = np.abs(y), 1 + 2 * _SLOPE
    root = 2 * size / (linear + np.sqrt(linear**2 + 4 * _SLOPE * size))
    restored: Array = np.sign(y) * root * (root + 2)
    return restored


def two_hot(x: ArrayLike, support: Support = CARTPOLE_SUPPORT) -> Array:
    """Spread each transformed number over the two neighbouring categories, so that its mean is kept.

    Returns:
        ``x.shape + [support.size]`` of ``float32``; each distribution sums to one.

    Raises:
        ValueError: A number lies outside the support.
    """
    transformed = transform_value(x)
    slack = _ROUNDING * max(abs(support.low), abs(support.high))  # what the ends lose when they are restored
    low, high = support.low - slack, support.high + slack
    if transformed.size and not (transformed.min() >= low and transformed.max() <= high):
        raise ValueError(
            f"transformed values must lie in [{support.low:g}, {support.high:g}]; "
            f"got {transformed.min():g} to {transformed.max():g}: rescale the rewards"
        )
    inside = np.clip(transformed, support.low, support.high)
    position = (inside - support.low) * ((support.size - 1) / (support.high - support.low))
    distance = np.abs(position[..., None] - np.arange(support.size))
    distribution: Array = np.clip(1 - distance, 0, None).astype(np.float32)
    return distribution


def clip_value(x: ArrayLike, support: Support) -> Array:
    """Replace numbers outside the support by the nearest one within it, for any shape."""
    # Rounding mustn't carry the ends past the support again.
    inwards = restore_value([support.low, support.high]) * (1 - _ROUNDING)
    clipped: Array = np.clip(x, *inwards)
    return clipped


def expected_value(logits: ArrayLike, support: Support = CARTPOLE_SUPPORT) -> Array:
    """Return the numbers ``[...]`` that logits ``[..., support.size]`` stand for.

    That is the mean category, with the transform undone.
    """
    logits = np.asarray(logits, np.float64)
    check_shape("logits", logits.shape[-1:], (support.size,), "[..., N], the last axis")
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return restore_value(weights @ _categories(support) / weights.sum(axis=-1))


@cache
def _categories(support: Support) -> Array:
    return np.linspace(support.low, support.high, support.size)
