"""Batches for MuZero's update, drawn from recorded episodes, with the paper's targets.

`ReplayBuffer` holds episodes that somebody else has played, all there from the start, to study the update by
itself. An agent that plays while it learns needs `gradtricks.agents.prioritized_replay`.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradtricks._core.checks import check_number, check_shape
from gradtricks.agents.cartpole import ACTIONS, OBSERVATION_SIZE, Trajectories
from gradtricks.agents.supports import CARTPOLE_SUPPORT, Support, two_hot

Array = NDArray[np.floating]


class Batch(NamedTuple):
    """What one update needs: B root observations and the K steps that followed each.

    Arrays of NumPy, or within a learner the tensors of its framework.

    Attributes:
        observation: ``[B, ...]``, for CartPole ``[B, 4]``.
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
        """Return the same roots with only the first ``num_unroll_steps`` steps.

        Args:
            num_unroll_steps: K of the new batch, at most this batch's K.

        Returns:
            Views of this batch's arrays.

        Raises:
            ValueError: There are not that many steps.
        """
        steps = int(check_number("num_unroll_steps", num_unroll_steps, low=1, high=len(self.actions)))
        return Batch(
            self.observation,
            self.actions[:steps],
            self.target_value[: steps + 1],
            self.target_reward[:steps],
            self.target_policy[: steps + 1],
        )


class ReplayBuffer:
    """Draws batches of windows; every time step of every episode is equally likely to be a root.

    A window may run past the end of its episode. Such states are absorbing, as in the paper's pseudocode:
    reward and value are zero, there is no policy target, and actions are uniformly random.

    Args:
        trajectories: Complete episodes.
        discount: Of the returns, which run to the end of the episode.
    """

    def __init__(self, trajectories: Trajectories, *, discount: float = 0.9) -> None:
        """Work out the returns once."""
        from gradtricks._core.kernels.policy_gradients import accumulate  # a compiler is dear to import

        discount = check_number("discount", discount, low=0, high=1)
        self.trajectories = trajectories
        self.returns = accumulate(trajectories.rewards, discount, transposed=False)
        alive = np.arange(len(self.returns))[:, None] < trajectories.lengths
        self._times, self._episodes = np.nonzero(alive)

    def __len__(self) -> int:
        """Return the number of roots to draw from."""
        return len(self._times)

    def sample(self, batch_size: int, num_unroll_steps: int, rng: np.random.Generator) -> Batch:
        """Draw roots with replacement and gather their windows.

        Args:
            batch_size: B.
            num_unroll_steps: K.
            rng: Draws the roots, and the actions past the end of an episode.

        Returns:
            Arrays of ``float32``, actions of ``int64``.

        Raises:
            ValueError: ``batch_size`` or ``num_unroll_steps`` is below one.
        """
        batch_size = int(check_number("batch_size", batch_size, low=1))
        steps = int(check_number("num_unroll_steps", num_unroll_steps, low=1))
        index = rng.integers(len(self), size=batch_size)
        return self.window(self._times[index], self._episodes[index], steps, rng)

    def window(
        self, times: NDArray[np.int64], episodes: NDArray[np.int64], steps: int, rng: np.random.Generator
    ) -> Batch:
        """Gather the windows that start at given roots.

        Args:
            times: ``[B]``, time step of each root.
            episodes: ``[B]``, its episode.
            steps: K.
            rng: Draws the actions past the end.

        Returns:
            The batch.
        """
        data = self.trajectories
        t = times + np.arange(steps + 1)[:, None]
        inside = t < data.lengths[episodes]
        at = (np.where(inside, t, 0), episodes)
        steps_taken = data.actions[at], self.returns[at], data.rewards[at], data.policies[at]
        return assemble(data.observations[times, episodes], *steps_taken, inside, rng, CARTPOLE_SUPPORT)


def assemble(
    observation: Array,
    actions: NDArray[np.int64],
    values: Array,
    rewards: Array,
    policies: Array,
    inside: NDArray[np.bool_],
    rng: np.random.Generator,
    support: Support,
) -> Batch:
    """Make a batch of windows, with absorbing states past the end of an episode.

    Args:
        observation: ``[B, ...]``, of the roots.
        actions: ``[K+1, B]``; what stands past the end of an episode is ignored, here and below.
        values: ``[K+1, B]``.
        rewards: ``[K+1, B]``, of the step that follows.
        policies: ``[K+1, B, A]``.
        inside: ``[K+1, B]``, False past the end.
        rng: Draws the actions past the end.
        support: Categories of values and rewards.

    Returns:
        The batch.

    Raises:
        ValueError: A value or a reward lies outside the support.
    """
    random_actions = rng.integers(policies.shape[-1], size=inside.shape)
    return Batch(
        observation,
        np.where(inside, actions, random_actions)[:-1],
        two_hot(np.where(inside, values, 0), support),
        two_hot(np.where(inside, rewards, 0)[:-1], support),
        np.where(inside[..., None], policies, 0).astype(np.float32),
    )


def check_batch(batch: Batch, *, observation_size: int = OBSERVATION_SIZE, actions: int = ACTIONS) -> None:
    """Raise unless observations and actions are those of a game; the loss checks the targets.

    Args:
        batch: Arrays of NumPy.
        observation_size: Elements of an observation.
        actions: How many there are.

    Raises:
        ValueError: A shape is wrong, or an action isn't one of those.
    """
    size = len(batch.observation)
    shape = f"[B, {observation_size}]"
    check_shape("observation", np.shape(batch.observation), (size, observation_size), shape)
    check_shape("actions", np.shape(batch.actions), (len(batch.actions), size), "[K, B]")
    if not np.isin(batch.actions, range(actions)).all():
        low, high = np.min(batch.actions), np.max(batch.actions)
        raise ValueError(f"actions must be 0 to {actions - 1}; got {low} to {high}")
