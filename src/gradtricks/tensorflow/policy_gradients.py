"""Rewards to returns, returns to advantages, advantages to a loss."""

from typing import Any

import numpy as np
import tensorflow as tf

from gradtricks._checks import check_number, check_shape
from gradtricks.tensorflow._tensors import as_floating, as_tensor, at_least_float32

_ROUNDING = 16  # a spread below this many units in the last place is rounding, not signal


def discounted_returns(rewards: tf.Tensor, discount: float, *, reset_at_rewards: bool = False) -> tf.Tensor:
    """Sum the rewards still to come, each discounted by its distance: ``R_t = r_t + discount * R_(t+1)``.

    Backward, the gradient of each return reaches the rewards that it sums.

    Args:
        rewards: ``[T, ...]``, time first, floating-point.
        discount: Within [0, 1].
        reset_at_rewards: Start a new sum at every nonzero reward, as between the points of Pong.

    Returns:
        Shape and dtype of ``rewards``.

    Raises:
        TypeError: ``rewards`` isn't a floating-point tensor.
        ValueError: ``rewards`` has no time axis, or ``discount`` lies outside [0, 1].

    Example:
        >>> discounted_returns(tf.constant([0.0, 0.0, 1.0, 0.0, -1.0]), 0.5, reset_at_rewards=True).numpy()
        array([ 0.25,  0.5 ,  1.  , -0.5 , -1.  ], dtype=float32)
    """
    rewards = as_floating("rewards", rewards)
    discount = check_number("discount", discount, low=0, high=1)
    if rewards.shape.rank == 0:
        raise ValueError("rewards must have shape [T, ...], time first; got a scalar")
    returns = at_least_float32(rewards)
    carry = tf.fill(tf.shape(returns), tf.constant(discount, returns.dtype))
    if reset_at_rewards:
        carry = tf.where(returns == 0, carry, tf.zeros_like(carry))
    return tf.cast(_add_later(returns, carry), rewards.dtype)


def standardize(x: tf.Tensor) -> tf.Tensor:
    """Subtract the mean of all elements and divide by their (population) standard deviation.

    Backward, the gradient loses its mean and its component along the result. Where all elements are
    equal up to rounding, both the result and the gradient are zeros.

    Args:
        x: Floating-point, any shape.

    Returns:
        Shape and dtype of ``x``.

    Raises:
        TypeError: ``x`` isn't a floating-point tensor.

    Example:
        >>> standardize(tf.constant([1.0, 3.0])).numpy()
        array([-1.,  1.], dtype=float32)
        >>> standardize(tf.fill((3,), 0.1)).numpy()
        array([0., 0., 0.], dtype=float32)
    """
    x = as_floating("x", x)
    wide = at_least_float32(x)
    magnitude = tf.reduce_max(tf.abs(tf.stop_gradient(wide)))
    one, zero = tf.ones([], wide.dtype), tf.zeros([], wide.dtype)
    # Squares of large values would overflow; a power of two takes no digits away.
    u = wide / tf.where(magnitude == 0, one, tf.pow(2 * one, tf.floor(tf.experimental.numpy.log2(magnitude))))
    middle = (tf.reduce_max(u) + tf.reduce_min(u)) / 2
    u = u - tf.stop_gradient(middle)  # so that the mean of equal elements has no rounding error
    centered = u - tf.reduce_mean(u)
    variance = tf.reduce_mean(tf.square(centered))
    constant = variance <= (_ROUNDING * np.finfo(u.dtype.as_numpy_dtype).eps) ** 2
    std = tf.sqrt(tf.where(constant, one, variance))  # the root of 0 has no gradient
    return tf.cast(tf.where(constant, zero, centered / std), x.dtype)


