"""Soft ranks, and the usual gap, in PyTorch's operations, which stay on the device and never wait for it.

Neighbours are pooled by halves: log n times, two runs that are each in order become one. Of the lower run a
last part is pooled with a first part of the upper one. Their mean is the number above which the lower run has
as much too much as the upper one lacks below it.
"""

import torch
from torch.nn.functional import pad

from gradtricks.torch._tensors import as_wide


def pooled(x: torch.Tensor, strength: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what `soft_ranks` of the compiled loops does, of a strength that is positive."""
    if x.numel() == 0:
        return x.clone(), x.long()
    ordered, order = as_wide(x).sort(-1)
    places = torch.arange(1, x.shape[-1] + 1, device=x.device, dtype=ordered.dtype).expand_as(ordered)
    gaps = (ordered.diff(dim=-1) / strength).clamp(max=x.shape[-1])  # wider ones are pooled by no means
    starts = _changes(_in_order(pad(gaps - 1, (1, 0)).cumsum(-1))[..., : x.shape[-1]])
    block = starts.cumsum(-1) - 1
    # Differences within the block, because values may be large and the strength small.
    first = ordered.gather(-1, torch.where(starts, places.long() - 1, 0).cummax(-1).values)
    beyond = ordered - first
    ranks = _mean_of(places, block) + (beyond - _mean_of(beyond, block)) / strength
    finite = ordered.isfinite().all(-1, keepdim=True)  # an infinity less itself is NaN
    ranks, block = torch.where(finite, ranks, torch.nan), torch.where(finite, block, -1)
    return _back(ranks, order).to(x.dtype), _back(block, order)


def usual_gaps(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what `usual_gaps` of the compiled loops does."""
    if x.numel() == 0:
        return x.new_ones((*x.shape[:-1], 1)), x.clone()
    ordered, order = as_wide(x).sort(-1)
    starts = _changes(ordered)
    group = starts.cumsum(-1) - 1
    sizes = _sum_of(torch.ones_like(ordered), group).gather(-1, group)
    rank_steps = (sizes + pad(sizes[..., :-1], (1, 0))) / 2
    between = starts & (group > 0)
    steps = torch.where(between, pad(ordered.diff(dim=-1), (1, 0)) / rank_steps, torch.inf)
    middle = steps.sort(-1).values.gather(-1, (group[..., -1:] - 1).clamp(min=0) // 2)
    small = between & (steps <= middle)
    count = small.sum(-1, keepdim=True)
    known = (count > 0) & ordered.isfinite().all(-1, keepdim=True)
    gaps = torch.where(small, steps, 0).sum(-1, keepdim=True) / count
    of_group = pad(_sum_of(torch.where(small, 1 / (rank_steps * count), 0), group), (0, 1))
    weights = (of_group.gather(-1, group) - of_group.gather(-1, group + 1)) / sizes
    return torch.where(known, gaps, 1).to(x.dtype), _back(torch.where(known, weights, 0), order).to(x.dtype)


def _in_order(fit: torch.Tensor) -> torch.Tensor:
    # The numbers nearest to these that nowhere fall, padded to a power of two; equal ones are pooled.
    n, half = fit.shape[-1], 1
    size = 1 << (n - 1).bit_length()
    more = torch.arange(1, size - n + 1, device=fit.device, dtype=fit.dtype)
    fit = torch.cat([fit, fit[..., -1:] + n * more], -1)
    while half < size:
        fit, half = _merged(fit, half), 2 * half
    return fit


def _merged(fit: torch.Tensor, half: int) -> torch.Tensor:
    both = fit.view(*fit.shape[:-1], -1, 2, half)
    top, bottom = both[..., :1, -1:], both[..., 1:, :1]
    # What is farther away isn't pooled, and would cost digits.
    near = (both - top).clamp(-4 * half, 4 * half)
    sums = near.cumsum(-1)
    count = torch.searchsorted(near.flip(-2), near)  # of the other run, below each
    below = pad(sums.flip(-2), (1, 0)).gather(-1, count)
    places = torch.arange(1, half + 1, device=fit.device)
    # What the lower run has above each number, less what is missing in the upper one; of the upper run's
    # numbers the negative of that.
    excess = sums[..., :1, -1:] - half * near
    excess = (
        torch.cat([excess[..., :1, :], -excess[..., 1:, :]], -2) + (below - sums) - near * (count - places)
    )
    pooled = (excess <= 0) & (top >= bottom)
    size = pooled.sum((-2, -1), keepdim=True).clamp(min=1)
    mean = top + torch.where(pooled, near, 0).sum((-2, -1), keepdim=True) / size
    return torch.where(pooled, mean, both).view(fit.shape)


def _changes(ordered: torch.Tensor) -> torch.Tensor:
    return pad(ordered.diff(dim=-1) != 0, (1, 0), value=True)


def _sum_of(x: torch.Tensor, group: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(x).scatter_add(-1, group, x)


def _mean_of(x: torch.Tensor, group: torch.Tensor) -> torch.Tensor:
    return (_sum_of(x, group) / _sum_of(torch.ones_like(x), group)).gather(-1, group)


def _back(x: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(x).scatter(-1, order, x)
