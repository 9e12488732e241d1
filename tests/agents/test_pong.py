"""The Pong player: what it sees, which points it learns from, and that both frameworks learn the same."""

import numpy as np
import pytest

from gradtricks.agents import load, pong, reinforce
from gradtricks.agents.training import NotFiniteError
from gradtricks.reference import (
    discounted_returns,
    policy_gradient_loss,
    policy_gradient_loss_vjp,
    standardize,
)


def small_weights(seed=0):
    weights = reinforce.draw_weights(seed, hidden_units=8)
    return {name: value.astype(np.float64) for name, value in weights.items()}


def reference_returns(rewards, discount):
    return discounted_returns(rewards, discount * (rewards == 0))


def small_batch(size=64):
    rng = np.random.default_rng(0)
    rewards = np.zeros(size)
    rewards[15::16] = rng.choice([-1.0, 1.0], size // 16)
    return reinforce.Batch(
        rng.integers(-1, 2, (size, 6400)).astype(np.int8), rng.integers(0, 3, size), rewards
    )


# What the agent sees


def test_both_paddles_and_the_ball_are_visible():
    environment, rng = pong.make_environment(8, frame_skip=8), np.random.default_rng(0)
    environment.reset(seed=3)
    screens = [environment.step(rng.choice(pong.ACTIONS, 8))[0] for _ in range(100)]
    pictures = pong.preprocess(np.concatenate(screens[19:]))
    assert pictures.shape == (81 * 8, 80, 80)
    assert set(np.unique(pictures)) == {0, 1}
    assert pictures.mean() < 0.05, "no wall, no score"
    left, right, between = pictures[:, :, 8:10], pictures[:, :, 70:72], pictures[:, :, 12:68]
    # A paddle is 16 screen pixels high, so 8 of the picture's. The environment gives the brighter of its
    # last two screens, so a moving paddle may be a little higher.
    for paddle in (left, right):
        assert 8 <= np.median(paddle.any(axis=2).sum(axis=1)) <= 10
    assert between.any(axis=(1, 2)).mean() > 0.5  # between a point and the next serve there is no ball
    with pytest.raises(ValueError, match="frames must have the shape of grey Atari screens"):
        pong.preprocess(screens[0][:, :, 1:])


def test_observations_are_differences_of_successive_pictures():
    games = pong.PongGames(2, seed=1, frame_skip=8)
    environment = pong.make_environment(2, frame_skip=8)
    before = pong.preprocess(environment.reset(seed=1)[0])
    assert not games.observations.any()
    rng = np.random.default_rng(0)
    for _ in range(30):
        actions = rng.integers(0, 3, 2)
        rewards = games.step(actions)
        frames, expected, *_ = environment.step(np.take(pong.ACTIONS, actions))
        after = pong.preprocess(frames)
        np.testing.assert_array_equal(games.observations, (after - before).reshape(2, -1))
        np.testing.assert_array_equal(rewards, expected)
        before = after
    assert set(np.unique(games.observations)) == {-1, 0, 1}


def test_a_finished_game_starts_anew_after_an_idle_step():
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


def test_each_decision_is_learned_from_once_its_point_ended():
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
    state = policy.state()
    for name, gradient in gradients.items():
        root = 0.1 * abs(gradient)
        # PyTorch adds epsilon to the root, Keras under it.
        steps = 1e-3 * gradient / np.stack([root + 1e-8, np.hypot(root, 1e-8)])
        assert abs(state[name] - (weights[name] - steps)).max((1, 2)).min() < 1e-9


def test_a_clone_goes_on_alike_and_apart(agents):
    policy, batch = agents.PongPolicy(small_weights(), device="cpu"), small_batch()
    policy.learn(*batch)
    clone, start = policy.clone(), policy.state()
    assert policy.learn(*batch) == clone.clone().learn(*batch)
    np.testing.assert_equal(clone.state(), start)
    assert clone.clone(learning_rate=0.5).learning_rate == 0.5
    assert clone.clone().learning_rate == clone.learning_rate
    clone.learn(*batch)
    np.testing.assert_equal(clone.state(), policy.state())


class _StayingPolicy:
    """Never moves, and keeps what it is taught."""

    learning_rate = decay = epsilon = move_cost = 0.0

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
def test_training_teaches_whole_points_with_either_sign(sign):
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


def test_a_training_that_diverges_says_so():
    policy, rng = _StayingPolicy(), np.random.default_rng(0)
    policy.learn = lambda *batch: np.nan
    with pytest.raises(NotFiniteError, match="the loss must be finite; got nan"):
        reinforce.train(policy, pong.PongGames(2), decisions=400, batch_size=10, rng=rng)


def test_tensorflow_stops_tracing_after_two_batches(in_tensorflow):
    from gradtricks.agents.tensorflow import reinforce as module

    counts = []
    for size in (16, 32, 48, 64):
        policy, batch = module.PongPolicy(small_weights(size), device="cpu"), small_batch(size)
        policy.logits(batch.observations)
        policy.learn(*batch)
        graphs = (module._logits_graph, module._gradients_graph)
        counts.append([graph.experimental_get_tracing_count() for graph in graphs])
    assert counts[1] == counts[2] == counts[3]


# Bad input


@pytest.mark.parametrize("option", [{"num_envs": 0}, {"num_envs": 2, "frame_skip": 0}])
def test_games_refuse_nonsense(option):
    with pytest.raises(ValueError, match="must be at least 1; got 0"):
        pong.PongGames(**option)


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        ([0, -1], r"the index of a move, an integer in \[0, 2\]; got -1 in game 1"),
        ([3, 0], "got 3 in game 0"),
        ([0.0, 1.0], "got 0.0 in game 0"),
        ([True, False], "got True in game 0"),
        ([0], r"actions must have the shape of \[N\], \(2,\); got \(1,\)"),
    ],
)
def test_games_refuse_other_actions_and_stay_unchanged(actions, message):
    games = pong.PongGames(2)
    with pytest.raises(ValueError, match=message):
        games.step(np.array(actions))
    assert len(games.state()["actions"]) == 0


