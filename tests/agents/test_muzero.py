"""The MuZero learner on real CartPole episodes, against the pseudocode's one-by-one definitions."""

import gymnasium
import numpy as np
import pytest

from gradtricks.agents import load
from gradtricks.agents.cartpole import OBSERVATION_SCALE, collect_episodes
from gradtricks.agents.muzero import SearchNetwork, draw_weights
from gradtricks.agents.replay import Batch, ReplayBuffer
from gradtricks.agents.supports import CARTPOLE_SUPPORT, TICTACTOE_SUPPORT, expected_value, two_hot

DISCOUNT = 0.9
EPISODES = collect_episodes(24, seed=3)
LENGTHS = np.array([len(episode.actions) for episode in EPISODES])
STARTS = LENGTHS.cumsum() - LENGTHS  # where the episodes stand in the replay
REPLAY = ReplayBuffer(LENGTHS.sum(), discount=DISCOUNT)
for _episode in EPISODES:
    REPLAY.add(_episode)
WEIGHTS = draw_weights(5, state_size=6, hidden_size=8)
WEIGHTS_64 = {name: value.astype(np.float64) for name, value in WEIGHTS.items()}


@pytest.fixture(params=["torch", "tensorflow"])
def agents(request):
    pytest.importorskip(request.param)
    return load(request.param)


def sample(steps=4, size=6, seed=0):
    return REPLAY.sample(size, steps, np.random.default_rng(seed))


def sample_near_the_end(steps=4):
    return REPLAY.window(STARTS + LENGTHS - 2, steps, np.random.default_rng(0))


def as_float64(batch):
    return Batch(*(np.asarray(x, np.int64 if i == 1 else np.float64) for i, x in enumerate(batch)))


class TestEpisodes:
    def test_are_what_cartpole_does(self):
        environment = gymnasium.make("CartPole-v1")
        for episode in EPISODES[:8]:
            states, length = episode.observations * OBSERVATION_SCALE, len(episode.actions)
            for t in range(length):
                environment.reset(seed=0)
                environment.unwrapped.state = states[t].astype(np.float64)
                next_state, reward, terminated, _, _ = environment.step(int(episode.actions[t]))
                assert reward == episode.rewards[t] == 1
                assert terminated == (t == length - 1)
                if not terminated:
                    np.testing.assert_allclose(next_state, states[t + 1], atol=1e-6)
        environment.close()

    def test_same_seed_same_episodes(self):
        again = collect_episodes(24, seed=3)
        assert len(again) == len(EPISODES)
        for one, other in zip(EPISODES, again):
            np.testing.assert_array_equal(one.observations, other.observations)
            np.testing.assert_array_equal(one.actions, other.actions)

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


def make_target(episode, state_index, num_unroll_steps):
    """The pseudocode's make_target, for returns that run to the end of the episode."""
    length, rewards = len(episode.actions), episode.rewards.tolist()
    targets = []
    for current_index in range(state_index, state_index + num_unroll_steps + 1):
        value = sum(reward * DISCOUNT**i for i, reward in enumerate(rewards[current_index:]))
        last_reward = rewards[current_index - 1] if 0 < current_index <= length else 0
        policy = episode.policies[current_index] if current_index < length else [0, 0]
        targets.append((value, last_reward, policy))
    return targets


