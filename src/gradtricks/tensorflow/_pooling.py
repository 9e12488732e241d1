"""Pooling adjacent violators with TensorFlow's operations, for graphs and XLA."""

import math
from collections.abc import Callable

import tensorflow as tf

_ROUNDING = 2.0**-50  # relative error of a long sum, more or less
_LARGE, _SHRINK = 2.0**900, 2.0**-200  # sums of larger numbers could overflow


def pooled_by_rounds(x: tf.Tensor, strength: float | tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Find the soft ranks, and the number of each element's block, with operations that every compiler knows.

    XLA can't call the kernel. Here many blocks are pooled at once, again and again; in whichever order one
    pools neighbours that violate the order, the blocks come out the same. The number 0 as strength gives
    hard ranks. A row that isn't finite has NaN ranks and the block -1.
    """
    dtype, x = x.dtype, tf.cast(x, tf.float64)
    soft = tf.is_tensor(strength) or strength > 0
    order = tf.argsort(x)
    finite = tf.reduce_all(tf.math.is_finite(x), axis=-1, keepdims=True)
    values = tf.where(finite, _gather(x, order), tf.zeros_like(x))
    unit = tf.ones([], x.dtype)
    if soft:  # hard ranks compare, and a difference would make equals of near elements
        unit, half = _unit(values, strength), _length(x) // 2
        # An offset or an outlier mustn't cost the others digits.
        values = values * unit - values[..., half : half + 1] * unit
    places = tf.ones_like(values) * tf.range(_length(x), dtype=x.dtype)
    blocks = _numbered(_pooled_starts(values - strength * unit * places, soft))
    from_least = values - _of_blocks(tf.math.unsorted_segment_min, values, blocks)
    ranks = 1 + _of_blocks(tf.math.unsorted_segment_mean, places, blocks)
    ranks += tf.math.divide_no_nan(_deviate(from_least, blocks), strength * unit)
    back = tf.argsort(order)
    ranks = tf.where(finite, _gather(ranks, back), tf.constant(math.nan, x.dtype))
    return tf.cast(ranks, dtype), tf.where(finite, _gather(blocks, back), -1)


def deviations_by_operations(x: tf.Tensor, blocks: tf.Tensor, strength: float | tf.Tensor) -> tf.Tensor:
    """Subtract from each element the mean of its block, and divide by the strength.

    It is 0 for an element alone in its block, even if that is infinite, and NaN in the block -1.
    """
    scale = tf.where(blocks < 0, tf.constant(math.nan, tf.float64), strength)
    return tf.cast(_deviate(tf.cast(x, tf.float64), tf.maximum(blocks, 0)) / scale, x.dtype)


def _deviate(x: tf.Tensor, blocks: tf.Tensor) -> tf.Tensor:
    sizes = _of_blocks(tf.math.unsorted_segment_sum, tf.ones_like(x), blocks)
    means = _of_blocks(tf.math.unsorted_segment_sum, x, blocks) / sizes
    return tf.where(sizes > 1, x - means, tf.zeros_like(x))


def gap_by_operations(x: tf.Tensor) -> tf.Tensor:
    """Find the usual gap between neighbours, for each rank: the mean of the smaller half of the gaps.

    It is ``[..., 1]``, and 1 in a row without gaps or that isn't finite.
    """
    ranks, blocks = pooled_by_rounds(tf.stop_gradient(x), 0.0)
    x = x - _deviate(x - tf.stop_gradient(x), tf.maximum(blocks, 0))  # equal elements share the gradient
    order = tf.argsort(ranks)
    rank_steps = _diff(_gather(ranks, order))
    distinct = rank_steps > 0
    gaps = _diff(_gather(x, order)) / tf.where(distinct, rank_steps, tf.ones_like(rank_steps))
    ascending = tf.sort(tf.where(distinct, tf.stop_gradient(gaps), tf.constant(math.inf, gaps.dtype)))
    ascending = tf.pad(ascending, [[0, 0]] * (x.shape.rank - 1) + [[0, 1]])  # not empty for a single element
    middle = tf.maximum(_count(distinct) - 1, 0) // 2
    small = distinct & (gaps <= _gather(ascending, middle))
    count = _count(small)
    mean = tf.reduce_sum(tf.where(small, gaps, tf.zeros_like(gaps)), axis=-1, keepdims=True)
    mean = mean / tf.cast(tf.maximum(count, 1), x.dtype)
    return tf.where(count == 0, tf.ones_like(mean), mean)


def _unit(values: tf.Tensor, strength: float) -> tf.Tensor:
    largest = tf.reduce_max(tf.abs(values), axis=-1, keepdims=True)
    largest = tf.maximum(largest, strength * tf.cast(_length(values), values.dtype))
    return tf.where(largest > _LARGE, tf.constant(_SHRINK, values.dtype), tf.ones([], values.dtype))


def _pooled_starts(excess: tf.Tensor, chains: bool) -> tf.Tensor:
    # With chains, blocks also swallow what comes after the neighbour; without, a round finds just the pairs,
    # which are all there is where only equal elements are pooled.
    starts = tf.ones_like(excess, tf.bool)
    if not chains:
        return starts & ~_violations(starts, excess)

    def pool(starts: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        forward = _swallow(excess, starts)
        both = _flip(_swallow(-_flip(excess), _flip(_roll(forward, -1))))
        kept = _roll(both, 1)
        return kept, tf.reduce_any(kept != starts)

    return tf.while_loop(lambda _, changed: changed, pool, [starts, tf.constant(True)])[0]


def _swallow(excess: tf.Tensor, starts: tf.Tensor) -> tf.Tensor:
    # A block that violates the order with its successor, but not with its predecessor, swallows successors
    # for as long as the mean of what it has swallowed is larger than theirs, beyond doubt of rounding.
    blocks = _numbered(starts)
    means = _of_blocks(tf.math.unsorted_segment_mean, excess, blocks)
    violations = _violations(starts, means)
    before_violation = tf.cast(_roll(violations, -1), tf.int32)
    heads = _of_blocks(tf.math.unsorted_segment_max, before_violation, blocks) > 0
    heads = starts & ((heads & ~violations) | ~_after_first(excess))
    places = tf.cumsum(tf.ones_like(blocks), axis=-1, exclusive=True)
    head = _of_blocks(tf.math.unsorted_segment_min, places, _numbered(heads))
    sums = tf.cumsum(excess, axis=-1, exclusive=True)
    swallowed = (sums - _gather(sums, head)) / tf.cast(tf.maximum(places - head, 1), excess.dtype)
    doubt = _ROUNDING * tf.reduce_sum(tf.abs(excess), axis=-1, keepdims=True)
    ends = starts & ~heads & (swallowed - doubt < means)
    num_ends = tf.cumsum(tf.cast(ends, tf.int32), axis=-1)
    chain = starts & ~heads & (num_ends == _gather(num_ends, head))
    return starts & ~(violations | chain)


def _violations(starts: tf.Tensor, means: tf.Tensor) -> tf.Tensor:
    return starts & _after_first(means) & (_roll(means, 1) >= means)


def _after_first(x: tf.Tensor) -> tf.Tensor:
    return tf.range(_length(x)) > 0


def _numbered(starts: tf.Tensor) -> tf.Tensor:
    return tf.cumsum(tf.cast(starts, tf.int64), axis=-1) - 1


def _of_blocks(reduce: Callable[..., tf.Tensor], x: tf.Tensor, blocks: tf.Tensor) -> tf.Tensor:
    first_in_row = tf.cast(tf.range(tf.size(x)) // tf.maximum(_length(x), 1) * _length(x), blocks.dtype)
    flat = tf.reshape(blocks, [-1]) + first_in_row
    reduced = reduce(tf.reshape(x, [-1]), flat, tf.size(x))
    return tf.reshape(tf.gather(reduced, flat), tf.shape(x))


def _roll(x: tf.Tensor, shift: int) -> tf.Tensor:
    return tf.roll(x, shift, x.shape.rank - 1)  # vectorized_map mistakes the axis -1


def _flip(x: tf.Tensor) -> tf.Tensor:
    return tf.reverse(x, [x.shape.rank - 1])


def _gather(x: tf.Tensor, order: tf.Tensor) -> tf.Tensor:
    return tf.gather(x, order, axis=-1, batch_dims=x.shape.rank - 1)


def _length(x: tf.Tensor) -> tf.Tensor:
    return tf.shape(x)[-1]


def _diff(x: tf.Tensor) -> tf.Tensor:
    return x[..., 1:] - x[..., :-1]


def _count(flags: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.cast(flags, tf.int32), axis=-1, keepdims=True)
