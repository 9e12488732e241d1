"""Checking a gradient against differences of its function.

One element moves at a time, by steps ``h`` of many sizes; ``y`` is an output, or a weighted sum of them::

    dy / dx_i = (y(x_i + h) - y(x_i - h)) / 2h        and apart (y(x_i + h) - y(x_i)) / h, on either side
"""

from collections.abc import Callable, Sequence

import tensorflow as tf
from numpy.typing import NDArray

from gradtricks._core.checking import GradientCheck, check_accepts_float64, compare_with_differences
from gradtricks.tensorflow._tensors import as_floating

Function = Callable[..., tf.Tensor]


def check_gradient(
    function: Function,
    inputs: tf.Tensor | Sequence[tf.Tensor],
    *,
    surrogate: Function | None = None,
    rtol: float = 1e-6,
    atol: float = 1e-9,
    num_samples: int = 100,
    seed: int = 0,
) -> GradientCheck:
    """Compare the gradient of ``function`` with central differences in float64, and say what is amiss.

    Every element is moved by many steps, so that truncation and rounding are told apart, and to each side by
    itself, so that kinks and jumps are found. A gradient that isn't the derivative is called wrong. There is
    one exception: a function that is flat far and wide, as floor is, can only have a gradient that was
    declared, a surrogate. Any other intent has to be said with ``surrogate``, because no measurement tells
    `reverse_gradient` from a wrong sign. Rounding to 16 bits inside makes a staircase too; near zero its
    stairs are so fine that they may pass for noise, and the slope across them for the derivative.

    Args:
        function: Takes one tensor for each input, returns one tensor of any shape. It is given float64; where
            it computes in float32 nevertheless, as a Keras model does, that is found and allowed for. It is
            called some 20 times for each element that is moved; what it changes by the way, such as running
            statistics, stays.
        inputs: A floating-point tensor of any shape, or a sequence of them. They are copied to float64 on
            their device.
        surrogate: The function whose derivative the gradient is meant to be, where that isn't ``function``.
        rtol: Relative error that passes; at least the square root of the function's rounding noise, of which
            no more than 1e-3 counts.
        atol: Absolute error that passes.
        num_samples: How many elements of the inputs are moved at most, chosen at random. A result with more
            elements is added up, with random weights, into as many sums.
        seed: Of what is chosen at random.

    Returns:
        A report to print, with the verdict, the reason, the largest relative error and where it is, as
        attributes of a `gradtricks._core.checking.GradientCheck`.

    Raises:
        ValueError: ``function`` returns something else when it is called again, or another shape where an
            element is moved.
        RuntimeError: Called inside a `tf.function`.

    Example:
        >>> print(check_gradient(tf.floor, tf.constant([0.5, 2.0])).verdict)
        not differentiable here
        >>> print(check_gradient(tf.sin, tf.constant([0.5, 2.0])).verdict)
        correct
    """
    tensors = _as_inputs(inputs)
    if not tf.executing_eagerly():
        raise RuntimeError("check_gradient must run eagerly; got a call inside tf.function or a transform")
    check_accepts_float64(
        lambda: function(*(tf.cast(x, tf.float64) for x in tensors)),
        lambda: function(*(tf.cast(x, tf.float32) if x.dtype == tf.float64 else x for x in tensors)),
    )
    return compare_with_differences(
        _on_arrays(function, tensors),
        _vjp_on_arrays(function, tensors),
        [_array(tf.cast(tensor, tf.float64)) for tensor in tensors],
        surrogate=None if surrogate is None else _on_arrays(surrogate, tensors),
        rtol=rtol,
        atol=atol,
        num_samples=num_samples,
        seed=seed,
    )


def _as_inputs(inputs: tf.Tensor | Sequence[tf.Tensor]) -> list[tf.Tensor]:
    if isinstance(inputs, list | tuple):
        return [as_floating(f"inputs[{i}]", x) for i, x in enumerate(inputs)]
    return [as_floating("inputs", inputs)]


def _on_arrays(function: Function, tensors: list[tf.Tensor]) -> Callable[..., NDArray]:
    def on_arrays(*arrays: NDArray) -> NDArray:
        return _array(_result(function(*_moved_to(tensors, arrays))))

    return on_arrays


def _vjp_on_arrays(function: Function, tensors: list[tf.Tensor]) -> Callable[..., list[NDArray]]:
    def on_arrays(cotangent: NDArray, *arrays: NDArray) -> list[NDArray]:
        points = _moved_to(tensors, arrays)
        with tf.GradientTape() as tape:
            tape.watch(points)
            value = _result(function(*points))
        weights = tf.constant(cotangent, value.dtype)
        gradients = tape.gradient(value, points, weights, unconnected_gradients="zero")
        return [_array(gradient) for gradient in gradients]

    return on_arrays


def _moved_to(tensors: list[tf.Tensor], arrays: Sequence[NDArray]) -> list[tf.Tensor]:
    points = []
    for array, tensor in zip(arrays, tensors):
        with tf.device(tensor.device):
            points.append(tf.constant(array))
    return points


def _result(value: tf.Tensor) -> tf.Tensor:
    if isinstance(value, list | tuple):
        raise TypeError(
            f"function must return one tensor; got {type(value).__name__}; "
            "remedy: check one of them at a time"
        )
    value = as_floating("function's result", value)
    if value.dtype.size < 4:
        raise TypeError(
            f"function must return float32 or float64; got {value.dtype.name}; "
            "remedy: check it outside mixed precision, with float64 variables"
        )
    return value


def _array(tensor: tf.Tensor) -> NDArray:
    return tf.convert_to_tensor(tensor).numpy()
