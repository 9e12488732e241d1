"""The Pong player: what it sees, which points it learns from, and that both frameworks learn the same."""

import subprocess
import sys

import numpy as np
import pytest

from gradtricks.agents import pong, reinforce
from gradtricks.reference import (
    discounted_returns,
    policy_gradient_loss,
    policy_gradient_loss_vjp,
    standardize,
)

UNITS = 8


@pytest.fixture(scope="module")
def played():
    """Random play: grey screens, and the decisions of all points that ended."""
    environment = pong.make_environment(8, frame_skip=8)
    frames = [environment.reset(seed=3)[0]]
    rng = np.random.default_rng(0)
    for _ in range(100):
        frames.append(environment.step(rng.choice(pong.ACTIONS, 8))[0])
    return np.stack(frames)


def small_weights(seed=0, dtype=np.float64):
    weights = reinforce.draw_weights(seed, hidden_units=UNITS)
    return {name: value.astype(dtype) for name, value in weights.items()}


def reference_returns(rewards, discount):
    return discounted_returns(rewards, discount * (rewards == 0))


def small_batch(size=64, seed=0):
    rng = np.random.default_rng(seed)
    rewards = np.zeros(size)
    rewards[15::16] = rng.choice([-1.0, 1.0], size // 16)
    return reinforce.Batch(
        rng.integers(-1, 2, (size, 6400)).astype(np.int8), rng.integers(0, 3, size), rewards
    )


def to_numpy(tensors):
    values = {name: getattr(tensor, "detach", lambda t=tensor: t)() for name, tensor in tensors.items()}
    return {name: value.numpy() for name, value in values.items()}


# What the agent sees


def test_both_paddles_and_the_ball_are_visible(played):
    pictures = pong.preprocess(played[20:].reshape(-1, 1, 210, 160))
    assert pictures.shape == (81 * 8, 80, 80)
    assert set(np.unique(pictures)) == {0, 1}
    assert pictures.mean() < 0.05, "no wall, no score"
    left, right, between = pictures[:, :, 8:10], pictures[:, :, 70:72], pictures[:, :, 12:68]
    # A paddle is 16 screen pixels high, so 8 of the picture's. The environment gives the brighter of its
    # last two screens, so a moving paddle may be a little higher.
    for paddle in (left, right):
        assert 8 <= np.median(paddle.any(axis=2).sum(axis=1)) <= 10
    seen = between.any(axis=(1, 2)).mean()
    assert seen > 0.5  # between a point and the next serve there is no ball
    with pytest.raises(ValueError, match="frames must have the shape of grey Atari screens"):
        pong.preprocess(played[0, :, :, 1:])


def test_observations_are_differences_of_successive_pictures():
    games = pong.PongGames(4, seed=1, frame_skip=8)
    environment = pong.make_environment(4, frame_skip=8)
    before = pong.preprocess(environment.reset(seed=1)[0])
    assert not games.observations.any()
    rng = np.random.default_rng(0)
    for _ in range(30):
        actions = rng.integers(0, 3, 4)
        rewards = games.step(actions)
        frames, expected, *_ = environment.step(np.take(pong.ACTIONS, actions))
        after = pong.preprocess(frames)
        np.testing.assert_array_equal(games.observations, (after - before).reshape(4, -1))
        np.testing.assert_array_equal(rewards, expected)
        before = after
    assert set(np.unique(games.observations)) == {-1, 0, 1}


def test_a_finished_game_starts_anew_and_its_idle_step_is_marked():
    games = pong.PongGames(2, seed=0, frame_skip=8)
    score = np.zeros(2)
    while games.playing.all():
        score += games.step(np.zeros(2, int))
    over = ~games.playing
    assert (np.abs(score[over]) == 21).all()
    rewards = games.step(np.zeros(2, int))
    assert not rewards[over].any()
    assert not games.observations[over].any()
    assert games.playing[over].all()


def test_up_is_up_and_down_is_down():
    def height(action):
        environment = pong.make_environment(1, frame_skip=8)
        environment.reset(seed=0)
        for _ in range(6):
            frames, *_ = environment.step(np.array([pong.ACTIONS[action]]))
        return np.flatnonzero(pong.preprocess(frames)[0, :, 70]).mean()

    stay, up, down = (height(action) for action in range(3))
    assert up < stay < down  # rows count from the top


# Which decisions are learned from


def test_only_finished_points_are_learned_from_and_each_decision_once():
    memory = reinforce.PointMemory(2)
    marks = np.arange(12, dtype=np.int8).reshape(6, 2)
    rewards = np.array([[0, 0], [1, 0], [0, 0], [0, -1], [0, 0], [0, 0]], float)
    for row in range(4):
        memory.add(marks[row][:, None], marks[row].astype(int), rewards[row], np.ones(2, bool))
    first = memory.take()
    # Game 0 ended a point at its second decision, game 1 at its fourth; laid end to end.
    np.testing.assert_array_equal(first.actions, [0, 2, 1, 3, 5, 7])
    np.testing.assert_array_equal(first.rewards, [0, 1, 0, 0, 0, -1])
    np.testing.assert_array_equal(first.observations[:, 0], first.actions)
    assert len(memory) == 0
    with pytest.raises(ValueError, match="no point has ended yet"):
        memory.take()
    memory.add(marks[4][:, None], marks[4].astype(int), rewards[4], np.ones(2, bool))
    memory.add(marks[5][:, None], marks[5].astype(int), np.array([-1.0, 0.0]), np.ones(2, bool))
    # The first game's point began before the cut and is learned from whole.
    np.testing.assert_array_equal(memory.take().actions, [4, 6, 8, 10])


def test_the_idle_step_between_two_games_is_not_learned_from():
    memory = reinforce.PointMemory(2)
    for step, playing in enumerate([[True, False], [True, True]]):
        rewards = np.full(2, float(step))
        memory.add(np.full((2, 1), step, np.int8), np.full(2, step), rewards, np.array(playing))
    np.testing.assert_array_equal(memory.take().actions, [0, 1, 1])


def test_actions_are_drawn_with_their_probabilities():
    logits = np.log(np.tile([0.2, 0.3, 0.5], (50_000, 1)))
    drawn = pong.sample_actions(logits, np.random.default_rng(0))
    np.testing.assert_allclose(np.bincount(drawn) / len(drawn), [0.2, 0.3, 0.5], atol=0.01)


# Learning


def test_one_step_equals_the_reference(agents):
    weights, batch = small_weights(), small_batch()
    policy = agents.PongPolicy(weights, learning_rate=1e-3, move_cost=0.01, device="cpu")
    advantages = policy.advantages(batch.rewards, 0.99)
    expected = standardize(reference_returns(batch.rewards, 0.99))
    np.testing.assert_allclose(advantages, expected, rtol=0, atol=1e-12)
    before = np.maximum(batch.observations @ weights["hidden"], 0)
    logits = before @ weights["logits"]
    np.testing.assert_allclose(policy.logits(batch.observations), logits, rtol=0, atol=1e-12)

    pi = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    moving = pi[:, 1:].sum(-1, keepdims=True)
    cost_gradient = 0.01 * pi * (np.array([0, 1, 1]) - moving) / len(pi)
    upstream = policy_gradient_loss_vjp(1.0, logits, batch.actions, expected) + cost_gradient
    gradients = {
        "hidden": batch.observations.T @ ((upstream @ weights["logits"].T) * (before > 0)),
        "logits": before.T @ upstream,
    }
    loss = policy.learn(batch.observations, batch.actions, advantages)
    reference = policy_gradient_loss(logits, batch.actions, expected) + 0.01 * moving.mean()
    np.testing.assert_allclose(loss, reference, rtol=0, atol=1e-12)
    for name, after in to_numpy(policy.weights).items():
        square = 0.01 * gradients[name] ** 2
        step = 1e-3 * gradients[name] / (np.sqrt(square) + 1e-8)
        np.testing.assert_allclose(after, weights[name] - step, rtol=0, atol=1e-10)
        np.testing.assert_allclose(policy.state()[f"{name}/square"], square, rtol=1e-9, atol=1e-20)


def test_a_punished_action_becomes_less_likely_and_a_flipped_sign_makes_it_likelier(agents):
    observations, actions = small_batch().observations[:1], np.array([1])
    for sign in (1, -1):
        policy = agents.PongPolicy(small_weights(), learning_rate=1e-4, move_cost=0.0, device="cpu")
        before = policy.logits(observations)
        loss = policy.learn(observations, actions, sign * np.array([-1.0]))
        after = policy.logits(observations)
        change = np.diff([np.exp(x[0, 1]) / np.exp(x[0]).sum() for x in (before, after)])[0]
        assert np.sign(loss) == -sign  # minimising drives a negative loss further down
        assert np.sign(change) == -sign


def test_a_clone_goes_on_alike_and_apart(agents):
    batch = small_batch()
    policy = agents.PongPolicy(small_weights(), device="cpu")
    advantages = policy.advantages(batch.rewards, 0.99)
    policy.learn(*batch[:2], advantages)
    clone = policy.clone()
    frozen = to_numpy(clone.weights)["hidden"].copy()
    assert policy.learn(*batch[:2], advantages) == clone.clone().learn(*batch[:2], advantages)
    np.testing.assert_array_equal(to_numpy(clone.weights)["hidden"], frozen)
    assert clone.clone(learning_rate=0.5).learning_rate == 0.5
    assert clone.clone().learning_rate == clone.learning_rate
    clone.learn(*batch[:2], advantages)
    for name, value in to_numpy(policy.weights).items():
        np.testing.assert_array_equal(to_numpy(clone.weights)[name], value)


class _StayingPolicy:
    """Never moves, and keeps what it is taught."""

    def __init__(self):
        self.taught = []

    def logits(self, observations):
        return np.tile(np.float32([50, 0, 0]), (len(observations), 1))

    def advantages(self, rewards, discount):
        return reference_returns(rewards, discount)

    def learn(self, observations, actions, advantages):
        self.taught.append((len(observations), actions, advantages))
        return 0.0


@pytest.mark.parametrize("sign", [1, -1])
def test_training_teaches_whole_points_and_flips_their_sign_when_asked(sign):
    policy, games = _StayingPolicy(), pong.PongGames(2, seed=0, frame_skip=8)
    rng = np.random.default_rng(0)
    history = reinforce.train(policy, games, decisions=900, batch_size=50, discount=0.5, rng=rng, sign=sign)
    # A paddle that stays loses games of 21 points.
    assert set(history.point_rewards) == {-1.0}
    assert history.game_returns == [-21.0] * len(history.game_returns)
    assert len(history.game_returns) >= 1
    assert len(policy.taught) == len(history.losses) > 3
    assert (history.decisions, len(history.point_times)) == (900, len(history.point_rewards))
    halves = history.points_between(0, 450), history.points_between(450, 900)
    assert np.concatenate(halves).tolist() == history.point_rewards
    for count, actions, advantages in policy.taught:
        assert count == len(actions) == len(advantages) >= 50
        assert not actions.any()
        assert advantages[-1] == -sign
        assert (sign * advantages < 0).all()


def test_tensorflow_stops_tracing_whatever_the_batch_and_the_policy():
    pytest.importorskip("tensorflow")
    from gradtricks.agents.tensorflow import pong as module

    counts = []
    for size in (16, 32, 48, 64):
        policy, batch = module.PongPolicy(small_weights(size), device="cpu"), small_batch(size)
        policy.logits(batch.observations)
        policy.learn(batch.observations, batch.actions, batch.rewards)
        graphs = (module._logits_graph, module._gradients_graph)
        counts.append([graph.experimental_get_tracing_count() for graph in graphs])
    assert counts[1] == counts[2] == counts[3]


# Bad input


@pytest.mark.parametrize("option", [{"num_envs": 0}, {"num_envs": 2, "frame_skip": 0}])
def test_games_refuse_nonsense(option):
    with pytest.raises(ValueError, match="must be at least 1; got 0"):
        pong.PongGames(**option)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"decisions": 0}, "decisions must be at least 1"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"sign": 0}, "sign must be one of 1, -1; got 0"),
    ],
)
def test_training_refuses_nonsense(option, message):
    games = pong.PongGames(1)
    options = {"decisions": 1, "rng": np.random.default_rng(0), **option}
    with pytest.raises(ValueError, match=message):
        reinforce.train(None, games, **options)


