"""What learners in TensorFlow share: weights that an optimizer moves, and a state that can be saved."""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from gradtricks.agents.tensorflow.devices import resolve_device


class Adam(keras.optimizers.Adam):
    """Keras' own, with epsilon added once the moments are corrected, as in the paper and in PyTorch."""

    @property
    def epsilon(self) -> Any:
        """What Keras adds to the root of the moment that it hasn't corrected yet."""
        step = ops.cast(self.iterations + 1, "float32")
        return self._epsilon * ops.sqrt(1 - ops.power(self.beta_2, step))

    @epsilon.setter
    def epsilon(self, value: float) -> None:
        self._epsilon = value


class Trainable:
    """Weights on a device, and Keras' optimizer of them.

    Attributes:
        weights: Under their names.
        device: Where they are.
    """

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
