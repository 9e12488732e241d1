"""Steps with a gradient: straight through, a staircase that is smooth or has ramps, or levels of a scale.

Straight through, ``y = hard`` and ``dL/d soft = dL/dy``. The smooth staircase and the one with ramps::

    y = sum over k > 0 of sigmoid((x - k) / temperature) - sum over k <= 0 of sigmoid((k - x) / temperature)
    y = floor(x) + max(0, 1 - (floor(x) + 1 - x) / width)

Levels, whose scale is learned too::

    y = scale * round(clip(x / scale, quant_min, quant_max))
"""

import math
from functools import partial
from typing import Any

import tensorflow as tf

from gradtricks._core.checks import check_broadcast, check_flag, check_integer, check_shape
from gradtricks._core.structures import map_structure, pairs
from gradtricks.tensorflow._edits import substitute
from gradtricks.tensorflow._tensors import (
    TENSORS,
    as_coefficient,
    as_floating,
    as_tensor,
    at_least_float32,
    finfo,
    nonzero,
)
from gradtricks.tensorflow.scaling import scale_gradient


def straight_through(hard: Any, soft: Any) -> Any:
    """The value of ``hard`` forward, bit for bit; all of the incoming gradient to ``soft``.

    Args:
        hard: Real, any shape and dtype; or a tuple, list or dict of such tensors.
        soft: Floating-point, structure and shape of ``hard``. Its values aren't used.

    Returns:
        Shape of ``hard``, and its dtype if that is floating-point, otherwise the dtype of ``soft``.

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
    return paired("hard", hard, "soft", soft)


def paired(hard_name: str, hard: Any, soft_name: str, soft: Any) -> Any:
    """Do the same; errors call the two by these names."""
    pairs(hard_name, hard, soft_name, soft)  # refuses other structures
    return map_structure(lambda one, other: _paired_tensors(hard_name, one, soft_name, other), hard, soft)


def _paired_tensors(hard_name: str, hard: Any, soft_name: str, soft: Any) -> tf.Tensor:
    hard, soft = as_tensor(hard_name, hard), as_floating(soft_name, soft)
    if hard.dtype.is_complex:
        raise TypeError(f"{hard_name} must be real; got {hard.dtype.name}; remedy: tf.math.real")
    check_shape(hard_name, hard.shape, soft.shape, soft_name)
    hard = hard if hard.dtype.is_floating else tf.cast(hard, soft.dtype)
    return substitute(_as_shaped(hard, soft), soft)


def _as_shaped(hard: tf.Tensor, soft: tf.Tensor) -> tf.Tensor:
    # Shapes that are unknown until run are checked then: by the reshape under XLA, which ignores assertions,
    # by the assertion elsewhere, because graphs are optimized as if a reshape couldn't fail.
    if hard.shape.is_fully_defined() and soft.shape.is_fully_defined():
        return hard
    shape = tf.shape(soft)
    message = "hard must have the shape of soft"
    with tf.control_dependencies([tf.debugging.assert_equal(tf.shape(hard), shape, message)]):
        return tf.reshape(hard, shape)


def floor_straight_through(x: Any) -> Any:
    """Floor forward; identity backward. ``x`` is as in `soft_floor`.

    Example:
        >>> x = tf.constant([1.7, -0.2])
        >>> with tf.GradientTape() as tape:
        ...     tape.watch(x)
        ...     y = floor_straight_through(x)
        >>> y.numpy().tolist(), tape.gradient(y, x).numpy().tolist()
        ([1.0, -1.0], [1.0, 1.0])
    """
    x = map_structure(partial(as_floating, "x"), x)
    return straight_through(map_structure(tf.floor, x), x)


def round_straight_through(x: Any) -> Any:
    """Round forward, ties to even; identity backward. ``x`` is as in `soft_floor`."""
    x = map_structure(partial(as_floating, "x"), x)
    return straight_through(map_structure(tf.round, x), x)


def soft_floor(x: Any, temperature: float | tf.Tensor) -> Any:
    """Staircase of sigmoids forward; its own derivative backward.

    It is the mean of ``floor(x + temperature * noise)`` under logistic noise, to the precision of the dtype:
    n at n + 1/2, n - 1/2 at every integer n, and one more with each unit.

    Args:
        x: Floating-point, any shape, or a tuple, list or dict of such tensors. float16 and bfloat16 are
            computed in float32. From 2**23 on (float32) each is an integer, and the half is rounded.
        temperature: A number of at least 1e-30; or a floating-point tensor that broadcasts to the shape of
            ``x``, whose elements aren't checked and get no gradient. Towards 0 it becomes the floor, towards
            infinity ``x - 0.5``. In a `tf.function`, give one that changes as a tensor.

    Returns:
        Shape and dtype of ``x``. Values that aren't finite stay, with a slope of 0.

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
    return map_structure(lambda leaf: _soft_floor(leaf, temperature), x)


