"""Ranks that have a gradient, and the correlation of ranks.

In the order of ``x``, neighbours too near to each other for hard ranks are pooled into blocks. In a block::

    rank = mean of the block's places + (x - mean of the block) / strength
    gradient of x <- (gradient - mean of the block's) / strength
"""

import sys
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from numpy.typing import NDArray

from gradtricks._core import kernels
from gradtricks._core.checks import check_axis, check_flag, check_number, check_shape
from gradtricks.tensorflow._edits import as_constant, intercept, is_readable, with_slope
from gradtricks.tensorflow._pooling import deviations_by_operations, gap_by_operations, pooled_by_rounds
from gradtricks.tensorflow._tensors import TENSORS, as_floating, as_ranked, at_least_float32

_GAPS = 2.0  # default strength, in usual gaps between neighbours


def soft_rank(x: tf.Tensor, *, regularization_strength: float | tf.Tensor, axis: int = -1) -> tf.Tensor:
    """Rank softly, smallest 1; passes each element what its gradient has beyond the mean of its block.

    The ranks are the point of the permutahedron, the convex hull of all rankings, that is nearest to
    ``x / regularization_strength``. Within a block they are linear in ``x``; an element alone in its block
    has a hard rank and gets no gradient. Equal elements share their rank.

    Args:
        x: Floating-point, any shape but a scalar. A row that holds NaN or an infinity has NaN ranks and NaN
            gradients.
        regularization_strength: Positive, in units of ``x``; a number, or a floating-point scalar, whose
            value isn't checked. Below the smallest gap between neighbours (per rank, where elements are
            equal) all ranks are hard; from the largest gap on, all elements are in one block.
        axis: The elements along it are ranked against each other.

    Returns:
        Shape and dtype of ``x``, computed in float64. On a GPU, each round of pooling waits for it to
        say whether it was the last.

    References:
        Fast differentiable sorting and ranking, https://arxiv.org/abs/2002.08871, quadratic regularization.

    Example:
        >>> soft_rank(tf.constant([2.9, 0.1, 3.0]), regularization_strength=1.0).numpy()
        array([2.45, 1.  , 2.55], dtype=float32)
    """
    x = as_ranked("x", x)
    strength = _as_strength(regularization_strength)
    (axis,) = check_axis("axis", (axis,), x.shape.rank)
    return _soft_rank(x, strength, axis)


def spearman_correlation(
    x: tf.Tensor,
    y: tf.Tensor,
    *,
    regularization_strength: float | tf.Tensor | None = None,
    axis: int = -1,
    soft_y: bool = False,
) -> tf.Tensor:
    """Correlate the soft ranks of ``x`` with the ranks of ``y``; the gradient is that of this value.

    To raise the correlation, minimise its negative. Without a strength the value doesn't change when ``x`` is
    shifted or multiplied by a positive number, and the gradient accounts for that.

    Args:
        x: Floating-point, any shape but a scalar.
        y: Floating-point, shape of ``x``. It is ranked hard, equal elements share their average rank, and it
            gets no gradient.
        regularization_strength: As in `soft_rank`; None is twice the usual gap between neighbours: the mean
            of the smaller half of the gaps (per rank, where elements are equal).
        axis: As in `soft_rank`.
        soft_y: Rank ``y`` softly too, so that it gets a gradient; without a strength, by its own gaps.

    Returns:
        Shape of ``x`` without ``axis``, in the dtype of ``x`` or float32 if that is wider. Within [-1, 1] up
        to rounding. Where all elements of ``x`` or of ``y`` are equal, the value and the gradient are 0;
        where one of them is NaN or infinite, NaN.

    Example:
        >>> x, y = tf.constant([0.0, 1.0, 3.0, 9.0]), tf.constant([1.0, 2.0, 4.0, 3.0])
        >>> spearman_correlation(x, y, regularization_strength=0.1).numpy().round(4)
        np.float32(0.8)
    """
    x, y = as_ranked("x", x), as_ranked("y", y)
    check_shape("y", y.shape, x.shape, "x")
    strength = None if regularization_strength is None else _as_strength(regularization_strength)
    check_flag("soft_y", soft_y)
    (axis,) = check_axis("axis", (axis,), x.shape.rank)
    dtype = at_least_float32(x).dtype
    x, y = (tf.cast(_move_axis(tensor, axis, -1), tf.float64) for tensor in (x, y))
    ranks_y = _scaled_rank(y, strength) if soft_y else _pooled(y, 0.0)[0]
    return tf.cast(_correlate(_scaled_rank(x, strength), ranks_y), dtype)


