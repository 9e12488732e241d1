"""Steps of weights of 16 bits: taken in float32, and rounded so that small ones arrive."""

import random
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from gradtricks._core.checks import check_choice, check_integer
from gradtricks.tensorflow._adam import adam_step
from gradtricks.tensorflow.rounding import add_compensated, round_stochastically

_MOST = 2**31 - 1  # Keras' seeds are of 32 bits


def as_rounding(rounding: Any, seed: Any) -> tuple[str | None, int | None]:
    """Return an optimizer's checked option and its seed, which is drawn where noise needs one."""
    check_choice("rounding", rounding, (None, "stochastic", "compensated"))
    if rounding != "stochastic":
        if seed is not None:
            raise ValueError(f'seed must be None unless rounding="stochastic"; got {seed!r}')
        return rounding, None
    if seed is None:
        # As Keras draws seeds, so that keras.utils.set_random_seed holds for this one too.
        seed = random.randint(0, _MOST)  # noqa: S311
    return rounding, check_integer("seed", seed, low=0, high=_MOST)


def check_narrow(rounding: str | None, variables: Sequence[Any]) -> None:
    """Raise a TypeError if a variable is too wide for the rounding."""
    for variable in variables if rounding else ():
        if (dtype := tf.as_dtype(variable.dtype)) not in (tf.bfloat16, tf.float16):
            raise TypeError(
                f'variables must be bfloat16 or float16 with rounding="{rounding}"; got {dtype.name} for '
                f"{variable.name}; remedy: rounding=None, or before the layers are made "
                'keras.config.set_dtype_policy("bfloat16")'
            )


def rounded_step(
    parameter: Any, *arguments: Any, rounding: str | None, rest: Any, **options: Any
) -> tuple[Any, ...]:
    """Take `adam_step` in float32 and round the parameter; a frozen one stays as it is, bit for bit.

    Args:
        parameter: Any shape, bfloat16 or float16; of any floating-point dtype where ``rounding`` is None.
        *arguments: Those of `adam_step` from ``gradient`` to ``learning_rate``.
        rounding: ``"stochastic"``, ``"compensated"``, or None to round to nearest.
        rest: Two integers from which the noise follows, the compensation in the shape of ``parameter``, or
            None, in this order.
        **options: Further ones of `adam_step`.

    Returns:
        The five results of `adam_step`, and the new compensation or None.
    """
    if rounding is None:
        return *adam_step(parameter, *arguments, **options), None
    trainable_mask, kept = arguments[4], None
    wide = tf.cast(parameter, tf.float32)
    moved, *state = adam_step(wide, *arguments, **options)
    if rounding == "stochastic":
        noise = tf.random.stateless_uniform(parameter.shape, rest)
        narrow = round_stochastically(moved, noise, parameter.dtype)
    else:
        narrow, kept = add_compensated(parameter, moved - wide, rest)
        kept = tf.where(trainable_mask, kept, rest)
    return tf.where(trainable_mask, narrow, parameter), *state, kept
