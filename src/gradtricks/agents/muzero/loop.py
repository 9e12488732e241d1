"""MuZero's training: self-play and learning in turns, without a framework."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gradtricks._core.checks import check_integer, check_number, check_shape
from gradtricks.agents.muzero.deciding import Search, SearchOptions
from gradtricks.agents.muzero.network import BaseLearner, SearchNetwork
from gradtricks.agents.muzero.replay import ReplayBuffer
from gradtricks.agents.muzero.selfplay import Games, SelfPlay
from gradtricks.agents.muzero.supports import CARTPOLE_SUPPORT, Support
from gradtricks.agents.training import Chance, Part, Snapshots, check_loss
from gradtricks.agents.training import History as History  # what a training returns, and what it raises
from gradtricks.agents.training import NotFiniteError as NotFiniteError


@dataclass(frozen=True)
class Options:
    """How the agent plays and learns; the learner has the scales of the gradients.

    A *move* is one step in every game.

    Attributes:
        search: How moves are chosen.
        num_unroll_steps: K.
        batch_size: Trajectories per update.
        updates_per_move: Updates after each move.
        moves_before_updates: Moves that are made before the first update.
        moves_between_copies: Moves until the search gets the weights that were learned meanwhile.
        moves_between_trials: Moves until the agent is tried again, where somebody asks for that; see `train`.
        learning_rate: In the beginning; it falls linearly.
        final_learning_rate: At the end, as a share of that.
        temperature: Of the choice of actions in the beginning; it changes linearly.
        final_temperature: At the end.
        td_steps: Rewards in a value target before the search's value stands for the rest; None is all.
        capacity: Steps to remember.
        piece_steps: Longest piece of a game that is remembered at once.
    """

    search: Search = field(default_factory=SearchOptions)
    num_unroll_steps: int = 5
    batch_size: int = 128
    updates_per_move: int = 2
    moves_before_updates: int = 30
    moves_between_copies: int = 4
    moves_between_trials: int = 100
    learning_rate: float = 2e-3
    final_learning_rate: float = 0.02
    temperature: float = 1.0
    final_temperature: float = 1.0
    td_steps: int | None = 50
    capacity: int = 8000
    piece_steps: int = 128

    def __post_init__(self) -> None:
        """Refuse what can't be."""
        for name in _COUNTS if self.td_steps is None else (*_COUNTS, "td_steps"):
            check_integer(name, getattr(self, name), low=1)
        check_integer("capacity", self.capacity, low=self.piece_steps)
        for name in ("learning_rate", "final_learning_rate", "temperature", "final_temperature"):
            check_number(name, getattr(self, name), low=0)


_COUNTS = (
    *("num_unroll_steps", "batch_size", "updates_per_move", "moves_before_updates", "moves_between_copies"),
    *("moves_between_trials", "capacity", "piece_steps"),
)


