"""Steps with a gradient: straight through, or a staircase that is smooth or has ramps."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradtricks.reference._arrays import as_floating


def straight_through(hard: ArrayLike, soft: ArrayLike) -> NDArray[np.floating]:
    """The value of ``hard`` forward; all of the incoming gradient to ``soft``.

    Args:
        hard: Any shape.
        soft: Shape of ``hard``. Its values aren't used.

    Returns:
        A copy of ``hard``; integers and booleans come in the dtype of ``soft``.
    """
    hard = np.array(hard)
    return hard if np.issubdtype(hard.dtype, np.floating) else hard.astype(as_floating(soft).dtype)


def straight_through_vjp(
    cotangent: ArrayLike, hard: ArrayLike, soft: ArrayLike
) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
    """Return the gradients that reach ``hard`` and ``soft``: 0, and ``cotangent``.

    Args:
        cotangent: Shape of ``hard``.
        hard: Any shape.
        soft: Shape of ``hard``.

    Returns:
        Two arrays of the shape of ``hard``.
    """
    del hard, soft
    cotangent = as_floating(cotangent)
    return np.zeros_like(cotangent), np.array(cotangent)


def floor_straight_through(x: ArrayLike) -> NDArray[np.floating]:
    """Floor forward; identity backward.

    Args:
        x: Any shape.

    Returns:
        Shape of ``x``.
    """
    return np.floor(as_floating(x))


def floor_straight_through_vjp(cotangent: ArrayLike, x: ArrayLike) -> NDArray[np.floating]:
    """Return the gradient that reaches ``x``: ``cotangent``.

    Args:
        cotangent: Shape of ``x``.
        x: Any shape.

    Returns:
        Shape of ``x``.
    """
    return straight_through_vjp(cotangent, x, x)[1]


def round_straight_through(x: ArrayLike) -> NDArray[np.floating]:
    """Round forward, ties to even; identity backward.

    Args:
        x: Any shape.

    Returns:
        Shape of ``x``.
    """
    return np.round(as_floating(x))


def round_straight_through_vjp(cotangent: ArrayLike, x: ArrayLike) -> NDArray[np.floating]:
    """Return the gradient that reaches ``x``: ``cotangent``.

    Args:
        cotangent: Shape of ``x``.
        x: Any shape.

    Returns:
        Shape of ``x``.
    """
    return straight_through_vjp(cotangent, x, x)[1]


def soft_floor(x: ArrayLike, temperature: float) -> NDArray[np.floating]:
    """Staircase of sigmoids forward; its own derivative backward.

    The sum over all integers k of ``sigmoid((x - k) / temperature)``, minus the same sum of steps at 0. Only
    the difference to the floor converges, so that is what is summed.

    Args:
        x: Any shape.
        temperature: Positive. Towards 0 it becomes the floor, towards infinity ``x - 0.5``.

    Returns:
        Shape of ``x``; infinite values stay, NaN too.
    """
    whole, part, integers = _around(x, temperature)
    with np.errstate(over="ignore"):
        sigmoids = 1 / (1 + np.exp(-(part[..., None] - integers) / temperature))
        beyond = 1 / (1 + np.exp((part[..., None] - integers) / temperature))
    # Below the step 1 - sigmoid is what is missing; written so, it doesn't cancel.
    return whole + np.where(integers > 0, sigmoids, -beyond).sum(axis=-1)


def soft_floor_vjp(cotangent: ArrayLike, x: ArrayLike, temperature: float) -> NDArray[np.floating]:
    """Return the gradient that reaches ``x``; 0 where ``x`` isn't finite.

    Args:
        cotangent: Shape of ``x``.
        x: Any shape.
        temperature: Positive.

    Returns:
        Shape of ``x``.
    """
    _, part, integers = _around(x, temperature)
    with np.errstate(over="ignore"):
        bells = np.cosh((part[..., None] - integers) / (2 * temperature)) ** -2 / (4 * temperature)
    return np.where(np.isfinite(x), as_floating(cotangent) * bells.sum(axis=-1), 0)


def piecewise_linear_floor(x: ArrayLike, width: float) -> NDArray[np.floating]:
    """Floor with a ramp before each step forward; slope ``1 / width`` on the ramps backward.

    Args:
        x: Any shape.
        width: Of the ramp that ends at each integer, within (0, 1].

    Returns:
        Shape of ``x``; infinite values stay, NaN too.
    """
    whole, part, _ = _around(x, 0.0)
    return whole + np.maximum(_rise(part, width), 0) / width


def piecewise_linear_floor_vjp(cotangent: ArrayLike, x: ArrayLike, width: float) -> NDArray[np.floating]:
    """Return the gradient that reaches ``x``; at a corner the slope is that to the right of it.

    Args:
        cotangent: Shape of ``x``.
        x: Any shape.
        width: Within (0, 1].

    Returns:
        Shape of ``x``; 0 where ``x`` isn't finite.
    """
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
