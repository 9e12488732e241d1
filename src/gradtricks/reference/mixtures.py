"""The likelihood of a mixture density network. Arguments are those in both frameworks."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradtricks.reference._arrays import as_floating, log_softmax


def mixture_density_nll(
    logits: ArrayLike, loc: ArrayLike, scale: ArrayLike, y: ArrayLike, *, scale_floor: float
) -> NDArray[np.floating]:
    """Minus the log-density of ``y`` in a Gaussian mixture with weights ``softmax(logits)``.

    Sigma is ``scale + scale_floor``. Beyond as many sigmas as the cube root of the largest number, the square
    of the distance goes on as a logarithm, with the same slope.
    """
    logits, distance, sigma, limit = _standardized(logits, loc, scale, y, scale_floor)
    return -_log_sum_exp(log_softmax(logits) + _log_density(distance, sigma, limit))


def mixture_density_nll_vjp(
    cotangent: ArrayLike,
    logits: ArrayLike,
    loc: ArrayLike,
    scale: ArrayLike,
    y: ArrayLike,
    *,
    scale_floor: float,
) -> tuple[NDArray[np.floating], NDArray[np.floating], NDArray[np.floating], NDArray[np.floating]]:
    """Return the gradients: the responsibilities ``r`` say which component answers for ``y``.

    The logits get ``softmax(logits) - r``; each component's ``loc`` gets ``-r (y - loc) / sigma**2`` and its
    ``scale`` ``r (1 - ((y - loc) / sigma)**2) / sigma``. A component without responsibility gets 0.
    """
    shapes = [np.shape(x) for x in (loc, scale, y)]
    logits, distance, sigma, limit = _standardized(logits, loc, scale, y, scale_floor)
    joint = log_softmax(logits) + _log_density(distance, sigma, limit)
    responsibility = np.exp(log_softmax(joint))
    each = as_floating(cotangent)[..., None]
    weight = (each * responsibility)[..., None]
    far = np.abs(distance) > limit * sigma
    z = np.where(far, limit, distance / np.where(far, np.inf, sigma))
    slope = np.where(far, limit * (limit / np.where(far, distance, 1)), z / sigma)
    return (
        each * (np.exp(log_softmax(logits)) - responsibility),
        (-weight * slope).reshape(shapes[0]),
        (weight * (1 - z**2) / sigma).reshape(shapes[1]),
        (weight * slope).sum(-2).reshape(shapes[2]),
    )


def _standardized(
    logits: ArrayLike, loc: ArrayLike, scale: ArrayLike, y: ArrayLike, scale_floor: float
) -> tuple[NDArray[np.floating], NDArray[np.floating], NDArray[np.floating], float]:
    logits, loc, scale, y = (as_floating(x) for x in (logits, loc, scale, y))
    if loc.ndim == logits.ndim:
        loc, scale, y = loc[..., None], scale[..., None], y[..., None]
    return logits, y[..., None, :] - loc, scale + scale_floor, float(np.finfo(loc.dtype).max) ** (1 / 3)


def _log_density(
    distance: NDArray[np.floating], sigma: NDArray[np.floating], limit: float
) -> NDArray[np.floating]:
    far = np.abs(distance) > limit * sigma
    z = np.where(far, 0, distance) / sigma
    excess = np.log(np.where(far, np.abs(distance), 1)) - np.log(np.where(far, limit * sigma, 1))
    square = np.where(far, limit**2 * (1 + 2 * excess), z**2)
    return -(square / 2 + np.log(sigma) + np.log(2 * np.pi) / 2).sum(-1)


def _log_sum_exp(x: NDArray[np.floating]) -> NDArray[np.floating]:
    largest = x.max(-1)
    return largest + np.log(np.exp(x - largest[..., None]).sum(-1))
