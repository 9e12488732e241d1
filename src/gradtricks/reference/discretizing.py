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
    whole, part, integers = _around(x, temperature)
    with np.errstate(over="ignore"):
        sigmoids = 1 / (1 + np.exp(-(part[..., None] - integers) / temperature))
        beyond = 1 / (1 + np.exp((part[..., None] - integers) / temperature))
    # Below the step 1 - sigmoid is what is missing; written so, it doesn't cancel.
    return whole + np.where(integers > 0, sigmoids, -beyond).sum(axis=-1)


def soft_floor_vjp(cotangent: ArrayLike, x: ArrayLike, temperature: float) -> NDArray[np.floating]:
    """A sum of bells, one for each step; 0 where ``x`` isn't finite."""
    _, part, integers = _around(x, temperature)
    with np.errstate(over="ignore"):
        bells = np.cosh((part[..., None] - integers) / (2 * temperature)) ** -2 / (4 * temperature)
    return np.where(np.isfinite(x), as_floating(cotangent) * bells.sum(axis=-1), 0)


def piecewise_linear_floor(x: ArrayLike, width: float) -> NDArray[np.floating]:
    """Floor with a ramp of ``width`` in (0, 1] before each step; slope ``1 / width`` on the ramps."""
    whole, part, _ = _around(x, 0.0)
    return whole + np.maximum(_rise(part, width), 0) / width


def piecewise_linear_floor_vjp(cotangent: ArrayLike, x: ArrayLike, width: float) -> NDArray[np.floating]:
    """``cotangent / width`` on the ramps; at a corner the slope is that to the right of it."""
    _, part, _ = _around(x, 0.0)
    on_the_ramp = np.isfinite(x) & (_rise(part, width) >= 0)
    return np.where(on_the_ramp, as_floating(cotangent) / width, 0)


def _rise(part: NDArray, width: float) -> NDArray:
    # Written from the nearer end, so that a narrow ramp isn't lost in the rounding of 1 - width.
    return np.where(part < 0.5, part - (1 - width), width - (1 - part))


def _around(x: ArrayLike, temperature: float) -> tuple[NDArray, NDArray, NDArray]:
    # The floor, what lies above it, and the integers near enough to 0 to matter at this temperature.
    x = as_floating(x)
    whole, reach = np.floor(x), np.ceil(45 * temperature) + 1
    finite = np.isfinite(x)
    return whole, np.where(finite, x - np.where(finite, whole, 0), 0), np.arange(-reach, reach + 1)
