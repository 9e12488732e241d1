"""The flight recorder in Lightning's `Trainer`."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from gradtricks.doctor.torch import FlightRecorder


class FlightCallback(Callback):
    """Looks at the gradients of each update of a `Trainer`, as `FlightRecorder` does.

    Where one isn't finite, the update isn't made. All batches of the update are run again under full
    observation, and the cause goes to the logger ``lightning.pytorch``.

    Args:
        every: At every how many updates to look.
        folder: Where snapshots of broken updates go, as `FlightRecorder` has it; None keeps none.

    Raises:
        BrokenTrainingError: From ``trainer.fit(...)``. The gradient isn't finite.
    """

    recorder: FlightRecorder

    def __init__(self, *, every: int = 1, folder: Path | str | None = "flight") -> None:
        self.every, self.folder = every, folder
        self.given: list[Any] = []  # to the training step, since the last update

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        """Look at the trainer's optimizers."""
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        self.recorder = FlightRecorder(
            module, trainer.optimizers, scaler=scaler, every=self.every, folder=self.folder
        )
        self.recorder.logger = logging.getLogger("lightning.pytorch")
        self.num_updates = -1  # of the trainer, when the step began
        self.original = trainer.strategy.training_step
        trainer.strategy.training_step = self._training_step

    def on_train_batch_start(
        self, trainer: Trainer, module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Begin an update, where this batch is the first of it."""
        if self.num_updates != trainer.global_step:
            self.num_updates = trainer.global_step
            self.given.clear()
            self.recorder.begin(lambda: self._again(trainer, module), self.given)

    def on_train_batch_end(
        self, trainer: Trainer, module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """End it, where this batch is the last of it."""
        if self.num_updates != trainer.global_step:
            self.recorder.end()

    def on_train_end(self, trainer: Trainer, module: LightningModule) -> None:
        """Look no more."""
        if vars(trainer.strategy).pop("training_step", None):
            self.recorder.close()

    def on_exception(self, trainer: Trainer, module: LightningModule, exception: BaseException) -> None:
        """Look no more."""
        self.on_train_end(trainer, module)

    def _training_step(self, *given: Any) -> Any:
        self.given.append(given)
        return self.original(*given)

    def _again(self, trainer: Trainer, module: LightningModule) -> None:
        optimizer = self.recorder.optimizers[0]
        module.log = lambda *args, **options: None  # once is enough, and there is no place for it here
        try:
            for given in self.given:
                outputs = self.original(*given)
                if module.automatic_optimization:
                    loss = outputs["loss"] if isinstance(outputs, Mapping) else outputs
                    trainer.strategy.backward(loss / trainer.accumulate_grad_batches, optimizer)
            optimizer.step()
        finally:
            del module.log
