"""Choosing between a function and a fallback, element by element.

Where ``c`` holds ``y = function(x)`` and ``dL/dx = function'(x) * dL/dy``; elsewhere ``y = fallback`` and
``dL/dx = 0``. That takes two: ``where(c, function(where(c, x, safe_value)), fallback)``.
"""

import math
from collections.abc import Callable
from numbers import Real

import tensorflow as tf

from gradtricks._core.branching import WhereGradients
from gradtricks._core.checks import check_broadcast, check_number, check_shape
from gradtricks.tensorflow._tensors import as_floating, as_ranked, as_tensor
from gradtricks.tensorflow._vjp import gradients


def safe_where(
    condition: tf.Tensor,
    x: tf.Tensor,
    function: Callable[[tf.Tensor], tf.Tensor],
    fallback: float | tf.Tensor,
    *,
    safe_value: float | None = None,
) -> tf.Tensor:
    """Return ``function(x)`` where the condition holds, and the fallback elsewhere.

    Backward, ``x`` gets the function's gradient where the condition holds and exactly 0 elsewhere, whatever
    the function's derivative is there; the fallback gets the rest.

    Where the condition fails, the function is handed a stand-in: the largest element of ``x`` for which it
    holds, or 1 if it holds for none. So tensors that the function closes over stay free of NaN too.

    Args:
        condition: Bool; broadcasts to the shape of ``x``. It gets no gradient.
        x: Floating-point, any shape.
        function: Works element by element; returns a floating-point tensor of the shape that it is given.
        fallback: A number, infinite or NaN as you like, or a floating-point tensor that broadcasts to the
            shape of ``x``. If it is computed from ``x``, that has to be safe by itself.
        safe_value: The stand-in, a finite number. Give one if the condition may hold for no element and the
            function isn't finite at 1.

    Returns:
        Shape of ``x``, dtype of what ``function`` returns.

    References:
        The double ``where``,
        https://github.com/tensorflow/probability/blob/main/discussion/where-nan.pdf.

    Example:
        >>> x = tf.constant([0.0, 4.0])
        >>> with tf.GradientTape() as tape:
        ...     tape.watch(x)
        ...     y = safe_where(x > 0, x, tf.sqrt, 0.0)
        >>> y.numpy(), tape.gradient(y, x).numpy()
        (array([0., 2.], dtype=float32), array([0.  , 0.25], dtype=float32))
    """
    condition, x = _checked(condition, x, function)
    inside = tf.where(condition, x, _stand_in(condition, x, safe_value))
    result = _apply(function, inside)
    return tf.where(condition, result, _as_fallback(fallback, result))


def where_gradients(
    condition: tf.Tensor,
    x: tf.Tensor,
    function: Callable[[tf.Tensor], tf.Tensor],
    fallback: float | tf.Tensor,
    *,
    safe_value: float | None = None,
) -> WhereGradients:
    """Say which gradient reaches which branch of ``where(condition, function(x), fallback)``, and ``x``.

    Takes the arguments of `safe_where`, to be put in its place when a gradient is NaN. What the fields hold
    is measured by differentiating: it is what happens where it is called, eager or compiled.

    Example:
        >>> x = tf.constant([0.0, 4.0])
        >>> flow = where_gradients(x > 0, x, tf.math.log, 0.0)
        >>> flow.to_function.numpy(), flow.derivative.numpy()
        (array([0., 1.], dtype=float32), array([ inf, 0.25], dtype=float32))
        >>> flow.gradient.numpy(), flow.safe_gradient.numpy()
        (array([ nan, 0.25], dtype=float32), array([0.  , 0.25], dtype=float32))
    """
    condition, x = _checked(condition, x, function)

    def plain(x: tf.Tensor) -> tf.Tensor:
        result = _apply(function, x)
        return tf.where(condition, result, _as_fallback(fallback, result))

    def safe(x: tf.Tensor) -> tf.Tensor:
        return safe_where(condition, x, function, fallback, safe_value=safe_value)

    to_function, to_fallback = gradients(lambda y, z: tf.where(condition, y, z), [x, tf.zeros_like(x)])
    (derivative,) = gradients(lambda x: _apply(function, x), [x])
    (gradient,), (safe_gradient,) = gradients(plain, [x]), gradients(safe, [x])
    poisoned = ~tf.math.is_finite(gradient) & tf.math.is_finite(safe_gradient)
    return WhereGradients(to_function, to_fallback, derivative, gradient, safe_gradient, poisoned)


def _apply(function: Callable[[tf.Tensor], tf.Tensor], x: tf.Tensor) -> tf.Tensor:
    result = as_floating("function(x)", function(x))
    check_shape("function(x)", result.shape, x.shape, "x")
    return result


def _stand_in(condition: tf.Tensor, x: tf.Tensor, safe_value: float | None) -> tf.Tensor:
    if safe_value is not None:
        limit = float(x.dtype.max)
        return tf.constant(check_number("safe_value", safe_value, low=-limit, high=limit), x.dtype)
    nothing = tf.constant(-math.inf, x.dtype)
    largest = tf.reduce_max(tf.where(condition, tf.stop_gradient(x), nothing))
    return tf.where(largest == nothing, tf.ones_like(largest), largest)


def _checked(
    condition: tf.Tensor, x: tf.Tensor, function: Callable[[tf.Tensor], tf.Tensor]
) -> tuple[tf.Tensor, tf.Tensor]:
    condition, x = as_tensor("condition", condition), as_ranked("x", x)
    if condition.dtype != tf.bool:
        got = condition.dtype.name
        raise TypeError(f"condition must be bool; got {got}; remedy: a comparison, such as x > 0")
    check_broadcast("condition", condition.shape, x.shape, "x")
    if not callable(function):
        got = type(function).__name__
        raise TypeError(f"function must be callable; got {got}; remedy: hand over sqrt, not sqrt(x)")
    return condition, x


def _as_fallback(fallback: float | tf.Tensor, result: tf.Tensor) -> tf.Tensor:
    if isinstance(fallback, Real) and not isinstance(fallback, bool):
        return tf.constant(float(fallback), result.dtype)
    fallback = as_floating("fallback", fallback)
    check_broadcast("fallback", fallback.shape, result.shape, "x")
    return tf.cast(fallback, result.dtype)
