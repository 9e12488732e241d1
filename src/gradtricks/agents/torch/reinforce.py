"""The Pong player: two matrices, and the policy gradient that changes them."""

from collections.abc import Mapping
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradtricks.agents.reinforce import BasePolicy
from gradtricks.agents.torch.learners import Trainable
from gradtricks.torch import discounted_returns, policy_gradient_loss, standardize

Array = NDArray[np.floating]
Weights = Mapping[str, Tensor]


class PongPolicy(Trainable, BasePolicy):
    """See `gradtricks.agents.reinforce.BasePolicy`."""

    def _place(self, weights: Mapping[str, Array], device: str) -> None:
        self._begin(
            weights,
            device,
            partial(torch.optim.RMSprop, lr=self.learning_rate, alpha=self.decay, eps=self.epsilon),
        )

    def logits(self, observations: NDArray[np.int8]) -> Array:
        """Return unnormalised log-probabilities ``[B, 3]`` for ``[B, 6400]``."""
        with torch.inference_mode():
            seen = torch.as_tensor(observations, device=self.device)
            logits: Array = _logits(self.weights, seen).cpu().numpy()
        return logits

    def advantages(self, rewards: Array, discount: float) -> Array:
        """Discount the rewards ``[B]`` of points laid end to end within each, then standardise all."""
        r_t = self._tensor(rewards)
        returns = discounted_returns(r_t, discount * (r_t == 0).to(r_t.dtype))
        advantages: Array = standardize(returns).cpu().numpy()
        return advantages

    def learn(self, observations: NDArray[np.int8], actions: NDArray[np.int64], advantages: Array) -> float:
        """Take one step of RMSProp down the loss, and return the loss before it."""
        seen = torch.as_tensor(observations, device=self.device)
        done = torch.as_tensor(actions, device=self.device)
        loss = _loss(self.weights, seen, done, self._tensor(advantages), self.move_cost)
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        return loss.item()

    def _tensor(self, values: Array) -> Tensor:
        return torch.as_tensor(values, dtype=self.weights["hidden"].dtype, device=self.device)


def _logits(weights: Weights, observations: Tensor) -> Tensor:
    hidden = (observations.to(weights["hidden"].dtype) @ weights["hidden"]).relu()
    return hidden @ weights["logits"]


def _loss(
    weights: Weights, observations: Tensor, actions: Tensor, advantages: Tensor, move_cost: float
) -> Tensor:
    logits = _logits(weights, observations)
    moving = logits.softmax(-1)[:, 1:].sum(-1)
    return policy_gradient_loss(logits, actions, advantages) + move_cost * moving.mean()
