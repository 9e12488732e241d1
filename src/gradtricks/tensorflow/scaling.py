"""Scaling a gradient without touching the value.

Forward ``y = x``; backward ``dL/dx = scale * dL/dy``.
"""

from typing import Any

import keras
import tensorflow as tf

from gradtricks._core.checks import check_number
from gradtricks._core.structures import map_structure
from gradtricks.tensorflow._edits import intercept
from gradtricks.tensorflow._tensors import as_coefficient, as_floating, at_least_float32


def scale_gradient(x: Any, scale: float | tf.Tensor) -> Any:
    """Identity forward; multiplies the incoming gradient by ``scale``.

    The forward pass returns the bits of ``x``. A scale of 0 stops the gradient even where it is infinite or
    NaN.

    Args:
        x: Floating-point, any shape; or a tuple, list or dict of such tensors, nested as you like.
        scale: A finite number, or a floating-point tensor that broadcasts to the shape of every ``x``, whose
            elements aren't checked and get no gradient; negative reverses. In a `tf.function`, give one that
            changes as a tensor: a number retraces for each value.

    Returns:
        Shape and dtype of ``x``.

    Raises:
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
    return map_structure(lambda leaf: _scale_tensor(leaf, scale), x)


def reverse_gradient(x: Any) -> Any:
    """Identity forward; reverses the sign of the incoming gradient.

    What comes before ``x`` then climbs a loss that what comes after ``x`` descends. A reversal of strength
    lambda is ``scale_gradient(x, -lambda)``, which takes the same ``x`` and raises the same errors.

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


def _scale_tensor(x: object, scale: float | tf.Tensor) -> tf.Tensor:
    x = as_floating("x", x)
    factor = as_coefficient("scale", scale, x)
    return intercept(x, _times_or_stopped, factor, linear=True)


def _times_or_stopped(gradient: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    # Infinity times 0 would be NaN.
    return tf.cast(tf.math.multiply_no_nan(at_least_float32(gradient), factor), gradient.dtype)


@keras.saving.register_keras_serializable("gradtricks")
class ScaleGradient(keras.layers.Layer):
    """Identity forward; multiplies the incoming gradient by ``scale``. The layer of `scale_gradient`.

    Args:
        scale: A finite number, which may be set anew at any time: ``layer.scale = 0.1``. So that it is the
            very number, its weight is float64 under every ``dtype`` or policy.
        **kwargs: Options of every Keras layer, such as ``name``.

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
        number = check_number("scale", scale)
        # A number would be baked into a compiled step; a variable can be set between steps. It is wide, and
        # made without Keras' initializer, which is float32, so that it holds the very number.
        self._scale = self.add_weight(
            name="scale",
            shape=(),
            dtype="float64",
            initializer=lambda shape, dtype: tf.constant(number, dtype, shape),
            trainable=False,
            autocast=False,
        )

    @property
    def scale(self) -> float:
        """The number that multiplies the incoming gradient."""
        return float(tf.convert_to_tensor(self._scale))  # a strategy's variable isn't a number by itself

    @scale.setter
    def scale(self, scale: float) -> None:
        self._scale.assign(tf.constant(check_number("scale", scale), tf.float64))

    def call(self, x: Any) -> Any:
        """Return ``x``, edited as by `scale_gradient`."""
        return scale_gradient(x, self._scale)

    def get_config(self) -> dict[str, Any]:
        """Return what `from_config` needs to make an equal layer."""
        return {**super().get_config(), "scale": self.scale}
