"""Log-probabilities of chosen actions, and entropies, by blocks of rows where the logits are large.

TensorFlow keeps a copy of the logits for each operation of a softmax's gradient, in float32 at least. By
blocks their gradient is made, and one copy while it is.
"""

import math
from collections.abc import Callable

import tensorflow as tf

from gradtricks.tensorflow._edits import can_declare, declared, in_xla
from gradtricks.tensorflow._tensors import at_least_float32, product

_ELEMENTS = 2**22  # of a block: 16 MiB in float32

OfRows = Callable[..., tf.Tensor]


def log_probability(logits: tf.Tensor, actions: tf.Tensor) -> tf.Tensor:
    """Return the log-probability of each action, of ``[..., A]`` and ``[...]``, in float32 at least."""
    return _by_blocks(_log_probability, _slope_of_probability, logits, actions)


def negative_entropy(logits: tf.Tensor) -> tf.Tensor:
    """Return minus the entropy of each row of ``[..., A]``, in float32 at least."""
    return _by_blocks(_negative_entropy, _slope_of_entropy, logits)


def _by_blocks(value: OfRows, slope: OfRows, logits: tf.Tensor, *others: tf.Tensor) -> tf.Tensor:
    known = math.prod(1 if length is None else length for length in logits.shape)
    # XLA fuses what is done, and transforms that lose a declared gradient want to see it.
    if known <= _ELEMENTS or in_xla() or not can_declare(logits):
        return value(logits, *others)

    def values(logits: tf.Tensor, *others: tf.Tensor) -> tf.Tensor:
        rows = [_flat(logits), *(tf.reshape(x, [-1]) for x in others)]
        dtype, shape = tf.float32 if logits.dtype.size < 4 else logits.dtype, tf.shape(rows[0])[:1]
        return tf.reshape(_each_block(value, _ELEMENTS, dtype, shape, *rows), tf.shape(logits)[:-1])

    def slopes(gradient: tf.Tensor, logits: tf.Tensor, *others: tf.Tensor) -> tf.Tensor:
        rows = [tf.reshape(gradient, [-1]), _flat(logits), *(tf.reshape(x, [-1]) for x in others)]
        shape = tf.shape(rows[1])
        return tf.reshape(_each_block(slope, _ELEMENTS, logits.dtype, shape, *rows), tf.shape(logits))

    return declared(values, slopes, logits, *others)


@tf.function(autograph=False, reduce_retracing=True)
def _each_block(
    function: OfRows, elements: int, dtype: tf.DType, shape: tf.Tensor, *tensors: tf.Tensor
) -> tf.Tensor:
    # In a graph each block is written into the same memory, which eager operations would copy each time.
    length = shape[0]
    widest = tf.reduce_max([tf.size(x) // tf.maximum(length, 1) for x in tensors])
    size = tf.minimum(tf.maximum(elements // tf.maximum(widest, 1), 1), length)

    def write(start: tf.Tensor, whole: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        first = tf.minimum(start, length - size)  # so that all blocks have one size
        block = function(*(_rows(x, first, size) for x in tensors))
        places = tf.range(first, first + size)[:, None]
        return start + size, tf.tensor_scatter_nd_update(whole, places, block)

    whole = tf.zeros(shape, dtype)
    return tf.while_loop(lambda start, _: start < length, write, [0, whole], parallel_iterations=1)[1]


def _flat(logits: tf.Tensor) -> tf.Tensor:
    return tf.reshape(logits, [-1, tf.shape(logits)[-1]])


def _rows(x: tf.Tensor, first: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    rest = tf.shape(x)[1:]
    return tf.slice(x, tf.concat([[first], tf.zeros_like(rest)], 0), tf.concat([[size], rest], 0))


def _log_probability(logits: tf.Tensor, actions: tf.Tensor) -> tf.Tensor:
    return tf.gather(_log_softmax(logits), actions, axis=-1, batch_dims=logits.shape.rank - 1)


def _slope_of_probability(gradient: tf.Tensor, logits: tf.Tensor, actions: tf.Tensor) -> tf.Tensor:
    pi = tf.nn.softmax(at_least_float32(logits))
    places = tf.stack([tf.range(tf.size(actions, tf.int64)), actions], -1)
    slope = tf.tensor_scatter_nd_add(pi * -gradient[:, None], places, gradient)
    return tf.cast(slope, logits.dtype)


def _negative_entropy(logits: tf.Tensor) -> tf.Tensor:
    log_pi = _log_softmax(logits)
    return tf.reduce_sum(product(tf.exp(log_pi), log_pi), -1)


def _slope_of_entropy(gradient: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    log_pi = _log_softmax(logits)
    pi = tf.exp(log_pi)
    terms = product(pi, log_pi)
    slope = (terms - pi * tf.reduce_sum(terms, -1, keepdims=True)) * gradient[:, None]
    return tf.cast(slope, logits.dtype)


def _log_softmax(logits: tf.Tensor) -> tf.Tensor:
    return tf.nn.log_softmax(at_least_float32(logits))