def _soft_rank(x: tf.Tensor, strength: float | tf.Tensor, axis: int = -1) -> tf.Tensor:
    def rule(gradient: tf.Tensor) -> tf.Tensor:
        return _move_axis(_deviations(_move_axis(gradient, axis, -1), blocks, strength), -1, axis)

    # Between two changes of the blocks the ranks are linear.
    ranks, blocks = _pooled(_move_axis(x, axis, -1), strength)
    return intercept(x, rule, linear=True, value=_move_axis(ranks, -1, axis))


def _pooled(x: tf.Tensor, strength: float | tf.Tensor) -> tuple[tf.Tensor, tf.Tensor | NDArray[Any]]:
    if is_readable(x):
        ranks, blocks = kernels.ranking.soft_ranks(x.numpy(), strength)
        return as_constant(ranks, x.dtype), blocks
    x = tf.stop_gradient(x)
    if not tf.executing_eagerly():
        return pooled_by_rounds(x, strength)
    if not tf.is_tensor(strength) and strength:
        strength = tf.constant(strength, tf.float64)  # each number would be traced anew
    return _in_a_graph(x, strength)


# On a GPU the rounds would mostly wait for Python.
_in_a_graph: Callable[..., Any] = tf.function(pooled_by_rounds, autograph=False, reduce_retracing=True)

# Less the mean of its block, over the strength: a symmetric matrix.
_deviations: Callable[..., tf.Tensor] = with_slope(
    lambda *arrays: kernels.ranking.deviations(*arrays),
    lambda gradient, output, x, *others: (_deviations(gradient, *others), None, None),
    deviations_by_operations,
)


def _scaled_rank(x: tf.Tensor, strength: float | tf.Tensor | None) -> tf.Tensor:
    if strength is not None:
        return _soft_rank(x, strength)
    return _soft_rank(x / _usual_gap(x), _GAPS)


def _usual_gap(x: tf.Tensor) -> tf.Tensor:
    if not is_readable(x):
        return gap_by_operations(x)
    gap, gradient = kernels.ranking.usual_gaps(x.numpy())
    return gap + tf.reduce_sum(gradient * (x - tf.stop_gradient(x)), axis=-1, keepdims=True)


def _correlate(ranks_x: tf.Tensor, ranks_y: tf.Tensor) -> tf.Tensor:
    middle = tf.cast(tf.shape(ranks_x)[-1] + 1, ranks_x.dtype) / 2  # the mean of all ranks, soft or not
    x, y = ranks_x - middle, ranks_y - middle
    xx, yy = (tf.reduce_sum(tf.square(ranks), axis=-1) for ranks in (x, y))
    constant, one = (xx == 0) | (yy == 0), tf.ones_like(xx)
    norms = tf.sqrt(tf.where(constant, one, xx)) * tf.sqrt(tf.where(constant, one, yy))
    return tf.where(constant, tf.zeros_like(xx), tf.reduce_sum(x * y, axis=-1) / norms)


def _as_strength(value: float | tf.Tensor) -> float | tf.Tensor:
    if isinstance(value, TENSORS):
        value = as_floating("regularization_strength", value)
        check_shape("regularization_strength", value.shape, (), "a scalar")
        return tf.stop_gradient(tf.cast(value, tf.float64))
    return check_number("regularization_strength", value, low=sys.float_info.min)


def _move_axis(x: tf.Tensor, source: int, target: int) -> tf.Tensor:
    rank = x.shape.rank
    if source % rank == target % rank:
        return x
    axes = list(range(rank))
    axes.insert(target % rank, axes.pop(source))
    return tf.transpose(x, axes)