def train(
    learner: BaseLearner,
    games: Games,
    options: Options | None = None,
    *,
    decisions: int,
    seed: int = 0,
    support: Support = CARTPOLE_SUPPORT,
    measurements: int = 0,
    checkpoint: Path | None = None,
    history: History | None = None,
    good_enough: Callable[[SearchNetwork], bool] | None = None,
) -> History:
    """Play and learn in turns, for a number of decisions or until the agent is good enough.

    Args:
        learner: The agent; it changes.
        games: Where it plays, from their beginning.
        options: How.
        decisions: How many decisions to make at most, over all games; whole moves, and enough for an update.
        seed: Of the noise, the choice of actions, and of what is learned from.
        support: The categories of the learner's values and rewards.
        measurements: How often to measure the gradients' norms, spread over the training.
        checkpoint: A file to go on from if it is there, and to save to now and then.
        history: A new one, for those who want to know what happened before a training diverged.
        good_enough: Asked every ``options.moves_between_trials`` moves; True ends the training. An agent that
            plays well with noise may play badly without, so what counts is to be tried as it counts.

    Raises:
        ValueError: ``decisions`` are too few for an update, or the learner or the checkpoint doesn't fit.
        NotFiniteError: The training diverges.
    """
    options = options or Options()
    num_envs = len(games.playing)
    moves = _count_moves(decisions, num_envs, options.moves_before_updates)
    # Not `default_rng(seed)`, from which `draw_weights` takes the weights of that seed.
    rng = np.random.default_rng((check_integer("seed", seed, low=0), 1))
    history = History() if history is None else history
    replay = ReplayBuffer(
        options.capacity,
        discount=options.search.discount,
        td_steps=options.td_steps,
        two_players=games.two_players,
        support=support,
    )
    play = SelfPlay(games, replay, options.search, piece_steps=options.piece_steps, rng=rng)
    found, sizes = (learner.observation_size, learner.actions), (games.observations.shape[-1], games.actions)
    check_shape("learner", found, sizes, "the games' observations and actions")
    count = check_integer("measurements", measurements, low=0)
    measured = set(np.linspace(options.moves_before_updates, moves - 1, count).astype(int).tolist())
    parts: dict[str, Part] = {"learner": learner, "games": games, "play": play, "replay": replay}
    training = {**asdict(options), "moves": moves, "num_envs": num_envs, "seed": seed}
    training |= {"support": list(support), "measurements": measurements, "learner": _describe(learner)}
    snapshots = Snapshots(checkpoint, training, {**parts, "history": history, "chance": Chance(rng)})
    network = None
    for move in range(snapshots.restore(), moves):
        if network is None or move % options.moves_between_copies == 0:
            network = SearchNetwork(learner.copy_weights(), support)
        done = move / moves
        temperature = options.temperature + done * (options.final_temperature - options.temperature)
        history.add_decisions(num_envs, play.move(network, temperature))
        if move < options.moves_before_updates or not len(replay):
            continue
        loss, ended = _learn(learner, replay, options, done, rng), False
        if good_enough is not None and (move + 1) % options.moves_between_trials == 0:
            ended = good_enough(SearchNetwork(learner.copy_weights(), support))
        history.add_loss(loss)  # after the trial, which takes time too
        if move in measured:
            # Random numbers of its own, so that who measures trains the same.
            chance = np.random.default_rng((seed, 2, move))
            batch = replay.sample(options.batch_size, options.num_unroll_steps, chance)
            history.add_norms(learner.gradient_norms(batch, **learner.scales._asdict()))
        if ended:
            break
        # The search has its weights anew after the next move, so none need to be saved for it.
        if (move + 1) % options.moves_between_copies == 0:
            snapshots.save_if_due(move + 1, history.seconds[-1])
    if not history.losses:
        raise ValueError(
            f"a game must end or last for {options.piece_steps} moves, the piece_steps, before there is "
            f"something to learn from; got none that did in {moves} moves; remedy: more decisions"
        )
    return history


def _count_moves(decisions: int, num_envs: int, moves_before_updates: int) -> int:
    moves, fewest = check_integer("decisions", decisions, low=1) // num_envs, moves_before_updates + 1
    if moves < fewest:
        raise ValueError(
            f"decisions must be at least {fewest * num_envs}, {fewest} moves in {num_envs} games, since the "
            f"first {moves_before_updates} teach nothing; got {decisions}; remedy: more decisions"
        )
    return moves


def _learn(
    learner: BaseLearner, replay: ReplayBuffer, options: Options, done: float, rng: np.random.Generator
) -> float:
    learning_rate = options.learning_rate * (1 - done * (1 - options.final_learning_rate))
    losses = []
    for _ in range(options.updates_per_move):
        batch = replay.sample(options.batch_size, options.num_unroll_steps, rng)
        losses.append(learner.update(batch, learning_rate=learning_rate))
    return check_loss(float(np.mean(losses)))


def _describe(learner: BaseLearner) -> dict[str, Any]:
    """Say what makes two learners' trainings the same."""
    settings = {name: getattr(learner, name) for name in ("optimizer", "momentum", "weight_decay")}
    return {"module": type(learner).__module__, **settings, **learner.scales._asdict()}
