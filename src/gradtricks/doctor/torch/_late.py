"""A recorder of PyTorch that looks at values only when something has gone wrong."""

import math
from collections.abc import Iterable
from typing import Any

import torch

from gradtricks.doctor.late import Late
from gradtricks.doctor.losses import Term
from gradtricks.doctor.operations import SourceLine
from gradtricks.doctor.torch._graph import (
    bounds_of,
    is_floating,
    is_freed,
    leaves_of,
    memory_of,
    same_draws,
    tensors_of,
)
from gradtricks.doctor.torch._recording import Recorder

_EDITS = ("__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ipow__")
_PARTS = ("__setitem__", "masked_", "index_", "scatter_", "put_")  # edits of some elements
_MEANS = ("cross_entropy", "nll_loss", "mse_loss", "l1_loss", "binary_cross_entropy_with_logits")


class LateRecorder(Late, Recorder):
    """Looks whether values are finite only when something has gone wrong."""

    def __init__(self, inputs: list[torch.Tensor]) -> None:
        self.means: dict[int, int] = {}  # over how many elements a loss of the framework's is one
        self.sharing: dict[int, list[int]] = {}  # numbers of the tensors that share a memory
        self.num_passed = 0  # operations before the last backward pass
        self.unwritten: set[int] = set()  # memories that began with whatever lay there
        super().__init__(inputs)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known, kwargs, short = len(self.operations), kwargs or {}, getattr(func, "__name__", "")
        if short.endswith("_") and (short[:2] != "__" or short in _EDITS):
            self.keep_bounds(args[:1], short.startswith(_PARTS))
        elif "out" in kwargs:
            self.keep_bounds(kwargs["out"])
        result = super().__torch_function__(func, types, args, kwargs)
        if len(self.operations) > known:
            last = self.operations[-1]
            if short.removeprefix("new_").startswith("empty"):
                self.unwritten |= {memory_of(self.kept[number]) for number in last.outputs}
                self.bounds |= dict.fromkeys(last.outputs, bounds_of(None))
            written = short in ("copy_", "__setitem__") and self.meant.intersection(last.inputs)
            if written or any(
                isinstance(leaf, float) and math.isinf(leaf) for leaf in leaves_of((args, kwargs))
            ):
                self.meant.update(last.outputs)
            if short in _MEANS and result.ndim == 0:
                self.means[id(result)] = _size(short, args, kwargs)
        return result

    def may_come_from_the_host(self, given: Any) -> bool:
        if not self.host:
            self.constants.update(leaf for leaf in leaves_of(given) if isinstance(leaf, float))
        return super().may_come_from_the_host(given)

    def keep_bounds(self, tensors: Any, in_part: bool = False) -> None:
        """Keep what tells whether tensors, and all that share their memory, are finite before an edit."""
        for edited in tensors_of(tensors):
            self.read(edited)
            memory = memory_of(edited)
            for number in self.sharing[memory]:
                if number not in self.bounds:
                    shown = None if memory in self.unwritten else self.kept[number]
                    self.bounds[number] = bounds_of(shown)
            if not in_part and memory in self.unwritten and _is_whole(edited):
                self.unwritten.discard(memory)

    def judge(self, number: int, tensor: torch.Tensor) -> None:
        super().judge(number, tensor)
        memory = memory_of(tensor)
        self.sharing.setdefault(memory, []).append(number)
        if memory in self.unwritten and _is_whole(tensor):
            self.bounds[number] = bounds_of(None)

    def stale(self, outputs: Iterable[torch.Tensor]) -> SourceLine | None:
        """Return where outputs came to need a tensor that an earlier step had computed, with its graph."""
        made = {n: o.reason for o in self.operations for n in o.outputs}
        # What comes with a graph, but from no operation of this step, is as good as a function's of its own.
        states = (s for s in self.states.values() if made.get(s.number, "gradient rule") == "gradient rule")
        old = {s.number for s in states if s.tensor.requires_grad and is_freed([s.tensor])}
        old = old.intersection(self.needed(outputs, whole=True)).difference(map(self.read, outputs))
        return next((o.place for o in self.operations if old.intersection([*o.inputs, *o.outputs])), None)

    def leaves_read(self) -> list[torch.Tensor]:
        """Return the leaves with a gradient that operations have read since this was asked last."""
        read = {number for operation in self.operations[self.num_passed :] for number in operation.inputs}
        self.num_passed = len(self.operations)
        found = [(s.tensor, s.edge.node) for s in self.states.values() if s.edge and s.number in read]
        leaves = [tensor for tensor, node in found if "AccumulateGrad" in node.name()]
        return [tensor for tensor in leaves if tensor.grad is not None]

    def add_input(self, tensor: torch.Tensor) -> None:
        self.read(tensor)
        self.starts.append(self.states[id(tensor)])

    def values_of(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach()

    def roots(self) -> Iterable[int]:
        return [state.number for state in self.starts]

    def weights(self) -> Iterable[int]:
        return [state.number for state in self.starts if state.tensor.ndim > 1]

    def slopes(self, loss: torch.Tensor, tensors: list[torch.Tensor]) -> list[torch.Tensor | None]:
        differentiable = [tensor for tensor in tensors if tensor.requires_grad]
        try:
            ones = torch.ones_like(loss)
            with same_draws():
                found = torch.autograd.grad(loss, differentiable, ones, retain_graph=True, allow_unused=True)
        except RuntimeError:  # a reentrant checkpoint can't be asked again
            return []
        gradients = iter(found)
        return [next(gradients) if tensor.requires_grad else None for tensor in tensors]

    def weigh(self, tensor: torch.Tensor, slope: torch.Tensor) -> Term:
        values = tensor.detach() * slope
        size = self.means.get(id(tensor), tensor.numel() if tensor.ndim else 0)
        found = (slope.amin(), slope.amax(), slope.sum(), values.sum(), values.abs().sum())
        return Term(size, *torch.stack([each.double() for each in found]).tolist())


def _is_whole(tensor: torch.Tensor) -> bool:
    return tensor.numel() * tensor.itemsize == tensor.untyped_storage().nbytes()


def _size(short: str, args: Any, kwargs: Any) -> int:
    if kwargs.get("reduction", "mean") != "mean":
        return 0
    target = kwargs.get("target", args[1] if len(args) > 1 else None)
    if short in ("cross_entropy", "nll_loss") and target is not None and not is_floating(target):
        return int((target != kwargs.get("ignore_index", -100)).sum())
    return args[0].numel() if args else 0
