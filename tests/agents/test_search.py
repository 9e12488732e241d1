"""The batched tree search against one that follows the pseudocode node by node, and against mctx."""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gradtricks.agents.muzero.searching import muzero_policy, search
from gradtricks.agents.muzero.trees import RootFnOutput

MCTX = json.loads((Path(__file__).parents[1] / "data" / "mctx_trees.json").read_text())


def scramble(state, salt):
    """Return a number within [-1, 1) that looks random; state and salt are integers."""
    x = (state * 0x9E3779B97F4A7C15 + salt * 0xD1B54A32D192ED03 + 0x632BE59BD9B4E019) % 2**64
    for _ in range(2):
        x = ((x ^ (x >> 31)) * 0xBF58476D1CE4E5B9) % 2**64
    return (x >> 11) / 2**52 - 1


class HashModel:
    """A network whose outputs are hashes of the path that led to a state."""

    def __init__(self, actions, reward_size=0.3):
        self.actions, self.reward_size = actions, reward_size

    def predict(self, state):
        return scramble(state, 0), [2 * scramble(state, 2 + a) for a in range(self.actions)]

    def step(self, state, action):
        next_state = (state * 31 + action + 7) * 0x9E3779B1 % 2**61
        value, logits = self.predict(next_state)
        return value, self.reward_size * scramble(state, 100 + action), logits, next_state

    def root(self, states):
        values, logits = zip(*map(self.predict, states))
        return RootFnOutput(np.array(logits), np.array(values), np.array(states, np.int64))

    def __call__(self, states, actions):
        return tuple(map(np.array, zip(*map(self.step, states.tolist(), actions.tolist()))))


class Node:
    def __init__(self, prior):
        self.prior, self.visit_count, self.value_sum, self.reward = prior, 0, 0.0, 0.0
        self.children, self.state = {}, None

    def value(self):
        return self.value_sum / self.visit_count if self.visit_count else 0.0

    def expand(self, state, reward, logits, valid):
        self.state, self.reward = state, reward
        weights = {a: math.exp(logits[a]) for a in valid}
        self.children = {a: Node(weight / sum(weights.values())) for a, weight in weights.items()}


class OneByOne:
    """The pseudocode's run_mcts, with recursion instead of a search path; options as for `search`."""

    def __init__(
        self,
        model,
        discount=0.997,
        two_players=False,
        qtransform="by_min_max",
        min_value=None,
        max_value=None,
        pb_c_init=1.25,
        pb_c_base=19652,
    ):
        self.model, self.discount = model, -discount if two_players else discount
        self.pb_c_init, self.pb_c_base, self.qtransform = pb_c_init, pb_c_base, qtransform
        self.minimum = math.inf if min_value is None else min_value
        self.maximum = -math.inf if max_value is None else max_value

    def run(self, state, num_simulations, valid):
        root = Node(1.0)
        value, logits = self.model.predict(state)
        root.expand(state, 0.0, logits, valid)
        root.visit_count, root.value_sum = 1, value
        for _ in range(num_simulations):
            self.simulate(root)
        return root

    def qvalue(self, child):
        return child.reward + self.discount * child.value() if child.visit_count else 0.0

    def simulate(self, node):
        """Return the value that the simulation found, as the node's player sees it."""
        action = max(node.children, key=lambda a: (self.score(node, node.children[a]), -a))
        child = node.children[action]
        if child.children:
            value = self.simulate(child)
        else:
            value, reward, logits, state = self.model.step(node.state, action)
            child.expand(state, reward, logits, range(len(logits)))
            child.value_sum, child.visit_count = value, 1
        self.minimum = min(self.minimum, self.qvalue(child))
        self.maximum = max(self.maximum, self.qvalue(child))
        value = child.reward + self.discount * value
        node.value_sum += value
        node.visit_count += 1
        return value

    def score(self, parent, child):
        weight = math.log((parent.visit_count + self.pb_c_base + 1) / self.pb_c_base) + self.pb_c_init
        score = weight * math.sqrt(parent.visit_count) / (child.visit_count + 1) * child.prior
        low, high = self.minimum, self.maximum
        if self.qtransform == "by_parent_and_siblings":
            known = [self.qvalue(c) for c in parent.children.values() if c.visit_count]
            low, high = min([*known, parent.value()]), max([*known, parent.value()])
        if child.visit_count and high > low:
            score += (self.qvalue(child) - low) / (high - low)
        return score


def compare(model, states, num_simulations, invalid=None, **options):
    """Search all states together and one by one, and compare the roots."""
    given = {"num_simulations": num_simulations, "invalid_actions": invalid}
    tree = search(model.root(states), model, **given, **options)
    for b, state in enumerate(states):
        valid = [a for a in range(model.actions) if invalid is None or not invalid[b][a]]
        one = OneByOne(model, **options)
        root = one.run(state, num_simulations, valid)
        children = [root.children.get(a, Node(0.0)) for a in range(model.actions)]
        assert tree.children_visits[b, 0].tolist() == [child.visit_count for child in children]
        found = [tree.node_values[b, 0], *tree.qvalues[b, 0]]
        np.testing.assert_allclose(found, [root.value(), *map(one.qvalue, children)], rtol=0, atol=1e-9)


