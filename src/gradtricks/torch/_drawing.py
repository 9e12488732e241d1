"""Whether what a checkpoint computes again draws the same random numbers again."""

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from gradtricks._core.recorded import Place, calling_place
from gradtricks.torch._graph import tensors_of

_DRAWING = ("dropout", "alpha_dropout", "bernoulli", "rand", "randn", "rand_like", "randn_like")


class Draws(TorchFunctionMode):
    """Knows in which states of the generator numbers were drawn; entered, it finds draws in other states."""

    def __init__(self) -> None:
        super().__init__()
        self.states: set[bytes] = set()
        self.others: list[Place | None] = []

    def note(self, func: Any, args: Any) -> None:
        """Remember the state of the generator, if this function draws."""
        if getattr(func, "__name__", "") in _DRAWING:
            self.states.add(_state(args))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") not in _DRAWING:
            return func(*args, **(kwargs or {}))
        before = _state(args)
        result = func(*args, **(kwargs or {}))
        # What is computed again is computed with a graph; noise that a rule adds to a gradient isn't.
        again = torch.is_grad_enabled() and before != _state(args)
        if again and before not in self.states:
            self.others.append(calling_place())
        return result


def same_draws() -> AbstractContextManager[None]:
    """Differentiate once more, and leave the random numbers as they were for whoever draws next."""
    return torch.random.fork_rng(range(torch.cuda.device_count()))


def _state(args: Any) -> bytes:
    device = next((tensor.device for tensor in tensors_of(args)), torch.device("cpu"))
    module = torch if device.type == "cpu" else torch.get_device_module(device)
    return bytes(module.get_rng_state().numpy().tobytes())
