"""Rewards to returns, returns to advantages, advantages to a loss."""

from typing import Any

import torch

from gradtricks._core.checks import check_number, check_shape
from gradtricks.torch._tensors import as_floating, as_tensor, at_least_float32, in_plain_reverse

_ROUNDING = 16  # a spread below this many units in the last place is rounding, not signal


def discounted_returns(
    rewards: torch.Tensor, discount: float, *, reset_at_rewards: bool = False
) -> torch.Tensor:
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
        >>> discounted_returns(torch.tensor([0.0, 0.0, 1.0, 0.0, -1.0]), 0.5, reset_at_rewards=True)
        tensor([ 0.2500,  0.5000,  1.0000, -0.5000, -1.0000])
    """
    rewards = as_floating("rewards", rewards)
    discount = check_number("discount", discount, low=0, high=1)
    if rewards.ndim == 0:
        raise ValueError("rewards must have shape [T, ...], time first; got a scalar")
    wide = at_least_float32(rewards)
    if discount == 0:
        return rewards.clone()
    carry = discount * (wide == 0).to(wide.dtype) if reset_at_rewards else discount
    return _accumulate(wide, carry).to(rewards.dtype)


def truncated_generalized_advantage_estimation(
    r_t: torch.Tensor,
    discount_t: torch.Tensor,
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
        discount_t: Shape of ``r_t``; 0 where an episode ends, floating-point.
        lambda_: A number within [0, 1], or a floating-point tensor in the shape of ``r_t``.
        values: ``[T+1, ...]``, floating-point; the last one stands for all that comes after.
        stop_target_gradients: Treat the result as a constant.

    Returns:
        Advantages in the shape and dtype of ``r_t``.

    Raises:
        TypeError: A tensor isn't floating-point, or ``lambda_`` is neither a number nor a tensor.
        ValueError: A shape is wrong, or ``lambda_`` is a number outside [0, 1].

    References:
        ``truncated_generalized_advantage_estimation`` of rlax, whose names these are;
        https://arxiv.org/abs/1506.02438.

    Example:
        >>> r_t, discount_t, values = torch.ones(3), torch.full((3,), 0.5), torch.tensor([1.0, 2.0, 4.0, 8.0])
        >>> truncated_generalized_advantage_estimation(r_t, discount_t, 1.0, values)
        tensor([1.7500, 1.5000, 1.0000])
    """
    r_t, discount_t = as_floating("r_t", r_t), as_floating("discount_t", discount_t)
    values = as_floating("values", values)
    if r_t.ndim == 0:
        raise ValueError("r_t must have shape [T, ...], time first; got a scalar")
    check_shape("discount_t", discount_t.shape, r_t.shape, "r_t")
    check_shape("values", values.shape, (len(r_t) + 1, *r_t.shape[1:]), "r_t with one more step")
    if isinstance(lambda_, torch.Tensor):
        check_shape("lambda_", as_floating("lambda_", lambda_).shape, r_t.shape, "r_t")
    else:
        lambda_ = check_number("lambda_", lambda_, low=0, high=1)
    wide = at_least_float32(r_t)
    discount_t, values = discount_t.to(wide.dtype), values.to(wide.dtype)
    delta_t = wide + discount_t * values[1:] - values[:-1]
    adv_t = _accumulate(delta_t, (discount_t * lambda_).to(wide.dtype)).to(r_t.dtype)
    return adv_t.detach() if stop_target_gradients else adv_t


def standardize(x: torch.Tensor) -> torch.Tensor:
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
        >>> standardize(torch.tensor([1.0, 3.0]))
        tensor([-1.,  1.])
        >>> standardize(torch.full((7,), 0.1))
        tensor([0., 0., 0., 0., 0., 0., 0.])
    """
    x = as_floating("x", x)
    wide = at_least_float32(x)
    if wide.numel() == 0:
        return x.clone()
    magnitude = wide.detach().abs().max()
    # Squares of large values would overflow; a power of two takes no digits away.
    u = wide / torch.where(magnitude == 0, 1, magnitude.log2().floor().exp2())
    u = u - ((u.max() + u.min()) / 2).detach()  # so that the mean of equal elements has no rounding error
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
        ValueError: A shape is wrong, there is nothing to average, or an action lies outside ``[0, A)``. On a
            GPU, in compiled code and under a transform the framework's own check of the indices raises
            instead of the last.

    References:
        ``policy_gradient_loss`` of rlax, whose names these are.

    Example:
        >>> policy_gradient_loss(torch.zeros(1, 2), torch.tensor([0]), torch.tensor([1.0]))
        tensor(0.6931)
    """
    logits_t = _as_logits(logits_t)
    a_t = _as_actions(a_t, logits_t)
    weight = _as_factor("adv_t", adv_t, logits_t)
    if use_stop_gradient:
        weight = weight.detach()
    if w_t is not None:
        weight = weight * _as_factor("w_t", w_t, logits_t)
    log_pi = at_least_float32(logits_t).log_softmax(-1)
    log_pi_a = log_pi.gather(-1, a_t.unsqueeze(-1)).squeeze(-1)
    return -(weight * log_pi_a).mean()


