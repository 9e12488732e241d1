"""A recursion through time: ``y_t = x_t + carry_t * y_(t+1)``.

Transposed it is ``y_t = x_t + carry_(t-1) * y_(t-1)``, which runs forward in time, as gradients do.
"""

import math
from typing import Any

import numpy as np
import tensorflow as tf

from gradtricks._core import kernels
from gradtricks._core.checks import check_number, check_shape
from gradtricks.tensorflow._edits import can_declare, in_xla, shaped, with_slope
from gradtricks.tensorflow._tensors import TENSORS, as_floating, as_ranked, at_least_float32

_BLOCK = 32  # steps; longer ones would be more arithmetic, shorter ones more passes


def _cotangents(
    gradient: tf.Tensor, y: tf.Tensor, x: tf.Tensor, carry: float | tf.Tensor, transposed: bool
) -> tuple[tf.Tensor, tf.Tensor | None]:
    adjoint = accumulate(gradient, carry, not transposed)
    if not tf.is_tensor(carry):
        return adjoint, None
    here, there = (y, adjoint) if transposed else (adjoint, y)
    return adjoint, here * bounded(tf.concat([there[1:], tf.zeros_like(there[:1])], 0), carry)


def _by_operations(x: tf.Tensor, carry: Any, transposed: bool) -> tf.Tensor:
    plain = all(can_declare(t) for t in (x, carry) if tf.is_tensor(t))
    changing = tf.is_tensor(carry)
    if changing:
        carry = tf.concat([carry[:1], carry[:-1]], 0) if transposed else tf.reverse(carry, [0])
    else:
        carry = float(x.dtype.as_numpy_dtype(carry))
        if carry == 0:
            return x
    # An eager call would wait for a GPU to say whether all is finite.
    blocked = not changing and not tf.executing_eagerly()
    # XLA's loops are cheap, but what accumulators make of them isn't compiled.
    run = _by_steps if plain and in_xla() else _by_blocks if plain and blocked else _by_doubling
    y = run(x if transposed else tf.reverse(x, [0]), carry)
    return shaped(y if transposed else tf.reverse(y, [0]), x)


def _by_blocks(x: tf.Tensor, carry: float) -> tf.Tensor:
    # The zeros of the matrix would make NaN of infinities.
    finite = tf.math.is_finite(tf.reduce_sum(x))
    return tf.cond(finite, lambda: _by_products(x, carry), lambda: _by_doubling(x, carry))


def _by_products(x: tf.Tensor, carry: float) -> tf.Tensor:
    # Within a block of steps the recursion is a product with a matrix; then only the blocks' ends are left.
    steps, rest = x.shape[0] or tf.shape(x)[0], tf.shape(x)[1:]
    count = (steps + _BLOCK - 1) // _BLOCK
    padded = tf.pad(x, [[0, count * _BLOCK - steps], *([0, 0] for _ in x.shape[1:])])
    blocks = tf.reshape(padded, [count, _BLOCK, tf.reduce_prod(rest)])
    powers = carry ** np.arange(_BLOCK + 1.0)
    distances = np.subtract.outer(np.arange(_BLOCK), np.arange(_BLOCK))
    within = tf.matmul(tf.constant(np.where(distances < 0, 0, powers[distances]), x.dtype), blocks)
    ends = _by_doubling(within[:, -1], powers[-1])
    y = within + tf.constant(powers[1:, None], x.dtype) * _moved(ends, 1)[:, None]
    return tf.reshape(y, tf.concat([[count * _BLOCK], rest], 0))[:steps]


