"""Rewards to returns, returns to advantages, advantages to a loss, under the names of rlax.

Returns and advantages are one recursion, whose gradient is the same one run forward in time::

    R_t = r_t + discount_t R_(t+1)        A_t = delta_t + discount_t lambda_t A_(t+1)
    loss = -mean of adv log pi(a)         gradient of the logits = adv (pi - one_hot(a)) / count
"""

import math

import torch

from gradtricks._core.checks import check_number, check_shape
from gradtricks.torch._blocks import log_probability, negative_entropy
from gradtricks.torch._modes import stopped
from gradtricks.torch._recursions import accumulate, as_coefficient, as_rewards, bounded
from gradtricks.torch._tensors import (
    as_floating,
    as_integers,
    as_scalar,
    at_least_float32,
    is_readable,
    nonzero,
    product,
)

_ROUNDING = 16  # a spread below this many units in the last place is rounding, not signal


def discounted_returns(
    r_t: torch.Tensor,
    discount_t: float | torch.Tensor,
    v_t: float | torch.Tensor = 0.0,
    *,
    stop_target_gradients: bool = False,
) -> torch.Tensor:
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
        >>> r_t = torch.tensor([0.0, 0.0, 1.0, 0.0, -1.0])
        >>> discounted_returns(r_t, 0.5 * (r_t == 0))
        tensor([ 0.2500,  0.5000,  1.0000, -0.5000, -1.0000])
    """
    r_t = as_rewards(r_t)
    wide, discount_t = at_least_float32(r_t), as_coefficient("discount_t", discount_t, r_t, high=1)
    if isinstance(v_t, torch.Tensor) or check_number("v_t", v_t) != 0:
        after = as_coefficient("v_t", v_t, r_t, low=-math.inf).expand(r_t.shape)[-1:]
        if discount_t.ndim:
            discount_t = torch.cat([discount_t, torch.zeros_like(after)])
        g_t = accumulate(torch.cat([wide, after]), discount_t, False)[:-1]
    else:
        g_t = accumulate(wide, discount_t, False)
    g_t = g_t.to(r_t.dtype)
    return stopped(g_t) if stop_target_gradients else g_t


def truncated_generalized_advantage_estimation(
    r_t: torch.Tensor,
    discount_t: float | torch.Tensor,
    lambda_: float | torch.Tensor,
    values: torch.Tensor,
    *,
    stop_target_gradients: bool = False,
) -> torch.Tensor:
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
        >>> r_t, values = torch.ones(3), torch.tensor([1.0, 2.0, 4.0, 8.0])
        >>> truncated_generalized_advantage_estimation(r_t, 0.5, 1.0, values)
        tensor([1.7500, 1.5000, 1.0000])
    """
    r_t, values = as_rewards(r_t), as_floating("values", values)
    check_shape("values", values.shape, (r_t.shape[0] + 1, *r_t.shape[1:]), "r_t with one more step")
    discount_t = as_coefficient("discount_t", discount_t, r_t, high=1)
    lambda_ = as_coefficient("lambda_", lambda_, r_t, high=1)
    v_t = values.to(discount_t.dtype)
    delta_t = r_t + discount_t * bounded(v_t[1:], discount_t) - v_t[:-1]
    adv_t = accumulate(delta_t, discount_t * lambda_, False).to(r_t.dtype)
    return stopped(adv_t) if stop_target_gradients else adv_t


def standardize(x: torch.Tensor) -> torch.Tensor:
    """Subtract the mean of all elements and divide by their (population) standard deviation.

    Backward, the gradient loses its mean and its component along the result. Where all elements are
    equal up to rounding, both the result and the gradient are zeros.

    Args:
        x: Floating-point, any shape.

    Returns:
        Shape and dtype of ``x``.

    Example:
        >>> standardize(torch.tensor([1.0, 3.0]))
        tensor([-1.,  1.])
        >>> standardize(torch.full((7,), 0.1))
        tensor([0., 0., 0., 0., 0., 0., 0.])
    """
    x = as_floating("x", x)
    wide = at_least_float32(x)
    if wide.numel() == 0:
        return x.clone()
    magnitude = stopped(wide).abs().max()
    # Squares of large values would overflow; a power of two takes no digits away.
    u = wide / nonzero(magnitude).log2().floor().exp2()
    u = u - stopped((u.max() + u.min()) / 2)  # so that the mean of equal elements has no rounding error
    centered = u - u.mean()
    variance = centered.square().mean()
    constant = variance <= (_ROUNDING * torch.finfo(u.dtype).eps) ** 2
    std = torch.where(constant, 1, variance).sqrt()  # the root of 0 has no gradient
    return torch.where(constant, 0, centered / std).to(x.dtype)


