"""Atari Pong from pixels: the games, what an agent sees of them, and a training loop without a framework."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import envpool
import numpy as np
from numpy.typing import NDArray

from gradtricks._checks import check_number, check_shape

ACTIONS = (0, 2, 3)  # of ALE's six: stay, up, down
SIDE = 80  # pixels of the picture that the agent sees
FRAME_SHAPE = (210, 160)  # pixels of the screen
BACKGROUND = 87  # luminance of the court; ball, paddles and walls are brighter

Array = NDArray[np.floating]


class Batch(NamedTuple):
    """Finished points laid end to end; each ends with its only nonzero reward.

    Attributes:
        observations: ``[B, 6400]`` of ``int8``.
        actions: ``[B]``, indices into `ACTIONS`.
        rewards: ``[B]``, +1 for a point won, -1 for one lost, 0 before.
    """

    observations: NDArray[np.int8]
    actions: NDArray[np.int64]
    rewards: Array


class Policy(Protocol):
    """What `train` asks of an agent."""

    def logits(self, observations: NDArray[np.int8]) -> Array:
        """Return ``[B, 3]`` for ``[B, 6400]``."""

    def advantages(self, rewards: Array, discount: float) -> Array:
        """Return the processed rewards of points laid end to end, ``[B]``."""

    def learn(self, observations: NDArray[np.int8], actions: NDArray[np.int64], advantages: Array) -> float:
        """Take one step and return the loss before it."""


class PongGames:
    """Games of Pong side by side, each seen as the difference of its last two pictures.

    A game that has ended starts anew in the next step, which ignores its action.

    Args:
        num_envs: How many games.
        seed: Of the games: each starts after its own number of idle frames.
        frame_skip: Screen frames per decision; the action is held meanwhile.

    Raises:
        ValueError: ``num_envs`` or ``frame_skip`` is below one.
    """

    def __init__(self, num_envs: int, *, seed: int = 0, frame_skip: int = 8) -> None:
        """Start the games."""
        self._environment = make_environment(num_envs, seed=seed, frame_skip=frame_skip)
        self._picture = preprocess(self._environment.reset()[0])
        self.observations = np.zeros((num_envs, SIDE * SIDE), np.int8)
        self.playing = np.ones(num_envs, bool)

    def step(self, actions: NDArray[np.int64]) -> Array:
        """Play one decision in every game; `observations` and `playing` then are those of the next.

        Args:
            actions: ``[N]``, indices into `ACTIONS`.

        Returns:
            The rewards, ``[N]``.
        """
        frames, rewards, terminated, truncated, _ = self._environment.step(np.take(ACTIONS, actions))
        picture = preprocess(frames)
        difference = (picture - self._picture).reshape(len(picture), -1)
        difference[~self.playing] = 0  # a new game's first picture follows no other
        self._picture, self.observations = picture, difference
        self.playing = ~(terminated | truncated)
        return np.asarray(rewards, np.float32)


class PointMemory:
    """Keeps each decision until its point has ended, and then gives it out once.

    Points go on when a batch is taken: what belongs to an unfinished point stays and is learned from later.

    Args:
        num_envs: How many games.
    """

    def __init__(self, num_envs: int) -> None:
        """Start empty."""
        self._open: list[list[tuple[Any, ...]]] = [[] for _ in range(num_envs)]
        self._finished: list[tuple[Any, ...]] = []

    def __len__(self) -> int:
        """Return the number of decisions whose points have ended."""
        return len(self._finished)

    def add(
        self,
        observations: NDArray[np.int8],
        actions: NDArray[np.int64],
        rewards: Array,
        playing: NDArray[np.bool_],
    ) -> None:
        """Remember one decision in every game.

        Args:
            observations: ``[N, 6400]``, what was seen.
            actions: ``[N]``, what was done.
            rewards: ``[N]``, what followed.
            playing: ``[N]``, False where the action had no effect.
        """
        for game in np.flatnonzero(playing):
            decisions = self._open[game]
            decisions.append((observations[game].copy(), actions[game], rewards[game]))
            if rewards[game] != 0:
                self._finished += decisions
                decisions.clear()

    def take(self) -> Batch:
        """Return all decisions whose points have ended, and forget them.

        Returns:
            The points in the order in which they ended.

        Raises:
            ValueError: No point has ended.
        """
        if not self._finished:
            raise ValueError("no point has ended yet; remedy: add more decisions before taking a batch")
        batch = Batch(*(np.stack(column) for column in zip(*self._finished)))
        self._finished = []
        return batch


@dataclass
class History:
    """What happened while training.

    Attributes:
        decisions: How many decisions were made, over all games.
        point_rewards: +1 or -1 for each point, in the order in which the points ended.
        point_times: Decisions made until then.
        game_returns: Points won minus points lost for each finished game, from -21 to 21.
        game_times: Decisions made until then.
        losses: The loss of each update, before its step.
        loss_times: Decisions made until then.
    """

    decisions: int = 0
    point_rewards: list[float] = field(default_factory=list)
    point_times: list[int] = field(default_factory=list)
    game_returns: list[float] = field(default_factory=list)
    game_times: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    loss_times: list[int] = field(default_factory=list)

    def points_between(self, start: float, stop: float) -> Array:
        """Return the rewards of the points that ended after ``start`` and by ``stop`` decisions.

        Args:
            start: Decisions.
            stop: Decisions.

        Returns:
            ``[P]``.
        """
        times = np.array(self.point_times)
        return np.array(self.point_rewards)[(times > start) & (times <= stop)]


def make_environment(num_envs: int, *, seed: int = 0, frame_skip: int = 8) -> Any:
    """Open ALE Pong in envpool: synchronous, grey, full size, without sticky actions.

    Args:
        num_envs: How many games.
        seed: Of the games.
        frame_skip: Screen frames per decision.

    Returns:
        A vectorised Gymnasium environment with frames ``[N, 1, 210, 160]`` of ``uint8``.

    Raises:
        ValueError: ``num_envs`` or ``frame_skip`` is below one.
    """
    return envpool.make(
        "Pong-v5",
        env_type="gymnasium",
        num_envs=int(check_number("num_envs", num_envs, low=1)),
        seed=seed,
        frame_skip=int(check_number("frame_skip", frame_skip, low=1)),
        img_height=FRAME_SHAPE[0],
        img_width=FRAME_SHAPE[1],
        stack_num=1,
        gray_scale=True,
        max_episode_steps=2**30,  # a game must end with a point, or its last decisions would have no return
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


def sample_actions(logits: Array, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw an action from each row of logits, by the Gumbel-max trick.

    Args:
        logits: ``[N, 3]``.
        rng: The source of chance, the same for both frameworks.

    Returns:
        ``[N]``, indices into `ACTIONS`.
    """
    actions: NDArray[np.int64] = np.argmax(logits + rng.gumbel(size=logits.shape), axis=-1)
    return actions


