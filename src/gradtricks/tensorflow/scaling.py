"""Scaling a gradient without touching the value."""

from collections.abc import Callable

import tensorflow as tf

from gradtricks._checks import check_broadcast, check_number
from gradtricks.tensorflow._tensors import TENSORS, as_floating, in_plain_reverse


def scale_gradient(x: tf.Tensor, scale: float | tf.Tensor) -> tf.Tensor:
    """Identity forward; multiplies the incoming gradient by ``scale``.

    The forward pass returns the bits of ``x``. A scale of 0 stops the gradient even where it is
    infinite or NaN. ``scale`` itself gets no gradient. Under a `tf.autodiff.ForwardAccumulator`,
    elements of ``x`` that are infinite pass no gradient.

    Args:
        x: Floating-point, any shape.
        scale: A finite number, or a floating-point tensor that broadcasts to the shape of ``x``; negative
            reverses. The elements of a tensor aren't checked.
            In a `tf.function`, give a scale that changes as a tensor: a number retraces for each value.

    Returns:
        Shape and dtype of ``x``.

    Raises:
        TypeError: ``x`` isn't a floating-point tensor, or ``scale`` isn't a number or a tensor.
        ValueError: ``scale`` is a number that isn't finite, or doesn't broadcast to the shape of ``x``.

    References:
        ``scale_gradient`` in the pseudocode of MuZero, https://arxiv.org/abs/1911.08265.

    Example:
        >>> x = tf.constant(3.0)
        >>> with tf.GradientTape() as tape:
        ...     tape.watch(x)
        ...     y = scale_gradient(x, 0.5)
        >>> float(y), float(tape.gradient(y, x))
        (3.0, 0.5)
    """
    x = as_floating("x", x)
    factor = _as_factor(scale, x)
    return _scale_by_custom_gradient(x, factor) if in_plain_reverse(x) else _scale_by_arithmetic(x, factor)


@tf.custom_gradient
def _scale_by_custom_gradient(
    x: tf.Tensor, factor: tf.Tensor
) -> tuple[tf.Tensor, Callable[[tf.Tensor], tuple[tf.Tensor, None]]]:
    def backward(gradient: tf.Tensor) -> tuple[tf.Tensor, None]:
        return tf.where(factor == 0, tf.zeros_like(gradient), gradient * factor), None

    return tf.identity(x), backward


def _scale_by_arithmetic(x: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    # Transforms differentiate this form by themselves. Subtracting +0 keeps every bit, the sign of zero
    # included; that is why the sign of the factor is moved into x.
    value = tf.stop_gradient(x)
    signed = tf.where(factor < 0, -x, x)
    scaled = value - (tf.stop_gradient(signed) - signed) * tf.abs(factor)
    return tf.where((factor == 0) | tf.math.is_inf(value), value, scaled)


def _as_factor(scale: float | tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    if not isinstance(scale, TENSORS):
        return tf.constant(check_number("scale", scale), x.dtype)
    scale = as_floating("scale", scale)
    check_broadcast("scale", scale.shape, x.shape, "x")
    return tf.stop_gradient(tf.cast(scale, x.dtype))
