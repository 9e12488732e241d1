"""A step of Adam under a mask: its arithmetic, and how it is compiled."""

import math
import sys
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import tensorflow as tf

from gradtricks._core.masking import check_options, one_minus_exp
from gradtricks.tensorflow._masked_optimizer import where_trainable
from gradtricks.tensorflow._tensors import TENSORS

_LARGE = 2**14  # elements from which on XLA's fusion is worth its compilation
_HAS_XLA = sys.platform != "darwin"


def adam_step(
    parameter: Any,
    gradient: tf.Tensor,
    m: Any,
    v: Any,
    step: Any,
    trainable_mask: Any,
    v_max: Any,
    learning_rate: Any,
    beta_1: float,
    beta_2: float,
    epsilon: float,
    weight_decay: float,
    *,
    maximize: bool = False,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor | None]:
    """Take the step that `masked_adam_step` describes, of arguments that have been checked."""
    largest = v if v_max is None else v_max
    dtypes = m.dtype, v.dtype, largest.dtype
    wide = tf.float64 if tf.float64 in (*dtypes, parameter.dtype, gradient.dtype) else tf.float32
    m, v, largest = tf.cast(m, wide), tf.cast(v, wide), tf.cast(largest, wide)
    if isinstance(learning_rate, TENSORS):
        learning_rate = tf.cast(learning_rate, wide)  # of a number, this would take digits away
    # What a frozen element's gradient holds must not reach anything, the backward pass included.
    gradient = tf.cast(where_trainable(trainable_mask, -gradient if maximize else gradient), wide)
    # Mask the moments first; the compiled step then reads one array fewer.
    new_m = tf.where(trainable_mask, beta_1 * m + (1 - beta_1) * gradient, m)
    new_v = tf.where(trainable_mask, beta_2 * v + (1 - beta_2) * tf.square(gradient), v)
    largest = new_v if v_max is None else tf.where(trainable_mask, tf.maximum(largest, new_v), largest)
    new_step = step + 1
    correction_1, correction_2 = bias_correction(beta_1, new_step, m), bias_correction(beta_2, new_step, m)
    # Quotients are dear, so this has one: numerator and denominator are taken times correction_2.
    second = largest * correction_2
    moving = second > 0  # at 0 the root has no slope; there it counts as 0
    one, zero = tf.ones([], wide), tf.zeros([], wide)
    root = tf.where(moving, tf.sqrt(tf.where(moving, second, one)), zero)
    root = tf.where(trainable_mask, correction_1 * (root + epsilon * correction_2), one)
    update = learning_rate * correction_2 * new_m / root
    moved = tf.cast(parameter, wide) * (1 - learning_rate * weight_decay) - update
    new_parameter = tf.where(trainable_mask, tf.cast(moved, parameter.dtype), parameter)
    new_m, new_v, largest = (tf.cast(x, dtype) for x, dtype in zip((new_m, new_v, largest), dtypes))
    new_step = tf.where(trainable_mask, new_step, step)
    return new_parameter, new_m, new_v, new_step, None if v_max is None else largest


def is_small(variable: Any) -> bool:
    """Say whether the calls of a step cost more than its arithmetic."""
    return math.prod(variable.shape) < _LARGE


def stepper(function: Callable[..., Any], elements: int, **options: Any) -> Callable[..., Any]:
    """Return a function with its options set, compiled by XLA where that is worth it."""
    return (_compiled if _HAS_XLA and elements >= _LARGE else partial)(function, **options)


@cache
def _compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    # Once for each shape; it assigns to the variables that it is given.
    return tf.function(partial(function, **options), jit_compile=True, autograph=False)


def shaped(x: Any, shape: Any) -> Any:
    """Give a tensor or a variable a shape; one axis stays, since each operation takes its time."""
    return x if len(x.shape) == len(shape) == 1 else tf.reshape(x, shape)


def as_options(learning_rate: Any, *others: float) -> list[Any]:
    """Return checked options of a step; a rate that is a tensor or a schedule stays as it is."""
    if callable(learning_rate) or isinstance(learning_rate, TENSORS):
        return [learning_rate, *check_options(0.0, *others)[1:]]
    return check_options(learning_rate, *others)


def bias_correction(beta: float, step: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """Return ``1 - beta**step`` in the dtype of ``like``, to all its digits."""
    # 1 - beta**t in float32 would lose four digits at t = 1; the steps differ between elements.
    x = tf.cast(step, like.dtype) * (-math.log(beta) if beta else math.inf)
    if step.shape.rank == 0:
        return -tf.math.expm1(-x)
    # XLA's expm1 is slow.
    coefficients, doublings, most = one_minus_exp(x.dtype.name)
    x = tf.minimum(x / 2**doublings, most)
    y = coefficients[0] * x
    for coefficient in coefficients[1:]:
        y = (y + coefficient) * x
    for _ in range(doublings):
        y *= 2 - y
    return y


def wide_dtype(variable: Any) -> str:
    """Return the dtype of a variable's moments: its own, or float32 if that is wider."""
    dtype = tf.as_dtype(variable.dtype)
    return "float32" if dtype.size < 4 else dtype.name
