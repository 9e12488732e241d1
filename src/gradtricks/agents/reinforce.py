"""REINFORCE, point by point: the network, a memory of finished points, and a loop without a framework."""

from abc import abstractmethod
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from gradtricks._core.checks import check_choice, check_integer, check_number, check_shape
from gradtricks.agents.pong import ACTIONS, DIFFERENCE, SIDE, PongGames, sample_actions
from gradtricks.agents.training import Chance, History, Part, Snapshots, check_loss

Array = NDArray[np.floating]

_OPTIONS = ("learning_rate", "decay", "epsilon", "move_cost")  # of a policy


def draw_weights(seed: int = 0, *, hidden_units: int = 200) -> dict[str, Array]:
    """Draw the weights of the network, the same for both frameworks; as in the talk it has no biases.

    Returns:
        ``float32`` kernels ``[inputs, outputs]`` under ``hidden`` and ``logits``.
    """
    hidden_units = check_integer("hidden_units", hidden_units, low=1)
    rng = np.random.default_rng(seed)
    shapes = {"hidden": (SIDE * SIDE, hidden_units), "logits": (hidden_units, len(ACTIONS))}
    return {name: rng.normal(0, shape[0] ** -0.5, shape).astype(np.float32) for name, shape in shapes.items()}


def check_weights(weights: Mapping[str, Array]) -> None:
    """Raise ValueError unless names and shapes are those of `draw_weights`."""
    if difference := sorted({"hidden", "logits"} ^ set(weights)):
        raise ValueError(
            f"weights must be named as draw_weights names them; missing or unknown: {difference}"
        )
    check_shape("weights['hidden']", weights["hidden"].shape, (SIDE * SIDE, None), "[6400, units]")
    units = weights["hidden"].shape[1]
    check_shape("weights['logits']", weights["logits"].shape, (units, len(ACTIONS)), "[units, 3]")


class Batch(NamedTuple):
    """Finished points laid end to end; each ends with its only nonzero reward.

    Attributes:
        observations: ``[B, 6400]`` of ``int8``, differences of pictures.
        actions: ``[B]``, indices into `gradtricks.agents.pong.ACTIONS`.
        rewards: ``[B]``, +1 for a point won, -1 for one lost, 0 before.
    """

    observations: NDArray[np.int8]
    actions: NDArray[np.int64]
    rewards: Array


class BasePolicy(Part):
    """Base of the policies in both frameworks, over three actions, trained by RMSProp.

    Args:
        weights: From `draw_weights`; their dtype is the learner's.
        learning_rate: Step size.
        decay: Share of the squared gradients' running mean that each step keeps.
        epsilon: Added to the root of this mean.
        move_cost: Added to the loss times the probability of moving, as in the talk.
        device: ``"auto"``, ``"cpu"`` or ``"gpu"``.

    Raises:
        ValueError: A number is out of range, or the weights aren't the network's.
    """

    def __init__(
        self,
        weights: Mapping[str, Array],
        *,
        learning_rate: float = 1e-3,
        decay: float = 0.99,
        epsilon: float = 1e-8,
        move_cost: float = 0.01,
        device: str = "auto",
    ) -> None:
        """Check the arguments."""
        check_weights(weights)
        self.learning_rate = check_number("learning_rate", learning_rate, low=0)
        self.decay = check_number("decay", decay, low=0, high=1)
        self.epsilon = check_number("epsilon", epsilon, low=0)
        self.move_cost = check_number("move_cost", move_cost, low=0)
        self._where = device
        self._place(weights, device)

    @abstractmethod
    def _place(self, weights: Mapping[str, Array], device: str) -> None:
        """Copy the weights to the device, and make the framework's RMSProp of them."""

    @abstractmethod
    def logits(self, observations: NDArray[np.int8]) -> Array:
        """Return unnormalised log-probabilities ``[B, 3]`` for ``[B, 6400]``."""

    @abstractmethod
    def advantages(self, rewards: Array, discount: float) -> Array:
        """Discount the rewards ``[B]`` of points laid end to end within each, then standardise all."""

    @abstractmethod
    def learn(self, observations: NDArray[np.int8], actions: NDArray[np.int64], advantages: Array) -> float:
        """Take one step of RMSProp down the loss, and return the loss before it."""

    def clone(self, *, learning_rate: float | None = None) -> Self:
        """Make a policy with its own copies of weights and state; a learning rate of None is this one's."""
        state = self.state()
        weights = {name: state[name] for name in ("hidden", "logits")}
        options = {name: getattr(self, name) for name in _OPTIONS}
        if learning_rate is not None:
            options["learning_rate"] = learning_rate
        policy = type(self)(weights, **options, device=self._where)
        policy.restore(state)
        return policy


