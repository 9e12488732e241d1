"""The learner of MuZero: three small networks and the batched ``update_weights`` of the pseudocode."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from gradtricks._core.checks import check_number, check_shape
from gradtricks.agents.muzero import check_optimizer, check_weights, find_sizes
from gradtricks.agents.replay import Batch, check_batch
from gradtricks.agents.torch.devices import resolve_device
from gradtricks.torch import muzero_loss, scale_gradient, unroll

_BETA_2, _EPSILON = 0.999, 1e-8  # of Adam, next to ``momentum``


class MuZeroLearner:
    """Trains representation, dynamics and prediction together.

    Args:
        weights: From `gradtricks.agents.muzero.draw_weights`; their dtype is the learner's.
        hidden_scale: Multiplies the gradient of the state after each recurrent step.
        loss_scale: Multiplies the gradient of the losses after the root; None is 1/K.
        head_scale: Multiplies what value and policy send into the states after the root. The paper's 1
            leaves it alone; equal to ``hidden_scale`` it is a hook on the state.
        scale_root_loss: Multiply the gradient of the root's loss by ``loss_scale`` too.
        optimizer: ``"momentum"``, gradient descent with it, or ``"adam"``.
        learning_rate: Step size.
        momentum: Share of the last step that is kept; with Adam, of the mean gradient.
        weight_decay: Weight of half the sum of squares that is added to the loss.
        device: ``"auto"``, ``"cpu"`` or ``"gpu"``.
    """

    def __init__(
        self,
        weights: Mapping[str, np.ndarray],
        *,
        hidden_scale: float = 0.5,
        loss_scale: float | None = None,
        head_scale: float = 1.0,
        scale_root_loss: bool = False,
        optimizer: str = "momentum",
        learning_rate: float = 0.05,
        momentum: float = 0.9,
        weight_decay: float = 1e-4,
        device: str = "auto",
    ) -> None:
        """Copy the weights to the device."""
        check_weights(weights)
        self.scales: dict[str, Any] = {
            "hidden_scale": check_number("hidden_scale", hidden_scale),
            "loss_scale": None if loss_scale is None else check_number("loss_scale", loss_scale),
            "head_scale": check_number("head_scale", head_scale),
            "scale_root_loss": bool(scale_root_loss),
        }
        self.optimizer, self.momentum = check_optimizer(optimizer, momentum)
        self.learning_rate = check_number("learning_rate", learning_rate, low=0)
        self.weight_decay = check_number("weight_decay", weight_decay, low=0)
        self.device = resolve_device(device)
        self.sizes = find_sizes(weights)
        self.weights = {
            name: torch.tensor(value, device=self.device, requires_grad=True)
            for name, value in weights.items()
        }
        self._velocity = {name: torch.zeros_like(value) for name, value in self.weights.items()}
        self._adam = torch.optim.Adam(
            self.weights.values(),
            betas=(self.momentum if optimizer == "adam" else 0.0, _BETA_2),
            eps=_EPSILON,
            weight_decay=self.weight_decay,
            fused=True,
        )

    def initial_inference(self, observation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Look at a real observation.

        Args:
            observation: ``[B, 4]``.

        Returns:
            Value logits ``[B, N]``, policy logits ``[B, A]`` and the root state ``[B, S]``.
        """
        state = self._represent(observation)
        return *self._predict(state), state

    def recurrent_inference(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Imagine one step.

        Args:
            state: ``[B, S]``.
            action: ``[B]``, integers.

        Returns:
            Value and reward logits ``[B, N]``, policy logits ``[B, A]`` and the next state ``[B, S]``.
        """
        hidden, next_state = self._advance(state, self._encode(action))
        value, policy = self._predict(next_state)
        return value, self._dense("dynamics/reward", hidden), policy, next_state

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

    def update(
        self, batch: Batch, *, weights: np.ndarray | None = None, learning_rate: float | None = None
    ) -> float:
        """Take one step of the optimizer.

        Args:
            batch: From `gradtricks.agents.replay.ReplayBuffer`, or another replay.
            weights: ``[B]``, of each trajectory's loss, as prioritised replay needs them; None is all ones.
            learning_rate: Of this step; None is that of the constructor.

        Returns:
            The loss before the step, weighted; see `loss`.
        """
        tensors = self._tensors(batch)
        losses, _ = self._losses(tensors, **self.scales)
        if weights is not None:
            losses = losses * torch.as_tensor(weights, dtype=losses.dtype, device=self.device)
        loss = losses.mean()
        gradients = torch.autograd.grad(loss, list(self.weights.values()))
        self._step(gradients, self.learning_rate if learning_rate is None else learning_rate)
        return loss.item()

    def gradients(
        self,
        batch: Batch,
        *,
        hidden_scale: float = 0.5,
        loss_scale: float | None = None,
        head_scale: float = 1.0,
        scale_root_loss: bool = False,
        step_scales: Sequence[float] | None = None,
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Differentiate the mean loss; the weights stay as they are.

        Args:
            batch: From `gradtricks.agents.replay.ReplayBuffer`.
            hidden_scale: As in the constructor.
            loss_scale: As in the constructor.
            head_scale: As in the constructor.
            scale_root_loss: As in the constructor.
            step_scales: ``[K+1]``, multiplies the gradient of each step's loss once more; None is all ones.

        Returns:
            The gradient of each weight, and of the states ``[K+1, B, S]``, without weight decay.
        """
        tensors = self._tensors(batch)
        scales = hidden_scale, loss_scale, head_scale, scale_root_loss, step_scales
        losses, states = self._losses(tensors, *scales)
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

    def copy_weights(self) -> dict[str, np.ndarray]:
        """Return the weights as they are now.

        Returns:
            Under the names of `gradtricks.agents.muzero.draw_weights`.
        """
        return {name: weight.detach().cpu().numpy().copy() for name, weight in self.weights.items()}

    def state(self) -> dict[str, np.ndarray]:
        """Return weights and the state of the optimizer, as arrays.

        Returns:
            Under names for `restore`; the weights under those of `gradtricks.agents.muzero.draw_weights`.
        """
        state = {name: weight.detach() for name, weight in self.weights.items()}
        for name, weight in self.weights.items():
            state[f"{name}/velocity"] = self._velocity[name]
            for key, value in self._adam.state[weight].items():
                state[f"{name}/{key}"] = value
        # Copies: what is in memory learns on.
        return {name: value.cpu().numpy().copy() for name, value in state.items()}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Go on from what `state` returned.

        Args:
            state: Of a learner with the same arguments.
        """
        with torch.no_grad():
            for name, weight in self.weights.items():
                weight.copy_(torch.as_tensor(state[name]))
                self._velocity[name].copy_(torch.as_tensor(state[f"{name}/velocity"]))
                self._adam.state[weight] = {
                    key: torch.tensor(state[f"{name}/{key}"], device=self.device)
                    for key in ("step", "exp_avg", "exp_avg_sq")
                    if f"{name}/{key}" in state
                }

    def _step(self, gradients: Sequence[Tensor], learning_rate: float) -> None:
        if self.optimizer == "adam":
            for weight, gradient in zip(self.weights.values(), gradients, strict=True):
                weight.grad = gradient
            self._adam.param_groups[0]["lr"] = learning_rate
            self._adam.step()
            return
        with torch.no_grad():
            for (name, weight), gradient in zip(self.weights.items(), gradients, strict=True):
                velocity = self._velocity[name]
                velocity.mul_(self.momentum).add_(gradient + self.weight_decay * weight)
                weight.sub_(learning_rate * velocity)

    def _losses(
        self,
        batch: Batch,
        hidden_scale: float = 0.5,
        loss_scale: float | None = None,
        head_scale: float = 1.0,
        scale_root_loss: bool = False,
        step_scales: Sequence[float] | None = None,
    ) -> tuple[Tensor, list[Tensor]]:
        root = self._represent(batch.observation)
        states = [root]

        def recurrent_fn(state: Tensor, action: Tensor) -> tuple[Any, Tensor]:
            hidden, state = self._advance(state, action)
            states.append(state)
            return (hidden, state), state

        # The heads see all steps at once: one large product costs less than many small ones.
        outputs, _ = unroll(recurrent_fn, root, self._encode(batch.actions), hidden_scale=hidden_scale)
        hidden, later = outputs
        reward = self._dense("dynamics/reward", hidden)
        value, policy = self._predict(torch.cat([root[None], scale_gradient(later, head_scale)]))
        if step_scales is not None:
            check_shape("step_scales", (len(step_scales),), (len(value),), "[K+1]")
            scales = torch.tensor(step_scales, dtype=value.dtype, device=self.device)[:, None, None]
            value, policy = (scale_gradient(x, scales) for x in (value, policy))
            reward = scale_gradient(reward, scales[1:])
        targets = batch.target_value, batch.target_reward, batch.target_policy
        losses = muzero_loss(
            value, reward, policy, *targets, loss_scale=loss_scale, scale_root_loss=scale_root_loss
        )
        return losses, states

    def _represent(self, observation: Tensor) -> Tensor:
        hidden = self._dense("representation/hidden", observation).relu()
        return torch.tanh(self._dense("representation/state", hidden))

    def _encode(self, action: Tensor) -> Tensor:
        """Return what actions add to the hidden layer of the dynamics, ``[..., H]``."""
        kernel = self.weights["dynamics/hidden/kernel"][self.sizes.state :]
        return one_hot(action, self.sizes.actions).to(kernel.dtype) @ kernel

    def _advance(self, state: Tensor, encoded_action: Tensor) -> tuple[Tensor, Tensor]:
        kernel = self.weights["dynamics/hidden/kernel"][: self.sizes.state]
        hidden = (state @ kernel + encoded_action + self.weights["dynamics/hidden/bias"]).relu()
        return hidden, torch.tanh(state + self._dense("dynamics/state", hidden))

    def _predict(self, state: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self._dense("prediction/hidden", state).relu()
        return self._dense("prediction/value", hidden), self._dense("prediction/policy", hidden)

    def _dense(self, layer: str, x: Tensor) -> Tensor:
        return x @ self.weights[f"{layer}/kernel"] + self.weights[f"{layer}/bias"]

    def _tensors(self, batch: Batch) -> Batch:
        check_batch(batch, observation_size=self.sizes.observation, actions=self.sizes.actions)
        dtype = self.weights["representation/state/bias"].dtype
        dtypes = (dtype, torch.int64, dtype, dtype, dtype)
        return Batch(*(torch.as_tensor(x, dtype=t, device=self.device) for x, t in zip(batch, dtypes)))
