"""Gumbel MuZero's search against mctx's, and what halving and completed Q-values promise."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.special import softmax

from gradtricks.agents.muzero.deciding import GumbelOptions
from gradtricks.agents.muzero.gumbel import gumbel_muzero_policy, schedule_visits
from gradtricks.agents.muzero.network import SearchNetwork, draw_weights
from gradtricks.agents.muzero.trees import RootFnOutput

CASES = json.loads((Path(__file__).parents[1] / "data" / "mctx_trees.json").read_text())["gumbel"]


@pytest.mark.parametrize("case", CASES)
def test_trees_actions_and_policies_are_those_of_mctx(case):
    expected, model = case["tree"], {name: np.array(x) for name, x in case["model"].items()}

    def recurrent_fn(states, actions):
        following = model["next_state"][states, actions]
        prediction = model["value"][following], model["reward"][states, actions]
        return *prediction, model["prior_logits"][following], following

    states, noise = model["root"], SimpleNamespace(gumbel=lambda size: np.array(case["gumbel"]))
    root = RootFnOutput(model["prior_logits"][states], model["value"][states], states)
    output = gumbel_muzero_policy(
        root, recurrent_fn, noise, invalid_actions=model["invalid_actions"], **case["options"]
    )
    tree = output.search_tree
    np.testing.assert_array_equal(tree.children_visits[:, 0], expected["visit_counts"])
    for name in ("parents", "action_from_parent"):
        np.testing.assert_array_equal(getattr(tree, name)[:, 1:], np.array(expected[name])[:, 1:])
    np.testing.assert_allclose(tree.node_values[:, 0], expected["value"], atol=1e-10)
    np.testing.assert_array_equal(output.action, case["action"])
    np.testing.assert_allclose(output.action_weights, case["action_weights"], atol=1e-10)


@pytest.mark.parametrize(
    ("considered", "simulations", "expected"),
    [
        (1, 4, [0, 1, 2, 3]),
        (2, 5, [0, 0, 1, 1, 2]),
        (4, 8, [0, 0, 0, 0, 1, 1, 2, 2]),
        (8, 6, [0, 0, 0, 0, 0, 0]),
        (3, 8, [0, 0, 0, 1, 1, 2, 2, 3]),
    ],
)
def test_simulations_go_to_halves_of_the_considered(considered, simulations, expected):
    assert schedule_visits(considered, simulations).tolist() == expected


# A bandit: each action has its value, and the network knows nothing but it, and prefers the worst.
VALUES = np.array([0.1, 0.9, -0.4, 0.3])
LOGITS = np.array([0.0, -1.0, 2.0, 0.5])


def play_bandit(roots=2000, num_simulations=4, **options):
    nothing = np.zeros(roots)
    root = RootFnOutput(np.tile(LOGITS, (roots, 1)), nothing, np.zeros((roots, 1)))

    def recurrent_fn(states, actions):
        return nothing, VALUES[actions], np.zeros((roots, 4)), states

    rng = np.random.default_rng(0)
    return gumbel_muzero_policy(root, recurrent_fn, rng, num_simulations=num_simulations, **options)


@pytest.mark.parametrize("num_simulations", [1, 2, 3, 4])
def test_the_policy_improves_with_any_number_of_simulations(num_simulations):
    """The paper's claim: in expectation over the noise, the action is at least as good as the prior's."""
    output = play_bandit(num_simulations=num_simulations, considered_actions=num_simulations)
    prior, spread = softmax(LOGITS) @ VALUES, VALUES.std() / np.sqrt(len(output.action))
    assert VALUES[output.action].mean() > prior - 3 * spread
    assert (output.action_weights @ VALUES).mean() > prior - 1e-12
    if num_simulations > 1:
        assert VALUES[output.action].mean() > prior + 6 * spread


def test_without_noise_it_considers_the_likeliest():
    output = play_bandit(roots=3, num_simulations=2, considered_actions=2, gumbel_scale=0.0)
    assert output.search_tree.children_visits[:, 0].tolist() == [[0, 0, 1, 1]] * 3
    assert output.action.tolist() == [3] * 3


def test_what_is_not_valid_is_never_taken():
    invalid = np.tile([False, True, False, False], (2000, 1))
    output = play_bandit(num_simulations=9, invalid_actions=invalid)
    assert not output.search_tree.children_visits[:, 0, 1].any()
    assert not output.action_weights[:, 1].any()
    assert (output.action != 1).all()


def test_an_excluded_action_is_taken_last():
    root = RootFnOutput(np.array([[-np.inf, 0.0, 0.0]]), np.zeros(1), np.zeros((1, 1)))

    def recurrent_fn(states, actions):
        return np.zeros(1), np.zeros(1), np.zeros((1, 3)), states

    output = gumbel_muzero_policy(root, recurrent_fn, np.random.default_rng(0), num_simulations=2)
    assert output.search_tree.children_visits[0, 0].tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    ("name", "value"), [("num_simulations", 0), ("considered_actions", 0), ("gumbel_scale", -1.0)]
)
def test_options_out_of_range(name, value):
    with pytest.raises(ValueError, match=f"{name} must .*; got {value!r}"):
        play_bandit(**{name: value})


def test_a_network_that_is_not_finite():
    root = RootFnOutput(np.full((2, 3), np.nan), np.zeros(2), np.zeros((2, 1)))
    nothing = lambda states, actions: (np.zeros(2), np.zeros(2), np.zeros((2, 3)), states)  # noqa: E731
    with pytest.raises(ValueError, match="must be finite; got NaN or infinity from the network"):
        gumbel_muzero_policy(root, nothing, np.random.default_rng(0), num_simulations=3)


def test_an_agent_chooses_with_noise_in_training_only():
    network, seen = SearchNetwork(draw_weights(1)), np.random.default_rng(2).normal(size=(200, 4))
    options = GumbelOptions(num_simulations=4, considered_actions=2)

    def choose(seed, **more):
        return options.choose(network, seen, np.random.default_rng(seed), **more).action.tolist()

    assert choose(0) == choose(1)
    assert choose(0, noise=True) != choose(1, noise=True)
    with pytest.raises(ValueError, match=r"considered_actions must .*; got 0"):
        GumbelOptions(considered_actions=0)
