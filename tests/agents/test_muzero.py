"""The MuZero learner on real CartPole episodes, against the pseudocode's one-by-one definitions."""

import itertools

import numpy as np
import pytest

from gradtricks.agents.muzero.cartpole import collect_episodes
from gradtricks.agents.muzero.network import HEADS, SearchNetwork, draw_weights
from gradtricks.agents.muzero.replay import Batch, ReplayBuffer
from gradtricks.agents.muzero.supports import Support, expected_value
from gradtricks.reference import masked_adam_step

THREE = Support(-1, 1, 3)  # categories: lost, drawn, won
DISCOUNT = 0.9
EPISODES = collect_episodes(24, seed=3)
LENGTHS = np.array([len(episode.actions) for episode in EPISODES])
STARTS = LENGTHS.cumsum() - LENGTHS  # where the episodes stand in the replay
REPLAY = ReplayBuffer(LENGTHS.sum(), discount=DISCOUNT)
for _episode in EPISODES:
    REPLAY.add(_episode)
WEIGHTS = draw_weights(5, state_size=6, hidden_size=8)
WEIGHTS_64 = {name: value.astype(np.float64) for name, value in WEIGHTS.items()}


def sample(steps=4, size=6, seed=0):
    return REPLAY.sample(size, steps, np.random.default_rng(seed))


def as_float64(batch):
    return Batch(*(np.asarray(x, np.int64 if i == 1 else np.float64) for i, x in enumerate(batch)))


class TestEpisodes:
    def test_policies_are_the_probabilities_of_the_actions(self):
        policy = np.concatenate([episode.policies for episode in EPISODES])
        action = np.concatenate([episode.actions for episode in EPISODES])
        np.testing.assert_allclose(policy.sum(-1), 1)
        assert abs(policy[:, 1].mean() - action.mean()) < 4 * 0.5 / np.sqrt(len(action))

    def test_leaves_out_episodes_that_reach_the_time_limit(self):
        kept = collect_episodes(12, seed=0, exploration=0.1)
        assert 0 < len(kept) < 12
        assert max(len(episode.actions) for episode in kept) < 500

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"count": 0}, "count must be at least 1"),
            ({"exploration": 1.5}, "exploration must lie in"),
            ({"count": 1, "exploration": 0.0}, "no pole fell within 500 steps"),
        ],
    )
    def test_refuses(self, options, message):
        with pytest.raises(ValueError, match=message):
            collect_episodes(**options)


class TestTargets:
    def test_shorten_keeps_roots(self):
        long, short = sample(steps=4), sample(steps=4).shorten(2)
        assert [len(x) for x in short] == [6, 2, 3, 2, 3]
        np.testing.assert_array_equal(short.target_value, long.target_value[:3])

    @pytest.mark.parametrize("steps", [0, 5])
    def test_shorten_refuses(self, steps):
        with pytest.raises(ValueError, match=r"num_unroll_steps must lie in \[1, 4\]"):
            sample(steps=4).shorten(steps)


@pytest.fixture
def learner(agents):
    """In float64."""
    return agents.MuZeroLearner(WEIGHTS_64, device="cpu")


def one_by_one(backend, learner, batch, hidden_scale, loss_scale):
    """Loss and gradients of the pseudocode's update, with its own formula for scales."""
    stop, make, log_softmax = backend.stop, backend.tensor, backend.operator("log_softmax")

    def scale(x, factor):
        return x * factor + stop(x) * (1 - factor)

    def cross_entropy(logits, target):
        [element] = make(target)[None] @ -log_softmax(logits, -1)[0][:, None]
        return element[0]

    def mean_loss():
        total = 0.0
        for b in range(len(batch.observation)):
            value, policy, state = learner.initial_inference(make(batch.observation[b : b + 1]))
            predictions = [(1.0, value, None, policy)]
            for action in batch.actions[:, b]:
                value, reward, policy, state = learner.recurrent_inference(state, make([action]))
                predictions.append((loss_scale, value, reward, policy))
                state = scale(state, hidden_scale)
            for k, (factor, value, reward, policy) in enumerate(predictions):
                loss = cross_entropy(value, batch.target_value[k, b])
                loss = loss + cross_entropy(policy, batch.target_policy[k, b])
                if k > 0:
                    loss = loss + cross_entropy(reward, batch.target_reward[k - 1, b])
                total = total + scale(loss, factor)
        return total / len(batch.observation)

    return backend.loss_and_gradients(mean_loss, list(learner.weights.values()))


