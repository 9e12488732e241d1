"""A recorder of PyTorch that looks at values only when something has gone wrong."""

import math
from collections.abc import Iterable
from typing import Any

import torch

from gradtricks._core.recorded import Operation, Place
from gradtricks.torch._graph import is_floating, leaves_of, status_of
from gradtricks.torch._recording import Recorder

_MEANS = ("cross_entropy", "nll_loss", "mse_loss", "l1_loss", "binary_cross_entropy_with_logits", "mean")
_FACTORS = (
    "mul",
    "div",
    "true_divide",
    "truediv",
    "__mul__",
    "__rmul__",
    "__truediv__",
    "__imul__",
    "__itruediv__",
)


class LateRecorder(Recorder):
    """Looks whether values are finite only when something has gone wrong."""

    def __init__(self, inputs: list[torch.Tensor]) -> None:
        self.made: dict[int, torch.Tensor] = {}
        self.meant: set[int] = set()
        self.means: dict[int, tuple[str, Any, Any]] = {}
        self.factors: set[int] = set()
        super().__init__(inputs)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the function, record it, and remember what makes a loss a mean."""
        known, short = len(self.operations), getattr(func, "__name__", "")
        result = super().__torch_function__(func, types, args, kwargs)
        if len(self.operations) > known:
            self.note_meant((args, kwargs or {}))
        if short in _MEANS and isinstance(result, torch.Tensor) and result.ndim == 0:
            self.means[id(result)] = (short, args, kwargs or {})
        elif short in _FACTORS and isinstance(result, torch.Tensor) and _one_tensor(args):
            self.factors.add(id(result))
        return result

    def add_input(self, tensor: torch.Tensor) -> None:
        """Follow one more tensor."""
        self.read(tensor)
        self.starts.append(self.states[id(tensor)])

    def judge(self, number: int, tensor: torch.Tensor) -> None:
        """Keep the tensor, which is looked at later."""
        self.made[number] = tensor

    def note_meant(self, arguments: Any) -> None:
        """Remember that the last operation was given an infinity on purpose, as masks are."""
        if any(isinstance(leaf, float) and math.isinf(leaf) for leaf in leaves_of(arguments)):
            self.meant.update(self.operations[-1].outputs)

    def settle(self) -> Place | None:
        """Find out who made the first value that isn't finite; return where one was read that came so."""
        statuses = {number: status_of(tensor) for number, tensor in self.made.items()}
        nan = {number for number, status in statuses.items() if status == "nan"}
        bad = nan | {number for number, status in statuses.items() if status == "inf"}
        for operation in self.operations:
            read, made = set(operation.inputs), set(operation.outputs)
            operation.overflows = bool(made & nan and not read & nan and not read & bad - self.meant) or bool(
                made & bad - self.meant and not read & bad
            )
        came = bad & (self.outside.keys() | {state.number for state in self.starts})
        return next((o.place for o in self.operations if came.intersection(o.inputs)), None)

    def lineage(self, loss: torch.Tensor) -> tuple[int, bool]:
        """Return over how many elements a loss is a mean, or 0, and whether a number scales it."""
        makers = {n: o for o in self.operations for n in o.outputs}
        tensors = {state.number: state.tensor for state in self.states.values()}
        number, divided = self.read(loss), False
        while number in makers:
            tensor = tensors.get(number)
            if id(tensor) in self.means:
                return _size(*self.means[id(tensor)]), divided
            if id(tensor) not in self.factors:
                break
            divided = True
            number = next((n for n in makers[number].inputs if n in makers), -1)
        return 0, divided

    def needed(self, outputs: Iterable[torch.Tensor]) -> set[int]:
        """Return the numbers of all that some tensors were computed from."""
        found = set(map(self.read, outputs))
        for operation in reversed(self.operations):
            if found.intersection(operation.outputs):
                found.update(operation.inputs)
        return found

    def longest_chain(self) -> tuple[list[torch.Tensor], Place | None]:
        """Return what was made by each use of the weight that was used most often, and where."""
        weights = {state.number for state in self.starts if state.tensor.ndim > 1}
        uses: dict[int, list[Operation]] = {}
        for operation in self.operations:
            for number in weights.intersection(operation.inputs):
                uses.setdefault(number, []).append(operation)
        chain = max(uses.values(), key=len, default=[])
        tensors = {state.number: state.tensor for state in self.states.values()}
        made = [tensors[o.outputs[0]] for o in chain if o.outputs[0] in tensors]
        made = [tensor for tensor in made if tensor.requires_grad]
        return made, chain[0].place if chain else None


def _one_tensor(args: Any) -> bool:
    tensors = [leaf for leaf in args if isinstance(leaf, torch.Tensor) and leaf.numel() > 1]
    return not tensors


def _size(short: str, args: Any, kwargs: Any) -> int:
    if short in ("cross_entropy", "nll_loss"):
        target = kwargs.get("target", args[1] if len(args) > 1 else None)
        if kwargs.get("reduction", "mean") != "mean" or target is None:
            return 0
        ignored = kwargs.get("ignore_index", -100)
        return int((target != ignored).sum()) if not is_floating(target) else target.numel()
    if kwargs.get("reduction", "mean") != "mean":
        return 0
    return args[0].numel() if args else 0
