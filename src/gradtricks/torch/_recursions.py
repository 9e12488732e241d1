"""A recursion through time: ``y_t = x_t + carry_t * y_(t+1)``.

Transposed it is ``y_t = x_t + carry_(t-1) * y_(t-1)``, which runs forward in time, as gradients do.
"""

import math
from typing import Any

import torch

from gradtricks._core.checks import check_number, check_shape
from gradtricks.torch._edits import as_array, with_slope
from gradtricks.torch._tensors import as_floating, at_least_float32


@torch.library.custom_op("gradtricks::accumulate", mutates_args=())
def _loop(x: torch.Tensor, carry: torch.Tensor, transposed: bool) -> torch.Tensor:
    from gradtricks._core.kernels.policy_gradients import accumulate as loop  # a compiler is dear to import

    return torch.from_numpy(loop(as_array(x), as_array(carry), transposed=transposed)).to(x.device)


@_loop.register_fake
def _loop_shape(x: torch.Tensor, carry: torch.Tensor, transposed: bool) -> torch.Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@_loop.register_vmap
def _loop_batch(
    info: Any, in_dims: tuple[int | None, ...], x: torch.Tensor, carry: torch.Tensor, transposed: bool
) -> tuple[torch.Tensor, int]:
    # Time stays the first axis, so the batch becomes the last.
    def last(x: torch.Tensor, dim: int | None) -> torch.Tensor:
        return x.movedim(dim, -1) if dim is not None else x[..., None].expand(*x.shape, info.batch_size)

    x, carry = last(x, in_dims[0]), last(carry, in_dims[1])
    return _loop(x, carry, transposed), x.ndim - 1


def _cotangents(
    gradient: torch.Tensor, y: torch.Tensor, x: torch.Tensor, carry: torch.Tensor, transposed: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    adjoint = accumulate(gradient, carry, not transposed)
    here, there = (y, adjoint) if transposed else (adjoint, y)
    return adjoint, here * _bounded(_later(there), carry)


def _tangent(
    tangents: tuple[torch.Tensor, torch.Tensor],
    y: torch.Tensor,
    x: torch.Tensor,
    carry: torch.Tensor,
    transposed: bool,
) -> torch.Tensor:
    of_x, of_carry = tangents
    if transposed:
        added = of_carry * _bounded(y, carry)
        return accumulate(of_x + torch.cat([torch.zeros_like(added[:1]), added[:-1]]), carry, transposed)
    return accumulate(of_x + of_carry * _bounded(_later(y), carry), carry, transposed)


accumulate = with_slope(_loop, _cotangents, _tangent)


def _later(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x[1:], torch.zeros_like(x[:1])])


def _bounded(later: torch.Tensor, carry: torch.Tensor) -> torch.Tensor:
    # Nothing is carried over a 0, not even an infinity.
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
    """Give a number, a scalar or a tensor the shape of ``r_t``, and at least float32."""
    dtype = at_least_float32(r_t).dtype
    if isinstance(value, torch.Tensor):
        if as_floating(name, value).ndim:
            check_shape(name, value.shape, r_t.shape, "r_t")
        return value.to(dtype).expand(r_t.shape)
    number = check_number(name, value, low=low, high=high)
    # A compiler would compile torch.full anew for each number, but not a product.
    return (number * torch.ones((), dtype=dtype, device=r_t.device)).expand(r_t.shape)
