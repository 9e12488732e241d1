"""Tensors laid end to end, so that many small ones take no more operations than one."""

from collections.abc import Sequence

import torch


def join(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Lay tensors end to end in a copy of shape ``[N]``; a single one stays as it is."""
    return tensors[0] if len(tensors) == 1 else torch.cat([tensor.reshape(-1) for tensor in tensors])


def part(joined: torch.Tensor, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return views of what `join` returned, in the shapes of the tensors that it was given."""
    if len(like) == 1:
        return [joined]
    parts = joined.split([tensor.numel() for tensor in like])
    return [view.view(tensor.shape) for view, tensor in zip(parts, like, strict=True)]


def write(joined: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    """Copy what `join` returned of such tensors, or something of its shape, into them."""
    if len(tensors) == 1:
        tensors[0].copy_(joined)
    else:
        torch._foreach_copy_([*tensors], part(joined, tensors))
