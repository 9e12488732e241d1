"""Games that an agent plays against itself or alone, each move chosen by search, and what it remembers."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gradtricks._core.checks import check_integer
from gradtricks.agents.muzero.deciding import Search
from gradtricks.agents.muzero.network import SearchNetwork
from gradtricks.agents.muzero.replay import Episode, ReplayBuffer
from gradtricks.agents.training import Part

Array = NDArray[np.floating]

_COLUMNS = ("observations", "actions", "rewards", "policies", "values")


class Games(Part, Protocol):
    """Games side by side, as self-play needs them.

    Attributes:
        actions: How many there are.
        two_players: Players alternate, and one's gain is the other's loss.
        signs: ``[N]`` or a number, 1 where it is the turn of who moves first, else -1.
        playing: ``[N]``, False where the game is over; its next step begins a new one, whatever the action.
        ended: ``[N]``, True where it is over by itself, and wasn't cut off by a time limit.
    """

    actions: int
    two_players: bool
    signs: Any
    playing: NDArray[np.bool_]
    ended: NDArray[np.bool_]

    @property
    def observations(self) -> Array:
        """``[N, O]``, what the players see whose turn it is."""

    @property
    def invalid_actions(self) -> NDArray[np.bool_] | None:
        """``[N, A]``, True for what mustn't be done now; None where everything may be."""

    def step(self, actions: NDArray[np.int64]) -> Array:
        """Make one step in every game and return the rewards, ``[N]``, of those who made it."""


class SelfPlay:
    """Plays games side by side, and hands them to the replay in pieces.

    A game that goes on and on would be learned from too late, so it is cut into pieces. The search values
    what follows a piece, the network what follows a time limit.

    Args:
        games: Where it plays.
        replay: Gets the pieces.
        search: How moves are chosen.
        piece_steps: Steps in a piece, at most.
        rng: Draws noise and actions.

    Raises:
        ValueError: ``piece_steps`` is below one, or the search is for another number of players.
    """

    def __init__(
        self,
        games: Games,
        replay: ReplayBuffer,
        search: Search,
        *,
        piece_steps: int,
        rng: np.random.Generator,
    ) -> None:
        """Start with empty pieces."""
        search.check_players(games.two_players)
        self.games, self._replay, self._search, self._rng = games, replay, search, rng
        steps, count = check_integer("piece_steps", piece_steps, low=1), len(games.playing)
        self._pieces: dict[str, NDArray[Any]] = {
            "observations": np.zeros((count, steps, games.observations.shape[-1]), np.float32),
            "actions": np.zeros((count, steps), np.int64),
            "rewards": np.zeros((count, steps), np.float32),
            "policies": np.zeros((count, steps, games.actions), np.float32),
            "values": np.zeros((count, steps)),
        }
        self._filled = np.zeros(count, np.int64)
        self._returns = np.zeros(count)

    def move(self, network: SearchNetwork, temperature: float) -> list[float]:
        """Make one step in every game.

        Returns:
            The returns of the games that are over now, with two players those of who moved first.
        """
        observations, playing, signs = self.games.observations, self.games.playing, self.games.signs
        chosen = self._search.choose(
            network,
            observations,
            self._rng,
            invalid_actions=self.games.invalid_actions,
            temperature=temperature,
            noise=True,
        )
        values = chosen.search_tree.node_values[:, 0]
        for game in np.flatnonzero(self._filled == self._pieces["actions"].shape[1]).tolist():
            self._hand_over(game, float(values[game]))
        rewards = self.games.step(chosen.action)
        rows = np.flatnonzero(playing)
        at = rows, self._filled[rows]
        step = observations, chosen.action, rewards, chosen.action_weights, values
        for name, column in zip(_COLUMNS, step, strict=True):
            self._pieces[name][at] = column[rows]
        self._filled[rows] += 1
        self._returns += rewards * signs
        return self._finish(network, np.flatnonzero(playing & ~self.games.playing))

    def _finish(self, network: SearchNetwork, over: NDArray[np.int64]) -> list[float]:
        if not len(over):
            return []
        values = network.look(self.games.observations[over]).value
        for game, value in zip(over.tolist(), values, strict=True):
            self._hand_over(game, None if self.games.ended[game] else float(value))
        returns: list[float] = self._returns[over].tolist()
        self._returns[over] = 0
        return returns

    def _hand_over(self, game: int, final_value: float | None) -> None:
        columns = {name: self._pieces[name][game, : self._filled[game]] for name in _COLUMNS}
        self._replay.add(Episode(**columns, final_value=final_value))
        self._filled[game] = 0

    def state(self) -> dict[str, NDArray[Any]]:
        """Return copies of the pieces that aren't full yet, under names for `restore`."""
        state = {"filled": self._filled, "returns": self._returns, **self._pieces}
        return {name: array.copy() for name, array in state.items()}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from what `state` returned, of self-play with the same arguments."""
        self._filled, self._returns = state["filled"].copy(), state["returns"].copy()
        self._pieces = {name: state[name].copy() for name in _COLUMNS}


def play_to_the_end(network: SearchNetwork, search: Search, games: Games) -> Array:
    """Play games of one player to their ends by search, without noise, and return their returns, ``[N]``."""
    rng = np.random.default_rng(0)  # which nothing is drawn from
    return play_out(lambda seen: search.choose(network, seen, rng).action, games)


def play_out(choose: Callable[[Array], NDArray[np.int64]], games: Games) -> Array:
    """Play games of one player to their ends.

    Args:
        choose: Chooses actions ``[B]`` for observations ``[B, O]``, those of the games that aren't over.
        games: From their beginning.

    Returns:
        ``[N]``, their returns.
    """
    count = len(games.playing)
    returns, going_on, actions = np.zeros(count), np.arange(count), np.zeros(count, np.int64)
    while len(going_on):
        actions[going_on] = choose(games.observations[going_on])
        returns[going_on] += games.step(actions)[going_on]
        # A game that is over begins anew, without anybody looking.
        going_on = going_on[games.playing[going_on]]
    return returns
