"""A recursion through time: ``y_t = x_t + carry_t * y_(t+1)``.

Transposed it is ``y_t = x_t + carry_(t-1) * y_(t-1)``, which runs forward in time, as gradients do.
"""

import math
from typing import Any

import tensorflow as tf
from numpy.typing import NDArray

from gradtricks._core.checks import check_number, check_shape
from gradtricks.tensorflow._edits import in_plain_reverse, in_xla, shaped, with_slope
from gradtricks.tensorflow._tensors import TENSORS, as_floating, at_least_float32


def _loop(x: NDArray[Any], carry: NDArray[Any], transposed: bool) -> NDArray[Any]:
    from gradtricks._core.kernels.policy_gradients import accumulate as loop  # a compiler is dear to import

    return loop(x, carry, transposed=transposed)


def _cotangents(
    gradient: tf.Tensor, y: tf.Tensor, x: tf.Tensor, carry: tf.Tensor, transposed: bool
) -> tuple[tf.Tensor, tf.Tensor]:
    adjoint = accumulate(gradient, carry, not transposed)
    here, there = (y, adjoint) if transposed else (adjoint, y)
    return adjoint, here * _bounded(_later(there), carry)


def _by_operations(x: tf.Tensor, carry: tf.Tensor, transposed: bool) -> tf.Tensor:
    if transposed:
        carry = tf.concat([carry[:1], carry[:-1]], 0)
    else:
        x, carry = tf.reverse(x, [0]), tf.reverse(carry, [0])
    # XLA's loops are cheap, but what accumulators make of them isn't compiled.
    in_steps = in_xla() and in_plain_reverse(x) and in_plain_reverse(carry)
    y = (_by_steps if in_steps else _by_doubling)(x, carry)
    return shaped(y if transposed else tf.reverse(y, [0]), x)


def _by_steps(x: tf.Tensor, carry: tf.Tensor) -> tf.Tensor:
    steps = tf.shape(x)[0]
    if x.shape[0] is None:  # XLA would refuse to look into nothing
        x, carry = (tf.pad(tensor, [[0, 1], *([0, 0] for _ in x.shape[1:])]) for tensor in (x, carry))

    def step(t: tf.Tensor, y: tf.Tensor, ys: tf.TensorArray) -> tuple[tf.Tensor, tf.Tensor, tf.TensorArray]:
        y = x[t] + carry[t] * _bounded(y, carry[t])
        return t + 1, y, ys.write(t, y)

    ys = tf.TensorArray(x.dtype, steps, element_shape=x.shape[1:])
    start = (0, tf.zeros(tf.shape(x)[1:], x.dtype), ys)
    # With a known length XLA can differentiate the loop too, which nested tapes ask for.
    loop = tf.while_loop(lambda t, *_: t < steps, step, start, maximum_iterations=x.shape[0])
    return loop[2].stack()


def _by_doubling(y: tf.Tensor, carry: tf.Tensor) -> tf.Tensor:
    # After a round with distance d each sum covers 2d terms, so log2(T) rounds do. A product of carries that
    # underflows keeps infinities back as a 0 does.
    def one_round(distance: Any, y: tf.Tensor, carry: tf.Tensor) -> tuple[Any, tf.Tensor, tf.Tensor]:
        before = carry * _bounded(_moved(y, distance), carry)
        return 2 * distance, y + before, carry * _moved(carry, distance)

    if y.shape[0] is None:
        shapes = (tf.TensorShape([]), y.shape, y.shape)
        return tf.while_loop(lambda d, *_: d < tf.shape(y)[0], one_round, (1, y, carry), shapes)[1]
    distance = 1
    while distance < y.shape[0]:
        distance, y, carry = one_round(distance, y, carry)
    return y


def _moved(x: tf.Tensor, distance: int | tf.Tensor) -> tf.Tensor:
    return shaped(tf.concat([tf.zeros_like(x[:distance]), x[:-distance]], 0), x)


accumulate = with_slope(_loop, _cotangents, _by_operations)


def _later(x: tf.Tensor) -> tf.Tensor:
    return tf.concat([x[1:], tf.zeros_like(x[:1])], 0)


def _bounded(later: tf.Tensor, carry: tf.Tensor) -> tf.Tensor:
    # Nothing is carried over a 0, not even an infinity.
    return tf.where((carry == 0) & ~tf.math.is_finite(later), tf.zeros_like(later), later)


def as_rewards(r_t: tf.Tensor) -> tf.Tensor:
    """Return ``r_t`` if it is floating-point and has a time axis."""
    r_t = as_floating("r_t", r_t)
    if r_t.shape.rank is None:
        raise ValueError("r_t must have a known rank; got none; remedy: tf.ensure_shape")
    if r_t.shape.rank == 0:
        raise ValueError("r_t must have shape [T, ...], time first; got a scalar")
    return r_t


def as_coefficient(
    name: str, value: float | tf.Tensor, r_t: tf.Tensor, *, low: float = 0, high: float = math.inf
) -> tf.Tensor:
    """Give a number, a scalar or a tensor the shape of ``r_t``, and at least float32."""
    dtype = at_least_float32(r_t).dtype
    if isinstance(value, TENSORS):
        value = as_floating(name, value)
        if value.shape.rank:
            check_shape(name, value.shape, r_t.shape, "r_t")
        value = tf.cast(value, dtype)
    else:
        value = tf.constant(check_number(name, value, low=low, high=high), dtype)
    return shaped(tf.broadcast_to(value, tf.shape(r_t)), r_t)
