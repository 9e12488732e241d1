"""Clipping a gradient, by value or by norm, and the projection that is often taken for it.

By value ``clip(g, low, high)``; by norm ``g * min(1, c / |g|)``; to a norm ``g * c / |g|``.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import tensorflow as tf

from gradtricks._core.checks import check_axis
from gradtricks._core.structures import leaves, map_structure
from gradtricks.tensorflow._edits import intercept
from gradtricks.tensorflow._tensors import TENSORS, as_floating, as_scalar, at_least_float32, finfo, nonzero

_Axes = tuple[int, ...] | None


def clip_gradient(x: Any, gradient_min: float | tf.Tensor, gradient_max: float | tf.Tensor) -> Any:
    """Identity forward; clips each element of the incoming gradient.

    An infinite element becomes the bound, a NaN stays NaN. Differentiated again, the gradient has slope 1
    where it was within the bounds, and 0 elsewhere.

    Args:
        x: Floating-point, any shape; or a tuple, list or dict of such tensors, each clipped by itself.
        gradient_min: A finite number, or a floating-point tensor of shape ``[]``, whose value isn't checked.
        gradient_max: The same, not below ``gradient_min``.

    Returns:
        Shape and dtype of ``x``.

    Raises:
        RuntimeError: In forward mode, in which a clipped gradient has no meaning; and where a `tf.function`
            calls another, in the gradient of the inner one's gradient, which looks like forward mode.
        LookupError: A tape around a `tf.vectorized_map` takes the gradient of what is within it.

    References:
        ``clip_gradient`` of Sonnet and RLax, https://github.com/google-deepmind/rlax.

    Example:
        >>> x = tf.Variable(tf.zeros(3))
        >>> with tf.GradientTape() as tape:
        ...     loss = tf.reduce_sum(clip_gradient(x, -1.0, 1.0) * [0.5, 7.0, -7.0])
        >>> tape.gradient(loss, x).numpy()
        array([ 0.5,  1. , -1. ], dtype=float32)
    """

    def clip(leaf: object) -> tf.Tensor:
        leaf = as_floating("x", leaf)
        low = as_scalar("gradient_min", gradient_min, leaf)
        high = as_scalar("gradient_max", gradient_max, leaf)
        numbers = not isinstance(gradient_min, TENSORS) and not isinstance(gradient_max, TENSORS)
        if numbers and gradient_min > gradient_max:
            raise ValueError(f"gradient_min must be <= gradient_max; got {gradient_min} and {gradient_max}")
        return intercept(leaf, _clamp, low, high)

    return map_structure(clip, x)


def clip_gradient_norm(
    x: Any, max_norm: float | tf.Tensor, *, axis: int | Sequence[int] | None = None
) -> Any:
    """Identity forward; shrinks the incoming gradient to a norm of at most ``max_norm``.

    The direction stays. A gradient whose norm is at most ``max_norm``, up to rounding, passes bit for bit. An
    infinite element counts as the largest finite number. A NaN makes the norm NaN, and all that shares it.

    Args:
        x: As in `clip_gradient`.
        max_norm: A finite number >= 0, or a tensor of shape ``[]``, whose value isn't checked.
        axis: Axes over which the norm is taken. None is all, batch included; for one norm per example, give
            all axes but the first.

    Returns:
        As `clip_gradient`, which raises the same errors.

    References:
        Pascanu, Mikolov and Bengio, https://arxiv.org/abs/1211.5063.

    Example:
        >>> x = tf.Variable(tf.zeros(2))
        >>> with tf.GradientTape() as tape:
        ...     loss = tf.reduce_sum(clip_gradient_norm(x, 1.0) * [3.0, 4.0])
        >>> tape.gradient(loss, x).numpy()
        array([0.6, 0.8], dtype=float32)
    """
    return _by_norm(intercept, _shrink, x, "max_norm", max_norm, axis)


def normalize_gradient(x: Any, norm: float | tf.Tensor, *, axis: int | Sequence[int] | None = None) -> Any:
    """Identity forward; rescales the incoming gradient to the norm ``norm``.

    The direction stays; a gradient of zero stays zero. Infinities and NaN count as in `clip_gradient_norm`,
    which takes the same arguments and raises the same errors.

    Example:
        >>> x = tf.Variable(tf.zeros(2))
        >>> with tf.GradientTape() as tape:
        ...     loss = tf.reduce_sum(normalize_gradient(x, 10.0) * [3.0, 4.0])
        >>> tape.gradient(loss, x).numpy()
        array([6., 8.], dtype=float32)
    """
    return _by_norm(intercept, _rescale, x, "norm", norm, axis)


def clip_by_global_norm(gradients: Any, max_norm: float | tf.Tensor) -> tuple[Any, tf.Tensor]:
    """Shrink tensors together, so that the norm of all their elements is at most ``max_norm``.

    Here the gradients are in hand, and go on to the optimizer. The rules for equal norms, infinities and NaN
    are those of `clip_gradient_norm`, over all tensors as one; the norm that is returned is infinite or NaN.

    Args:
        gradients: Floating-point tensors in a list, tuple or dict, nested as you like. None stays None: a
            parameter without a gradient.
        max_norm: A finite number >= 0, or a tensor of shape ``[]``, whose value isn't checked.

    Returns:
        The structure of ``gradients``, clipped, and the norm before clipping: ``[]``, in float32 or wider.

    Example:
        >>> clipped, norm = clip_by_global_norm([tf.constant([3.0]), None, tf.constant([4.0])], 1.0)
        >>> clipped[0].numpy(), clipped[1], clipped[2].numpy(), float(norm)
        (array([0.6], dtype=float32), None, array([0.8], dtype=float32), 5.0)
    """
    gradients = map_structure(lambda g: g if g is None else as_floating("gradients", g), gradients)
    tensors = [g for g in leaves(gradients) if g is not None]
    zero = tf.zeros((), tf.float64 if any(leaf.dtype == tf.float64 for leaf in tensors) else tf.float32)
    max_norm = as_scalar("max_norm", max_norm, zero, low=0.0)
    wide = [tf.reshape(tf.cast(leaf, zero.dtype), [-1]) for leaf in tensors]
    largest = tf.reduce_max(tf.stack([zero, *(_largest(leaf, (0,))[0] for leaf in wide)]))
    finite = _finite(largest)
    divisor = nonzero(finite)
    squares = [tf.reduce_sum(tf.square(tf.clip_by_value(leaf / divisor, -1, 1))) for leaf in wide]
    length = _root(tf.add_n([zero, *squares]))
    fit = {dtype: _fit(dtype, length, finite, max_norm) for dtype in {leaf.dtype for leaf in tensors}}

    def clip(g: tf.Tensor | None) -> tf.Tensor | None:
        if g is None:
            return None
        fits, factor = fit[g.dtype]
        unit = tf.clip_by_value(tf.cast(g, zero.dtype) / divisor, -1, 1)
        return tf.where(fits, g, tf.cast(unit * factor, g.dtype))

    clipped = map_structure(clip, gradients)
    # An infinite factor would make NaN of a gradient of 0.
    infinite = tf.math.is_inf(largest)
    return clipped, tf.where(infinite, largest, length * tf.where(infinite, zero, largest))


def project_to_max_norm(
    x: Any, max_norm: float | tf.Tensor, *, axis: int | Sequence[int] | None = None
) -> Any:
    """Shrink ``x`` itself to a norm of at most ``max_norm``; backward, the derivative of that.

    This is the constraint that Keras calls MaxNorm. It is no way to clip a gradient: it changes the value,
    and of the gradient it takes away the part along ``x``. Arguments and the rules for equal norms,
    infinities and NaN are those of `clip_gradient_norm`; here every mode of differentiation will do.

    References:
        Srebro and Shraibman, https://doi.org/10.1007/11503415_37.

    Example:
        >>> project_to_max_norm(tf.constant([[3.0, 4.0], [0.3, 0.4]]), 1.0, axis=1).numpy()
        array([[0.6, 0.8],
               [0.3, 0.4]], dtype=float32)
    """
    return _by_norm(lambda x, rule, norm: rule(x, norm), _shrink, x, "max_norm", max_norm, axis)


def _by_norm(
    edit: Callable[..., Any],
    rule: Callable[..., Any],
    x: Any,
    name: str,
    norm: object,
    axis: int | Sequence[int] | None,
) -> Any:
    def edited(leaf: object) -> tf.Tensor:
        leaf = as_floating("x", leaf)
        axes, scalar = _as_axes(axis, leaf), as_scalar(name, norm, leaf, low=0.0)
        return edit(leaf, partial(rule, axes=axes), scalar)

    return map_structure(edited, x)


def _clamp(gradient: tf.Tensor, low: tf.Tensor, high: tf.Tensor) -> tf.Tensor:
    return tf.clip_by_value(gradient, tf.cast(low, gradient.dtype), tf.cast(high, gradient.dtype))


def _shrink(gradient: tf.Tensor, max_norm: tf.Tensor, axes: _Axes) -> tf.Tensor:
    unit, length, largest = _polar(gradient, axes)
    fits, factor = _fit(gradient.dtype, length, largest, max_norm)
    return tf.where(fits, gradient, tf.cast(unit * factor, gradient.dtype))


def _rescale(gradient: tf.Tensor, norm: tf.Tensor, axes: _Axes) -> tf.Tensor:
    unit, length, _ = _polar(gradient, axes)
    return tf.cast(unit * (norm / length), gradient.dtype)


def _fit(
    dtype: tf.DType, length: tf.Tensor, largest: tf.Tensor, max_norm: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    # The norm is length * largest. That may overflow, which only says that it doesn't fit.
    tolerance = float(finfo(dtype).eps) + 8 * float(finfo(length.dtype).eps)
    fits = length * largest / (1 + tolerance) <= max_norm
    return fits, max_norm / tf.where(~fits, length, 1)


def _polar(gradient: tf.Tensor, axes: _Axes) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    # The gradient divided by its largest magnitude, so that no square overflows; the norm of that; and what
    # it was divided by.
    wide = at_least_float32(gradient)
    largest = _finite(_largest(wide, axes))
    unit = tf.clip_by_value(wide / nonzero(largest), -1, 1)
    return unit, _root(tf.reduce_sum(tf.square(unit), axes, keepdims=True)), largest


def _largest(wide: tf.Tensor, axes: _Axes) -> tf.Tensor:
    # The maximum of nothing is -inf, and so is that of NaN alone under XLA.
    return tf.maximum(tf.reduce_max(tf.abs(tf.stop_gradient(wide)), axes, keepdims=True), 0)


def _finite(largest: tf.Tensor) -> tf.Tensor:
    return tf.minimum(largest, largest.dtype.max)  # infinity counts as the largest number


def _root(square: tf.Tensor) -> tf.Tensor:
    return tf.sqrt(nonzero(square))  # it divides zeros, and the root of 0 has no slope


def _as_axes(axis: int | Sequence[int] | None, x: tf.Tensor) -> _Axes:
    if axis is not None and x.shape.rank is None:
        raise ValueError(
            f"axis must come with an x of known rank; got {axis} and none; remedy: tf.ensure_shape"
        )
    return None if axis is None else check_axis("axis", axis, x.shape.rank)