class PointMemory:
    """Keeps each decision until its point has ended, and then gives it out once.

    Points go on when a batch is taken: what belongs to an unfinished point stays and is learned from later.
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
        """Remember one decision in every game; ``playing`` is False where the action had no effect."""
        for game in np.flatnonzero(playing):
            decisions = self._open[game]
            decisions.append((observations[game].copy(), actions[game], rewards[game]))
            if rewards[game] != 0:
                self._finished += decisions
                decisions.clear()

    def take(self) -> Batch:
        """Return all decisions whose points have ended, and forget them; ValueError where none has."""
        if not self._finished:
            raise ValueError("no point has ended yet; remedy: add more decisions before taking a batch")
        batch = Batch(*(np.stack(column) for column in zip(*self._finished)))
        self._finished = []
        return batch

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the decisions whose points go on; all others must have been taken."""
        columns = zip(*(decision for game in self._open for decision in game))
        arrays = {name: np.stack(column) for name, column in zip(Batch._fields, columns)}
        return {"lengths": np.array([len(game) for game in self._open]), **arrays}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from what `state` returned."""
        decisions = zip(*(state[name] for name in Batch._fields if name in state))
        self._open = [list(islice(decisions, length)) for length in state["lengths"].tolist()]
        self._finished = []


def train(
    policy: BasePolicy,
    games: PongGames,
    *,
    decisions: int,
    rng: np.random.Generator,
    batch_size: int = 1024,
    discount: float = 0.98,
    sign: int = 1,
    checkpoint: Path | None = None,
) -> History:
    """Play and learn: a step whenever finished points hold ``batch_size`` decisions.

    Args:
        policy: The agent; it changes.
        games: Where it plays; they go on from where they are.
        decisions: How many decisions to make, over all games.
        rng: Draws the actions.
        batch_size: Decisions per step of the policy, at least.
        discount: Of the returns, which end with their point.
        sign: +1 minimises the loss; -1 flips the sign of its reward term, which is the usual mistake.
        checkpoint: A file to go on from if it is there, and to save to now and then.

    Raises:
        ValueError: An option is out of range, or the games or the checkpoint don't fit.
        NotFiniteError: The training diverges.
    """
    decisions = check_integer("decisions", decisions, low=1)
    batch_size = check_integer("batch_size", batch_size, low=1)
    check_choice("sign", sign, (1, -1))
    games.check_view(DIFFERENCE, "DIFFERENCE")
    history, memory = History(), PointMemory(len(games.playing))
    training = {"module": type(policy).__module__, **{name: getattr(policy, name) for name in _OPTIONS}}
    training |= {"decisions": decisions, "batch_size": batch_size, "discount": discount, "sign": sign}
    parts: dict[str, Part] = {"policy": policy, "games": games, "memory": memory, "history": history}
    snapshots = Snapshots(checkpoint, training, {**parts, "chance": Chance(rng)})
    snapshots.restore()
    while history.decisions < decisions:
        observations, playing = games.observations, games.playing
        actions = sample_actions(policy.logits(observations), rng)
        rewards = games.step(actions)
        memory.add(observations, actions, rewards, playing)
        history.add_rewards(rewards, games.playing)
        if len(memory) >= batch_size:
            batch = memory.take()
            advantages = sign * policy.advantages(batch.rewards, discount)
            history.add_loss(check_loss(policy.learn(batch.observations, batch.actions, advantages)))
            snapshots.save_if_due(history.decisions, history.seconds[-1])
    return history
