"""Steps with a gradient: straight through, a staircase that is smooth or has ramps, or levels of a scale."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradtricks.reference._arrays import as_floating


def straight_through(hard: ArrayLike, soft: ArrayLike) -> NDArray[np.floating]:
    """The value of ``hard`` forward, as floating-point numbers; all of the incoming gradient to ``soft``."""
    hard = np.array(hard)
    return hard if np.issubdtype(hard.dtype, np.floating) else hard.astype(as_floating(soft).dtype)


def straight_through_vjp(
    cotangent: ArrayLike, hard: ArrayLike, soft: ArrayLike
) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
    """0 for ``hard``, and ``cotangent`` for ``soft``."""
    cotangent = as_floating(cotangent)
    return np.zeros_like(cotangent), np.array(cotangent)


def floor_straight_through(x: ArrayLike) -> NDArray[np.floating]:
    """Floor forward; identity backward."""
    return np.floor(as_floating(x))


def floor_straight_through_vjp(cotangent: ArrayLike, x: ArrayLike) -> NDArray[np.floating]:
    """``cotangent``."""
    return straight_through_vjp(cotangent, x, x)[1]


def round_straight_through(x: ArrayLike) -> NDArray[np.floating]:
    """Round forward, ties to even; identity backward."""
    return np.round(as_floating(x))


def round_straight_through_vjp(cotangent: ArrayLike, x: ArrayLike) -> NDArray[np.floating]:
    """``cotangent``."""
    return straight_through_vjp(cotangent, x, x)[1]


def soft_floor(x: ArrayLike, temperature: float) -> NDArray[np.floating]:
    """Staircase of sigmoids forward; its own derivative backward. Infinite values stay, NaN too.

    The sum over all integers k of ``sigmoid((x - k) / temperature)``, minus the same sum of steps at 0. Only
    the difference to the floor converges, so that is what is summed. Towards a temperature of 0 it becomes
    the floor, towards infinity ``x - 0.5``.
    """
    whole, distances = _distances(x, temperature)
    with np.errstate(over="ignore"):
        # Below a step 1 - sigmoid is what is missing; written so, it doesn't cancel.
        sigmoids = 1 / (1 + np.exp(np.abs(distances) / temperature))
    return whole + np.where(distances < 0, sigmoids, -sigmoids).sum(axis=-1)


def soft_floor_vjp(cotangent: ArrayLike, x: ArrayLike, temperature: float) -> NDArray[np.floating]:
    """A sum of bells, one for each step; 0 where ``x`` isn't finite."""
    _, distances = _distances(x, temperature)
    with np.errstate(over="ignore"):
        bells = np.cosh(distances / (2 * temperature)) ** -2 / (4 * temperature)
    return np.where(np.isfinite(x), as_floating(cotangent) * bells.sum(axis=-1), 0)


def piecewise_linear_floor(x: ArrayLike, width: float) -> NDArray[np.floating]:
    """Floor with a ramp of ``width`` in (0, 1] before each step; slope ``1 / width`` on the ramps."""
    return np.floor(as_floating(x)) + np.maximum(_rise(x, width), 0) / width


def piecewise_linear_floor_vjp(cotangent: ArrayLike, x: ArrayLike, width: float) -> NDArray[np.floating]:
    """``cotangent / width`` on the ramps; at a corner the slope is that to the right of it."""
    on_the_ramp = np.isfinite(x) & (_rise(x, width) >= 0)
    return np.where(on_the_ramp, as_floating(cotangent) / width, 0)


def fake_quantize(x: ArrayLike, scale: ArrayLike, quant_min: int, quant_max: int) -> NDArray[np.floating]:
    """Levels forward: ``scale`` times the whole numbers from ``quant_min`` to ``quant_max``."""
    _, _, level = _levels(x, scale, quant_min, quant_max)
    return as_floating(scale) * level


def fake_quantize_vjp(
    cotangent: ArrayLike,
    x: ArrayLike,
    scale: ArrayLike,
    quant_min: int,
    quant_max: int,
    *,
    normalize: bool = True,
) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
    """``cotangent`` for ``x`` within the range and at its bounds, and 0 beyond; for ``scale`` that of LSQ.

    An element within the range gives the scale its rounding, ``level - x / scale``, one beyond its level,
    times the cotangent. These are summed, and, unless ``normalize`` is False, divided by
    ``sqrt(n * quant_max)`` with n elements of ``x`` to a scale.
    """
    ratio, inside, level = _levels(x, scale, quant_min, quant_max)
    scale, cotangent = as_floating(scale), as_floating(cotangent)
    each = cotangent * (level - np.where(inside, ratio, 0))
    added = tuple(range(each.ndim - scale.ndim))
    kept = tuple(axis for axis, length in enumerate(scale.shape) if length == 1)
    total = each.sum(axis=added).sum(axis=kept, keepdims=True)
    share = max(1, each.size // max(1, scale.size)) * quant_max
    return np.where(inside, cotangent, 0), total / np.sqrt(share if normalize else 1)


def _levels(
    x: ArrayLike, scale: ArrayLike, quant_min: int, quant_max: int
) -> tuple[NDArray, NDArray, NDArray]:
    # In units of the scale; which are in the range; and the level of each.
    scale = as_floating(scale)
    ratio = as_floating(x) / np.where(scale == 0, 1, scale)
    return ratio, (ratio >= quant_min) & (ratio <= quant_max), np.round(np.clip(ratio, quant_min, quant_max))


def _rise(x: ArrayLike, width: float) -> NDArray:
    _, below, above = _around(x)
    # Written from the nearer end, so that a narrow ramp isn't lost in the rounding of 1 - width.
    return np.where(below < 0.5, below - (1 - width), width + above)


def _distances(x: ArrayLike, temperature: float) -> tuple[NDArray, NDArray]:
    # The floor, and how far x is beyond each integer that is near enough to matter at this temperature.
    whole, below, above = _around(x)
    steps = np.arange(np.ceil(45 * temperature) + 1)
    return whole, np.concatenate([below[..., None] + steps, above[..., None] - steps], axis=-1)


def _around(x: ArrayLike) -> tuple[NDArray, NDArray, NDArray]:
    # The floor, and how far x is beyond it and beyond the next integer: 1 less, but not by rounding,
    # in which a small negative x would be lost.
    x = as_floating(x)
    whole = np.floor(x)
    part = np.where(np.isfinite(x), x - np.where(np.isfinite(x), whole, 0), 0)
    with np.errstate(invalid="ignore"):
        return whole, part, np.where(part < 0.5, part - 1, x - (whole + 1))
