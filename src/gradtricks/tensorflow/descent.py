"""One step of gradient descent.

Forward ``q = p - rate * g``; backward ``dL/dp = dL/dq``, ``dL/dg = -rate * dL/dq`` and
``dL/d rate = -sum(g * dL/dq)``.
"""

from typing import Any

import tensorflow as tf

from gradtricks._core.checks import check_number, check_shape
from gradtricks._core.structures import pairs, rebuilt
from gradtricks.tensorflow._tensors import TENSORS, as_floating, at_least_float32


def gradient_descent_step(parameters: Any, gradients: Any, learning_rate: float | tf.Tensor) -> Any:
    """Subtract ``learning_rate`` times its gradient from every parameter.

    A pure function, to be differentiated through as often as you like. A parameter without a gradient (None)
    stays as it is. A rate of 0 doesn't hide a gradient that is NaN or infinite: 0 times either is NaN.

    Args:
        parameters: A floating-point tensor or variable, or tuples, lists and dicts of them, nested or not.
        gradients: The same structure, each tensor of the shape of its parameter; a list may be paired with
            a tuple. Sparse gradients (``tf.IndexedSlices``) are made dense.
        learning_rate: A finite number, at least 0, or a floating-point tensor of shape []. The value of a
            tensor isn't checked.
            In a `tf.function`, give a rate that changes as a tensor: a number retraces for each value.

    Returns:
        Structure of ``parameters``, each tensor of the shape and dtype of its parameter. float16 and
        bfloat16 are computed in float32.

    References:
        Cauchy, Méthode générale pour la résolution des systèmes d'équations simultanées, 1847.

    Example:
        >>> weights = {"w": tf.constant([1.0, 2.0]), "b": tf.constant(0.5)}
        >>> slopes = {"w": tf.constant([10.0, 0.0]), "b": tf.constant(-5.0)}
        >>> stepped = gradient_descent_step(weights, slopes, 0.1)
        >>> stepped["w"].numpy(), float(stepped["b"])
        (array([0., 2.], dtype=float32), 1.0)
    """
    rate = _as_rate(learning_rate)
    found = pairs("parameters", parameters, "gradients", gradients)
    if found and all(gradient is None for _, _, gradient in found):
        raise ValueError("gradients must hold a gradient; got only None; remedy: explain_gradient says why")
    return rebuilt(parameters, iter([_stepped(*pair, rate) for pair in found]))


def _stepped(place: str, parameter: tf.Tensor, gradient: tf.Tensor | None, rate: tf.Tensor) -> tf.Tensor:
    parameter = as_floating(f"parameters{place}", parameter)
    if gradient is None:
        return parameter
    gradient = tf.convert_to_tensor(gradient) if isinstance(gradient, tf.IndexedSlices) else gradient
    gradient = as_floating(f"gradients{place}", gradient)
    check_shape(f"gradients{place}", gradient.shape, parameter.shape, f"parameters{place}")
    wide = at_least_float32(parameter)
    return tf.cast(wide - tf.cast(rate, wide.dtype) * tf.cast(gradient, wide.dtype), parameter.dtype)


def _as_rate(learning_rate: float | tf.Tensor) -> tf.Tensor:
    if not isinstance(learning_rate, TENSORS):
        return tf.constant(check_number("learning_rate", learning_rate, low=0), tf.float64)
    learning_rate = as_floating("learning_rate", learning_rate)
    check_shape("learning_rate", learning_rate.shape, (), "a scalar")
    return learning_rate
