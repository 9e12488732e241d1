"""Ranks that have a gradient, and the correlation of ranks."""

import math
import sys
from typing import Any

import numpy as np
import torch

from gradtricks._core.checks import check_axis, check_number, check_shape
from gradtricks.torch._edits import as_array, in_plain_reverse, refuse_compiled_duals
from gradtricks.torch._tensors import as_floating, at_least_float32, in_gradient_batch

_GAPS = 2.0  # default strength, in usual gaps between neighbours


def soft_rank(x: torch.Tensor, *, regularization_strength: float, axis: int = -1) -> torch.Tensor:
    """Rank softly, smallest 1; passes each element what its gradient has beyond the mean of its block.

    The ranks are the point of the permutahedron, the convex hull of all rankings, that is nearest to
    ``x / regularization_strength``. Elements that are too near to each other for hard ranks form a block.
    Within a block the ranks are linear in ``x``, so their second derivative is zero. An element alone in its
    block has a hard rank and gets no gradient. Equal elements share their rank.

    Args:
        x: Floating-point, any shape but a scalar. A row that holds NaN or an infinity has NaN ranks and NaN
            gradients.
        regularization_strength: Positive, in units of ``x``. Below the smallest gap between neighbours all
            ranks are hard; from the largest on, all elements are in one block.
        axis: The elements along it are ranked against each other.

    Returns:
        Shape and dtype of ``x``, computed in float64. On a GPU, ``x`` makes the way to the CPU and back.

    Raises:
        TypeError: ``x`` isn't a floating-point tensor, or an option isn't a number.
        ValueError: ``x`` has no such axis, or the strength isn't positive.
        RuntimeError: A compiled function is called on dual numbers.

    References:
        Fast differentiable sorting and ranking, https://arxiv.org/abs/2002.08871, quadratic regularization.

    Example:
        >>> soft_rank(torch.tensor([2.9, 0.1, 3.0]), regularization_strength=1.0)
        tensor([2.4500, 1.0000, 2.5500])
    """
    x = as_floating("x", x)
    strength = _as_strength(regularization_strength)
    (axis,) = check_axis("axis", (axis,), x.ndim)
    if axis == x.ndim - 1:
        return _soft_rank(x, strength)
    return _soft_rank(x.movedim(axis, -1), strength).movedim(-1, axis)


def spearman_correlation(
    x: torch.Tensor,
    y: torch.Tensor,
    *,
    regularization_strength: float | None = None,
    axis: int = -1,
    soft_y: bool = False,
) -> torch.Tensor:
    """Correlate the soft ranks of ``x`` with the ranks of ``y``; the gradient is that of this value.

    To raise the correlation, minimise its negative. Without a strength the value doesn't change when ``x`` is
    shifted or multiplied by a positive number, and the gradient accounts for that.

    Args:
        x: Floating-point, any shape but a scalar.
        y: Floating-point, shape of ``x``. It is ranked hard, equal elements share their average rank, and it
            gets no gradient.
        regularization_strength: Of the soft ranks, as in `soft_rank`; None is twice the usual gap between
            neighbours: the mean of the smaller half of the gaps (per rank, where elements are equal).
        axis: The elements along it are ranked against each other.
        soft_y: Rank ``y`` softly too, so that it gets a gradient; without a strength, by its own gaps.

    Returns:
        Shape of ``x`` without ``axis``, in the dtype of ``x`` or float32 if that is wider. Within [-1, 1] up
        to rounding. Where all elements of ``x`` or of ``y`` are equal, the value and the gradient are 0;
        where one of them is NaN or infinite, NaN.

    Raises:
        TypeError: A tensor isn't floating-point, or an option is of the wrong type.
        ValueError: The shapes differ, ``x`` has no such axis, or the strength isn't positive.
        RuntimeError: A compiled function is called on dual numbers.

    Example:
        >>> x, y = torch.tensor([0.0, 1.0, 3.0, 9.0]), torch.tensor([1.0, 2.0, 4.0, 3.0])
        >>> spearman_correlation(x, y, regularization_strength=0.1)
        tensor(0.8000)
    """
    x, y = as_floating("x", x), as_floating("y", y)
    check_shape("y", y.shape, x.shape, "x")
    strength = None if regularization_strength is None else _as_strength(regularization_strength)
    if not isinstance(soft_y, bool):
        raise TypeError(f"soft_y must be True or False; got {type(soft_y).__name__}")
    (axis,) = check_axis("axis", (axis,), x.ndim)
    dtype = at_least_float32(x).dtype
    x, y = x.movedim(axis, -1).double(), y.movedim(axis, -1).double()
    ranks_y = _scaled_rank(y, strength) if soft_y else _pooled(y.detach(), 0.0)[1]
    return _correlate(_scaled_rank(x, strength), ranks_y).to(dtype)


def _soft_rank(x: torch.Tensor, strength: float) -> torch.Tensor:
    refuse_compiled_duals()
    return _SoftRank.apply(x, strength) if in_plain_reverse(x) else _rank_by_arithmetic(x, strength)


