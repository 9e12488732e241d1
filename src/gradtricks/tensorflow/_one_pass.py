"""The step of `MaskedAdam` in few passes over memory, where XLA compiles it."""

import sys
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import tensorflow as tf

from gradtricks._core.masking import one_minus_exp

_LARGE = 2**14  # elements from which on XLA's fusion is worth its compilation
_HAS_XLA = sys.platform != "darwin"


@cache
def compiled_step(function: Callable[..., None], **options: float) -> Callable[..., None]:
    """Compile a step, once for each shape, that assigns to the variables it is given, in place."""
    return tf.function(partial(function, **options), jit_compile=True, autograph=False)


def can_take_one_pass(parameter: Any) -> bool:
    """Say whether compiling pays: not for small parameters, nor where there is no XLA."""
    return bool(_HAS_XLA and parameter.shape.num_elements() >= _LARGE)


def one_minus_exp_in_products(x: tf.Tensor) -> tf.Tensor:
    """Compute ``1 - exp(-x)`` of positive numbers without a loss of digits, faster than XLA does."""
    coefficients, doublings, most = one_minus_exp(x.dtype.name)
    x = tf.minimum(x / 2**doublings, most)
    y = coefficients[0] * x
    for coefficient in coefficients[1:]:
        y = (y + coefficient) * x
    for _ in range(doublings):
        y *= 2 - y
    return y
