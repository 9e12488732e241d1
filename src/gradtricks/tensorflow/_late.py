"""A recorder of TensorFlow that looks at values only when something has gone wrong."""

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from gradtricks._core.recorded import Place
from gradtricks.tensorflow._graph import status_of, tensor_of
from gradtricks.tensorflow._listening import Recorder


class LateRecorder(Recorder):
    """Looks whether values are finite only when something has gone wrong."""

    def __init__(self, inputs: list[Any]) -> None:
        self.made: dict[int, tf.Tensor] = {}
        super().__init__(inputs)

    def add_input(self, variable: Any) -> None:
        """Follow one more variable, which may have been read already."""
        self.leaves.append(variable)
        self.tensors.append(tensor_of(variable))
        self.starts.append(self.read(self.tensors[-1]))

    def judge(self, number: int, tensor: tf.Tensor) -> None:
        """Keep the tensor, which is looked at later."""
        if tensor.dtype.is_floating:
            self.made[number] = tensor

    def settle(self) -> Place | None:
        """Find out who made the first value that isn't finite; return where one was read that came so."""
        statuses = {number: status_of(tensor) for number, tensor in self.made.items()}
        nan = {number for number, status in statuses.items() if status == "nan"}
        bad = nan | {number for number, status in statuses.items() if status == "inf"}
        for operation in self.operations:
            read, made = set(operation.inputs), set(operation.outputs)
            operation.overflows = bool(made & bad and not read & bad) or bool(made & nan and not read & nan)
        meant = {n for o in self.operations if not o.inputs for n in o.outputs}
        came = bad & (self.outside.keys() - meant)
        return next((o.place for o in self.operations if came.intersection(o.inputs)), None)

    def needed(self, outputs: Iterable[tf.Tensor]) -> set[int]:
        """Return the numbers of all that some tensors were computed from."""
        found = set(map(self.read, outputs))
        for operation in reversed(self.operations):
            if found.intersection(operation.outputs):
                found.update(operation.inputs)
        return found

    def longest_chain(self) -> tuple[list[tf.Tensor], Place | None]:
        """Return what was made by each use of the weight that was used most often, and where."""
        matrices = [number for number, leaf in zip(self.starts, self.leaves) if len(leaf.shape) > 1]
        owners = dict(zip(matrices, matrices))
        uses: dict[int, list[tuple[tf.Tensor, Place | None]]] = {}
        for operation, _, outputs, _ in self.links:
            owned = {owners[number] for number in operation.inputs if number in owners}
            if operation.name == "ReadVariableOp":
                owners |= {number: owner for number in operation.outputs for owner in owned}
                continue
            for owner in owned:
                uses.setdefault(owner, []).append((outputs[0], operation.place))
        chain = max(uses.values(), key=len, default=[])
        return [tensor for tensor, _ in chain], chain[0][1] if chain else None