def test_policies_refuse_nonsense(agents):
    weights = small_weights()
    with pytest.raises(ValueError, match=r"missing or unknown: \['logits'\]"):
        agents.PongPolicy({"hidden": weights["hidden"]})
    with pytest.raises(ValueError, match=r"weights\['hidden'\] must have the shape of \[6400, units\]"):
        agents.PongPolicy({**weights, "hidden": weights["hidden"][:5]})
    with pytest.raises(ValueError, match=r"weights\['logits'\] must have the shape of \[units, 3\]"):
        agents.PongPolicy({**weights, "logits": weights["logits"][:5]})
    for option in ("learning_rate", "epsilon", "move_cost"):
        with pytest.raises(ValueError, match=f"{option} must lie in"):
            agents.PongPolicy(weights, **{option: -1.0})
    with pytest.raises(ValueError, match="decay must lie in"):
        agents.PongPolicy(weights, decay=1.5)
    with pytest.raises(ValueError, match="device must be one of"):
        agents.PongPolicy(weights, device="tpu")


def test_a_seed_fixes_the_weights_of_keras_layers_too():
    pytest.importorskip("tensorflow")
    # In a process of its own, since deterministic operations can't be switched off again.
    code = """
import keras, numpy, gradtricks.agents
agents = gradtricks.agents.load("tensorflow")
kernels = []
for seed in (3, 3, 4):
    agents.set_seed(seed)
    kernels.append(keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)]).get_weights()[0])
print(numpy.array_equal(kernels[0], kernels[1]), numpy.array_equal(kernels[0], kernels[2]))
"""
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert shown.split() == ["True", "False"]
