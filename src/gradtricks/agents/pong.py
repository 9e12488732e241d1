"""Atari Pong from pixels: the games, what an agent sees of them, and the weights it starts from."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import envpool
import numpy as np
from numpy.typing import NDArray

from gradtricks._core.checks import check_integer, check_number, check_shape

ACTIONS = (0, 2, 3)  # of ALE's six: stay, up, down
SIDE = 80  # pixels of the picture that the agent sees
FRAME_SHAPE = (210, 160)  # pixels of the screen
BACKGROUND = 87  # luminance of the court; ball, paddles and walls are brighter
BRIGHTEST_BACKGROUND = 130  # the court changes its colour between games
COURT = slice(34, 194)  # rows of the screen between the walls
BANDS = (0, 20, 140, 160)  # columns of the screen: the other's paddle stands in the first, ours in the last
CELL_ROWS, CELL_COLUMNS = 80, 40
CELL_COUNT = CELL_ROWS * CELL_COLUMNS
NO_CELL = 2 * CELL_COUNT  # in an observation of two pictures
_NEVER = 2**30  # for training: decisions after a game's last point would have no return
MOST_CELLS = 40  # lit at once; paddles and ball have 31 at most where two frames are laid upon each other

Array = NDArray[np.floating]


class View(NamedTuple):
    """How an agent sees the game: each screen by itself, and then two screens that follow each other.

    Attributes:
        look: Frames ``[N, 1, 210, 160]`` to pictures ``[N, ...]``.
        compare: The pictures before and after a decision to observations ``[N, ...]``.
    """

    look: Callable[[NDArray[np.uint8]], NDArray[Any]]
    compare: Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]]


class PongGames:
    """Games of Pong side by side.

    A game that has ended starts anew in the next step, which ignores its action. Beside `observations` and
    `playing`, `screens` are what is on the screens now, ``[N, 210, 160]``.

    The emulators can't be saved, as envpool doesn't let them. But they do the same again when the same
    actions are played, so these are the state of the games, and to restore them is to play them again.

    Args:
        num_envs: How many games.
        seed: Of the games: each starts after a random number of idle frames, 30 at most.
        frame_skip: Screen frames per decision; the action is held meanwhile.
        sticky: Probability with which the emulator repeats the last action instead, at each frame.
        view: `DIFFERENCE`, `CELLS` or `PLACES`.
        max_decisions: After which a game is broken off; as it is, only its end ends it.

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
        max_decisions: int = _NEVER,
    ) -> None:
        """Start the games."""
        self._view = view or DIFFERENCE
        self._environment = make_environment(
            num_envs, seed=seed, frame_skip=frame_skip, sticky=sticky, max_decisions=max_decisions
        )
        frames = self._environment.reset()[0]
        self.screens, self._picture = frames[:, 0], self._view.look(frames)
        self.observations = self._view.compare(self._picture, self._picture)
        self.playing = np.ones(num_envs, bool)
        self._actions: list[NDArray[np.uint8]] = []

    def step(self, actions: NDArray[np.int64]) -> Array:
        """Play one decision in every game; `observations` and `playing` then are those of the next.

        Args:
            actions: ``[N]``, indices into `ACTIONS`.

        Returns:
            The rewards, ``[N]``.
        """
        self.start(actions)
        return self.finish()

    def start(self, actions: NDArray[np.int64]) -> None:
        """Let the emulators play one decision in every game while the caller does something else.

        Args:
            actions: ``[N]``, indices into `ACTIONS`.
        """
        self._actions.append(actions.astype(np.uint8))
        self._environment.send(np.take(ACTIONS, actions))

    def finish(self) -> Array:
        """Wait for the emulators; `observations` and `playing` then are those of the next decision.

        Returns:
            The rewards, ``[N]``.
        """
        frames, rewards, terminated, truncated, _ = self._environment.recv()
        self.screens, picture = frames[:, 0], self._view.look(frames)
        self._picture[~self.playing] = picture[~self.playing]  # a new game's first picture follows no other
        self.observations = self._view.compare(self._picture, picture)
        self._picture = picture
        self.playing = ~(terminated | truncated)
        return np.asarray(rewards, np.float32)

    def state(self) -> dict[str, NDArray[Any]]:
        """Return all actions so far, ``[T, N]``, and what they led to."""
        actions = np.array(self._actions, np.uint8).reshape(-1, len(self.playing))
        return {"actions": actions, "observations": self.observations.copy()}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Play again, from the beginning, what `state` returned.

        Raises:
            ValueError: These games don't do the same again.
        """
        for actions in state["actions"]:
            self.step(actions)
        if not np.array_equal(self.observations, state["observations"]):
            raise ValueError(
                "games must do the same again when the same actions are played; got other observations; "
                "remedy: games with the same arguments, or remove the checkpoint"
            )


def make_environment(
    num_envs: int,
    *,
    seed: int = 0,
    frame_skip: int = 8,
    sticky: float = 0.0,
    max_decisions: int = _NEVER,
) -> Any:
    """Open ALE Pong in envpool: synchronous, grey, full size.

    Args:
        num_envs: How many games.
        seed: Of the games.
        frame_skip: Screen frames per decision; the frame that is seen is the brighter of the last two.
        sticky: Probability with which the emulator repeats the last action instead, at each frame.
        max_decisions: After which a game is broken off.

    Returns:
        A vectorised Gymnasium environment with frames ``[N, 1, 210, 160]`` of ``uint8``.

    Raises:
        ValueError: An option is out of range.
    """
    return envpool.make(
        "Pong-v5",
        env_type="gymnasium",
        num_envs=check_integer("num_envs", num_envs, low=1),
        seed=check_integer("seed", seed, low=0, high=2**31 - 1),
        frame_skip=check_integer("frame_skip", frame_skip, low=1),
        repeat_action_probability=check_number("sticky", sticky, low=0, high=1),
        img_height=FRAME_SHAPE[0],
        img_width=FRAME_SHAPE[1],
        stack_num=1,
        gray_scale=True,
        max_episode_steps=check_integer("max_decisions", max_decisions, low=1, high=_NEVER),
    )


def preprocess(frames: NDArray[np.uint8]) -> NDArray[np.int8]:
    """Crop the court, take every second pixel, and mark what isn't background.

    Args:
        frames: ``[N, 1, 210, 160]``, luminance.

    Returns:
        ``[N, 80, 80]`` of 0 and 1.

    Raises:
        ValueError: ``frames`` has another shape.
    """
    check_shape("frames", frames.shape, (None, 1, *FRAME_SHAPE), "grey Atari screens")
    lit: NDArray[np.bool_] = frames[:, 0, 35:195:2, ::2] != BACKGROUND
    return lit.astype(np.int8)


DIFFERENCE = View(preprocess, lambda before, after: (after - before).reshape(len(after), -1))


def list_cells(frames: NDArray[np.uint8]) -> NDArray[np.int32]:
    """Divide the court into 80 by 40 cells of two by four pixels, and list those in which something is lit.

    Args:
        frames: ``[N, 1, 210, 160]``, luminance.

    Returns:
        ``[N, 40]``, numbers of cells, row by row from the top left; `CELL_COUNT` where there are no more.

    Raises:
        ValueError: ``frames`` has another shape.
    """
    from gradtricks._core.kernels.pong import list_lit_cells  # a compiler is dear to import

    check_shape("frames", frames.shape, (None, 1, *FRAME_SHAPE), "grey Atari screens")
    cells = np.full((len(frames), MOST_CELLS), CELL_COUNT, np.int32)
    list_lit_cells(frames[:, 0, COURT], 160 // CELL_ROWS, 160 // CELL_COLUMNS, BRIGHTEST_BACKGROUND, cells)
    return cells


def _number_apart(before: NDArray[np.int32], after: NDArray[np.int32]) -> NDArray[np.int32]:
    # Cells of the earlier picture come after those of the later one, and what stands for none after both.
    earlier = np.where(before == CELL_COUNT, NO_CELL, before + CELL_COUNT)
    later = np.where(after == CELL_COUNT, NO_CELL, after)
    return np.concatenate([later, earlier], axis=1)


CELLS = View(list_cells, _number_apart)


def find_places(frames: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Say where the other's paddle, the ball and our paddle are: the centres of what is lit in three `BANDS`.

    Args:
        frames: ``[N, 1, 210, 160]``, luminance.

    Returns:
        ``[N, 3, 3]``: for each band 1 if anything is lit in it, and column and row from -1 to 1; or zeros.

    Raises:
        ValueError: ``frames`` has another shape.
    """
    from gradtricks._core.kernels.pong import find_centres  # a compiler is dear to import

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
    return np.clip(np.concatenate(parts, axis=-1), -4, 4).reshape(len(after), PLACE_COUNT)