def policy_gradient_loss(
    logits_t: torch.Tensor,
    a_t: torch.Tensor,
    adv_t: torch.Tensor,
    w_t: torch.Tensor | None = None,
    *,
    use_stop_gradient: bool = True,
) -> torch.Tensor:
    """Average ``-w * adv * log pi(a)``; minimising it raises the probability of what had an advantage.

    Backward, the logits get ``w * adv * (pi - one_hot(a))`` over the count: a negative advantage lowers
    the probability of the action, whatever the sign of the loss. Logits of a large vocabulary are taken by
    blocks in eager mode, so that nothing of their size is made but their gradient.

    Args:
        logits_t: ``[..., A]``, unnormalised log-probabilities, floating-point.
        a_t: ``[...]``, integers in ``[0, A)``.
        adv_t: ``[...]``, advantages, floating-point.
        w_t: ``[...]``, weights, floating-point; None is all ones.
        use_stop_gradient: Treat the advantages as constants.

    Returns:
        A scalar, in the dtype of ``logits_t`` or float32 if that is wider.

    Raises:
        ValueError: There is nothing to average, or an action lies outside ``[0, A)``. On a GPU, in compiled
            code and under a transform the framework's own check of the indices raises instead of the last.

    Example:
        >>> policy_gradient_loss(torch.zeros(1, 2), torch.tensor([0]), torch.tensor([1.0]))
        tensor(0.6931)
    """
    logits_t = _as_logits(logits_t)
    a_t = _as_actions(a_t, logits_t)
    weight = _as_factor("adv_t", adv_t, logits_t)
    if use_stop_gradient:
        weight = stopped(weight)
    if w_t is not None:
        weight = weight * _as_factor("w_t", w_t, logits_t)
    return -product(weight, log_probability(logits_t, a_t)).mean()


def clipped_surrogate_pg_loss(
    prob_ratios_t: torch.Tensor,
    adv_t: torch.Tensor,
    epsilon: float | torch.Tensor,
    *,
    use_stop_gradient: bool = True,
) -> torch.Tensor:
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
        >>> clipped_surrogate_pg_loss(torch.tensor([1.5, 0.5]), torch.tensor([1.0, 1.0]), 0.2)
        tensor(-0.8500)
    """
    ratio = at_least_float32(as_floating("prob_ratios_t", prob_ratios_t))
    adv_t = as_floating("adv_t", adv_t).to(ratio.dtype)
    check_shape("adv_t", adv_t.shape, ratio.shape, "prob_ratios_t")
    _check_count("prob_ratios_t", ratio)
    epsilon = as_scalar("epsilon", epsilon, ratio, low=0)
    if use_stop_gradient:
        adv_t = stopped(adv_t)
    too_high, too_low = (ratio > 1 + epsilon) & (adv_t > 0), (ratio < 1 - epsilon) & (adv_t < 0)
    # Chosen by hand, so that where both terms are equal there is one rule for the slope.
    clipped = torch.where(too_high, 1 + epsilon, torch.where(too_low, 1 - epsilon, ratio))
    return -product(adv_t, clipped).mean()


def entropy_loss(logits_t: torch.Tensor, w_t: torch.Tensor | None = None) -> torch.Tensor:
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
        >>> entropy_loss(torch.zeros(1, 2))
        tensor(-0.6931)
    """
    logits_t = _as_logits(logits_t)
    costs = negative_entropy(logits_t)
    if w_t is not None:
        costs = costs * _as_factor("w_t", w_t, logits_t)
    return costs.mean()


def _as_logits(logits_t: torch.Tensor) -> torch.Tensor:
    logits_t = as_floating("logits_t", logits_t)
    if logits_t.ndim == 0:
        raise ValueError("logits_t must have shape [..., A]; got a scalar")
    _check_count("logits_t", logits_t)
    return logits_t


def _check_count(name: str, x: torch.Tensor) -> None:
    if x.numel() == 0:
        raise ValueError(f"{name} must not be empty, since a loss is an average; got {tuple(x.shape)}")


def _as_factor(name: str, value: torch.Tensor, logits_t: torch.Tensor) -> torch.Tensor:
    value = as_floating(name, value)
    check_shape(name, value.shape, logits_t.shape[:-1], "logits_t without its last axis")
    return value.to(torch.promote_types(logits_t.dtype, torch.float32))


def _as_actions(a_t: torch.Tensor, logits_t: torch.Tensor) -> torch.Tensor:
    a_t = as_integers("a_t", a_t).long()  # of unsigned ones PyTorch has no minimum
    check_shape("a_t", a_t.shape, logits_t.shape[:-1], "logits_t without its last axis")
    # Asking a GPU would wait for it; there the gather itself refuses.
    if is_readable(a_t, logits_t):
        count = logits_t.shape[-1]
        low, high = int(a_t.min()), int(a_t.max())
        if low < 0 or high >= count:
            raise ValueError(f"a_t must lie in [0, {count}); got values from {low} to {high}")
    return a_t
