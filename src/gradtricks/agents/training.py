"""The history of a training, and snapshots from which it goes on after it was killed."""

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from gradtricks._core.checks import check_integer
from gradtricks.agents.checkpoints import Arrays, load_checkpoint, save_checkpoint, to_json

Array = NDArray[np.floating]

_SECONDS_BETWEEN = 20.0  # learning on costs more than saving by then


class NotFiniteError(ValueError):
    """A network's output, or its loss, is NaN or infinite."""


def check_loss(loss: float) -> float:
    """Return a loss that is finite; raise NotFiniteError at any other."""
    if not np.isfinite(loss):
        raise NotFiniteError(
            f"the loss must be finite; got {loss}: has the training diverged? remedy: a smaller learning_rate"
        )
    return loss


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


@dataclass
class History:
    """Returns, losses, gradients and times of a training; a part of a snapshot.

    Attributes:
        decisions: How many decisions were made, over all games.
        game_returns: Of each game that is over, in the order in which they ended.
        game_times: Decisions made until then.
        point_rewards: In Pong, +1 or -1 for each point, likewise.
        point_times: Decisions made until then.
        losses: The loss before each update, or their mean over those that follow one another.
        loss_times: Decisions made until then.
        seconds: Of training until then.
        cpu_seconds: Of all threads of this process, likewise.
        norm_times: Decisions made when gradients were measured.
        norms: The learner's ``gradient_norms`` then, one list for each of its names.
    """

    decisions: int = 0
    game_returns: list[float] = field(default_factory=list)
    game_times: list[int] = field(default_factory=list)
    point_rewards: list[float] = field(default_factory=list)
    point_times: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    loss_times: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list, compare=False)
    cpu_seconds: list[float] = field(default_factory=list, compare=False)
    norm_times: list[int] = field(default_factory=list)
    norms: dict[str, list[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Start the clocks."""
        self._scores: Array = np.zeros(())
        self._start_clocks()

    def add_decisions(self, count: int, returns: list[float]) -> None:
        """Note one decision in each of so many games, and the returns of those that are over now."""
        self.decisions += count
        self.game_returns += returns
        self.game_times += [self.decisions] * len(returns)

    def add_rewards(self, rewards: Array, playing: NDArray[np.bool_]) -> None:
        """Note one decision in every game, with rewards ``[N]`` that are points."""
        self._scores = self._scores + rewards
        self.add_decisions(len(rewards), self._scores[~playing].tolist())
        self._scores[~playing] = 0
        points = rewards[rewards != 0].tolist()
        self.point_rewards += points
        self.point_times += [self.decisions] * len(points)

    def add_loss(self, loss: float) -> None:
        """Note the loss before an update, or several, and how long it took to get there."""
        self.losses.append(loss)
        self.loss_times.append(self.decisions)
        self.seconds.append(time.perf_counter() - self._started)
        self.cpu_seconds.append(time.process_time() - self._cpu_started)

    def add_norms(self, norms: Mapping[str, Any]) -> None:
        """Note the learner's ``gradient_norms``."""
        self.norm_times.append(self.decisions)
        for name, norm in norms.items():
            self.norms.setdefault(name, []).append(norm)

    def points_between(self, start: float, stop: float) -> Array:
        """Return the rewards ``[P]`` of the points that ended after ``start`` and by ``stop`` decisions."""
        times = np.array(self.point_times)
        return np.array(self.point_rewards)[(times > start) & (times <= stop)]

    def share_won(self, points: int) -> float:
        """Say how many of the last points were won; NaN, which is no share, while there are fewer."""
        last = self.point_rewards[-points:]
        return sum(reward > 0 for reward in last) / points if len(last) == points else np.nan

    def curve(self, windows: int) -> Curve:
        """Divide the training into ``windows`` parts of equally many decisions."""
        windows = check_integer("windows", windows, low=1)
        ends = np.linspace(0, self.decisions, windows + 1)[1:]
        parts = ends.searchsorted(self.game_times)
        games = np.bincount(parts, minlength=windows)
        sums = np.bincount(parts, self.game_returns, minlength=windows)
        return Curve(ends, games, np.divide(sums, games, out=np.full(windows, np.nan), where=games > 0))

    def state(self) -> dict[str, NDArray[Any]]:
        """Return all of it, as arrays under names for `restore`."""
        lists = {name: np.array(getattr(self, name), np.float64) for name in _LISTS}
        norms = {f"norms/{name}": np.array(values, np.float64) for name, values in self.norms.items()}
        return {**lists, **norms, "decisions": np.array(self.decisions), "scores": self._scores.copy()}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from what `state` returned; time counts on from there."""
        for name in _LISTS:
            whole = name.endswith("_times")
            setattr(self, name, (state[name].astype(np.int64) if whole else state[name]).tolist())
        norms = [name for name in state if name.startswith("norms/")]
        self.norms = {name.removeprefix("norms/"): state[name].tolist() for name in norms}
        self.decisions, self._scores = int(state["decisions"]), state["scores"].copy()
        self._start_clocks()

    def _start_clocks(self) -> None:
        self._started = time.perf_counter() - (self.seconds or [0.0])[-1]
        self._cpu_started = time.process_time() - (self.cpu_seconds or [0.0])[-1]


_LISTS = (
    *("game_returns", "game_times", "point_rewards", "point_times"),
    *("losses", "loss_times", "seconds", "cpu_seconds", "norm_times"),
)


class Part(Protocol):
    """A part of a training that can be saved: a learner, games, a memory, a history."""

    def state(self) -> Arrays:
        """Return all that is needed to go on; what happens later doesn't change it."""

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from what `state` returned, of a part made with the same arguments."""


class Snapshots:
    """Saves the parts of a training now and then, and gives them back to an attempt that goes on.

    Args:
        path: The file; None saves nothing.
        training: Settings in which a file must agree to be of this training, as it must in the parts'
            beginnings: anything that JSON can say, and NumPy's numbers.
        parts: Under their names, as they are before the training.
    """

    def __init__(self, path: Path | None, training: Mapping[str, Any], parts: Mapping[str, Part]) -> None:
        """Keep the arguments."""
        self._path, self._parts, self._last_saved = path, parts, 0.0
        if path is not None:
            start = _digest(self._state())
            self._training = json.loads(to_json({**training, "start": start}))  # as it will be read

    def restore(self) -> int:
        """Give the parts what the file holds, if it is there; clocks go on last, when games are played again.

        Returns:
            How far the earlier attempt had come, as `save_if_due` was told.

        Raises:
            ValueError: The file is damaged, or of another training.
        """
        if self._path is None or not self._path.exists():
            return 0
        arrays, about = load_checkpoint(self._path)
        if about.get("training") != self._training:
            raise ValueError(
                f"{self._path} must be of the same training; got {about.get('training')} where "
                f"{self._training} is wanted; remedy: another path, or remove the file"
            )
        for name, part in sorted(self._parts.items(), key=lambda item: isinstance(item[1], History)):
            mine = {key for key in arrays if key.startswith(f"{name}/")}
            part.restore({key.removeprefix(f"{name}/"): arrays[key] for key in mine})
        self._last_saved = float(about["seconds"])
        return int(about["done"])

    def save_if_due(self, done: int, seconds: float) -> None:
        """Write the file, unless that was done a few seconds ago.

        ``done`` is how far the training has come, in whatever it counts.
        """
        if self._path is None or seconds - self._last_saved < _SECONDS_BETWEEN:
            return
        self._last_saved = seconds
        about = {"training": self._training, "done": done, "seconds": seconds}
        save_checkpoint(self._path, self._state(), about)

    def _state(self) -> Arrays:
        parts = {name: part.state() for name, part in self._parts.items()}
        return {f"{name}/{key}": value for name, state in parts.items() for key, value in state.items()}


class Chance:
    """A random generator as a part of a training."""

    def __init__(self, rng: np.random.Generator) -> None:
        """Keep it."""
        self._rng = rng

    def state(self) -> Arrays:
        """Return the generator's state as the bytes of JSON, since it has integers of 128 bits."""
        text = json.dumps(self._rng.bit_generator.state)
        return {"state": np.frombuffer(text.encode(), np.uint8)}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from what `state` returned, of a generator of the same kind."""
        self._rng.bit_generator.state = json.loads(state["state"].tobytes())


def _digest(arrays: Arrays) -> str:
    parts = (name.encode() + arrays[name].tobytes() for name in sorted(arrays))
    return hashlib.sha256(b"".join(parts)).hexdigest()