PLACES = View(find_places, _with_motion)
# Of each place: if anything is there, column, row; if it was before, motion along both; the ball's distance.
PLACE_FACTS = 7
PLACE_COUNT = 3 * PLACE_FACTS  # numbers in an observation


def draw_weights(seed: int = 0, *, hidden_units: int = 200) -> dict[str, Array]:
    """Draw the weights of the network, the same for both frameworks; as in the talk it has no biases.

    Args:
        seed: Of the generator.
        hidden_units: Units of the hidden layer.

    Returns:
        ``float32`` kernels ``[inputs, outputs]`` under ``hidden`` and ``logits``.
    """
    hidden_units = check_integer("hidden_units", hidden_units, low=1)
    rng = np.random.default_rng(seed)
    shapes = {"hidden": (SIDE * SIDE, hidden_units), "logits": (hidden_units, len(ACTIONS))}
    return {name: rng.normal(0, shape[0] ** -0.5, shape).astype(np.float32) for name, shape in shapes.items()}


def check_weights(weights: Mapping[str, Array]) -> None:
    """Raise unless names and shapes are those of `draw_weights`.

    Args:
        weights: Arrays under their names.

    Raises:
        ValueError: A name is missing or unknown, or a shape is wrong.
    """
    if difference := sorted({"hidden", "logits"} ^ set(weights)):
        raise ValueError(
            f"weights must be named as draw_weights names them; missing or unknown: {difference}"
        )
    check_shape("weights['hidden']", weights["hidden"].shape, (SIDE * SIDE, None), "[6400, units]")
    units = weights["hidden"].shape[1]
    check_shape("weights['logits']", weights["logits"].shape, (units, len(ACTIONS)), "[units, 3]")
