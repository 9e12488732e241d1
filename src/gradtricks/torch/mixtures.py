"""The likelihood of a mixture density network.

With responsibilities ``r = softmax(log pi + log N(y; loc, sigma))`` and ``sigma = scale + scale_floor``::

    loss = -logsumexp(log pi + log N(y; loc, sigma))
    gradients: pi - r for the logits, and r times those of -log N for each loc and sigma
"""

import math

import torch

from gradtricks._core.checks import check_shape
from gradtricks.torch._modes import stopped
from gradtricks.torch._tensors import as_floating, as_scalar, at_least_float32, is_readable


def mixture_density_nll(
    logits: torch.Tensor,
    loc: torch.Tensor,
    scale: torch.Tensor,
    y: torch.Tensor,
    *,
    scale_floor: float | torch.Tensor,
) -> torch.Tensor:
    """Minus the log-density of ``y`` in a Gaussian mixture with weights ``softmax(logits)``.

    Backward, each component gets its own gradient times its responsibility for ``y``; one that has none
    gets exactly 0, however small its sigma.

    Sigma is ``scale + scale_floor``: use that to sample, too. Below a maximum of the two a scale would get no
    gradient. The floor has the units of ``y``: try a thousandth of its spread.

    Args:
        logits: ``[..., K]``, unnormalised log-probabilities, floating-point; ``-inf`` takes a component out.
        loc: ``[..., K]``, or ``[..., K, D]`` for vectors ``y`` and diagonal covariances.
        scale: Shape of ``loc``, at least 0, say a softplus. Others raise; on a GPU, in compiled code and
            under a transform they make the loss NaN.
        y: ``[...]``, or ``[..., D]``.
        scale_floor: Smallest sigma, a number of at least 0, or a scalar tensor, which isn't checked. At 0 the
            density is unbounded, and scales must be positive.

    Returns:
        ``[...]``, one value for each example, not averaged, in the dtype of ``logits`` or float32 if that is
        wider. It is finite for finite ``y - loc``: beyond 7e12 sigmas (float64: 6e102), where squares begin
        to overflow, it goes on as a logarithm. So is the gradient, from a floor of 1e-12 on.

    References:
        Bishop, Mixture density networks, 1994, https://publications.aston.ac.uk/id/eprint/373/.

    Example:
        >>> logits, loc, scale = torch.zeros(1, 2), torch.tensor([[-1.0, 1.0]]), torch.ones(1, 2)
        >>> mixture_density_nll(logits, loc, scale, torch.tensor([0.0]), scale_floor=1e-3)
        tensor([1.4189])
    """
    logits = at_least_float32(as_floating("logits", logits))
    if len(logits.shape) == 0 or logits.shape[-1] == 0:
        raise ValueError(f"logits must have shape [..., K] with K of at least 1; got {tuple(logits.shape)}")
    loc, scale, y = _as_components(logits, loc, scale, y)
    sigma = _as_sigma(scale, scale_floor)
    distance, log_pi = y.unsqueeze(-2) - loc, logits.log_softmax(-1)
    # Where a component has no responsibility, its own gradient may overflow, and 0 * inf is NaN. It is
    # therefore taken out before its density, not after.
    joint = stopped(log_pi) + _log_density(stopped(distance), stopped(sigma))
    idle = joint.softmax(-1) == 0
    distance = torch.where(idle.unsqueeze(-1), 0, distance)
    sigma = torch.where(idle.unsqueeze(-1), 1, sigma)
    # Backward logsumexp takes exp(x - result), where the rounding of a large result would count. The clamp
    # is for a y that nothing explains: minus infinity less itself would be NaN.
    top = joint.amax(-1, keepdim=True).clamp(min=torch.finfo(joint.dtype).min)
    joint = torch.where(idle, -math.inf, log_pi + _log_density(distance, sigma))
    return -((joint - top).logsumexp(-1) + top.squeeze(-1))


def _log_density(distance: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
    limit = torch.finfo(sigma.dtype).max ** (1 / 3)
    edge = limit * sigma
    far = distance.abs() > edge
    z = torch.where(far, 0, distance) / sigma
    excess = torch.where(far, distance.abs(), 1).log() - torch.where(far, edge, 1).log()
    square = torch.where(far, limit**2 * (1 + 2 * excess), z.square())
    return -(square / 2 + sigma.log() + math.log(2 * math.pi) / 2).sum(-1)


def _as_components(
    logits: torch.Tensor, loc: torch.Tensor, scale: torch.Tensor, y: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    loc, scale, y = (
        as_floating(name, value).to(logits.dtype)
        for name, value in {"loc": loc, "scale": scale, "y": y}.items()
    )
    univariate = loc.ndim <= logits.ndim
    vector = () if univariate else loc.shape[-1:]
    check_shape("loc", loc.shape, (*logits.shape, *vector), "logits, plus an axis D if y holds vectors")
    check_shape("scale", scale.shape, loc.shape, "loc")
    check_shape("y", y.shape, (*logits.shape[:-1], *vector), "loc without its axis K")
    return (loc[..., None], scale[..., None], y[..., None]) if univariate else (loc, scale, y)


def _as_sigma(scale: torch.Tensor, scale_floor: float | torch.Tensor) -> torch.Tensor:
    floor = as_scalar("scale_floor", scale_floor, scale, low=0)
    sigma = scale + floor
    possible = (scale >= 0) & (sigma > 0) & (sigma < math.inf)
    # Asking a GPU would wait for it.
    if is_readable(scale, floor) and not possible.all():
        wrong = scale.detach()[~possible][0].item()
        vanishes = floor < torch.finfo(sigma.dtype).tiny
        least = f"above 0 as scale_floor is {float(scale_floor):g}" if vanishes else "at least 0"
        raise ValueError(f"scale must be finite and {least}; got {wrong}; remedy: a softplus")
    return torch.where(possible, sigma, math.nan)
