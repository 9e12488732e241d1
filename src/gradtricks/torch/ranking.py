"""Ranks that have a gradient, and the correlation of ranks.

In the order of ``x``, neighbours too near to each other for hard ranks are pooled into blocks. In a block::

    rank = mean of the block's places + (x - mean of the block) / strength
    gradient of x <- (gradient - mean of the block's) / strength
"""

import sys
from collections.abc import Callable

import torch

from gradtricks._core import kernels
from gradtricks._core.checks import check_axis, check_flag, check_number, check_shape
from gradtricks.torch import _pooling
from gradtricks.torch._edits import intercept, with_slope
from gradtricks.torch._loops import as_operation
from gradtricks.torch._modes import stopped
from gradtricks.torch._tensors import as_floating, as_wide, at_least_float32, filled, on_cpu

_GAPS = 2.0  # default strength, in usual gaps between neighbours


def soft_rank(
    x: torch.Tensor, *, regularization_strength: float | torch.Tensor, axis: int = -1
) -> torch.Tensor:
    """Rank softly, smallest 1; passes each element what its gradient has beyond the mean of its block.

    The ranks are the point of the permutahedron, the convex hull of all rankings, that is nearest to
    ``x / regularization_strength``. Within a block they are linear in ``x``; an element alone in its block
    has a hard rank and gets no gradient. Equal elements share their rank.

    Args:
        x: Floating-point, any shape but a scalar. A row that holds NaN or an infinity has NaN ranks and NaN
            gradients.
        regularization_strength: Positive, in units of ``x``; a number, or a floating-point scalar, whose
            value isn't checked. Below the smallest gap between neighbours (per rank, where elements are
            equal) all ranks are hard; from the largest gap on, all elements are in one block.
        axis: The elements along it are ranked against each other.

    Returns:
        Shape and dtype of ``x``, computed in float64. On a GPU by about 30 operations for each doubling of a
        row, without a wait.

    References:
        Fast differentiable sorting and ranking, https://arxiv.org/abs/2002.08871, quadratic regularization.

    Example:
        >>> soft_rank(torch.tensor([2.9, 0.1, 3.0]), regularization_strength=1.0)
        tensor([2.4500, 1.0000, 2.5500])
    """
    x = as_floating("x", x)
    strength = _as_strength(regularization_strength)
    (axis,) = check_axis("axis", (axis,), x.ndim)
    return _soft_rank(x, strength, axis)


