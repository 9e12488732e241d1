"""REINFORCE, point by point: a memory of finished points, and a training loop without a framework."""

from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from gradtricks._checks import check_number
from gradtricks.agents.history import History, sample_actions
from gradtricks.agents.pong import PongGames

Array = NDArray[np.floating]


class Batch(NamedTuple):
    """Finished points laid end to end; each ends with its only nonzero reward.

    Attributes:
        observations: ``[B, 6400]`` of ``int8``.
        actions: ``[B]``, indices into `gradtricks.agents.pong.ACTIONS`.
        rewards: ``[B]``, +1 for a point won, -1 for one lost, 0 before.
    """

    observations: NDArray[np.int8]
    actions: NDArray[np.int64]
    rewards: Array


class Policy(Protocol):
    """What `train` asks of an agent."""

    def logits(self, observations: NDArray[np.int8]) -> Array:
        """Return ``[B, 3]`` for ``[B, 6400]``."""

    def advantages(self, rewards: Array, discount: float) -> Array:
        """Return the processed rewards of points laid end to end, ``[B]``."""

    def learn(self, observations: NDArray[np.int8], actions: NDArray[np.int64], advantages: Array) -> float:
        """Take one step and return the loss before it."""


class PointMemory:
    """Keeps each decision until its point has ended, and then gives it out once.

    Points go on when a batch is taken: what belongs to an unfinished point stays and is learned from later.

    Args:
        num_envs: How many games.
    """

    def __init__(self, num_envs: int) -> None:
        """Start empty."""
        self._open: list[list[tuple[Any, ...]]] = [[] for _ in range(num_envs)]
        self._finished: list[tuple[Any, ...]] = []

    def __len__(self) -> int:
        """Return the number of decisions whose points have ended."""
        return len(self._finished)

    def add(
        self,
        observations: NDArray[np.int8],
        actions: NDArray[np.int64],
        rewards: Array,
        playing: NDArray[np.bool_],
    ) -> None:
        """Remember one decision in every game.

        Args:
            observations: ``[N, 6400]``, what was seen.
            actions: ``[N]``, what was done.
            rewards: ``[N]``, what followed.
            playing: ``[N]``, False where the action had no effect.
        """
        for game in np.flatnonzero(playing):
            decisions = self._open[game]
            decisions.append((observations[game].copy(), actions[game], rewards[game]))
            if rewards[game] != 0:
                self._finished += decisions
                decisions.clear()

    def take(self) -> Batch:
        """Return all decisions whose points have ended, and forget them.

        Returns:
            The points in the order in which they ended.

        Raises:
            ValueError: No point has ended.
        """
        if not self._finished:
            raise ValueError("no point has ended yet; remedy: add more decisions before taking a batch")
        batch = Batch(*(np.stack(column) for column in zip(*self._finished)))
        self._finished = []
        return batch


def train(
    policy: Policy,
    games: PongGames,
    *,
    decisions: int,
    rng: np.random.Generator,
    batch_size: int = 1024,
    discount: float = 0.98,
    sign: int = 1,
) -> History:
    """Play and learn, for a fixed number of decisions.

    The policy takes one step whenever finished points hold ``batch_size`` decisions.

    Args:
        policy: The agent; it changes.
        games: Where it plays; they go on from where they are.
        decisions: How many decisions to make, over all games.
        rng: Draws the actions.
        batch_size: Decisions per step of the policy, at least.
        discount: Of the returns, which end with their point.
        sign: +1 minimises the loss; -1 flips the sign of its reward term, which is the usual mistake.

    Returns:
        What happened.

    Raises:
        ValueError: An option is out of range.
    """
    decisions = int(check_number("decisions", decisions, low=1))
    batch_size = int(check_number("batch_size", batch_size, low=1))
    if sign not in (1, -1):
        raise ValueError(f"sign must be 1 or -1; got {sign!r}")
    history, memory = History(len(games.playing)), PointMemory(len(games.playing))
    while history.decisions < decisions:
        observations, playing = games.observations, games.playing
        actions = sample_actions(policy.logits(observations), rng)
        rewards = games.step(actions)
        memory.add(observations, actions, rewards, playing)
        history.add_decision(rewards, games.playing)
        if len(memory) >= batch_size:
            batch = memory.take()
            advantages = sign * policy.advantages(batch.rewards, discount)
            history.add_loss(policy.learn(batch.observations, batch.actions, advantages))
    return history
