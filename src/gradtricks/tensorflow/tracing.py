"""Naming the operation that cut the path of a gradient."""

import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.eager import backprop, backprop_util, record
from tensorflow.python.framework import op_callbacks, ops
from tensorflow.python.ops import script_ops

from gradtricks.reference.tracing import (
    GradientReport,
    Input,
    Operation,
    Outside,
    bind,
    calling_place,
    explain,
    merged,
    named_leaves,
)
from gradtricks.tensorflow._tensors import TENSORS, as_tensor

_REMEDIES = {
    "detached": "leave out tf.stop_gradient where a gradient has to pass",
    "not recorded": "compute it outside of tape.stop_recording()",
    "integer cast": "stay in floating point, or gradtricks.tensorflow.straight_through(hard, soft)",
    "not differentiable": "use a differentiable stand-in (softmax for argmax, sigmoid for a comparison), or "
    "gradtricks.tensorflow.straight_through(hard, soft); for floor and round floor_straight_through and "
    "round_straight_through",
    "assigned": "use the new tensor itself; an assignment stores values, not where they came from",
    "copied": "use the tensor itself; a new variable doesn't know where its values came from",
    "numpy": "compute it with TensorFlow; .numpy(), float(), np.* and tf.numpy_function keep values only",
    "gradient rule": "return a gradient instead of None from the function under tf.custom_gradient",
    "replaced": "the output never reads the input, but another tensor of its shape. If the input was made "
    "from that one, compute the output from the input: z = x + delta; y = f(z); tape.gradient(y, z)",
    "made outside": "if this tensor was computed from the input, compute it inside of the function, with "
    "TensorFlow and while the tape is recording; if not, the output doesn't depend on the input",
    "unused": "let the output depend on it; nothing that was recorded leads from the input to the output",
    "not watched": "tape.watch(variable), or make it with trainable=True",
    "integer": "only floating-point tensors have gradients: tf.cast(tensor, tf.float32)",
    "not traced": "the path ends where nothing was recorded; give explain_gradient the Python function, not "
    "a concrete or loaded one",
    "zero everywhere": "the slope is 0 at every element: relu of negatives, clip beyond its range, sign, or "
    "a factor of 0",
    "nan": "keep its argument off the point where the slope is infinite, before and not after the operation: "
    "gradtricks.tensorflow.safe_where(condition, x, function, fallback)",
    "inf": "keep its argument off the point where the slope is infinite: clip it, or add an epsilon to it",
    "sum": "no single operation is to blame: the contributions of several paths cancel or overflow in sum",
    "overflow": "look at the values that go in here: the logarithm of 0, a division by 0, an exponential",
}
_LIBRARIES = ("tensorflow", "keras")
_DETACHED = ("StopGradient", "PreventGradient")
_ASSIGNING = ("Assign", "ResourceScatter", "ResourceApply", "ResourceStridedSliceAssign")
_OF_THE_SHAPE = ("Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike")
# What is replaced while the function runs is replaced for every thread.
_ONE_AT_A_TIME = threading.RLock()


