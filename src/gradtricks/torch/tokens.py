"""Policy gradients on tokens: what a language model learns from a reward for each of its answers.

With the advantage ``A = (r - baseline) / scale`` the loss is the average of ``-min(rho A, clip(rho) A)`` over
tokens, where ``rho`` is ``exp(log pi - log pi_old)`` of a token, or of the sum or mean over an answer.
"""

from typing import Any

import torch

from gradtricks._core.checks import check_choice, check_shape
from gradtricks.torch._edits import substitute
from gradtricks.torch._modes import stopped
from gradtricks.torch._tensors import as_floating, as_scalar, as_tensor, at_least_float32, nonzero

_BASELINES, _SCALES = ("mean", "leave_one_out", "none"), ("none", "group", "batch")
_RATIOS, _NORMALIZATIONS = ("token", "sequence", "sequence_mean", "none"), ("token", "sequence", "batch")
_ESTIMATORS = {"k1": lambda d: d, "k2": lambda d: d.square() / 2, "k3": lambda d: (-d).expm1() + d}
_ROUNDING = 16  # a spread below this many units in the last place is rounding, not signal


def group_advantages(rewards: torch.Tensor, *, baseline: str = "mean", scale: str = "none") -> torch.Tensor:
    """Say how much better each answer was than the answers to the same prompt; no gradient.

    =========  ===================  ===========
    method     ``baseline``         ``scale``
    =========  ===================  ===========
    GRPO       ``"mean"``           ``"group"``
    Dr. GRPO   ``"mean"``           ``"none"``
    RLOO       ``"leave_one_out"``  ``"none"``
    REINFORCE  ``"none"``           ``"none"``
    =========  ===================  ===========

    Args:
        rewards: ``[..., G]``, floating-point; the last axis holds the answers to one prompt.
        baseline: What is subtracted: the mean of the group, or of the others in it; or nothing.
        scale: What divides: nothing, or the (population) standard deviation in the group or in the batch;
            where all are equal, advantages are 0.

    Returns:
        Shape and dtype of ``rewards``.

    References:
        arXiv 2402.03300 (GRPO), 2503.20783 (Dr. GRPO), 2402.14740 (RLOO).

    Example:
        >>> group_advantages(torch.tensor([[1.0, 0.0, 0.0, 1.0]]), scale="group")
        tensor([[ 1., -1., -1.,  1.]])
    """
    rewards = as_floating("rewards", rewards)
    check_choice("baseline", baseline, _BASELINES)
    check_choice("scale", scale, _SCALES)
    _check_axis("rewards", rewards)
    wide, size = stopped(at_least_float32(rewards)), rewards.shape[-1]
    advantages = wide if baseline == "none" else _centered(wide, -1)
    if baseline == "leave_one_out":
        if size < 2:
            raise ValueError("leave_one_out must have groups of at least 2 answers; got 1")
        advantages = advantages * (size / (size - 1))
    if scale != "none":
        std = _deviation(wide, -1) if scale == "group" else _deviation(wide.flatten(), 0)
        advantages = torch.where(std == 0, 0, advantages / nonzero(std))
    return advantages.to(rewards.dtype, copy=True)