class TestGradients:
    @pytest.mark.parametrize(("hidden_scale", "loss_scale"), [(0.5, None), (0.3, 0.7), (1.0, 1.0)])
    def test_batched_equals_one_by_one(self, backend, learner, hidden_scale, loss_scale):
        near_the_end = REPLAY.window(STARTS + LENGTHS - 2, 3, np.random.default_rng(0))
        batch, factor = as_float64(near_the_end), 1 / 3 if loss_scale is None else loss_scale
        loss, expected = one_by_one(backend, learner, batch, hidden_scale, factor)
        batched, _ = learner.gradients(batch, hidden_scale=hidden_scale, loss_scale=loss_scale)
        assert learner.loss(batch) == pytest.approx(loss, rel=1e-12)
        assert list(batched) == list(WEIGHTS)
        for gradient, reference in zip(batched.values(), expected, strict=True):
            np.testing.assert_allclose(gradient, reference, rtol=1e-9, atol=1e-12)

    def test_each_loss_reaches_each_state_with_the_closed_form_weight(self, learner):
        batch, h, loss_scale = as_float64(sample()), 0.3, 0.7
        for k, only in enumerate(np.eye(5)):
            _, full = learner.gradients(batch, hidden_scale=1.0, loss_scale=1.0, step_scales=only)
            _, scaled = learner.gradients(batch, hidden_scale=h, loss_scale=loss_scale, step_scales=only)
            for j in range(5):
                weight = (loss_scale if k else 1.0) * h ** max(k - max(j, 1), 0)
                np.testing.assert_allclose(scaled[j], weight * full[j], rtol=1e-10, atol=1e-15)
                assert full[j].any() == (j <= k)

    def test_head_scale_is_a_hook_on_the_state(self, learner):
        # A hook halves all that leaves s_k towards s_(k-1), so loss k arrives at s_j with one more half.
        batch, only = as_float64(sample(steps=1)), {"step_scales": [0.0, 1.0], "loss_scale": 1.0}
        batch = batch._replace(target_reward=np.zeros_like(batch.target_reward))
        _, paper = learner.gradients(batch, **only)
        _, hooked = learner.gradients(batch, head_scale=0.5, **only)
        np.testing.assert_allclose(hooked, 0.5 * paper, rtol=1e-12)

    def test_norms_are_those_of_the_gradients(self, learner):
        batch = as_float64(sample())
        gradients, states = learner.gradients(batch)
        norms = learner.gradient_norms(batch)
        assert states.shape == (5, 6, 6)
        dynamics = [g.ravel() for name, g in gradients.items() if name.startswith("dynamics")]
        assert norms["dynamics"] == pytest.approx(np.linalg.norm(np.concatenate(dynamics)), rel=1e-6)
        expected = [np.mean([np.linalg.norm(6 * g) for g in state]) for state in states]
        np.testing.assert_allclose(norms["states"], expected, rtol=1e-6)


class TestUpdate:
    @pytest.mark.parametrize(("optimizer", "other_rate"), [("momentum", None), ("adam", 0.02)])
    def test_is_the_optimizers_step_down_the_scaled_gradients(self, agents, learner, optimizer, other_rate):
        scales = {"hidden_scale": 0.3, "loss_scale": 0.7, "head_scale": 0.5, "scale_root_loss": True}
        options = {"learning_rate": 0.1, "momentum": 0.8, "weight_decay": 0.01, "device": "cpu"}
        scaled = agents.MuZeroLearner(WEIGHTS_64, optimizer=optimizer, **options, **scales)
        expected, m, v = dict(WEIGHTS_64), dict.fromkeys(WEIGHTS_64, 0.0), dict.fromkeys(WEIGHTS_64, 0.0)
        losses, rate = [], other_rate or 0.1
        for step in range(3):
            batch = as_float64(sample(seed=step))
            gradients, _ = scaled.gradients(batch, **scales)
            for name, weight in expected.items():
                gradient = gradients[name] + 0.01 * weight
                if optimizer == "momentum":
                    m[name] = 0.8 * m[name] + gradient
                    expected[name] = weight - rate * m[name]
                else:
                    moments, how = (m[name], v[name], np.array(step)), {"learning_rate": rate, "beta_1": 0.8}
                    after = masked_adam_step(weight, gradient, *moments, np.array(True), **how)
                    expected[name], m[name], v[name] = after[:3]
            losses.append(scaled.update(batch, learning_rate=other_rate))
        assert losses[0] == pytest.approx(learner.loss(as_float64(sample())), rel=1e-12)
        for name, value in scaled.copy_weights().items():
            # Keras has its rates and the corrections of Adam's moments in 32 bits.
            np.testing.assert_allclose(value, expected[name], rtol=1e-6, atol=1e-6)

    def test_lowers_the_loss(self, agents):
        given = {name: value.copy() for name, value in WEIGHTS.items()}
        learner = agents.MuZeroLearner(given, device="cpu")
        unseen = sample(size=64, seed=1)
        before = learner.loss(unseen)
        for seed in range(60):
            learner.update(sample(size=32, seed=seed))
        assert learner.loss(unseen) < 0.6 * before
        for name, value in given.items():
            np.testing.assert_array_equal(value, WEIGHTS[name])


