"""Shared by what averages over tokens: masks, differences of log-probabilities, clipped ratios, averages."""

import math
from typing import Any

import torch

from gradtricks._core.checks import check_choice, check_log_probability, check_shape
from gradtricks.torch._edits import intercept, substitute
from gradtricks.torch._modes import stopped
from gradtricks.torch._tensors import (
    as_floating,
    as_scalar,
    as_tensor,
    as_wide,
    at_least_float32,
    clamped,
    is_readable,
    nonzero,
)

_ROUNDING = 16  # a spread below this many units in the last place is rounding, not signal


def centered(x: torch.Tensor) -> torch.Tensor:
    """Subtract the mean of each group."""
    # Less the first, so that the mean of equal elements has no rounding error.
    x = x - x[..., :1]
    return x - x.mean(-1, keepdim=True)


def scaled(x: torch.Tensor, baseline: str, scale: str) -> torch.Tensor:
    """Subtract the mean of each group unless the baseline is none, and divide by a deviation."""
    # Squares of float32 would overflow. The mean that comes with a deviation has no rounding error where all
    # elements are equal.
    wide = as_wide(x)
    std, mean = torch.std_mean(wide, -1, correction=0, keepdim=True)
    if scale == "batch":
        std = wide.flatten().std(correction=0)
    largest = torch.linalg.vector_norm(
        wide, torch.inf, -1 if scale == "group" else None, keepdim=scale == "group"
    )
    rounding = _ROUNDING * torch.finfo(torch.promote_types(x.dtype, torch.float32)).eps
    less = wide if baseline == "none" else wide - mean
    return (less / std).masked_fill(std <= rounding * largest, 0)


def averaged(weighted: torch.Tensor, weight: torch.Tensor, normalize: str) -> torch.Tensor:
    """Average over the last axis what has been weighted, and over the others, as `average_tokens` says."""
    if normalize == "token":
        return weighted.sum() / nonzero(weight.sum())
    sums = weighted.sum(-1)
    return (sums / nonzero(weight.sum(-1)) if normalize == "sequence" else sums).mean()


def log_ratio_of(
    log_pi: torch.Tensor, now: torch.Tensor, old: torch.Tensor, weight: torch.Tensor, level: str, tame: bool
) -> torch.Tensor:
    """Return the bounded logarithm of the ratio of each token, of its answer, or its mean over the answer.

    ``now`` is ``log_pi`` without a gradient, and a number where tokens don't count. Tame ones can't leave the
    bounds.
    """
    if tame:
        log_ratio = log_pi - old
    else:
        limit, least = now.new_tensor(_limit(now)), torch.finfo(now.dtype).min
        old = _at_least(old, least)
        log_ratio = _within(log_pi, _at_least(now, least) - old, -limit, limit, now - old)
    if level == "token":
        return log_ratio
    counted = weight.sign().abs_()  # a comparison takes four times as long
    sums = (log_ratio * counted).sum(-1, keepdim=True)
    return bounded(sums / nonzero(counted.sum(-1, keepdim=True)) if level == "sequence_mean" else sums)


def clipped_ratio(log_ratio: torch.Tensor, costs: torch.Tensor, clip: Any) -> torch.Tensor:
    """Return the ratio that costs are multiplied with: bounded on the side to which they push it."""
    if clip is not None:
        low, high, *most = _bounds(clip, log_ratio, "two or three", (2, 3))
        lowest = torch.where(costs < 0, -math.inf, low)
        highest = torch.where(costs < 0, high, most[0] if most else math.inf)
        log_ratio = log_ratio.expand(torch.broadcast_shapes(log_ratio.shape, costs.shape))
        log_ratio = _within(log_ratio, stopped(log_ratio), lowest, highest)
    return log_ratio.exp()


def _within(
    x: torch.Tensor, value: torch.Tensor, lowest: Any, highest: Any, moving: torch.Tensor | None = None
) -> torch.Tensor:
    # The value within bounds, and within them the slope of x: where what moves with it is that value still.
    # A mask that is kept would be stored as bool, for which the compiler's loops take ten times as long.
    moving = value if moving is None else moving
    value = torch.minimum(torch.maximum(value, lowest), highest)
    slope = 1 - (value - moving).sign().abs_()
    return intercept(x, lambda g, slope: g * slope, slope, linear=True, value=value)


def clipped_weight(log_ratio: torch.Tensor, clip: Any) -> torch.Tensor:
    """Return the ratio as a constant, bounded on both sides."""
    lowest, highest = _bounds(clip, log_ratio, "two", (2,))
    return torch.minimum(torch.maximum(stopped(log_ratio), lowest), highest).exp()