def explain_gradient(function: Callable[..., Any], inputs: Any) -> GradientReport:
    """Run ``function`` once; say of each input whether a gradient reaches it, and if not, what cut the path.

    A tensor doesn't know which operations failed to record themselves. So this takes the function that
    computes the output, and watches it run. The function runs eagerly, compiled or not, with all its side
    effects; a tape of our own watches the tensors and the trainable variables among the inputs. Where the
    output isn't a number, its sum is differentiated. Calls from several threads wait for each other, and
    what else another thread runs meanwhile isn't recorded.

    Args:
        function: Returns a tensor or a structure of tensors. Called without arguments where it needs none, as
            a closure over the inputs; otherwise ``function(*inputs)``, or ``function(**inputs)`` for a dict.
        inputs: Tensors or variables: one, or nested lists, tuples and dicts of them, or a Keras model or
            layer, which stands for its trainable variables.

    Returns:
        One verdict for each input, with the operation, the line of code, the reason and the remedy; print it.
        An input is also judged by its gradient: zero everywhere, NaN or infinite, and where that began.

    Raises:
        TypeError: ``function`` isn't callable or doesn't return tensors, or an input isn't a tensor.
        ValueError: There are no inputs.
        RuntimeError: Called within a `tf.function`.
        LookupError: TensorFlow has no gradient for an operation on the path, and says so itself.

    References:
        "Show responsible nodes", https://github.com/tensorflow/tensorflow/issues/1768.

    Example:
        >>> x = tf.constant([1.0, 2.0])
        >>> report = explain_gradient(lambda x: tf.reduce_sum(tf.stop_gradient(x) ** 2), x)
        >>> report["x"].connected, report["x"].operation, report["x"].reason
        (False, 'StopGradient', 'detached')
    """
    call, named = _checked(function, inputs)
    recorder = _Recorder([leaf for _, leaf in named])
    with _ONE_AT_A_TIME, _eagerly(), recorder:
        leaves = [leaf for _, leaf in named_leaves("output", call(), _parts)]
        leaves = [tf.convert_to_tensor(leaf) if isinstance(leaf, TENSORS) else leaf for leaf in leaves]
    outputs = [recorder.read_output(leaf) for leaf in leaves]
    tensors = [leaf for leaf in leaves if isinstance(leaf, tf.Tensor)]
    gradients = recorder.differentiate(tensors)
    given = [recorder.described(name, i, g) for i, ((name, _), g) in enumerate(zip(named, gradients))]
    value = merged(map(_status, tensors))
    return explain(recorder.operations, given, outputs, recorder.outside, _REMEDIES, output=value)


def _checked(function: Callable[..., Any], inputs: Any) -> tuple[Callable[[], Any], list[tuple[str, Any]]]:
    if not callable(function):
        raise TypeError(
            f"function must be callable; got {type(function).__name__}; "
            "remedy: explain_gradient(lambda: ..., inputs), a tensor doesn't know what went unrecorded"
        )
    if not tf.executing_eagerly():
        raise RuntimeError(
            "explain_gradient must be called eagerly; got a call within tf.function; "
            "remedy: call it outside, on the function inside"
        )
    call, structures = bind(getattr(function, "python_function", function), inputs)
    named = [leaf for name, value in structures for leaf in named_leaves(name, value, _parts)]
    if not named:
        raise ValueError("inputs must hold a tensor; got none; remedy: name what the gradient is wanted for")
    for name, leaf in named:
        as_tensor(name, leaf)
    return call, named


def _parts(value: Any) -> list[tuple[str, Any]] | None:
    if isinstance(value, keras.Layer):
        return [(variable.path, variable) for variable in value.trainable_variables]
    return [("", value)] if isinstance(value, TENSORS) else None


@contextmanager
def _eagerly() -> Iterator[None]:
    before = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(before)


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


class _Link(NamedTuple):
    operation: Operation
    inputs: list[tf.Tensor]
    outputs: list[tf.Tensor]
    rule: Callable[..., Any] | None