def draw_weights(seed: int = 0, *, hidden_units: int = 200) -> dict[str, Array]:
    """Draw the weights of the network, the same for both frameworks; as in the talk it has no biases.

    Args:
        seed: Of the generator.
        hidden_units: Units of the hidden layer.

    Returns:
        ``float32`` kernels ``[inputs, outputs]`` under ``hidden`` and ``logits``.
    """
    hidden_units = int(check_number("hidden_units", hidden_units, low=1))
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


def train(
    policy: Policy,
    games: PongGames,
    *,
    decisions: int,
    rng: np.random.Generator,
    batch_size: int = 1024,
    discount: float = 0.98,
    sign: int = 1,
) -> History:
    """Play and learn, for a fixed number of decisions.

    The policy takes one step whenever finished points hold ``batch_size`` decisions.

    Args:
        policy: The agent; it changes.
        games: Where it plays; they go on from where they are.
        decisions: How many decisions to make, over all games.
        rng: Draws the actions.
        batch_size: Decisions per step of the policy, at least.
        discount: Of the returns, which end with their point.
        sign: +1 minimises the loss; -1 flips the sign of its reward term, which is the usual mistake.

    Returns:
        What happened.

    Raises:
        ValueError: An option is out of range.
    """
    decisions = int(check_number("decisions", decisions, low=1))
    batch_size = int(check_number("batch_size", batch_size, low=1))
    if sign not in (1, -1):
        raise ValueError(f"sign must be 1 or -1; got {sign!r}")
    history, memory = History(), PointMemory(len(games.playing))
    score = np.zeros(len(games.playing))
    while history.decisions < decisions:
        _play(policy, games, memory, history, score, rng)
        if len(memory) >= batch_size:
            batch = memory.take()
            advantages = sign * policy.advantages(batch.rewards, discount)
            history.losses.append(policy.learn(batch.observations, batch.actions, advantages))
            history.loss_times.append(history.decisions)
    return history


def _play(
    policy: Policy,
    games: PongGames,
    memory: PointMemory,
    history: History,
    score: Array,
    rng: np.random.Generator,
) -> None:
    observations, playing = games.observations, games.playing
    actions = sample_actions(policy.logits(observations), rng)
    rewards = games.step(actions)
    memory.add(observations, actions, rewards, playing)
    history.decisions += len(rewards)
    points = rewards[rewards != 0].tolist()
    history.point_rewards += points
    history.point_times += [history.decisions] * len(points)
    score += rewards
    over = ~games.playing
    history.game_returns += score[over].tolist()
    history.game_times += [history.decisions] * int(over.sum())
    score[over] = 0
