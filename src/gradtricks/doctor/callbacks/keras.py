"""The flight recorder in Keras' `fit`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from gradtricks.doctor.tensorflow import FlightRecorder


class FlightCallback(keras.callbacks.Callback):
    """Looks at the gradients of each step of `fit`, as `FlightRecorder` does.

    Where one isn't finite, the update isn't made. The batch is run again under full observation, and the
    cause goes to the logger ``tensorflow``.

    Args:
        every: At every how many steps to look; a graph looks at each.
        folder: Where snapshots of broken updates go, as `FlightRecorder` has it; None keeps none.

    Raises:
        BrokenTrainingError: From ``model.fit(...)``. The gradient isn't finite.
        ValueError: The model takes several steps in one execution.
    """

    def __init__(self, *, every: int = 1, folder: Path | str | None = "flight") -> None:
        super().__init__()
        self.every, self.folder = every, folder

    def set_model(self, model: keras.Model) -> None:
        """Look at the optimizer, before a graph is made of the step."""
        super().set_model(model)
        if model.steps_per_execution != 1:
            raise ValueError(
                f"steps_per_execution must be 1; got {model.steps_per_execution}; "
                "remedy: model.compile(..., steps_per_execution=1) while you look for the cause"
            )
        self.recorder = FlightRecorder(model, model.optimizer, every=self.every, folder=self.folder)
        self.recorder.logger = tf.get_logger()
        model.train_function = None  # one of before wouldn't look

    def on_train_begin(self, logs: Any = None) -> None:
        """Hand each batch to the recorder."""
        take = self.model.train_function

        def step(batches: Iterator[Any]) -> Any:
            batch = next(batches)  # whose end Keras waits for
            try:
                return self.recorder.step(lambda batch: take([batch]), batch)
            except BaseException:  # after which Keras doesn't say that the training has ended
                self.on_train_end()
                raise

        self.model.train_function = step

    def on_train_end(self, logs: Any = None) -> None:
        """Look no more."""
        self.recorder.close()
        self.model.train_function = None