def spearman_correlation(
    x: torch.Tensor,
    y: torch.Tensor,
    *,
    regularization_strength: float | torch.Tensor | None = None,
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
        regularization_strength: As in `soft_rank`; None is twice the usual gap between neighbours: the mean
            of the smaller half of the gaps (per rank, where elements are equal).
        axis: As in `soft_rank`.
        soft_y: Rank ``y`` softly too, so that it gets a gradient; without a strength, by its own gaps.

    Returns:
        Shape of ``x`` without ``axis``, in the dtype of ``x`` or float32 if that is wider. Within [-1, 1] up
        to rounding. Where all elements of ``x`` or of ``y`` are equal, the value and the gradient are 0;
        where one of them is NaN or infinite, NaN.

    Example:
        >>> x, y = torch.tensor([0.0, 1.0, 3.0, 9.0]), torch.tensor([1.0, 2.0, 4.0, 3.0])
        >>> spearman_correlation(x, y, regularization_strength=0.1)
        tensor(0.8000)
    """
    x, y = as_floating("x", x), as_floating("y", y)
    check_shape("y", y.shape, x.shape, "x")
    strength = None if regularization_strength is None else _as_strength(regularization_strength)
    check_flag("soft_y", soft_y)
    (axis,) = check_axis("axis", (axis,), x.ndim)
    dtype = at_least_float32(x).dtype
    x, y = x.movedim(axis, -1).double(), y.movedim(axis, -1).double()
    ranks_y = _scaled_rank(y, strength) if soft_y else _hard_rank(stopped(y))
    return _correlate(_scaled_rank(x, strength), ranks_y).to(dtype)


def _soft_rank(x: torch.Tensor, strength: torch.Tensor, axis: int = -1) -> torch.Tensor:
    # A gradient may be sparse before it has come into the rule, so that its axis is moved here.
    def rule(gradient: torch.Tensor, blocks: torch.Tensor, strength: torch.Tensor) -> torch.Tensor:
        return _deviations(gradient.movedim(axis, -1), blocks, strength).movedim(-1, axis)

    # Between two changes of the blocks the ranks are linear.
    if axis in (-1, x.ndim - 1):  # moving axes takes a third of the time of a short row
        ranks, blocks = _pooled(stopped(x), strength)
        return intercept(x, _deviations, blocks, strength, linear=True, value=ranks)
    ranks, blocks = _pooled(stopped(x).movedim(axis, -1), strength)
    return intercept(x, rule, blocks, strength, linear=True, value=ranks.movedim(-1, axis))


# Ranks and the number of each element's block.
_pooled = as_operation(
    "pooled",
    "(Tensor x, Tensor strength) -> (Tensor, Tensor)",
    lambda x, strength: kernels.ranking.soft_ranks(x, strength, threads=torch.get_num_threads()),
    lambda x, strength: (_like(x), _like(x).long()),
    elsewhere=_pooling.pooled,
)
_gaps = as_operation(
    "gaps",
    "(Tensor x) -> (Tensor, Tensor)",
    lambda x: kernels.ranking.usual_gaps(x),
    lambda x: (x.new_empty((*x.shape[:-1], 1)), _like(x)),
    elsewhere=_pooling.usual_gaps,
)


def _deviations_on_a_device(x: torch.Tensor, blocks: torch.Tensor, strength: torch.Tensor) -> torch.Tensor:
    wide, index = as_wide(x), blocks.clamp(min=0)
    sums = torch.zeros_like(wide).scatter_add(-1, index, wide).gather(-1, index)
    sizes = torch.zeros_like(wide).scatter_add(-1, index, torch.ones_like(wide)).gather(-1, index)
    deviation = torch.where(sizes > 1, wide - sums / sizes, 0) / strength
    return torch.where(blocks < 0, torch.nan, deviation).to(x.dtype)


# Less the mean of its block, over the strength: a symmetric matrix.
_deviations: Callable[..., torch.Tensor] = with_slope(
    as_operation(
        "deviations",
        "(Tensor x, Tensor blocks, Tensor strength) -> Tensor",
        lambda *arrays: kernels.ranking.deviations(*arrays),
        lambda x, blocks, strength: _like(x),
        elsewhere=_deviations_on_a_device,
    ),
    lambda gradient, output, x, *others: (_deviations(gradient, *others), None, None),
    lambda tangents, output, x, *others: _deviations(tangents[0], *others),
)


def _like(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _hard_rank(x: torch.Tensor) -> torch.Tensor:
    if on_cpu(x):
        return _pooled(x, filled(0.0, torch.float64))[0]
    x = x.contiguous()
    ordered = x.sort(-1).values
    below, up_to = (torch.searchsorted(ordered, x, right=right) for right in (False, True))
    return torch.where(x.isfinite().all(-1, keepdim=True), (below + up_to + 1) / 2, torch.nan).double()


def _scaled_rank(x: torch.Tensor, strength: torch.Tensor | None) -> torch.Tensor:
    if strength is not None:
        return _soft_rank(x, strength)
    return _soft_rank(x / _usual_gap(x), filled(_GAPS, torch.float64))


def _usual_gap(x: torch.Tensor) -> torch.Tensor:
    value = stopped(x)
    gap, gradient = _gaps(value)
    return gap + (gradient * (x - value)).sum(-1, keepdim=True)


def _correlate(ranks_x: torch.Tensor, ranks_y: torch.Tensor) -> torch.Tensor:
    middle = (ranks_x.shape[-1] + 1) / 2  # the mean of all ranks, soft or not
    x, y = ranks_x - middle, ranks_y - middle
    xx, yy = x.square().sum(-1), y.square().sum(-1)
    constant = (xx == 0) | (yy == 0)
    norms = torch.where(constant, 1, xx).sqrt() * torch.where(constant, 1, yy).sqrt()
    return torch.where(constant, 0, (x * y).sum(-1) / norms)


def _as_strength(value: float | torch.Tensor) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        value = as_floating("regularization_strength", value)
        check_shape("regularization_strength", value.shape, (), "a scalar")
        return stopped(value).double()
    return filled(check_number("regularization_strength", value, low=sys.float_info.min), torch.float64)