def token_policy_loss(
    log_probs: torch.Tensor,
    old_log_probs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    *,
    ratio: str = "token",
    clip: float | torch.Tensor | tuple[float | torch.Tensor, float | torch.Tensor] | None = None,
    normalize: str = "token",
) -> torch.Tensor:
    """Average ``-min(rho A, clip(rho) A)`` over the tokens that count; minimising it raises the reward.

    Backward, a log-probability gets ``-rho A`` times its weight, and 0 where it is clipped. Before anything
    is learned from the answers ``rho`` is 1, so the loss is minus an average of the advantages: with
    ``normalize="sequence"`` 0, if those of a group add up to 0. The gradient isn't.

    ===============  ===================  ============  ==============
    method           ``ratio``            ``clip``      ``normalize``
    ===============  ===================  ============  ==============
    REINFORCE, RLOO  ``"none"``           None          ``"batch"``
    the same         ``"sequence"``       None          ``"sequence"``
    PPO              ``"token"``          0.2           ``"token"``
    GRPO             ``"token"``          0.2           ``"sequence"``
    DAPO             ``"token"``          (0.2, 0.28)   ``"token"``
    Dr. GRPO         ``"token"``          0.2           ``"batch"``
    GSPO             ``"sequence_mean"``  (3e-4, 4e-4)  ``"sequence"``
    ===============  ===================  ============  ==============

    Args:
        log_probs: ``[..., T]``, log-probability of each token now, floating-point.
        old_log_probs: The same when it was drawn; no gradient. Give ``log_probs`` itself if nothing was
            learned since.
        advantages: ``[...]``, one for each answer, or ``[..., T]``; no gradient.
        mask: ``[..., T]``, bool, or floating-point weights; 0 where a token doesn't count, whatever is there.
        ratio: Of each token; of the whole answer, the product; its geometric mean; or ``"none"``: ``log pi``
            instead of ``rho``. Combine an answer's with ``normalize="sequence"``, which counts it once.
        clip: By how far a ratio may leave 1 before its gradient stops; a number or a tensor ``[]``, or a pair
            of them, for below and above; None with ``ratio="none"``.
        normalize: As in `average_tokens`. For Dr. GRPO's constant divide the loss by it.

    Returns:
        A scalar, in the dtype of ``log_probs`` or float32 if that is wider.

    References:
        arXiv 1707.06347 (PPO), 2402.03300 (GRPO), 2503.20783 (Dr. GRPO), 2503.14476 (DAPO), 2507.18071.

    Example:
        >>> log_probs, advantages = torch.full((2, 2), -1.0, requires_grad=True), torch.tensor([1.0, -1.0])
        >>> mask = torch.tensor([[True, True], [True, False]])
        >>> loss = token_policy_loss(log_probs, log_probs, advantages, mask, normalize="sequence")
        >>> loss.item(), torch.autograd.grad(loss, log_probs)[0].tolist()
        (0.0, [[-0.25, -0.25], [0.5, 0.0]])
    """
    check_choice("ratio", ratio, _RATIOS)
    check_choice("normalize", normalize, _NORMALIZATIONS)
    given = as_floating("log_probs", log_probs)
    _check_axis("log_probs", given)
    log_pi, weight = at_least_float32(given), _as_mask(mask, given)
    counted, old = weight != 0, _as_other("old_log_probs", old_log_probs, given)
    if as_floating("advantages", advantages).ndim < given.ndim:
        check_shape("advantages", advantages.shape, given.shape[:-1], "log_probs without its last axis")
        advantages = advantages.unsqueeze(-1).expand(given.shape)
    costs = torch.where(counted, -_as_other("advantages", advantages, given), 0)
    if ratio == "none":
        if clip is not None:
            raise ValueError(f'clip must be None with ratio="none", which has no ratio; got {clip}')
        return _averaged(torch.where(costs == 0, 0, log_pi) * costs, weight, normalize)
    log_ratio = log_pi - old  # of what doesn't count too; but that costs nothing
    if ratio != "token":
        log_ratio = torch.where(counted, log_ratio, 0).sum(-1, keepdim=True)
    if ratio == "sequence_mean":
        log_ratio = log_ratio / nonzero(counted.to(log_pi.dtype).sum(-1, keepdim=True))
    return _averaged(_clipped(log_ratio, costs, clip) * costs, weight, normalize)


def kl_penalty(
    log_probs: torch.Tensor,
    reference_log_probs: torch.Tensor,
    *,
    estimator: str = "k3",
    slope: str | None = None,
) -> torch.Tensor:
    """Estimate the divergence of the policy from a reference, sample by sample: ``KL(pi || reference)``.

    With ``d = log pi - log reference``, ``k1`` is ``d``, ``k2`` is ``d**2 / 2`` and ``k3`` is
    ``exp(-d) - 1 + d``. Over samples of the policy, ``k1`` and ``k3`` have that mean. But the expected
    gradient of ``k1`` is 0, that of ``k3`` is of ``KL(reference || pi)``, and only that of ``k2`` is of
    ``KL(pi || reference)``. Times a ratio that is differentiated too, that of ``k1`` and of ``k3`` is.

    That holds for whole answers, whose log-probabilities are sums over tokens. A loss token by token leaves
    out that a token leads to later ones; ``k1`` in the reward doesn't.

    Args:
        log_probs: Any shape, floating-point: log-probabilities of tokens, or their sums.
        reference_log_probs: Likewise, of the reference; no gradient.
        estimator: Gives the value, and the slope too unless ``slope`` does.
        slope: The estimator whose slope is substituted.

    Returns:
        Shape of ``log_probs``, in its dtype or float32 if that is wider.

    References:
        http://joschu.net/blog/kl-approx.html; https://github.com/OpenRLHF/OpenRLHF/pull/1309.

    Example:
        >>> log_probs = torch.tensor([-1.0], requires_grad=True)
        >>> penalty = kl_penalty(log_probs, torch.tensor([-3.0]), estimator="k1", slope="k2")
        >>> penalty.item(), torch.autograd.grad(penalty, log_probs)[0].item()
        (2.0, 2.0)
    """
    check_choice("estimator", estimator, [*_ESTIMATORS])
    log_pi = at_least_float32(as_floating("log_probs", log_probs))
    reference = _as_other("reference_log_probs", reference_log_probs, log_pi)
    impossible = (log_pi == reference) & log_pi.isinf()  # to both: no difference, and no gradient
    log_pi, reference = (torch.where(impossible, 0, x) for x in (log_pi, reference))
    d = log_pi - reference
    value = _ESTIMATORS[estimator](d)
    if slope is None:
        return value
    check_choice("slope", slope, [*_ESTIMATORS])
    return substitute(value, _ESTIMATORS[slope](d))


