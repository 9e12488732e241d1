"""Watching training steps of TensorFlow without changing them."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.eager import record

from gradtricks.doctor.operations import BAD, SourceLine, calling_line
from gradtricks.doctor.recording import replaced
from gradtricks.doctor.reports import GradientReport
from gradtricks.doctor.tensorflow._graph import array_of, status_of, unwrapped
from gradtricks.doctor.tensorflow._late import LateRecorder
from gradtricks.doctor.tensorflow._layers import Layers
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
        self.optimizers = set[Any]()  # by id; the names of what is updated by hand
        self.names: dict[int, str] = {}
        self.variables: list[Any] = []
        self.updates, self.layers = Updates(self.history, self.names), Layers(self)
        self.unheld: dict[int, SourceLine | None] = {}  # that a loss needs and its model doesn't have
        self.recorder = LateRecorder([])

    def add(self, model: keras.Layer, prefix: str = "") -> None:
        self.models.append(model)
        for variable in model.variables:
            self.add_variable(variable, prefix + variable.path)

    def add_variable(self, variable: Any, name: str) -> None:
        """Watch a variable of numbers, unless it is known."""
        key, dtype = id(unwrapped(variable)), tf.as_dtype(variable.dtype)
        if key not in self.names and (dtype.is_floating or dtype.is_complex):
            self.names[key] = name
            self.variables.append(variable)
            (self.history.trainable if variable.trainable else self.history.frozen).append(name)
            self.recorder.add_input(variable)

    def __enter__(self) -> "Watch":
        base = next(kind for kind in keras.optimizers.Optimizer.__mro__ if "apply" in vars(kind))
        self.stack = ExitStack()
        self.stack.enter_context(eagerly())
        for owner, name, heard in (
            (tf.GradientTape, "__enter__", self.on_tape),
            (tf.GradientTape, "gradient", self.on_gradient),
            (base, "apply", self.on_apply),
            (MaskedOptimizer, "apply", self.on_apply),
            (keras.optimizers.LossScaleOptimizer, "apply", self.on_scaled),
            (keras.optimizers.LossScaleOptimizer, "scale_loss", self.on_scale),
            *self.layers.stand_ins(),
            *((tf, name, self.on_clip) for name in _CLIPS),
        ):
            self.stack.enter_context(replaced(owner, name, heard(getattr(owner, name))))
        self.begin()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        self.note_by_hand()
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
        self.layers.begin()
        self.silent, self.scaled = [], []
        self.recorder.__enter__()

    def end_step(self) -> None:
        """Keep what was run as in training, and used for no loss."""
        self.note_by_hand()
        self.layers.tell_penalties()
        self.history.events += [event for event, _ in self.silent]
        self.history.unregistered = [p for i, p in self.unheld.items() if p and i not in self.updates.given]
        self.recorder.__exit__()
        self.begin()

    def on_gradient(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def gradient(tape: tf.GradientTape, target: Any, sources: Any, *rest: Any, **options: Any) -> Any:
            if not self.recorder.is_listening() or tape is self.recorder.tape:
                return original(tape, target, sources, *rest, **options)
            asked = tf.nest.flatten(sources)
            if self.limit:
                self.add_sources(asked)
            known = [id(unwrapped(source)) in self.names for source in asked]
            if not all(known):
                self.layers.note_coupling(asked)
            if not any(known):
                return original(tape, target, sources, *rest, **options)
            with self.recorder.unheard(), self.recorder.tape.stop_recording():
                found = original(tape, target, sources, *rest, **options)
                given = tf.nest.flatten(found, expand_composites=False)
                targets = [tf.convert_to_tensor(x) for x in tf.nest.flatten(target)]
                self.look(targets, *([x for x, k in zip(xs, known) if k] for xs in (asked, given)))
            return found

        return gradient

    def add_sources(self, asked: list[Any]) -> None:
        """Watch variables that a program trains, and that are no model's."""
        for source in asked:
            if isinstance(source, tf.Variable | keras.Variable) and source.trainable:
                name = unwrapped(source).name.partition(":")[0]
                taken = name in self.names.values()
                self.add_variable(source, f"{name} {len(self.names)}" if taken else name)

    def on_tape(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return what starts a tape, before which an update by hand was done."""

        def enter(tape: tf.GradientTape) -> tf.GradientTape:
            mine = not self.recorder.is_listening() or tape is self.recorder.tape
            if not mine and tf.executing_eagerly() and self.note_by_hand():
                self.end_update(len(self.optimizers))
            return original(tape)

        return enter

    def note_by_hand(self) -> bool:
        """Note an update that the program has made without an optimizer of Keras; say whether it has."""
        with self.recorder.unheard(), record.stop_recording():
            update = self.updates.by_hand(self.recorder)
        if update:
            names, place = update
            self.note("update", place=place)
            self.optimizers.add(names)
        return bool(update)

    def look(self, targets: list[tf.Tensor], asked: list[Any], found: list[Any]) -> None:
        place = calling_line()
        statuses = self.updates.take(asked, found)
        reached = tuple(name for name, s in statuses.items() if s not in ("none", "zero everywhere"))
        self.note_backward(targets, place, reached)
        needed = self.recorder.needed(targets, whole=True) if self.layers.untracked else set()
        self.unheld |= {
            key: line for key, (number, line) in self.layers.untracked.items() if number in needed
        }
        self.layers.note_mode()
        self.layers.note_penalties(targets, asked)
        losses = self.as_it_was(targets)
        loss = next((s for s in map(status_of, losses) if s in BAD), "fine")
        self.judge(statuses, losses, loss, place)

    def explain(self, outputs: list[Any]) -> GradientReport:
        return explained(self.recorder, list(self.names.values()) if outputs else [], outputs)

    def largest(self, gradients: list[Any]) -> list[float]:
        return [float(np.abs(array_of(tf.convert_to_tensor(gradient))).max()) for gradient in gradients]

    def on_clip(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return what clips tensors; only those that are gradients are of interest."""

        def clip(tensors: Any, *rest: Any, **options: Any) -> Any:
            given = [tensor for tensor in tf.nest.flatten(tensors) if self.updates.is_gradient(tensor)]
            if given and self.recorder.is_listening():
                self.updates.clipped.append((self.note("clip", size=len(given)), given))
            return original(tensors, *rest, **options)

        return clip

    def on_apply(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def apply(optimizer: Any, grads: Any, trainable_variables: Any = None) -> Any:
            if not self.recorder.is_listening():  # within another optimizer, or in another thread
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
            if self.history.events[-1] is event and self.recorder.is_listening():
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
