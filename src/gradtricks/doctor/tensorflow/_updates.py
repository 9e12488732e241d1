"""The updates of Keras' optimizers: which gradients they are given, and which weights move."""

import math
from typing import Any

import numpy as np
import tensorflow as tf

from gradtricks.doctor.history import SMALL, Event, History, Update, Weight
from gradtricks.doctor.operations import SourceLine
from gradtricks.doctor.tensorflow._graph import array_of, status_of, tensor_of, unwrapped
from gradtricks.doctor.tensorflow._late import LateRecorder


class Updates:
    """Follows the gradients of variables to their updates."""

    def __init__(self, history: History, names: dict[int, str]) -> None:
        self.history, self.names = history, names
        self.asked: dict[int, Any] = {}  # the gradient of each variable, as a tape returned it
        self.passes: dict[int, int] = {}  # how many since the update
        # One variable tells how passes are put together: what they add up to, and what was used last.
        self.watched, self.whole, self.used = 0, np.zeros(()), np.zeros(())
        self.clipped: list[tuple[Event, list[Any]]] = []
        self.weights: list[tuple[Weight, Any, np.ndarray, Any]] = []
        self.given: set[int] = set()  # variables that were ever updated
        self.applied: set[int] = set()  # of these, what an optimizer of Keras was given
        # The others, and their values when their gradient was asked for.
        self.starts: dict[int, tuple[Any, np.ndarray]] = {}

    def take(self, asked: list[Any], found: list[Any]) -> dict[str, str]:
        """Take over what a tape returned; return the status of each."""
        self.asked |= {id(unwrapped(source)): gradient for source, gradient in zip(asked, found)}
        for source in asked:
            key = id(unwrapped(source))
            self.passes[key] = self.passes.get(key, 0) + 1
            if key not in self.applied and key not in self.starts:
                self.starts[key] = source, np.array(_read(source))
        dense_ones = {id(unwrapped(s)): g for s, g in zip(asked, found) if isinstance(g, tf.Tensor)}
        self.watched = self.watched or next(iter(dense_ones), 0)
        if self.watched in dense_ones:
            self.whole = self.whole + array_of(dense_ones[self.watched])
        statuses = {self.names[id(unwrapped(s))]: status_of(g) for s, g in zip(asked, found)}
        if not self.history.chain:
            matrices = [(s, g) for s, g in zip(asked, found) if g is not None and len(s.shape) > 1]
            sizes = {self.names[id(unwrapped(s))]: np.abs(array_of(_values(g))) for s, g in matrices}
            self.history.chain = {name: float(size.max()) for name, size in sizes.items() if size.size}
        return statuses

    def is_gradient(self, tensor: Any) -> bool:
        return any(tensor is gradient for gradient in self.asked.values() if gradient is not None)

    def before(
        self, optimizer: Any, gradients: list[Any], variables: list[Any], place: SourceLine | None
    ) -> None:
        for event, given in self.clipped:
            event.unused = any(gradient is tensor for gradient in gradients for tensor in given)
        self.clipped, self.weights = [], []
        used = {id(unwrapped(v)): g for v, g in zip(variables, gradients) if isinstance(g, tf.Tensor)}
        leftover = self.put_together(optimizer, used.get(self.watched))
        counts: dict[str, int] = {}
        self.applied |= {id(unwrapped(variable)) for variable in variables}
        self.given |= self.applied
        for variable, gradient in zip(variables, gradients):
            key = id(unwrapped(variable))
            name = self.names.get(key)
            if name is None:
                self.history.unknown.append(str(tuple(variable.shape)))
                continue
            counts[name] = counts.get(name, 0) + 1
            self.starts.pop(key, None)
            # What is added up from several passes may cancel.
            asked = self.asked.get(key) if self.passes.pop(key, 0) == 1 else None
            weight = _weight(name, variable, gradient)
            weight.masked = place if _masks(asked, gradient) else None
            weight.leftover = leftover and key == self.watched
            self.weights.append((weight, variable, np.array(_read(variable)), gradient))
        rate = float(optimizer.learning_rate)
        self.add(counts, [weight for weight, *_ in self.weights], rate, place)

    def add(
        self, counts: dict[str, int], weights: list[Weight], rate: float, place: SourceLine | None
    ) -> None:
        """Note an update, and how often each parameter is held."""
        self.history.held = {
            n: max(c, self.history.held.get(n, 0)) for n, c in ({"": 0} | self.history.held | counts).items()
        }
        self.history.updates.append(Update(weights, rate, place))

    def by_hand(self, recorder: LateRecorder) -> tuple[tuple[str, ...], SourceLine | None] | None:
        """Note an update that the program makes by assigning variables what it computed from gradients.

        Returns the names of the variables and the last line, or None if there was no such update.
        """
        open_ones = {key: self.starts[key] for key in self.passes if key in self.starts}
        gradients = [self.asked[key] for key in open_ones if self.asked[key] is not None]
        lines = recorder.assigned_from(map(_values, gradients)) if gradients else {}
        states = {key: recorder.read(tensor_of(v)) for key, (v, _) in open_ones.items() if lines}
        moved = [key for key, state in states.items() if state in lines]
        if not moved:
            return None
        weights = []
        for key in moved:
            (variable, before), gradient = open_ones[key], self.asked[key]
            weight = _weight(self.names[key], variable, gradient)
            self.compare(weight, before, variable, gradient)
            weights.append(weight)
        place = lines[states[moved[-1]]]
        self.add({weight.name: 1 for weight in weights}, weights, math.nan, place)  # of an unknown rate
        for event in self.history.passes():
            event.size = 0  # nor is it known how they were put together
        self.given.update(moved)
        self.skip()
        return tuple(weight.name for weight in weights), place

    def skip(self) -> None:
        """Forget the passes of an update that is left out, or made by hand."""
        self.passes, self.whole, self.clipped, self.starts = {}, np.zeros(()), [], {}

    def only_accumulates(self, optimizer: Any) -> bool:
        steps = optimizer.gradient_accumulation_steps
        return bool(steps) and int(optimizer._iterations + 1) % steps != 0

    def put_together(self, optimizer: Any, given: tf.Tensor | None) -> bool:
        """See how an update puts passes together; say whether it goes on with what was used before."""
        steps = optimizer.gradient_accumulation_steps
        factor, leftover = 1 / steps if steps else 0.0, 0.0
        if given is not None:
            values = array_of(given)
            factor = factor or _factor(values, self.whole)
            leftover = 0.0 if factor else _factor(values - self.used, self.whole)
            self.used, self.whole = np.array(values), np.zeros(())
        for event in self.history.passes():
            event.share *= factor
            event.size = event.size if factor else 0  # something else than their sum
        return bool(leftover)

    def after(self) -> None:
        for weight, variable, before, gradient in self.weights:
            self.compare(weight, before, variable, gradient)
        self.weights = []

    @staticmethod
    def compare(weight: Weight, before: np.ndarray, variable: Any, gradient: Any) -> None:
        """See what an update made of a variable."""
        needed = gradient is not None and (weight.masked or weight.short)
        weight.compare(
            before, _read(variable), array_of(tf.convert_to_tensor(gradient)) if needed else gradient
        )


