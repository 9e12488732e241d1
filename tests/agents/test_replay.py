"""The replay against its definitions one by one, and the supports of values."""

from types import SimpleNamespace

import numpy as np
import pytest

from gradtricks.agents.muzero.replay import Episode, ReplayBuffer, value_targets
from gradtricks.agents.muzero.supports import (
    CARTPOLE_SUPPORT,
    Support,
    clip_value,
    expected_value,
    restore_value,
    transform_value,
    two_hot,
)

THREE = Support(-1, 1, 3)  # categories: lost, drawn, won
WIDE = Support(-5, 5, 11)


class TestSupports:
    def test_the_transform_is_the_papers(self):
        assert transform_value(3.0) == pytest.approx(1.003)
        assert transform_value(-3.0) == pytest.approx(-1.003)
        assert transform_value(0.0) == 0

    def test_restore_undoes_transform(self):
        x = np.concatenate([np.linspace(-600, 600, 1001), [0.0, 1e-6, -1e-6, 1e9]])
        np.testing.assert_allclose(restore_value(transform_value(x)), x, rtol=1e-12, atol=1e-12)

    @pytest.mark.parametrize("support", [CARTPOLE_SUPPORT, THREE, WIDE])
    def test_two_hot_keeps_the_mean(self, support):
        x = restore_value(np.linspace(support.low + 1e-9, support.high - 1e-9, 57))
        distribution = two_hot(x, support)
        categories = np.linspace(support.low, support.high, support.size)
        assert distribution.shape == (57, support.size)
        np.testing.assert_allclose(distribution.sum(-1), 1, rtol=1e-6)
        np.testing.assert_allclose(distribution @ categories, transform_value(x), rtol=1e-6, atol=1e-6)
        assert ((distribution > 0).sum(-1) <= 2).all()

    @pytest.mark.parametrize("support", [CARTPOLE_SUPPORT, THREE, WIDE])
    def test_expected_value_undoes_two_hot(self, support):
        x = restore_value(np.linspace(support.low + 1e-6, support.high - 1e-6, 57))
        with np.errstate(divide="ignore"):
            logits = np.log(two_hot(x, support))
        np.testing.assert_allclose(expected_value(logits, support), x, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(expected_value(logits + 1000, support), x, rtol=1e-4, atol=1e-4)

    @pytest.mark.parametrize(
        ("support", "x"), [(CARTPOLE_SUPPORT, x) for x in (-0.1, 500.0, np.nan)] + [(THREE, 5.0)]
    )
    def test_two_hot_refuses_what_lies_outside(self, support, x):
        bounds, got = rf"\[{support.low:g}, {support.high:g}\]", transform_value(x)
        message = f"transformed values must lie in {bounds}; got {got:g} to {got:g}"
        with pytest.raises(ValueError, match=message):
            two_hot(x, support)

    def test_two_hot_takes_the_ends_that_restoring_returns(self):
        for end in range(1, 601):
            for support in (Support(-end, end, 3), Support(-end, 0, 3), Support(0, end, 3)):
                distribution = two_hot(restore_value([support.low, support.high]), support)
                np.testing.assert_allclose(distribution, [[1, 0, 0], [0, 0, 1]], atol=1e-9)

    @pytest.mark.parametrize("support", [CARTPOLE_SUPPORT, THREE, WIDE])
    def test_clipped_values_lie_within_the_support(self, support):
        within = [0.0, *restore_value(np.linspace(support.low, support.high, 7)[1:-1])]
        clipped = clip_value([-1e6, *within, 1e6], support)
        np.testing.assert_array_equal(clipped[1:-1], within)
        assert two_hot(clipped, support)[[0, -1], [0, -1]] == pytest.approx(1)

    def test_expected_value_refuses_another_size(self):
        with pytest.raises(ValueError, match=r"logits must have the shape of \[..., N\]"):
            expected_value(np.zeros((3, 4)))


def make_episode(steps, seed=0, final_value=None, actions=2):
    rng = np.random.default_rng(seed)
    return Episode(
        rng.normal(size=(steps, 3)).astype(np.float32),
        rng.integers(0, actions, steps),
        rng.normal(size=steps),
        rng.dirichlet(np.ones(actions), steps),
        rng.normal(size=steps),
        final_value,
    )


def target_by_definition(episode, t, discount, td_steps, two_players):
    """The pseudocode's make_target, and a change of sides with every step where there are two players."""
    length = len(episode.rewards)
    final = 0.0 if episode.final_value is None else episode.final_value
    sign = -1 if two_players else 1
    value, index = 0.0, t
    while index < length and (td_steps is None or index < t + td_steps):
        value += (sign * discount) ** (index - t) * episode.rewards[index]
        index += 1
    rest = episode.values[index] if index < length else final
    return value + (sign * discount) ** (index - t) * rest


class TestValueTargets:
    @pytest.mark.parametrize("two_players", [False, True])
    @pytest.mark.parametrize("final_value", [None, 2.5])
    @pytest.mark.parametrize("td_steps", [1, 3, 6, 7, 8, 50, None])
    def test_equal_the_definition(self, td_steps, final_value, two_players):
        episode = make_episode(7, final_value=final_value)
        targets = value_targets(episode, 0.9, td_steps, two_players=two_players)
        expected = [target_by_definition(episode, t, 0.9, td_steps, two_players) for t in range(7)]
        np.testing.assert_allclose(targets, expected, rtol=1e-12)


class TestWindows:
    def make(self, episodes, capacity, **options):
        buffer = ReplayBuffer(capacity, support=WIDE, td_steps=2, discount=0.9, **options)
        for episode in episodes:
            buffer.add(episode)
        return buffer

    @pytest.mark.parametrize("two_players", [False, True])
    def test_equal_the_episodes_one_by_one(self, two_players):
        _, *episodes = every = [make_episode(n, seed=n, actions=3) for n in (5, 4, 9)]
        buffer = self.make(every, 14, two_players=two_players)  # the first forgotten, the last over the seam
        batch = buffer.sample(200, 3, np.random.default_rng(0))
        assert [x.dtype.name for x in batch] == ["float32", "int64", "float32", "float32", "float32"]
        assert [x.shape for x in batch] == [(200, 3), (3, 200), (4, 200, 11), (3, 200, 11), (4, 200, 3)]
        places = {row.tobytes(): (e, t) for e in episodes for t, row in enumerate(e.observations)}
        for b, (episode, t) in enumerate(places[row.tobytes()] for row in batch.observation):
            for k in range(4):
                inside = t + k < len(episode.actions)
                value = target_by_definition(episode, t + k, 0.9, 2, two_players) if inside else 0
                np.testing.assert_allclose(batch.target_value[k, b], two_hot(value, WIDE), atol=1e-6)
                policy = episode.policies[t + k] if inside else np.zeros(3)
                np.testing.assert_allclose(batch.target_policy[k, b], policy, atol=1e-6)
                if k < 3:
                    reward = episode.rewards[t + k] if inside else 0
                    np.testing.assert_allclose(batch.target_reward[k, b], two_hot(reward, WIDE), atol=1e-6)
                    assert batch.actions[k, b] in ([episode.actions[t + k]] if inside else range(3))

    def test_actions_past_the_end_are_random(self):
        buffer = self.make([make_episode(1, actions=3)], 1)
        actions = buffer.sample(3000, 4, np.random.default_rng(0)).actions
        frequencies = np.bincount(actions[1:].ravel(), minlength=3) / actions[1:].size
        np.testing.assert_allclose(frequencies, 1 / 3, atol=0.02)

    def test_past_a_time_limit_nothing_is_taught(self):
        episode = make_episode(3, final_value=1.0)
        batch = self.make([episode], 3).sample(50, 4, np.random.default_rng(0))
        times = [int((episode.observations == o).all(-1).argmax()) for o in batch.observation]
        for b, t in enumerate(times):
            taught = np.arange(5) < 3 - t
            np.testing.assert_array_equal(batch.target_value[:, b].any(-1), taught)
            np.testing.assert_array_equal(batch.target_policy[:, b].any(-1), taught)
            np.testing.assert_array_equal(batch.target_reward[:, b].any(-1), taught[:-1])


def observations_of(buffer, size=4000):
    return {tuple(row) for row in buffer.sample(size, 1, np.random.default_rng(0)).observation}


def test_values_of_an_untrained_network_are_clipped():
    episode = make_episode(4)._replace(rewards=np.ones(4), values=np.full(4, 1e4))
    buffer = ReplayBuffer(9, td_steps=1, discount=1.0)
    buffer.add(episode)
    targets = buffer.sample(50, 1, np.random.default_rng(0)).target_value[0].argmax(-1)
    assert set(targets) == {0, 20}  # of 1, which is all that was left in the end, and of the clipped


class TestRing:
    @pytest.mark.parametrize("capacity", [9, 20])  # the longest episodes fill the smaller one
    def test_the_oldest_episodes_make_room(self, capacity):
        buffer, kept = ReplayBuffer(capacity, support=WIDE), []
        for seed in range(60):
            episode = make_episode(1 + seed * 7 % 9, seed)
            buffer.add(episode)
            kept.append(episode)
            while sum(len(e.actions) for e in kept) > capacity:
                kept.pop(0)
            assert len(buffer) == sum(len(e.actions) for e in kept)
            assert observations_of(buffer) == {tuple(row) for e in kept for row in e.observations}


class TestDrawing:
    def test_every_step_is_as_likely(self):
        buffer = ReplayBuffer(7, support=WIDE)
        for seed in range(4):
            buffer.add(make_episode(3, seed))  # two are left, over the seam
        drawn = buffer.sample(30_000, 1, np.random.default_rng(0)).observation
        _, counts = np.unique(drawn, axis=0, return_counts=True)
        np.testing.assert_allclose(counts / 30_000, np.full(6, 1 / 6), atol=0.01)

    def test_the_highest_random_number_still_draws_a_step(self):
        highest = SimpleNamespace(
            random=lambda size: np.full(size, 1 - 2.0**-53), integers=lambda high, size: np.zeros(size, int)
        )
        buffer = ReplayBuffer(50, support=WIDE)
        for seed in range(70):
            buffer.add(make_episode(1, seed))
            last = buffer.sample(3, 1, highest).observation[0]
            assert last.tobytes() in {row.tobytes() for row in buffer.state()["column/observations"]}
            assert last.any()


class TestErrors:
    @pytest.mark.parametrize(
        ("sizes", "message"),
        [
            ((0, 2), "batch_size must be at least 1; got 0"),
            ((2, 0), "num_unroll_steps must be at least 1; got 0"),
            ((2, 2), "there must be an episode to draw from; got none"),
        ],
    )
    def test_draws(self, sizes, message):
        with pytest.raises(ValueError, match=message):
            ReplayBuffer(6).sample(*sizes, np.random.default_rng(0))

    @pytest.mark.parametrize(("name", "value"), [("capacity", 0), ("discount", 1.5), ("td_steps", 0)])
    def test_options(self, name, value):
        with pytest.raises(ValueError, match=f"{name} must .*; got {value}"):
            ReplayBuffer(**{"capacity": 10, name: value})

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"actions": np.zeros(0, np.int64)}, "an episode must have 1 to 6 steps; got 0"),
            ({"actions": np.zeros(7, np.int64)}, "got 7: raise the capacity"),
            ({"rewards": np.zeros(5)}, r"rewards must have the shape of \[T\]"),
            ({"values": np.zeros((4, 1))}, r"values must have the shape of \[T\]"),
            ({"policies": np.zeros(4)}, r"policies must have the shape of \[T, A\]"),
            ({"observations": np.zeros((3, 3))}, r"observations must have the shape of \[T, ...\]"),
            ({"values": np.array([0.0, np.nan, 0.0, 0.0])}, "values and rewards must be finite"),
            ({"final_value": np.nan}, "values and rewards must be finite"),
        ],
    )
    def test_episodes(self, changes, message):
        with pytest.raises(ValueError, match=message):
            ReplayBuffer(6).add(make_episode(4)._replace(**changes))

    def test_an_episode_unlike_the_first_changes_nothing(self):
        buffer = ReplayBuffer(6)
        buffer.add(make_episode(4))
        with pytest.raises(ValueError, match="policies must have the shape of the first"):
            buffer.add(make_episode(4)._replace(policies=np.full((4, 7), 1 / 7)))
        assert len(buffer) == 4
