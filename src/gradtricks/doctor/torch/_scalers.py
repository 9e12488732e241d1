"""Hearing a scaler of PyTorch: which losses it scales, and which updates it leaves out."""

from collections.abc import Callable
from typing import Any

import torch

from gradtricks.doctor.torch._graph import tensors_of
from gradtricks.doctor.watching import Watching


def on_scale(watch: Watching, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return what scales a loss."""

    def scale(scaler: Any, outputs: Any) -> Any:
        made = original(scaler, outputs)
        watch.scaled += zip(tensors_of(outputs), tensors_of(made)) if scaler.is_enabled() else []
        return made

    return scale


def on_step(watch: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return what takes a step with scaled gradients, or leaves it out."""

    def step(scaler: Any, optimizer: torch.optim.Optimizer, *args: Any, **options: Any) -> Any:
        known = len(watch.history.updates) + len(watch.history.skips)
        watch.scaled_pass = False  # what it takes is unscaled
        result = original(scaler, optimizer, *args, **options)
        if scaler.is_enabled() and len(watch.history.updates) + len(watch.history.skips) == known:
            watch.skip(optimizer)
        return result

    return step