def _soft_floor(x: Any, temperature: float | tf.Tensor) -> tf.Tensor:
    x = as_floating("x", x)
    heat = as_coefficient("temperature", temperature, x, low=1e-30)
    whole, part = _floor_and_part(x)
    side = tf.cast(tf.where(part < 0, 1, -1), part.dtype)
    if isinstance(temperature, TENSORS):
        cold, warm = tf.minimum(heat, _WARM), tf.maximum(heat, _WARM)
        above = tf.where(heat < _WARM, _sigmoids(part, side, cold, _WARM), _waves(part, side, warm, _WARM))
    else:
        above = (_sigmoids if temperature < _WARM else _waves)(part, side, heat, temperature)
    return tf.cast(whole + above, x.dtype)


def piecewise_linear_floor(x: Any, width: float | tf.Tensor) -> Any:
    """Floor forward with a ramp before each step; slope ``1 / width`` on the ramps backward.

    It is the mean of ``floor(x + noise)`` under noise uniform in [0, width); width 1 is the identity. At a
    corner the slope is that to the right of it.

    Args:
        x: As in `soft_floor`.
        width: Of a ramp: a number of at least 1e-30 and at most 1; or a tensor, as in `soft_floor`.

    Returns:
        As `soft_floor`.

    Example:
        >>> x = tf.constant([0.5, 0.875, 1.0])
        >>> with tf.GradientTape() as tape:
        ...     tape.watch(x)
        ...     y = piecewise_linear_floor(x, 0.25)
        >>> y.numpy().tolist(), tape.gradient(y, x).numpy().tolist()
        ([0.0, 0.5, 1.0], [0.0, 4.0, 0.0])
    """
    return map_structure(lambda leaf: _piecewise_linear_floor(leaf, width), x)


def _piecewise_linear_floor(x: Any, width: float | tf.Tensor) -> tf.Tensor:
    x = as_floating("x", x)
    width = as_coefficient("width", width, x, low=1e-30, high=1.0)
    whole, part = _floor_and_part(x)
    # Written from the nearer end, so that a narrow ramp isn't lost in the rounding of 1 - width.
    rise = tf.where(part < 0, width + part, part - (1 - width))
    return tf.cast(whole + tf.where(rise >= 0, rise / width, tf.zeros_like(part)), x.dtype)


