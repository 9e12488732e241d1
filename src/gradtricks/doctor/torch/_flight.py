"""The flight recorder of PyTorch."""

import math
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gradtricks.doctor.diagnosing import diagnosed
from gradtricks.doctor.flight import Recording
from gradtricks.doctor.operations import BAD
from gradtricks.doctor.reports import Diagnosis
from gradtricks.doctor.torch._graph import statuses_of
from gradtricks.doctor.torch._updates import parameters_of
from gradtricks.doctor.torch._watching import Watch
from gradtricks.doctor.torch.diagnosing import REMEDIES
from gradtricks.doctor.watching import EnoughSeen, as_several

_PATIENCE = 20  # updates that a scaler leaves out in a row; its scale is 2**-20 of what it was by then


class FlightRecorder(Recording):
    """Looks at the gradients of a long training, and says what broke it when it does.

    Before each update it takes the norm of all gradients, with one wait for the device. Where that isn't
    finite, the update isn't made: the step is done again with the same batch, weights and random numbers, as
    `diagnose` watches one, and its cause is raised. Nothing else of the training changes, bit for bit.

    Args:
        model: The modules that are trained.
        optimizer: Those that the step uses.
        scaler: The `torch.amp.GradScaler`, if there is one, whose state belongs to a step. An update that it
            leaves out is not looked at, but every twentieth in a row is, since no scale mends those.
        every: At every how many steps to look. Beyond 1, weights may be spoilt by the time that it is seen.
        folder: Where snapshots of broken steps go; None keeps none. They are read by `torch.load`, which may
            run what is in them, so replay only your own.

    Example:
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> def step(x):
        ...     optimizer.zero_grad()
        ...     model(x).square().mean().backward()
        ...     optimizer.step()
        >>> with FlightRecorder(model, optimizer, folder=None) as recorder:
        ...     for _ in range(3):
        ...         recorder.step(step, torch.ones(4, 2))
        >>> recorder.num_steps
        3
    """

    def __init__(
        self,
        model: torch.nn.Module | Iterable[torch.nn.Module],
        optimizer: torch.optim.Optimizer | Iterable[torch.optim.Optimizer],
        *,
        scaler: torch.amp.GradScaler | None = None,
        every: int = 1,
        folder: Path | str | None = "flight",
    ) -> None:
        super().__init__(every, folder)
        self.models = as_several("model", model, torch.nn.Module)
        self.optimizers = as_several("optimizer", optimizer, torch.optim.Optimizer)
        self.scaler, self.scaled = scaler, dict[str, Any]()
        self.asked, self.num_skipped = False, 0  # whether an update of this step was; in a row
        self.copies: list[torch.Tensor] = []
        self.handles = [each.register_step_pre_hook(self._before) for each in self.optimizers]

    def close(self) -> None:
        """Look no more."""
        for handle in self.handles:
            handle.remove()

    def _broken(self) -> bool:
        # Once told, a caller who goes on is told again only after as many more.
        skipped = self.scaler and not self.asked
        self.num_skipped = self.num_skipped % _PATIENCE + 1 if skipped else 0
        return self.num_skipped == _PATIENCE

    def _keep(self) -> None:
        self.asked = False
        self.random = _random_states()
        self.scaled = self.scaler.state_dict() if self.scaler else {}
        # Their versions don't say whether a normalization has written to them.
        self.copies = [buffer.detach().clone() for buffer in self._buffers()]

    def _restore(self) -> None:
        _set_random_states(self.random)
        if self.scaler and self.scaled:  # which is empty where it is switched off
            self.scaler.load_state_dict(self.scaled)
            # A step that was left midway would count as unscaled already; only update() begins it anew.
            self.scaler._per_optimizer_states.clear()
        for buffer, copy in zip(self._buffers(), self.copies):
            buffer.detach().copy_(copy)
        for each in self.optimizers:
            each.zero_grad()

    def _save(self, path: Path, batch: list[Any]) -> Path:
        file = path.with_suffix(".pt")
        states = [[each.state_dict() for each in them] for them in (self.models, self.optimizers)]
        torch.save({"states": states, "random": self.random, "scaler": self.scaled, "batch": batch}, file)
        return file

    def _load(self, path: Path) -> list[Any]:
        kept = torch.load(path, weights_only=False)
        for them, states in zip((self.models, self.optimizers), kept["states"]):
            for each, state in zip(them, states, strict=True):
                each.load_state_dict(state)
        _set_random_states(kept["random"])
        if self.scaler:
            self.scaler.load_state_dict(kept["scaler"])
        return kept["batch"]

    def _observe(self, again: Callable[[], Any]) -> Diagnosis:
        watch = Watch(self.optimizers)
        watch.add_all(self.models)
        self.observing = True
        try:
            with watch:
                again()
        finally:
            self.observing = False
        return diagnosed(watch.history, REMEDIES)

    def _before(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            self._look(optimizer)
            return None

        def looked_at() -> Any:  # its gradients are there only when it is done
            loss = closure()
            self._look(optimizer)
            return loss

        return args[:1], {**kwargs, "closure": looked_at}

    def _look(self, optimizer: torch.optim.Optimizer) -> None:
        if self.observing:  # what the optimizer is given has been noted
            raise EnoughSeen
        self.asked = True
        # A fused optimizer leaves out by itself what the scaler found not to be finite.
        if not self._due or getattr(optimizer, "found_inf", None) is not None:
            return
        gradients = [p.grad for p in parameters_of(optimizer) if p.grad is not None]
        dense = [g._values() if g.is_sparse else g for g in gradients]
        self.norms.append(float(torch.nn.utils.get_total_norm(dense)))
        # The norm of large finite numbers isn't finite either.
        if not math.isfinite(self.norms[-1]) and any(status in BAD for status, _ in statuses_of(gradients)):
            self._leave()

    def _buffers(self) -> Iterable[torch.Tensor]:
        return (buffer for model in self.models for buffer in model.buffers())


def _random_states() -> dict[str, Any]:
    on_devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    states = {"torch": torch.get_rng_state(), "devices": on_devices, "python": random.getstate()}
    return states | {"numpy": np.random.get_state()}


def _set_random_states(states: dict[str, Any]) -> None:
    torch.set_rng_state(states["torch"])
    if states["devices"]:
        torch.cuda.set_rng_state_all(states["devices"])
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
