"""The memory of an agent: finished episodes, the oldest forgotten first, and batches for MuZero's update."""

from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradtricks._core.checks import check_integer, check_number, check_shape
from gradtricks.agents.muzero.supports import CARTPOLE_SUPPORT, Support, clip_value, two_hot

Array = NDArray[np.floating]


class Batch(NamedTuple):
    """Data of one update: B root observations and the K steps that followed each.

    Arrays of NumPy, or within a learner the tensors of its framework.

    Attributes:
        observation: ``[B, O]``.
        actions: ``[K, B]``.
        target_value: ``[K+1, B, N]``, distributions over the support.
        target_reward: ``[K, B, N]``, likewise.
        target_policy: ``[K+1, B, A]``; zero past the end, so that no policy is learned there.
    """

    observation: Any
    actions: Any
    target_value: Any
    target_reward: Any
    target_policy: Any

    def shorten(self, num_unroll_steps: int) -> "Batch":
        """Return views of the same roots with only the first ``num_unroll_steps`` of their steps."""
        k = check_integer("num_unroll_steps", num_unroll_steps, low=1, high=len(self.actions))
        observation, actions, values, rewards, policies = self
        return Batch(observation, actions[:k], values[: k + 1], rewards[:k], policies[: k + 1])

    def check(self, observation_size: int, actions: int) -> None:
        """Raise unless observations and actions are those of a game; the loss checks the targets."""
        size = len(self.observation)
        shape = f"[B, {observation_size}]"
        check_shape("observation", np.shape(self.observation), (size, observation_size), shape)
        check_shape("actions", np.shape(self.actions), (len(self.actions), size), "[K, B]")
        if not np.isin(self.actions, range(actions)).all():
            low, high = np.min(self.actions), np.max(self.actions)
            raise ValueError(f"actions must be 0 to {actions - 1}; got {low} to {high}")