class TestSearchNetwork:
    def test_equals_the_learners(self, backend, learner):
        network, actions = SearchNetwork(WEIGHTS_64), np.array([0, 1, 1, 0, 1, 0])
        observations = sample().observation.astype(np.float64)
        value, logits, state = map(backend.array, learner.initial_inference(backend.tensor(observations)))
        root = network.look(observations)
        expected = [logits, expected_value(value), state]
        for found, wanted in zip(root, expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-10)
        step = learner.recurrent_inference(backend.tensor(state), backend.tensor(actions))
        value, reward, logits, state = map(backend.array, step)
        expected = [expected_value(value), expected_value(reward), logits, state]
        for found, wanted in zip(network.imagine(root.embedding, actions), expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-10)

    def test_heads_can_begin_small(self):
        small, usual = draw_weights(3, head_size=0.1), draw_weights(3)
        for name, value in usual.items():
            size = 0.1 if name.rpartition("/")[0] in HEADS else 1.0
            np.testing.assert_allclose(small[name], size * value, rtol=1e-6)

    def test_the_heads_have_the_size_of_the_support(self):
        with pytest.raises(ValueError, match="prediction/value/bias must have the shape of the support"):
            SearchNetwork(WEIGHTS, THREE)


WRONG = {"hidden_scale": np.nan, "loss_scale": np.inf, "learning_rate": -1.0, "momentum": 1.5}
WRONG |= {"weight_decay": -0.1, "device": "tpu", "optimizer": "sgd"}


class TestErrors:
    @pytest.mark.parametrize(("name", "value"), [*WRONG.items(), ("momentum", 1)])
    def test_learner_options(self, agents, name, value):
        with pytest.raises(ValueError, match=f"{name} must .*; got {value!r}"):
            agents.MuZeroLearner(WEIGHTS, **{name: value})

    def test_names_of_weights(self, agents):
        weights = {name: value for name, value in WEIGHTS.items() if name != "dynamics/state/bias"}
        with pytest.raises(ValueError, match=r"missing or unknown: \['dynamics/state/bias'\]"):
            agents.MuZeroLearner(weights)

    def test_shapes_of_weights(self):
        for name, shape in itertools.product(WEIGHTS, [(), (3,), (3, 3)]):
            with pytest.raises(ValueError, match="must have the shape of"):
                SearchNetwork(WEIGHTS | {name: np.zeros(shape, np.float32)})

    @pytest.mark.parametrize(
        "size", ["state_size", "hidden_size", "observation_size", "actions", "support_size"]
    )
    def test_sizes(self, size):
        with pytest.raises(ValueError, match=f"{size} must be at least"):
            draw_weights(0, **{size: 0})

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"observation": np.zeros((6, 3), np.float32)}, "observation must have the shape"),
            ({"actions": np.zeros((4, 5), np.int64)}, "actions must have the shape"),
            ({"actions": np.full((4, 6), 2)}, "actions must be 0 to 1; got 2 to 2"),
            ({"target_policy": np.zeros((4, 6, 2), np.float32)}, "target_policy must have the shape"),
        ],
    )
    def test_batches(self, learner, changes, message):
        with pytest.raises(ValueError, match=message):
            learner.loss(sample()._replace(**changes))
        with pytest.raises(ValueError, match=r"step_scales must have the shape of \[K\+1\], \(5,\)"):
            learner.gradients(sample(), step_scales=[1.0, 1.0])