def clipped_surrogate_pg_loss(
    prob_ratios_t: torch.Tensor, adv_t: torch.Tensor, epsilon: float, *, use_stop_gradient: bool = True
) -> torch.Tensor:
    """Average ``-min(ratio * adv, clip(ratio, 1 - epsilon, 1 + epsilon) * adv)``, the loss of PPO.

    Backward, a ratio gets ``-adv`` over the count, and 0 once it has gone by more than ``epsilon`` where its
    advantage drives it.

    Args:
        prob_ratios_t: Probability of each action now over that when it was chosen; any shape,
            floating-point.
        adv_t: Advantages, shape of ``prob_ratios_t``, floating-point.
        epsilon: At least 0.
        use_stop_gradient: Treat the advantages as constants.

    Returns:
        A scalar, in the dtype of ``prob_ratios_t`` or float32 if that is wider.

    Raises:
        TypeError: A tensor isn't floating-point, or ``epsilon`` isn't a number.
        ValueError: A shape is wrong, there is nothing to average, or ``epsilon`` is negative.

    References:
        ``clipped_surrogate_pg_loss`` of rlax, whose names these are; https://arxiv.org/abs/1707.06347.

    Example:
        >>> clipped_surrogate_pg_loss(torch.tensor([1.5, 0.5]), torch.tensor([1.0, 1.0]), 0.2)
        tensor(-0.8500)
    """
    ratio = at_least_float32(as_floating("prob_ratios_t", prob_ratios_t))
    adv_t = as_floating("adv_t", adv_t).to(ratio.dtype)
    check_shape("adv_t", adv_t.shape, ratio.shape, "prob_ratios_t")
    _check_count("prob_ratios_t", ratio)
    epsilon = check_number("epsilon", epsilon, low=0)
    if use_stop_gradient:
        adv_t = adv_t.detach()
    too_high, too_low = (ratio > 1 + epsilon) & (adv_t > 0), (ratio < 1 - epsilon) & (adv_t < 0)
    # Chosen by hand, so that where both terms are equal there is one rule for the slope.
    clipped = torch.where(too_high, 1 + epsilon, torch.where(too_low, 1 - epsilon, ratio))
    return -(clipped * adv_t).mean()


def entropy_loss(logits_t: torch.Tensor, w_t: torch.Tensor | None = None) -> torch.Tensor:
    """Average ``-w * H(pi)``; minimising it keeps the policy from becoming sure too soon.

    Backward, the logits get ``w * pi * (log pi + H)`` over the count. An action with a logit of ``-inf`` is
    impossible and adds nothing.

    Args:
        logits_t: ``[..., A]``, unnormalised log-probabilities, floating-point.
        w_t: ``[...]``, weights, floating-point; None is all ones.

    Returns:
        A scalar, in the dtype of ``logits_t`` or float32 if that is wider.

    Raises:
        TypeError: A tensor isn't floating-point.
        ValueError: A shape is wrong, or there is nothing to average.

    References:
        ``entropy_loss`` of rlax, whose names these are.

    Example:
        >>> entropy_loss(torch.zeros(1, 2))
        tensor(-0.6931)
    """
    logits_t = _as_logits(logits_t)
    log_pi = at_least_float32(logits_t).log_softmax(-1)
    # 0 * -inf is NaN, forward and backward.
    negative_entropy = (log_pi.exp() * torch.where(log_pi == -torch.inf, 0, log_pi)).sum(-1)
    if w_t is not None:
        negative_entropy = negative_entropy * _as_factor("w_t", w_t, logits_t)
    return negative_entropy.mean()