class _SoftRank(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, strength: float) -> torch.Tensor:
        from gradtricks._core.kernels import ranking

        threads = torch.get_num_threads()
        ranks, ctx.blocks = ranking.soft_ranks(_as_array(x), strength, threads=threads)
        ctx.strength = strength
        return torch.from_numpy(ranks).to(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _deviations(gradient, ctx.blocks, ctx.strength), None


def _deviations(x: torch.Tensor, blocks: np.ndarray, strength: float) -> torch.Tensor:
    if in_plain_reverse(x) and not in_gradient_batch(x):
        # Most backward passes aren't differentiated again, and can do without the detour.
        again = torch.is_grad_enabled() and x.requires_grad
        return (_Deviations.apply if again else _deviate_by_kernel)(x, blocks, strength)
    known = torch.from_numpy(blocks).to(x.device)
    deviations = _deviate_by_arithmetic(x.double(), known.clamp(min=0)) / strength
    return torch.where(known < 0, math.nan, deviations).to(x.dtype)


class _Deviations(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, blocks: np.ndarray, strength: float) -> torch.Tensor:
        ctx.blocks, ctx.strength = blocks, strength
        return _deviate_by_kernel(x, blocks, strength)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return _deviations(gradient, ctx.blocks, ctx.strength), None, None


def _deviate_by_kernel(x: torch.Tensor, blocks: np.ndarray, strength: float) -> torch.Tensor:
    from gradtricks._core.kernels import ranking

    return torch.from_numpy(ranking.deviations(_as_array(x), blocks, strength)).to(x)


def _as_array(x: torch.Tensor) -> np.ndarray:
    return as_array(at_least_float32(x.detach()))


def _rank_by_arithmetic(x: torch.Tensor, strength: float) -> torch.Tensor:
    # Transforms differentiate this form by themselves: only the blocks come from the kernel, and between two
    # changes of the blocks the ranks are linear.
    wide = x.double()
    value = wide.detach()
    blocks, ranks = _pooled(value, strength)
    scale = torch.where(ranks.isnan(), ranks, strength)
    return (ranks + _deviate_by_arithmetic(wide - value, blocks) / scale).to(x.dtype)


def _deviate_by_arithmetic(x: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
    zeros = torch.zeros_like(x)
    sizes = zeros.scatter_add(-1, blocks, torch.ones_like(x)).gather(-1, blocks)
    means = zeros.scatter_add(-1, blocks, x).gather(-1, blocks) / sizes
    return torch.where(sizes > 1, x - means, 0)  # of one alone nothing is left, even if it is infinite


@torch.library.custom_op("gradtricks::pooled", mutates_args=())
def _pooled(x: torch.Tensor, strength: float) -> tuple[torch.Tensor, torch.Tensor]:
    from gradtricks._core.kernels import ranking

    ranks, blocks = ranking.soft_ranks(_as_array(x), strength)
    return torch.from_numpy(np.maximum(blocks, 0)).to(x.device), torch.from_numpy(ranks).to(x.device)


@_pooled.register_fake
def _pooled_shapes(x: torch.Tensor, strength: float) -> tuple[torch.Tensor, torch.Tensor]:
    ranks = torch.empty_like(x, memory_format=torch.contiguous_format)
    return torch.empty_like(ranks, dtype=torch.int64), ranks


@_pooled.register_vmap
def _pooled_batches(
    info: Any, in_dims: tuple[int, None], x: torch.Tensor, strength: float
) -> tuple[tuple[torch.Tensor, torch.Tensor], tuple[int, int]]:
    return _pooled(x.movedim(in_dims[0], 0), strength), (0, 0)


def _scaled_rank(x: torch.Tensor, strength: float | None) -> torch.Tensor:
    if strength is not None:
        return _soft_rank(x, strength)
    return _soft_rank(x / _usual_gap(x), _GAPS)


def _usual_gap(x: torch.Tensor) -> torch.Tensor:
    value = x.detach()
    gap, gradient = _gaps(value)
    return gap + (gradient * (x - value)).sum(-1, keepdim=True)


@torch.library.custom_op("gradtricks::gaps", mutates_args=())
def _gaps(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    from gradtricks._core.kernels import ranking

    gap, gradient = ranking.usual_gaps(_as_array(x))
    return torch.from_numpy(gap).to(x.device), torch.from_numpy(gradient).to(x.device)


@_gaps.register_fake
def _gaps_shapes(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.new_empty((*x.shape[:-1], 1)), torch.empty_like(x, memory_format=torch.contiguous_format)


@_gaps.register_vmap
def _gaps_batches(
    info: Any, in_dims: tuple[int], x: torch.Tensor
) -> tuple[tuple[torch.Tensor, torch.Tensor], tuple[int, int]]:
    return _gaps(x.movedim(in_dims[0], 0)), (0, 0)


def _correlate(ranks_x: torch.Tensor, ranks_y: torch.Tensor) -> torch.Tensor:
    middle = (ranks_x.shape[-1] + 1) / 2  # the mean of all ranks, soft or not
    x, y = ranks_x - middle, ranks_y - middle
    xx, yy = x.square().sum(-1), y.square().sum(-1)
    constant = (xx == 0) | (yy == 0)
    norms = torch.where(constant, 1, xx).sqrt() * torch.where(constant, 1, yy).sqrt()
    return torch.where(constant, 0, (x * y).sum(-1) / norms)


def _as_strength(regularization_strength: float) -> float:
    return check_number("regularization_strength", regularization_strength, low=sys.float_info.min)
