"""The learner of MuZero: three small networks and the batched ``update_weights`` of the pseudocode."""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow import Tensor

from gradtricks._core.checks import check_shape
from gradtricks.agents.muzero.network import BaseLearner, Scales
from gradtricks.agents.muzero.replay import Batch
from gradtricks.agents.tensorflow.learners import Adam, Trainable
from gradtricks.tensorflow import muzero_loss, scale_gradient, unroll


class MuZeroLearner(Trainable, BaseLearner):
    """See `gradtricks.agents.muzero.network.BaseLearner`."""

    def _place(self, weights: Mapping[str, np.ndarray], device: str) -> None:
        if self.optimizer == "adam":
            optimizer = Adam(self.learning_rate, beta_1=self.momentum, epsilon=1e-8)
        else:
            optimizer = keras.optimizers.SGD(self.learning_rate, momentum=self.momentum)
        self._begin(weights, device, optimizer)
        self._update_graph = tf.function(self._update, jit_compile=True)

    def initial_inference(self, observation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Look at real ones: logits of value and policy, ``[B, N]`` and ``[B, A]``, and states ``[B, S]``."""
        state = self._represent(observation)
        return *self._predict(state), state

    def recurrent_inference(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Imagine one step: logits of value, reward and policy, and the next states ``[B, S]``."""
        hidden, next_state = self._advance(state, self._encode(action))
        value, policy = self._predict(next_state)
        return value, self._dense("dynamics/reward", hidden), policy, next_state

    def loss(self, batch: Batch) -> float:
        """Return the mean loss of a batch; see `update`."""
        with tf.device(self.device):
            losses, _ = self._losses(self._tensors(batch), self.scales)
        return float(tf.reduce_mean(losses))

    def update(self, batch: Batch, *, learning_rate: float | None = None) -> float:
        """Take one step of the optimizer, and return the loss before it."""
        self._optimizer.learning_rate = self.learning_rate if learning_rate is None else learning_rate
        with tf.device(self.device):
            return float(self._update_graph(self._tensors(batch)))

    def gradients(self, batch: Batch, **scales: Any) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Differentiate the mean loss."""
        tensors = self._tensors(batch)
        with tf.device(self.device):
            with tf.GradientTape() as tape:
                losses, states = self._losses(tensors, Scales(**scales))
                loss = tf.reduce_mean(losses)
            sources = [*self.weights.values(), *states]
            gradients = tape.gradient(loss, sources, unconnected_gradients="zero")
        arrays = [tf.convert_to_tensor(gradient).numpy() for gradient in gradients]
        count = len(self.weights)
        return dict(zip(self.weights, arrays[:count], strict=True)), np.stack(arrays[count:])

    def _update(self, batch: Batch) -> Tensor:
        weights = list(self.weights.values())
        with tf.GradientTape() as tape:
            losses, _ = self._losses(batch, self.scales)
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, weights)
        # Keras' own decay doesn't go through the moments.
        decayed = [gradient + self.weight_decay * w for gradient, w in zip(gradients, weights, strict=True)]
        self._optimizer.apply(decayed, weights)
        return loss

    def _losses(self, batch: Batch, scales: Scales) -> tuple[Tensor, list[Tensor]]:
        root = self._represent(batch.observation)
        states = [root]

        def recurrent_fn(state: Tensor, action: Tensor) -> tuple[Any, Tensor]:
            hidden, state = self._advance(state, action)
            states.append(state)
            return (hidden, state), state

        # The heads see all steps at once: one large product costs less than many small ones.
        outputs, _ = unroll(recurrent_fn, root, self._encode(batch.actions), hidden_scale=scales.hidden_scale)
        hidden, later = outputs
        reward = self._dense("dynamics/reward", hidden)
        value, policy = self._predict(tf.concat([root[None], scale_gradient(later, scales.head_scale)], 0))
        if scales.step_scales is not None:
            check_shape("step_scales", (len(scales.step_scales),), (len(value),), "[K+1]")
            of_steps = tf.constant(scales.step_scales, dtype=value.dtype)[:, None, None]
            value, policy = (scale_gradient(x, of_steps) for x in (value, policy))
            reward = scale_gradient(reward, of_steps[1:])
        targets = batch.target_value, batch.target_reward, batch.target_policy
        losses = muzero_loss(
            *(value, reward, policy),
            *targets,
            loss_scale=scales.loss_scale,
            scale_root_loss=scales.scale_root_loss,
        )
        return losses, states

    def _represent(self, observation: Tensor) -> Tensor:
        hidden = tf.nn.relu(self._dense("representation/hidden", observation))
        return tf.tanh(self._dense("representation/state", hidden))

    def _encode(self, action: Tensor) -> Tensor:
        """Return what actions add to the hidden layer of the dynamics, ``[..., H]``."""
        kernel = self.weights["dynamics/hidden/kernel"][self.state_size :]
        return tf.one_hot(action, self.actions, dtype=kernel.dtype) @ kernel

    def _advance(self, state: Tensor, encoded_action: Tensor) -> tuple[Tensor, Tensor]:
        kernel = self.weights["dynamics/hidden/kernel"][: self.state_size]
        hidden = tf.nn.relu(state @ kernel + encoded_action + self.weights["dynamics/hidden/bias"])
        return hidden, tf.tanh(state + self._dense("dynamics/state", hidden))

    def _predict(self, state: Tensor) -> tuple[Tensor, Tensor]:
        hidden = tf.nn.relu(self._dense("prediction/hidden", state))
        return self._dense("prediction/value", hidden), self._dense("prediction/policy", hidden)

    def _dense(self, layer: str, x: Tensor) -> Tensor:
        return x @ self.weights[f"{layer}/kernel"] + self.weights[f"{layer}/bias"]

    def _tensors(self, batch: Batch) -> Batch:
        batch.check(self.observation_size, self.actions)
        dtype = self.weights["representation/state/bias"].dtype
        dtypes = (dtype, tf.int64, dtype, dtype, dtype)
        with tf.device(self.device):
            return Batch(*(tf.cast(x, t) for x, t in zip(batch, dtypes)))
