"""Soft ranks by pooling adjacent violators, in O(n log n) for each row."""

import math
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from gradtricks._core.kernels._sharing import share

Array = NDArray[np.floating]

_LARGE, _SHRINK = 2.0**900, 2.0**-200  # sums of larger numbers could overflow

_LEAST = 2**14  # fewer elements aren't worth another thread

_compiled = numba.njit(nogil=True, cache=True, error_model="numpy")


def soft_ranks(x: Array, strength: float | Array, threads: int = 1) -> tuple[Array, NDArray[np.int64]]:
    """Rank each row of ``[..., n]`` softly, from 1 on, and number the block of each element.

    A strength of 0 gives hard ranks, where equal elements share their average. A row that isn't finite has
    NaN ranks and the block -1. At most ``threads`` share the rows.
    """
    x, strength = _widened(x), _number(strength)
    ranks, blocks = np.empty_like(x), np.empty(x.shape, np.int64)
    rows = _rows(x, ranks, blocks)

    def work(start: int, stop: int) -> None:
        part = rows[0][start:stop]
        _rank(part, part.argsort(-1), rows[1][start:stop], rows[2][start:stop], strength)

    share(work, len(rows[0]), least=_LEAST // max(1, x.shape[-1]) + 1, threads=threads)
    return ranks, blocks


def deviations(x: Array, blocks: NDArray[np.int64], strength: float | Array) -> Array:
    """Subtract from each element the mean of its block, and divide by the strength.

    It is 0 for an element alone in its block, and NaN where the block is -1.
    """
    x = _widened(x)
    result = np.empty_like(x)
    _deviate(*_rows(x, blocks, result), _number(strength))
    return result


def usual_gaps(x: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Find the usual gap between neighbours, for each rank: the mean of the smaller half of the gaps.

    It is ``[..., 1]`` and comes with its gradient, ``[..., n]``, which equal elements share. A row without
    gaps, or that isn't finite, has the gap 1.
    """
    x = np.ascontiguousarray(x)
    gaps, weights = np.ones((*x.shape[:-1], 1)), np.zeros_like(x)
    _find_gaps(*_rows(x, x.argsort(-1), weights), gaps.reshape(-1))
    return gaps, weights


def _widened(x: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(x, np.promote_types(x.dtype, np.float32))


def _number(strength: float | Array) -> float:
    if np.ndim(strength):
        raise ValueError(
            "regularization_strength must be one number for all rows; got a batch of them; "
            "remedy: a loop over the strengths"
        )
    return float(strength)


def _rows(*arrays: NDArray[Any]) -> list[NDArray[Any]]:
    shape = arrays[0].shape
    return [array.reshape(math.prod(shape[:-1]), shape[-1]) for array in arrays]


@_compiled
def _rank(x: Any, order: Any, ranks: Any, blocks: Any, strength: Any) -> None:
    num_rows, n = x.shape
    values, means, starts = np.empty(n), np.empty(n), np.empty(n + 1, np.int64)
    for row in range(num_rows if n else 0):
        low, high = np.float64(x[row, order[row, 0]]), np.float64(x[row, order[row, -1]])
        if not np.isfinite(low) or not np.isfinite(high):  # NaN is sorted to the end
            ranks[row], blocks[row] = np.nan, -1
            continue
        unit = _SHRINK if strength > 0 and max(-low, high, strength * n) > _LARGE else 1.0
        for j in range(n):
            values[j] = x[row, order[row, j]] * unit
        count = _pool(values, strength * unit, means, starts)
        for block in range(count):
            start, stop = starts[block], starts[block + 1]
            _rank_block(values, start, stop, strength * unit, order[row], ranks[row])
            for j in range(start, stop):
                blocks[row, order[row, j]] = block


@_compiled
def _pool(values: Any, strength: Any, means: Any, starts: Any) -> Any:
    # Means count from a block's first element, so that neither an offset nor an outlier costs digits.
    top = -1
    for j in range(len(values)):
        mean, start = 0.0, j
        while top >= 0:
            first = starts[top]
            gap = values[start] - values[first] - strength * (start - first)
            if means[top] - mean < gap:
                break
            mean = means[top] + (gap + mean - means[top]) * ((j + 1 - start) / (j + 1 - first))
            start, top = first, top - 1
        top += 1
        means[top], starts[top] = mean, start
    starts[top + 1] = len(values)
    return top + 1


@_compiled
def _rank_block(values: Any, start: Any, stop: Any, strength: Any, order: Any, ranks: Any) -> None:
    mean = 0.0
    for j in range(start, stop):
        mean += values[j] - values[start]
    mean /= stop - start
    for j in range(start, stop):
        # Differences within the block, because its values may be large and the strength small.
        deviation = values[j] - values[start] - mean
        ranks[order[j]] = (start + stop + 1) / 2 + (deviation / strength if deviation else 0.0)


@_compiled
def _deviate(x: Any, blocks: Any, result: Any, strength: Any) -> None:
    num_rows, n = x.shape
    sums, sizes = np.empty(n), np.empty(n, np.int64)
    for row in range(num_rows if n else 0):
        if blocks[row, 0] < 0:
            result[row] = np.nan
            continue
        sums[:], sizes[:] = 0, 0
        for i in range(n):
            sums[blocks[row, i]] += x[row, i]
            sizes[blocks[row, i]] += 1
        for i in range(n):
            block = blocks[row, i]
            deviation = x[row, i] - sums[block] / sizes[block] if sizes[block] > 1 else 0.0
            result[row, i] = deviation / strength


@_compiled
def _find_gaps(x: Any, order: Any, weights: Any, gaps: Any) -> None:
    num_rows, n = x.shape
    ends, sizes = np.empty(n, np.int64), np.empty(n)
    for row in range(num_rows if n else 0):
        values = x[row, order[row]]
        if not np.isfinite(values[0]) or not np.isfinite(values[-1]):
            continue
        count = _group(values, ends, sizes)
        if count == 1:
            continue
        rank_steps = (sizes[1:count] + sizes[: count - 1]) / 2
        steps = np.diff(values[ends[:count]]) / rank_steps
        small = steps <= np.sort(steps)[count // 2 - 1]
        gaps[row] = steps[small].mean()
        weight, last = np.append(small / rank_steps / small.sum(), 0.0), 0.0
        start = 0
        for group in range(count):
            for j in range(start, ends[group] + 1):
                weights[row, order[row, j]] = (last - weight[group]) / sizes[group]
            start, last = ends[group] + 1, weight[group]


@_compiled
def _group(values: Any, ends: Any, sizes: Any) -> Any:
    count, start = 0, 0
    for j in range(len(values)):
        if j == len(values) - 1 or values[j + 1] != values[j]:
            ends[count], sizes[count] = j, j + 1 - start
            count, start = count + 1, j + 1
    return count
