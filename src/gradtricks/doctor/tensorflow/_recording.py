"""Recording what each operation of TensorFlow reads and makes, and what it passes a gradient to."""

import re
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import backprop_util, record
from tensorflow.python.framework import ops

from gradtricks.doctor.operations import Input, Operation, Outside, calling_line, merged
from gradtricks.doctor.recording import BaseRecorder, replaced
from gradtricks.doctor.tensorflow._graph import (
    array_of,
    is_a_reading,
    is_watched,
    status_of,
    tensor_of,
    unwrapped,
)

_OF_THE_SHAPE = ("Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike")


class _Link(NamedTuple):
    operation: Operation
    inputs: list[tf.Tensor]
    outputs: list[tf.Tensor]
    rule: Callable[..., Any] | None


class TensorRecorder(BaseRecorder):
    """Records each operation that runs: what it read and made, and what it passes a gradient to."""

    kind, status = tf.Tensor, staticmethod(status_of)

    def __init__(self, inputs: list[Any]) -> None:
        super().__init__()
        self.numbers: dict[int, int] = {}
        self.links: list[_Link] = []
        self.is_deaf, self.thread = False, threading.get_ident()
        self.first = ops.uid()  # tensors count themselves: a greater number was made later
        self.tape = tf.GradientTape(persistent=True)
        self.tapes: list[tf.GradientTape] = []
        self.leaves, self.tensors = inputs, [tensor_of(leaf) for leaf in inputs]
        self.starts = [self.read(tensor) for tensor in self.tensors]

    def is_listening(self) -> bool:
        """Say whether what runs now is the function's: neither ours nor another thread's."""
        return not self.is_deaf and threading.get_ident() == self.thread

    def is_recording(self) -> bool:
        return self.tape._recording and record.could_possibly_record()

    def may_come_from_the_host(self, tensor: tf.Tensor) -> bool:
        """Say whether a new tensor may have been computed from what left."""
        if tensor.dtype.is_integer:
            return not self.integers.isdisjoint(np.ravel(array_of(tensor)).tolist())
        return self.host > 0 and tensor.dtype.is_floating

    def add(
        self,
        name: str,
        inputs: list[tf.Tensor],
        outputs: list[tf.Tensor],
        rule: Callable[..., Any] | None,
        reason: str,
    ) -> None:
        read = () if name in _OF_THE_SHAPE else tuple(self.read(tensor) for tensor in inputs)
        if name == "ReadVariableOp" and read[0] in self.outside:
            self.outside[read[0]] = Outside(tuple(outputs[0].shape), outputs[0].dtype.name, parameter=True)
        made = tuple(self.register(tensor) for tensor in outputs)
        operation = Operation(_shown(name), calling_line(), read, made, reason=reason)
        operation.overflows = not self.overflown.isdisjoint(made) and self.overflown.isdisjoint(read)
        self.operations.append(operation)
        self.links.append(_Link(operation, inputs, outputs, rule))

    def add_indices(self, outputs: list[tf.Tensor]) -> None:
        """Record that no gradient passes to the indices that came along with values, as from ``top_k``."""
        indices = [self.read(tensor) for tensor in outputs if not backprop_util.IsTrainable(tensor)]
        if 0 < len(indices) < len(outputs):
            last = self.operations[-1]
            self.operations.append(Operation(last.name, last.place, last.inputs, tuple(indices)))

    def add_assignment(self, name: str, inputs: list[tf.Tensor]) -> None:
        """Record that a variable was edited: it passes a gradient on to itself, and none to the values."""
        before, *values = (self.read(tensor) for tensor in inputs)
        after = self.numbers[inputs[0]._id] = self.next_number()
        new = any(o.name == "VarHandleOp" and before in o.outputs for o in self.operations)
        name, reason = ("Variable", "copied") if new else (name, "assigned")
        place = calling_line()
        self.operations.append(
            Operation(name, place, (before, *values), (after,), frozenset([before]), reason)
        )

    def read(self, tensor: tf.Tensor) -> int:
        known = self.numbers.get(tensor._id)
        return self.meet(tensor) if known is None else known

    def meet(self, tensor: tf.Tensor) -> int:
        number, before = self.register(tensor), tensor._id < self.first
        like = Outside(tuple(tensor.shape), tensor.dtype.name, before=before)
        handle = None if before else self.read_variable(tensor)
        if tensor.dtype == tf.resource:
            self.outside[number] = Outside((), "resource", parameter=True)
        elif handle is not None:
            # A stop_gradient around the reading stops the tape for a moment, and isn't to be blamed on it.
            rule = tf.identity if self.tape._recording else None
            self.add("ReadVariableOp", [handle], [tensor], rule, "not recorded")
        elif not before and self.may_come_from_the_host(tensor):
            self.operations.append(Operation("constant", None, (self.host,), (number,), reason="numpy"))
        elif tensor.dtype.is_floating and (before or tensor.shape.rank):
            # A new number is one in the code, and no suspect.
            self.outside[number] = like
        return self.numbers[tensor._id]

    def read_variable(self, tensor: tf.Tensor) -> tf.Tensor | None:
        """Return the handle of the variable that a tensor is a silent reading of, or None."""
        variables = [unwrapped(leaf) for leaf in self.leaves if not isinstance(leaf, tf.Tensor)]
        for variable in [*variables, *self.tape.watched_variables()]:
            if (variable.shape, variable.dtype) == (tensor.shape, tensor.dtype):
                with record.stop_recording(), self.unheard():
                    value = tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)
                if is_a_reading(tensor, value):
                    return variable.handle
        return None

    def unheard(self) -> AbstractContextManager[None]:
        return replaced(self, "is_deaf", True)

    def register(self, tensor: tf.Tensor) -> int:
        number = self.numbers.setdefault(tensor._id, self.last + 1)
        self.last = max(self.last, number)
        self.judge(number, tensor)
        return number

    def differentiate(self, outputs: list[tf.Tensor]) -> list[str]:
        """Return the status of each input's gradient, and fill in what each operation passed on."""
        ends = [tensor for tensor in outputs if backprop_util.IsTrainable(tensor)]
        used = {t._id: t for link in self.links for t in [*link.inputs, *link.outputs]}
        used |= {tensor._id: tensor for tensor in self.tensors}
        wanted = {key: tensor for key, tensor in used.items() if backprop_util.IsTrainable(tensor)}
        cotangents = [tf.ones_like(tensor) * tf.cast(self.cotangent, tensor.dtype) for tensor in ends]
        found = self.tape.gradient(ends, list(wanted.values()), cotangents) if ends else []
        gradients = dict(zip(wanted, found))
        for link in self.links:
            link.operation.sent.clear()
        for link in self.links:
            if any(backprop_util.IsTrainable(tensor) for tensor in link.outputs):
                self.follow(link, gradients)
        return [status_of(gradients.get(tensor._id)) for tensor in self.tensors]

    def follow(self, link: _Link, gradients: dict[int, Any]) -> None:
        """Fill in what an operation passed on, by asking its rule once more."""
        operation, incoming = link.operation, [gradients.get(tensor._id) for tensor in link.outputs]
        operation.arrived = merged(map(status_of, incoming))
        if operation.name == "EagerPyFunc":  # can be asked only once, and the tape did
            outgoing = [gradients.get(tensor._id) for tensor in link.inputs]
        elif link.rule is None:
            return
        else:
            outgoing = _asked(link.rule, link.outputs, incoming)
        for tensor, gradient in zip(link.inputs, outgoing):
            if gradient is not None and backprop_util.IsTrainable(tensor) and operation.inputs:
                number = self.numbers[tensor._id]
                operation.carries |= {number}
                if operation.arrived != "none":
                    operation.sent[number] = merged([operation.sent.get(number, "none"), status_of(gradient)])

    def described(self, name: str, index: int, gradient: str) -> Input:
        leaf = self.leaves[index]
        floating = tf.as_dtype(leaf.dtype).is_floating or tf.as_dtype(leaf.dtype).is_complex
        refused = "integer" if not floating else "" if is_watched(leaf) else "not watched"
        like = Outside(tuple(leaf.shape), tf.as_dtype(leaf.dtype).name, not isinstance(leaf, tf.Tensor))
        return Input(name, self.starts[index], gradient, like, refused)

    def pass_on(self, link: _Link, arrived: dict[int, Any]) -> None:
        """Add what an operation passes on to what has arrived at its inputs."""
        incoming = [arrived.get(tensor._id) for tensor in link.outputs]
        for tensor, gradient in zip(
            link.inputs, _asked(link.rule, link.outputs, incoming) if link.rule else ()
        ):
            if gradient is not None:
                arrived[tensor._id] = gradient + arrived.get(tensor._id, 0)


def _asked(rule: Callable[..., Any], outputs: list[tf.Tensor], incoming: list[Any]) -> list[Any]:
    """Return what the rule of an operation makes of its gradient, or of ones where none came in."""
    nothing = all(gradient is None for gradient in incoming)

    def fill(tensor: tf.Tensor) -> tf.Tensor:  # a list of tensors has zeros, but no ones
        return tf.ones_like(tensor) if nothing and tensor.dtype != tf.variant else tf.zeros_like(tensor)

    try:
        given = [
            fill(tensor) if gradient is None else tf.convert_to_tensor(gradient)
            for tensor, gradient in zip(outputs, incoming)
        ]
        outgoing = rule(*given)
    except (LookupError, tf.errors.OpError):  # no gradient is registered; a data set has no zeros or ones
        return []
    return list(outgoing) if isinstance(outgoing, list | tuple) else [outgoing]


def _shown(name: str) -> str:
    # A concrete function is called __forward_f_12 or __inference_f_12.
    return re.sub(r"^__(?:forward_|inference_)?(.*?)(?:_\d+)?$", r"\1", name) if name[:2] == "__" else name
