"""What happened in a training by self-play: returns, losses, gradients, time."""

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradtricks._core.checks import check_integer

_NUMBERS = ("game_returns", "game_times", "losses", "loss_times", "seconds", "cpu_seconds", "norm_times")
_NORMS = ("representation", "dynamics", "prediction", "states")


class Curve(NamedTuple):
    """A training in parts of equally many decisions.

    Attributes:
        decisions: ``[W]``, made until the end of each part.
        games: ``[W]``, how many ended in it.
        mean_returns: ``[W]``, of these games; NaN where none ended.
    """

    decisions: NDArray[np.float64]
    games: NDArray[np.int64]
    mean_returns: NDArray[np.float64]

    @property
    def area(self) -> float:
        """The mean height of the curve, NaN where no game ended at all.

        Parts in which no game ended are often those of long games, so they aren't left out: the curve goes
        straight from the part before to the part after, and is level at both ends.
        """
        ended = self.games > 0
        if not ended.any():
            return np.nan
        return float(np.interp(self.decisions, self.decisions[ended], self.mean_returns[ended]).mean())


class TrainingHistory:
    """What happened while training; a part of a snapshot.

    Attributes:
        decisions: How many decisions were made, over all games.
        game_returns: Of each game that is over.
        game_times: Decisions made until then.
        losses: Mean weighted loss before the updates that follow one another.
        loss_times: Decisions made until then.
        seconds: Of training until then.
        cpu_seconds: Of all threads of this process, likewise.
        norm_times: Decisions made when gradients were measured.
        norms: What the learner's ``gradient_norms`` said then, one list for each of its names.
    """

    def __init__(self) -> None:
        """Start the clocks."""
        self.decisions = 0
        self.game_returns: list[float] = []
        self.game_times: list[int] = []
        self.losses: list[float] = []
        self.loss_times: list[int] = []
        self.seconds: list[float] = []
        self.cpu_seconds: list[float] = []
        self.norm_times: list[int] = []
        self.norms: dict[str, list[Any]] = {name: [] for name in _NORMS}
        self._start_clocks()

    def add_decisions(self, count: int, returns: list[float]) -> None:
        """Note one decision in every game.

        Args:
            count: Games.
            returns: Of those that are over now.
        """
        self.decisions += count
        self.game_returns += returns
        self.game_times += [self.decisions] * len(returns)

    def add_loss(self, loss: float) -> None:
        """Note updates, and how long it took to get there.

        Args:
            loss: Before them.
        """
        self.losses.append(loss)
        self.loss_times.append(self.decisions)
        self.seconds.append(time.perf_counter() - self._started)
        self.cpu_seconds.append(time.process_time() - self._cpu_started)

    def add_norms(self, norms: Mapping[str, Any]) -> None:
        """Note a measurement of gradients.

        Args:
            norms: From the learner's ``gradient_norms``.
        """
        self.norm_times.append(self.decisions)
        for name in _NORMS:
            self.norms[name].append(norms[name])

    def curve(self, windows: int) -> Curve:
        """Divide the training into parts of equally many decisions.

        Args:
            windows: How many parts.

        Returns:
            How many games ended in each, and their mean return.

        Raises:
            ValueError: ``windows`` is below one.
        """
        windows = check_integer("windows", windows, low=1)
        ends = np.linspace(0, self.decisions, windows + 1)[1:]
        parts = ends.searchsorted(self.game_times)
        games = np.bincount(parts, minlength=windows)
        sums = np.bincount(parts, self.game_returns, minlength=windows)
        return Curve(ends, games, np.divide(sums, games, out=np.full(windows, np.nan), where=games > 0))

    def state(self) -> dict[str, NDArray[Any]]:
        """Return all of it.

        Returns:
            Arrays, under names for `restore`.
        """
        numbers = {name: np.array(getattr(self, name), np.float64) for name in _NUMBERS}
        norms = {f"norms/{name}": np.array(values, np.float64) for name, values in self.norms.items()}
        return {**numbers, **norms, "decisions": np.array(self.decisions)}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from what `state` returned.

        Args:
            state: Its arrays.
        """
        for name in _NUMBERS:
            whole = name.endswith("_times")
            setattr(self, name, (state[name].astype(np.int64) if whole else state[name]).tolist())
        self.norms = {name: state[f"norms/{name}"].tolist() for name in _NORMS}
        self.decisions = int(state["decisions"])
        self._start_clocks()

    def _start_clocks(self) -> None:
        """Count time from here on, after what is noted already."""
        self._started = time.perf_counter() - (self.seconds or [0.0])[-1]
        self._cpu_started = time.process_time() - (self.cpu_seconds or [0.0])[-1]
