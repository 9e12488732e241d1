"""Rewards to returns, returns to advantages, advantages to a loss, under the names of rlax.

Returns and advantages are one recursion, whose gradient is the same one run forward in time::

    R_t = r_t + discount_t R_(t+1)        A_t = delta_t + discount_t lambda_t A_(t+1)
    loss = -mean of adv log pi(a)         gradient of the logits = adv (pi - one_hot(a)) / count
"""

import math

import numpy as np
import tensorflow as tf

from gradtricks._core.checks import check_number, check_shape
from gradtricks.tensorflow._blocks import log_probability, negative_entropy
from gradtricks.tensorflow._edits import is_readable
from gradtricks.tensorflow._recursions import accumulate, as_coefficient, as_rewards, bounded
from gradtricks.tensorflow._tensors import (
    TENSORS,
    as_floating,
    as_integers,
    as_ranked,
    as_scalar,
    at_least_float32,
    finfo,
    nonzero,
    product,
)

_ROUNDING = 16  # a spread below this many units in the last place is rounding, not signal


def discounted_returns(
    r_t: tf.Tensor,
    discount_t: float | tf.Tensor,
    v_t: float | tf.Tensor = 0.0,
    *,
    stop_target_gradients: bool = False,
) -> tf.Tensor:
    """Sum the rewards still to come, discounted: ``R_t = r_t + discount_t * R_(t+1)``.

    Backward, the same recursion runs forward in time, and reaches all three arguments.

    Args:
        r_t: ``[T, ...]``, time first, rewards, floating-point.
        discount_t: A number within [0, 1], or a floating-point tensor, a scalar or in the shape of ``r_t``.
            At a 0 a return ends, as at the points of Pong under ``discount * (r_t == 0)``.
        v_t: Value after each step, likewise; only the last one is read, for all that comes after.
        stop_target_gradients: Treat the result as a constant.

    Returns:
        Shape and dtype of ``r_t``.

    Example:
        >>> r_t = tf.constant([0.0, 0.0, 1.0, 0.0, -1.0])
        >>> discounted_returns(r_t, 0.5 * tf.cast(r_t == 0, tf.float32)).numpy()
        array([ 0.25,  0.5 ,  1.  , -0.5 , -1.  ], dtype=float32)
    """
    r_t = as_rewards(r_t)
    wide, discount_t = at_least_float32(r_t), as_coefficient("discount_t", discount_t, r_t, high=1)
    if isinstance(v_t, TENSORS) or check_number("v_t", v_t) != 0:
        after = tf.convert_to_tensor(as_coefficient("v_t", v_t, r_t, low=-math.inf), wide.dtype)
        after = tf.broadcast_to(after, tf.shape(r_t))[-1:]
        if tf.is_tensor(discount_t):
            discount_t = tf.concat([discount_t, tf.zeros_like(after)], 0)
        g_t = accumulate(tf.concat([wide, after], 0), discount_t, False)[:-1]
    else:
        g_t = accumulate(wide, discount_t, False)
    g_t = tf.cast(g_t, r_t.dtype)
    return tf.stop_gradient(g_t) if stop_target_gradients else g_t


def truncated_generalized_advantage_estimation(
    r_t: tf.Tensor,
    discount_t: float | tf.Tensor,
    lambda_: float | tf.Tensor,
    values: tf.Tensor,
    *,
    stop_target_gradients: bool = False,
) -> tf.Tensor:
    """Sum the temporal-difference errors still to come, each weighted by the discounts and lambdas up to it.

    ``A_t = delta_t + discount_t * lambda_t * A_(t+1)`` with ``delta_t = r_t + discount_t * v_(t+1) - v_t``.
    Backward, the same recursion runs forward in time, and reaches all four arguments.

    Args:
        r_t: ``[T, ...]``, time first, rewards, floating-point.
        discount_t: As in `discounted_returns`; 0 where an episode ends.
        lambda_: Likewise.
        values: ``[T+1, ...]``, floating-point; the last one stands for all that comes after.
        stop_target_gradients: Treat the result as a constant.

    Returns:
        Advantages in the shape and dtype of ``r_t``.

    References:
        https://arxiv.org/abs/1506.02438.

    Example:
        >>> r_t, values = tf.ones(3), tf.constant([1.0, 2.0, 4.0, 8.0])
        >>> truncated_generalized_advantage_estimation(r_t, 0.5, 1.0, values).numpy()
        array([1.75, 1.5 , 1.  ], dtype=float32)
    """
    r_t, values = as_rewards(r_t), as_ranked("values", values)
    steps = None if r_t.shape[0] is None else r_t.shape[0] + 1
    check_shape("values", values.shape, (steps, *r_t.shape[1:]), "r_t with one more step")
    discount_t = as_coefficient("discount_t", discount_t, r_t, high=1)
    lambda_ = as_coefficient("lambda_", lambda_, r_t, high=1)
    r_wide = at_least_float32(r_t)
    v_t = tf.cast(values, r_wide.dtype)
    delta_t = r_wide + discount_t * bounded(v_t[1:], discount_t) - v_t[:-1]
    adv_t = tf.cast(accumulate(delta_t, discount_t * lambda_, False), r_t.dtype)
    return tf.stop_gradient(adv_t) if stop_target_gradients else adv_t


