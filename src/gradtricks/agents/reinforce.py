"""REINFORCE, point by point: a memory of finished points, and a training loop without a framework."""

from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from gradtricks._core.checks import check_integer
from gradtricks.agents.checkpoints import Chance, Part, Snapshots
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

    def state(self) -> dict[str, Array]:
        """Return all that the policy would need to go on."""

    def restore(self, state: Mapping[str, Array]) -> None:
        """Go on from what `state` returned."""


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

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the decisions whose points go on; all others must have been taken."""
        columns = zip(*(decision for game in self._open for decision in game))
        arrays = {name: np.stack(column) for name, column in zip(Batch._fields, columns)}
        return {"lengths": np.array([len(game) for game in self._open]), **arrays}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from what `state` returned."""
        decisions = zip(*(state[name] for name in Batch._fields if name in state))
        self._open = [list(islice(decisions, length)) for length in state["lengths"].tolist()]
        self._finished = []


def train(
    policy: Policy,
    games: PongGames,
    *,
    decisions: int,
    rng: np.random.Generator,
    batch_size: int = 1024,
    discount: float = 0.98,
    sign: int = 1,
    checkpoint: Path | None = None,
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
        checkpoint: A file to go on from if it is there, and to save to now and then.

    Returns:
        What happened.

    Raises:
        ValueError: An option is out of range, or the checkpoint is of another training.
    """
    decisions = check_integer("decisions", decisions, low=1)
    batch_size = check_integer("batch_size", batch_size, low=1)
    if sign not in (1, -1):
        raise ValueError(f"sign must be 1 or -1; got {sign!r}")
    history, memory = History(), PointMemory(len(games.playing))
    training = {
        "decisions": decisions,
        "batch_size": batch_size,
        "discount": discount,
        "sign": sign,
    }
    parts: dict[str, Part] = {"policy": policy, "games": games, "memory": memory, "history": history}
    snapshots = Snapshots(checkpoint, training, {**parts, "chance": Chance(rng)})
    snapshots.restore()
    while history.decisions < decisions:
        observations, playing = games.observations, games.playing
        actions = sample_actions(policy.logits(observations), rng)
        rewards = games.step(actions)
        memory.add(observations, actions, rewards, playing)
        history.add_rewards(rewards, games.playing)
        if len(memory) >= batch_size:
            batch = memory.take()
            advantages = sign * policy.advantages(batch.rewards, discount)
            history.add_loss(policy.learn(batch.observations, batch.actions, advantages))
            snapshots.save_if_due(history.decisions, history.seconds[-1])
    return history
