"""Real CartPole-v1: many games side by side, and episodes played by a soft hand-written controller."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from numpy.typing import NDArray

from gradtricks._core.checks import check_integer, check_number
from gradtricks.agents.muzero.replay import Episode
from gradtricks.agents.training import Chance

Array = NDArray[np.floating]

ACTIONS = 2
OBSERVATION_SIZE = 4
OBSERVATION_SCALE = np.array([0.3, 0.6, 0.1, 0.5], np.float32)  # usual position, speed, angle, its rate


class CartView(NamedTuple):
    """How an agent sees the game, as `gradtricks.agents.pong.View` says it of Pong."""

    inputs: int = OBSERVATION_SIZE
    seen: str = "where cart and pole are, and how they move"
    actions: tuple[int, ...] = tuple(range(ACTIONS))


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
    signs = 1.0
    invalid_actions = None

    def __init__(self, num_envs: int, *, seed: int = 0) -> None:
        """Begin."""
        count = check_integer("num_envs", num_envs, low=1)
        made = gymnasium.make_vec("CartPole-v1", count, vectorization_mode="vector_entry_point")
        self._environment: Any = made.unwrapped
        self.observations: Array = self._environment.reset(seed=seed)[0] / OBSERVATION_SCALE
        self.playing, self.ended = np.ones(count, bool), np.zeros(count, bool)

    def step(self, actions: NDArray[np.int64]) -> Array:
        """Push left, 0, or right, 1, and return rewards, ``[N]``; zero where a game has begun."""
        observations, rewards, terminated, truncated, _ = self._environment.step(actions)
        self.observations = observations / OBSERVATION_SCALE
        self.playing, self.ended = ~(terminated | truncated), terminated
        return rewards

    def check_view(self, view: object, name: str) -> None:
        """Raise unless ``view``, a learner's, is `CartView`; ``name`` is what its module calls it."""
        if view != CartView():
            raise ValueError(
                f"learner must see CartPole; got {name}, which is Pong's; remedy: draw_weights(view='cart')"
            )

    def state(self) -> dict[str, NDArray[Any]]:
        """Return all that is needed to go on, under names for `restore`."""
        environment = self._environment
        chance = Chance(environment.np_random).state()["state"]
        arrays = {name: getattr(environment, name).copy() for name in _OF_ENVIRONMENT}
        return arrays | {"chance": chance, "ended": self.ended.copy()}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from what `state` returned, of as many games."""
        environment = self._environment
        for name in _OF_ENVIRONMENT:
            setattr(environment, name, state[name].copy())
        Chance(environment.np_random).restore({"state": state["chance"]})
        self.observations = environment.state.T.astype(np.float32) / OBSERVATION_SCALE
        self.playing, self.ended = ~environment.prev_done, state["ended"].copy()


_OF_ENVIRONMENT = ("state", "steps", "prev_done")


def behaviour_policy(observation: Array, *, exploration: float = 0.4) -> Array:
    """Return the action probabilities ``[..., 2]`` of a soft hand-written controller.

    It pushes towards the side to which the pole leans, and with probability ``exploration`` anywhere. What it
    sees is ``[..., 4]`` as the environment gives it: position, speed, angle, angular rate.
    """
    lean = observation @ np.array([1.0, 2.0, 10.0, 5.0])
    right = (1 - exploration) / (1 + np.exp(-lean)) + exploration / 2
    return np.stack([1 - right, right], axis=-1)


def collect_episodes(count: int = 256, *, seed: int = 0, exploration: float = 0.4) -> list[Episode]:
    """Play CartPole-v1 with `behaviour_policy`, all episodes at the same time.

    Args:
        count: How many episodes to start.
        seed: Of the environment and of the actions.
        exploration: See `behaviour_policy`.

    Returns:
        The episodes that ended with a fall; at the time limit a return isn't known. Nobody searched, so their
        values are zero, and their policies are the probabilities from which actions were drawn.

    Raises:
        ValueError: ``count`` or ``exploration`` is out of range, or no pole fell in time.
    """
    count = check_integer("count", count, low=1)
    exploration = check_number("exploration", exploration, low=0, high=1)
    games, rng, playing = CartPoleGames(count, seed=seed), np.random.default_rng(seed), np.ones(count, bool)
    rows, lengths = [], np.zeros(count, np.int64)
    while playing.any():
        observations = games.observations
        policies = behaviour_policy(observations * OBSERVATION_SCALE, exploration=exploration)
        actions = (rng.random(count) < policies[:, 1]).astype(np.int64)
        rows.append((observations, actions, games.step(actions), policies))
        lengths[playing & games.ended] = len(rows)
        playing = playing & games.playing
    if not lengths.any():
        raise ValueError(f"no pole fell within {len(rows)} steps; got exploration {exploration:g}: raise it")
    observations, actions, rewards, policies = (np.stack(column, axis=1) for column in zip(*rows))
    return [
        Episode(observations[i, :n], actions[i, :n], rewards[i, :n], policies[i, :n], np.zeros(n))
        for i, n in enumerate(lengths.tolist())
        if n
    ]
