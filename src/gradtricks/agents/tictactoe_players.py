"""Players of tic-tac-toe: those that know all positions, that draw lots, and that search."""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradtricks._core.checks import check_integer
from gradtricks.agents.muzero import SearchNetwork
from gradtricks.agents.selfplay import SearchOptions
from gradtricks.agents.tictactoe import (
    ACTIONS,
    Boards,
    TicTacToeGames,
    empty_boards,
    find_winners,
    legal_actions,
    observe,
    step,
)

Player = Callable[[Boards, np.random.Generator], NDArray[np.int64]]


class Solution(NamedTuple):
    """Perfect play, for all positions that can be reached; rows are numbered by `number_boards`.

    Attributes:
        reachable: ``[19683]``.
        values: ``[19683]``: 1 where the player whose turn it is wins, -1 where he loses, 0 for a draw.
        best_actions: ``[19683, 9]``, all moves that keep the value; none where the game is over.
    """

    reachable: NDArray[np.bool_]
    values: NDArray[np.int8]
    best_actions: NDArray[np.bool_]


def number_boards(boards: Boards) -> NDArray[np.int64]:
    """Number boards by their squares as digits of base 3.

    Args:
        boards: ``[E, 9]``.

    Returns:
        ``[E]``, from 0 to 19682.
    """
    return (boards.astype(np.int64) + 1) @ 3 ** np.arange(ACTIONS)


@cache
def solve() -> Solution:
    """Find the value of each position and its best moves, from the full boards backwards.

    Returns:
        Tables that mustn't be changed, the same ones each time.
    """
    plies = [empty_boards(1)]
    while len(plies[-1]):
        rows, actions = np.nonzero(legal_actions(plies[-1]))
        plies.append(np.unique(step(plies[-1][rows], actions).boards, axis=0))
    solution = Solution(
        np.zeros(3**ACTIONS, bool), np.zeros(3**ACTIONS, np.int8), np.zeros((3**ACTIONS, ACTIONS), bool)
    )
    for boards in reversed(plies):
        number = number_boards(boards)
        solution.reachable[number] = True
        rows, actions = np.nonzero(legal_actions(boards))
        outcomes = np.full(boards.shape, -2, np.int8)  # worse than any
        outcomes[rows, actions] = -solution.values[number_boards(step(boards[rows], actions).boards)]
        best = outcomes.max(axis=-1)
        solution.values[number] = np.where(best > -2, best, find_winners(boards))
        solution.best_actions[number] = (outcomes == best[:, None]) & (outcomes > -2)
    for table in solution:
        table.flags.writeable = False
    return solution


def play_perfectly(boards: Boards, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw evenly among the best moves.

    Args:
        boards: ``[E, 9]``, of games that go on.
        rng: Draws.

    Returns:
        ``[E]``.
    """
    return _draw(solve().best_actions[number_boards(boards)], rng)


def play_randomly(boards: Boards, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw evenly among the free squares.

    Args:
        boards: ``[E, 9]``, of games that go on.
        rng: Draws.

    Returns:
        ``[E]``.
    """
    return _draw(legal_actions(boards), rng)


def play_games(first: Player, second: Player, games: int, rng: np.random.Generator) -> NDArray[np.int8]:
    """Let two players meet, all games at the same time.

    Args:
        first: Moves first; a function of boards ``[E, 9]`` and ``rng`` that returns moves ``[E]``.
        second: Answers.
        games: How many.
        rng: Given to the players.

    Returns:
        ``[games]``: 1 where the first player won, -1 where the second did, 0 for a draw.

    Raises:
        ValueError: ``games`` is below one, or a player's move isn't legal.
    """
    games = check_integer("games", games, low=1)
    outcomes, going_on, boards = np.zeros(games, np.int8), np.arange(games), empty_boards(games)
    players, signs = (first, second), (1, -1)
    for ply in range(ACTIONS):
        boards, rewards, over = step(boards, players[ply % 2](boards, rng))
        outcomes[going_on] = signs[ply % 2] * rewards
        going_on, boards = going_on[~over], boards[~over]
        if not len(going_on):
            break
    return outcomes


def meet_perfect_player(player: Player, games: int, seed: int) -> NDArray[np.int8]:
    """Play against `play_perfectly`, moving first in half of the games.

    Args:
        player: Who plays.
        games: How many; of an odd number one more is played moving first.
        seed: Of the perfect player's choice among best moves.

    Returns:
        ``[games]``, those moving first before the others: 1 where the player won, -1 where he lost, 0 for a
        draw.

    Raises:
        ValueError: ``games`` is below one, or a move isn't legal.
    """
    games, rng = check_integer("games", games, low=1), np.random.default_rng(seed)
    first = play_games(player, play_perfectly, (games + 1) // 2, rng)
    if games == 1:
        return first
    return np.concatenate([first, -play_games(play_perfectly, player, games // 2, rng)])


def find_lost_ends(player: Player) -> list[Boards]:
    """Play a deterministic player against everything that an opponent could do, and collect how he loses.

    Args:
        player: Who plays, from both sides; always the same move in the same position.

    Returns:
        The final positions ``[n, 9]`` in which he has lost, once moving first and once moving second.
    """
    lost = []
    rng = np.random.default_rng(0)
    for moves_first in (True, False):
        boards, found, his_turn = empty_boards(1), [], moves_first
        while len(boards):
            if his_turn:
                rows, actions = np.arange(len(boards)), player(boards, rng)
            else:
                rows, actions = np.nonzero(legal_actions(boards))
            moved = step(boards[rows], actions)
            if not his_turn:
                found.append(moved.boards[moved.rewards > 0])
            boards, his_turn = np.unique(moved.boards[~moved.over], axis=0), not his_turn
        lost.append(np.unique(np.concatenate(found), axis=0))
    return lost


def as_player(network: SearchNetwork, search: SearchOptions) -> Player:
    """Make a player of tic-tac-toe, who takes the most visited move.

    Args:
        network: What the search asks.
        search: How moves are chosen.

    Returns:
        A function for `play_games`.

    Raises:
        ValueError: The search is for another number of players.
    """
    search.check_players(TicTacToeGames.two_players)

    def play(boards: Boards, rng: np.random.Generator) -> NDArray[np.int64]:
        invalid = ~legal_actions(boards)
        return search.choose(network, observe(boards), rng, invalid_actions=invalid).action

    return play


def _draw(allowed: NDArray[np.bool_], rng: np.random.Generator) -> NDArray[np.int64]:
    return np.where(allowed, rng.random(allowed.shape), -1).argmax(axis=-1)
