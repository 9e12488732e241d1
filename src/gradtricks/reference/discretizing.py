"""Steps with a gradient: straight through, or a staircase that is smooth or has ramps."""

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
