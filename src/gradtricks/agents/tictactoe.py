"""The rules of tic-tac-toe, and many games side by side.

A board is always seen from the side of the player whose turn it is: 1 is his, -1 the other's, 0 empty.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradtricks._core.checks import check_integer, check_shape

Array = NDArray[np.floating]
Boards = NDArray[np.int8]

ACTIONS = 9  # the squares, row by row
OBSERVATION_SIZE = 2 * ACTIONS
LINES = np.array(
    [[0, 1, 2], [3, 4, 5], [6, 7, 8], [0, 3, 6], [1, 4, 7], [2, 5, 8], [0, 4, 8], [2, 4, 6]], np.int64
)


class Step(NamedTuple):
    """What a move leads to.

    Attributes:
        boards: ``[E, 9]``, from the other player's side.
        rewards: ``[E]``, 1 for the player who moved where he has won, else 0: nobody loses by a move.
        over: ``[E]``, True where somebody has won or the board is full.
    """

    boards: Boards
    rewards: Array
    over: NDArray[np.bool_]


def empty_boards(games: int) -> Boards:
    """Return the boards at the start of games.

    Args:
        games: How many.

    Returns:
        ``[E, 9]``.
    """
    return np.zeros((games, ACTIONS), np.int8)


def find_winners(boards: Boards) -> NDArray[np.int8]:
    """Say who has three in a row.

    Args:
        boards: ``[E, 9]``.

    Returns:
        ``[E]``: 1 for the player whose turn it is, -1 for the other, 0 for nobody.
    """
    sums = boards[:, LINES].sum(axis=-1)
    return (sums == 3).any(axis=-1).astype(np.int8) - (sums == -3).any(axis=-1).astype(np.int8)


def legal_actions(boards: Boards) -> NDArray[np.bool_]:
    """Say which squares are free; none in a game that is over.

    Args:
        boards: ``[E, 9]``.

    Returns:
        ``[E, 9]``.
    """
    free: NDArray[np.bool_] = (boards == 0) & (find_winners(boards) == 0)[:, None]
    return free


def step(boards: Boards, actions: NDArray[np.int64]) -> Step:
    """Move in every game.

    Args:
        boards: ``[E, 9]``, left as they are.
        actions: ``[E]``, a free square for each.

    Returns:
        The next boards and what came of it.

    Raises:
        ValueError: A shape is wrong, or a move isn't legal.
    """
    check_shape("boards", boards.shape, (None, ACTIONS), "[E, 9]")
    check_shape("actions", actions.shape, (len(boards),), "[E]")
    rows = np.arange(len(boards))
    inside = (actions >= 0) & (actions < ACTIONS)
    legal = inside & legal_actions(boards)[rows, np.where(inside, actions, 0)]
    if not legal.all():
        game = int(np.argmin(legal))
        raise ValueError(
            f"each action must be a free square of a game that isn't over; got {actions[game]} in game {game}"
        )
    moved = boards.copy()
    moved[rows, actions] = 1
    won = find_winners(moved) == 1
    return Step(-moved, won.astype(np.float32), won | (moved != 0).all(axis=-1))


def observe(boards: Boards) -> Array:
    """Return what the network sees: the player's own squares, and then the other's.

    Args:
        boards: ``[E, 9]``.

    Returns:
        ``[E, 18]`` of 0 and 1.
    """
    return np.concatenate([boards == 1, boards == -1], axis=-1).astype(np.float32)


class TicTacToeGames:
    """Games side by side, of which somebody plays both sides; their state can be saved.

    Args:
        num_envs: How many.

    Attributes:
        playing: ``[N]``, False where the game is over; its next step begins a new one, whatever the action.
        ended: ``[N]``, True where the game is over.
    """

    actions = ACTIONS
    two_players = True

    def __init__(self, num_envs: int) -> None:
        """Begin."""
        self._boards = empty_boards(check_integer("num_envs", num_envs, low=1))
        self.playing = np.ones(num_envs, bool)
        self.ended = ~self.playing

    @property
    def observations(self) -> Array:
        """``[N, 18]``, see `observe`."""
        return observe(self._boards)

    @property
    def invalid_actions(self) -> NDArray[np.bool_]:
        """``[N, 9]``, True for squares that aren't free; none where the game is over."""
        invalid: NDArray[np.bool_] = ~legal_actions(self._boards) & self.playing[:, None]
        return invalid

    def step(self, actions: NDArray[np.int64]) -> Array:
        """Make one move in every game.

        Args:
            actions: ``[N]``, a free square for each.

        Returns:
            ``[N]``, rewards for the players who moved; zero where a game has begun.

        Raises:
            ValueError: A move isn't legal.
        """
        boards, rows = empty_boards(len(actions)), np.flatnonzero(self.playing)
        moved = step(self._boards[rows], actions[rows])
        rewards, playing = np.zeros(len(actions), np.float32), np.ones(len(actions), bool)
        boards[rows], rewards[rows], playing[rows] = moved.boards, moved.rewards, ~moved.over
        self._boards, self.playing, self.ended = boards, playing, ~playing
        return rewards

    def state(self) -> dict[str, NDArray[Any]]:
        """Return all that is needed to go on.

        Returns:
            Copies, under names for `restore`.
        """
        return {"boards": self._boards.copy(), "playing": self.playing.copy()}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from what `state` returned.

        Args:
            state: Of as many games.
        """
        self._boards, self.playing = state["boards"].copy(), state["playing"].copy()
        self.ended = ~self.playing
