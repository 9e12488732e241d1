"""What learners in PyTorch share: weights that an optimizer moves, and a state that can be saved."""

from collections.abc import Callable, Iterable, Mapping

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from gradtricks.agents.torch.devices import resolve_device


class Trainable:
    """Weights on a device, and PyTorch's optimizer of them.

    Attributes:
        weights: Under their names.
        device: Where they are.
    """

    weights: dict[str, Tensor]
    device: torch.device
    _optimizer: Optimizer

    def _begin(
        self, weights: Mapping[str, np.ndarray], device: str, make: Callable[[list[Tensor]], Optimizer]
    ) -> None:
        self.device = resolve_device(device)
        self.weights = {
            name: torch.tensor(value, device=self.device, requires_grad=True)
            for name, value in weights.items()
        }
        self._optimizer = make(list(self.weights.values()))

    def _step(self, gradients: Iterable[Tensor], learning_rate: float) -> None:
        for weight, gradient in zip(self.weights.values(), gradients, strict=True):
            weight.grad = gradient
        self._optimizer.param_groups[0]["lr"] = learning_rate
        self._optimizer.step()

    def state(self) -> dict[str, np.ndarray]:
        """Return copies of the weights, under their names, and of the optimizer's state."""
        state = {name: weight.detach() for name, weight in self.weights.items()}
        for name, weight in self.weights.items():
            for key, value in self._optimizer.state[weight].items():
                state[f"optimizer/{name}/{key}"] = value
        # Copies: what is in memory learns on.
        return {name: value.cpu().numpy().copy() for name, value in state.items()}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Go on from what `state` returned, of a learner made with the same arguments."""
        for name, weight in self.weights.items():
            with torch.no_grad():
                weight.copy_(torch.as_tensor(state[name]))
            mine = [key for key in state if key.startswith(f"optimizer/{name}/")]
            self._optimizer.state[weight] = {
                key.rpartition("/")[2]: torch.tensor(state[key], device=self.device) for key in mine
            }
