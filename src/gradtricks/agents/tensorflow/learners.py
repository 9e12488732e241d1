"""The base of the learners in TensorFlow: a device, a seed, weights that an optimizer moves, their state."""

import random
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from gradtricks._core.checks import check_choice

DEVICES = ("auto", "cpu", "gpu")


def resolve_device(device: str = "auto") -> str:
    """Return TensorFlow's name of a device; ``"auto"`` is a GPU when there is one.

    Raises:
        ValueError: Another name, or ``"gpu"`` where there is none.
    """
    check_choice("device", device, DEVICES)
    available = bool(tf.config.list_physical_devices("GPU"))
    if device == "gpu" and not available:
        raise ValueError("device is 'gpu' but TensorFlow sees none; remedy: pass 'cpu' or 'auto'")
    return "/GPU:0" if available and device != "cpu" else "/CPU:0"


def set_seed(seed: int) -> None:
    """Seed TensorFlow and Keras, and ask for deterministic operations."""
    tf.random.set_seed(seed)
    random.seed(seed)  # Keras' layers draw the seeds of their weights from Python's own generator
    tf.config.experimental.enable_op_determinism()


class Adam(keras.optimizers.Adam):
    """Keras' own, with epsilon added once the moments are corrected, as in the paper and in PyTorch."""

    @property
    def epsilon(self) -> Any:
        """Added by Keras to the root of the moment before its correction."""
        step = ops.cast(self.iterations + 1, "float32")
        return self._epsilon * ops.sqrt(1 - ops.power(self.beta_2, step))

    @epsilon.setter
    def epsilon(self, value: float) -> None:
        self._epsilon = value


class Trainable:
    """Weights by name on a device, and Keras' optimizer of them."""

    weights: dict[str, tf.Variable]
    device: str
    _optimizer: Any

    def _begin(self, weights: Mapping[str, np.ndarray], device: str, optimizer: Any) -> None:
        self.device = resolve_device(device)
        self._optimizer = optimizer
        with tf.device(self.device):
            self.weights = {name: tf.Variable(value) for name, value in weights.items()}
            optimizer.build(list(self.weights.values()))

    def state(self) -> dict[str, np.ndarray]:
        """Return copies of the weights, under their names, and of the optimizer's state."""
        return {name: variable.numpy() for name, variable in self._variables().items()}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Go on from what `state` returned, of a learner made with the same arguments."""
        for name, variable in self._variables().items():
            variable.assign(state[name])

    def _variables(self) -> dict[str, tf.Variable]:
        own = {f"optimizer/{i}": variable.value for i, variable in enumerate(self._optimizer.variables)}
        return {**self.weights, **own}
