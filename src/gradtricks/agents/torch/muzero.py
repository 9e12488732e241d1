"""The learner of MuZero: three small networks and the batched ``update_weights`` of the pseudocode."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot
from torch.optim import SGD, Adam

from gradtricks._core.checks import check_shape
from gradtricks.agents.muzero.network import BaseLearner, Scales
from gradtricks.agents.muzero.replay import Batch
from gradtricks.agents.torch.learners import Trainable
from gradtricks.torch import muzero_loss, scale_gradient, unroll


class MuZeroLearner(Trainable, BaseLearner):
    """See `gradtricks.agents.muzero.network.BaseLearner`."""

    def _place(self, weights: Mapping[str, np.ndarray], device: str) -> None:
        make: Any = partial(SGD, momentum=self.momentum)
        if self.optimizer == "adam":
            make = partial(Adam, betas=(self.momentum, 0.999), fused=True)
        self._begin(weights, device, partial(make, weight_decay=self.weight_decay))

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
        with torch.no_grad():
            losses, _ = self._losses(self._tensors(batch), self.scales)
        return losses.mean().item()

    def update(self, batch: Batch, *, learning_rate: float | None = None) -> float:
        """Take one step of the optimizer, and return the loss before it."""
        losses, _ = self._losses(self._tensors(batch), self.scales)
        loss = losses.mean()
        self._optimizer.param_groups[0]["lr"] = self.learning_rate if learning_rate is None else learning_rate
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        return loss.item()

    def gradients(self, batch: Batch, **scales: Any) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Differentiate the mean loss."""
        tensors = self._tensors(batch)
        losses, states = self._losses(tensors, Scales(**scales))
        sources = [*self.weights.values(), *states]
        gradients = torch.autograd.grad(losses.mean(), sources, materialize_grads=True)
        arrays = [gradient.cpu().numpy() for gradient in gradients]
        count = len(self.weights)
        return dict(zip(self.weights, arrays[:count], strict=True)), np.stack(arrays[count:])

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
        value, policy = self._predict(torch.cat([root[None], scale_gradient(later, scales.head_scale)]))
        if scales.step_scales is not None:
            check_shape("step_scales", (len(scales.step_scales),), (len(value),), "[K+1]")
            of_steps = torch.tensor(scales.step_scales, dtype=value.dtype, device=self.device)[:, None, None]
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
        hidden = self._dense("representation/hidden", observation).relu()
        return torch.tanh(self._dense("representation/state", hidden))

    def _encode(self, action: Tensor) -> Tensor:
        """Return what actions add to the hidden layer of the dynamics, ``[..., H]``."""
        kernel = self.weights["dynamics/hidden/kernel"][self.state_size :]
        return one_hot(action, self.actions).to(kernel.dtype) @ kernel

    def _advance(self, state: Tensor, encoded_action: Tensor) -> tuple[Tensor, Tensor]:
        kernel = self.weights["dynamics/hidden/kernel"][: self.state_size]
        hidden = (state @ kernel + encoded_action + self.weights["dynamics/hidden/bias"]).relu()
        return hidden, torch.tanh(state + self._dense("dynamics/state", hidden))

    def _predict(self, state: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self._dense("prediction/hidden", state).relu()
        return self._dense("prediction/value", hidden), self._dense("prediction/policy", hidden)

    def _dense(self, layer: str, x: Tensor) -> Tensor:
        return x @ self.weights[f"{layer}/kernel"] + self.weights[f"{layer}/bias"]

    def _tensors(self, batch: Batch) -> Batch:
        batch.check(self.observation_size, self.actions)
        dtype = self.weights["representation/state/bias"].dtype
        dtypes = (dtype, torch.int64, dtype, dtype, dtype)
        return Batch(*(torch.as_tensor(x, dtype=t, device=self.device) for x, t in zip(batch, dtypes)))