class TestAgainstOneByOne:
    @pytest.mark.parametrize("two_players", [False, True])
    @pytest.mark.parametrize(("actions", "num_simulations"), [(1, 2), (2, 33), (3, 1), (9, 120)])
    def test_sizes(self, actions, num_simulations, two_players):
        states = [scale * 1000 + num_simulations for scale in range(6)]
        compare(HashModel(actions), states, num_simulations, two_players=two_players)

    @pytest.mark.parametrize("seed", range(30))
    def test_options(self, seed):
        rng = np.random.default_rng(seed)
        actions, roots = int(rng.integers(2, 7)), int(rng.integers(1, 9))
        invalid = rng.random((roots, actions)) < 0.4
        invalid[np.arange(roots), rng.integers(0, actions, roots)] = False
        low, high = [(None, None), (-1.0, 1.0), (None, 3.0), (-0.1, None)][seed % 4]
        compare(
            HashModel(actions, reward_size=float(rng.choice([0.0, 1.0, 20.0]))),
            rng.integers(0, 2**40, roots).tolist(),
            int(rng.integers(1, 80)),
            invalid if seed % 3 else None,
            discount=float(rng.choice([0.5, 0.997, 1.0])),
            two_players=bool(seed % 2),
            qtransform=str(rng.choice(["by_min_max", "by_parent_and_siblings"])),
            min_value=low,
            max_value=high,
            pb_c_init=float(rng.choice([0.5, 1.25])),
            pb_c_base=float(rng.choice([10, 19652])),
        )


class TestAgainstMctx:
    @pytest.mark.parametrize("case", MCTX["generated"])
    def test_generated_trees(self, case):
        expected, model = case["tree"], {name: np.array(x) for name, x in case["model"].items()}

        def recurrent_fn(states, actions):
            following = model["next_state"][states, actions]
            prediction = model["value"][following], model["reward"][states, actions]
            return *prediction, model["prior_logits"][following], following

        states = model["root"]
        root = RootFnOutput(model["prior_logits"][states], model["value"][states], states)
        tree = search(root, recurrent_fn, invalid_actions=model["invalid_actions"], **case["options"])
        np.testing.assert_array_equal(tree.children_visits[:, 0], expected["visit_counts"])
        for name in ("parents", "action_from_parent"):
            np.testing.assert_array_equal(getattr(tree, name)[:, 1:], np.array(expected[name])[:, 1:])
        np.testing.assert_allclose(tree.node_values[:, 0], expected["value"], atol=1e-10)
        np.testing.assert_allclose(tree.qvalues[:, 0], expected["qvalues"], atol=1e-10)

    def test_published_tree(self):
        """mctx's own test data, where it searched in float32; the fixture names source and licence."""
        nodes, options = MCTX["published"]["nodes"], MCTX["published"]["options"]
        columns = {key: np.array([node[key] for node in nodes]) for key in nodes[0]}
        children = {(node["parent"], node["action"]): i for i, node in enumerate(nodes) if i > 0}
        values, logits = columns["raw_value"], np.log(columns["prior_probs"])

        def recurrent_fn(states, actions):
            following = np.array([children[states[0], actions[0]]])
            return values[following], columns["reward"][following], logits[following], following

        root = RootFnOutput(logits[:1], values[:1], np.zeros(1, np.int64))
        tree = search(root, recurrent_fn, num_simulations=len(nodes) - 1, **options)
        np.testing.assert_array_equal(tree.node_visits[0], columns["visits"])
        np.testing.assert_array_equal(tree.parents[0, 1:], columns["parent"][1:])
        np.testing.assert_allclose(tree.node_values[0], columns["value"], atol=1e-5)


def test_the_network_is_called_once_for_each_simulation():
    model, calls = HashModel(3), []

    def recurrent_fn(states, actions):
        calls.append(len(states))
        return model(states, actions)

    search(model.root([1, 2, 3, 4]), recurrent_fn, num_simulations=9)
    assert calls == [4] * 9


def unmoved(logits):
    """Return roots with these logits, and a network that expects nothing of any step."""
    nothing = np.zeros(len(logits))
    root = RootFnOutput(np.array(logits, float), nothing, np.zeros((len(logits), 5)))
    return root, lambda states, actions: (nothing, nothing, np.zeros(root.prior_logits.shape), states)