class _Accumulate(torch.autograd.Function):
    @staticmethod
    def forward(x: torch.Tensor, carry: torch.Tensor | float, transposed: bool) -> torch.Tensor:
        from gradtricks._core.kernels.policy_gradients import accumulate  # a compiler is dear to import

        factor = carry if isinstance(carry, float) else carry.detach().numpy()
        return torch.from_numpy(accumulate(x.detach().numpy(), factor, transposed=transposed))

    @staticmethod
    def setup_context(
        ctx: Any, inputs: tuple[torch.Tensor, torch.Tensor | float, bool], output: torch.Tensor
    ) -> None:
        _, carry, ctx.transposed = inputs
        ctx.carry = carry if isinstance(carry, float) else None
        ctx.save_for_backward(*([] if isinstance(carry, float) else [carry, output]))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None, None]:
        carry, *saved = ctx.saved_tensors or (ctx.carry,)
        adjoint = _accumulate(gradient, carry, transposed=not ctx.transposed)
        if not ctx.needs_input_grad[1]:
            return adjoint, None, None
        here, later = (*saved, adjoint) if ctx.transposed else (adjoint, *saved)
        return adjoint, here * _bounded(_later(later, 1), carry), None


def _accumulate(x: torch.Tensor, carry: torch.Tensor | float, *, transposed: bool = False) -> torch.Tensor:
    """Return ``y_t = x_t + carry_t * y_(t+1)``, or its transpose, which runs forward in time.

    ``carry`` has the shape of ``x``, or is one positive number for all.
    """
    # Of a gradient for many cotangents at once the loop would see only a wrapper.
    plain = x.device.type == "cpu" and in_plain_reverse(x)
    plain = plain and not torch._C._functorch.is_legacy_batchedtensor(x)
    if plain and (isinstance(carry, float) or in_plain_reverse(carry)):
        return _Accumulate.apply(x, carry, transposed)
    if not transposed:
        return _accumulate_by_doubling(x, carry)
    backwards = carry if isinstance(carry, float) else torch.cat([carry[-1:], carry[:-1]]).flip(0)
    return _accumulate_by_doubling(x.flip(0), backwards).flip(0)


def _accumulate_by_doubling(y: torch.Tensor, carry: torch.Tensor | float) -> torch.Tensor:
    # After a round with distance d each sum covers 2d terms, so log2(T) rounds do.
    distance = 1
    while distance < len(y):
        y = y + _carried(_later(y, distance), carry)
        carry = carry * (carry if isinstance(carry, float) else _later(carry, distance))
        distance *= 2
    return y


def _carried(later: torch.Tensor, carry: torch.Tensor | float) -> torch.Tensor:
    if not isinstance(carry, float):
        return carry * _bounded(later, carry)
    if carry >= torch.finfo(later.dtype).tiny:
        return carry * later
    return torch.where(later.isfinite(), 0, later.detach())  # 0 by underflow alone, and 0 * inf is NaN


def _later(x: torch.Tensor, distance: int) -> torch.Tensor:
    return torch.cat([x[distance:], torch.zeros_like(x[:distance])])


def _bounded(later: torch.Tensor, carry: torch.Tensor) -> torch.Tensor:
    # Nothing is carried over a 0, not even an infinity.
    return torch.where((carry == 0) & ~later.isfinite(), 0, later)


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
    return value.to(at_least_float32(logits_t).dtype)


def _as_actions(a_t: torch.Tensor, logits_t: torch.Tensor) -> torch.Tensor:
    a_t = as_tensor("a_t", a_t)
    if a_t.dtype.is_floating_point or a_t.dtype.is_complex or a_t.dtype == torch.bool:
        raise TypeError(f"a_t must hold integers; got {a_t.dtype}; remedy: a_t.long()")
    check_shape("a_t", a_t.shape, logits_t.shape[:-1], "logits_t without its last axis")
    # Asking a GPU would wait for it; there the gather itself refuses.
    if a_t.device.type == "cpu" and in_plain_reverse(logits_t):
        count = logits_t.shape[-1]
        low, high = int(a_t.min()), int(a_t.max())
        if low < 0 or high >= count:
            raise ValueError(f"a_t must lie in [0, {count}); got values from {low} to {high}")
    return a_t.long()
