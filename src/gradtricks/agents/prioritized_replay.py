"""The memory of an agent that plays while it learns: finished episodes, the oldest forgotten first.

`gradtricks.agents.replay` has the simpler buffer, for episodes that are all there from the start.
"""

from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradtricks._core.checks import check_integer, check_number, check_shape
from gradtricks.agents.replay import Batch, assemble
from gradtricks.agents.supports import CARTPOLE_SUPPORT, Support, clip_value

Array = NDArray[np.floating]


class Episode(NamedTuple):
    """A finished game of T steps.

    Attributes:
        observations: ``[T, ...]``, what the player saw before each step.
        actions: ``[T]``.
        rewards: ``[T]``, for the player who took the step.
        policies: ``[T, A]``, the search's visits as shares.
        values: ``[T]``, the search's value of each root, for the player whose turn it was.
        final_value: Of the state after the last step, where a time limit cut the game off there; None where
            the game ended by itself, so that nothing was still to come.
    """

    observations: Array
    actions: NDArray[np.int64]
    rewards: Array
    policies: Array
    values: Array
    final_value: float | None = None


class PrioritizedBatch(NamedTuple):
    """Windows drawn by priority, and what makes up for it.

    Attributes:
        batch: The windows.
        weights: ``[B]`` of ``float32``, for each trajectory's loss: 1 for the smallest priority in the whole
            memory, less for the others. A step's weight is the same in every batch until the memory changes.
    """

    batch: Batch
    weights: Array


