"""Checks and conversions of tensors, for every stem."""

import math
from typing import Any

import keras
import ml_dtypes
import tensorflow as tf

from gradtricks._core.checks import check_broadcast, check_number, check_shape, remedy_of

if keras.backend.backend() != "tensorflow":
    raise ImportError(
        f"gradtricks.tensorflow needs Keras on TensorFlow; Keras runs on {keras.backend.backend()}; "
        "remedy: set KERAS_BACKEND=tensorflow before Python starts, or on torch import gradtricks.torch"
    )

TENSORS = (tf.Tensor, tf.Variable, keras.Variable, keras.KerasTensor)  # the last to be refused by as_tensor


class SymbolicTensorError(TypeError):
    """A KerasTensor stands where a tensor is wanted."""


def as_tensor(name: str, value: object) -> tf.Tensor:
    """Return ``value`` if it is a tensor of this framework; a variable is read."""
    if isinstance(value, keras.KerasTensor):
        raise SymbolicTensorError(
            f"{name} must be a tf.Tensor; got a KerasTensor, which has no values; remedy: what "
            "keras.Model(inputs, outputs) returns, or in a model the call method of a keras.layers.Layer"
        )
    if not isinstance(value, TENSORS):
        remedy = remedy_of(name, value, "tf.convert_to_tensor")
        raise TypeError(f"{name} must be a tf.Tensor; got {type(value).__name__}; remedy: {remedy}")
    return tf.convert_to_tensor(value)


def as_floating(name: str, value: object) -> tf.Tensor:
    """Return ``value`` if it is a floating-point tensor of this framework; a variable is read."""
    tensor = as_tensor(name, value)
    if not tensor.dtype.is_floating:
        raise TypeError(f"{name} must be floating-point; got {tensor.dtype.name}; remedy: tf.cast")
    return tensor


def as_ranked(name: str, value: object) -> tf.Tensor:
    """Return ``value`` if it is a floating-point tensor whose rank is known; a variable is read."""
    tensor = as_floating(name, value)
    if tensor.shape.rank is None:
        raise ValueError(f"{name} must have a known rank; got none; remedy: tf.ensure_shape")
    return tensor


def as_integers(name: str, value: object) -> tf.Tensor:
    """Return ``value`` if it is a tensor of integers of this framework; a variable is read."""
    tensor = as_tensor(name, value)
    if not tensor.dtype.is_integer:
        raise TypeError(f"{name} must hold integers; got {tensor.dtype.name}; remedy: tf.cast")
    return tensor


def as_mask(trainable_mask: object, parameter: tf.Tensor) -> tf.Tensor:
    """Return a bool tensor that broadcasts to the shape of ``parameter``; a variable is read."""
    parameter, mask = as_floating("parameter", parameter), as_tensor("trainable_mask", trainable_mask)
    if mask.dtype != tf.bool:
        raise TypeError(f"trainable_mask must be bool (True = trainable); got {mask.dtype.name}")
    check_broadcast("trainable_mask", mask.shape, parameter.shape, "parameter")
    return mask


def as_moments(name: str, value: object) -> tf.Tensor:
    """Return a floating-point tensor that is wide enough for squares of gradients."""
    moments = as_floating(name, value)
    if moments.dtype.size < 4:
        raise TypeError(
            f"{name} must be float32 or wider, since half precision loses squares; got {moments.dtype.name}; "
            "remedy: tf.cast"
        )
    return moments


def as_coefficient(
    name: str, value: object, x: tf.Tensor, *, low: float = -math.inf, high: float = math.inf
) -> tf.Tensor:
    """Return a finite number or a floating-point tensor as a tensor without a gradient, for use with ``x``.

    A number within ``[low, high]`` but beyond the dtype becomes the largest there is; the elements of a
    tensor, which broadcasts to the shape of ``x``, aren't checked. In the dtype of ``x``, float32 at least.
    """
    dtype = tf.float64 if x.dtype == tf.float64 else tf.float32
    if not isinstance(value, TENSORS):
        largest = float(dtype.max)
        number = min(max(check_number(name, value, low=low, high=high), -largest), largest)
        return tf.constant(number, dtype)
    tensor = as_floating(name, value)
    if None not in (tensor.shape.rank, x.shape.rank):
        check_broadcast(name, tensor.shape, x.shape, "x")
    tensor = tf.stop_gradient(tf.cast(tensor, dtype))
    if tensor.shape.rank == 0 or (x.shape.is_fully_defined() and tensor.shape.is_fully_defined()):
        return tensor
    return tf.broadcast_to(tensor, tf.shape(x))  # raises where it would widen x


def as_scalar(name: str, value: object, x: tf.Tensor, *, low: float = -math.inf) -> tf.Tensor:
    """Return a number, or a tensor of shape ``[]``, as `as_coefficient` does."""
    if isinstance(value, TENSORS):
        check_shape(name, value.shape, (), "a scalar")
    return as_coefficient(name, value, x, low=low)


def as_edited(name: str, value: object, x: tf.Tensor) -> tf.Tensor:
    """Return what a rule made of the gradient of ``x``, in the dtype of ``x``, if it has its shape."""
    edited = as_tensor(name, value)
    check_shape(name, edited.shape, x.shape, "x")
    if edited.shape.is_fully_defined() and x.shape.is_fully_defined():
        return tf.cast(edited, x.dtype)
    equal = tf.debugging.assert_equal(tf.shape(edited), tf.shape(x), f"{name} must have the shape of x")
    with tf.control_dependencies([equal]):
        return tf.cast(tf.identity(edited), x.dtype)


def at_least_float32(x: tf.Tensor) -> tf.Tensor:
    """Widen bfloat16 and float16, in which sums and squares overflow or stall."""
    return tf.cast(x, tf.float32) if x.dtype.size < 4 else x


def finfo(dtype: tf.DType) -> Any:
    """Return the limits of a floating-point dtype, as NumPy does; of bfloat16 too."""
    return ml_dtypes.finfo(dtype.as_numpy_dtype)


def product(weight: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """Multiply, so that what weighs nothing adds nothing: 0 times an infinity is 0, forward and backward."""
    return weight * tf.where((weight == 0) & tf.math.is_inf(x), tf.zeros_like(x), x)


def nonzero(x: tf.Tensor) -> tf.Tensor:
    """Put 1 for 0, where ``x`` divides zeros."""
    return tf.where(x != 0, x, 1)
