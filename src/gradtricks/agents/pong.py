"""Atari Pong from pixels: the games, what an agent sees of them, and the weights it starts from."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from ale_py import ALEInterface, LoggerMode
from ale_py.vector_env import AtariVectorEnv
from numpy.typing import NDArray

from gradtricks._core.checks import check_integer, check_number, check_shape
from gradtricks.agents import blocks

ACTIONS = (0, 2, 3)  # of ALE's six: stay, up, down
_SIGNS = np.array([0, -1, 1])  # of these, in the direction of the screen's rows
MIRRORED = [0, 2, 1, 3]  # of their logits and a value: up for those who see the court upside down is down
SIDE = 80  # pixels of the picture that the agent sees
FRAME_SHAPE = (210, 160)  # pixels of the screen
BACKGROUND = 87  # luminance of the court; ball, paddles and walls are brighter
BRIGHTEST_BACKGROUND = 130  # the court changes its colour between games
COURT = slice(34, 194)  # rows of the screen between the walls
BANDS = (0, 20, 140, 160)  # columns of the screen: the other's paddle stands in the first, ours in the last
CELL_ROWS, CELL_COLUMNS = 80, 40
CELL_COUNT = CELL_ROWS * CELL_COLUMNS
NO_CELL = 2 * CELL_COUNT  # in an observation of two pictures
_NEVER = 2**31 - 1  # for training: decisions after a game's last point would have no return
MOST_CELLS = 40  # lit at once; paddles and ball have 31 at most where two frames are laid upon each other

Array = NDArray[np.floating]


class View(NamedTuple):
    """How an agent sees the game, each screen by itself and then two that follow each other, and its moves.

    Attributes:
        look: Frames ``[N, 1, 210, 160]`` to pictures ``[N, ...]``.
        compare: The pictures before and after a decision to observations ``[N, ...]``.
        inputs: Rows that a matrix needs for what it multiplies.
        seen: What that is, in a few words.
        actions: ALE's numbers of the moves.
        recalls: An observation ends with the last move: 0 for stay, -1 for up and 1 for down.
    """

    look: Callable[[NDArray[np.uint8]], NDArray[Any]]
    compare: Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]]
    inputs: int
    seen: str
    actions: tuple[int, ...] = ACTIONS
    recalls: bool = False


class PongGames:
    """Games of Pong side by side.

    A game that has ended starts anew in the next step, which ignores its action. Beside `observations` and
    `playing`, `screens` are what is on the screens now, ``[N, 210, 160]``.

    Emulators that play side by side can't be saved, as ale-py doesn't let them. But they do the same again
    when the same actions are played, so these are the state of the games, and to restore them is to play
    them again.

    Args:
        num_envs: How many games.
        seed: Of the games: each starts after a random number of idle frames, 30 at most.
        frame_skip: Screen frames per decision; the action is held meanwhile.
        sticky: Probability with which the emulator repeats the last action instead, at each frame.
        view: `DIFFERENCE` or one of `VIEWS`.
        max_frames: After which a game is broken off; as it is, only its end ends it.

    Raises:
        ValueError: An option is out of range.
    """

    def __init__(
        self,
        num_envs: int,
        *,
        seed: int = 0,
        frame_skip: int = 8,
        sticky: float = 0.0,
        view: View | None = None,
        max_frames: int = _NEVER,
    ) -> None:
        """Start the games."""
        self._view = view or DIFFERENCE
        self._environment = make_environment(
            num_envs, frame_skip=frame_skip, sticky=sticky, max_frames=max_frames
        )
        seed = check_integer("seed", seed, low=0, high=2**31 - 1 - num_envs)
        frames = self._environment.reset(seed=seed)[0]
        self.screens, self._picture = frames[:, 0], self._view.look(frames)
        self.playing = np.ones(num_envs, bool)
        self._actions = [np.zeros(num_envs, np.uint8)]
        self.observations = self._compare(self._picture)

    def step(self, actions: NDArray[np.int64]) -> Array:
        """Play a decision in every game, ``[N]`` indices of moves, and return rewards, ``[N]``."""
        check_shape("actions", actions.shape, self.playing.shape, "[N]")
        moves = self._view.actions
        known = np.issubdtype(actions.dtype, np.integer) & (actions >= 0) & (actions < len(moves))
        if not known.all():
            game = int(np.argmin(known))
            raise ValueError(
                f"each action must be the index of a move, an integer in [0, {len(moves) - 1}]; "
                f"got {actions[game]} in game {game}"
            )
        self._actions.append(actions.astype(np.uint8))
        frames, rewards, terminated, truncated, _ = self._environment.step(np.take(moves, actions))
        self.screens, picture = frames[:, 0], self._view.look(frames)
        self._picture[~self.playing] = picture[~self.playing]  # a new game's first picture follows no other
        self.observations = self._compare(picture)
        self._picture = picture
        self.playing = ~(terminated | truncated)
        return np.asarray(rewards, np.float32)

    def check_view(self, view: object, name: str) -> None:
        """Raise unless ``view``, a learner's, is the games' own; ``name`` is what this module calls it."""
        if view != self._view:
            raise ValueError(
                f"games must have the learner's view, {name}; got observations {self.observations.shape} of "
                f"another one; remedy: PongGames(..., view={name})"
            )

    def _compare(self, picture: NDArray[Any]) -> NDArray[Any]:
        seen = self._view.compare(self._picture, picture)
        if not self._view.recalls:
            return seen
        moved = np.where(self.playing, _SIGNS[self._actions[-1]], 0)  # a new game has no last move
        return np.concatenate([seen, moved[:, None]], axis=1, dtype=seen.dtype)

    def state(self) -> dict[str, NDArray[Any]]:
        """Return all actions so far, ``[T, N]``, and what they led to."""
        return {"actions": np.array(self._actions[1:], np.uint8), "observations": self.observations.copy()}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Play again, from the beginning, what `state` returned; ValueError where other things happen."""
        for actions in state["actions"]:
            self.step(actions)
        if not np.array_equal(self.observations, state["observations"]):
            raise ValueError(
                "games must do the same again when the same actions are played; got other observations; "
                "remedy: games with the same arguments, or remove the checkpoint"
            )