class TestPolicy:
    def run(self, seed=0, **options):
        model = HashModel(4)
        options = {"num_simulations": 20, **options}
        return muzero_policy(model.root(range(50)), model, np.random.default_rng(seed), **options)

    def test_same_seed_same_actions(self):
        one, same, other = self.run(1), self.run(1), self.run(2)
        np.testing.assert_array_equal(one.action, same.action)
        np.testing.assert_array_equal(one.action_weights, same.action_weights)
        assert (one.action_weights != other.action_weights).any()

    @pytest.mark.parametrize("temperature", [0, 1e-308])
    def test_without_chance_it_takes_the_most_visited(self, temperature):
        model = HashModel(4)
        tree = search(model.root(range(50)), model, num_simulations=20)
        output = self.run(temperature=temperature, dirichlet_fraction=0.0)
        np.testing.assert_array_equal(output.action_weights, tree.children_visits[:, 0] / 20)
        best = output.action_weights.max(-1)
        np.testing.assert_array_equal(output.action_weights[np.arange(50), output.action], best)

    @pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
    def test_draws_by_powers_of_the_visits(self, temperature):
        roots = 20_000
        options = {"num_simulations": 12, "temperature": temperature, "dirichlet_fraction": 0.0}
        network = unmoved([[0.0, 1.0, -1.0]] * roots)
        output = muzero_policy(*network, np.random.default_rng(0), **options)
        expected = output.action_weights[0] ** (1 / temperature)
        expected /= expected.sum()
        frequencies = np.bincount(output.action, minlength=3) / roots
        np.testing.assert_allclose(frequencies, expected, atol=4 * 0.5 / math.sqrt(roots))

    def test_noise_is_a_dirichlet_variate_among_valid_actions(self):
        roots, alpha, fraction = 20_000, 0.3, 0.25
        output = muzero_policy(
            *unmoved(np.log([[0.4, 0.2, 0.2, 0.2]] * roots)),
            np.random.default_rng(0),
            num_simulations=1,
            invalid_actions=[[False, False, True, False]] * roots,
            dirichlet_alpha=alpha,
            dirichlet_fraction=fraction,
        )
        probs = output.search_tree.children_prior_probs[:, 0]
        np.testing.assert_allclose(probs.sum(-1), 1)
        assert not probs[:, 2].any()
        noise = (probs[:, [0, 1, 3]] - (1 - fraction) * np.array([0.5, 0.25, 0.25])) / fraction
        assert noise.min() > -1e-12
        np.testing.assert_allclose(noise.mean(0), 1 / 3, atol=0.01)
        np.testing.assert_allclose(noise.var(0), (1 / 3) * (2 / 3) / (3 * alpha + 1), atol=0.005)


ROOT, NETWORK = unmoved(np.zeros((2, 3)))


WRONG = {"num_simulations": 0, "discount": 1.1, "qtransform": "by_rank", "temperature": -1.0}
WRONG |= {"pb_c_init": -1.0, "pb_c_base": 0.0, "min_value": math.nan, "max_value": math.inf}
WRONG |= {"dirichlet_fraction": 1.5, "dirichlet_alpha": 0.0}


class TestErrors:
    @pytest.mark.parametrize(("name", "value"), WRONG.items())
    def test_options(self, name, value):
        options = {"num_simulations": 4, name: value}
        with pytest.raises(ValueError, match=f"{name} must .*; got {value!r}"):
            muzero_policy(ROOT, NETWORK, np.random.default_rng(0), **options)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"min_value": 1.0, "max_value": 1.0}, "min_value must be less than max_value; got 1.0 and 1.0"),
            ({"invalid_actions": np.zeros((2, 4))}, "invalid_actions must have the shape of prior_logits"),
            ({"invalid_actions": [[1, 1, 1], [0, 0, 1]]}, r"got none for roots \[0\]: leave finished games"),
        ],
    )
    def test_bounds_and_invalid_actions(self, options, message):
        with pytest.raises(ValueError, match=message):
            search(ROOT, NETWORK, num_simulations=4, **options)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"prior_logits": np.zeros(3)}, r"prior_logits must have the shape of \[B, A\]"),
            ({"value": np.zeros((2, 1))}, r"value must have the shape of \[B\]"),
            ({"embedding": np.zeros((3, 5))}, r"embedding must have the shape of \[B, ...\]"),
        ],
    )
    def test_root(self, changes, message):
        with pytest.raises(ValueError, match=message):
            search(ROOT._replace(**changes), NETWORK, num_simulations=4)

    @pytest.mark.parametrize(
        ("index", "wrong", "message"),
        [
            (0, np.zeros((2, 1)), "recurrent_fn's value must have the shape of the root's"),
            (1, np.zeros(3), "recurrent_fn's reward must have the shape of the root's"),
            (2, np.zeros((2, 2)), "recurrent_fn's prior_logits must have the shape of the root's"),
            (3, np.zeros((2, 4)), "recurrent_fn's embedding must have the shape of the root's"),
            *(
                (index, np.full(shape, bad), "must be finite; got NaN or infinity from the network")
                for index, shape in enumerate([2, 2, (2, 3)])
                for bad in (np.nan, np.inf)
            ),
        ],
    )
    def test_network(self, index, wrong, message):
        def recurrent_fn(states, actions):
            output = list(NETWORK(states, actions))
            output[index] = wrong
            return output

        with np.errstate(invalid="ignore"), pytest.raises(ValueError, match=message):
            search(ROOT, recurrent_fn, num_simulations=9)


def test_the_compiler_is_imported_at_first_use():
    code = "import sys, gradtricks.agents.muzero.searching; print('numba' in sys.modules)"
    finished = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert finished.stdout.strip() == "False"
