"""Ranks that have a gradient, and the correlation of ranks. Arguments are those in both frameworks."""

import numpy as np
from numpy.typing import ArrayLike, NDArray


def soft_rank(x: ArrayLike, *, regularization_strength: float, axis: int = -1) -> NDArray[np.floating]:
    """Project ``x / regularization_strength`` onto the convex hull of all rankings."""
    x = np.moveaxis(np.asarray(x, np.float64), axis, -1)
    ranks = np.empty(x.shape)
    for row in np.ndindex(x.shape[:-1]):
        ranks[row] = _project(x[row], regularization_strength)[0]
    return np.moveaxis(ranks, -1, axis)


def soft_rank_vjp(
    cotangent: ArrayLike, x: ArrayLike, *, regularization_strength: float, axis: int = -1
) -> NDArray[np.floating]:
    """Return the gradient that reaches ``x``: ``cotangent`` less the mean of its block, over the strength."""
    x, cotangent = (np.moveaxis(np.asarray(values, np.float64), axis, -1) for values in (x, cotangent))
    gradient = np.zeros(x.shape)
    for row in np.ndindex(x.shape[:-1]):
        ranks, blocks = _project(x[row], regularization_strength)
        gradient[row][np.isnan(ranks)] = np.nan
        for block in blocks:
            if len(block) > 1:
                gradient[row][block] += cotangent[row][block] - np.mean(cotangent[row][block])
    return np.moveaxis(gradient, -1, axis) / regularization_strength


def spearman_correlation(
    x: ArrayLike,
    y: ArrayLike,
    *,
    regularization_strength: float | None = None,
    axis: int = -1,
    soft_y: bool = False,
) -> NDArray[np.floating]:
    """Correlate the soft ranks of ``x`` with the ranks of ``y``.

    Returns:
        Shape of ``x`` without ``axis``, within [-1, 1]; 0 where all elements of ``x`` or of ``y`` are equal.
    """
    x, y = (np.moveaxis(np.asarray(values, np.float64), axis, -1) for values in (x, y))
    correlations = np.zeros(x.shape[:-1])
    for row in np.ndindex(correlations.shape):
        a, b = _centered_ranks(x[row], y[row], regularization_strength, soft_y)
        length = np.sqrt(a @ a) * np.sqrt(b @ b)
        correlations[row] = 0 if length == 0 else a @ b / length
    return correlations


def spearman_correlation_vjp(
    cotangent: ArrayLike,
    x: ArrayLike,
    y: ArrayLike,
    *,
    regularization_strength: float | None = None,
    axis: int = -1,
    soft_y: bool = False,
) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
    """Return the gradients that reach ``x`` and ``y``; ``y`` gets zeros unless it is ranked softly."""
    x, y = (np.moveaxis(np.asarray(values, np.float64), axis, -1) for values in (x, y))
    gradients = np.zeros((2, *x.shape))
    for row in np.ndindex(x.shape[:-1]):
        a, b = _centered_ranks(x[row], y[row], regularization_strength, soft_y)
        aa, bb, ab = a @ a, b @ b, a @ b
        if aa * bb == 0:
            continue
        factor = np.asarray(cotangent)[row] / np.sqrt(aa * bb)
        gradients[0][row] = _rank_vjp(factor * (b - a * ab / aa), x[row], regularization_strength)
        if soft_y:
            gradients[1][row] = _rank_vjp(factor * (a - b * ab / bb), y[row], regularization_strength)
    gradient_x, gradient_y = np.moveaxis(gradients, -1, axis if axis < 0 else axis + 1)
    return gradient_x, gradient_y


def _project(x: NDArray[np.floating], strength: float) -> tuple[NDArray[np.floating], list[NDArray[np.intp]]]:
    # Neighbours in the order of x whose distance is too small for a difference of one rank share a block.
    blocks: list[NDArray[np.intp]] = []
    ranks = np.full(x.shape, np.nan)
    if not np.isfinite(x).all():
        return ranks, [np.arange(len(x))]
    hard = np.empty(x.shape)
    hard[np.argsort(x)] = np.arange(1, len(x) + 1)
    excess = x - strength * hard
    for element in np.argsort(x):
        blocks.append(np.array([element]))
        while len(blocks) > 1 and _mean(excess[blocks[-2]]) >= _mean(excess[blocks[-1]]):
            blocks[-2:] = [np.concatenate(blocks[-2:])]
    for block in blocks:
        deviations = x[block] - x[block[0]] - np.mean(x[block] - x[block[0]])
        ranks[block] = np.mean(hard[block]) + deviations / (strength or 1)
    return ranks, blocks


def _mean(values: NDArray[np.floating]) -> float:
    # Of equal numbers it is that number, without the rounding of their sum.
    return float(values[0] + np.mean(values - values[0]))


def _centered_ranks(
    x: NDArray[np.floating], y: NDArray[np.floating], strength: float | None, soft_y: bool
) -> list[NDArray[np.floating]]:
    ranks = [_project(values, strength or 2 * _usual_gap(values)[0])[0] for values in (x, y)]
    if not soft_y:
        ranks[1] = _project(y, 0)[0]
    return [rank - (len(x) + 1) / 2 for rank in ranks]


def _usual_gap(x: NDArray[np.floating]) -> tuple[float, NDArray[np.floating]]:
    # The mean of the smaller half of the distances between neighbours, for each rank, and its gradient.
    values, group, sizes = np.unique(x, return_inverse=True, return_counts=True)
    if len(values) < 2 or not np.isfinite(x).all():
        return 1.0, np.zeros(x.shape)
    rank_steps = (sizes[1:] + sizes[:-1]) / 2
    gaps = np.diff(values) / rank_steps
    small = gaps <= np.sort(gaps)[(len(gaps) + 1) // 2 - 1]
    weights = small / rank_steps / small.sum()
    gradient = np.append(0, weights) - np.append(weights, 0)
    return float(gaps[small].mean()), (gradient / sizes)[group]


def _rank_vjp(
    cotangent: NDArray[np.floating], x: NDArray[np.floating], strength: float | None
) -> NDArray[np.floating]:
    if strength is not None:
        return soft_rank_vjp(cotangent, x, regularization_strength=strength)
    gap, gap_gradient = _usual_gap(x)
    gradient = soft_rank_vjp(cotangent, x, regularization_strength=2 * gap)
    return gradient - (gradient @ x) / gap * gap_gradient
