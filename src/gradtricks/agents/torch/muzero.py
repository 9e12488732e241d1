"""The learner of MuZero: three small networks and the batched ``update_weights`` of the pseudocode."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from gradtricks._checks import check_number, check_shape
from gradtricks.agents.cartpole import ACTIONS
from gradtricks.agents.muzero import check_weights
from gradtricks.agents.replay import Batch, check_batch
from gradtricks.agents.torch.devices import resolve_device
from gradtricks.torch import muzero_loss, scale_gradient, unroll


class MuZeroLearner:
    """Trains representation, dynamics and prediction together, by gradient descent with momentum.

    Args:
        weights: From `gradtricks.agents.muzero.draw_weights`; their dtype is the learner's.
        hidden_scale: Multiplies the gradient of the state after each recurrent step.
        loss_scale: Multiplies the gradient of the losses after the root; None is 1/K.
        learning_rate: Step size.
        momentum: Share of the last step that is kept.
        weight_decay: Weight of half the sum of squares that is added to the loss.
        device: ``"auto"``, ``"cpu"`` or ``"gpu"``.
    """

    def __init__(
        self,
        weights: Mapping[str, np.ndarray],
        *,
        hidden_scale: float = 0.5,
        loss_scale: float | None = None,
        learning_rate: float = 0.05,
        momentum: float = 0.9,
        weight_decay: float = 1e-4,
        device: str = "auto",
    ) -> None:
        """Copy the weights to the device."""
        check_weights(weights)
        self.hidden_scale = check_number("hidden_scale", hidden_scale)
        self.loss_scale = None if loss_scale is None else check_number("loss_scale", loss_scale)
        self.learning_rate = check_number("learning_rate", learning_rate, low=0)
        self.momentum = check_number("momentum", momentum, low=0, high=1)
        self.weight_decay = check_number("weight_decay", weight_decay, low=0)
        self.device = resolve_device(device)
        self.weights = {
            name: torch.tensor(value, device=self.device, requires_grad=True)
            for name, value in weights.items()
        }
        self._velocity = {name: torch.zeros_like(value) for name, value in self.weights.items()}

    def initial_inference(self, observation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Look at a real observation.

        Args:
            observation: ``[B, 4]``.

        Returns:
            Value logits ``[B, N]``, policy logits ``[B, A]`` and the root state ``[B, S]``.
        """
        hidden = self._dense("representation/hidden", observation).relu()
        state = torch.tanh(self._dense("representation/state", hidden))
        return *self._predict(state), state

    def recurrent_inference(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Imagine one step.

        Args:
            state: ``[B, S]``.
            action: ``[B]``, integers.

        Returns:
            Value and reward logits ``[B, N]``, policy logits ``[B, A]`` and the next state ``[B, S]``.
        """
        reward, next_state = self._advance(state, action)
        value, policy = self._predict(next_state)
        return value, reward, policy, next_state

    def loss(self, batch: Batch) -> float:
        """Return the mean loss of a batch, without weight decay.

        Args:
            batch: From `gradtricks.agents.replay.ReplayBuffer`.

        Returns:
            The sum over the K+1 steps, averaged over trajectories, in nats.
        """
        with torch.no_grad():
            losses, _ = self._losses(self._tensors(batch))
        return losses.mean().item()

    def update(self, batch: Batch) -> float:
        """Take one step of gradient descent.

        Args:
            batch: From `gradtricks.agents.replay.ReplayBuffer`.

        Returns:
            The loss before the step; see `loss`.
        """
        return self._update(self._tensors(batch)).item()

    def gradients(
        self,
        batch: Batch,
        *,
        hidden_scale: float = 0.5,
        loss_scale: float | None = None,
        head_scale: float = 1.0,
        step_scales: Sequence[float] | None = None,
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Differentiate the mean loss; the weights stay as they are.

        Args:
            batch: From `gradtricks.agents.replay.ReplayBuffer`.
            hidden_scale: As in the constructor.
            loss_scale: As in the constructor.
            head_scale: Multiplies what value and policy send into the states after the root. The paper's 1
                leaves it alone; equal to ``hidden_scale`` it is a hook on the state.
            step_scales: ``[K+1]``, multiplies the gradient of each step's loss once more; None is all ones.

        Returns:
            The gradient of each weight, and of the states ``[K+1, B, S]``, without weight decay.
        """
        tensors = self._tensors(batch)
        losses, states = self._losses(tensors, hidden_scale, loss_scale, head_scale, step_scales)
        sources = [*self.weights.values(), *states]
        gradients = torch.autograd.grad(losses.mean(), sources, materialize_grads=True)
        arrays = [gradient.cpu().numpy() for gradient in gradients]
        count = len(self.weights)
        return dict(zip(self.weights, arrays[:count], strict=True)), np.stack(arrays[count:])

    def gradient_norms(self, batch: Batch, **scales: Any) -> dict[str, Any]:
        """Measure how much gradient reaches each module and each state.

        Args:
            batch: From `gradtricks.agents.replay.ReplayBuffer`.
            **scales: See `gradients`.

        Returns:
            For representation, dynamics and prediction the norm of the mean loss's gradient; for ``states``
            the K+1 norms of a trajectory's gradient, averaged over the batch.
        """
        weights, states = self.gradients(batch, **scales)
        norms: dict[str, Any] = {}
        for module in ("representation", "dynamics", "prediction"):
            parts = [np.linalg.norm(g) for name, g in weights.items() if name.startswith(module)]
            norms[module] = float(np.linalg.norm(parts))
        norms["states"] = (states.shape[1] * np.linalg.norm(states, axis=-1).mean(axis=-1)).tolist()
        return norms

    def _update(self, batch: Batch) -> Tensor:
        losses, _ = self._losses(batch, self.hidden_scale, self.loss_scale)
        gradients = torch.autograd.grad(losses.mean(), list(self.weights.values()))
        with torch.no_grad():
            for (name, weight), gradient in zip(self.weights.items(), gradients, strict=True):
                velocity = self._velocity[name]
                velocity.mul_(self.momentum).add_(gradient + self.weight_decay * weight)
                weight.sub_(self.learning_rate * velocity)
        return losses.detach().mean()

    def _losses(
        self,
        batch: Batch,
        hidden_scale: float = 0.5,
        loss_scale: float | None = None,
        head_scale: float = 1.0,
        step_scales: Sequence[float] | None = None,
    ) -> tuple[Tensor, list[Tensor]]:
        root_value, root_policy, root = self.initial_inference(batch.observation)
        states = [root]

        def recurrent_fn(state: Tensor, action: Tensor) -> tuple[Any, Tensor]:
            reward, state = self._advance(state, action)
            states.append(state)
            value, policy = self._predict(scale_gradient(state, head_scale))
            return (value, reward, policy), state

        actions = batch.actions
        outputs, _ = unroll(recurrent_fn, root, actions, hidden_scale=hidden_scale)
        value, reward, policy = outputs
        value = torch.cat([root_value[None], value])
        policy = torch.cat([root_policy[None], policy])
        if step_scales is not None:
            check_shape("step_scales", (len(step_scales),), (len(value),), "[K+1]")
            scales = torch.tensor(step_scales, dtype=value.dtype, device=self.device)
            scales = scales[:, None, None]
            value, policy = (scale_gradient(x, scales) for x in (value, policy))
            reward = scale_gradient(reward, scales[1:])
        targets = batch.target_value, batch.target_reward, batch.target_policy
        losses = muzero_loss(value, reward, policy, *targets, loss_scale=loss_scale)
        return losses, states

    def _advance(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        inputs = torch.cat([state, one_hot(action, ACTIONS).to(state.dtype)], -1)
        hidden = self._dense("dynamics/hidden", inputs).relu()
        next_state = torch.tanh(state + self._dense("dynamics/state", hidden))
        return self._dense("dynamics/reward", hidden), next_state

    def _predict(self, state: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self._dense("prediction/hidden", state).relu()
        return self._dense("prediction/value", hidden), self._dense("prediction/policy", hidden)

    def _dense(self, layer: str, x: Tensor) -> Tensor:
        return x @ self.weights[f"{layer}/kernel"] + self.weights[f"{layer}/bias"]

    def _tensors(self, batch: Batch) -> Batch:
        check_batch(batch)
        dtype = self.weights["representation/state/bias"].dtype
        dtypes = (dtype, torch.int64, dtype, dtype, dtype)
        return Batch(*(torch.as_tensor(x, dtype=t, device=self.device) for x, t in zip(batch, dtypes)))
