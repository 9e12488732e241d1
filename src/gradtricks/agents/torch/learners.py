"""The base of the learners in PyTorch: a device, a seed, weights that an optimizer moves, their state."""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from gradtricks._core.checks import check_choice

DEVICES = ("auto", "cpu", "gpu")


def resolve_device(device: str = "auto") -> torch.device:
    """Return PyTorch's name of a device; ``"auto"`` is a GPU when there is one.

    Raises:
        ValueError: Another name, or ``"gpu"`` where there is none.
    """
    check_choice("device", device, DEVICES)
    available = torch.cuda.is_available()
    if device == "gpu" and not available:
        raise ValueError("device is 'gpu' but PyTorch sees none; remedy: pass 'cpu' or 'auto'")
    return torch.device("cuda" if available and device != "cpu" else "cpu")


def set_seed(seed: int) -> None:
    """Seed PyTorch and ask for deterministic operations."""
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True, warn_only=True)


class Trainable:
    """Weights by name on a device, and PyTorch's optimizer of them."""

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