class _Recorder:
    """Records each operation that runs: what it read and made, and what it passes a gradient to."""

    def __init__(self, inputs: list[Any]) -> None:
        self.operations: list[Operation] = []
        self.outside: dict[int, Outside] = {}
        self.numbers: dict[int, int] = {}
        self.links: list[_Link] = []
        self.is_deaf, self.thread = False, threading.get_ident()
        self.overflown: set[int] = set()
        self.integers: set[int] = set()
        self.host = self.last = 0  # the host's memory is one large tensor, number 0
        self.first = ops.uid()  # tensors count themselves: a greater number was made later
        self.tape = tf.GradientTape(persistent=True)
        self.tapes: list[tf.GradientTape] = []
        self.leaves, self.tensors = inputs, [_tensor_of(leaf) for leaf in inputs]
        self.starts = [self.read(tensor) for tensor in self.tensors]
        self.stack = ExitStack()

    def __enter__(self) -> None:
        with ExitStack() as stack:
            stack.enter_context(_replaced(record, "record_operation", self.on_custom_gradient()))
            stack.enter_context(_replaced(ops._EagerTensorBase, "_numpy", self.on_export()))
            stack.enter_context(_replaced(script_ops, "py_func_common", self.on_numpy_function()))
            stack.enter_context(_replaced(tf.GradientTape, "_push_tape", self.on_start()))
            stack.enter_context(_replaced(tf.GradientTape, "stop_recording", self.on_stop_recording()))
            op_callbacks.add_op_callback(self.on_operation)
            stack.callback(op_callbacks.remove_op_callback, self.on_operation)
            stack.enter_context(self.tape)
            self.tape.watch([_unwrapped(leaf) for leaf in self.leaves if _is_watched(leaf)])
            self.stack = stack.pop_all()

    def __exit__(self, *exception: object) -> None:
        self.stack.close()

    def on_operation(
        self, name: Any, inputs: Any, attributes: Any, outputs: Any, op_name: Any = None, graph: Any = None
    ) -> None:
        """Record an operation that has run."""
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
            callers = {frame.f_code.co_name, frame.f_back.f_code.co_name if frame.f_back else ""}
            # Printing a tensor, or asking for a shape, isn't computing with it.
            if self.is_listening() and not callers & {"numpy_text", "__format__", "constant_value"}:
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
            tensors = [tensor for tensor in tf.nest.flatten(inputs) if isinstance(tensor, tf.Tensor)]
            if self.is_listening():
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

    def is_listening(self) -> bool:
        """Say whether what runs now is the function's: neither ours nor another thread's."""
        return not self.is_deaf and threading.get_ident() == self.thread

    def is_recording(self) -> bool:
        """Say whether our tape records what runs now."""
        return self.tape._recording and record.could_possibly_record()

    def export(self, name: str, inputs: list[int], result: Any) -> None:
        """Record that values left for Python or NumPy."""
        self.integers |= {int(result)} if isinstance(result, int | np.integer) else set()
        inputs, self.host = [*inputs, self.host], self.next_number()
        place = calling_place(_LIBRARIES)
        self.operations.append(Operation(name, place, tuple(inputs), (self.host,), reason="numpy"))

    def may_come_from_the_host(self, tensor: tf.Tensor) -> bool:
        """Say whether a new tensor may have been computed from what left."""
        if tensor.dtype.is_integer:
            return not self.integers.isdisjoint(np.ravel(_array(tensor)).tolist())
        return self.host > 0 and tensor.dtype.is_floating

    def add(
        self,
        name: str,
        inputs: list[tf.Tensor],
        outputs: list[tf.Tensor],
        rule: Callable[..., Any] | None,
        reason: str,
    ) -> None:
        """Record an operation."""
        read = () if name in _OF_THE_SHAPE else tuple(self.read(tensor) for tensor in inputs)
        if name == "ReadVariableOp":
            self.describe_variable(read[0], outputs[0])
        made = tuple(self.register(tensor) for tensor in outputs)
        operation = Operation(_shown(name), calling_place(_LIBRARIES), read, made, reason=reason)
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
        place = calling_place(_LIBRARIES)
        self.operations.append(
            Operation(name, place, (before, *values), (after,), frozenset([before]), reason)
        )

    def read(self, tensor: tf.Tensor) -> int:
        """Return the number of a tensor."""
        known = self.numbers.get(tensor._id)
        return self.meet(tensor) if known is None else known

    def meet(self, tensor: tf.Tensor) -> int:
        """Return a number for a tensor that no recorded operation made."""
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
        variables = [_unwrapped(leaf) for leaf in self.leaves if not isinstance(leaf, tf.Tensor)]
        for variable in [*variables, *self.tape.watched_variables()]:
            if (variable.shape, variable.dtype) == (tensor.shape, tensor.dtype):
                with record.stop_recording(), self.unheard():
                    value = tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)
                if _is_a_reading(tensor, value):
                    return variable.handle
        return None

    @contextmanager
    def unheard(self) -> Iterator[None]:
        """Run an operation of our own."""
        self.is_deaf = True
        yield
        self.is_deaf = False

    def describe_variable(self, number: int, value: tf.Tensor) -> None:
        """Note what a variable looks like that existed before."""
        if number in self.outside:
            self.outside[number] = Outside(tuple(value.shape), value.dtype.name, parameter=True)

    def register(self, tensor: tf.Tensor) -> int:
        """Give a new tensor a number."""
        number = self.numbers.setdefault(tensor._id, self.last + 1)
        self.last = max(self.last, number)
        if _status(tensor) in ("nan", "inf"):
            self.overflown.add(number)
        return number

    def next_number(self) -> int:
        """Count on."""
        self.last += 1
        return self.last

    def read_output(self, leaf: Any) -> int:
        """Return the number of what the function returned."""
        if isinstance(leaf, tf.Tensor):
            return self.read(leaf)
        if isinstance(leaf, int | float | np.ndarray | np.generic):
            return self.host
        raise TypeError(
            f"function must return tensors; got {type(leaf).__name__}; remedy: return what is differentiated"
        )

    def differentiate(self, outputs: list[tf.Tensor]) -> list[str]:
        """Return the status of each input's gradient, and fill in what each operation passed on."""
        ends = [tensor for tensor in outputs if backprop_util.IsTrainable(tensor)]
        used = {t._id: t for link in self.links for t in [*link.inputs, *link.outputs]}
        used |= {tensor._id: tensor for tensor in self.tensors}
        wanted = {key: tensor for key, tensor in used.items() if backprop_util.IsTrainable(tensor)}
        found = self.tape.gradient(ends, list(wanted.values())) if ends else []
        gradients = dict(zip(wanted, found))
        for link in self.links:
            if any(backprop_util.IsTrainable(tensor) for tensor in link.outputs):
                self.follow(link, gradients)
        return [_status(gradients.get(tensor._id)) for tensor in self.tensors]

    def follow(self, link: _Link, gradients: dict[int, Any]) -> None:
        """Fill in what an operation passed on, by asking its rule once more."""
        operation, incoming = link.operation, [gradients.get(tensor._id) for tensor in link.outputs]
        operation.arrived = merged(map(_status, incoming))
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
                    operation.sent[number] = merged([operation.sent.get(number, "none"), _status(gradient)])

    def described(self, name: str, index: int, gradient: str) -> Input:
        """Return one input as the search wants it."""
        leaf = self.leaves[index]
        floating = tf.as_dtype(leaf.dtype).is_floating or tf.as_dtype(leaf.dtype).is_complex
        refused = "integer" if not floating else "" if _is_watched(leaf) else "not watched"
        like = Outside(tuple(leaf.shape), tf.as_dtype(leaf.dtype).name, not isinstance(leaf, tf.Tensor))
        return Input(name, self.starts[index], gradient, like, refused)


