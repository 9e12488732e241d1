"""Rewards to returns, returns to advantages, advantages to a loss."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradtricks.reference._arrays import as_floating, log_softmax

_ROUNDING = 16  # a spread below this many units in the last place is rounding, not signal


def discounted_returns(
    rewards: ArrayLike, discount: float, *, reset_at_rewards: bool = False
) -> NDArray[np.floating]:
    """Sum the rewards still to come, each discounted by its distance: ``R_t = r_t + discount * R_(t+1)``.

    Args:
        rewards: ``[T, ...]``, time first.
        discount: Within [0, 1].
        reset_at_rewards: Start a new sum at every nonzero reward, as between the points of Pong.

    Returns:
        Shape of ``rewards``.
    """
    rewards = as_floating(rewards)
    carry = _carry(rewards, discount, reset_at_rewards)
    returns = rewards.copy()
    for t in range(len(rewards) - 2, -1, -1):
        returns[t] = np.where(carry[t] == 0, rewards[t], rewards[t] + carry[t] * returns[t + 1])
    return returns


def discounted_returns_vjp(
    cotangent: ArrayLike, rewards: ArrayLike, discount: float, *, reset_at_rewards: bool = False
) -> NDArray[np.floating]:
    """Return the gradient that reaches ``rewards``: the same recursion, run forward in time.

    Args:
        cotangent: Shape of ``rewards``.
        rewards: ``[T, ...]``, time first.
        discount: Within [0, 1].
        reset_at_rewards: As in `discounted_returns`.

    Returns:
        Shape of ``rewards``.
    """
    carry = _carry(as_floating(rewards), discount, reset_at_rewards)
    gradient = as_floating(cotangent).copy()
    for t in range(1, len(gradient)):
        gradient[t] += carry[t - 1] * gradient[t - 1]
    return gradient


def standardize(x: ArrayLike) -> NDArray[np.floating]:
    """Subtract the mean of all elements and divide by their (population) standard deviation.

    Args:
        x: Any shape.

    Returns:
        Shape of ``x``; zeros where all elements are equal up to rounding.
    """
    return _standardize(as_floating(x))[0]


def standardize_vjp(cotangent: ArrayLike, x: ArrayLike) -> NDArray[np.floating]:
    """Return the gradient that reaches ``x``; zeros where `standardize` gives zeros.

    Args:
        cotangent: Shape of ``x``.
        x: Any shape.

    Returns:
        Shape of ``x``.
    """
    y, std = _standardize(as_floating(x))
    if std == 0:
        return np.zeros_like(y)
    cotangent = as_floating(cotangent)
    return (cotangent - cotangent.mean() - y * (cotangent * y).mean()) / std


def policy_gradient_loss(
    logits_t: ArrayLike, a_t: ArrayLike, adv_t: ArrayLike, w_t: ArrayLike | None = None
) -> np.floating:
    """Average ``-w * adv * log pi(a)``; minimising it raises the probability of what had an advantage.

    Args:
        logits_t: ``[..., A]``, unnormalised log-probabilities.
        a_t: ``[...]``, integers in ``[0, A)``.
        adv_t: ``[...]``.
        w_t: ``[...]``; None is all ones.

    Returns:
        A scalar.
    """
    log_pi_a = np.take_along_axis(log_softmax(np.asarray(logits_t)), np.asarray(a_t)[..., None], axis=-1)
    return -(_weights(adv_t, w_t) * log_pi_a[..., 0]).mean()


def policy_gradient_loss_vjp(
    cotangent: float, logits_t: ArrayLike, a_t: ArrayLike, adv_t: ArrayLike, w_t: ArrayLike | None = None
) -> NDArray[np.floating]:
    """Return the gradient that reaches ``logits_t``: ``w * adv * (pi - one_hot(a))`` over the count.

    Args:
        cotangent: A scalar.
        logits_t: ``[..., A]``.
        a_t: ``[...]``.
        adv_t: ``[...]``.
        w_t: ``[...]``; None is all ones.

    Returns:
        ``[..., A]``.
    """
    logits = np.asarray(logits_t)
    residual = np.exp(log_softmax(logits)) - np.eye(logits.shape[-1])[np.asarray(a_t)]
    return cotangent * _weights(adv_t, w_t)[..., None] * residual / np.size(a_t)


def _carry(rewards: NDArray[np.floating], discount: float, reset: bool) -> NDArray[np.floating]:
    keep = rewards == 0 if reset else np.ones_like(rewards, dtype=bool)
    return np.where(keep, discount, 0.0).astype(rewards.dtype)


def _standardize(x: NDArray[np.floating]) -> tuple[NDArray[np.floating], float]:
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


def _weights(adv_t: ArrayLike, w_t: ArrayLike | None) -> NDArray[np.floating]:
    return np.asarray(adv_t) if w_t is None else np.asarray(adv_t) * np.asarray(w_t)
