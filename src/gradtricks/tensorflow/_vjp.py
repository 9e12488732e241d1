"""Gradients of a function, taken inside of a trick, where a tape of its own must record."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


def gradients(function: Callable[..., tf.Tensor], inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Return the gradient of ``function(*inputs)`` for each input; zeros where there is no path."""
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        value = function(*inputs)
    found: list[Any] = tape.gradient(value, inputs)
    if all(gradient is None for gradient in found):
        refuse_stopped_tapes()
    # That of gather is sparse.
    return [tf.zeros_like(x) if g is None else tf.convert_to_tensor(g) for x, g in zip(inputs, found)]


def refuse_stopped_tapes() -> None:
    """Raise where nothing is recorded: the first pass of `tf.recompute_grad` stops every tape."""
    x = tf.zeros(())
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.identity(x)
    if tape.gradient(y, x) is None:
        raise NotImplementedError(
            "gradients can't be taken inside a function that tf.recompute_grad runs, which stops all tapes; "
            "remedy: take them outside of it, and recompute only what they are taken of"
        )
