"""Proximal policy optimization: options, weights, and the loop of rollouts, returns and updates."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

from gradtricks._core.checks import check_choice, check_integer, check_number, check_shape
from gradtricks.agents import pong
from gradtricks.agents.blocks import NO_BLOCK
from gradtricks.agents.muzero.cartpole import CartPoleGames, CartView
from gradtricks.agents.training import Chance, History, Part, Snapshots, check_loss

Array = NDArray[np.floating]
Games = pong.PongGames | CartPoleGames
VIEWS: dict[str, pong.View | CartView] = {**pong.VIEWS, "cart": CartView()}
_LISTS = {"cells": pong.NO_CELL, "screen": NO_BLOCK}  # views that are lists of rows, and what ends a list
ADAM_EPSILON = 1e-5
_ENOUGH_POINTS = 1000  # to say how many are won to a percent or so


@dataclass(frozen=True)
class Options:
    """How the agent learns.

    Attributes:
        rollout_steps: Decisions in each game between two rounds of learning, T.
        minibatch_size: Decisions per step of Adam.
        epochs: Passes over each rollout; an incomplete last minibatch is dropped.
        discount: Of a reward per decision between it and the move.
        lambda_: Of the generalized advantage estimation; 1 trusts only the rewards up to the rollout's end.
        baseline: Subtract the value that the network expects; without it, advantages are returns with
            ``discount * lambda_``, cut off at the rollout's end.
        reset_at_points: Let no return reach over the end of a point.
        clip: Change of an action's probability ratio beyond which it gets no gradient.
        entropy_cost: Weight of the entropy in the beginning; it falls linearly to zero, see `train`.
        value_cost: Weight of the value's squared error.
        learning_rate: Of Adam in the beginning.
        final_rate: Share of the learning rate left once the entropy's cost is zero; it falls linearly.
        max_norm: Gradients of greater norm are scaled down to it.
        sign: +1 minimises the loss; -1 flips the sign of its reward term, which is the usual mistake.
    """

    rollout_steps: int = 128
    minibatch_size: int = 512
    epochs: int = 4
    discount: float = 0.99
    lambda_: float = 1.0
    baseline: bool = True
    reset_at_points: bool = True
    clip: float = 0.2
    entropy_cost: float = 0.01
    value_cost: float = 0.5
    learning_rate: float = 2e-3
    final_rate: float = 1.0
    max_norm: float = 0.5
    sign: int = 1

    def __post_init__(self) -> None:
        """Refuse what can't be."""
        check_choice("sign", self.sign, (1, -1))
        for name in ("rollout_steps", "minibatch_size", "epochs"):
            check_integer(name, getattr(self, name), low=1)
        for name in ("discount", "lambda_", "final_rate"):
            check_number(name, getattr(self, name), low=0, high=1)
        for name in ("clip", "entropy_cost", "value_cost", "learning_rate", "max_norm"):
            check_number(name, getattr(self, name), low=0)


class Minibatch(NamedTuple):
    """Decisions to take one step of Adam on: arrays, or within a learner the tensors of its framework.

    Attributes:
        observations: ``[B, ...]``, what one of `VIEWS` sees.
        actions: ``[B]``, indices into the view's moves.
        log_probs: ``[B]``, of the actions when they were chosen.
        advantages: ``[B]``.
        targets: ``[B]``, of the values.
    """

    observations: Any
    actions: Any
    log_probs: Any
    advantages: Any
    targets: Any


class BaseLearner(Part):
    """Base of the learners in both frameworks: a policy over the moves, and the value of the game.

    Args:
        weights: From `draw_weights`.
        options: How it learns; None is `Options()`.
        mirror: The weights are of half a network, whose other half sees the court upside down.
        device: ``"auto"``, ``"cpu"`` or ``"gpu"``.
    """

    def __init__(
        self,
        weights: Mapping[str, Array],
        options: Options | None = None,
        *,
        mirror: bool = True,
        device: str = "auto",
    ) -> None:
        """Check the arguments."""
        self.view = check_weights(weights, mirror=mirror)
        self.options, self.mirror = options or Options(), bool(mirror)
        self._place(weights, device)

    @abstractmethod
    def _place(self, weights: Mapping[str, Array], device: str) -> None:
        """Copy the weights to the device, and make the framework's Adam of them."""

    @abstractmethod
    def infer(self, observations: NDArray[Any]) -> tuple[Array, Array]:
        """Return logits ``[N, A]`` and values ``[N]`` for ``[N, ...]``, see `gradtricks.agents.pong`."""

    @abstractmethod
    def advantages(self, rewards: Array, discounts: Array, values: Array) -> tuple[Array, Array]:
        """Return standardised advantages and the values' targets, ``[T, N]``; there are T+1 values."""

    @abstractmethod
    def update(self, minibatch: Minibatch, *, rate: float = 1.0, entropy: float = 1.0) -> float:
        """Take one step of Adam, its rate and the entropy's cost multiplied; return the loss before it."""