def _reason(name: str, outputs: list[tf.Tensor], recording: bool) -> str:
    if name in _DETACHED:
        return "detached"
    if not any(backprop_util.IsTrainable(tensor) for tensor in outputs):
        return "integer cast" if name == "Cast" else "not differentiable"
    if not recording:
        return "not recorded"
    return "not traced" if name.startswith("__") else "not differentiable"


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


def _tensor_of(leaf: Any) -> tf.Tensor:
    return leaf if isinstance(leaf, ops.EagerTensor) else leaf.handle


def _is_watched(leaf: Any) -> bool:
    if isinstance(leaf, tf.Tensor):
        return backprop_util.IsTrainable(leaf)
    return _unwrapped(leaf).trainable


def _unwrapped(leaf: Any) -> Any:
    return leaf.value if isinstance(leaf, keras.Variable) else leaf


def _shown(name: str) -> str:
    # A concrete function is called __forward_f_12 or __inference_f_12.
    return re.sub(r"^__(?:forward_|inference_)?(.*?)(?:_\d+)?$", r"\1", name) if name[:2] == "__" else name


def _array(tensor: tf.Tensor) -> Any:
    return tensor._numpy_internal()


def _is_a_reading(tensor: tf.Tensor, value: tf.Tensor) -> bool:
    a, b = (np.asarray(memoryview(t)) if t.shape.rank == 0 else _array(t) for t in (tensor, value))
    # A reading shares the variable's memory, unless that is on another device or is edited row by row.
    return a.ctypes.data == b.ctypes.data or (a.size > 1 and a.tobytes() == b.tobytes())


def _status(values: Any) -> str:
    if values is None:
        return "none"
    values = values.values if isinstance(values, tf.IndexedSlices) else values
    if not (values.dtype.is_floating or values.dtype.is_complex):
        return "fine"
    values = _array(values)
    if np.isnan(values).any():
        return "nan"
    if np.isinf(values).any():
        return "inf"
    return "fine" if np.size(values) == 0 or np.any(values) else "zero everywhere"
