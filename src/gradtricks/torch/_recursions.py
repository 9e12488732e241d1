"""A recursion through time: ``y_t = x_t + carry_t * y_(t+1)``.

Transposed it is ``y_t = x_t + carry_(t-1) * y_(t-1)``, which runs forward in time, as gradients do.
"""

import math

import torch

from gradtricks._core import kernels
from gradtricks._core.checks import check_shape
from gradtricks.torch._edits import with_slope
from gradtricks.torch._loops import as_operation
from gradtricks.torch._tensors import as_coefficient as as_number
from gradtricks.torch._tensors import as_floating, at_least_float32


def _cotangents(
    gradient: torch.Tensor, y: torch.Tensor, x: torch.Tensor, carry: torch.Tensor, transposed: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    adjoint = accumulate(gradient, carry, not transposed)
    if carry.ndim == 0:
        return adjoint, None
    here, there = (y, adjoint) if transposed else (adjoint, y)
    return adjoint, here * bounded(_later(there), carry)


def _tangent(
    tangents: tuple[torch.Tensor, torch.Tensor],
    y: torch.Tensor,
    x: torch.Tensor,
    carry: torch.Tensor,
    transposed: bool,
) -> torch.Tensor:
    of_x, of_carry = tangents
    if transposed:
        added = of_carry * bounded(y, carry)
        return accumulate(of_x + torch.cat([torch.zeros_like(added[:1]), added[:-1]]), carry, transposed)
    return accumulate(of_x + of_carry * bounded(_later(y), carry), carry, transposed)


accumulate = with_slope(
    as_operation(
        "accumulate",
        "(Tensor x, Tensor carry, bool transposed) -> Tensor",
        lambda *args: kernels.policy_gradients.accumulate(*args),
        lambda x, carry, transposed: torch.empty_like(x, memory_format=torch.contiguous_format),
        batch_axis=-1,  # time stays the first
    ),
    _cotangents,
    _tangent,
)


def _later(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x[1:], torch.zeros_like(x[:1])])


def bounded(later: torch.Tensor, carry: torch.Tensor) -> torch.Tensor:
    """Return ``later``, of which nothing is carried over a 0, not even an infinity or NaN."""
    return torch.where((carry == 0) & ~later.isfinite(), 0, later)


def as_rewards(r_t: torch.Tensor) -> torch.Tensor:
    """Return ``r_t`` if it is floating-point and has a time axis."""
    r_t = as_floating("r_t", r_t)
    if r_t.ndim == 0:
        raise ValueError("r_t must have shape [T, ...], time first; got a scalar")
    return r_t


def as_coefficient(
    name: str, value: float | torch.Tensor, r_t: torch.Tensor, *, low: float = 0, high: float = math.inf
) -> torch.Tensor:
    """Give a tensor the shape of ``r_t``; of a number make a scalar; at least float32."""
    if isinstance(value, torch.Tensor):
        if as_floating(name, value).ndim:
            check_shape(name, value.shape, r_t.shape, "r_t")
        return value.to(at_least_float32(r_t).dtype).expand(r_t.shape)
    return as_number(name, value, r_t, low=low, high=high)