def standardize(x: tf.Tensor) -> tf.Tensor:
    """Subtract the mean of all elements and divide by their (population) standard deviation.

    Backward, the gradient loses its mean and its component along the result. Where all elements are
    equal up to rounding, both the result and the gradient are zeros.

    Args:
        x: Floating-point, any shape.

    Returns:
        Shape and dtype of ``x``.

    Example:
        >>> standardize(tf.constant([1.0, 3.0])).numpy()
        array([-1.,  1.], dtype=float32)
        >>> standardize(tf.fill((3,), 0.1)).numpy()
        array([0., 0., 0.], dtype=float32)
    """
    x = as_floating("x", x)
    wide = at_least_float32(x)
    magnitude = tf.reduce_max(tf.abs(tf.stop_gradient(wide)))
    # Squares of large values would overflow; a power of two takes no digits away.
    u = wide / 2 ** tf.floor(tf.experimental.numpy.log2(nonzero(magnitude)))
    middle = (tf.reduce_max(u) + tf.reduce_min(u)) / 2
    u = u - tf.stop_gradient(middle)  # so that the mean of equal elements has no rounding error
    centered = u - tf.reduce_mean(u)
    variance = tf.reduce_mean(tf.square(centered))
    constant = variance <= (_ROUNDING * finfo(u.dtype).eps) ** 2
    std = tf.sqrt(tf.where(~constant, variance, 1))  # the root of 0 has no gradient
    return tf.cast(tf.where(~constant, centered / std, 0), x.dtype)


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
    the probability of the action, whatever the sign of the loss. Logits of a large vocabulary are taken by
    blocks, which needs twice their memory with the gradient; not by XLA, nor where the axes that a graph
    knows aren't large by themselves.

    Args:
        logits_t: ``[..., A]``, unnormalised log-probabilities, floating-point.
        a_t: ``[...]``, integers in ``[0, A)``.
        adv_t: ``[...]``, advantages, floating-point.
        w_t: ``[...]``, weights, floating-point; None is all ones.
        use_stop_gradient: Treat the advantages as constants.

    Returns:
        A scalar, in the dtype of ``logits_t`` or float32 if that is wider.

    Raises:
        ValueError: A shape is wrong, there is nothing to average, or an action lies outside ``[0, A)``. On a
            GPU an action makes the loss NaN instead, and in a graph a size that isn't known when it is
            traced does so too.

    Example:
        >>> loss = policy_gradient_loss(tf.zeros((1, 2)), tf.constant([0]), tf.constant([1.0]))
        >>> round(float(loss), 4)
        0.6931
    """
    logits_t = _as_logits(logits_t)
    a_t, possible = _as_actions(a_t, logits_t)
    weight = _as_factor("adv_t", adv_t, logits_t)
    if use_stop_gradient:
        weight = tf.stop_gradient(weight)
    if w_t is not None:
        weight = weight * _as_factor("w_t", w_t, logits_t)
    log_pi = tf.where(possible, log_probability(logits_t, a_t), np.nan)
    return -tf.reduce_mean(product(weight, log_pi))


def clipped_surrogate_pg_loss(
    prob_ratios_t: tf.Tensor,
    adv_t: tf.Tensor,
    epsilon: float | tf.Tensor,
    *,
    use_stop_gradient: bool = True,
) -> tf.Tensor:
    """Average ``-min(ratio * adv, clip(ratio, 1 - epsilon, 1 + epsilon) * adv)``, the loss of PPO.

    Backward, a ratio gets ``-adv`` over the count, and 0 once it has gone by more than ``epsilon`` where its
    advantage drives it.

    Args:
        prob_ratios_t: Probability of each action now over that when it was chosen; any shape,
            floating-point.
        adv_t: Advantages, shape of ``prob_ratios_t``, floating-point.
        epsilon: A number, at least 0, or a floating-point tensor ``[]``.
        use_stop_gradient: Treat the advantages as constants.

    Returns:
        A scalar, in the dtype of ``prob_ratios_t`` or float32 if that is wider.

    References:
        https://arxiv.org/abs/1707.06347.

    Example:
        >>> loss = clipped_surrogate_pg_loss(tf.constant([1.5, 0.5]), tf.constant([1.0, 1.0]), 0.2)
        >>> round(float(loss), 4)
        -0.85
    """
    ratio = at_least_float32(as_floating("prob_ratios_t", prob_ratios_t))
    adv_t = tf.cast(as_floating("adv_t", adv_t), ratio.dtype)
    check_shape("adv_t", adv_t.shape, ratio.shape, "prob_ratios_t")
    _check_count("prob_ratios_t", ratio)
    epsilon = as_scalar("epsilon", epsilon, ratio, low=0)
    if use_stop_gradient:
        adv_t = tf.stop_gradient(adv_t)
    too_high, too_low = (ratio > 1 + epsilon) & (adv_t > 0), (ratio < 1 - epsilon) & (adv_t < 0)
    # Chosen by hand, so that where both terms are equal there is one rule for the slope.
    clipped = tf.where(too_high, 1 + epsilon, tf.where(too_low, 1 - epsilon, ratio))
    return -tf.reduce_mean(product(adv_t, clipped))


def entropy_loss(logits_t: tf.Tensor, w_t: tf.Tensor | None = None) -> tf.Tensor:
    """Average ``-w * H(pi)``; minimising it keeps the policy from becoming sure too soon.

    Backward, the logits get ``w * pi * (log pi + H)`` over the count. An action with a logit of ``-inf`` is
    impossible and adds nothing. Logits of a large vocabulary are taken by blocks, as in
    `policy_gradient_loss`.

    Args:
        logits_t: ``[..., A]``, unnormalised log-probabilities, floating-point.
        w_t: ``[...]``, weights, floating-point; None is all ones.

    Returns:
        A scalar, in the dtype of ``logits_t`` or float32 if that is wider.

    Example:
        >>> round(float(entropy_loss(tf.zeros((1, 2)))), 4)
        -0.6931
    """
    logits_t = _as_logits(logits_t)
    costs = negative_entropy(logits_t)
    if w_t is not None:
        costs = costs * _as_factor("w_t", w_t, logits_t)
    return tf.reduce_mean(costs)


def _as_logits(logits_t: tf.Tensor) -> tf.Tensor:
    logits_t = as_ranked("logits_t", logits_t)
    if logits_t.shape.rank == 0:
        raise ValueError("logits_t must have shape [..., A]; got a scalar")
    _check_count("logits_t", logits_t)
    return logits_t


def _check_count(name: str, x: tf.Tensor) -> None:
    if x.shape.num_elements() == 0:
        raise ValueError(f"{name} must not be empty, since a loss is an average; got {tuple(x.shape)}")


def _as_factor(name: str, value: tf.Tensor, logits_t: tf.Tensor) -> tf.Tensor:
    value = as_floating(name, value)
    check_shape(name, value.shape, logits_t.shape[:-1], "logits_t without its last axis")
    return tf.cast(value, tf.float32 if logits_t.dtype.size < 4 else logits_t.dtype)


def _as_actions(a_t: tf.Tensor, logits_t: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    a_t = tf.cast(as_integers("a_t", a_t), tf.int64)
    check_shape("a_t", a_t.shape, logits_t.shape[:-1], "logits_t without its last axis")
    count = tf.shape(logits_t, out_type=tf.int64)[-1]
    possible = (a_t >= 0) & (a_t < count)
    if is_readable(possible) and not tf.reduce_all(possible):
        low, high = int(tf.reduce_min(a_t)), int(tf.reduce_max(a_t))
        raise ValueError(f"a_t must lie in [0, {int(count)}); got values from {low} to {high}")
    return tf.where(possible, a_t, tf.zeros_like(a_t)), possible
