"""The Pong player: two matrices, and the policy gradient that changes them."""

from collections.abc import Mapping

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from tensorflow import Tensor

from gradtricks.agents.reinforce import BasePolicy
from gradtricks.agents.tensorflow.devices import resolve_device
from gradtricks.tensorflow import discounted_returns, policy_gradient_loss, standardize

Array = NDArray[np.floating]
Weights = Mapping[str, Tensor]


class PongPolicy(BasePolicy):
    """See `gradtricks.agents.reinforce.BasePolicy`."""

    def _place(self, weights: Mapping[str, Array], device: str) -> None:
        self.device = resolve_device(device)
        with tf.device(self.device):
            self.weights = {name: tf.Variable(value) for name, value in weights.items()}
            self._squares = {name: tf.Variable(tf.zeros_like(value)) for name, value in weights.items()}

    def logits(self, observations: NDArray[np.int8]) -> Array:
        """Return unnormalised log-probabilities ``[B, 3]`` for ``[B, 6400]``."""
        with tf.device(self.device):
            seen = tf.constant(observations)
            logits: Array = _logits_graph(self._read(), seen).numpy()
        return logits

    def advantages(self, rewards: Array, discount: float) -> Array:
        """Discount the rewards ``[B]`` of points laid end to end within each, then standardise all."""
        with tf.device(self.device):
            r_t = self._tensor(rewards)
            returns = discounted_returns(r_t, discount * tf.cast(r_t == 0, r_t.dtype))
            advantages: Array = standardize(returns).numpy()
        return advantages

    def learn(self, observations: NDArray[np.int8], actions: NDArray[np.int64], advantages: Array) -> float:
        """Take one step of RMSProp down the loss, and return the loss before it."""
        with tf.device(self.device):
            seen, done = tf.constant(observations), tf.constant(actions)
            move_cost = self._tensor(self.move_cost)
            loss, gradients = _gradients_graph(self._read(), seen, done, self._tensor(advantages), move_cost)
            for name, weight in self.weights.items():
                square = self._squares[name]
                square.assign(self.decay * square + (1 - self.decay) * tf.square(gradients[name]))
                weight.assign_sub(self.learning_rate * gradients[name] / (tf.sqrt(square) + self.epsilon))
        return float(loss)

    def state(self) -> dict[str, Array]:
        """Return copies of the weights, under their names, and of RMSProp's state."""
        return {name: variable.numpy() for name, variable in self._variables().items()}

    def restore(self, state: Mapping[str, Array]) -> None:
        """Go on from what `state` returned."""
        for name, variable in self._variables().items():
            variable.assign(state[name])

    def _variables(self) -> dict[str, tf.Variable]:
        return self.weights | {f"{name}/square": square for name, square in self._squares.items()}

    def _read(self) -> dict[str, Tensor]:
        # Given as tensors, the weights of every policy fit the same graph.
        return {name: tf.convert_to_tensor(weight) for name, weight in self.weights.items()}

    def _tensor(self, values: float | Array) -> Tensor:
        return tf.constant(values, self.weights["hidden"].dtype)


def _logits(weights: Weights, observations: Tensor) -> Tensor:
    hidden = tf.nn.relu(tf.cast(observations, weights["hidden"].dtype) @ weights["hidden"])
    return hidden @ weights["logits"]


def _gradients(
    weights: Weights, observations: Tensor, actions: Tensor, advantages: Tensor, move_cost: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    with tf.GradientTape() as tape:
        tape.watch(weights)
        loss = _loss(weights, observations, actions, advantages, move_cost)
    return loss, tape.gradient(loss, weights)


def _loss(
    weights: Weights, observations: Tensor, actions: Tensor, advantages: Tensor, move_cost: Tensor
) -> Tensor:
    logits = _logits(weights, observations)
    moving = tf.reduce_sum(tf.nn.softmax(logits)[:, 1:], -1)
    return policy_gradient_loss(logits, actions, advantages) + move_cost * tf.reduce_mean(moving)


_logits_graph = tf.function(_logits, reduce_retracing=True)
_gradients_graph = tf.function(_gradients, reduce_retracing=True)
