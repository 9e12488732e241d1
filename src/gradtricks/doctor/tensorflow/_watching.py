"""Watching training steps of TensorFlow without changing them."""

from collections.abc import Callable
from contextlib import ExitStack
from functools import wraps
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from gradtricks.doctor.history import Event
from gradtricks.doctor.operations import BAD, Operation, SourceLine, calling_line
from gradtricks.doctor.recording import replaced
from gradtricks.doctor.reports import Cause, GradientReport
from gradtricks.doctor.tensorflow._graph import array_of, status_of, unwrapped
from gradtricks.doctor.tensorflow._late import LateRecorder
from gradtricks.doctor.tensorflow._updates import Updates
from gradtricks.doctor.tensorflow.tracing import eagerly, explained
from gradtricks.doctor.watching import EnoughSeen, Watching
from gradtricks.tensorflow._masked_optimizer import MaskedOptimizer

_CLIPS = ("clip_by_global_norm", "clip_by_norm", "clip_by_value")


class Watch(Watching):
    """Watches what a training does: its operations, gradients, clips, modes and updates."""

    recorder: LateRecorder

    def __init__(self, *, limit: int | None = 0) -> None:
        super().__init__(limit)
        self.optimizers = set[int]()
        self.called: list[keras.Layer] = []  # by the outermost layer
        self.evaluating = False  # whether the outermost layer was called with training=False
        self.names: dict[int, str] = {}
        self.variables: list[Any] = []
        self.updates = Updates(self.history, self.names)
        self.unheld: dict[int, SourceLine | None] = {}  # that a loss needs and its model doesn't have
        self.recorder = LateRecorder([])

    def add(self, model: keras.Layer, prefix: str = "") -> None:
        self.models.append(model)
        for variable in model.variables:
            if tf.as_dtype(variable.dtype).is_floating and id(unwrapped(variable)) not in self.names:
                name = self.names[id(unwrapped(variable))] = prefix + variable.path
                self.variables.append(variable)
                (self.history.trainable if variable.trainable else self.history.frozen).append(name)
                self.recorder.add_input(variable)

    def __enter__(self) -> "Watch":
        base = next(kind for kind in keras.optimizers.Optimizer.__mro__ if "apply" in vars(kind))
        self.stack = ExitStack()
        self.stack.enter_context(eagerly())
        for owner, name, heard in (
            (tf.GradientTape, "gradient", self.on_gradient),
            (base, "apply", self.on_apply),
            (MaskedOptimizer, "apply", self.on_apply),
            (keras.optimizers.LossScaleOptimizer, "apply", self.on_scaled),
            (keras.optimizers.LossScaleOptimizer, "scale_loss", self.on_scale),
            (keras.Layer, "__call__", self.on_layer),
            (keras.layers.Dropout, "call", self.on_call),
            (keras.layers.BatchNormalization, "call", self.on_call),
            (tf.nn, "dropout", self.on_dropout),
            (tf.nn, "sigmoid_cross_entropy_with_logits", self.on_logits),
            *((tf, name, self.on_clip) for name in _CLIPS),
        ):
            self.stack.enter_context(replaced(owner, name, heard(getattr(owner, name))))
        self.begin()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        self.recorder.__exit__()
        self.stack.close()
        # Keras refuses to update without any gradient, which the record says more of.
        refused = isinstance(error, ValueError) and "No gradients provided" in str(error)
        meant = isinstance(error, EnoughSeen) or refused
        self.look_back(None if meant else error)
        return meant

    def begin(self) -> None:
        """Forget the operations of the step before."""
        self.recorder = LateRecorder(list(self.variables))
        self.calls: list[tuple[Any, bool, SourceLine | None]] = []
        self.untracked: dict[int, tuple[int, SourceLine | None]] = {}  # variables that a model read
        self.silent, self.scaled = [], []
        self.recorder.__enter__()

    def end_step(self) -> None:
        """Keep what was run as in training, and used for no loss."""
        self.history.events += [event for event, _ in self.silent]
        self.history.unregistered = [p for i, p in self.unheld.items() if p and i not in self.updates.given]
        self.recorder.__exit__()
        self.begin()

    def on_gradient(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def gradient(tape: tf.GradientTape, target: Any, sources: Any, *rest: Any, **options: Any) -> Any:
            if self.recorder.is_deaf or tape is self.recorder.tape:
                return original(tape, target, sources, *rest, **options)
            asked = tf.nest.flatten(sources)
            if not all(id(unwrapped(source)) in self.names for source in asked):
                self.note_coupling(asked)
                return original(tape, target, sources, *rest, **options)
            with self.recorder.unheard(), self.recorder.tape.stop_recording():
                found = original(tape, target, sources, *rest, **options)
                given = tf.nest.flatten(found, expand_composites=False)
                self.look([tf.convert_to_tensor(x) for x in tf.nest.flatten(target)], asked, given)
            return found

        return gradient

    def look(self, targets: list[tf.Tensor], asked: list[Any], found: list[Any]) -> None:
        place = calling_line()
        statuses = self.updates.take(asked, found)
        reached = tuple(name for name, s in statuses.items() if s not in ("none", "zero everywhere"))
        self.note_backward(targets, place, reached)
        needed = self.recorder.needed(targets, whole=True) if self.untracked else set()
        self.unheld |= {key: line for key, (number, line) in self.untracked.items() if number in needed}
        self.note_mode()
        losses = self.as_it_was(targets)
        loss = next((s for s in map(status_of, losses) if s in BAD), "fine")
        self.judge(statuses, losses, loss, place)

    def explain(self, outputs: list[Any]) -> GradientReport:
        return explained(self.recorder, list(self.names.values()) if outputs else [], outputs)

    def largest(self, gradients: list[Any]) -> list[float]:
        return [float(np.abs(array_of(tf.convert_to_tensor(gradient))).max()) for gradient in gradients]

    def note_mode(self) -> None:
        """Say so where no dropout or normalization ran as in training."""
        calls, self.calls = self.calls, []
        if calls and not any(training for _, training, _ in calls):
            names = tuple(dict.fromkeys(type(layer).__name__ for layer, *_ in calls))
            self.note("trained", place=calls[0][2], subjects=names)

    def note_coupling(self, asked: list[Any]) -> None:
        """Say so where the gradient of samples is asked for that normalization couples."""
        names = [type(layer).__name__ for layer, training, _ in self.calls if training and _normalizes(layer)]
        samples = [s for s in asked if isinstance(s, tf.Tensor) and s.shape.rank and s.shape.rank > 1]
        if names and any(len(sample) > 1 for sample in samples):
            self.note("coupled", subjects=tuple(dict.fromkeys(names)))

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
                self.silent.append((event, [made]))
            return made

        return call

    def on_layer(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return what calls a layer; an outermost one is a model that the program trains."""

        @wraps(original)
        def call(layer: Any, *args: Any, **options: Any) -> Any:
            self.called.append(layer)
            if self.depth or not tf.executing_eagerly():
                return original(layer, *args, **options)
            self.called = [layer]
            before, self.evaluating = len(self.recorder.operations), options.get("training") is False
            self.depth += 1
            try:
                made = original(layer, *args, **options)
            finally:
                self.depth -= 1
            # A model that is being built calls its layers too, on what isn't a tensor yet.
            if any(isinstance(tensor, tf.Tensor) for tensor in tf.nest.flatten(made)):
                if self.limit:
                    self.add_outermost(layer, layer.name)
                self.find_untracked(layer, self.recorder.operations[before:])
            return made

        return call

    def find_untracked(self, layer: keras.Layer, operations: list[Operation]) -> None:
        """Note which trainable variables a layer read that aren't its own."""
        mine = [*layer.variables, *(v for inner in self.called for v in inner.non_trainable_variables)]
        known = {id(unwrapped(variable)) for variable in mine}
        lines = {o.inputs[0]: o.place for o in operations if o.name == "ReadVariableOp"}
        for variable in self.recorder.tape.watched_variables():
            number = self.recorder.numbers.get(variable.handle._id, 0)
            if number in lines and id(variable) not in known:
                self.untracked.setdefault(id(variable), (number, lines[number]))

    def on_dropout(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return what drops elements in every mode."""

        def dropout(x: Any, rate: Any, *args: Any, **options: Any) -> Any:
            if self.depth and self.evaluating and rate:
                seen = "tf.nn.dropout ran as in training, in a model that was called with training=False"
                remedy = "if training: x = tf.nn.dropout(x, rate), with training from call(self, x, training)"
                cause = Cause("evaluation in training mode", (), seen, calling_line(), remedy)
                self.history.tell(cause)
            return original(x, rate, *args, **options)

        return dropout

    def on_logits(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return what takes logits, and is made of several operations."""

        def loss(labels: Any = None, logits: Any = None, name: Any = None) -> Any:
            logits = tf.convert_to_tensor(logits)
            made = original(labels=labels, logits=logits, name=name)
            if isinstance(made, tf.Tensor) and tf.executing_eagerly():
                numbers = self.recorder.read(logits), self.recorder.read(made)
                operation = Operation(
                    "sigmoid_cross_entropy_with_logits", calling_line(), numbers[:1], numbers[1:]
                )
                self.recorder.composed.append(operation)
            return made

        return loss

    def on_clip(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return what clips tensors; only those that are gradients are of interest."""

        def clip(tensors: Any, *rest: Any, **options: Any) -> Any:
            given = [tensor for tensor in tf.nest.flatten(tensors) if self.updates.is_gradient(tensor)]
            if given and not self.recorder.is_deaf:
                self.updates.clipped.append((self.note("clip", size=len(given)), given))
            return original(tensors, *rest, **options)

        return clip

    def on_apply(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def apply(optimizer: Any, grads: Any, trainable_variables: Any = None) -> Any:
            if self.recorder.is_deaf:  # within an optimizer that wraps this one
                return original(optimizer, grads, trainable_variables)
            variables = trainable_variables
            variables = optimizer._trainable_variables if variables is None else variables
            with self.recorder.unheard(), self.recorder.tape.stop_recording():
                if self.updates.only_accumulates(optimizer):
                    self.note("accumulated")
                    return original(optimizer, grads, trainable_variables)
                self.updates.before(optimizer, list(grads), list(variables), calling_line())
                result = original(optimizer, grads, trainable_variables)
                self.updates.after()
            self.note("update")
            self.optimizers.add(id(optimizer))
            self.end_update(len(self.optimizers))
            return result

        return apply

    def on_scaled(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return what undoes the scaling of the loss, and may leave out the update."""

        def apply(optimizer: Any, *args: Any, **options: Any) -> Any:
            event = self.note("unscale")
            result = original(optimizer, *args, **options)
            if self.history.events[-1] is event and not self.recorder.is_deaf:
                self.updates.skip()
                self.optimizers.add(id(optimizer.inner_optimizer))
                self.note_skip(len(self.optimizers))
            return result

        return apply

    def on_scale(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return what scales a loss."""

        def scale_loss(optimizer: Any, loss: Any) -> Any:
            scaled = original(optimizer, loss)
            self.scaled.append((tf.convert_to_tensor(loss), scaled))
            return scaled

        return scale_loss


def _normalizes(layer: Any) -> bool:
    return isinstance(layer, keras.layers.BatchNormalization)