class PrioritizedReplayBuffer:
    """Draws windows in proportion to how much the search's value missed the n-step return.

    States past the end of a game are absorbing, as in the paper's pseudocode: value and reward are zero,
    there is no policy target, and actions are random. Past a time limit nothing is known, and the targets are
    rows of zeros, which add nothing to the loss. Value targets are clipped to the support, rewards aren't.

    Args:
        capacity: Steps to keep, of whole episodes.
        discount: Of the returns.
        td_steps: Rewards in a value target, before the search's value stands for the rest; None is all.
        two_players: Players alternate, and one's gain is the other's loss.
        support: Categories of values and rewards.
        priority_exponent: Of the priorities, from 0, which draws evenly, to the paper's 1; Schaul's alpha.
        importance_exponent: Of the weights that make up for it, from 0, none, to the paper's 1; his beta.
        priority_floor: Added to each priority, so that nothing is forgotten.

    References:
        Schaul and others, "Prioritized experience replay", https://arxiv.org/abs/1511.05952.
    """

    def __init__(
        self,
        capacity: int,
        *,
        discount: float = 0.997,
        td_steps: int | None = 10,
        two_players: bool = False,
        support: Support = CARTPOLE_SUPPORT,
        priority_exponent: float = 1.0,
        importance_exponent: float = 1.0,
        priority_floor: float = 0.01,
    ) -> None:
        """Start empty."""
        self.capacity = check_integer("capacity", capacity, low=1)
        self.discount = check_number("discount", discount, low=0, high=1)
        self.td_steps = None if td_steps is None else check_integer("td_steps", td_steps, low=1)
        self.two_players, self.support = two_players, support
        self.priority_exponent = check_number("priority_exponent", priority_exponent, low=0, high=1)
        self.importance_exponent = check_number("importance_exponent", importance_exponent, low=0, high=1)
        self.priority_floor = check_number("priority_floor", priority_floor, low=1e-6)
        self._columns: dict[str, NDArray] = {}
        self._set_priorities(np.zeros(self.capacity))
        self._lengths: deque[int] = deque()
        self._next = self._size = 0

    def __len__(self) -> int:
        """Return the number of steps to draw from."""
        return self._size

    def add(self, episode: Episode) -> None:
        """Remember an episode, and forget the oldest ones where there is no room.

        Args:
            episode: The game.

        Raises:
            ValueError: Its shapes don't fit together or aren't those of the first one, it has no steps or
                more than ``capacity``, or something isn't finite.
        """
        steps = _check_episode(episode, self.capacity)
        for name in self._columns.keys() & {"observations", "policies"}:
            shape = self._columns[name].shape[1:]
            check_shape(name, np.shape(getattr(episode, name))[1:], shape, "the first episode's, without [T]")
        while self._size + steps > self.capacity:
            self._forget()
        at = (self._next + np.arange(steps)) % self.capacity
        targets = value_targets(episode, self.discount, self.td_steps, two_players=self.two_players)
        # An untrained network's values may be anything.
        targets = clip_value(targets, self.support)
        columns = episode._asdict() | {"values": targets, "remaining": np.arange(steps, 0, -1)}
        columns["rewards"] = np.asarray(episode.rewards, np.float64)
        columns["ended"] = np.full(steps, columns.pop("final_value") is None)
        for name, column in columns.items():
            column = np.asarray(column)
            if name not in self._columns:
                self._columns[name] = np.zeros((self.capacity, *column.shape[1:]), column.dtype)
            self._columns[name][at] = column
        missed = np.abs(targets - episode.values) + self.priority_floor
        self._priorities[at] = missed**self.priority_exponent
        self._set_priorities(self._priorities)
        self._lengths.append(steps)
        self._next, self._size = (self._next + steps) % self.capacity, self._size + steps

    def sample(self, batch_size: int, num_unroll_steps: int, rng: np.random.Generator) -> PrioritizedBatch:
        """Draw roots with replacement and gather their windows.

        Args:
            batch_size: B.
            num_unroll_steps: K.
            rng: Draws the roots, and the actions past the end of an episode.

        Returns:
            The windows and their weights.

        Raises:
            ValueError: The buffer is empty, a number is below one, or a reward lies outside the support.
        """
        batch_size = check_integer("batch_size", batch_size, low=1)
        steps = check_integer("num_unroll_steps", num_unroll_steps, low=1)
        if not self._size:
            raise ValueError("there must be an episode to draw from; got none: add one first")
        total = self._cumulative[-1]
        drawn = np.minimum(rng.random(batch_size) * total, np.nextafter(total, 0))
        roots = self._cumulative.searchsorted(drawn, side="right")
        weights = (self._smallest / self._priorities[roots]) ** self.importance_exponent
        return PrioritizedBatch(self._window(roots, steps, rng), weights.astype(np.float32))

    def state(self) -> dict[str, NDArray[Any]]:
        """Return all that is remembered.

        Returns:
            Copies, under names for `restore`.
        """
        columns = {f"column/{name}": column.copy() for name, column in self._columns.items()}
        numbers = {"lengths": np.array(self._lengths, np.int64), "next": np.array(self._next)}
        return {**columns, **numbers, "priorities": self._priorities.copy()}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from what `state` returned.

        Args:
            state: Of a buffer with the same arguments.
        """
        columns = (name for name in state if name.startswith("column/"))
        self._columns = {name.removeprefix("column/"): state[name].copy() for name in columns}
        self._set_priorities(state["priorities"].copy())
        self._lengths = deque(state["lengths"].tolist())
        self._next, self._size = int(state["next"]), sum(self._lengths)

    def _set_priorities(self, priorities: NDArray[np.float64]) -> None:
        """Work out once what every sample needs; steps that are forgotten or not there yet have zero."""
        self._priorities, self._cumulative = priorities, priorities.cumsum()
        self._smallest = priorities.min(initial=np.inf, where=priorities > 0)

    def _window(self, roots: NDArray[np.int64], steps: int, rng: np.random.Generator) -> Batch:
        data, k = self._columns, np.arange(steps + 1)[:, None]
        inside = k < data["remaining"][roots]
        at = np.where(inside, (roots + k) % self.capacity, roots)
        actions, values, rewards, policies = (
            data[name][at] for name in ("actions", "values", "rewards", "policies")
        )
        batch = assemble(
            data["observations"][roots], actions, values, rewards, policies, inside, rng, self.support
        )
        known = inside | data["ended"][roots]
        batch.target_value[~known] = 0
        batch.target_reward[~known[:-1]] = 0
        return batch

    def _forget(self) -> None:
        oldest = self._lengths.popleft()
        at = (self._next - self._size + np.arange(oldest)) % self.capacity
        self._priorities[at] = 0
        self._size -= oldest


def value_targets(
    episode: Episode, discount: float, td_steps: int | None, *, two_players: bool = False
) -> Array:
    """Sum the next rewards of each step, and take the search's value for the rest.

    Args:
        episode: The game.
        discount: Of the returns.
        td_steps: Rewards in each sum; None is all of them.
        two_players: See `PrioritizedReplayBuffer`.

    Returns:
        ``[T]``, each for the player whose turn it was.
    """
    last = len(episode.rewards)
    final_value = 0.0 if episode.final_value is None else episode.final_value
    # As the first player sees it, so that sums needn't change sides.
    signs = (-1.0) ** np.arange(last + 1) if two_players else np.ones(last + 1)
    rewards = signs * np.append(episode.rewards, final_value)
    values = signs * np.append(episode.values, final_value)
    targets = np.zeros(last + 1)
    count = last + 1 if td_steps is None else min(td_steps, last + 1)
    for i in range(count):
        targets[: last + 1 - i] += discount**i * rewards[i:]
    targets[: last + 1 - count] += discount**count * values[count:]
    return (signs * targets)[:-1]


def _check_episode(episode: Episode, capacity: int) -> int:
    steps = len(episode.actions)
    if not 1 <= steps <= capacity:
        raise ValueError(f"an episode must have 1 to {capacity} steps; got {steps}: raise the capacity")
    for name in ("actions", "rewards", "values"):
        check_shape(name, np.shape(getattr(episode, name)), (steps,), "[T]")
    check_shape("policies", np.shape(episode.policies), (steps, None), "[T, A]")
    check_shape("observations", np.shape(episode.observations)[:1], (steps,), "[T, ...] without the rest")
    if not (np.isfinite(episode.values).all() and np.isfinite(episode.rewards).all()):
        raise ValueError(
            "values and rewards must be finite; got NaN or infinity: has the training diverged? "
            "remedy: leave the episode out"
        )
    return steps
