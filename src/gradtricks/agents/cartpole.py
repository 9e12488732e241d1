"""Real CartPole-v1 episodes, MuZero's targets for them, and the weights that both frameworks start from."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradtricks._checks import check_number, check_shape
from gradtricks.reference import discounted_returns

Array = NDArray[np.floating]

ACTIONS = 2
OBSERVATION_SIZE = 4
OBSERVATION_SCALE = np.array([0.3, 0.6, 0.1, 0.5], np.float32)  # usual position, speed, angle, its rate
SUPPORT_SIZE = 21  # the categories 0..20 hold transformed returns of up to 422


class Trajectories(NamedTuple):
    """Episodes side by side, time first; what stands past an episode's end has no meaning.

    Attributes:
        observations: ``[T, E, 4]``, divided by `OBSERVATION_SCALE`.
        actions: ``[T, E]``, 0 pushes left and 1 right.
        rewards: ``[T, E]``, one for each step of the episode, zero past its end.
        policies: ``[T, E, 2]``, the probabilities from which the action was drawn.
        lengths: ``[E]``, steps until the pole fell.
        unfinished: Episodes left out because the time limit hid their return.
    """

    observations: Array
    actions: NDArray[np.int64]
    rewards: Array
    policies: Array
    lengths: NDArray[np.int64]
    unfinished: int


class Batch(NamedTuple):
    """What one update needs: B root observations and the K steps that followed each.

    Arrays of NumPy, or within a learner the tensors of its framework.

    Attributes:
        observation: ``[B, 4]``.
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


def behaviour_policy(observation: Array, *, exploration: float = 0.4) -> Array:
    """Return the action probabilities of a soft hand-written controller.

    It pushes towards the side to which the pole leans, and with probability ``exploration`` anywhere.

    Args:
        observation: ``[..., 4]`` as the environment gives it: position, speed, angle, angular rate.
        exploration: Probability of a uniformly random action.

    Returns:
        ``[..., 2]``.
    """
    lean = observation @ np.array([1.0, 2.0, 10.0, 5.0])
    right = (1 - exploration) / (1 + np.exp(-lean)) + exploration / 2
    return np.stack([1 - right, right], axis=-1)


def collect_trajectories(episodes: int = 256, *, seed: int = 0, exploration: float = 0.4) -> Trajectories:
    """Play CartPole-v1 with `behaviour_policy`, all episodes at the same time.

    Args:
        episodes: How many episodes to start.
        seed: Of the environment and of the actions.
        exploration: See `behaviour_policy`.

    Returns:
        The episodes that ended with a fall.

    Raises:
        ValueError: ``episodes`` or ``exploration`` is out of range, or no pole fell in time.
    """
    episodes = int(check_number("episodes", episodes, low=1))
    exploration = check_number("exploration", exploration, low=0, high=1)
    environment = gymnasium.make_vec("CartPole-v1", episodes, vectorization_mode="vector_entry_point")
    rng = np.random.default_rng(seed)
    observation, _ = environment.reset(seed=seed)
    playing, fell = np.ones(episodes, bool), np.zeros(episodes, bool)
    rows = []
    while playing.any():
        policy = behaviour_policy(observation, exploration=exploration)
        action = (rng.random(episodes) < policy[:, 1]).astype(np.int64)
        next_observation, reward, terminated, truncated, _ = environment.step(action)
        rows.append((observation / OBSERVATION_SCALE, action, reward * playing, policy, playing))
        observation = next_observation
        fell |= playing & terminated
        playing = playing & ~terminated & ~truncated
    environment.close()
    if not fell.any():
        raise ValueError(f"no pole fell within {len(rows)} steps; got exploration {exploration:g}: raise it")
    observations, actions, rewards, policies, steps = (np.stack(column)[:, fell] for column in zip(*rows))
    return Trajectories(observations, actions, rewards, policies, steps.sum(axis=0), int((~fell).sum()))


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
        discount = check_number("discount", discount, low=0, high=1)
        self.trajectories = trajectories
        self.returns = discounted_returns(trajectories.rewards, discount)
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
        random_actions = rng.integers(ACTIONS, size=t.shape)
        return Batch(
            data.observations[times, episodes],
            np.where(inside, data.actions[at], random_actions)[:-1],
            two_hot(np.where(inside, self.returns[at], 0)),
            two_hot(np.where(inside, data.rewards[at], 0)[:-1]),
            np.where(inside[..., None], data.policies[at], 0).astype(np.float32),
        )


