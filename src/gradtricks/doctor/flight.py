"""A flight recorder: looks at each step's gradients, and does a broken step again under full observation."""

import logging
from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

from gradtricks._core.checks import check_callable, check_integer
from gradtricks.doctor.reports import Diagnosis

_KEPT = 10_000  # norms

# A snapshot that the next recorded step is to be done from, instead of its own batch.
replayed: ContextVar[Path | None] = ContextVar("replayed", default=None)


class BrokenTrainingError(ArithmeticError):
    """A step's gradient isn't finite. Nothing was updated by it; print the error for the cause.

    Attributes:
        diagnosis: As ``diagnose`` returns it, of the broken step alone.
        snapshot: A file from which ``gradtricks doctor --replay`` does the step again; None if none was kept.
    """

    def __init__(self, diagnosis: Diagnosis, step: int, snapshot: Path | None) -> None:
        kept = f"; gradtricks doctor --replay {snapshot} SCRIPT does it again" if snapshot else ""
        super().__init__(f"the gradient of step {step} isn't finite, and wasn't used{kept}\n{diagnosis}")
        self.diagnosis, self.snapshot = diagnosis, snapshot


class ReplayedError(BaseException):
    """Leaves a program whose recorded step was done again; no handler of its own is meant to catch it."""

    def __init__(self, diagnosis: Diagnosis) -> None:
        super().__init__()
        self.diagnosis = diagnosis


class Stop(BaseException):
    """Leaves a step before its gradient is used."""


class Recording:
    """The base of both frameworks' recorders.

    Attributes:
        norms: The norms of the gradients at the last 10,000 looks, before any clipping by the optimizer.
        num_steps: How many steps went well.
        logger: Is told of a broken step before that is raised; None for nobody.
    """

    def __init__(self, every: int, folder: Path | str | None) -> None:
        check_integer("every", every, low=1)
        self.every, self.folder = every, None if folder is None else Path(folder)
        self.num_steps = 0
        self.norms: deque[float] = deque(maxlen=_KEPT)
        self.observing, self.within = False, False  # within `step`
        self.logger: logging.Logger | None = None

    def step(self, function: Callable[..., Any], *batch: Any) -> Any:
        """Take a training step, and look at its gradients before they are used.

        Args:
            function: Takes one whole step: forward, backward, update. It must do the same when it is called
                again with the same batch, weights and random numbers.
            *batch: What it is given. What a snapshot is to keep of it is saved as the framework saves things.

        Returns:
            What the function returned.

        Raises:
            BrokenTrainingError: The gradient isn't finite. Weights, buffers and random numbers are those of
                before the step, and there are no gradients, so a handler may leave the batch out.
        """
        check_callable("function", function)
        given = [*batch]
        self.begin(lambda: function(*given), given)
        left, result, self.within = False, None, True
        try:
            result = function(*batch)
        except Stop:
            left = True
        finally:
            self.within = False
        if left:
            self._fail()
        self.end()
        return result

    def begin(self, again: Callable[[], Any], batch: list[Any]) -> None:
        """Begin a step whose parts somebody else's loop runs, as callbacks do; `end` ends it.

        Args:
            again: Does the whole step once more with what is in the batch, when the step is broken.
            batch: What a snapshot keeps, and what a replay puts that into. It may be filled meanwhile.
        """
        if (file := replayed.get()) is not None:
            batch[:] = self._load(file)
            raise ReplayedError(self._observe(again))
        self.again, self.batch = again, batch
        self._keep()

    def end(self) -> None:
        """End the step that was begun, and count it.

        Raises:
            BrokenTrainingError: As `step` does. Where the loop isn't ours, most come from the update itself.
        """
        if self._broken():
            self._fail()
        self.num_steps += 1

    def _leave(self) -> NoReturn:
        """Leave the step before its gradient is used."""
        if self.within:
            raise Stop
        self._fail()

    def _fail(self) -> NoReturn:
        self._restore()
        snapshot = None
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            snapshot = self._save(self.folder / f"step-{self.num_steps}", self.batch)
        diagnosis = self._observe(self.again)
        self._restore()
        error = BrokenTrainingError(diagnosis, self.num_steps, snapshot)
        if self.logger:
            self.logger.error(str(error))
        raise error

    @property
    def _due(self) -> bool:
        """Whether this step is looked at."""
        return self.num_steps % self.every == 0

    @abstractmethod
    def _broken(self) -> bool:
        """Say whether the step that has just ended was given a gradient that isn't finite."""

    @abstractmethod
    def _keep(self) -> None:
        """Keep what a step changes besides weights: buffers and random numbers."""

    @abstractmethod
    def _restore(self) -> None:
        """Put that back, and drop all gradients."""

    @abstractmethod
    def _save(self, path: Path, batch: list[Any]) -> Path:
        """Write what a step begins with; return the file."""

    @abstractmethod
    def _load(self, path: Path) -> list[Any]:
        """Read that back into models, optimizers and random states; return the batch."""

    @abstractmethod
    def _observe(self, again: Callable[[], Any]) -> Diagnosis:
        """Do a step under full observation, but for its update."""

    @abstractmethod
    def close(self) -> None:
        """Look no more."""

    def __enter__(self) -> Self:
        """Return the recorder itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Look no more."""
        self.close()
