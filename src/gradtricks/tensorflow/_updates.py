"""What optimizers of Keras are given, and what they make of it."""

from typing import Any

import numpy as np
import tensorflow as tf

from gradtricks._core.diagnosing import Event, Record, Update, Weight
from gradtricks._core.recorded import Place
from gradtricks.tensorflow._graph import array_of, status_of, unwrapped

_SHORT = ("float16", "bfloat16")


class Updates:
    """Follows the gradients of variables to their updates."""

    def __init__(self, record: Record, names: dict[int, str]) -> None:
        self.record, self.names = record, names
        self.asked: dict[int, Any] = {}  # the gradient of each variable, as a tape returned it
        self.passes: dict[int, int] = {}  # how many since the update
        self.clipped: list[tuple[Event, list[Any]]] = []
        self.weights: list[tuple[Weight, Any, np.ndarray, Any]] = []

    def take(self, asked: list[Any], found: list[Any]) -> dict[str, str]:
        """Take over what a tape returned; return the status of each."""
        self.asked |= {id(unwrapped(source)): gradient for source, gradient in zip(asked, found)}
        for source in asked:
            self.passes[id(unwrapped(source))] = self.passes.get(id(unwrapped(source)), 0) + 1
        statuses = {self.names[id(unwrapped(s))]: status_of(g) for s, g in zip(asked, found)}
        if not self.record.chain:
            matrices = [(s, g) for s, g in zip(asked, found) if g is not None and len(s.shape) > 1]
            sizes = {self.names[id(unwrapped(s))]: np.abs(array_of(_values(g))) for s, g in matrices}
            self.record.chain = {name: float(size.max()) for name, size in sizes.items() if size.size}
        return statuses

    def is_gradient(self, tensor: Any) -> bool:
        """Say whether a tape returned this tensor."""
        return any(tensor is gradient for gradient in self.asked.values() if gradient is not None)

    def before(self, optimizer: Any, gradients: list[Any], variables: list[Any], place: Place | None) -> None:
        """Keep what an update starts from."""
        for event, given in self.clipped:
            event.unused = any(gradient is tensor for gradient in gradients for tensor in given)
        self.clipped, self.weights = [], []
        counts: dict[str, int] = {}
        for variable, gradient in zip(variables, gradients):
            key = id(unwrapped(variable))
            name = self.names.get(key)
            if name is None:
                self.record.unknown.append(str(tuple(variable.shape)))
                continue
            counts[name] = counts.get(name, 0) + 1
            # What is added up from several passes may cancel.
            asked = self.asked.get(key) if self.passes.pop(key, 0) == 1 else None
            weight = Weight(name, tf.as_dtype(variable.dtype).name, variable.trainable, status_of(gradient))
            weight.masked = place if _masks(asked, gradient) else None
            self.weights.append((weight, variable, np.array(_read(variable)), gradient))
        self.record.held = {
            n: max(c, self.record.held.get(n, 0)) for n, c in ({"": 0} | self.record.held | counts).items()
        }
        weights = [weight for weight, *_ in self.weights]
        self.record.updates.append(Update(weights, float(optimizer.learning_rate), place))

    def after(self) -> None:
        """Compare it with what the update came to."""
        for weight, variable, before, gradient in self.weights:
            _compare(weight, before, _read(variable), gradient)
        self.weights = []


def dense(gradient: Any) -> tf.Tensor:
    """Return a gradient as a tensor of the shape of its variable."""
    return tf.convert_to_tensor(gradient)


def _compare(weight: Weight, before: np.ndarray, after: Any, gradient: Any) -> None:
    changed = before != after
    if weight.gradient == "nan" or not changed.any():
        weight.moved = 0.0
    elif not weight.trainable or gradient is None:
        weight.moved, weight.drifted = None, True
    elif weight.masked or weight.dtype in _SHORT:
        has = array_of(dense(gradient)) != 0
        weight.drifted = bool((changed & ~has).any())
        weight.moved = float((changed & has).sum() / has.sum()) if has.any() else None


def _masks(asked: Any, given: Any) -> bool:
    if asked is None or given is None or asked is given or isinstance(given, tf.IndexedSlices):
        return False
    return bool(((array_of(given) == 0) & (array_of(dense(asked)) != 0)).any())


def _read(variable: Any) -> Any:
    return array_of(tf.convert_to_tensor(variable))


def _values(gradient: Any) -> tf.Tensor:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
