"""Hearing of every operation of TensorFlow that runs, by callbacks and by stand-ins for its functions."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import backprop, backprop_util, record
from tensorflow.python.framework import op_callbacks, ops, tensor_util
from tensorflow.python.ops import script_ops

from gradtricks.doctor.recording import replaced
from gradtricks.doctor.tensorflow._graph import is_watched, unwrapped
from gradtricks.doctor.tensorflow._recording import TensorRecorder

_DETACHED = ("StopGradient", "PreventGradient")
_ASSIGNING = ("Assign", "ResourceScatter", "ResourceApply", "ResourceStridedSliceAssign")
# Printing a tensor, or asking for a shape, isn't computing with it.
_PRINTING = (ops.numpy_text, ops._EagerTensorBase.__format__)
_LOOKING = {function.__code__ for function in (*_PRINTING, tensor_util.constant_value)}


class Recorder(TensorRecorder):
    """Records each operation that runs while it is entered."""

    def __enter__(self) -> None:
        with ExitStack() as stack:
            stack.enter_context(replaced(record, "record_operation", self.on_custom_gradient()))
            stack.enter_context(replaced(ops._EagerTensorBase, "_numpy", self.on_export()))
            stack.enter_context(replaced(script_ops, "py_func_common", self.on_numpy_function()))
            stack.enter_context(replaced(tf.GradientTape, "_push_tape", self.on_start()))
            stack.enter_context(replaced(tf.GradientTape, "stop_recording", self.on_stop_recording()))
            op_callbacks.add_op_callback(self.on_operation)
            stack.callback(op_callbacks.remove_op_callback, self.on_operation)
            stack.enter_context(self.tape)
            self.tape.watch([unwrapped(leaf) for leaf in self.leaves if is_watched(leaf)])
            self.stack = stack.pop_all()

    def __exit__(self, *error: object) -> None:
        self.stack.close()

    def on_operation(
        self, name: Any, inputs: Any, attributes: Any, outputs: Any, op_name: Any = None, graph: Any = None
    ) -> None:
        name = name.decode() if isinstance(name, bytes) else name
        if graph is not None or not self.is_listening():
            return
        if name.startswith(_ASSIGNING):
            self.add_assignment(name, inputs)
        elif outputs:

            def rule(*gradients: Any) -> Any:
                return backprop._gradient_function(
                    name, attributes, len(inputs), inputs, outputs, gradients, (), ""
                )

            recording = self.is_recording()
            reason = _reason(name, outputs, recording)
            self.add(name, list(inputs), list(outputs), rule if recording else None, reason)
            self.add_indices(list(outputs))

    def on_custom_gradient(self) -> Callable[..., None]:
        """Return what records a function with a gradient of its own, which replaces what ran inside of it."""
        original = record.record_operation

        def record_operation(
            name: str, outputs: Any, inputs: Any, backward_function: Any, forward_function: Any = None
        ) -> None:
            original(name, outputs, inputs, backward_function, forward_function)
            eager = all(isinstance(tensor, ops.EagerTensor) for tensor in [*outputs, *inputs])
            if eager and self.is_listening():
                recording = self.is_recording()
                reason = "not traced" if name.startswith("__") else "gradient rule"
                rule, reason = (backward_function, reason) if recording else (None, "not recorded")
                self.add(name, list(inputs), list(outputs), rule, reason)

        return record_operation

    def on_export(self) -> Callable[[tf.Tensor], Any]:
        """Return what reads a tensor for Python or NumPy."""
        original = ops._EagerTensorBase._numpy

        def numpy(tensor: tf.Tensor) -> Any:
            values, frame = original(tensor), sys._getframe(1)
            callers = {frame.f_code, frame.f_back.f_code if frame.f_back else None}
            if self.is_listening() and not callers & _LOOKING:
                name = frame.f_code.co_name
                self.export(
                    f"Tensor.{name}", [self.read(tensor)], int(values) if name == "__int__" else values
                )
            return values

        return numpy

    def on_numpy_function(self) -> Callable[..., Any]:
        """Return what runs a NumPy function on tensors; it reads them behind the recorder's back."""
        original = script_ops.py_func_common

        def py_func_common(function: Any, inputs: Any, *rest: Any, **options: Any) -> Any:
            tensors = [tensor for tensor in tf.nest.flatten(inputs) if isinstance(tensor, ops.EagerTensor)]
            if self.is_listening() and tensors:
                self.export("numpy_function", [self.read(tensor) for tensor in tensors], None)
            return original(function, inputs, *rest, **options)

        return py_func_common

    def on_start(self) -> Callable[[tf.GradientTape], None]:
        """Return what starts a tape or goes on with it; a tape that starts here isn't the user's."""
        original = tf.GradientTape._push_tape

        def push_tape(tape: tf.GradientTape) -> None:
            self.tapes += [tape] if tape._tape is None else []
            original(tape)

        return push_tape

    def on_stop_recording(self) -> Callable[[tf.GradientTape], Any]:
        """Return what stops a tape, and ours with it if that tape was there before."""
        original = tf.GradientTape.stop_recording

        @contextmanager
        def stop_recording(tape: tf.GradientTape) -> Iterator[None]:
            with ExitStack() as stack:
                stack.enter_context(original(tape))
                known = any(tape is other for other in self.tapes)
                if self.is_listening() and self.tape._recording and not known:
                    stack.enter_context(original(self.tape))
                yield

        return stop_recording


def _reason(name: str, outputs: list[tf.Tensor], recording: bool) -> str:
    if name in _DETACHED:
        return "detached"
    if not any(backprop_util.IsTrainable(tensor) for tensor in outputs):
        return "integer cast" if name == "Cast" else "not differentiable"
    if not recording:
        return "not recorded"
    return "not traced" if name.startswith("__") else "not differentiable"
