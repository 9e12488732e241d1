"""What is frozen of parameters and state: kept before any optimizer's step, and put back after it."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from gradtricks._core import kernels
from gradtricks.torch._addresses import has_address, is_plain, parallel_region
from gradtricks.torch._joining import join, part, write

State = Mapping[torch.Tensor, dict[str, Any]]
Memory = dict[torch.dtype, torch.Tensor]


class Masked(NamedTuple):
    """A parameter with a mask, which broadcasts, and by name what to keep of its state."""

    parameter: torch.Tensor
    gradient: torch.Tensor
    mask: torch.Tensor
    state: dict[str, torch.Tensor]


@contextmanager
def frozen(masked: list[Masked], state: State, memory: Memory) -> Iterator[None]:
    """Let the block see 0 for frozen elements of parameters and gradients, and change nothing frozen.

    ``state``: the optimizer's, which may have other tensors after the block. ``memory``: where copies on a
    CPU stay from step to step, since new memory costs more than they do.
    """
    looped: list[Masked] = []
    others: list[Masked] = []
    for one in masked:
        (looped if _fits_the_loop(one) else others).append(one)
    ways = _Looped(looped, memory), _Joined(others)
    try:
        yield
    finally:
        for one in masked:
            one.parameter.grad = one.gradient
        for way in ways:
            way.put_back(state)
        _forget_shared(memory)  # of which the optimizer has kept a gradient


def _fits_the_loop(one: Masked) -> bool:
    if torch.compiler.is_compiling() or not is_plain(one.gradient) or not one.gradient.is_cpu:
        return False
    return all(map(has_address, (one.mask, one.parameter, *one.state.values())))


class _Looped:
    """On a CPU, one pass over all tensors before the step, and one after it."""

    def __init__(self, masked: list[Masked], memory: Memory) -> None:
        self._memory, rows, loop = memory, list[tuple[int, ...]](), kernels.freezing
        self._kept: list[tuple[Masked, str | None, torch.Tensor, int]] = []
        ends = defaultdict[torch.dtype, int](int)

        def place(one: Masked, tensor: torch.Tensor, what: int) -> int:
            dtype, count, start = tensor.dtype, tensor.numel(), ends[tensor.dtype]
            alike = count // one.mask.numel() if count else 1  # elements that share one of the mask's
            addresses = one.mask.data_ptr(), tensor.data_ptr(), start * dtype.itemsize
            rows.append((count, dtype.itemsize, alike, *addresses, what))
            ends[dtype] += count
            return start

        for one in masked:
            self._kept.append((one, None, one.parameter, place(one, one.parameter, loop.KEEP_AND_CLEAR)))
            for name, tensor in one.state.items():
                self._kept.append((one, name, tensor, place(one, tensor, loop.KEEP)))
        gradients = [one.gradient.resolve_neg().contiguous() for one in masked]
        starts = [place(one, gradient, loop.PICK) for one, gradient in zip(masked, gradients, strict=True)]
        for dtype, end in ends.items():
            if dtype not in memory or len(memory[dtype]) < end:
                memory[dtype] = torch.empty(end, dtype=dtype, device="cpu")
        bases = {dtype: memory[dtype].data_ptr() for dtype in ends}
        placed = [*(tensor for _, _, tensor, _ in self._kept), *gradients]
        self._table = np.array(rows, np.int64).reshape(-1, 7)
        self._table[:, 5] += np.array([bases[tensor.dtype] for tensor in placed], np.int64)
        _exchange(self._table, [one.parameter for one in masked])
        for one, gradient, start in zip(masked, gradients, starts, strict=True):
            one.parameter.grad = memory[gradient.dtype].as_strided(gradient.shape, gradient.stride(), start)

    def put_back(self, state: State) -> None:
        table, edited = self._table[: len(self._kept)], []
        for row, (one, name, before, start) in zip(table, self._kept, strict=True):
            tensor = one.parameter if name is None else state[one.parameter][name]
            if has_address(tensor) and tensor.dtype == before.dtype:
                edited.append(tensor)
                row[4] = tensor.data_ptr()
            else:  # the step has put another one in its place
                copy = self._memory[before.dtype][start : start + before.numel()].view(before.shape)
                tensor.copy_(torch.where(one.mask, tensor, copy))
                row[0] = 0
        table[:, 6] = kernels.freezing.PUT_BACK
        _exchange(table, edited)


def _exchange(table: NDArray[np.int64], edited: list[torch.Tensor]) -> None:
    if len(table):
        kernels.freezing.exchange(table, threads=torch.get_num_threads(), parallel=parallel_region())
        torch.autograd.graph.increment_version(edited)


def _forget_shared(memory: Memory) -> None:
    for dtype, copies in [*memory.items()]:
        if torch._C._storage_Use_Count(copies.untyped_storage()._cdata) > 2:  # this one and ``copies``
            del memory[dtype]


class _Joined:
    """Elsewhere, a few operations for all tensors of a kind, laid end to end."""

    def __init__(self, masked: list[Masked]) -> None:
        self._groups: list[tuple[str | None, list[Masked], torch.Tensor, torch.Tensor]] = []
        groups = defaultdict[tuple[Any, ...], list[Masked]](list)
        for one in masked:
            parameter, gradient, _, state = one
            for name, tensor in ((None, parameter), *state.items()):
                alone = None if is_plain(tensor) and is_plain(gradient) else parameter
                groups[name, tensor.dtype, gradient.dtype, tensor.device, alone].append(one)
        for (name, *_), members in groups.items():
            kept = join([one.parameter if name is None else one.state[name] for one in members])
            mask = join([one.mask.expand_as(one.parameter) for one in members])
            self._groups.append((name, members, mask, kept.clone() if len(members) == 1 else kept))
        for name, members, mask, kept in self._groups:
            if name is None:
                parameters = [one.parameter for one in members]
                cleared = torch.where(mask, kept, kept.new_zeros(()))
                write(cleared, parameters)
                gradient = join([one.gradient for one in members])
                picked = torch.where(mask, gradient, gradient.new_zeros(()))
                for parameter, gradient in zip(parameters, part(picked, parameters), strict=True):
                    parameter.grad = gradient

    def put_back(self, state: State) -> None:
        for name, members, mask, kept in self._groups:
            parameters = [one.parameter for one in members]
            tensors = parameters if name is None else [state[parameter][name] for parameter in parameters]
            write(torch.where(mask, join(tensors), kept), tensors)