def draw_weights(
    seed: int = 0, *, hidden_units: int = 256, second_units: int = 0, view: str = "cells", mirror: bool = True
) -> dict[str, Array]:
    """Draw the weights of the network, the same for both frameworks.

    For cells, the hidden layer adds up a row of its matrix for each that is lit, and for the screen one for
    each block that differs from the background, times the difference. With ``mirror`` half of the
    units see the court upside down with the same weights: one prefers up exactly as the other does down.

    Args:
        seed: Of the generator.
        hidden_units: Units of the hidden layer; with ``mirror`` there are half as many weights.
        second_units: Units of a second one behind it; 0 leaves it out.
        view: A name in `VIEWS`.
        mirror: Build the court's symmetry in, for cells and places.

    Returns:
        ``float32`` arrays: the view's ``[inputs, units]``, where the last row of ``cells`` and ``screen`` is
        zero; ``bias``; perhaps ``second`` and ``second_bias``; and ``heads`` ``[units, A + 1]`` for the
        logits of the moves and the value.
    """
    check_choice("view", view, tuple(VIEWS))
    inputs, actions, share = VIEWS[view].inputs, VIEWS[view].actions, 2 if mirror else 1
    units = check_integer("hidden_units", hidden_units, low=2) // share
    further = check_integer("second_units", second_units, low=0) // share
    if second_units and not further:
        raise ValueError(f"second_units must be 0, or at least {share} with a mirror; got {second_units}")
    rng = np.random.default_rng(seed)
    seen = 40 if view in _LISTS else inputs  # some forty are listed in two pictures
    weights = {view: rng.normal(0, (2 / seen) ** 0.5, (inputs, units))}
    if view in _LISTS:
        weights[view][_LISTS[view]] = 0
    weights["bias"] = rng.normal(0, 1, units) if view == "places" else np.zeros(units)  # bend everywhere
    if further:
        weights["second"] = rng.normal(0, (2 / units) ** 0.5, (units, further))
        weights["second_bias"] = np.zeros(further)
    weights["heads"] = rng.normal(0, 0.01, (further or units, len(actions) + 1))
    return {name: value.astype(np.float32) for name, value in weights.items()}


def check_weights(weights: Mapping[str, Array], *, mirror: bool) -> str:
    """Return the name of the view; raise ValueError unless names and shapes are those of `draw_weights`."""
    first = next((name for name in VIEWS if name in weights), "cells")
    if mirror and first not in ("cells", "places"):
        raise ValueError(f"mirror must be False for {first}, where no court is known; got True")
    second = {"second", "second_bias"} if "second" in weights else set()
    if difference := sorted({first, "bias", "heads", *second} ^ set(weights)):
        raise ValueError(f"weights must be named as draw_weights does it; missing or unknown: {difference}")
    inputs, actions = VIEWS[first].inputs, VIEWS[first].actions
    for kernel, bias in ((first, "bias"), ("second", "second_bias"))[: 2 if second else 1]:
        check_shape(f"weights[{bias!r}]", weights[bias].shape, (None,), "[units]")
        units = len(weights[bias])
        check_shape(f"weights[{kernel!r}]", weights[kernel].shape, (inputs, units), f"[{inputs}, units]")
        inputs = units
    check_shape("weights['heads']", weights["heads"].shape, (inputs, len(actions) + 1), "[units, A + 1]")
    return first