def difference(log_pi: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Subtract log-probabilities; an impossible one is the least number, and has no gradient."""
    least = torch.finfo(log_pi.dtype).min
    return _at_least(log_pi, least) - _at_least(other, least)


def bounded(d: torch.Tensor, *, above: bool = True) -> torch.Tensor:
    """Bound logarithms below, and above, so that products of two exponentials don't overflow."""
    limit = _limit(d)
    return clamped(d, -limit, limit) if above else _at_least(d, -limit)


def _limit(d: torch.Tensor) -> float:
    return math.log(torch.finfo(d.dtype).max) / 2


def _at_least(x: torch.Tensor, low: float) -> torch.Tensor:
    return torch.where(x < low, low, x)  # the slope of torch.clamp at a bound has changed


def _k3(d: torch.Tensor) -> torch.Tensor:
    d = bounded(d, above=False)
    return (-d).expm1() + d


ESTIMATORS = {"k1": lambda d: d, "k2": lambda d: d.square() / 2, "k3": _k3}


def estimated(d: torch.Tensor, estimator: str, slope: str | None) -> torch.Tensor:
    """Return the value of one estimator of a divergence, with the slope of another where it is named."""
    value = ESTIMATORS[estimator](d)
    return value if slope is None else substitute(value, ESTIMATORS[slope](d))


def check_surrogate(surrogate: object, ratio: str, clip: object) -> None:
    """Raise unless clip and ratio are those of the surrogate."""
    check_choice("surrogate", surrogate, ("ppo", "cispo"))
    if surrogate == "cispo" and (clip is None or ratio == "none"):
        needed = 'surrogate="cispo" must have a ratio and a clip, as in clip=(1.0, 4.0)'
        raise ValueError(f"{needed}; got ratio={ratio!r} and clip={clip}")
    if ratio == "none" and clip is not None:
        raise ValueError(f'clip must be None with ratio="none", which has no ratio; got {clip}')


def check_axis(name: str, x: torch.Tensor) -> None:
    """Raise unless there is a last axis, and something in it."""
    if x.ndim == 0 or x.numel() == 0:
        raise ValueError(f"{name} must have at least one axis and one element; got {tuple(x.shape)}")


def as_tokens(name: str, x: object) -> torch.Tensor:
    """Return a floating-point tensor that has a last axis, and something in it."""
    given = as_floating(name, x)
    check_axis(name, given)
    return given


def are_tame(weight: torch.Tensor, costs: torch.Tensor, **log_probs: torch.Tensor) -> bool:
    """Say whether all are seen to be ordinary numbers, so that nothing has to be bounded or left out.

    Raises if a token that counts has a log-probability above 0, where values can be looked at.
    """
    if not is_readable(weight, costs, *log_probs.values()):
        return False
    tame = all(map(math.isfinite, _range(costs)))
    for name, value in log_probs.items():
        low, high = _range(value)
        tame = tame and -_limit(at_least_float32(value)) <= low and high <= 0
        if not high <= 0:  # padding may be NaN
            highest = torch.where(weight != 0, stopped(value), -1).max()
            check_log_probability(name, float(highest), torch.finfo(value.dtype).eps)
    return tame


def _range(x: torch.Tensor) -> tuple[float, float]:
    low, high = stopped(x).aminmax()
    return low.item(), high.item()


def as_mask(mask: object, given: torch.Tensor) -> torch.Tensor:
    """Return a mask as weights of the tokens, without a gradient."""
    mask = as_tensor("mask", mask)
    if mask.dtype != torch.bool and not mask.dtype.is_floating_point:
        raise TypeError(f"mask must be bool or floating-point; got {mask.dtype}; remedy: mask.bool()")
    check_shape("mask", mask.shape, given.shape, "the tokens")
    return stopped(mask).to(at_least_float32(given).dtype)


def as_other(name: str, value: object, given: torch.Tensor) -> torch.Tensor:
    """Return a tensor in the shape of ``log_probs``, without a gradient."""
    value = as_floating(name, value)
    check_shape(name, value.shape, given.shape, "log_probs")
    return stopped(value).to(at_least_float32(given).dtype)


def costs_of(advantages: object, given: torch.Tensor) -> torch.Tensor:
    """Return minus the advantages, one for each token, or one for each answer as ``[..., 1]``."""
    advantages = as_floating("advantages", advantages)
    if advantages.ndim < given.ndim:
        check_shape("advantages", advantages.shape, given.shape[:-1], "log_probs without its last axis")
        advantages = advantages.unsqueeze(-1)
    else:
        check_shape("advantages", advantages.shape, given.shape, "log_probs")
    return -stopped(advantages).to(at_least_float32(given).dtype)


def _bounds(clip: Any, log_ratio: torch.Tensor, words: str, counts: tuple[int, ...]) -> list[torch.Tensor]:
    # The logarithms of 1 - low, of 1 + high, and of 1 + the bound of a dual clip.
    bounds = tuple(clip) if isinstance(clip, tuple | list) else (clip, clip)
    if len(bounds) not in counts:
        raise ValueError(f"clip must be a number or {words} of them; got {len(bounds)} of them")
    low, *others = (as_scalar("clip", bound, log_ratio, low=0) for bound in bounds)
    return [(-low.clamp(max=1)).log1p(), *(bound.log1p() for bound in others)]