def make_environment(
    num_envs: int, *, frame_skip: int = 8, sticky: float = 0.0, max_frames: int = _NEVER
) -> AtariVectorEnv:
    """Open Pong in ale-py's emulators: synchronous, grey, full size, see `PongGames`.

    Returns:
        A vectorised Gymnasium environment with frames ``[N, 1, 210, 160]`` of ``uint8``, each the brighter of
        a decision's last two.

    Raises:
        ValueError: An option is out of range.
    """
    ALEInterface.setLoggerMode(LoggerMode.Error)  # it would greet for each game
    return AtariVectorEnv(
        "pong",
        num_envs=check_integer("num_envs", num_envs, low=1),
        frameskip=check_integer("frame_skip", frame_skip, low=1),
        repeat_action_probability=check_number("sticky", sticky, low=0, high=1),
        img_height=FRAME_SHAPE[0],
        img_width=FRAME_SHAPE[1],
        stack_num=1,
        use_fire_reset=False,
        max_num_frames_per_episode=check_integer("max_frames", max_frames, low=1, high=_NEVER),
    )


def preprocess(frames: NDArray[np.uint8]) -> NDArray[np.int8]:
    """Crop the court of screens ``[N, 1, 210, 160]``, take every second pixel, mark what isn't background.

    Returns:
        ``[N, 80, 80]`` of 0 and 1.
    """
    check_shape("frames", frames.shape, (None, 1, *FRAME_SHAPE), "grey Atari screens")
    lit: NDArray[np.bool_] = frames[:, 0, 35:195:2, ::2] != BACKGROUND
    return lit.astype(np.int8)


DIFFERENCE = View(
    preprocess,
    lambda before, after: (after - before).reshape(len(after), -1),
    SIDE * SIDE,
    "what changed in the court, without its colours",
)