class Episode(NamedTuple):
    """A finished game of T steps.

    Attributes:
        observations: ``[T, O]``, what the player saw before each step.
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


class ReplayBuffer:
    """Draws windows evenly from all steps, as the paper does for board games.

    For Atari it draws by how much the search's value missed, by which CartPole is learned more slowly. States
    past the end of a game are absorbing, as in the paper's pseudocode: value and reward are zero, there is no
    policy target, and actions are random. Past a time limit nothing is known, and the targets are rows of
    zeros, which add nothing to the loss. Value targets are clipped to the support, rewards aren't.

    Args:
        capacity: Steps to keep, of whole episodes.
        discount: Of the returns.
        td_steps: Rewards in a value target, before the search's value stands for the rest; None is all.
        two_players: Players alternate, and one's gain is the other's loss.
        support: Categories of values and rewards.
    """

    def __init__(
        self,
        capacity: int,
        *,
        discount: float = 0.997,
        td_steps: int | None = None,
        two_players: bool = False,
        support: Support = CARTPOLE_SUPPORT,
    ) -> None:
        """Start empty."""
        self.capacity = check_integer("capacity", capacity, low=1)
        self.discount = check_number("discount", discount, low=0, high=1)
        self.td_steps = None if td_steps is None else check_integer("td_steps", td_steps, low=1)
        self.two_players, self.support = two_players, support
        self._columns: dict[str, NDArray] = {}
        self._lengths: deque[int] = deque()
        self._next = self._size = 0

    def __len__(self) -> int:
        """Return the number of steps to draw from."""
        return self._size

    def add(self, episode: Episode) -> None:
        """Remember an episode, and forget the oldest ones where there is no room.

        Raises:
            ValueError: Its shapes don't fit together or aren't those of the first one, it has no steps or
                more than ``capacity``, or something isn't finite.
        """
        steps = _check_episode(episode, self.capacity)
        for name in self._columns.keys() & {"observations", "policies"}:
            shape = self._columns[name].shape[1:]
            check_shape(name, np.shape(getattr(episode, name))[1:], shape, "the first episode's, without [T]")
        while self._size + steps > self.capacity:
            self._size -= self._lengths.popleft()
        targets = value_targets(episode, self.discount, self.td_steps, two_players=self.two_players)
        # An untrained network's values may be anything.
        targets = clip_value(targets, self.support)
        columns = episode._asdict() | {"values": targets, "remaining": np.arange(steps, 0, -1)}
        columns["rewards"] = np.asarray(episode.rewards, np.float64)
        columns["ended"] = np.full(steps, columns.pop("final_value") is None)
        at = (self._next + np.arange(steps)) % self.capacity
        for name, column in columns.items():
            column = np.asarray(column)
            if name not in self._columns:
                self._columns[name] = np.zeros((self.capacity, *column.shape[1:]), column.dtype)
            self._columns[name][at] = column
        self._lengths.append(steps)
        self._next, self._size = (self._next + steps) % self.capacity, self._size + steps

    def sample(self, batch_size: int, num_unroll_steps: int, rng: np.random.Generator) -> Batch:
        """Draw B roots with replacement and gather K steps after each; ``rng`` draws actions past an end.

        Returns:
            Arrays of ``float32``, actions of ``int64``.

        Raises:
            ValueError: The buffer is empty, a number is below one, or a reward lies outside the support.
        """
        batch_size = check_integer("batch_size", batch_size, low=1)
        steps = check_integer("num_unroll_steps", num_unroll_steps, low=1)
        if not self._size:
            raise ValueError("there must be an episode to draw from; got none: add one first")
        roots = (rng.random(batch_size) * self._size).astype(np.int64)
        # The memory is a ring: the oldest step may lie anywhere.
        oldest, free = (self._next - self._size) % self.capacity, self.capacity - self._size
        roots += oldest if oldest < self._next else np.where(roots < self._next, 0, free)
        return self.window(roots, steps, rng)

    def window(self, roots: NDArray[np.int64], steps: int, rng: np.random.Generator) -> Batch:
        """Gather the windows of K ``steps`` that start at ``roots``, ``[B]``, places in the memory."""
        data, k = self._columns, np.arange(steps + 1)[:, None]
        inside = k < data["remaining"][roots]
        at = np.where(inside, (roots + k) % self.capacity, roots)
        policies = data["policies"][at]
        random_actions = rng.integers(policies.shape[-1], size=inside.shape)
        values, rewards = (
            two_hot(np.where(inside, data[name][at], 0), self.support) for name in ("values", "rewards")
        )
        known = inside | data["ended"][roots]
        values[~known] = rewards[~known] = 0
        return Batch(
            data["observations"][roots].astype(np.float32),
            np.where(inside, data["actions"][at], random_actions)[:-1],
            values,
            rewards[:-1],
            np.where(inside[..., None], policies, 0).astype(np.float32),
        )

    def state(self) -> dict[str, NDArray[Any]]:
        """Return copies of all that is remembered, under names for `restore`."""
        columns = {f"column/{name}": column.copy() for name, column in self._columns.items()}
        return {**columns, "lengths": np.array(self._lengths, np.int64), "next": np.array(self._next)}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from what `state` returned, of a buffer with the same arguments."""
        columns = (name for name in state if name.startswith("column/"))
        self._columns = {name.removeprefix("column/"): state[name].copy() for name in columns}
        self._lengths = deque(state["lengths"].tolist())
        self._next, self._size = int(state["next"]), sum(self._lengths)


def value_targets(
    episode: Episode, discount: float, td_steps: int | None, *, two_players: bool = False
) -> Array:
    """Sum the next rewards of each step, and take the search's value for the rest; see `ReplayBuffer`.

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
    rest = 0.0 if episode.final_value is None else episode.final_value
    if not all(np.isfinite(numbers).all() for numbers in (episode.values, episode.rewards, rest)):
        raise ValueError(
            "values and rewards must be finite; got NaN or infinity: has the training diverged? "
            "remedy: leave the episode out"
        )
    return steps
