"""A random search for four weights that play CartPole: what a game that easy asks of a learner."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradtricks._core.checks import check_integer, check_number
from gradtricks.agents.muzero.cartpole import OBSERVATION_SIZE, CartPoleGames
from gradtricks.agents.muzero.selfplay import play_out

Array = NDArray[np.floating]


class LinearSearch(NamedTuple):
    """What a random search came to.

    Attributes:
        weights: ``[4]``, those that passed the trial.
        draws: How many were drawn until then.
        games: How many games they played, those of the trial too.
        decisions: How many decisions that took.
    """

    weights: Array
    draws: int
    games: int
    decisions: int


def play_linearly(weights: Array, games: CartPoleGames) -> Array:
    """Push right where the weighted sum ``[4]`` of an observation is positive; return the returns ``[N]``."""
    return play_out(lambda seen: (seen @ weights > 0).astype(np.int64), games)


def search_linear_policy(seed: int = 0, *, trial_games: int = 50, passes_at: float = 495.0) -> LinearSearch:
    """Draw weights from a normal distribution until some pass a trial.

    A candidate plays one game first, and only who gets as far as the trial asks for plays the rest.

    Args:
        seed: Of the weights and of the games.
        trial_games: How many games a trial has.
        passes_at: Mean return of these games that ends the search, 500 at most.
    """
    rng = np.random.default_rng(check_integer("seed", seed, low=0))
    trial_games = check_integer("trial_games", trial_games, low=1)
    passes_at = check_number("passes_at", passes_at, low=0, high=500)
    draws = games = decisions = 0
    passed = False
    while not passed:
        draws, weights = draws + 1, rng.normal(size=OBSERVATION_SIZE)
        for count in (1, trial_games):
            returns = play_linearly(weights, CartPoleGames(count, seed=int(rng.integers(2**31))))
            games, decisions = games + count, decisions + int(returns.sum())  # a point for each decision
            if not (passed := bool(returns.mean() >= passes_at)):
                break
    return LinearSearch(weights, draws, games, decisions)
