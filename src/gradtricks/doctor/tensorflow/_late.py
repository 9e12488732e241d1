"""A recorder of TensorFlow that looks at values only when something has gone wrong."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from gradtricks.doctor.late import Late
from gradtricks.doctor.losses import Term
from gradtricks.doctor.operations import Operation, SourceLine
from gradtricks.doctor.tensorflow._graph import array_of, tensor_of
from gradtricks.doctor.tensorflow._listening import Recorder


class LateRecorder(Late, Recorder):
    """Looks whether values are finite only when something has gone wrong."""

    copying = ("ReadVariableOp",)

    def add_input(self, variable: Any) -> None:
        """Follow one more variable, which may have been read already."""
        self.leaves.append(variable)
        self.tensors.append(tensor_of(variable))
        self.starts.append(self.read(self.tensors[-1]))

    def values_of(self, tensor: tf.Tensor) -> Any:
        # A handle, or a list of tensors, holds no numbers.
        return np.empty(0) if tensor.dtype in (tf.resource, tf.variant) else array_of(tensor)

    def assigned_from(self, tensors: Iterable[tf.Tensor]) -> dict[int, SourceLine | None]:
        """Return the states of variables that were assigned what comes from some tensors, with the lines."""
        carried = {self.numbers.get(tensor._id, 0) for tensor in tensors} - {0}
        lines = dict[int, SourceLine | None]()
        for operation in self.operations:
            if carried.intersection(operation.inputs):
                carried.update(operation.outputs)
                lines |= {n: operation.place for n in operation.outputs if operation.reason == "assigned"}
        return lines

    def roots(self) -> Iterable[int]:
        return self.starts

    def weights(self) -> Iterable[int]:
        return [number for number, leaf in zip(self.starts, self.leaves) if len(leaf.shape) > 1]

    def slopes(self, loss: tf.Tensor, tensors: list[tf.Tensor]) -> list[Any]:
        return self.tape.gradient(loss, tensors)

    def slopes_along(self, path: list[Operation], loss: tf.Tensor, tensors: list[tf.Tensor]) -> list[Any]:
        """Return the same where only these operations lie between; a tape would ask all others too."""
        arrived, between = {loss._id: tf.ones_like(loss)}, set(map(id, path))
        for link in reversed(self.links):
            if id(link.operation) in between:
                self.pass_on(link, arrived)
        # The rest, such as a number of tokens, has a slope and no weights in it.
        learned = self.learned()
        return [arrived.get(tensor._id) if self.read(tensor) in learned else None for tensor in tensors]

    def weigh(self, tensor: tf.Tensor, slope: Any) -> Term:
        x, slope = (np.asarray(array_of(t), np.float64) for t in (tensor, tf.convert_to_tensor(slope)))
        with np.errstate(all="ignore"):
            values = x * slope
            found = slope.min(), slope.max(), slope.sum(), values.sum(), abs(values).sum()
        return Term(x.size if x.ndim else 0, *map(float, found))
