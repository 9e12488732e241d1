"""Policy gradients on tokens: what a language model learns from a reward for each of its answers.

With the advantage ``A = (r - baseline) / scale`` the loss is the average of ``-min(rho A, clip(rho) A)`` over
tokens, where ``rho`` is ``exp(log pi - log pi_old)`` of a token, or of the sum or mean over an answer.
"""

import math

import torch

from gradtricks._core.checks import check_choice, check_interval, check_number
from gradtricks.torch import _tokens
from gradtricks.torch._edits import substitute
from gradtricks.torch._modes import stopped
from gradtricks.torch._tensors import as_floating, at_least_float32

_BASELINES, _SCALES = ("mean", "leave_one_out", "none"), ("none", "group", "batch")
_LEVELS = ("token", "sequence", "sequence_mean")
_RATIOS, _NORMALIZATIONS = (*_LEVELS, "none"), ("token", "sequence", "batch")


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
        Shape and dtype of ``rewards``. A group of one teaches nothing: less its mean it is 0.

    References:
        arXiv 2402.03300 (GRPO), 2503.20783 (Dr. GRPO), 2402.14740 (RLOO).

    Example:
        >>> group_advantages(torch.tensor([[1.0, 0.0, 0.0, 1.0]]), scale="group")
        tensor([[ 1., -1., -1.,  1.]])
    """
    rewards = as_floating("rewards", rewards)
    check_choice("baseline", baseline, _BASELINES)
    check_choice("scale", scale, _SCALES)
    _tokens.check_axis("rewards", rewards)
    size = rewards.shape[-1]
    if baseline == "leave_one_out" and size < 2:
        raise ValueError("leave_one_out must have groups of at least 2 answers; got 1")
    if scale == "none":
        wide = stopped(at_least_float32(rewards))
        advantages = wide if baseline == "none" else _tokens.centered(wide)
    else:
        advantages = _tokens.scaled(stopped(rewards), baseline, scale)
    if baseline == "leave_one_out":
        advantages = advantages * (size / (size - 1))
    return advantages.to(rewards.dtype, copy=baseline == scale == "none")


def token_policy_loss(
    log_probs: torch.Tensor,
    old_log_probs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    *,
    ratio: str = "token",
    clip: float | torch.Tensor | tuple[float | torch.Tensor, ...] | None = None,
    normalize: str = "token",
    surrogate: str = "ppo",
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
    LUSPO            ``"sequence_mean"``  (3e-4, 4e-4)  ``"batch"``
    CISPO            ``"token"``          (1.0, 4.0)    ``"token"``
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
            of them, for below (where an advantage is negative) and above (where it is positive). A third is
            the dual clip: above, where it is negative. None with ``ratio="none"``.
        normalize: As in `average_tokens`. For Dr. GRPO's constant divide the loss by it.
        surrogate: ``"cispo"`` averages ``-stop(clip(rho)) A log pi`` instead, clipped on both sides whatever
            the advantage: every token learns, with a weight that is bounded. It needs a clip and a ratio.

    Returns:
        A scalar, in the dtype of ``log_probs`` or float32 if that is wider; 0 if no token counts. The
        logarithm of a ratio is bounded to half of what the exponential can take, and has no slope beyond.

    Raises:
        ValueError: A token that counts has a log-probability above 0. Densities, which may have one, go into
            `clipped_surrogate_pg_loss`. A GPU's values aren't looked at, nor those in compiled code.

    References:
        arXiv 1707.06347 (PPO), 2402.03300 (GRPO), 2503.20783 (Dr. GRPO), 2503.14476 (DAPO),
        2507.18071 (GSPO), 1912.09729 (dual clip), 2506.13585 (CISPO); github.com/murphy4122/luspo.

    Example:
        >>> log_probs, advantages = torch.full((2, 2), -1.0, requires_grad=True), torch.tensor([1.0, -1.0])
        >>> mask = torch.tensor([[True, True], [True, False]])
        >>> loss = token_policy_loss(log_probs, log_probs, advantages, mask, normalize="sequence")
        >>> loss.item(), torch.autograd.grad(loss, log_probs)[0].tolist()
        (0.0, [[-0.25, -0.25], [0.5, 0.0]])
    """
    check_choice("ratio", ratio, _RATIOS)
    check_choice("normalize", normalize, _NORMALIZATIONS)
    _tokens.check_surrogate(surrogate, ratio, clip)
    given = _tokens.as_tokens("log_probs", log_probs)
    log_pi, weight = at_least_float32(given), _tokens.as_mask(mask, given)
    old = _tokens.as_other("old_log_probs", old_log_probs, given)
    costs = _tokens.costs_of(advantages, given)
    tame = _tokens.are_tame(weight, costs, log_probs=log_probs, old_log_probs=old_log_probs)
    linear = ratio == "none" or surrogate == "cispo"  # in log pi
    x, counts, now = log_pi, weight, stopped(log_pi)
    if not tame:  # what doesn't count may be anything
        now, old, costs = (torch.where(weight != 0, each, 0) for each in (now, old, costs))
    if ratio != "none":
        log_ratio = _tokens.log_ratio_of(now if linear else log_pi, now, old, weight, ratio, tame)
        if linear:
            costs = costs * _tokens.clipped_weight(log_ratio, clip)
        else:
            x = _tokens.clipped_ratio(log_ratio, costs, clip)
    if x.shape[-1] == costs.shape[-1] == 1:  # one ratio for all tokens of an answer
        counts = weight.sum(-1, keepdim=True)
    weighted = costs * counts
    if linear and not tame:  # what weighs nothing may be anything, and an impossible token too
        x = substitute(torch.where(weighted == 0, 0, now), log_pi)
    return _tokens.averaged(x * weighted, counts, normalize)


