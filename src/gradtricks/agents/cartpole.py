"""Real CartPole-v1: many games side by side, and episodes played by a soft hand-written controller."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from numpy.typing import NDArray

from gradtricks._core.checks import check_integer, check_number
from gradtricks.agents.checkpoints import Chance

Array = NDArray[np.floating]

ACTIONS = 2
OBSERVATION_SIZE = 4
OBSERVATION_SCALE = np.array([0.3, 0.6, 0.1, 0.5], np.float32)  # usual position, speed, angle, its rate


class CartPoleGames:
    """Games side by side, whose state can be saved.

    Args:
        num_envs: How many.
        seed: Of the positions in which they begin.

    Attributes:
        observations: ``[N, 4]``, divided by `OBSERVATION_SCALE`.
        playing: ``[N]``, False where the game is over; its next step begins a new one, whatever the action.
        ended: ``[N]``, True where the game is over because the pole fell, and not at the time limit.
    """

    actions = ACTIONS
    two_players = False
    invalid_actions = None

    def __init__(self, num_envs: int, *, seed: int = 0) -> None:
        """Begin."""
        count = check_integer("num_envs", num_envs, low=1)
        made = gymnasium.make_vec("CartPole-v1", count, vectorization_mode="vector_entry_point")
        self._environment: Any = made.unwrapped
        self.observations: Array = self._environment.reset(seed=seed)[0] / OBSERVATION_SCALE
        self.playing, self.ended = np.ones(count, bool), np.zeros(count, bool)

    def step(self, actions: NDArray[np.int64]) -> Array:
        """Make one step in every game.

        Args:
            actions: ``[N]``, 0 pushes left and 1 right.

        Returns:
            ``[N]``, rewards; zero where a game has begun.
        """
        observations, rewards, terminated, truncated, _ = self._environment.step(actions)
        self.observations = observations / OBSERVATION_SCALE
        self.playing, self.ended = ~(terminated | truncated), terminated
        return rewards

    def state(self) -> dict[str, NDArray[Any]]:
        """Return all that is needed to go on.

        Returns:
            Under names for `restore`.
        """
        environment = self._environment
        chance = Chance(environment.np_random).state()["state"]
        arrays = {name: getattr(environment, name).copy() for name in _OF_ENVIRONMENT}
        return arrays | {"chance": chance, "ended": self.ended.copy()}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from what `state` returned.

        Args:
            state: Of as many games.
        """
        environment = self._environment
        for name in _OF_ENVIRONMENT:
            setattr(environment, name, state[name].copy())
        Chance(environment.np_random).restore({"state": state["chance"]})
        self.observations = environment.state.T.astype(np.float32) / OBSERVATION_SCALE
        self.playing, self.ended = ~environment.prev_done, state["ended"].copy()


_OF_ENVIRONMENT = ("state", "steps", "prev_done")


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
