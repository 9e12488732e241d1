"""Players of board games: one who looks ahead, and what becomes of others against him."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gradtricks._core.checks import check_integer
from gradtricks.agents.checkpoints import EVALUATION_SEED
from gradtricks.agents.muzero.boards import Boards, Rules

Player = Callable[[Boards, np.random.Generator], NDArray[np.int64]]


def rate_moves(rules: Rules, boards: Boards, depth: int) -> NDArray[np.int8]:
    """Say what each move leads to, if both players look that far ahead and think the rest a draw.

    Args:
        rules: Of the game.
        boards: ``[E, S]``.
        depth: Moves to look ahead, this one counted.

    Returns:
        ``[E, A]``: 1 for a won game, -1 for a lost one, 0 for a draw or what isn't known; -2 if not legal.
    """
    rated = np.full((len(boards), rules.actions), -2, np.int8)
    rows, actions = np.nonzero(rules.legal_actions(boards))
    moved = rules.step(boards[rows], actions)
    values = moved.rewards.astype(np.int8)
    if depth > 1 and not moved.over.all():
        going_on, place = np.unique(moved.boards[~moved.over], axis=0, return_inverse=True)
        values[~moved.over] = -rate_moves(rules, going_on, depth - 1).max(axis=-1)[place]
    rated[rows, actions] = values
    return rated


def look_ahead(rules: Rules) -> Player:
    """Make a player who draws evenly among the best moves, as far as ``rules.depth`` lets him see."""

    def play(boards: Boards, rng: np.random.Generator) -> NDArray[np.int64]:
        unique, place = np.unique(boards, axis=0, return_inverse=True)
        rated = rate_moves(rules, unique, rules.depth)
        best = (rated == rated.max(axis=-1, keepdims=True))[place]
        return np.where(best, rng.random(best.shape), -1).argmax(axis=-1)

    return play


def play_games(
    rules: Rules, first: Player, second: Player, games: int, rng: np.random.Generator
) -> NDArray[np.int8]:
    """Let two players meet, all games at the same time.

    Args:
        rules: Of the game.
        first: Moves first; a function of boards ``[E, S]`` and ``rng`` that returns moves ``[E]``.
        second: Answers.
        games: How many.
        rng: Given to the players.

    Returns:
        ``[games]``: 1 where the first player won, -1 where the second did, 0 for a draw.
    """
    games = check_integer("games", games, low=1)
    outcomes, going_on, boards = np.zeros(games, np.int8), np.arange(games), rules.empty_boards(games)
    players, sign = (first, second), 1
    while len(going_on):
        boards, rewards, over = rules.step(boards, players[sign < 0](boards, rng))
        outcomes[going_on] = sign * rewards
        going_on, boards, sign = going_on[~over], boards[~over], -sign
    return outcomes


def meet(
    rules: Rules, player: Player, opponent: Player, games: int, seed: int = EVALUATION_SEED
) -> NDArray[np.int8]:
    """Play against an opponent; of an odd number of games, one more is played moving first.

    Returns:
        ``[games]``, those moving first before the others: 1 where the player won, -1 where he lost, 0 for a
        draw.
    """
    games, rng = check_integer("games", games, low=1), np.random.default_rng(seed)
    first = play_games(rules, player, opponent, (games + 1) // 2, rng)
    if games == 1:
        return first
    return np.concatenate([first, -play_games(rules, opponent, player, games // 2, rng)])


def find_lost_ends(rules: Rules, player: Player) -> list[Boards]:
    """Play a deterministic player against everything that an opponent could do, and collect how he loses.

    Args:
        rules: Of the game.
        player: Who plays, from both sides; always the same move in the same position.

    Returns:
        The final positions ``[n, S]`` in which he has lost, once moving first and once moving second.
    """
    lost = []
    rng = np.random.default_rng(0)
    for moves_first in (True, False):
        boards, found, his_turn = rules.empty_boards(1), [], moves_first
        while len(boards):
            if his_turn:
                rows, actions = np.arange(len(boards)), player(boards, rng)
            else:
                rows, actions = np.nonzero(rules.legal_actions(boards))
            moved = rules.step(boards[rows], actions)
            if not his_turn:
                found.append(moved.boards[moved.rewards > 0])
            boards, his_turn = np.unique(moved.boards[~moved.over], axis=0), not his_turn
        lost.append(np.unique(np.concatenate(found), axis=0))
    return lost
