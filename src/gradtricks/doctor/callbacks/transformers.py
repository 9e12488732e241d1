"""The flight recorder in Hugging Face's `Trainer`, and in those that build on it."""

import logging
from copy import copy
from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerCallback

from gradtricks.doctor.torch import FlightRecorder


class FlightCallback(TrainerCallback):
    """Looks at the gradients of each update of a `Trainer`, as `FlightRecorder` does.

    Where one isn't finite, the update isn't made. All batches of the update are run again under full
    observation, and the cause goes to the logger ``transformers.trainer``.

    Args:
        trainer: The one that it is added to.
        every: At every how many updates to look.
        folder: Where snapshots of broken updates go, as `FlightRecorder` has it; None keeps none.

    Raises:
        BrokenTrainingError: From ``trainer.train()``. The gradient isn't finite.
    """

    recorder: FlightRecorder

    def __init__(self, trainer: Trainer, *, every: int = 1, folder: Path | str | None = "flight") -> None:
        self.trainer, self.every, self.folder = trainer, every, folder
        self.given: list[Any] = []  # to the training step, since the last update
        self.original = trainer.training_step
        trainer.training_step = self._training_step

    def on_train_begin(self, args: Any, state: Any, control: Any, **seen: Any) -> None:
        """Look at the optimizer within the one that accelerate makes of it."""
        self.on_train_end(args, state, control)
        optimizer = getattr(seen["optimizer"], "optimizer", seen["optimizer"])
        scaler = self.trainer.accelerator.scaler
        self.recorder = FlightRecorder(
            seen["model"], optimizer, scaler=scaler, every=self.every, folder=self.folder
        )
        self.recorder.logger = logging.getLogger("transformers.trainer")

    def on_step_begin(self, args: Any, state: Any, control: Any, **seen: Any) -> None:
        """Begin an update."""
        self.given.clear()
        self.recorder.begin(self._again, self.given)

    def on_step_end(self, args: Any, state: Any, control: Any, **seen: Any) -> None:
        """End it."""
        self.recorder.end()

    def on_train_end(self, args: Any, state: Any, control: Any, **seen: Any) -> None:
        """Look no more."""
        if "recorder" in vars(self):
            self.recorder.close()

    def _training_step(self, model: Any, inputs: Any, *rest: Any) -> Any:
        # The trainer takes out of the inputs what the model isn't given. Those of TRL may be a list.
        self.given.append((copy(inputs), *rest))
        return self.original(model, inputs, *rest)

    def _again(self) -> None:
        for inputs, *rest in self.given:
            self.original(self.trainer.model_wrapped, copy(inputs), *rest)
        self.recorder.optimizers[0].step()
