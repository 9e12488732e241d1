"""Steps with a gradient: straight through, or a staircase that is smooth or has ramps."""

import math
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from gradtricks._core.checks import check_number, check_shape
from gradtricks.tensorflow._tensors import (
    as_floating,
    as_tensor,
    at_least_float32,
    in_plain_reverse,
    in_vectorized_map,
)


def straight_through(hard: tf.Tensor, soft: tf.Tensor) -> tf.Tensor:
    """The value of ``hard`` forward; all of the incoming gradient to ``soft``.

    The forward pass returns the bits of ``hard``, which gets no gradient.

    Args:
        hard: Real, any shape and dtype.
        soft: Floating-point, shape of ``hard``. Its values aren't used.

    Returns:
        Shape of ``hard``, and its dtype if that is floating-point; integers and booleans are converted to the
        dtype of ``soft``.

    Raises:
        TypeError: ``hard`` isn't a real tensor, or ``soft`` isn't a floating-point one.
        ValueError: The shapes differ.

    References:
        Bengio, Léonard, Courville 2013, https://arxiv.org/abs/1308.3432.

    Example:
        >>> x = tf.constant([-0.3, 0.8])
        >>> with tf.GradientTape() as tape:
        ...     tape.watch(x)
        ...     y = straight_through(x > 0, tf.sigmoid(x))
        >>> y.numpy().tolist(), [round(float(g), 2) for g in tape.gradient(y, x)]
        ([0.0, 1.0], [0.24, 0.21])
    """
    hard, soft = as_tensor("hard", hard), as_floating("soft", soft)
    if hard.dtype.is_complex:
        raise TypeError(f"hard must be real; got {hard.dtype.name}; remedy: tf.math.real")
    check_shape("hard", hard.shape, soft.shape, "soft")
    hard = tf.stop_gradient(hard if hard.dtype.is_floating else tf.cast(hard, soft.dtype))
    hard = _as_shaped(hard, soft)
    plain = in_plain_reverse(soft) and not in_vectorized_map()
    function = _straight_through_by_custom_gradient if plain else _straight_through_by_replacement
    return function(hard, soft)


@tf.custom_gradient
def _straight_through_by_custom_gradient(
    hard: tf.Tensor, soft: tf.Tensor
) -> tuple[tf.Tensor, Callable[[tf.Tensor], tuple[None, tf.Tensor]]]:
    def backward(gradient: tf.Tensor) -> tuple[None, tf.Tensor]:
        return None, tf.cast(gradient, soft.dtype)

    # An identity whose own gradient raises, in case that a transform loses the custom one.
    return tf.raw_ops.PreventGradient(input=hard, message=_LOST), backward


_LOST = (
    "straight_through in a tf.function in a tf.vectorized_map; remedy: call the Python function, or map_fn"
)


def _straight_through_by_replacement(hard: tf.Tensor, soft: tf.Tensor) -> tf.Tensor:
    # Some transforms ignore a custom gradient; this they differentiate by themselves. Stitched to the same
    # place, the later one wins, and the gradient goes to both.
    place = tf.range(tf.size(soft))
    soft = tf.reshape(tf.cast(soft, hard.dtype), [-1])
    stitched = tf.dynamic_stitch([place, place], [soft, tf.reshape(hard, [-1])])
    return tf.reshape(stitched, tf.shape(hard))


def _as_shaped(hard: tf.Tensor, soft: tf.Tensor) -> tf.Tensor:
    # Shapes that are unknown until run are checked then: by the reshape under XLA, which ignores assertions,
    # by the assertion elsewhere, because graphs are optimized as if a reshape couldn't fail.
    if hard.shape.is_fully_defined() and soft.shape.is_fully_defined():
        return hard
    shape = tf.shape(soft)
    message = "hard must have the shape of soft"
    with tf.control_dependencies([tf.debugging.assert_equal(tf.shape(hard), shape, message)]):
        return tf.reshape(hard, shape)


def floor_straight_through(x: tf.Tensor) -> tf.Tensor:
    """Floor forward; identity backward.

    Args:
        x: Floating-point, any shape.

    Returns:
        Shape and dtype of ``x``.

    Raises:
        TypeError: ``x`` isn't a floating-point tensor.

    References:
        Bengio, Léonard, Courville 2013, https://arxiv.org/abs/1308.3432.

    Example:
        >>> x = tf.constant([1.7, -0.2])
        >>> with tf.GradientTape() as tape:
        ...     tape.watch(x)
        ...     y = floor_straight_through(x)
        >>> y.numpy().tolist(), tape.gradient(y, x).numpy().tolist()
        ([1.0, -1.0], [1.0, 1.0])
    """
    x = as_floating("x", x)
    return straight_through(tf.floor(x), x)


def round_straight_through(x: tf.Tensor) -> tf.Tensor:
    """Round forward, ties to even; identity backward.

    Args:
        x: Floating-point, any shape.

    Returns:
        Shape and dtype of ``x``.

    Raises:
        TypeError: ``x`` isn't a floating-point tensor.

    References:
        Bengio, Léonard, Courville 2013, https://arxiv.org/abs/1308.3432.

    Example:
        >>> x = tf.constant([1.7, 2.5])
        >>> with tf.GradientTape() as tape:
        ...     tape.watch(x)
        ...     y = round_straight_through(x)
        >>> y.numpy().tolist(), tape.gradient(y, x).numpy().tolist()
        ([2.0, 2.0], [1.0, 1.0])
    """
    x = as_floating("x", x)
    return straight_through(tf.round(x), x)


