"""Parts of a step of Adam under a mask."""

import math
import sys
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import tensorflow as tf

from gradtricks._core.masking import check_options, one_minus_exp
from gradtricks.tensorflow._tensors import TENSORS

_LARGE = 2**14  # elements from which on XLA's fusion is worth its compilation
_HAS_XLA = sys.platform != "darwin"


def is_small(variable: Any) -> bool:
    """Say whether the calls of a step cost more than its arithmetic."""
    return math.prod(variable.shape) < _LARGE


def stepper(function: Callable[..., Any], elements: int, **options: float) -> Callable[..., Any]:
    """Return a function with its options set, compiled by XLA where that is worth it."""
    return (_compiled if _HAS_XLA and elements >= _LARGE else partial)(function, **options)


@cache
def _compiled(function: Callable[..., Any], **options: float) -> Callable[..., Any]:
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
