"""The Pong player: two matrices, and the policy gradient that changes them."""

from collections.abc import Mapping

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from tensorflow import Tensor

from gradtricks.agents.reinforce import BasePolicy
from gradtricks.agents.tensorflow.learners import Trainable
from gradtricks.tensorflow import discounted_returns, policy_gradient_loss, standardize

Array = NDArray[np.floating]
Weights = Mapping[str, Tensor]


class PongPolicy(Trainable, BasePolicy):
    """See `gradtricks.agents.reinforce.BasePolicy`."""

    def _place(self, weights: Mapping[str, Array], device: str) -> None:
        # Keras adds its epsilon under the root.
        self._begin(weights, device, keras.optimizers.RMSprop(rho=self.decay, epsilon=self.epsilon**2))

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
            self._optimizer.learning_rate = self.learning_rate
            self._optimizer.apply([gradients[name] for name in self.weights], list(self.weights.values()))
        return float(loss)

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
