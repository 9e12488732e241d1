"""What every stem asks of its tensors."""

import keras
import tensorflow as tf
from tensorflow.python.eager import forwardprop_util

if keras.backend.backend() != "tensorflow":
    raise ImportError(
        f"gradtricks.tensorflow needs Keras on TensorFlow; Keras runs on {keras.backend.backend()}; "
        "remedy: set KERAS_BACKEND=tensorflow before Python starts"
    )

TENSORS = (tf.Tensor, tf.Variable, keras.Variable)


def as_tensor(name: str, value: object) -> tf.Tensor:
    """Return ``value`` if it is a tensor of this framework; a variable is read.

    Args:
        name: What the caller calls the value.
        value: Anything.

    Returns:
        The tensor.

    Raises:
        TypeError: It isn't a ``tf.Tensor`` or a variable.
    """
    if not isinstance(value, TENSORS):
        raise TypeError(
            f"{name} must be a tf.Tensor; got {type(value).__name__}; remedy: tf.convert_to_tensor"
        )
    return tf.convert_to_tensor(value)


def as_floating(name: str, value: object) -> tf.Tensor:
    """Return ``value`` if it is a floating-point tensor of this framework; a variable is read.

    Args:
        name: What the caller calls the value.
        value: Anything.

    Returns:
        The tensor.

    Raises:
        TypeError: It isn't a tensor, or its dtype isn't floating-point.
    """
    tensor = as_tensor(name, value)
    if not tensor.dtype.is_floating:
        raise TypeError(f"{name} must be floating-point; got {tensor.dtype.name}; remedy: tf.cast")
    return tensor


def at_least_float32(x: tf.Tensor) -> tf.Tensor:
    """Widen bfloat16 and float16, in which sums and squares overflow or stall.

    Args:
        x: Floating-point, any shape.

    Returns:
        ``x`` itself, or a float32 copy.
    """
    return tf.cast(x, tf.float32) if x.dtype.size < 4 else x


def in_plain_reverse(x: tf.Tensor) -> bool:
    """Say whether no `tf.autodiff.ForwardAccumulator` watches ``x``.

    An accumulator silently ignores custom gradients, so they take another way.

    Args:
        x: Any tensor.

    Returns:
        True where a ``tf.custom_gradient`` is safe.
    """
    return not forwardprop_util.pack_tangents([x]).tangents


def in_vectorized_map() -> bool:
    """Say whether the body of a `tf.vectorized_map` is being traced.

    What becomes of the body has lost its custom gradients, so a tape around it would not see them.

    Returns:
        True within the body, and in a name scope called ``loop_body``.
    """
    return "loop_body" in tf.get_current_name_scope().split("/")
