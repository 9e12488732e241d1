"""Watching the layers of Keras: their modes, their variables, and functions that depend on a mode."""

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import keras
import tensorflow as tf

from gradtricks.doctor.history import Event
from gradtricks.doctor.operations import Operation, SourceLine, calling_line
from gradtricks.doctor.reports import Cause
from gradtricks.doctor.tensorflow._graph import tensor_of, unwrapped


class Layers:
    """Follows the calls of layers."""

    def __init__(self, watch: Any) -> None:
        self.watch = watch
        self.called: list[keras.Layer] = []  # by the outermost layer
        self.evaluating = False  # whether the outermost layer was called with training=False
        # Names of weights with a regularizer: those that a loss read beside the calls of layers, and the line
        # of a loss that read them in such calls alone.
        self.penalized, self.unpenalized = set[str](), dict[str, SourceLine | None]()

    def begin(self) -> None:
        """Forget the calls of the step before."""
        self.calls: list[tuple[Any, bool, SourceLine | None]] = []
        self.untracked: dict[int, tuple[int, SourceLine | None]] = {}  # variables that a model read
        self.spans: list[range] = []  # of the operations of outermost calls

    def stand_ins(self) -> Iterator[tuple[Any, str, Callable[..., Any]]]:
        """Yield the functions to replace, and what returns their stand-ins."""
        yield keras.Layer, "__call__", self.on_layer
        yield keras.layers.Dropout, "call", self.on_call
        yield keras.layers.BatchNormalization, "call", self.on_call
        yield tf.nn, "dropout", self.on_dropout
        yield tf.nn, "sigmoid_cross_entropy_with_logits", self.on_logits

    def note_mode(self) -> None:
        """Say so where no dropout or normalization ran as in training."""
        calls, self.calls = self.calls, []
        if calls and not any(training for _, training, _ in calls):
            names = tuple(dict.fromkeys(type(layer).__name__ for layer, *_ in calls))
            self.watch.note("trained", place=calls[0][2], subjects=names)

    def note_penalties(self, targets: list[tf.Tensor], asked: list[Any]) -> None:
        """Note which weights with a regularizer are read beside layers' calls, as a penalty reads them."""
        recorder, names = self.watch.recorder, self.watch.names
        weights = [v for v in asked if getattr(v, "regularizer", None) is not None]
        known = {recorder.read(tensor_of(v)): names[id(unwrapped(v))] for v in weights}
        if not known:
            return
        needed, maker = recorder.needed(targets), recorder.makers().get(recorder.read(targets[0]))
        for index, operation in enumerate(recorder.operations):
            read = operation.name == "ReadVariableOp" and needed.intersection(operation.outputs)
            name = known.get(operation.inputs[0]) if read else None
            if name and any(index in span for span in self.spans):
                self.unpenalized.setdefault(name, maker.place if maker else None)
            elif name:
                self.penalized.add(name)

    def tell_penalties(self) -> None:
        """Say which regularizers add nothing to what is trained."""
        missing = {n: place for n, place in self.unpenalized.items() if n not in self.penalized}
        if missing and self.watch.history.updates:
            seen = "these have a regularizer, and the loss holds no penalty: only their layers read them"
            place = next(iter(missing.values()))
            self.watch.history.tell(Cause("penalty left out", tuple(missing), seen, place))

    def note_coupling(self, asked: list[Any]) -> None:
        """Say so where the gradient of samples is asked for that normalization couples."""
        names = [type(layer).__name__ for layer, training, _ in self.calls if training and _normalizes(layer)]
        samples = [s for s in asked if isinstance(s, tf.Tensor) and s.shape.rank and s.shape.rank > 1]
        if names and any(len(sample) > 1 for sample in samples):
            self.watch.note("coupled", subjects=tuple(dict.fromkeys(names)))

    def on_call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return what runs a layer that depends on the mode."""

        @wraps(original)  # Keras reads the signature
        def call(layer: Any, inputs: Any, training: Any = None, **options: Any) -> Any:
            made = original(layer, inputs, training=training, **options)
            idle = not layer.trainable if _normalizes(layer) else layer.rate == 0
            if idle or not tf.executing_eagerly() or not isinstance(made, tf.Tensor):
                return made
            place = calling_line()
            self.calls.append((layer, bool(training), place))
            if training:
                event = Event("evaluated", place, subjects=(type(layer).__name__,))
                self.watch.silent.append((event, [made]))
            return made

        return call

    def on_layer(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return what calls a layer; an outermost one is a model that the program trains."""

        @wraps(original)
        def call(layer: Any, *args: Any, **options: Any) -> Any:
            self.called.append(layer)
            if self.watch.depth or not tf.executing_eagerly() or not self.watch.recorder.is_listening():
                return original(layer, *args, **options)
            self.called = [layer]
            before, self.evaluating = len(self.watch.recorder.operations), options.get("training") is False
            self.watch.depth += 1
            try:
                made = original(layer, *args, **options)
            finally:
                self.watch.depth -= 1
            self.spans.append(range(before, len(self.watch.recorder.operations)))
            # A model that is being built calls its layers too, on what isn't a tensor yet.
            if any(isinstance(tensor, tf.Tensor) for tensor in tf.nest.flatten(made)):
                if self.watch.limit:
                    self.watch.add_outermost(layer, layer.name)
                self.find_untracked(layer, self.watch.recorder.operations[before:])
            return made

        return call

    def find_untracked(self, layer: keras.Layer, operations: list[Operation]) -> None:
        """Note which trainable variables a layer read that aren't its own."""
        mine = [*layer.variables, *(v for inner in self.called for v in inner.non_trainable_variables)]
        known = {id(unwrapped(variable)) for variable in mine}
        lines = {o.inputs[0]: o.place for o in operations if o.name == "ReadVariableOp"}
        for variable in self.watch.recorder.tape.watched_variables():
            number = self.watch.recorder.numbers.get(variable.handle._id, 0)
            if number in lines and id(variable) not in known:
                self.untracked.setdefault(id(variable), (number, lines[number]))

    def on_dropout(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return what drops elements in every mode."""

        def dropout(x: Any, rate: Any, *args: Any, **options: Any) -> Any:
            if self.watch.depth and self.evaluating and rate:
                seen = "tf.nn.dropout ran as in training, in a model that was called with training=False"
                remedy = "if training: x = tf.nn.dropout(x, rate), with training from call(self, x, training)"
                cause = Cause("evaluation in training mode", (), seen, calling_line(), remedy)
                self.watch.history.tell(cause)
            return original(x, rate, *args, **options)

        return dropout

    def on_logits(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return what takes logits, and is made of several operations."""

        def loss(labels: Any = None, logits: Any = None, name: Any = None) -> Any:
            logits = tf.convert_to_tensor(logits)
            made = original(labels=labels, logits=logits, name=name)
            if isinstance(made, tf.Tensor) and tf.executing_eagerly():
                numbers = self.watch.recorder.read(logits), self.watch.recorder.read(made)
                operation = Operation(
                    "sigmoid_cross_entropy_with_logits", calling_line(), numbers[:1], numbers[1:]
                )
                self.watch.recorder.composed.append(operation)
            return made

        return loss


def _normalizes(layer: Any) -> bool:
    return isinstance(layer, keras.layers.BatchNormalization)
