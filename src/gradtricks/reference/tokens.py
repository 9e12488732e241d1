"""Policy gradients on tokens: advantages in groups, losses over masks, divergences by samples.

Shapes and options are those of the frameworks' functions.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradtricks.reference._arrays import as_floating

Array = NDArray[np.floating]
Clip = float | tuple[float, float] | None


def group_advantages(rewards: ArrayLike, *, baseline: str = "mean", scale: str = "none") -> Array:
    """Say how much better each answer was than the answers to the same prompt."""
    rewards = as_floating(rewards)
    mean, size = rewards.mean(-1, keepdims=True), rewards.shape[-1]
    others = (rewards.sum(-1, keepdims=True) - rewards) / max(size - 1, 1)
    advantages = rewards - {"mean": mean, "leave_one_out": others, "none": 0.0}[baseline]
    if scale == "none":
        return advantages
    axis = {"group": -1, "batch": None}[scale]
    std, magnitude = rewards.std(axis, keepdims=True), np.abs(rewards).max(axis, keepdims=True)
    constant = std <= 16 * np.finfo(rewards.dtype).eps * magnitude
    return np.where(constant, 0, advantages / np.where(constant, 1, std))


def token_policy_loss(
    log_probs: ArrayLike,
    old_log_probs: ArrayLike,
    advantages: ArrayLike,
    mask: ArrayLike,
    *,
    ratio: str = "token",
    clip: Clip = None,
    normalize: str = "token",
) -> np.floating:
    """Average ``-min(rho A, clip(rho) A)`` over the tokens that count; minimising it raises the reward."""
    factor, _ = _factor(log_probs, old_log_probs, advantages, mask, ratio, clip)
    return -average_tokens(factor * _by_token(advantages, factor), mask, normalize=normalize)


def token_policy_loss_vjp(
    cotangent: float,
    log_probs: ArrayLike,
    old_log_probs: ArrayLike,
    advantages: ArrayLike,
    mask: ArrayLike,
    *,
    ratio: str = "token",
    clip: Clip = None,
    normalize: str = "token",
) -> Array:
    """Return the gradient that reaches ``log_probs``: ``-rho A`` by token, 0 where it is clipped."""
    factor, slope = _factor(log_probs, old_log_probs, advantages, mask, ratio, clip)
    to_factor = -average_tokens_vjp(cotangent, factor, mask, normalize=normalize)
    to_log_ratio = to_factor * _by_token(advantages, factor) * slope
    if ratio in ("token", "none"):
        return to_log_ratio
    # Each token of an answer has part in the ratio of all of them.
    counted = np.asarray(mask) != 0
    count = np.maximum(counted.sum(-1, keepdims=True), 1) if ratio == "sequence_mean" else 1
    return counted * to_log_ratio.sum(-1, keepdims=True) / count


def kl_penalty(log_probs: ArrayLike, reference_log_probs: ArrayLike, *, estimator: str = "k3") -> Array:
    """Estimate the divergence of the policy from a reference, sample by sample."""
    d, _ = _compared(log_probs, reference_log_probs)
    return {"k1": d, "k2": d**2 / 2, "k3": np.expm1(-d) + d}[estimator]


def kl_penalty_vjp(
    cotangent: ArrayLike,
    log_probs: ArrayLike,
    reference_log_probs: ArrayLike,
    *,
    estimator: str = "k3",
    slope: str | None = None,
) -> Array:
    """Return the gradient that reaches ``log_probs``: the slope of ``slope``, or of ``estimator`` if None."""
    d, possible = _compared(log_probs, reference_log_probs)
    slopes = {"k1": possible.astype(d.dtype), "k2": d, "k3": -np.expm1(-d)}
    return np.asarray(cotangent) * slopes[slope or estimator]


def _compared(log_probs: ArrayLike, reference_log_probs: ArrayLike) -> tuple[Array, Array]:
    # The difference of logarithms, and whether what happened is possible to either.
    log_pi, reference = as_floating(log_probs), as_floating(reference_log_probs)
    possible = ~((log_pi == reference) & np.isinf(log_pi))
    return np.where(possible, log_pi, 0) - np.where(possible, reference, 0), possible


def average_tokens(x: ArrayLike, mask: ArrayLike, *, normalize: str = "token") -> np.floating:
    """Average what tokens have over those that count."""
    x = as_floating(x)
    return (np.where(np.asarray(mask) != 0, x, 0) * _share(x, mask, normalize)).sum()


def average_tokens_vjp(cotangent: float, x: ArrayLike, mask: ArrayLike, *, normalize: str = "token") -> Array:
    """Return the gradient that reaches ``x``: what each token weighs."""
    return cotangent * _share(as_floating(x), mask, normalize)


def _share(x: Array, mask: ArrayLike, normalize: str) -> Array:
    weight = np.asarray(mask, x.dtype)
    per_answer, answers = weight.sum(-1, keepdims=True), x[..., 0].size
    total = {"token": weight.sum(), "sequence": answers * per_answer, "batch": answers}[normalize]
    return weight / np.where(total == 0, 1, total)


def _factor(
    log_probs: ArrayLike,
    old_log_probs: ArrayLike,
    advantages: ArrayLike,
    mask: ArrayLike,
    ratio: str,
    clip: Clip,
) -> tuple[Array, Array]:
    # What the advantage is multiplied with, and its slope in the logarithm of the ratio.
    log_pi, counted = as_floating(log_probs), np.asarray(mask) != 0
    d = np.where(counted, log_pi - as_floating(old_log_probs), 0)
    if ratio == "none":
        return np.where(counted, log_pi, 0), np.ones_like(d)
    if ratio != "token":
        count = np.maximum(counted.sum(-1, keepdims=True), 1) if ratio == "sequence_mean" else 1
        d = np.broadcast_to(d.sum(-1, keepdims=True) / count, d.shape)
    rho = np.exp(d)
    if clip is None:
        return rho, rho
    low, high = clip if isinstance(clip, tuple) else (clip, clip)
    bound = np.where(_by_token(advantages, d) < 0, np.maximum(rho, 1 - low), np.minimum(rho, 1 + high))
    factor = np.where(_by_token(advantages, d) == 0, rho, bound)
    return factor, np.where(factor == rho, rho, 0)


def _by_token(advantages: ArrayLike, d: Array) -> Array:
    advantages = as_floating(advantages)
    return advantages if advantages.ndim == d.ndim else np.broadcast_to(advantages[..., None], d.shape)