def fake_quantize(
    x: Any, scale: float | tf.Tensor, quant_min: int, quant_max: int, *, normalize: bool = True
) -> Any:
    """Levels forward; the identity within the range backward, and for the scale the rule of LSQ.

    The levels are ``scale`` times the whole numbers from ``quant_min`` to ``quant_max``; ties go to even
    ones. Backward, an element within the range or exactly at its bound gets the incoming gradient, one beyond
    gets 0. To the gradient of the scale, an element within adds the incoming gradient times
    ``level - x / scale``, and one beyond adds it times its level. Differentiated again, both factors are
    constant.

    Args:
        x: Floating-point, any shape; or a tuple, list or dict of such tensors. float16 and bfloat16 are
            computed in float32.
        scale: The distance of two levels: a number of at least 1e-30; or a floating-point tensor that
            broadcasts to the shape of every ``x``, such as ``[C, 1]`` for one scale a row, whose elements
            aren't checked. A tensor gets a gradient. Where it is 0, so is the value, and a negative scale
            mirrors the range.
        quant_min: The lowest level, an integer of at most 0: -8 for signed weights of 4 bits.
        quant_max: The highest level, an integer of at least 1: 7 for those.
        normalize: Divide the gradient of the scale by ``sqrt(n * quant_max)``, as LSQ does, where n elements
            of ``x`` share a scale. Without, it grows with the layer.

    Returns:
        Shape and dtype of ``x``. NaN stays NaN and makes the gradient of its scale NaN.

    References:
        Esser and others 2020, Learned Step Size Quantization, https://arxiv.org/abs/1902.08153.

    Example:
        >>> x, scale = tf.constant([0.2, 0.6, 9.0]), tf.constant(0.5)
        >>> with tf.GradientTape() as tape:
        ...     tape.watch([x, scale])
        ...     y = fake_quantize(x, scale, -2, 1, normalize=False)
        >>> y.numpy().tolist(), [g.numpy().tolist() for g in tape.gradient(y, [x, scale])]
        ([0.0, 0.5, 0.5], [[1.0, 0.0, 0.0], 1.600000023841858])
    """
    lowest = check_integer("quant_min", quant_min, low=-(2**31), high=0)
    highest = check_integer("quant_max", quant_max, low=1)
    check_flag("normalize", normalize)

    def quantized(leaf: Any) -> tf.Tensor:
        leaf = as_floating("x", leaf)
        wide = at_least_float32(leaf)
        step = _as_step(scale, wide, highest, normalize)
        ratio = tf.stop_gradient(wide / nonzero(step))
        inside = (ratio >= lowest) & (ratio <= highest)
        level = tf.round(tf.clip_by_value(ratio, lowest, highest))
        zero = tf.zeros_like(wide)
        slope = tf.where(inside, wide, zero) + step * (level - tf.where(inside, ratio, zero))
        return substitute(tf.cast(step * level, leaf.dtype), slope)

    return map_structure(quantized, x)


def _as_step(scale: float | tf.Tensor, x: tf.Tensor, highest: int, normalize: bool) -> tf.Tensor:
    if not isinstance(scale, TENSORS):
        return as_coefficient("scale", scale, x, low=1e-30)
    scale = as_floating("scale", scale)
    if None not in (scale.shape.rank, x.shape.rank):
        check_broadcast("scale", scale.shape, x.shape, "x")
    step = tf.cast(scale, x.dtype)
    share = tf.maximum(1, tf.size(x) // tf.maximum(1, tf.size(scale))) * highest
    return scale_gradient(step, tf.math.rsqrt(tf.cast(share, x.dtype))) if normalize else step


def _floor_and_part(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    # The part beyond the nearest integer: beyond the floor, a small negative x would be lost in rounding.
    x = at_least_float32(x)
    nearest = tf.round(tf.stop_gradient(x))
    return tf.floor(tf.stop_gradient(x)), tf.where(tf.math.is_finite(x), x - nearest, tf.zeros_like(x))


# From here on fewer waves are needed than sigmoids.
_WARM = 0.25


def _sigmoids(part: tf.Tensor, side: tf.Tensor, heat: tf.Tensor, hottest: float) -> tf.Tensor:
    # Steps above count by what is there of them already, steps below by what is still missing; the nearest is
    # to one side. Beyond the last pair less than one rounding error remains.
    count = math.ceil(max(1, hottest * math.log(2 / finfo(part.dtype).eps)) - 0.5)
    total = tf.zeros_like(part)
    for step in range(count, 0, -1):
        rising = tf.sigmoid((part - step) / heat)
        total = total + (rising - tf.sigmoid((-step - part) / heat))
    return total + side * tf.sigmoid(side * part / heat)


def _waves(part: tf.Tensor, side: tf.Tensor, heat: tf.Tensor, coldest: float) -> tf.Tensor:
    # The same sum by Poisson's formula: the warmer, the fewer waves.
    count = int((8 - math.log(finfo(part.dtype).eps)) / (2 * math.pi**2 * coldest))
    total = part + side / 2
    for wave in range(1, count + 1):
        height = 2 * math.pi * heat / tf.sinh(2 * math.pi**2 * wave * heat)
        total = total + height * tf.sin(2 * math.pi * wave * part)
    return total