def test_training_refuses_games_of_another_view():
    with pytest.raises(ValueError, match=r"learner's view, DIFFERENCE; got observations \(2, 80\)"):
        reinforce.train(None, pong.PongGames(2, view=pong.CELLS), decisions=1, rng=None)


@pytest.mark.parametrize("option", ["decisions", "batch_size", "sign"])
def test_training_refuses_nonsense(option):
    with pytest.raises(ValueError, match=f"{option} must be .* 1.*; got 0"):
        reinforce.train(None, None, **{"decisions": 1, "rng": None, option: 0})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"other": np.zeros(3)}, r"missing or unknown: \['other'\]"),
        ({"hidden": np.zeros((5, 8))}, r"weights\['hidden'\] must have the shape of \[6400, units\]"),
        ({"logits": np.zeros((5, 3))}, r"weights\['logits'\] must have the shape of \[units, 3\]"),
    ],
)
def test_policies_refuse_other_weights(agents, changes, message):
    with pytest.raises(ValueError, match=message):
        agents.PongPolicy(small_weights() | changes)


@pytest.mark.parametrize("option", ["learning_rate", "epsilon", "move_cost", "decay", "device"])
def test_policies_refuse_nonsense(agents, option):
    value = {"decay": 1.5, "device": "tpu"}.get(option, -1.0)
    with pytest.raises(ValueError, match=f"{option} must (lie in|be one of)"):
        agents.PongPolicy(small_weights(), **{option: value})


def test_a_seed_fixes_weights_of_keras_layers(in_tensorflow, monkeypatch):
    asked, settings = [], in_tensorflow.framework.config.experimental
    # Deterministic operations couldn't be switched off again in this process.
    monkeypatch.setattr(settings, "enable_op_determinism", lambda: asked.append(True))

    def drawn(seed):
        load("tensorflow").set_seed(seed)
        keras = in_tensorflow.framework.keras
        return keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)]).get_weights()[0]

    np.testing.assert_array_equal(drawn(3), drawn(3))
    assert (drawn(3) != drawn(4)).any()
    assert len(asked) == 4