def kl_penalty(
    log_probs: torch.Tensor,
    reference_log_probs: torch.Tensor,
    old_log_probs: torch.Tensor | None = None,
    *,
    estimator: str = "k3",
    slope: str | None = None,
    ratio: str = "constant",
) -> torch.Tensor:
    """Estimate the divergence of the policy from a reference, sample by sample: ``KL(pi || reference)``.

    With ``d = log pi - log reference``, ``k1`` is ``d``, ``k2`` is ``d**2 / 2`` and ``k3`` is
    ``exp(-d) - 1 + d``. Over samples of the policy, ``k1`` and ``k3`` have that mean. But the expected
    gradient of ``k1`` is 0, that of ``k3`` is of ``KL(reference || pi)``, and only that of ``k2`` is of
    ``KL(pi || reference)``.

    If an older policy drew the samples, each is multiplied by ``rho = exp(log pi - log old)``. While that is
    a constant, the same holds. If it is differentiated, the gradients of ``k1`` and ``k3`` are of
    ``KL(pi || reference)``, and that of ``k2`` isn't; so also at ``rho = 1``, which has a slope.

    That holds for whole answers, whose log-probabilities are sums over tokens. A loss token by token leaves
    out that a token leads to later ones; ``k1`` in the reward doesn't.

    Args:
        log_probs: Any shape, floating-point: log-probabilities of tokens, their sums, or log-densities.
        reference_log_probs: Likewise, of the reference; no gradient.
        old_log_probs: Likewise, of the policy that drew the samples; no gradient. None is no ratio at all.
        estimator: Gives the value, and the slope too unless ``slope`` does.
        slope: The estimator whose slope is substituted.
        ratio: ``"constant"``, or ``"differentiated"``, which needs ``old_log_probs``.

    Returns:
        Shape of ``log_probs``, in its dtype or float32 if that is wider. Beside a ratio ``d`` and ``log rho``
        are bounded to half of what the exponential can take, and always the ``-d`` of ``k3``; there is no
        slope beyond. So nothing is NaN, and nothing infinite beside a ratio.

    References:
        http://joschu.net/blog/kl-approx.html; https://github.com/OpenRLHF/OpenRLHF/pull/1309.

    Example:
        >>> log_probs = torch.tensor([-1.0], requires_grad=True)
        >>> penalty = kl_penalty(log_probs, torch.tensor([-3.0]), estimator="k1", slope="k2")
        >>> penalty.item(), torch.autograd.grad(penalty, log_probs)[0].item()
        (2.0, 2.0)
    """
    check_choice("estimator", estimator, [*_tokens.ESTIMATORS])
    check_choice("slope", estimator if slope is None else slope, [*_tokens.ESTIMATORS])
    check_choice("ratio", ratio, ("constant", "differentiated"))
    if old_log_probs is None and ratio == "differentiated":
        raise ValueError('ratio="differentiated" must have old_log_probs; got None; remedy: log_probs itself')
    log_pi = at_least_float32(as_floating("log_probs", log_probs))
    d = _tokens.difference(log_pi, _tokens.as_other("reference_log_probs", reference_log_probs, log_pi))
    if old_log_probs is None:
        return _tokens.estimated(d, estimator, slope)
    rho = _tokens.bounded(
        _tokens.difference(log_pi, _tokens.as_other("old_log_probs", old_log_probs, log_pi))
    ).exp()
    rho = rho if ratio == "differentiated" else stopped(rho)
    return rho * _tokens.estimated(_tokens.bounded(d), estimator, slope)


