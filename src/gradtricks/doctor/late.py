"""Questions for when a step is over: who spoilt a value, what a loss adds up, how often a weight is used."""

import math
from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

from gradtricks.doctor.losses import Term
from gradtricks.doctor.operations import BAD, Operation, SourceLine
from gradtricks.doctor.recording import BaseRecorder

# What turns terms into a loss without a slope of its own.
_LINEAR = {"mean", "sum", "neg", "cast", "to", "float", "double", "stack", "pack", "divnonan", "realdiv"}
_LINEAR |= {f"{side}{name}" for name in ("add", "sub", "mul", "truediv") for side in ("", "r", "i")}
_LINEAR |= {"addv2", "div", "true_divide"}
# Reasons for which nothing is learned through an operation.
_CUTS = {"detached", "not recorded", "copied", "numpy", "sampled", "drawn", "integer cast"}


class Late(BaseRecorder):
    """Keeps every tensor, and looks at values only when something has gone wrong."""

    copying: tuple[str, ...] = ()  # operations that make a tensor of a weight, and compute nothing

    def __init__(self, inputs: Any) -> None:
        self.kept: dict[int, Any] = {}
        self.composed: list[Operation] = []  # functions that the framework makes of several operations
        self.meant: set[int] = set()  # infinities that somebody wrote down, as for masks
        self.bounds: dict[int, Any] = {}  # the least and the greatest of what was edited since
        super().__init__(inputs)  # type: ignore[call-arg]  # of the framework's recorder, which comes next

    @abstractmethod
    def values_of(self, tensor: Any) -> Any:
        """Return what can be compared with numbers, unrecorded."""

    @abstractmethod
    def roots(self) -> Iterable[int]:
        """Return the numbers of all weights."""

    @abstractmethod
    def weights(self) -> Iterable[int]:
        """Return the numbers of the weights that have several axes."""

    @abstractmethod
    def slopes(self, loss: Any, tensors: list[Any]) -> list[Any]:
        """Return the gradient of a loss in each tensor or None, [] where none can be had."""

    def slopes_along(self, path: list[Operation], loss: Any, tensors: list[Any]) -> list[Any]:
        """Return the same where only these operations lie between."""
        return self.slopes(loss, tensors)

    @abstractmethod
    def weigh(self, tensor: Any, slope: Any) -> Term:
        """Return what a tensor adds to a loss."""

    def judge(self, number: int, tensor: Any) -> None:
        """Keep a tensor."""
        self.kept[number] = tensor

    def statuses(self) -> dict[int, str]:
        """Return the status of each tensor by number, as it was before it was edited."""
        return {n: self.status(self.bounds.get(n, tensor)) for n, tensor in self.kept.items()}

    def worst(self) -> str:
        """Return "nan" or "inf" if a number is, such as a loss, or anything NaN; "fine" otherwise."""
        found = {s for n, s in self.statuses().items() if s == "nan" or not tuple(self.kept[n].shape)}
        return next((bad for bad in BAD if bad in found), "fine")

    def settle(self) -> SourceLine | None:
        """Find out who made the first value that isn't finite; return where one was read that came so."""
        statuses = self.statuses()
        nan, inf = ({n for n, status in statuses.items() if status == bad} for bad in BAD)
        copies = {n for o in self.operations if o.name in self.copying for n in o.outputs}
        before = copies | {number for number, other in self.outside.items() if other.before}
        meant = self.meant | self.logs_of_masks() | inf - before - self.makers().keys()
        came = (nan | inf) & (copies | self.outside.keys()) - meant
        for operation in self.operations:
            bad, new = (nan | inf).intersection(operation.inputs), set(operation.outputs) - copies
            meant |= new & nan if self.kept.keys().isdisjoint(operation.inputs) else set()  # a constant
            blameless = bad <= meant
            operation.overflows = blameless and bool(new & nan - meant or (not bad and new & inf - meant))
            meant |= new & inf if bad and blameless else set()
        return next((o.place for o in self.operations if came.intersection(o.inputs)), None)

    def logs_of_masks(self) -> set[int]:
        """Return the numbers of logarithms of zeros and ones, whose infinities mask as others do."""
        known = self.kept.keys() - self.learned()
        logs = [o for o in self.operations if o.short == "log" and o.inputs[0] in known]
        values = [self.values_of(self.kept[o.inputs[0]]) for o in logs]
        masks = [bool(((v == 0) | (v == 1)).all() and v.any()) for v in values]
        return {n for o, is_mask in zip(logs, masks) if is_mask for n in o.outputs}

    def needed(self, outputs: Iterable[Any], *, whole: bool = False) -> set[int]:
        """Return the numbers of all that tensors were computed from, ``whole`` along paths without cuts."""
        found = set(map(self.read, outputs))
        for operation in reversed(self.operations):
            if found.intersection(operation.outputs) and not (whole and operation.reason in _CUTS):
                found.update(operation.inputs)
        return found

    def learned(self) -> set[int]:
        """Return the numbers of the weights, and of all that is computed from them without a cut."""
        found = set(self.roots())
        for operation in self.operations:
            passes = operation.reason not in _CUTS or operation.carries & found
            if passes and found.intersection(operation.inputs):
                found.update(n for n in operation.outputs if "float" in self.dtype_of(n))
        return found

    def dtype_of(self, number: int) -> str:
        """Return the name of a tensor's type; a variable that was assigned to holds numbers."""
        return str(self.kept[number].dtype) if number in self.kept else "float"

    def makers(self) -> dict[int, Operation]:
        """Return the operation that made each tensor."""
        return {number: operation for operation in self.operations for number in operation.outputs}

    def terms(self, loss: Any) -> list[Term]:
        """Return what a loss adds up: tensors of several elements, and numbers that no sum explains."""
        makers = self.makers()
        pending, found, path = [self.read(loss)], dict[int, Any](), list[Operation]()
        while pending:
            number = pending.pop()
            maker = makers.get(number)
            if maker and maker.short in _LINEAR and math.prod(self.kept[number].shape) == 1:
                pending += [n for n in maker.inputs if n in self.kept]
                path.append(maker)
            else:
                found[number] = self.kept[number]
        pairs = zip(found.values(), self.slopes_along(path, loss, list(found.values())))
        return [self.weigh(tensor, slope) for tensor, slope in pairs if slope is not None]

    def longest_chain(self) -> tuple[list[Any], SourceLine | None]:
        """Return what was made by each use of the weight that was used most often, and where."""
        owners = {number: number for number in self.weights()}
        uses: dict[int, list[Operation]] = {}
        for operation in self.operations:
            for owner in {owners[number] for number in operation.inputs if number in owners}:
                if operation.name in self.copying:
                    owners |= dict.fromkeys(operation.outputs, owner)
                elif operation.outputs[0] in self.kept:
                    uses.setdefault(owner, []).append(operation)
        chain = max(uses.values(), key=len, default=[])
        return [self.kept[o.outputs[0]] for o in chain], chain[0].place if chain else None