class TestTargets:
    def test_equal_the_pseudocode_one_by_one(self):
        steps, rng = 5, np.random.default_rng(1)
        places = [
            (episode, start, time)
            for episode, start in zip(EPISODES, STARTS.tolist())
            for time in sorted(
                {0, len(episode.actions) // 2, len(episode.actions) - 3, len(episode.actions) - 1}
            )
        ]
        batch = REPLAY.window(np.array([start + time for _, start, time in places]), steps, rng)
        for b, (episode, _, time) in enumerate(places):
            for k, (value, reward, policy) in enumerate(make_target(episode, time, steps)):
                np.testing.assert_allclose(batch.target_value[k, b], two_hot(value), atol=2e-6)
                np.testing.assert_allclose(batch.target_policy[k, b], policy, atol=1e-6)
                if k > 0:
                    np.testing.assert_allclose(batch.target_reward[k - 1, b], two_hot(reward), atol=1e-6)
            real = episode.actions[time:][:steps]
            np.testing.assert_array_equal(batch.actions[: len(real), b], real)
            np.testing.assert_array_equal(batch.observation[b], episode.observations[time])

    def test_absorbing_states(self):
        batch = sample_near_the_end(steps=6)  # two steps are left: a reward for each, then nothing
        nothing = np.eye(CARTPOLE_SUPPORT.size)[0]
        assert (batch.target_value[2:] == nothing).all()
        assert (batch.target_reward[2:] == nothing).all()
        assert (batch.target_reward[:2] != nothing).any(-1).all()
        assert not batch.target_policy[2:].any()
        assert set(np.unique(batch.actions[2:])) == {0, 1}

    def test_shorten_keeps_roots(self):
        long, short = sample(steps=4), sample(steps=4).shorten(2)
        assert [len(x) for x in short] == [6, 2, 3, 2, 3]
        np.testing.assert_array_equal(short.target_value, long.target_value[:3])

    @pytest.mark.parametrize("steps", [0, 5])
    def test_shorten_refuses(self, steps):
        with pytest.raises(ValueError, match=r"num_unroll_steps must lie in \[1, 4\]"):
            sample(steps=4).shorten(steps)


def log_softmax(logits):
    shifted = logits - logits.max()
    return shifted - np.log(np.exp(shifted).sum())


def loss_by_hand(weights, batch, b):
    """Value of one trajectory's loss, written from the pseudocode with NumPy vectors."""

    def dense(layer, x):
        return x @ weights[f"{layer}/kernel"] + weights[f"{layer}/bias"]

    def predict(state):
        hidden = np.maximum(dense("prediction/hidden", state), 0)
        return dense("prediction/value", hidden), dense("prediction/policy", hidden)

    state = np.maximum(dense("representation/hidden", batch.observation[b]), 0)
    state = np.tanh(dense("representation/state", state))
    loss = 0.0
    for k in range(len(batch.actions) + 1):
        if k > 0:
            one_hot = np.eye(2)[batch.actions[k - 1, b]]
            hidden = np.maximum(dense("dynamics/hidden", np.concatenate([state, one_hot])), 0)
            loss -= batch.target_reward[k - 1, b] @ log_softmax(dense("dynamics/reward", hidden))
            state = np.tanh(state + dense("dynamics/state", hidden))
        value, policy = predict(state)
        loss -= batch.target_value[k, b] @ log_softmax(value)
        loss -= batch.target_policy[k, b] @ log_softmax(policy)
    return loss


def torch_gradients_one_by_one(learner, batch, hidden_scale, loss_scale):
    import torch

    def scale(x, factor):  # the pseudocode's own formula
        return x * factor + x.detach() * (1 - factor)

    def cross_entropy(logits, target):
        return -(torch.tensor(target) * torch.log_softmax(logits[0], -1)).sum()

    total = torch.zeros((), dtype=torch.float64)
    for b in range(len(batch.observation)):
        value, policy, state = learner.initial_inference(torch.tensor(batch.observation[b : b + 1]))
        predictions = [(1.0, value, None, policy)]
        for action in batch.actions[:, b]:
            value, reward, policy, state = learner.recurrent_inference(state, torch.tensor([action]))
            predictions.append((loss_scale, value, reward, policy))
            state = scale(state, hidden_scale)
        for k, (factor, value, reward, policy) in enumerate(predictions):
            loss = cross_entropy(value, batch.target_value[k, b])
            loss = loss + cross_entropy(policy, batch.target_policy[k, b])
            if k > 0:
                loss = loss + cross_entropy(reward, batch.target_reward[k - 1, b])
            total = total + scale(loss, factor)
    gradients = torch.autograd.grad(total / len(batch.observation), list(learner.weights.values()))
    return [gradient.numpy() for gradient in gradients]


def tensorflow_gradients_one_by_one(learner, batch, hidden_scale, loss_scale):
    import tensorflow as tf

    def scale(x, factor):
        return x * factor + tf.stop_gradient(x) * (1 - factor)

    def cross_entropy(logits, target):
        return -tf.reduce_sum(target * tf.nn.log_softmax(logits[0]))

    with tf.GradientTape() as tape:
        total = tf.zeros((), tf.float64)
        for b in range(len(batch.observation)):
            value, policy, state = learner.initial_inference(tf.constant(batch.observation[b : b + 1]))
            predictions = [(1.0, value, None, policy)]
            for action in batch.actions[:, b]:
                value, reward, policy, state = learner.recurrent_inference(state, tf.constant([action]))
                predictions.append((loss_scale, value, reward, policy))
                state = scale(state, hidden_scale)
            for k, (factor, value, reward, policy) in enumerate(predictions):
                loss = cross_entropy(value, batch.target_value[k, b])
                loss += cross_entropy(policy, batch.target_policy[k, b])
                if k > 0:
                    loss += cross_entropy(reward, batch.target_reward[k - 1, b])
                total += scale(loss, factor)
        total /= len(batch.observation)
    return [gradient.numpy() for gradient in tape.gradient(total, list(learner.weights.values()))]


class TestGradients:
    @pytest.mark.parametrize(("hidden_scale", "loss_scale"), [(0.5, None), (0.3, 0.7), (1.0, 1.0)])
    def test_batched_equals_one_by_one(self, agents, hidden_scale, loss_scale):
        learner = agents.MuZeroLearner(WEIGHTS_64, device="cpu")
        batch = as_float64(sample_near_the_end(steps=3))
        one_by_one = {
            "torch": torch_gradients_one_by_one,
            "tensorflow": tensorflow_gradients_one_by_one,
        }[agents.__name__.rpartition(".")[2]]
        expected = one_by_one(learner, batch, hidden_scale, 1 / 3 if loss_scale is None else loss_scale)
        batched, _ = learner.gradients(batch, hidden_scale=hidden_scale, loss_scale=loss_scale)
        assert list(batched) == list(WEIGHTS)
        for gradient, reference in zip(batched.values(), expected, strict=True):
            np.testing.assert_allclose(gradient, reference, rtol=1e-9, atol=1e-12)

    def test_loss_equals_the_one_by_hand(self, agents):
        batch = as_float64(sample_near_the_end())
        by_hand = [loss_by_hand(WEIGHTS_64, batch, b) for b in range(len(batch.observation))]
        learner = agents.MuZeroLearner(WEIGHTS_64, device="cpu")
        assert learner.loss(batch) == pytest.approx(np.mean(by_hand), rel=1e-12)

    def test_scales_leave_the_loss_alone(self, agents):
        scaled = agents.MuZeroLearner(WEIGHTS_64, hidden_scale=0.1, loss_scale=3.0, device="cpu")
        plain = agents.MuZeroLearner(WEIGHTS_64, device="cpu")
        assert scaled.update(sample()) == pytest.approx(plain.loss(sample()), rel=1e-12)

    def test_each_loss_reaches_each_state_with_the_closed_form_weight(self, agents):
        learner, batch = agents.MuZeroLearner(WEIGHTS_64, device="cpu"), as_float64(sample())
        h, loss_scale = 0.3, 0.7
        for k, only in enumerate(np.eye(5)):
            _, full = learner.gradients(batch, hidden_scale=1.0, loss_scale=1.0, step_scales=only)
            _, scaled = learner.gradients(batch, hidden_scale=h, loss_scale=loss_scale, step_scales=only)
            for j in range(5):
                weight = (loss_scale if k else 1.0) * h ** max(k - max(j, 1), 0)
                np.testing.assert_allclose(scaled[j], weight * full[j], rtol=1e-10, atol=1e-15)
                assert full[j].any() == (j <= k)

    def test_dynamics_gradient_is_the_closed_form_polynomial(self, agents):
        # The sum over losses and applications is l * (D_0 + h D_1 + ... + h^(K-1) D_(K-1)).
        learner, batch = agents.MuZeroLearner(WEIGHTS_64, device="cpu"), as_float64(sample())

        def dynamics_gradient(h, loss_scale):
            gradients, _ = learner.gradients(batch, hidden_scale=h, loss_scale=loss_scale)
            return np.concatenate([g.ravel() for n, g in gradients.items() if n.startswith("dynamics")])

        nodes = np.array([0.0, 0.4, 0.8, 1.2])
        measured = [dynamics_gradient(h, 1.0) for h in nodes]
        coefficients = np.linalg.solve(np.vander(nodes, increasing=True), measured)
        expected = 0.25 * 0.5 ** np.arange(4) @ coefficients
        np.testing.assert_allclose(dynamics_gradient(0.5, None), expected, rtol=1e-9, atol=1e-12)

    def test_head_scale_is_a_hook_on_the_state(self, agents):
        # A hook halves all that leaves s_k towards s_(k-1), so loss k arrives at s_j with one more half.
        learner, batch = agents.MuZeroLearner(WEIGHTS_64, device="cpu"), as_float64(sample(steps=1))
        only = {"step_scales": [0.0, 1.0], "loss_scale": 1.0}
        batch = batch._replace(target_reward=np.zeros_like(batch.target_reward))
        _, paper = learner.gradients(batch, **only)
        _, hooked = learner.gradients(batch, head_scale=0.5, **only)
        np.testing.assert_allclose(hooked, 0.5 * paper, rtol=1e-12)

    def test_norms_are_those_of_the_gradients(self, agents):
        learner, batch = agents.MuZeroLearner(WEIGHTS, device="cpu"), sample()
        gradients, states = learner.gradients(batch)
        norms = learner.gradient_norms(batch)
        assert states.shape == (5, 6, 6)
        dynamics = [g.ravel() for name, g in gradients.items() if name.startswith("dynamics")]
        assert norms["dynamics"] == pytest.approx(np.linalg.norm(np.concatenate(dynamics)), rel=1e-6)
        expected = [np.mean([np.linalg.norm(6 * g) for g in state]) for state in states]
        np.testing.assert_allclose(norms["states"], expected, rtol=1e-6)


class TestUpdate:
    def test_is_gradient_descent_with_momentum_and_decay(self, agents):
        options = {"learning_rate": 0.1, "momentum": 0.8, "weight_decay": 0.01}
        learner = agents.MuZeroLearner(WEIGHTS_64, device="cpu", **options)
        weights = {name: value.copy() for name, value in WEIGHTS_64.items()}
        velocity = dict.fromkeys(weights, 0.0)
        for seed in range(3):
            batch = as_float64(sample(seed=seed))
            gradients, _ = agents.MuZeroLearner(weights, device="cpu").gradients(batch)
            for name, gradient in gradients.items():
                velocity[name] = 0.8 * velocity[name] + gradient + 0.01 * weights[name]
                weights[name] = weights[name] - 0.1 * velocity[name]
            learner.update(batch)
        for name, value in learner.weights.items():
            actual = value.detach().numpy() if hasattr(value, "detach") else value.numpy()
            # Keras has its learning rate in 32 bits.
            np.testing.assert_allclose(actual, weights[name], rtol=1e-6, atol=1e-8)

    def test_lowers_the_loss(self, agents):
        learner = agents.MuZeroLearner(WEIGHTS, device="cpu")
        unseen = sample(size=64, seed=1)
        before = learner.loss(unseen)
        for seed in range(60):
            learner.update(sample(size=32, seed=seed))
        assert learner.loss(unseen) < 0.6 * before

    def test_leaves_the_given_weights_alone(self, agents):
        given = {name: value.copy() for name, value in WEIGHTS.items()}
        agents.MuZeroLearner(given, device="cpu").update(sample())
        for name, value in given.items():
            np.testing.assert_array_equal(value, WEIGHTS[name])

    def test_tensorflow_traces_once(self):
        pytest.importorskip("tensorflow")
        learner = load("tensorflow").MuZeroLearner(WEIGHTS, device="cpu")
        for seed in range(4):
            learner.update(sample(seed=seed))
        assert learner._update_graph.experimental_get_tracing_count() == 1


def test_frameworks_agree():
    for framework in ("torch", "tensorflow"):
        pytest.importorskip(framework)
    batch = as_float64(sample_near_the_end())
    learners = [load(name).MuZeroLearner(WEIGHTS_64, device="cpu") for name in ("torch", "tensorflow")]
    for scales in ({}, {"hidden_scale": 1.0, "loss_scale": 1.0}, {"head_scale": 0.5}):
        one, other = (learner.gradient_norms(batch, **scales) for learner in learners)
        assert one.keys() == other.keys()
        for key in one:
            np.testing.assert_allclose(one[key], other[key], rtol=1e-10)
    for _ in range(5):
        one, other = (learner.update(batch) for learner in learners)
        assert one == pytest.approx(other, rel=1e-6)  # Keras' rates have 32 bits


def to_numpy(tensor):
    return tensor.detach().numpy() if hasattr(tensor, "detach") else tensor.numpy()


class TestSearchNetwork:
    def test_equals_the_learners(self, agents):
        learner, network = agents.MuZeroLearner(WEIGHTS_64, device="cpu"), SearchNetwork(WEIGHTS_64)
        observations = sample().observation.astype(np.float64)
        actions = np.array([0, 1, 1, 0, 1, 0])
        tensor = {"torch": "as_tensor", "tensorflow": "convert_to_tensor"}[agents.__name__.split(".")[-1]]
        make = getattr(pytest.importorskip(agents.__name__.split(".")[-1]), tensor)
        value, logits, state = map(to_numpy, learner.initial_inference(make(observations)))
        root = network.look(observations)
        np.testing.assert_allclose(root.value, expected_value(value), rtol=1e-10)
        np.testing.assert_allclose(root.prior_logits, logits, rtol=1e-10)
        np.testing.assert_allclose(root.embedding, state, rtol=1e-10)
        step = learner.recurrent_inference(make(state), make(actions))
        value, reward, logits, next_state = map(to_numpy, step)
        output = network.imagine(root.embedding, actions)
        np.testing.assert_allclose(output.value, expected_value(value), rtol=1e-10)
        np.testing.assert_allclose(output.reward, expected_value(reward), rtol=1e-10)
        np.testing.assert_allclose(output.prior_logits, logits, rtol=1e-10)
        np.testing.assert_allclose(output.embedding, next_state, rtol=1e-10)

    def test_other_games_have_other_sizes(self):
        sizes = {"observation_size": 18, "actions": 9, "support_size": 3}
        network = SearchNetwork(draw_weights(0, **sizes), TICTACTOE_SUPPORT)
        root = network.look(np.eye(18, dtype=np.float32)[:5])
        output = network.imagine(root.embedding, np.arange(5))
        assert root.prior_logits.shape == output.prior_logits.shape == (5, 9)
        assert np.abs(output.value).max() <= 3.1
        assert output.embedding.dtype == np.float32

    def test_the_heads_have_the_size_of_the_support(self):
        with pytest.raises(ValueError, match="dynamics/reward/bias must have the shape of the support"):
            SearchNetwork(WEIGHTS, TICTACTOE_SUPPORT)

    @pytest.mark.parametrize("size", ["observation_size", "actions", "support_size"])
    def test_sizes_are_checked(self, size):
        with pytest.raises(ValueError, match=f"{size} must be at least"):
            draw_weights(0, **{size: 0})


class TestErrors:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"hidden_scale": float("nan")}, "hidden_scale must be finite"),
            ({"loss_scale": float("inf")}, "loss_scale must be finite"),
            ({"learning_rate": -1.0}, "learning_rate must lie in"),
            ({"momentum": 1.5}, "momentum must lie in"),
            ({"momentum": 1.0}, "momentum must be below 1"),
            ({"weight_decay": -1e-4}, "weight_decay must lie in"),
            ({"device": "tpu"}, "device must be one of"),
        ],
    )
    def test_learner_options(self, agents, options, message):
        with pytest.raises(ValueError, match=message):
            agents.MuZeroLearner(WEIGHTS, **options)

    def test_names_of_weights(self, agents):
        weights = {name: value for name, value in WEIGHTS.items() if name != "dynamics/state/bias"}
        with pytest.raises(ValueError, match=r"missing or unknown: \['dynamics/state/bias'\]"):
            agents.MuZeroLearner(weights)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"observation": np.zeros((6, 3), np.float32)}, "observation must have the shape"),
            ({"actions": np.zeros((4, 5), np.int64)}, "actions must have the shape"),
            ({"actions": np.full((4, 6), 2)}, "actions must be 0 to 1; got 2 to 2"),
            ({"target_policy": np.zeros((4, 6, 2), np.float32)}, "target_policy must have the shape"),
        ],
    )
    def test_batches(self, agents, changes, message):
        learner = agents.MuZeroLearner(WEIGHTS, device="cpu")
        with pytest.raises(ValueError, match=message):
            learner.loss(sample()._replace(**changes))

    def test_step_scales(self, agents):
        learner = agents.MuZeroLearner(WEIGHTS, device="cpu")
        with pytest.raises(ValueError, match=r"step_scales must have the shape of \[K\+1\], \(5,\)"):
            learner.gradients(sample(), step_scales=[1.0, 1.0])

    @pytest.mark.parametrize("sizes", [{"state_size": 1}, {"hidden_size": 0}])
    def test_sizes_of_networks(self, sizes):
        with pytest.raises(ValueError, match="_size must be at least"):
            draw_weights(**sizes)