def importance_weights(
    log_probs: torch.Tensor,
    old_log_probs: torch.Tensor,
    mask: torch.Tensor,
    *,
    level: str = "token",
    truncate: float | None = None,
    mask_outside: tuple[float, float] | None = None,
) -> torch.Tensor:
    """Say how much likelier each token, or each answer, is to the policy than to what drew it; no gradient.

    Multiply advantages with these weights where answers come from another program, or from another policy
    than ``old_log_probs`` of `token_policy_loss`: ``advantages[..., None] * weights``. Two calls may be
    multiplied: truncated by token, masked by answer.

    Args:
        log_probs: ``[..., T]``, log-probability of each token to the policy, floating-point, at most 0.
        old_log_probs: The same to what drew it, after its temperature and whatever else it applied.
        mask: As in `token_policy_loss`.
        level: The ratio of each token; of the whole answer, the product, which alone has no bias; or its
            geometric mean.
        truncate: A weight is at most that (TIS, truncated importance sampling).
        mask_outside: A pair; a weight outside of it is 0 (MIS, masked importance sampling).

    Returns:
        Shape of ``log_probs``, in its dtype or float32 if that is wider; 0 where a token doesn't count. The
        logarithm of a weight is bounded to half of what the exponential can take.

    References:
        https://fengyao.notion.site/off-policy-rl (TIS); arXiv 2510.18855 (MIS by token).

    Example:
        >>> old, mask = torch.tensor([[-1.0, -3.0]]), torch.tensor([[True, True]])
        >>> log_probs = old + torch.tensor([[2.0, 8.0]]).log()
        >>> importance_weights(log_probs, old, mask, truncate=4.0)
        tensor([[2., 4.]])
        >>> importance_weights(log_probs, old, mask, mask_outside=(0.5, 5.0))
        tensor([[2., 0.]])
    """
    check_choice("level", level, _LEVELS)
    highest = math.inf if truncate is None else check_number("truncate", truncate, low=0)
    low, high = check_interval("mask_outside", mask_outside, low=0)
    given = _tokens.as_tokens("log_probs", log_probs)
    log_pi, weight = stopped(at_least_float32(given)), _tokens.as_mask(mask, given)
    old = _tokens.as_other("old_log_probs", old_log_probs, given)
    tame = _tokens.are_tame(weight, old.new_zeros(()), log_probs=log_probs, old_log_probs=old_log_probs)
    counted = weight != 0
    if not tame:
        log_pi, old = (torch.where(counted, x, 0) for x in (log_pi, old))
    rho = _tokens.log_ratio_of(log_pi, log_pi, old, weight, level, tame).exp()
    return torch.where(counted & (rho >= low) & (rho <= high), rho.clamp(max=highest), 0)


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
    given = _tokens.as_tokens("x", x)
    weight = _tokens.as_mask(mask, given)
    return _tokens.averaged(torch.where(weight != 0, at_least_float32(given), 0) * weight, weight, normalize)