def transform_value(x: ArrayLike) -> Array:
    """Compress returns as the paper does: sign(x) (sqrt(|x| + 1) - 1) + 0.001 x.

    Args:
        x: Any shape.

    Returns:
        The same shape.
    """
    x = np.asarray(x, np.float64)
    transformed: Array = np.sign(x) * (np.sqrt(np.abs(x) + 1) - 1) + 0.001 * x
    return transformed


def two_hot(x: ArrayLike) -> Array:
    """Spread each transformed number over the two neighbouring categories, so that its mean is kept.

    Args:
        x: Rewards or returns of any shape, from zero to 422.

    Returns:
        ``x.shape + [SUPPORT_SIZE]`` of ``float32``; each distribution sums to one.

    Raises:
        ValueError: A number lies outside the support.
    """
    position = transform_value(x)
    if position.size and not (position.min() >= 0 and position.max() <= SUPPORT_SIZE - 1):
        raise ValueError(
            f"transformed values must lie in [0, {SUPPORT_SIZE - 1}]; "
            f"got {position.min():g} to {position.max():g}: rescale the rewards"
        )
    distance = np.abs(position[..., None] - np.arange(SUPPORT_SIZE))
    distribution: Array = np.clip(1 - distance, 0, None).astype(np.float32)
    return distribution


def layer_shapes(state_size: int, hidden_size: int) -> dict[str, tuple[int, int]]:
    """Return inputs and outputs of each dense layer of the three networks.

    Args:
        state_size: Elements of a hidden state.
        hidden_size: Units of the one hidden layer in each network.

    Returns:
        ``module/layer`` to ``(inputs, outputs)``; the modules are representation, dynamics and prediction.
    """
    return {
        "representation/hidden": (OBSERVATION_SIZE, hidden_size),
        "representation/state": (hidden_size, state_size),
        "dynamics/hidden": (state_size + ACTIONS, hidden_size),
        "dynamics/state": (hidden_size, state_size),
        "dynamics/reward": (hidden_size, SUPPORT_SIZE),
        "prediction/hidden": (state_size, hidden_size),
        "prediction/value": (hidden_size, SUPPORT_SIZE),
        "prediction/policy": (hidden_size, ACTIONS),
    }


def check_weights(weights: Mapping[str, Array]) -> None:
    """Raise unless the names are those of `draw_weights`.

    Args:
        weights: Arrays under their names.

    Raises:
        ValueError: Some name is missing or unknown.
    """
    expected = {f"{layer}/{part}" for layer in layer_shapes(2, 1) for part in ("kernel", "bias")}
    if difference := sorted(expected ^ set(weights)):
        raise ValueError(f"weights must have the names of draw_weights; missing or unknown: {difference}")


def check_batch(batch: Batch) -> None:
    """Raise unless observations and actions are CartPole's; the loss checks the targets.

    Args:
        batch: Arrays of NumPy.

    Raises:
        ValueError: A shape is wrong, or an action isn't 0 or 1.
    """
    size = len(batch.observation)
    check_shape("observation", np.shape(batch.observation), (size, OBSERVATION_SIZE), "[B, 4]")
    check_shape("actions", np.shape(batch.actions), (len(batch.actions), size), "[K, B]")
    if not np.isin(batch.actions, range(ACTIONS)).all():
        raise ValueError(f"actions must be 0 or 1; got {np.min(batch.actions)} to {np.max(batch.actions)}")


def draw_weights(seed: int = 0, *, state_size: int = 32, hidden_size: int = 64) -> dict[str, Array]:
    """Draw the weights of the three networks, the same for both frameworks.

    Args:
        seed: Of the generator.
        state_size: Elements of a hidden state.
        hidden_size: Units of the one hidden layer in each network.

    Returns:
        ``float32`` kernels ``[inputs, outputs]`` under ``module/layer/kernel`` and zero biases under
        ``module/layer/bias``, for the layers of `layer_shapes`.
    """
    state_size = int(check_number("state_size", state_size, low=2))
    hidden_size = int(check_number("hidden_size", hidden_size, low=1))
    rng = np.random.default_rng(seed)
    weights: dict[str, Array] = {}
    for name, (inputs, outputs) in layer_shapes(state_size, hidden_size).items():
        # The dynamics add to the state; small at first, so that it survives many steps.
        size = 0.1 if name == "dynamics/state" else 1.0
        weights[f"{name}/kernel"] = rng.normal(0, size * inputs**-0.5, (inputs, outputs)).astype(np.float32)
        weights[f"{name}/bias"] = np.zeros(outputs, np.float32)
    return weights
