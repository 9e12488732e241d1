"""Any rule for what flows back.

Forward ``y = x``; backward ``dL/dx = rule(dL/dy, *tensors)``.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from gradtricks._core.checks import check_callable
from gradtricks._core.structures import map_structure
from gradtricks.tensorflow._edits import intercept
from gradtricks.tensorflow._tensors import as_edited, as_floating, as_tensor


def edit_gradient(x: Any, rule: Callable[..., tf.Tensor], *tensors: tf.Tensor) -> Any:
    """Identity forward; the incoming gradient goes through ``rule``.

    One of the two edits behind the tricks of this package, so that you can write your own in a line; the
    other one is `straight_through`.

    Args:
        x: Floating-point, any shape; or a tuple, list or dict of such tensors, each edited by itself.
        rule: ``rule(gradient, *tensors)`` returns what goes on to ``x``, in the shape of the gradient; for a
            second derivative it is differentiated.
        *tensors: What the rule needs besides; they get no gradient.

    Returns:
        Shape and dtype of ``x``.

    Raises:
        RuntimeError: In forward mode, in which a rule for gradients has no meaning.
        LookupError: A tape around a `tf.vectorized_map`.

    Example:
        >>> x = tf.constant([1.0, -2.0])
        >>> with tf.GradientTape() as tape:
        ...     tape.watch(x)
        ...     y = tf.reduce_sum(edit_gradient(x, tf.sign) ** 3)
        >>> tape.gradient(y, x).numpy().tolist()
        [1.0, 1.0]
    """
    check_callable("rule", rule)
    tensors = tuple(as_tensor("a tensor of the rule", tensor) for tensor in tensors)

    def checked(gradient: tf.Tensor, *tensors: tf.Tensor) -> tf.Tensor:
        name = "what the rule returns"
        return as_edited(name, as_floating(name, rule(gradient, *tensors)), gradient)

    return map_structure(lambda leaf: intercept(as_floating("x", leaf), checked, *tensors), x)
