"""The gradient of a batch that comes in parts.

Of the loss ``sum(totals) / sum(weights)`` it is ``sum(gradients of the totals) / sum(weights)``, however the
batch was cut. The mean of the parts' means is another loss, unless all parts weigh the same.
"""

from collections.abc import Callable, Iterable
from typing import Any

import keras
import tensorflow as tf

from gradtricks._core.checks import check_callable, check_number, check_shape
from gradtricks._core.structures import leaves, rebuilt
from gradtricks.tensorflow._edits import is_readable
from gradtricks.tensorflow._tensors import TENSORS, as_floating, as_tensor, at_least_float32


def accumulate_gradients(
    function: Callable[[Any], tuple[tf.Tensor, float | tf.Tensor]], parameters: Any, parts: Iterable[Any]
) -> tuple[tf.Tensor, Any]:
    """Return the mean loss of all parts together and its gradients, whatever the parts weigh.

    The gradients are those of one large batch, up to rounding, added up in float32 at least; clip them once
    and give them to the optimizer once. Layers that couple samples (batch normalization in training mode)
    see one part at a time all the same.

    Args:
        function: ``function(part)`` returns the *sum* of the part's losses, a scalar, and the sum of their
            weights, a number or a scalar tensor: how many tokens or samples count. Of a mean take
            ``mean * weight``, but beware of the mean of nothing. A sum that was multiplied, as by
            `keras.optimizers.LossScaleOptimizer.scale_loss`, gives loss and gradients multiplied by as much.
        parameters: Floating-point variables or tensors in a list, tuple or dict, nested as you like.
        parts: Anything that can be iterated over, once. In a `tf.function` each part is traced, and a
            `tf.data.Dataset` refused: give its parts to ``tf.function(function)`` instead.

    Returns:
        The loss, ``[]``, in float32 at least; and the gradients in the structure and dtypes of
        ``parameters``, None for a parameter that no part uses. Weights that add up to 0 raise; tensors of
        them in a graph give NaN or infinity.

    References:
        https://github.com/huggingface/transformers/pull/34191.

    Example:
        >>> weight = tf.Variable(2.0)
        >>> parts = tf.constant([1.0, 2.0, 3.0]), tf.constant([6.0])
        >>> loss, gradients = accumulate_gradients(
        ...     lambda x: (tf.reduce_sum(weight * x), len(x)), [weight], parts
        ... )
        >>> float(loss), float(gradients[0])  # 12 / 4; the mean of the two means, 2 and 6, is 4
        (6.0, 3.0)
    """
    check_callable("function", function)
    watched = [_watchable(p) for p in leaves(parameters)]
    if isinstance(parts, tf.data.Dataset | tf.data.Iterator) and not tf.executing_eagerly():
        raise TypeError(
            f"parts must be known when a tf.function is traced; got {type(parts).__name__}; "
            "remedy: call accumulate_gradients outside of it, with tf.function(function)"
        )
    sums: list[tf.Tensor | None] = [None for _ in watched]
    loss: Any = None
    weights: Any = 0
    for part in parts:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(watched)
            total, weight = _as_pair(function(part))
        gradients = tape.gradient(total, watched)
        for place, gradient in enumerate(gradients):
            sums[place] = _added(sums[place], gradient)
        loss = tf.stop_gradient(total) + (0 if loss is None else loss)
        weights = weights + weight
    _check(loss, weights, sums)
    means = [g if g is None else tf.cast(g / _cast(weights, g), p.dtype) for g, p in zip(sums, watched)]
    return loss / _cast(weights, loss), rebuilt(parameters, iter(means))


def _watchable(parameter: object) -> tf.Tensor:
    as_floating("parameters", parameter)
    return parameter.value if isinstance(parameter, keras.Variable) else parameter


def _as_pair(found: object) -> tuple[tf.Tensor, float | tf.Tensor]:
    if not isinstance(found, tuple | list) or len(found) != 2:
        raise TypeError(f"function must return a sum of losses and its weight; got {type(found).__name__}")
    total = at_least_float32(as_floating("the sum of losses", found[0]))
    check_shape("the sum of losses", total.shape, (), "a scalar")
    if not isinstance(found[1], TENSORS):
        return total, check_number("the weight", found[1])
    weight = as_tensor("the weight", found[1])
    check_shape("the weight", weight.shape, (), "a scalar")
    return total, tf.stop_gradient(tf.cast(weight, total.dtype))


def _added(total: tf.Tensor | None, gradient: Any) -> tf.Tensor | None:
    if gradient is None:
        return total
    wide = at_least_float32(tf.convert_to_tensor(gradient))
    return wide if total is None else total + wide


def _cast(weights: float | tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    return tf.cast(weights, like.dtype) if tf.is_tensor(weights) else tf.constant(weights, like.dtype)


def _check(loss: tf.Tensor | None, weights: float | tf.Tensor, sums: list[tf.Tensor | None]) -> None:
    if loss is None:
        raise ValueError("parts must not be empty; got none")
    if all(total is None for total in sums):
        raise ValueError("a sum of losses must depend on the parameters; got none that does")
    if (not tf.is_tensor(weights) or is_readable(weights)) and weights == 0:
        raise ValueError("the weights must not add up to 0, since a loss is an average; got 0")
