"""What happened in a training: points, games, losses, time."""

import time
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]


@dataclass
class History:
    """What happened while training.

    Attributes:
        num_envs: How many games are played side by side.
        decisions: How many decisions were made, over all games.
        point_rewards: +1 or -1 for each point, in the order in which the points ended.
        point_times: Decisions made until then.
        game_returns: Points won minus points lost for each finished game, from -21 to 21.
        game_times: Decisions made until then.
        losses: The loss before each update, or their mean over those that follow one another.
        loss_times: Decisions made until then.
        seconds: Of training until then.
        cpu_seconds: Of all threads of this process, likewise.
    """

    num_envs: int
    decisions: int = 0
    point_rewards: list[float] = field(default_factory=list)
    point_times: list[int] = field(default_factory=list)
    game_returns: list[float] = field(default_factory=list)
    game_times: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    loss_times: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list, compare=False)
    cpu_seconds: list[float] = field(default_factory=list, compare=False)

    def __post_init__(self) -> None:
        """Start the clocks and the scores."""
        self._scores = np.zeros(self.num_envs)
        self.start_clocks()

    def start_clocks(self) -> None:
        """Count time from here on, after what is noted already."""
        self._started = time.perf_counter() - (self.seconds or [0.0])[-1]
        self._cpu_started = time.process_time() - (self.cpu_seconds or [0.0])[-1]

    def add_decision(self, rewards: Array, playing: NDArray[np.bool_]) -> None:
        """Note one decision in every game.

        Args:
            rewards: ``[N]``, what followed.
            playing: ``[N]``, False where the game is over now.
        """
        self.decisions += len(rewards)
        points = rewards[rewards != 0].tolist()
        self.point_rewards += points
        self.point_times += [self.decisions] * len(points)
        self._scores += rewards
        self.game_returns += self._scores[~playing].tolist()
        self.game_times += [self.decisions] * int((~playing).sum())
        self._scores[~playing] = 0

    def add_loss(self, loss: float) -> None:
        """Note an update, and how long it took to get there.

        Args:
            loss: Before it.
        """
        self.losses.append(loss)
        self.loss_times.append(self.decisions)
        self.seconds.append(time.perf_counter() - self._started)
        self.cpu_seconds.append(time.process_time() - self._cpu_started)

    def points_between(self, start: float, stop: float) -> Array:
        """Return the rewards of the points that ended after ``start`` and by ``stop`` decisions.

        Args:
            start: Decisions.
            stop: Decisions.

        Returns:
            ``[P]``.
        """
        times = np.array(self.point_times)
        return np.array(self.point_rewards)[(times > start) & (times <= stop)]

    def updates(self) -> dict[str, Array]:
        """Return what only learning shows, as arrays: the rest comes back when actions are played again.

        Returns:
            Losses and the times of updates.
        """
        return {name: np.array(getattr(self, name), np.float64) for name in _OF_UPDATES}

    def restore_updates(self, arrays: dict[str, Array]) -> None:
        """Go on from what `updates` returned.

        Args:
            arrays: Under the same names.
        """
        for name in _OF_UPDATES:
            setattr(self, name, arrays[name].tolist())
        self.loss_times = [int(time) for time in self.loss_times]
        self.start_clocks()


_OF_UPDATES = ("losses", "loss_times", "seconds", "cpu_seconds")


def sample_actions(logits: Array, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw an action from each row of logits, by the Gumbel-max trick.

    Args:
        logits: ``[N, 3]``.
        rng: The source of chance, the same for both frameworks.

    Returns:
        ``[N]``, indices into `gradtricks.agents.pong.ACTIONS`.
    """
    actions: NDArray[np.int64] = np.argmax(logits + rng.gumbel(size=logits.shape), axis=-1)
    return actions
