"""The random search beside the agents on CartPole."""

import numpy as np
import pytest

from gradtricks.agents.muzero.cartpole import CartPoleGames
from gradtricks.agents.muzero.linear import play_linearly, search_linear_policy


def test_a_search_finds_weights_that_solve_the_game():
    found = search_linear_policy(1, trial_games=5)
    assert play_linearly(found.weights, CartPoleGames(20, seed=99)).mean() >= 475
    assert (found.games - found.draws) % 5 == 0  # one for each, and some trials
    assert 500 * found.games >= found.decisions >= 6 * 495


def test_the_same_seed_finds_the_same_weights():
    one, same, other = (search_linear_policy(seed, trial_games=2, passes_at=20) for seed in (3, 3, 4))
    np.testing.assert_array_equal(one.weights, same.weights)
    assert one.weights.tolist() != other.weights.tolist()


def test_weights_of_zero_push_left():
    games, expected = CartPoleGames(3, seed=5), np.zeros(3)
    returns = play_linearly(np.zeros(4), CartPoleGames(3, seed=5))
    going_on = np.ones(3, bool)
    while going_on.any():
        expected += games.step(np.zeros(3, np.int64)) * going_on
        going_on &= games.playing
    np.testing.assert_array_equal(returns, expected)


@pytest.mark.parametrize(("name", "value"), [("seed", -1), ("trial_games", 0), ("passes_at", 501.0)])
def test_options_out_of_range(name, value):
    with pytest.raises(ValueError, match=rf"{name} must .*; got {value!r}"):
        search_linear_policy(**{name: value})
