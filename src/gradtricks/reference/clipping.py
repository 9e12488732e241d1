"""Clipping a gradient, by value or by norm, and the projection that is often taken for it."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradtricks._core.checks import check_axis
from gradtricks.reference._arrays import as_floating

Axis = int | Sequence[int] | None


def clip_gradient(x: ArrayLike, gradient_min: float, gradient_max: float) -> NDArray[np.floating]:
    """Identity forward, bit for bit; clips each element of the incoming gradient."""
    return np.array(x)


def clip_gradient_vjp(
    cotangent: ArrayLike, x: ArrayLike, gradient_min: float, gradient_max: float
) -> NDArray[np.floating]:
    """``cotangent``, clipped. A NaN stays NaN."""
    return np.clip(as_floating(cotangent), gradient_min, gradient_max)


def clip_gradient_norm(x: ArrayLike, max_norm: float, *, axis: Axis = None) -> NDArray[np.floating]:
    """Identity forward; shrinks the incoming gradient to a norm, over ``axis``, of at most ``max_norm``."""
    return np.array(x)


def clip_gradient_norm_vjp(
    cotangent: ArrayLike, x: ArrayLike, max_norm: float, *, axis: Axis = None
) -> NDArray[np.floating]:
    """``cotangent``, projected onto the ball of radius ``max_norm``."""
    return project_to_max_norm(cotangent, max_norm, axis=axis)


def normalize_gradient(x: ArrayLike, norm: float, *, axis: Axis = None) -> NDArray[np.floating]:
    """Identity forward; rescales the incoming gradient to the norm ``norm``, taken over ``axis``."""
    return np.array(x)


def normalize_gradient_vjp(
    cotangent: ArrayLike, x: ArrayLike, norm: float, *, axis: Axis = None
) -> NDArray[np.floating]:
    """``cotangent`` at the norm ``norm``; zero stays zero."""
    cotangent = as_floating(cotangent)
    unit, length, _ = _polar(cotangent, check_axis("axis", axis, cotangent.ndim))
    return np.where(length == 0, cotangent, unit * (norm / np.where(length == 0, 1, length)))


def clip_by_global_norm(
    gradients: Sequence[ArrayLike], max_norm: float
) -> tuple[list[NDArray[np.floating]], np.float64]:
    """Shrink arrays together, so that the norm of all their elements is at most ``max_norm``.

    Returns:
        The arrays, clipped, and the norm before clipping.
    """
    arrays = [as_floating(gradient) for gradient in gradients]
    flat = np.concatenate([np.zeros(0), *(array.reshape(-1) for array in arrays)])
    _, length, largest = _polar(flat, (0,))
    clipped = project_to_max_norm(flat, max_norm)
    pieces = np.split(clipped, np.cumsum([array.size for array in arrays])[:-1]) if arrays else []
    return [p.reshape(a.shape) for p, a in zip(pieces, arrays)], np.float64((largest * length).item())


def clip_by_global_norm_vjp(
    cotangent: tuple[Sequence[ArrayLike], float], gradients: Sequence[ArrayLike], max_norm: float
) -> list[NDArray[np.floating]]:
    """For each of ``gradients``; ``cotangent`` holds one for each clipped array, and one for the norm."""
    arrays = [as_floating(gradient) for gradient in gradients]
    flat = np.concatenate([np.zeros(0), *(array.reshape(-1) for array in arrays)])
    clipped_bar, norm_bar = cotangent
    flat_bar = np.concatenate([np.zeros(0), *(np.reshape(bar, -1) for bar in clipped_bar)])
    unit, length, _ = _polar(flat, (0,))
    gradient = project_to_max_norm_vjp(flat_bar, flat, max_norm)
    gradient = gradient + norm_bar * unit / np.where(length == 0, 1, length)
    pieces = np.split(gradient, np.cumsum([array.size for array in arrays])[:-1]) if arrays else []
    return [p.reshape(a.shape) for p, a in zip(pieces, arrays)]


def project_to_max_norm(x: ArrayLike, max_norm: float, *, axis: Axis = None) -> NDArray[np.floating]:
    """Shrink ``x`` itself to a norm, over ``axis``, of at most ``max_norm``.

    Infinity counts as the largest number that there is. A NaN makes the norm NaN, and all that shares it.
    """
    x = as_floating(x)
    unit, length, largest = _polar(x, check_axis("axis", axis, x.ndim))
    fits = _fits(length, largest, max_norm)
    return np.where(fits, x, unit * (max_norm / np.where(length == 0, 1, length)))


def project_to_max_norm_vjp(
    cotangent: ArrayLike, x: ArrayLike, max_norm: float, *, axis: Axis = None
) -> NDArray[np.floating]:
    """Where the norm fits, ``cotangent``; elsewhere it loses its part along ``x`` and shrinks as ``x`` did.

    A move along ``x`` changes nothing.
    """
    x, cotangent = as_floating(x), as_floating(cotangent)
    axes = check_axis("axis", axis, x.ndim)
    unit, length, largest = _polar(x, axes)
    fits = _fits(length, largest, max_norm)
    length = np.where(length == 0, 1, length)
    direction = unit / length
    across = cotangent - direction * np.sum(direction * cotangent, axis=axes, keepdims=True)
    return np.where(fits, cotangent, across * (max_norm / length / np.where(fits, 1, largest)))


def _fits(length: NDArray[np.floating], largest: NDArray[np.floating], max_norm: float) -> NDArray[np.bool_]:
    """Whether a norm is at most its maximum, up to rounding.

    That is one unit in the last place of the dtype, and eight of the dtype in which norms are taken. Infinity
    counts as the largest number that there is.
    """
    rounding = np.finfo(length.dtype).eps + 8 * np.finfo(np.result_type(length.dtype, np.float32)).eps
    finite = np.minimum(largest, np.finfo(largest.dtype).max)
    return finite * length.astype(np.longdouble) <= max_norm * np.longdouble(1 + rounding)  # can't overflow


def _polar(
    x: NDArray[np.floating], axes: tuple[int, ...]
) -> tuple[NDArray[np.floating], NDArray[np.floating], NDArray[np.floating]]:
    """Return ``x`` divided by its largest magnitude, the norm of that, and the largest magnitude.

    Infinity counts as the largest number that there is.
    """
    largest = np.max(np.abs(x), axis=axes, keepdims=True, initial=0)
    finite = np.minimum(largest, np.finfo(x.dtype).max)
    unit = np.clip(x / np.where(largest == 0, 1, finite), -1, 1)
    return unit, np.sqrt(np.sum(np.square(unit), axis=axes, keepdims=True)), largest
