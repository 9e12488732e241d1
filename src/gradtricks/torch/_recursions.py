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
from gradtricks.torch._tensors import as_floating, at_least_float32, beside


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


def doubled(x: torch.Tensor, carry: torch.Tensor, transposed: bool) -> torch.Tensor:
    """Return what the compiled loop does, in log T passes of ordinary operations.

    After each pass a step knows what comes of the next 2, 4, 8 steps and so on. A ``carry`` that
    isn't finite makes NaN of the step that it carries to.
    """
    y, distance, scalar = x, 1, carry.ndim == 0
    if not scalar:
        # Products of several carries would spread it over zeros.
        carry = carry[:-1]
        broken = torch.where(carry.isfinite(), 0, math.nan)
        none = torch.zeros_like(x[:1])
        y = y + torch.cat([none, broken] if transposed else [broken, none])
        carry = torch.where(carry.isfinite(), carry, 1)
    cut = carry == 0
    while distance < len(x):
        early, late = y[:-distance], y[distance:]
        source, target = (early, late) if transposed else (late, early)
        # Far apart, a product of carries may be 0 where none of them is, and an infinity is carried on.
        moved = target + torch.where(source.isfinite(), carry * source, torch.where(cut, 0, source))
        y = torch.cat([y[:distance], moved] if transposed else [moved, y[-distance:]])
        if scalar:
            carry = carry * carry
        else:
            cut = cut[:-distance] | cut[distance:]
            carry = carry[:-distance] * carry[distance:]
        distance *= 2
    return y.clone() if y is x else y


accumulate = with_slope(
    as_operation(
        "accumulate",
        "(Tensor x, Tensor carry, bool transposed) -> Tensor",
        lambda *args: kernels.policy_gradients.accumulate(*args),
        lambda x, carry, transposed: torch.empty_like(x, memory_format=torch.contiguous_format),
        batch_axis=-1,  # time stays the first
        elsewhere=doubled,
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
        return beside(name, value.to(at_least_float32(r_t).dtype), r_t).expand(r_t.shape)
    return as_number(name, value, r_t, low=low, high=high)
