"""Games in which stones in a row win: their rules, and many games side by side.

A board is always seen from the side of the player whose turn it is: 1 is his, -1 the other's, 0 empty.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradtricks._core.checks import check_integer, check_number, check_shape
from gradtricks.agents.training import Chance

Array = NDArray[np.floating]
Boards = NDArray[np.int8]


class Step(NamedTuple):
    """Results of a move in every game.

    Attributes:
        boards: ``[E, S]``, from the other player's side.
        rewards: ``[E]``, 1 for the player who moved where he has won, else 0: nobody loses by a move.
        over: ``[E]``, True where somebody has won or the board is full.
    """

    boards: Boards
    rewards: Array
    over: NDArray[np.bool_]


class Rules:
    """Of one such game.

    Args:
        name: Of the game.
        shape: Rows and columns of the board; S is their product.
        length: Stones of a player in a row, a column or a diagonal that win.
        drops: An action is a column, in which the stone falls as far as it can; else it is a square.
        depth: Moves that the opponent looks ahead when agents are judged; all of a game make him perfect.

    Attributes:
        actions: How many there are, A.
    """

    def __init__(self, name: str, shape: tuple[int, int], length: int, *, drops: bool, depth: int) -> None:
        """Keep the arguments."""
        self.name, self.shape, self.length, self.drops, self.depth = name, shape, length, drops, depth
        self.squares = shape[0] * shape[1]
        self.actions = shape[1] if drops else self.squares

    @cached_property
    def lines(self) -> NDArray[np.int64]:
        """Squares that win together, ``[L, length]``."""
        squares, steps = np.arange(self.squares).reshape(self.shape), np.arange(self.length)
        lines = [
            squares[row + down * steps, column + right * steps]
            for row, column in np.ndindex(self.shape)
            for down, right in ((0, 1), (1, 0), (1, 1), (1, -1))
            if row + down * steps[-1] < self.shape[0] and 0 <= column + right * steps[-1] < self.shape[1]
        ]
        return np.array(lines)

    def empty_boards(self, games: int) -> Boards:
        """Return the boards at the start of games, ``[games, S]``."""
        return np.zeros((games, self.squares), np.int8)

    def find_winners(self, boards: Boards) -> NDArray[np.int8]:
        """Return ``[E]``: 1 where the player has won whose turn it is, -1 for the other, 0 for nobody."""
        sums = boards[:, self.lines].sum(axis=-1)
        return (sums == self.length).any(axis=-1) - (sums == -self.length).any(axis=-1).astype(np.int8)

    def legal_actions(self, boards: Boards) -> NDArray[np.bool_]:
        """Say what may be done, ``[E, A]``; nothing in a game that is over."""
        free = boards[:, : self.actions] == 0  # a column has room while its uppermost square is free
        legal: NDArray[np.bool_] = free & (self.find_winners(boards) == 0)[:, None]
        return legal

    def step(self, boards: Boards, actions: NDArray[np.int64]) -> Step:
        """Move by actions ``[E]`` on boards ``[E, S]``, which are left as they are.

        Raises:
            ValueError: A shape is wrong, or a move isn't legal.
        """
        check_shape("boards", boards.shape, (None, self.squares), f"[E, {self.squares}]")
        check_shape("actions", actions.shape, (len(boards),), "[E]")
        rows = np.arange(len(boards))
        inside = (actions >= 0) & (actions < self.actions)
        legal = inside & self.legal_actions(boards)[rows, np.where(inside, actions, 0)]
        if not legal.all():
            game = int(np.argmin(legal))
            raise ValueError(
                f"each action must be legal in a game that isn't over; got {actions[game]} in game {game}"
            )
        squares = actions
        if self.drops:
            stones = (boards.reshape(-1, *self.shape) != 0).sum(axis=1)[rows, actions]
            squares = actions + (self.shape[0] - 1 - stones) * self.shape[1]
        moved = boards.copy()
        moved[rows, squares] = 1
        won = self.find_winners(moved) == 1
        return Step(-moved, won.astype(np.float32), won | (moved != 0).all(axis=-1))

    def play_randomly(self, boards: Boards, rng: np.random.Generator) -> NDArray[np.int64]:
        """Draw a legal move for each board, ``[E]``; all are as likely."""
        return np.where(self.legal_actions(boards), rng.random((len(boards), self.actions)), -1).argmax(
            axis=-1
        )

    def observe(self, boards: Boards) -> Array:
        """Return what the network sees, ``[E, 2 S]``: the player's own squares, and then the other's."""
        return np.concatenate([boards == 1, boards == -1], axis=-1).astype(np.float32)


TIC_TAC_TOE = Rules("tic-tac-toe", (3, 3), 3, drops=False, depth=9)
CONNECT_FOUR = Rules("Connect Four, 4 by 5", (4, 5), 4, drops=True, depth=4)
RULES = {rules.name: rules for rules in (TIC_TAC_TOE, CONNECT_FOUR)}


class BoardGames:
    """Games side by side, of which somebody plays both sides; their state can be saved.

    Args:
        rules: Of the game.
        num_envs: How many games.
        openings: Share of the games that begin after moves at random: one at least, and as many as two thirds
            of the squares at most. Who plays himself rarely sees what he wouldn't play.
        seed: Of these moves.

    Attributes:
        actions: How many there are, A.
        playing: ``[N]``, False where the game is over; its next step begins a new one, whatever the action.
        ended: ``[N]``, True where the game is over.
    """

    two_players = True

    def __init__(self, rules: Rules, num_envs: int, *, openings: float = 0.0, seed: int = 0) -> None:
        """Begin."""
        self.rules, self.actions = rules, rules.actions
        self._openings = check_number("openings", openings, low=0, high=1)
        self._rng = np.random.default_rng((check_integer("seed", seed, low=0), 3))  # as nothing else has it
        self._boards = self._begin(check_integer("num_envs", num_envs, low=1))
        self.playing = np.ones(num_envs, bool)
        self.ended = ~self.playing

    @property
    def observations(self) -> Array:
        """``[N, 2 S]``, see `Rules.observe`."""
        return self.rules.observe(self._boards)

    @property
    def signs(self) -> Array:
        """``[N]``, 1 where it is the turn of who moves first, else -1."""
        return (-1.0) ** np.count_nonzero(self._boards, axis=-1)

    @property
    def invalid_actions(self) -> NDArray[np.bool_]:
        """``[N, A]``, True for what isn't legal; nowhere where the game is over."""
        invalid: NDArray[np.bool_] = ~self.rules.legal_actions(self._boards) & self.playing[:, None]
        return invalid

    def step(self, actions: NDArray[np.int64]) -> Array:
        """Make a legal move ``[N]`` in every game, and return the rewards ``[N]`` of those who moved."""
        rows, rewards = np.flatnonzero(self.playing), np.zeros(len(actions), np.float32)
        moved = self.rules.step(self._boards[rows], actions[rows])
        self._boards[~self.playing] = self._begin(len(actions) - len(rows))
        self._boards[rows], rewards[rows] = moved.boards, moved.rewards
        self.playing = np.ones(len(actions), bool)
        self.playing[rows] = ~moved.over
        self.ended = ~self.playing
        return rewards

    def _begin(self, games: int) -> Boards:
        boards, most = self.rules.empty_boards(games), self.rules.squares * 2 // 3
        if not self._openings:
            return boards
        moves = self._rng.integers(1, most + 1, games) * (self._rng.random(games) < self._openings)
        for number in range(most):
            rows = np.flatnonzero(moves > number)
            moved = self.rules.step(boards[rows], self.rules.play_randomly(boards[rows], self._rng))
            boards[rows] = np.where(moved.over[:, None], 0, moved.boards)
            moves[rows[moved.over]] = 0  # an opening mustn't end the game
        return boards

    def state(self) -> dict[str, NDArray[Any]]:
        """Return all that is needed to go on, under names for `restore`."""
        chance, openings = Chance(self._rng).state()["state"], np.array(self._openings)
        boards, playing = self._boards.copy(), self.playing.copy()
        return {"boards": boards, "playing": playing, "chance": chance, "openings": openings}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from what `state` returned, of as many games."""
        self._boards, self.playing = state["boards"].copy(), state["playing"].copy()
        Chance(self._rng).restore({"state": state["chance"]})
        self.ended = ~self.playing