def _by_steps(x: tf.Tensor, carry: Any) -> tf.Tensor:
    steps, changing = tf.shape(x)[0], tf.is_tensor(carry)
    if x.shape[0] is None:  # XLA would refuse to look into nothing
        paddings = [[0, 1], *([0, 0] for _ in x.shape[1:])]
        x, carry = tf.pad(x, paddings), tf.pad(carry, paddings) if changing else carry

    def step(t: tf.Tensor, y: tf.Tensor, ys: tf.TensorArray) -> tuple[tf.Tensor, tf.Tensor, tf.TensorArray]:
        factor = carry[t] if changing else carry
        y = x[t] + factor * bounded(y, factor)
        return t + 1, y, ys.write(t, y)

    ys = tf.TensorArray(x.dtype, steps, element_shape=x.shape[1:])
    start = (0, tf.zeros(tf.shape(x)[1:], x.dtype), ys)
    # With a known length XLA can differentiate the loop too, which nested tapes ask for.
    loop = tf.while_loop(lambda t, *_: t < steps, step, start, maximum_iterations=x.shape[0])
    return loop[2].stack()


def _by_doubling(y: tf.Tensor, carry: float | tf.Tensor) -> tf.Tensor:
    # After a round with distance d each sum covers 2d terms, so log2(T) rounds do.
    carry = tf.convert_to_tensor(carry, y.dtype)

    def one_round(distance: Any, y: tf.Tensor, carry: tf.Tensor, sign: tf.Tensor) -> tuple[Any, ...]:
        y += _carried(_moved(y, distance), carry, sign)
        if carry.shape.rank == 0:
            return 2 * distance, y, carry * carry, sign * sign
        return 2 * distance, y, carry * _moved(carry, distance), sign * _moved(sign, distance)

    start = (1, y, carry, tf.sign(carry))
    if y.shape[0] is None:
        shapes = (tf.TensorShape([]), y.shape, carry.shape, carry.shape)
        return tf.while_loop(lambda d, *_: d < tf.shape(y)[0], one_round, start, shapes)[1]
    while start[0] < y.shape[0]:
        start = one_round(*start)
    return start[1]


def _carried(later: tf.Tensor, factor: tf.Tensor, sign: tf.Tensor) -> tf.Tensor:
    # A product that underflows carries nothing but infinities, which step by step would have come through.
    stuck = (factor == 0) & (sign != 0) & ~tf.math.is_finite(later)
    infinite = tf.where(stuck, sign * tf.stop_gradient(later), tf.zeros_like(later))
    return factor * bounded(later, factor) + infinite


def _moved(x: tf.Tensor, distance: int | tf.Tensor) -> tf.Tensor:
    return shaped(tf.concat([tf.zeros_like(x[:distance]), x[:-distance]], 0), x)


accumulate = with_slope(lambda *args: kernels.policy_gradients.accumulate(*args), _cotangents, _by_operations)


def bounded(later: tf.Tensor, carry: float | tf.Tensor) -> tf.Tensor:
    """Return ``later``, of which nothing is carried over a 0, not even an infinity or NaN."""
    if not tf.is_tensor(carry):
        return later if carry else tf.zeros_like(later)
    return tf.where((carry == 0) & ~tf.math.is_finite(later), tf.zeros_like(later), later)


def as_rewards(r_t: tf.Tensor) -> tf.Tensor:
    """Return ``r_t`` if it is floating-point and has a time axis."""
    r_t = as_ranked("r_t", r_t)
    if r_t.shape.rank == 0:
        raise ValueError("r_t must have shape [T, ...], time first; got a scalar")
    return r_t


def as_coefficient(
    name: str, value: float | tf.Tensor, r_t: tf.Tensor, *, low: float = 0, high: float = math.inf
) -> float | tf.Tensor:
    """Give a tensor the shape of ``r_t``, and at least float32; a number stays one."""
    if not isinstance(value, TENSORS):
        return check_number(name, value, low=low, high=high)
    value = as_floating(name, value)
    if value.shape.rank:
        check_shape(name, value.shape, r_t.shape, "r_t")
    value = tf.cast(value, at_least_float32(r_t).dtype)
    return shaped(tf.broadcast_to(value, tf.shape(r_t)), r_t)