def list_cells(frames: NDArray[np.uint8]) -> NDArray[np.int32]:
    """Divide the court into 80 by 40 cells of two by four pixels, and list those in which something is lit.

    Returns:
        ``[N, 40]``, numbers of cells, row by row from the top left; `CELL_COUNT` where there are no more.
    """
    from gradtricks.agents.pong_loops import list_lit_cells  # a compiler is dear to import

    check_shape("frames", frames.shape, (None, 1, *FRAME_SHAPE), "grey Atari screens")
    cells = np.full((len(frames), MOST_CELLS), CELL_COUNT, np.int32)
    list_lit_cells(frames[:, 0, COURT], 160 // CELL_ROWS, 160 // CELL_COLUMNS, BRIGHTEST_BACKGROUND, cells)
    return cells


def _number_apart(before: NDArray[np.int32], after: NDArray[np.int32]) -> NDArray[np.int32]:
    # Cells of the earlier picture come after those of the later one, and what stands for none after both.
    earlier = np.where(before == CELL_COUNT, NO_CELL, before + CELL_COUNT)
    later = np.where(after == CELL_COUNT, NO_CELL, after)
    return np.concatenate([later, earlier], axis=1)


CELLS = View(list_cells, _number_apart, NO_CELL + 1, "which cells of the court are lit")


def find_places(frames: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Say where the other's paddle, the ball and our paddle are: the centres of what is lit in three `BANDS`.

    Returns:
        ``[N, 3, 3]``: for each band 1 if anything is lit in it, and column and row from -1 to 1; or zeros.
    """
    from gradtricks.agents.pong_loops import find_centres  # a compiler is dear to import

    check_shape("frames", frames.shape, (None, 1, *FRAME_SHAPE), "grey Atari screens")
    places = np.zeros((len(frames), len(BANDS) - 1, 3), np.float32)
    find_centres(frames[:, 0, COURT], np.array(BANDS), BRIGHTEST_BACKGROUND, places)
    lit = places[..., :1] > 0
    return np.where(lit, np.concatenate([lit, (places[..., 1:] - 79.5) / 80], axis=-1), 0).astype(np.float32)


def _with_motion(before: NDArray[np.float32], after: NDArray[np.float32]) -> NDArray[np.float32]:
    # Enlarged until what matters differs by about one: half a court, a step of four pixels, half a paddle.
    motion = 16 * (after[..., 1:] - before[..., 1:]) * before[..., :1] * after[..., :1]
    ball = after[:, 1:2]
    beside = 8 * (ball[..., 2:] - after[..., 2:]) * ball[..., :1] * after[..., :1]
    parts = after[..., :1], 2 * after[..., 1:2], 4 * after[..., 2:], before[..., :1], motion, beside
    return np.clip(np.concatenate(parts, axis=-1), -4, 4).reshape(len(after), -1)


# Of each place: if anything is there, column, row; if it was before, motion along both; the ball's distance.
PLACE_FACTS = 7
PLACES = View(
    find_places,
    _with_motion,
    3 * PLACE_FACTS + 1,
    "where ball and paddles are, and how they move",
    recalls=True,
)


@cache
def find_background() -> NDArray[np.uint8]:
    """Play at random for a moment, and return what each pixel shows most of the time, ``[210, 160]``."""
    environment, rng = make_environment(32), np.random.default_rng(0)
    environment.reset(seed=0)
    played = (environment.step(rng.integers(6, size=32))[0] for _ in range(60))
    return blocks.most_frequent(np.concatenate([frames[::4, 0] for frames in played]))


def list_differences(frames: NDArray[np.uint8]) -> NDArray[np.int32]:
    """List where screens ``[N, 1, 210, 160]`` differ from the background, ``[N, 64, 2]``."""
    check_shape("frames", frames.shape, (None, 1, *FRAME_SHAPE), "grey Atari screens")
    return blocks.list_blocks(frames[:, 0], find_background())


# Needs no knowledge of this game, and leaves out what is as always.
SCREEN = View(list_differences, blocks.number_apart, blocks.NO_BLOCK + 1, "the whole screen", tuple(range(6)))
VIEWS = {"cells": CELLS, "places": PLACES, "screen": SCREEN}


def sample_actions(logits: Array, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw an action ``[N]`` from each row of logits ``[N, A]``, by the Gumbel-max trick."""
    actions: NDArray[np.int64] = np.argmax(logits + rng.gumbel(size=logits.shape), axis=-1)
    return actions


def mirror_cells() -> NDArray[np.int32]:
    """Number each cell of an observation as it is seen upside down, ``[6401]``; what is no cell stays."""
    numbers = np.arange(CELL_COUNT, dtype=np.int32).reshape(CELL_ROWS, CELL_COLUMNS)[::-1].ravel()
    return np.concatenate([numbers, numbers + CELL_COUNT, np.array([NO_CELL], np.int32)])


def mirror_places() -> NDArray[np.float32]:
    """Return what places are multiplied by to be seen upside down, ``[22]``: -1 for what has a row's sign."""
    return np.array([1, 1, -1, 1, 1, -1, -1] * 3 + [-1], np.float32)
