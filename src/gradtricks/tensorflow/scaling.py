"""Scaling a gradient without touching the value."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from gradtricks._core.checks import check_broadcast, check_number
from gradtricks.tensorflow._tensors import TENSORS, as_floating, in_plain_reverse, in_vectorized_map


def scale_gradient(x: Any, scale: float | tf.Tensor) -> Any:
    """Identity forward; multiplies the incoming gradient by ``scale``.

    The forward pass returns the bits of ``x``. A scale of 0 stops the gradient even where it is
    infinite or NaN. ``scale`` itself gets no gradient.

    Args:
        x: Floating-point, any shape; or a tuple, list or dict of such tensors, nested as you like.
        scale: A finite number, or a floating-point tensor that broadcasts to the shape of every ``x``;
            negative reverses. The elements of a tensor aren't checked.
            In a `tf.function`, give a scale that changes as a tensor: a number retraces for each value.

    Returns:
        Shape and dtype of ``x``.

    Raises:
        TypeError: ``x`` isn't a floating-point tensor, or ``scale`` isn't a number or a tensor.
        ValueError: ``scale`` is a number that isn't finite, or doesn't broadcast to the shape of ``x``.
        LookupError: A tape around a `tf.vectorized_map` meets a `tf.function` within it.

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
    return tf.nest.map_structure(lambda leaf: _scale_tensor(leaf, scale), x)


def reverse_gradient(x: Any) -> Any:
    """Identity forward; reverses the sign of the incoming gradient.

    What comes before ``x`` then climbs a loss that what comes after ``x`` descends. For a reversal of
    strength lambda, take ``scale_gradient(x, -lambda)``.

    Args:
        x: Floating-point, any shape; or a tuple, list or dict of such tensors, nested as you like.

    Returns:
        Shape and dtype of ``x``.

    Raises:
        TypeError: ``x`` isn't a floating-point tensor.
        LookupError: A tape around a `tf.vectorized_map` meets a `tf.function` within it.

    References:
        The gradient reversal layer of Ganin and Lempitsky, https://arxiv.org/abs/1409.7495.

    Example:
        >>> x = tf.constant(3.0)
        >>> with tf.GradientTape() as tape:
        ...     tape.watch(x)
        ...     y = reverse_gradient(x)
        >>> float(y), float(tape.gradient(y, x))
        (3.0, -1.0)
    """
    return scale_gradient(x, -1.0)


@keras.saving.register_keras_serializable("gradtricks")
class ScaleGradient(keras.layers.Layer):
    """Identity forward; multiplies the incoming gradient by ``scale``. The layer of `scale_gradient`.

    Args:
        scale: A finite number, which may be set anew at any time: ``layer.scale = 0.1``.
        **kwargs: Options of every Keras layer, such as ``name``.

    Raises:
        TypeError: ``scale`` isn't a number.
        ValueError: ``scale`` isn't finite.

    Example:
        >>> reverse = ScaleGradient(-1.0)
        >>> x = tf.Variable(3.0)
        >>> with tf.GradientTape() as tape:
        ...     y = reverse(x)
        >>> float(tape.gradient(y, x))
        -1.0
    """

    def __init__(self, scale: float, **kwargs: Any) -> None:
        # Under a mixed policy Keras would cast x, and the layer wouldn't be the identity.
        super().__init__(**{"autocast": False, **kwargs})
        self.supports_masking = True
        # A number would be baked into a compiled step; a variable can be set between steps.
        self._scale = self.add_weight(
            name="scale",
            shape=(),
            dtype="float32",
            initializer=keras.initializers.Constant(check_number("scale", scale)),
            trainable=False,
            autocast=False,
        )

    @property
    def scale(self) -> float:
        """The number that multiplies the incoming gradient."""
        return float(self._scale)

    @scale.setter
    def scale(self, scale: float) -> None:
        self._scale.assign(check_number("scale", scale))

    def call(self, x: Any) -> Any:
        """Return ``x``.

        Args:
            x: Floating-point, any shape; or a tuple, list or dict of such tensors.

        Returns:
            Shape and dtype of ``x``.
        """
        return scale_gradient(x, self._scale)

    def get_config(self) -> dict[str, Any]:
        """Return what `from_config` needs to make an equal layer."""
        return {**super().get_config(), "scale": self.scale}


def _scale_tensor(x: object, scale: float | tf.Tensor) -> tf.Tensor:
    x = as_floating("x", x)
    factor = _as_factor(scale, x)
    plain = in_plain_reverse(x) and not in_vectorized_map()
    return _scale_by_custom_gradient(x, factor) if plain else _scale_by_replacement(x, factor)


@tf.custom_gradient
def _scale_by_custom_gradient(
    x: tf.Tensor, factor: tf.Tensor
) -> tuple[tf.Tensor, Callable[[tf.Tensor], tuple[tf.Tensor, None]]]:
    def backward(gradient: tf.Tensor) -> tuple[tf.Tensor, None]:
        # What a tf.gather sends back is sparse until it is converted.
        return _scaled(tf.convert_to_tensor(gradient), factor), None

    # An identity whose own gradient raises, in case that a transform loses the custom one.
    return tf.raw_ops.PreventGradient(input=x, message=_LOST), backward


_LOST = "scale_gradient in a tf.function in a tf.vectorized_map; remedy: call the Python function, or map_fn"


def _scaled(gradient: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    return tf.math.multiply_no_nan(gradient, factor)


def _scale_by_replacement(x: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    # Some transforms ignore a custom gradient; this they differentiate by themselves. A zero of slope 1 is
    # scaled, and then given the value of x. A product with x itself would be NaN where x is infinite.
    zero = _replaced(x, tf.zeros_like(x))
    return _replaced(_scaled(zero, factor), tf.stop_gradient(x))


def _replaced(x: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    # Stitched to the same place, the later one wins, and the gradient goes to both.
    place = tf.range(tf.size(x))
    stitched = tf.dynamic_stitch([place, place], [tf.reshape(x, [-1]), tf.reshape(value, [-1])])
    return tf.reshape(stitched, tf.shape(x))


def _as_factor(scale: float | tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    if not isinstance(scale, TENSORS):
        return tf.constant(check_number("scale", scale), x.dtype)
    scale = as_floating("scale", scale)
    check_broadcast("scale", scale.shape, x.shape, "x")
    return tf.stop_gradient(tf.cast(scale, x.dtype))
