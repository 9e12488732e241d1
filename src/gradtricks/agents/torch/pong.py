"""The Pong player: two matrices, and the policy gradient that changes them."""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradtricks._core.checks import check_number
from gradtricks.agents.pong import check_weights
from gradtricks.agents.torch.devices import resolve_device
from gradtricks.torch import discounted_returns, policy_gradient_loss, standardize

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
        self.weights = {
            name: torch.tensor(value, device=self.device, requires_grad=True)
            for name, value in weights.items()
        }
        self.squares = {name: torch.tensor(value, device=self.device) for name, value in squares.items()}

    def clone(self, *, learning_rate: float | None = None) -> "PongPolicy":
        """Make a policy that goes on from the same weights and the same state of RMSProp.

        Args:
            learning_rate: Of the new policy; None keeps this one's.

        Returns:
            The new policy, with its own copies.
        """
        weights = {name: weight.detach().cpu().numpy() for name, weight in self.weights.items()}
        squares = {name: square.cpu().numpy() for name, square in self.squares.items()}
        return PongPolicy(
            weights,
            squares,
            learning_rate=self.learning_rate if learning_rate is None else learning_rate,
            decay=self.decay,
            epsilon=self.epsilon,
            move_cost=self.move_cost,
            device=self.device.type.replace("cuda", "gpu"),
        )

    def logits(self, observations: NDArray[np.int8]) -> Array:
        """Say what the policy thinks of each action.

        Args:
            observations: ``[B, 6400]``, differences of pictures.

        Returns:
            ``[B, 3]``, unnormalised log-probabilities.
        """
        with torch.inference_mode():
            seen = torch.as_tensor(observations, device=self.device)
            logits: Array = _logits(self.weights, seen).cpu().numpy()
        return logits

    def advantages(self, rewards: Array, discount: float) -> Array:
        """Process the rewards of points laid end to end: discount within each point, then standardise all.

        Args:
            rewards: ``[B]``; each point ends with its only nonzero reward.
            discount: Within [0, 1].

        Returns:
            ``[B]``.
        """
        r_t = self._tensor(rewards)
        returns = discounted_returns(r_t, discount * (r_t == 0).to(r_t.dtype))
        advantages: Array = standardize(returns).cpu().numpy()
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
        seen = torch.as_tensor(observations, device=self.device)
        done = torch.as_tensor(actions, device=self.device)
        loss = _loss(self.weights, seen, done, self._tensor(advantages), self.move_cost)
        gradients = torch.autograd.grad(loss, list(self.weights.values()))
        with torch.no_grad():
            for (name, weight), gradient in zip(self.weights.items(), gradients, strict=True):
                square = self.squares[name]
                square.copy_(self.decay * square + (1 - self.decay) * gradient.square())
                weight.sub_(self.learning_rate * gradient / (square.sqrt() + self.epsilon))
        return loss.item()

    def state(self) -> dict[str, Array]:
        """Return the weights and the state of RMSProp, as arrays.

        Returns:
            Under names for `restore`; the weights under those of `gradtricks.agents.pong.draw_weights`.
        """
        tensors = self.weights | {f"{name}/square": square for name, square in self.squares.items()}
        return {name: tensor.detach().cpu().numpy().copy() for name, tensor in tensors.items()}

    def restore(self, state: Mapping[str, Array]) -> None:
        """Go on from what `state` returned.

        Args:
            state: Of a policy of the same size.
        """
        with torch.no_grad():
            for name, weight in self.weights.items():
                weight.copy_(torch.as_tensor(state[name]))
                self.squares[name].copy_(torch.as_tensor(state[f"{name}/square"]))

    def _tensor(self, values: float | Array) -> Tensor:
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