def policy_gradient_loss(
    logits_t: tf.Tensor,
    a_t: tf.Tensor,
    adv_t: tf.Tensor,
    w_t: tf.Tensor | None = None,
    *,
    use_stop_gradient: bool = True,
) -> tf.Tensor:
    """Average ``-w * adv * log pi(a)``; minimising it raises the probability of what had an advantage.

    Backward, the logits get ``w * adv * (pi - one_hot(a))`` over the count: a negative advantage lowers
    the probability of the action, whatever the sign of the loss.

    Args:
        logits_t: ``[..., A]``, unnormalised log-probabilities, floating-point.
        a_t: ``[...]``, integers in ``[0, A)``.
        adv_t: ``[...]``, advantages, floating-point.
        w_t: ``[...]``, weights, floating-point; None is all ones.
        use_stop_gradient: Treat the advantages as constants.

    Returns:
        A scalar, in the dtype of ``logits_t`` or float32 if that is wider.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape is wrong, or an action lies outside ``[0, A)``. In a graph such an action
            can't raise on every device, so it makes the loss NaN.

    References:
        ``policy_gradient_loss`` of rlax, whose names these are.

    Example:
        >>> loss = policy_gradient_loss(tf.zeros((1, 2)), tf.constant([0]), tf.constant([1.0]))
        >>> round(float(loss), 4)
        0.6931
    """
    logits_t = as_floating("logits_t", logits_t)
    if logits_t.shape.rank == 0:
        raise ValueError("logits_t must have shape [..., A]; got a scalar")
    a_t, possible = _as_actions(a_t, logits_t)
    weight = _as_factor("adv_t", adv_t, logits_t)
    if use_stop_gradient:
        weight = tf.stop_gradient(weight)
    if w_t is not None:
        weight = weight * _as_factor("w_t", w_t, logits_t)
    log_pi = tf.nn.log_softmax(at_least_float32(logits_t))
    log_pi_a = tf.gather(log_pi, a_t, axis=-1, batch_dims=logits_t.shape.rank - 1)
    return -tf.reduce_mean(weight * tf.where(possible, log_pi_a, np.nan))


def _add_later(returns: tf.Tensor, carry: tf.Tensor) -> tf.Tensor:
    # Doubling: after a round with distance d each sum covers 2d rewards, so log2(T) rounds do.
    def one_round(distance: Any, returns: tf.Tensor, carry: tf.Tensor) -> tuple[Any, tf.Tensor, tf.Tensor]:
        later = returns + carry * _later(returns, distance)
        returns = tf.where(carry == 0, returns, later)
        return 2 * distance, returns, carry * _later(carry, distance)

    steps = returns.shape[0]
    if steps is None:
        shapes = (tf.TensorShape([]), returns.shape, carry.shape)
        return tf.while_loop(
            lambda distance, *_: distance < tf.shape(returns)[0], one_round, (1, returns, carry), shapes
        )[1]
    distance = 1
    while distance < steps:
        distance, returns, carry = one_round(distance, returns, carry)
    return returns


def _later(x: tf.Tensor, distance: int | tf.Tensor) -> tf.Tensor:
    later = tf.concat([x[distance:], tf.zeros_like(x[:distance])], axis=0)
    return tf.ensure_shape(later, x.shape)


def _as_factor(name: str, value: tf.Tensor, logits_t: tf.Tensor) -> tf.Tensor:
    value = as_floating(name, value)
    check_shape(name, value.shape, logits_t.shape[:-1], "logits_t without its last axis")
    return tf.cast(value, at_least_float32(logits_t).dtype)


def _as_actions(a_t: tf.Tensor, logits_t: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    a_t = as_tensor("a_t", a_t)
    if not a_t.dtype.is_integer:
        raise TypeError(f"a_t must hold integers; got {a_t.dtype.name}; remedy: tf.cast(a_t, tf.int32)")
    check_shape("a_t", a_t.shape, logits_t.shape[:-1], "logits_t without its last axis")
    a_t = tf.cast(a_t, tf.int64)
    count = tf.shape(logits_t, out_type=tf.int64)[-1]
    possible = (a_t >= 0) & (a_t < count)
    if tf.executing_eagerly() and not tf.reduce_all(possible):
        low, high = int(tf.reduce_min(a_t)), int(tf.reduce_max(a_t))
        raise ValueError(f"a_t must lie in [0, {int(count)}); got values from {low} to {high}")
    return tf.where(possible, a_t, tf.zeros_like(a_t)), possible
