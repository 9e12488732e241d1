"""Rewards to returns, returns to advantages, advantages to a loss."""

import torch

from gradtricks._checks import check_number, check_shape
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
    returns = at_least_float32(rewards)
    carry = torch.full_like(returns, discount)
    if reset_at_rewards:
        carry = torch.where(returns == 0, carry, 0)
    # Doubling: after a round with distance d each sum covers 2d rewards, so log2(T) rounds do.
    distance = 1
    while distance < len(rewards):
        returns = torch.where(carry == 0, returns, returns + carry * _later(returns, distance))
        carry = carry * _later(carry, distance)
        distance *= 2
    return returns.to(rewards.dtype)


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
        ValueError: A shape is wrong, or an action lies outside ``[0, A)``. On a GPU, in compiled code and
            under a transform the framework's own check of the indices raises instead.

    References:
        ``policy_gradient_loss`` of rlax, whose names these are.

    Example:
        >>> policy_gradient_loss(torch.zeros(1, 2), torch.tensor([0]), torch.tensor([1.0]))
        tensor(0.6931)
    """
    logits_t = as_floating("logits_t", logits_t)
    if logits_t.ndim == 0:
        raise ValueError("logits_t must have shape [..., A]; got a scalar")
    a_t = _as_actions(a_t, logits_t)
    weight = _as_factor("adv_t", adv_t, logits_t)
    if use_stop_gradient:
        weight = weight.detach()
    if w_t is not None:
        weight = weight * _as_factor("w_t", w_t, logits_t)
    log_pi = at_least_float32(logits_t).log_softmax(-1)
    log_pi_a = log_pi.gather(-1, a_t.unsqueeze(-1)).squeeze(-1)
    return -(weight * log_pi_a).mean()


def _later(x: torch.Tensor, distance: int) -> torch.Tensor:
    return torch.cat([x[distance:], torch.zeros_like(x[:distance])])


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
    if a_t.device.type == "cpu" and in_plain_reverse(logits_t) and a_t.numel():
        count = logits_t.shape[-1]
        low, high = int(a_t.min()), int(a_t.max())
        if low < 0 or high >= count:
            raise ValueError(f"a_t must lie in [0, {count}); got values from {low} to {high}")
    return a_t.long()
