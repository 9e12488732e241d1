"""Policy gradients on tokens: advantages in groups, losses over masks, divergences by samples.

Shapes and options are those of the frameworks' functions.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradtricks._core.checks import check_log_probability
from gradtricks.reference._arrays import as_floating

Array = NDArray[np.floating]
Bools = NDArray[np.bool_]
Clip = float | tuple[float, ...] | None


def group_advantages(rewards: ArrayLike, *, baseline: str = "mean", scale: str = "none") -> Array:
    """Say how much better each answer was than the answers to the same prompt."""
    rewards = as_floating(rewards)
    _check_axis("rewards", rewards)
    mean, size = rewards.mean(-1, keepdims=True), rewards.shape[-1]
    if baseline == "leave_one_out" and size < 2:
        raise ValueError("leave_one_out must have groups of at least 2 answers; got 1")
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
    surrogate: str = "ppo",
) -> np.floating:
    """Average ``-min(rho A, clip(rho) A)`` over the tokens that count; minimising it raises the reward.

    With ``surrogate="cispo"`` average ``-clip(rho) A log pi``, of which only ``log pi`` moves.
    """
    factor, _ = _factor(log_probs, old_log_probs, advantages, mask, ratio, clip, surrogate)
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
    surrogate: str = "ppo",
) -> Array:
    """Return the gradient that reaches ``log_probs``: ``-rho A`` by token, 0 where it is clipped."""
    factor, slope = _factor(log_probs, old_log_probs, advantages, mask, ratio, clip, surrogate)
    to_factor = -average_tokens_vjp(cotangent, factor, mask, normalize=normalize)
    to_log_ratio = to_factor * _by_token(advantages, factor) * slope
    if ratio == "none" or surrogate == "cispo":
        return to_log_ratio
    if ratio != "token":  # each token of an answer has part in the ratio of all of them
        to_log_ratio = to_log_ratio.sum(-1, keepdims=True)
    return to_log_ratio * _log_ratio(log_probs, old_log_probs, np.asarray(mask) != 0, ratio)[1]


def kl_penalty(
    log_probs: ArrayLike,
    reference_log_probs: ArrayLike,
    old_log_probs: ArrayLike | None = None,
    *,
    estimator: str = "k3",
) -> Array:
    """Estimate the divergence of the policy from a reference, sample by sample, times the ratio if any."""
    d, _, rho, _ = _weighed(log_probs, reference_log_probs, old_log_probs)
    above = np.maximum(d, -_limit(d))
    return rho * {"k1": d, "k2": d**2 / 2, "k3": np.expm1(-above) + above}[estimator]


def kl_penalty_vjp(
    cotangent: ArrayLike,
    log_probs: ArrayLike,
    reference_log_probs: ArrayLike,
    old_log_probs: ArrayLike | None = None,
    *,
    estimator: str = "k3",
    slope: str | None = None,
    ratio: str = "constant",
) -> Array:
    """Return the gradient that reaches ``log_probs``: the slope of ``slope``, or of ``estimator`` if None.

    A ratio that is differentiated has a slope too.
    """
    d, moves, rho, ratio_moves = _weighed(log_probs, reference_log_probs, old_log_probs)
    limit = _limit(d)
    slopes = {
        "k1": np.ones_like(d),
        "k2": d,
        "k3": np.where(d < -limit, 0, -np.expm1(-np.maximum(d, -limit))),
    }
    of_penalty = np.where(moves, rho * slopes[slope or estimator], 0)
    penalty = kl_penalty(log_probs, reference_log_probs, old_log_probs, estimator=estimator)
    of_ratio = np.where(ratio_moves, penalty, 0) if ratio == "differentiated" else 0.0
    return np.asarray(cotangent) * (of_penalty + of_ratio)


def _weighed(
    log_probs: ArrayLike, reference_log_probs: ArrayLike, old_log_probs: ArrayLike | None
) -> tuple[Array, Bools, Array, Bools]:
    # The difference to the reference and the ratio, each with whether it moves with log_probs.
    d, moves = _compared(log_probs, reference_log_probs)
    if old_log_probs is None:
        return d, moves, np.ones_like(d), np.zeros_like(moves)
    log_ratio, ratio_moves = _compared(log_probs, old_log_probs)
    (d, inside), (log_ratio, ratio_inside) = _bounded(d), _bounded(log_ratio)
    return d, moves & inside, np.exp(log_ratio), ratio_moves & ratio_inside


def _compared(log_probs: ArrayLike, other_log_probs: ArrayLike) -> tuple[Array, Bools]:
    # The difference of logarithms, and whether what happened is possible to the policy.
    log_pi, other = as_floating(log_probs), as_floating(other_log_probs)
    least = np.finfo(log_pi.dtype).min
    return np.maximum(log_pi, least) - np.maximum(other, least), log_pi > -np.inf


def _bounded(d: Array) -> tuple[Array, Bools]:
    # Products of what is between the root of the largest number and its inverse don't overflow.
    limit = _limit(d)
    return np.clip(d, -limit, limit), np.abs(d) <= limit


def _limit(d: Array) -> float:
    return float(np.log(np.finfo(d.dtype).max) / 2)


def _log_ratio(
    log_probs: ArrayLike, old_log_probs: ArrayLike, counted: Bools, level: str
) -> tuple[Array, Array]:
    # The logarithm of the ratio of each token, or of its answer, and its slope in that of each token.
    d, possible = _compared(log_probs, old_log_probs)
    d, inside = _bounded(np.where(counted, d, 0))
    moves = counted & possible & inside
    if level == "token":
        return d, moves.astype(d.dtype)
    count = np.maximum(counted.sum(-1, keepdims=True), 1) if level == "sequence_mean" else 1
    of_answer, within = _bounded(np.broadcast_to(d.sum(-1, keepdims=True) / count, d.shape))
    return of_answer, moves * within / count


def importance_weights(
    log_probs: ArrayLike,
    old_log_probs: ArrayLike,
    mask: ArrayLike,
    *,
    level: str = "token",
    truncate: float | None = None,
    mask_outside: tuple[float, float] | None = None,
) -> Array:
    """Say how much likelier each token, or each answer, is to the policy than to what drew it."""
    counted = np.asarray(mask) != 0
    _check_log_probs(counted, log_probs=log_probs, old_log_probs=old_log_probs)
    rho = np.exp(_log_ratio(log_probs, old_log_probs, counted, level)[0])
    low, high = (0, np.inf) if mask_outside is None else mask_outside
    kept = counted & (low <= rho) & (rho <= high)
    return np.where(kept, np.minimum(rho, np.inf if truncate is None else truncate), 0)


def average_tokens(x: ArrayLike, mask: ArrayLike, *, normalize: str = "token") -> np.floating:
    """Average what tokens have over those that count."""
    x = as_floating(x)
    _check_axis("x", x)
    return (np.where(np.asarray(mask) != 0, x, 0) * _share(x, mask, normalize)).sum()


def average_tokens_vjp(cotangent: float, x: ArrayLike, mask: ArrayLike, *, normalize: str = "token") -> Array:
    """Return the gradient that reaches ``x``: what each token weighs."""
    return cotangent * _share(as_floating(x), mask, normalize)


def _check_axis(name: str, x: Array) -> None:
    if x.ndim == 0 or x.size == 0:
        raise ValueError(f"{name} must have at least one axis and one element; got {x.shape}")


def _check_log_probs(counted: Bools, **values: ArrayLike) -> None:
    for name, value in values.items():
        x = as_floating(value)
        _check_axis(name, x)
        check_log_probability(name, np.where(counted, x, -1).max(), float(np.finfo(x.dtype).eps))


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
    surrogate: str,
) -> tuple[Array, Array]:
    # What the advantage is multiplied with, and its slope in the logarithm of the ratio, or of the policy.
    log_pi, counted = as_floating(log_probs), np.asarray(mask) != 0
    _check_log_probs(counted, log_probs=log_probs, old_log_probs=old_log_probs)
    if ratio == "none":
        return np.where(counted, log_pi, 0), np.ones_like(log_pi)
    d = _log_ratio(log_pi, old_log_probs, counted, ratio)[0]
    rho = np.exp(d)
    if clip is None:
        return rho, rho
    low, high, *dual = clip if isinstance(clip, tuple) else (clip, clip)
    if surrogate == "cispo":
        weight = np.clip(rho, 1 - low, 1 + high)
        return weight * np.where(counted, log_pi, 0), weight
    punished = np.clip(rho, 1 - low, 1 + dual[0] if dual else np.inf)
    bound = np.where(_by_token(advantages, d) < 0, punished, np.minimum(rho, 1 + high))
    factor = np.where(_by_token(advantages, d) == 0, rho, bound)
    return factor, np.where(factor == rho, rho, 0)


def _by_token(advantages: ArrayLike, d: Array) -> Array:
    advantages = as_floating(advantages)
    return advantages if advantages.ndim == d.ndim else np.broadcast_to(advantages[..., None], d.shape)