def average_tokens(x: torch.Tensor, mask: torch.Tensor, *, normalize: str = "token") -> torch.Tensor:
    """Average what tokens have over those that count.

    ``"token"`` averages over all tokens of the batch; ``"sequence"`` over each answer, then over answers, so
    that a token of a long answer weighs less; ``"batch"`` sums over each answer and averages over answers:
    of terms that each belong to a token, only this has the gradient of the expected reward.

    Args:
        x: ``[..., T]``, floating-point.
        mask: As in `token_policy_loss`.
        normalize: Which average. An answer without a token counts as an answer.

    Returns:
        A scalar, in the dtype of ``x`` or float32 if that is wider; 0 if no token counts.

    Example:
        >>> x, mask = torch.tensor([[1.0, 3.0], [5.0, 7.0]]), torch.tensor([[True, True], [True, False]])
        >>> [average_tokens(x, mask, normalize=name).item() for name in ("token", "sequence", "batch")]
        [3.0, 3.5, 4.5]
    """
    check_choice("normalize", normalize, _NORMALIZATIONS)
    given = as_floating("x", x)
    _check_axis("x", given)
    weight = _as_mask(mask, given)
    return _averaged(torch.where(weight != 0, at_least_float32(given), 0), weight, normalize)


def _averaged(x: torch.Tensor, weight: torch.Tensor, normalize: str) -> torch.Tensor:
    sums, weights = (x * weight).sum(-1), weight.sum(-1)
    if normalize == "token":
        return sums.sum() / nonzero(weights.sum())
    return (sums / nonzero(weights) if normalize == "sequence" else sums).mean()


def _clipped(log_ratio: torch.Tensor, costs: torch.Tensor, clip: Any) -> torch.Tensor:
    # Bounded before the exponential, which may be infinite: 0 times that is NaN.
    log_ratio = torch.where(costs == 0, 0, log_ratio)
    if clip is not None:
        both = tuple(clip) if isinstance(clip, tuple | list) else (clip, clip)
        if len(both) != 2:
            raise ValueError(f"clip must be a number or a pair of them; got {len(both)} of them")
        low, high = (as_scalar("clip", bound, log_ratio, low=0) for bound in both)
        lowest, highest = (-low.clamp(max=1)).log1p(), high.log1p()
        bound = torch.where(costs < 0, highest, lowest)
        beyond = torch.where(costs < 0, log_ratio > bound, log_ratio < bound)
        log_ratio = torch.where(beyond, bound, log_ratio)  # the slope of torch.clamp at a bound has changed
    return log_ratio.exp()


def _centered(x: torch.Tensor, axis: int) -> torch.Tensor:
    # Less the first, so that the mean of equal elements has no rounding error.
    x = x - x.narrow(axis, 0, 1)
    return x - x.mean(axis, keepdim=True)


def _deviation(x: torch.Tensor, axis: int) -> torch.Tensor:
    centered, magnitude = _centered(x, axis), x.abs().amax(axis, keepdim=True)
    largest = nonzero(centered.abs().amax(axis, keepdim=True))  # squares would overflow
    std = (centered / largest).square().mean(axis, keepdim=True).sqrt() * largest
    return torch.where(std <= _ROUNDING * torch.finfo(x.dtype).eps * magnitude, 0, std)


def _check_axis(name: str, x: torch.Tensor) -> None:
    if x.ndim == 0 or x.numel() == 0:
        raise ValueError(f"{name} must have at least one axis and one element; got {tuple(x.shape)}")


def _as_mask(mask: object, given: torch.Tensor) -> torch.Tensor:
    mask = as_tensor("mask", mask)
    if mask.dtype != torch.bool and not mask.dtype.is_floating_point:
        raise TypeError(f"mask must be bool or floating-point; got {mask.dtype}; remedy: mask.bool()")
    check_shape("mask", mask.shape, given.shape, "the tokens")
    return stopped(mask).to(at_least_float32(given).dtype)


def _as_other(name: str, value: object, given: torch.Tensor) -> torch.Tensor:
    value = as_floating(name, value)
    check_shape(name, value.shape, given.shape, "log_probs")
    return stopped(value).to(at_least_float32(given).dtype)