def _weight(name: str, variable: Any, gradient: Any) -> Weight:
    """Return a variable as an update is given it."""
    weight = Weight(name, tf.as_dtype(variable.dtype).name, variable.trainable, status_of(gradient))
    if weight.gradient == "fine":
        values = array_of(_values(gradient))
        weight.size = float(abs(values).max(initial=0))
        if isinstance(gradient, tf.Tensor) and weight.size < SMALL:
            weight.look_for_underflow(values)
    return weight


def _factor(given: np.ndarray, whole: np.ndarray) -> float:
    """Return by what the one is a multiple of the other, or 0 if it is none."""
    with np.errstate(all="ignore"):
        whole = np.broadcast_to(whole, given.shape).astype("float64")
        factor = float((given * whole).sum() / max((whole * whole).sum(), 1e-300))
        alike = abs(given - factor * whole).max(initial=0) <= 1e-3 * abs(given).max(initial=0)
    return factor if alike else 0.0


def _masks(asked: Any, given: Any) -> bool:
    if asked is None or given is None or asked is given or isinstance(given, tf.IndexedSlices):
        return False
    return bool(((array_of(given) == 0) & (array_of(tf.convert_to_tensor(asked)) != 0)).any())


def _read(variable: Any) -> Any:
    return array_of(tf.convert_to_tensor(variable))


def _values(gradient: Any) -> tf.Tensor:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
