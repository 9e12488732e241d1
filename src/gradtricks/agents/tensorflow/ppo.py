"""The Pong player that learns by proximal policy optimization."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from tensorflow import Tensor

import gradtricks.tensorflow as tricks
from gradtricks.agents.blocks import CONTRAST, NO_BLOCK
from gradtricks.agents.pong import MIRRORED, NO_CELL, mirror_cells, mirror_places
from gradtricks.agents.ppo import ADAM_EPSILON, BaseLearner, Minibatch
from gradtricks.agents.tensorflow.learners import Adam, Trainable

Array = NDArray[np.floating]


class PPOLearner(Trainable, BaseLearner):
    """See `gradtricks.agents.ppo.BaseLearner`; `pong.ipynb` shows `estimate`, `loss` and `descend`."""

    def _place(self, weights: Mapping[str, Array], device: str) -> None:
        self._begin(weights, device, Adam(self.options.learning_rate, epsilon=ADAM_EPSILON))
        with tf.device(self.device):
            self._mirror = tf.constant(mirror_cells() if "cells" in weights else mirror_places())
        self._graphs: dict[tuple[str, tuple[int, ...]], Any] = {}

    def infer(self, observations: NDArray[Any]) -> tuple[Array, Array]:
        """Return logits ``[N, A]`` and values ``[N]`` for ``[N, ...]``."""
        with tf.device(self.device):
            logits, values = self._compiled(self.network, observations.shape, tf.constant(observations))
        return logits.numpy(), values.numpy()

    def advantages(self, rewards: Array, discounts: Array, values: Array) -> tuple[Array, Array]:
        """Return standardised advantages and the values' targets, ``[T, N]``; there are T+1 values."""
        with tf.device(self.device):
            advantages, targets = self.estimate(*(tf.constant(x) for x in (rewards, discounts, values)))
        return advantages.numpy(), targets.numpy()

    def update(self, minibatch: Minibatch, *, rate: float = 1.0, entropy: float = 1.0) -> float:
        """Take one step of Adam down the loss, and return the loss before it."""
        with tf.device(self.device):
            batch = Minibatch(*(tf.constant(x) for x in minibatch))
            numbers = (tf.constant(x, tf.float32) for x in (self.options.learning_rate * rate, entropy))
            return float(self._compiled(self.descend, minibatch.observations.shape, batch, *numbers))

    def _compiled(self, function: Callable[..., Any], shape: tuple[int, ...], *tensors: Any) -> Any:
        # tf.function would look at all tensors in each call, a third of the time that it takes to infer.
        key = function.__name__, shape
        if key not in self._graphs:
            # XLA has no product with a sparse matrix.
            compiled = tf.function(function, jit_compile=self.view != "screen")
            self._graphs[key] = compiled.get_concrete_function(*tensors)
        return self._graphs[key](*tensors)

    def estimate(self, r_t: Tensor, discount_t: Tensor, v_t: Tensor) -> tuple[Tensor, Tensor]:
        """Return standardised advantages and the values' targets, as tensors."""
        lambda_ = self.options.lambda_
        adv_t = tricks.truncated_generalized_advantage_estimation(r_t, discount_t, lambda_, v_t)
        return tricks.standardize(adv_t), adv_t + v_t[:-1]

    def loss(self, batch: Minibatch, entropy: Tensor) -> Tensor:
        """Return the loss of a batch of tensors."""
        logits, values = self.network(batch.observations)
        log_probs = tf.gather(tf.nn.log_softmax(logits), batch.actions, axis=1, batch_dims=1)
        ratios = tf.exp(log_probs - batch.log_probs)
        loss = tricks.clipped_surrogate_pg_loss(ratios, batch.advantages, self.options.clip)
        loss += self.options.entropy_cost * entropy * tricks.entropy_loss(logits)
        return loss + self.options.value_cost * tf.reduce_mean(tf.square(values - batch.targets))

    def descend(self, batch: Minibatch, learning_rate: Tensor, entropy: Tensor) -> Tensor:
        """Take one step of Adam, and return the loss before it."""
        weights = list(self.weights.values())
        with tf.GradientTape() as tape:
            loss = self.loss(batch, entropy)
        gradients = [tf.convert_to_tensor(gradient) for gradient in tape.gradient(loss, weights)]
        clipped, _ = tricks.clip_by_global_norm(gradients, self.options.max_norm)
        self._optimizer.learning_rate = learning_rate
        self._optimizer.apply(clipped, weights)
        return loss

    def network(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits ``[N, A]`` and values ``[N]`` as tensors; with a mirror, of both halves together."""
        outputs = self._half(observations)
        if self.mirror:
            sees_cells = "cells" in self.weights
            upside_down = tf.gather(self._mirror, observations) if sees_cells else self._mirror * observations
            outputs += tf.gather(self._half(upside_down), MIRRORED, axis=1)
        return outputs[:, :-1], outputs[:, -1]

    def _half(self, observations: Tensor) -> Tensor:
        weights = self.weights
        if "cells" in weights:
            lit = tf.cast(observations != NO_CELL, weights["cells"].dtype)[..., None]
            hidden = tf.reduce_sum(tf.gather(weights["cells"], observations) * lit, axis=1)
        elif self.view == "screen":
            hidden = tf.raw_ops.SparseMatrixMatMul(a=_sparse(observations), b=weights["screen"])
        else:
            hidden = observations @ weights[self.view]
        hidden = tf.nn.relu(hidden + weights["bias"])
        if "second" in weights:
            hidden = tf.nn.relu(hidden @ weights["second"] + weights["second_bias"])
        return hidden @ weights["heads"]


def _sparse(blocks: Tensor) -> Tensor:
    """Make a matrix of compressed rows, which multiply fastest, one a sample of blocks ``[N, P, 2]``."""
    listed = tf.where(blocks[..., 1] != 0)
    numbers, sums = tf.unstack(tf.gather_nd(blocks, listed), axis=-1)
    indices = tf.stack([listed[:, 0], tf.cast(numbers, tf.int64)], axis=1)
    values, shape = tf.cast(sums, tf.float32) / CONTRAST, [len(blocks), NO_BLOCK + 1]
    return tf.raw_ops.SparseTensorToCSRSparseMatrix(indices=indices, values=values, dense_shape=shape)