def soft_floor(x: tf.Tensor, temperature: float) -> tf.Tensor:
    """Staircase of sigmoids forward; its own derivative backward.

    The sum over all integers k of ``sigmoid((x - k) / temperature)``, counted from the step at 0, to the
    precision of the dtype. It is the mean of ``floor(x + temperature * noise)`` under logistic noise: n at
    n + 1/2, n - 1/2 at every integer n, and one more with each unit.

    Args:
        x: Floating-point, any shape. Where floats are a unit or more apart (from 2**23 in float32) each is
            an integer, and the half is rounded. float16 and bfloat16 are computed in float32.
        temperature: At least 1e-30. Towards 0 it becomes the floor, towards infinity ``x - 0.5``. In a
            `tf.function` each value is traced anew.

    Returns:
        Shape and dtype of ``x``. Values that aren't finite stay, with a slope of 0.

    Raises:
        TypeError: ``x`` isn't a floating-point tensor, or ``temperature`` isn't a number.
        ValueError: ``temperature`` isn't finite or is below 1e-30.

    Example:
        >>> x = tf.constant([0.5, 0.95, 1.0, 1.5])
        >>> with tf.GradientTape() as tape:
        ...     tape.watch(x)
        ...     y = soft_floor(x, 0.05)
        >>> [round(float(value), 2) for value in y]
        [0.0, 0.27, 0.5, 1.0]
        >>> [round(float(g), 2) for g in tape.gradient(y, x)]
        [0.0, 3.93, 5.0, 0.0]
    """
    x, temperature = as_floating("x", x), check_number("temperature", temperature, low=1e-30)
    whole, part = _whole_and_part(x)
    above = (_sigmoids if temperature < 0.25 else _waves)(part, temperature)
    return tf.cast(whole + above, x.dtype)


def piecewise_linear_floor(x: tf.Tensor, width: float) -> tf.Tensor:
    """Floor with a ramp before each step forward; slope ``1 / width`` on the ramps backward.

    Within ``width`` below each integer the value climbs by one in a straight line; elsewhere it is the floor,
    with a slope of 0. At a corner the slope is that to the right of it. It is the mean of
    ``floor(x + noise)`` under noise uniform in [0, width); width 1 is the identity.

    Args:
        x: Floating-point, any shape. float16 and bfloat16 are computed in float32.
        width: Of a ramp, at least 1e-30 and at most 1. In a `tf.function` each value is traced anew.

    Returns:
        Shape and dtype of ``x``. Values that aren't finite stay, with a slope of 0.

    Raises:
        TypeError: ``x`` isn't a floating-point tensor, or ``width`` isn't a number.
        ValueError: ``width`` isn't within [1e-30, 1].

    Example:
        >>> x = tf.constant([0.5, 0.875, 1.0])
        >>> with tf.GradientTape() as tape:
        ...     tape.watch(x)
        ...     y = piecewise_linear_floor(x, 0.25)
        >>> y.numpy().tolist(), tape.gradient(y, x).numpy().tolist()
        ([0.0, 0.5, 1.0], [0.0, 4.0, 0.0])
    """
    x, width = as_floating("x", x), check_number("width", width, low=1e-30, high=1.0)
    whole, part = _whole_and_part(x)
    # Written from the nearer end, so that a narrow ramp isn't lost in the rounding of 1 - width.
    rise = tf.where(part < 0.5, part - (1 - width), width - (1 - part))
    return tf.cast(whole + tf.where(rise >= 0, rise / width, tf.zeros_like(part)), x.dtype)


def _whole_and_part(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    x = at_least_float32(x)
    whole = tf.floor(tf.stop_gradient(x))
    return whole, tf.where(tf.math.is_finite(x), x - whole, tf.zeros_like(x))


def _sigmoids(part: tf.Tensor, temperature: float) -> tf.Tensor:
    # Steps above count by what is there of them already, steps below by what is still missing; the sum is
    # symmetric about 1/2. Beyond the last pair less than one rounding error remains.
    count = math.ceil(temperature * math.log(2 / np.finfo(part.dtype.as_numpy_dtype).eps))
    total = tf.zeros_like(part)
    for step in range(count, 0, -1):
        rising = tf.sigmoid((part - step) / temperature)
        total = total + (rising - tf.sigmoid((1 - step - part) / temperature))
    return total


def _waves(part: tf.Tensor, temperature: float) -> tf.Tensor:
    # The same sum by Poisson's formula: the warmer, the fewer waves, while it would take more sigmoids.
    decay = 2 * math.pi**2 * temperature
    count = int((8 - math.log(np.finfo(part.dtype.as_numpy_dtype).eps)) / decay)
    total = part - 0.5
    for wave in range(1, count + 1):
        height = 2 * math.pi * temperature / math.sinh(decay * wave)
        total = total + height * tf.sin(2 * math.pi * wave * part)
    return total
