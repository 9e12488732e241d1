"""The Pong player: two matrices, and the policy gradient that changes them."""

from collections.abc import Mapping

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from tensorflow import Tensor

from gradtricks._core.checks import check_number
from gradtricks.agents.pong import check_weights
from gradtricks.agents.tensorflow.devices import resolve_device
from gradtricks.tensorflow import discounted_returns, policy_gradient_loss, standardize

Array = NDArray[np.floating]
Weights = Mapping[str, Tensor]


class PongPolicy:
    """Sees a difference of pictures, prefers one of three actions, and learns by RMSProp.

    Args:
        weights: From `gradtricks.agents.pong.draw_weights`; their dtype is the learner's.
        squares: RMSProp's running means of the squared gradients, to go on from; None starts at zeros.
        learning_rate: Step size.
        decay: Share of the running mean that each step keeps.
        epsilon: Added to the root of the running mean.
        move_cost: Added to the loss times the probability of moving, as in the talk.
        device: ``"auto"``, ``"cpu"`` or ``"gpu"``.
    """

    def __init__(
        self,
        weights: Mapping[str, Array],
        squares: Mapping[str, Array] | None = None,
        *,
        learning_rate: float = 1e-3,
        decay: float = 0.99,
        epsilon: float = 1e-8,
        move_cost: float = 0.01,
        device: str = "auto",
    ) -> None:
        """Copy the weights to the device."""
        check_weights(weights)
        self.learning_rate = check_number("learning_rate", learning_rate, low=0)
        self.decay = check_number("decay", decay, low=0, high=1)
        self.epsilon = check_number("epsilon", epsilon, low=0)
        self.move_cost = check_number("move_cost", move_cost, low=0)
        self.device = resolve_device(device)
        squares = squares or {name: np.zeros_like(value) for name, value in weights.items()}
        with tf.device(self.device):
            self.weights = {name: tf.Variable(value) for name, value in weights.items()}
            self.squares = {name: tf.Variable(value) for name, value in squares.items()}

    def clone(self, *, learning_rate: float | None = None) -> "PongPolicy":
        """Make a policy that goes on from the same weights and the same state of RMSProp.

        Args:
            learning_rate: Of the new policy; None keeps this one's.

        Returns:
            The new policy, with its own copies.
        """
        weights = {name: weight.numpy() for name, weight in self.weights.items()}
        squares = {name: square.numpy() for name, square in self.squares.items()}
        return PongPolicy(
            weights,
            squares,
            learning_rate=self.learning_rate if learning_rate is None else learning_rate,
            decay=self.decay,
            epsilon=self.epsilon,
            move_cost=self.move_cost,
            device="gpu" if "GPU" in self.device else "cpu",
        )

    def logits(self, observations: NDArray[np.int8]) -> Array:
        """Say what the policy thinks of each action.

        Args:
            observations: ``[B, 6400]``, differences of pictures.

        Returns:
            ``[B, 3]``, unnormalised log-probabilities.
        """
        with tf.device(self.device):
            seen = tf.constant(observations)
            logits: Array = _logits_graph(self._read(), seen).numpy()
        return logits

    def advantages(self, rewards: Array, discount: float) -> Array:
        """Process the rewards of points laid end to end: discount within each point, then standardise all.

        Args:
            rewards: ``[B]``; each point ends with its only nonzero reward.
            discount: Within [0, 1].

        Returns:
            ``[B]``.
        """
        with tf.device(self.device):
            r_t = self._tensor(rewards)
            returns = discounted_returns(r_t, discount * tf.cast(r_t == 0, r_t.dtype))
            advantages: Array = standardize(returns).numpy()
        return advantages

    def learn(self, observations: NDArray[np.int8], actions: NDArray[np.int64], advantages: Array) -> float:
        """Take one step of RMSProp down the loss.

        Args:
            observations: ``[B, 6400]``, what was seen.
            actions: ``[B]``, what was done.
            advantages: ``[B]``, how good it was.

        Returns:
            The loss before the step.
        """
        with tf.device(self.device):
            seen, done = tf.constant(observations), tf.constant(actions)
            move_cost = self._tensor(self.move_cost)
            loss, gradients = _gradients_graph(self._read(), seen, done, self._tensor(advantages), move_cost)
            for name, weight in self.weights.items():
                square = self.squares[name]
                square.assign(self.decay * square + (1 - self.decay) * tf.square(gradients[name]))
                weight.assign_sub(self.learning_rate * gradients[name] / (tf.sqrt(square) + self.epsilon))
        return float(loss)

    def state(self) -> dict[str, Array]:
        """Return the weights and the state of RMSProp, as arrays.

        Returns:
            Under names for `restore`; the weights under those of `gradtricks.agents.pong.draw_weights`.
        """
        variables = self.weights | {f"{name}/square": square for name, square in self.squares.items()}
        return {name: variable.numpy() for name, variable in variables.items()}

    def restore(self, state: Mapping[str, Array]) -> None:
        """Go on from what `state` returned.

        Args:
            state: Of a policy of the same size.
        """
        for name, weight in self.weights.items():
            weight.assign(state[name])
            self.squares[name].assign(state[f"{name}/square"])

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