def train(
    learner: BaseLearner,
    games: Games,
    *,
    decisions: int,
    anneal_decisions: int | None = None,
    stop_at: float | None = None,
    seed: int = 0,
    checkpoint: Path | None = None,
    good_enough: Callable[[], bool] | None = None,
) -> History:
    """Play and learn in turns, for a number of decisions or until the agent is good enough.

    Args:
        learner: The agent; it changes.
        games: Where it plays, from their beginning.
        decisions: How many decisions to make at most, over all games; whole rollouts, at least one.
        anneal_decisions: After how many the cost of the entropy has fallen to zero; None: after all.
        stop_at: Share of the last 1,000 points that, when it is won, ends training; None never does.
        seed: Of the choice of actions and of the order in which they are learned from.
        checkpoint: A file to go on from if it is there, and to save to now and then.
        good_enough: Asked after each rollout's updates; True ends the training.

    Raises:
        ValueError: An option is out of range, or the games or the checkpoint don't fit.
        NotFiniteError: The training diverges.
    """
    games.check_view(VIEWS[learner.view], f"VIEWS[{learner.view!r}]")
    options, num_envs = learner.options, len(games.playing)
    decisions_each = options.rollout_steps * num_envs
    rollouts = check_integer("decisions", decisions, low=1) // decisions_each or 1
    seed = check_integer("seed", seed, low=0)
    enough = None if stop_at is None else check_number("stop_at", stop_at, low=0, high=1)
    annealing = rollouts * decisions_each if anneal_decisions is None else anneal_decisions
    annealed = check_integer("anneal_decisions", annealing, low=1) / decisions_each
    rng, history = np.random.default_rng(seed), History()
    training = {**asdict(options), "rollouts": rollouts, "num_envs": num_envs, "seed": seed}
    training |= {"mirror": learner.mirror, "stop_at": enough, "annealed": annealed}
    parts: dict[str, Part] = {"learner": learner, "history": history, "chance": Chance(rng), "games": games}
    snapshots = Snapshots(checkpoint, training, parts)
    for rollout in range(snapshots.restore(), rollouts):
        decided = _play(learner, games, history, rng)
        remaining = max(1 - rollout / annealed, 0)
        rate = options.final_rate + (1 - options.final_rate) * remaining
        batches = _minibatches(_processed(learner, decided, games.observations), options, rng)
        losses = [learner.update(batch, rate=rate, entropy=remaining) for batch in batches]
        loss, ended = check_loss(float(np.mean(losses))), good_enough is not None and good_enough()
        history.add_loss(loss)  # after the trial, which takes time too
        if ended or (enough is not None and history.share_won(_ENOUGH_POINTS) >= enough):
            break
        snapshots.save_if_due(rollout + 1, history.seconds[-1])
    return history


class _Decisions(NamedTuple):
    """Of one rollout, each ``[T, N, ...]``."""

    observations: NDArray[Any]
    actions: NDArray[np.int64]
    log_probs: Array
    values: Array
    playing: NDArray[np.bool_]
    rewards: Array
    going_on: NDArray[np.bool_]  # False where the decision ended its game


def _play(learner: BaseLearner, games: Games, history: History, rng: np.random.Generator) -> _Decisions:
    rows = []
    for _ in range(learner.options.rollout_steps):
        observations, playing = games.observations, games.playing
        logits, values = learner.infer(observations)
        actions = pong.sample_actions(logits, rng)
        log_probs = np.take_along_axis(log_softmax(logits, axis=-1), actions[:, None], axis=1)[:, 0]
        rewards = games.step(actions)
        rows.append((observations, actions, log_probs, values, playing, rewards, games.playing))
        history.add_rewards(rewards, games.playing)
    return _Decisions(*(np.stack(column) for column in zip(*rows)))


def _processed(learner: BaseLearner, decided: _Decisions, next_observations: NDArray[Any]) -> Minibatch:
    """Turn rewards into advantages and targets, and lay the games end to end."""
    options, rewards = learner.options, decided.rewards
    values = np.concatenate([decided.values, learner.infer(next_observations)[1][None]])
    values = values if options.baseline else np.zeros_like(values)
    # A game's last reward ends its last point, so a new game never lends its value to the one before.
    ends = rewards != 0 if options.reset_at_points else ~decided.going_on
    discounts = np.where(ends, 0, options.discount).astype(rewards.dtype)
    advantages, targets = learner.advantages(rewards, discounts, values)
    # The action of a game that starts anew had no effect.
    advantages = np.where(decided.playing, options.sign * advantages, 0)
    columns = *decided[:3], advantages, np.where(decided.playing, targets, decided.values)
    return Minibatch(*(column.reshape(-1, *column.shape[2:]) for column in columns))


def _minibatches(batch: Minibatch, options: Options, rng: np.random.Generator) -> Iterator[Minibatch]:
    """Shuffle the decisions in each epoch, and drop an incomplete last minibatch."""
    size = min(options.minibatch_size, count := len(batch.actions))
    for _ in range(options.epochs):
        for part in rng.permutation(count)[: count // size * size].reshape(-1, size):
            yield Minibatch(*(column[part] for column in batch))
