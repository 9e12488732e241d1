"""The Pong player that learns by proximal policy optimization."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import embedding_bag

import gradtricks.torch as tricks
from gradtricks.agents.blocks import CONTRAST, NO_BLOCK
from gradtricks.agents.pong import MIRRORED, NO_CELL, mirror_cells, mirror_places
from gradtricks.agents.ppo import ADAM_EPSILON, BaseLearner, Minibatch
from gradtricks.agents.torch.learners import Trainable

Array = NDArray[np.floating]


class PPOLearner(Trainable, BaseLearner):
    """See `gradtricks.agents.ppo.BaseLearner`; `pong.ipynb` shows `estimate`, `loss` and `descend`."""

    def _place(self, weights: Mapping[str, Array], device: str) -> None:
        self._begin(weights, device, partial(torch.optim.Adam, eps=ADAM_EPSILON, fused=True))
        upside_down = mirror_cells() if "cells" in weights else mirror_places()
        self._mirror = torch.as_tensor(upside_down, device=self.device)

    def infer(self, observations: NDArray[Any]) -> tuple[Array, Array]:
        """Return logits ``[N, A]`` and values ``[N]`` for ``[N, ...]``."""
        with torch.inference_mode():
            logits, values = self.network(torch.as_tensor(observations, device=self.device))
            return logits.cpu().numpy(), values.cpu().numpy()

    def advantages(self, rewards: Array, discounts: Array, values: Array) -> tuple[Array, Array]:
        """Return standardised advantages and the values' targets, ``[T, N]``; there are T+1 values."""
        tensors = (torch.as_tensor(x, device=self.device) for x in (rewards, discounts, values))
        advantages, targets = self.estimate(*tensors)
        return advantages.cpu().numpy(), targets.cpu().numpy()

    def update(self, minibatch: Minibatch, *, rate: float = 1.0, entropy: float = 1.0) -> float:
        """Take one step of Adam down the loss, and return the loss before it."""
        batch = Minibatch(*(torch.as_tensor(x, device=self.device) for x in minibatch))
        return self.descend(batch, self.options.learning_rate * rate, entropy).item()

    def estimate(self, r_t: Tensor, discount_t: Tensor, v_t: Tensor) -> tuple[Tensor, Tensor]:
        """Return standardised advantages and the values' targets, as tensors."""
        lambda_ = self.options.lambda_
        adv_t = tricks.truncated_generalized_advantage_estimation(r_t, discount_t, lambda_, v_t)
        return tricks.standardize(adv_t), adv_t + v_t[:-1]

    def loss(self, batch: Minibatch, entropy: float) -> Tensor:
        """Return the loss of a batch of tensors."""
        logits, values = self.network(batch.observations)
        log_probs = logits.log_softmax(-1).gather(1, batch.actions[:, None]).squeeze(1)
        ratios = (log_probs - batch.log_probs).exp()
        loss = tricks.clipped_surrogate_pg_loss(ratios, batch.advantages, self.options.clip)
        loss = loss + self.options.entropy_cost * entropy * tricks.entropy_loss(logits)
        return loss + self.options.value_cost * (values - batch.targets).square().mean()

    def descend(self, batch: Minibatch, learning_rate: float, entropy: float) -> Tensor:
        """Take one step of Adam, and return the loss before it."""
        loss = self.loss(batch, entropy)
        gradients = torch.autograd.grad(loss, list(self.weights.values()))
        clipped, _ = tricks.clip_by_global_norm(gradients, self.options.max_norm)
        for weight, gradient in zip(self.weights.values(), clipped):
            weight.grad = gradient.contiguous()
        self._optimizer.param_groups[0]["lr"] = learning_rate
        self._optimizer.step()
        return loss

    def network(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits ``[N, A]`` and values ``[N]`` as tensors; with a mirror, of both halves together."""
        outputs = self._half(observations)
        if self.mirror:
            sees_cells = "cells" in self.weights
            upside_down = self._mirror[observations] if sees_cells else self._mirror * observations
            outputs = outputs + self._half(upside_down)[:, MIRRORED]
        return outputs[:, :-1], outputs[:, -1]

    def _half(self, observations: Tensor) -> Tensor:
        weights = self.weights
        if "cells" in weights:
            hidden = embedding_bag(observations, weights["cells"], mode="sum", padding_idx=NO_CELL)
        elif self.view == "screen":
            numbers, sums = observations.unbind(-1)
            shares = sums / CONTRAST
            hidden = embedding_bag(
                numbers, weights["screen"], mode="sum", per_sample_weights=shares, padding_idx=NO_BLOCK
            )
        else:
            hidden = observations @ weights[self.view]
        hidden = (hidden + weights["bias"]).relu()
        if "second" in weights:
            hidden = (hidden @ weights["second"] + weights["second_bias"]).relu()
        return hidden @ weights["heads"]
