"""Rewards to returns, returns to advantages, advantages to a loss."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradtricks.reference._arrays import as_floating, log_softmax

Array = NDArray[np.floating]
_ROUNDING = 16  # a spread below this many units in the last place is rounding, not signal


def discounted_returns(r_t: ArrayLike, discount_t: ArrayLike, v_t: ArrayLike = 0.0) -> Array:
    """Sum the rewards still to come, discounted: ``R_t = r_t + discount_t * R_(t+1)``."""
    r_t, carry, after = _with_end(r_t, discount_t, v_t)
    return _accumulate(np.concatenate([r_t, after]), carry)[:-1]


def discounted_returns_vjp(
    cotangent: ArrayLike, r_t: ArrayLike, discount_t: ArrayLike, v_t: ArrayLike = 0.0
) -> tuple[Array, Array, Array]:
    """Return the gradients of the arguments at each step: the same recursion, run forward in time."""
    r_t, carry, after = _with_end(r_t, discount_t, v_t)
    later = _accumulate(np.concatenate([r_t, after]), carry)[1:]
    gradient = _accumulate_transposed(as_floating(cotangent), carry)
    to_v_t = np.zeros_like(gradient)
    to_v_t[-1:] = gradient[-1:] * carry[: len(r_t)][-1:]
    return gradient, gradient * later, to_v_t


def truncated_generalized_advantage_estimation(
    r_t: ArrayLike, discount_t: ArrayLike, lambda_: ArrayLike, values: ArrayLike
) -> Array:
    """Sum the temporal-difference errors still to come, weighted by the discounts and lambdas up to them."""
    values, discount = as_floating(values), as_floating(discount_t)
    delta_t = np.asarray(r_t) + _carried(discount, values[1:]) - values[:-1]
    return _accumulate(delta_t, discount * as_floating(lambda_))


def truncated_generalized_advantage_estimation_vjp(
    cotangent: ArrayLike, r_t: ArrayLike, discount_t: ArrayLike, lambda_: ArrayLike, values: ArrayLike
) -> tuple[Array, Array, Array, Array]:
    """Return the gradients of the arguments at each step: the same recursion, run forward in time."""
    discount, values = as_floating(discount_t), as_floating(values)
    lambda_ = np.broadcast_to(lambda_, discount.shape)
    adv_t = truncated_generalized_advantage_estimation(r_t, discount, lambda_, values)
    later = np.concatenate([adv_t[1:], np.zeros_like(adv_t[:1])])
    gradient = _accumulate_transposed(as_floating(cotangent), discount * lambda_)
    to_values = np.zeros_like(values)
    to_values[:-1] -= gradient
    to_values[1:] += gradient * discount
    return gradient, gradient * (values[1:] + lambda_ * later), gradient * discount * later, to_values


def standardize(x: ArrayLike) -> Array:
    """Subtract the mean of all elements and divide by their (population) standard deviation.

    Where all elements are equal up to rounding, the result is 0.
    """
    return _standardize(as_floating(x))[0]


def standardize_vjp(cotangent: ArrayLike, x: ArrayLike) -> Array:
    """Return the gradient that reaches ``x``; zeros where `standardize` gives zeros."""
    y, std = _standardize(as_floating(x))
    if std == 0:
        return np.zeros_like(y)
    cotangent = as_floating(cotangent)
    return (cotangent - cotangent.mean() - y * (cotangent * y).mean()) / std


def policy_gradient_loss(
    logits_t: ArrayLike, a_t: ArrayLike, adv_t: ArrayLike, w_t: ArrayLike | None = None
) -> np.floating:
    """Average ``-w * adv * log pi(a)``; minimising it raises the probability of what had an advantage."""
    log_pi_a = np.take_along_axis(log_softmax(np.asarray(logits_t)), np.asarray(a_t)[..., None], axis=-1)
    return -(_weights(adv_t, w_t) * log_pi_a[..., 0]).mean()


def policy_gradient_loss_vjp(
    cotangent: float, logits_t: ArrayLike, a_t: ArrayLike, adv_t: ArrayLike, w_t: ArrayLike | None = None
) -> Array:
    """Return the gradient that reaches ``logits_t``: ``w * adv * (pi - one_hot(a))`` over the count."""
    logits = np.asarray(logits_t)
    residual = np.exp(log_softmax(logits)) - np.eye(logits.shape[-1])[np.asarray(a_t)]
    return cotangent * _weights(adv_t, w_t)[..., None] * residual / np.size(a_t)


def clipped_surrogate_pg_loss(prob_ratios_t: ArrayLike, adv_t: ArrayLike, epsilon: float) -> np.floating:
    """Average ``-min(ratio * adv, clip(ratio, 1 - epsilon, 1 + epsilon) * adv)``, the loss of PPO."""
    ratio, adv = np.asarray(prob_ratios_t), np.asarray(adv_t)
    return -np.minimum(ratio * adv, np.clip(ratio, 1 - epsilon, 1 + epsilon) * adv).mean()


def clipped_surrogate_pg_loss_vjp(
    cotangent: float, prob_ratios_t: ArrayLike, adv_t: ArrayLike, epsilon: float
) -> tuple[Array, Array]:
    """Return the gradients that reach ``prob_ratios_t``, 0 where it is clipped, and ``adv_t``."""
    ratio, adv = as_floating(prob_ratios_t), as_floating(adv_t)
    bound = np.where(adv > 0, np.minimum(ratio, 1 + epsilon), np.maximum(ratio, 1 - epsilon))
    factor = np.where(adv == 0, ratio, bound)
    return -cotangent * np.where(factor == ratio, adv, 0) / adv.size, -cotangent * factor / adv.size


def entropy_loss(logits_t: ArrayLike, w_t: ArrayLike | None = None) -> np.floating:
    """Average ``-w * H(pi)``; minimising it keeps the policy from becoming sure too soon."""
    negative_entropy = _negative_entropy(log_softmax(np.asarray(logits_t)))
    return (negative_entropy if w_t is None else negative_entropy * np.asarray(w_t)).mean()


def entropy_loss_vjp(
    cotangent: float, logits_t: ArrayLike, w_t: ArrayLike | None = None
) -> tuple[Array, Array]:
    """Return the gradients that reach ``logits_t``, ``w * pi * (log pi + H)`` over the count, and ``w_t``."""
    log_pi = log_softmax(np.asarray(logits_t))
    negative_entropy = _negative_entropy(log_pi)
    weights = cotangent * np.broadcast_to(1.0 if w_t is None else w_t, negative_entropy.shape)
    pi, count = np.exp(log_pi), negative_entropy.size
    slope = np.where(pi == 0, 0, pi * (np.where(pi == 0, 0, log_pi) - negative_entropy[..., None]))
    return weights[..., None] * slope / count, cotangent * negative_entropy / count


def _accumulate(x: Array, carry: Array) -> Array:
    y = x.copy()
    for t in range(len(x) - 2, -1, -1):
        y[t] += _carried(carry[t], y[t + 1])
    return y


def _accumulate_transposed(x: Array, carry: Array) -> Array:
    y = x.copy()
    for t in range(1, len(x)):
        y[t] += _carried(carry[t - 1], y[t - 1])
    return y


def _carried(carry: Array, y: Array) -> Array:
    return carry * np.where(carry == 0, 0, y)  # past an end nothing is carried, no infinity either


def _negative_entropy(log_pi: Array) -> Array:
    return (np.exp(log_pi) * np.where(log_pi == -np.inf, 0, log_pi)).sum(axis=-1)


def _with_end(r_t: ArrayLike, discount_t: ArrayLike, v_t: ArrayLike) -> tuple[Array, Array, Array]:
    # The value of all that comes after is like the return of one more step.
    r_t = as_floating(r_t)
    carry, values = (np.broadcast_to(np.asarray(x, r_t.dtype), r_t.shape) for x in (discount_t, v_t))
    return r_t, np.concatenate([carry, np.zeros_like(values[-1:])]), values[-1:]


def _standardize(x: Array) -> tuple[Array, float]:
    magnitude = np.abs(x).max(initial=0)
    if magnitude == 0:
        return np.zeros_like(x), 0.0
    scale = np.exp2(np.floor(np.log2(magnitude)))  # squares of large values would overflow
    u = x / scale
    u = u - (u.max() + u.min()) / 2  # so that the mean of equal elements has no rounding error
    std = u.std()
    if std <= _ROUNDING * np.finfo(x.dtype).eps:
        return np.zeros_like(x), 0.0
    return (u - u.mean()) / std, std * scale


def _weights(adv_t: ArrayLike, w_t: ArrayLike | None) -> Array:
    return np.asarray(adv_t) if w_t is None else np.asarray(adv_t) * np.asarray(w_t)
