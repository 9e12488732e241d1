"""Self-play on CartPole and board games, and the training that it feeds, which can be killed."""

import importlib
from dataclasses import replace
from functools import cache

import gymnasium
import numpy as np
import pytest

from gradtricks.agents import muzero_training
from gradtricks.agents.boards import TIC_TAC_TOE, BoardGames
from gradtricks.agents.cartpole import OBSERVATION_SCALE, CartPoleGames
from gradtricks.agents.frozen import FrozenAgent
from gradtricks.agents.history import History
from gradtricks.agents.muzero import SearchNetwork, draw_weights
from gradtricks.agents.muzero_training import Options, train
from gradtricks.agents.replay import ReplayBuffer
from gradtricks.agents.search import NotFiniteError
from gradtricks.agents.selfplay import SearchOptions, SelfPlay, play_to_the_end
from gradtricks.agents.supports import TICTACTOE_SUPPORT, Support

BACKENDS = ("torch", "tensorflow")
SUPPORT = Support(0, 15, 16)
WEIGHTS = draw_weights(3, state_size=8, hidden_size=16, support_size=SUPPORT.size, head_size=0.1)
WEIGHTS_64 = {name: value.astype(np.float64) for name, value in WEIGHTS.items()}
UNUSUAL = {"head_scale": 0.5, "scale_root_loss": True, "hidden_scale": 0.3, "weight_decay": 1e-3}
OPTIONS = Options(
    search=SearchOptions(num_simulations=4),
    batch_size=8,
    num_unroll_steps=3,
    moves_before_updates=8,
    piece_steps=6,
    td_steps=5,
    capacity=200,
)


def make_learner(agents, dtype="float32", **options):
    """Return a learner that hasn't learned yet: the same one for the same arguments, set back to its start.

    A new one would be compiled by TensorFlow anew, which takes longer than all that the tests do with it.
    """
    learner, start = make_one_for_all(agents.__name__, dtype, **options)
    learner.restore(start)
    return learner


@cache
def make_one_for_all(module, dtype, **options):
    learner = make_new_learner(importlib.import_module(module), dtype, **options)
    return learner, learner.state()


def make_new_learner(agents, dtype="float32", **options):
    weights = {name: value.astype(dtype) for name, value in WEIGHTS.items()}
    return agents.MuZeroLearner(
        weights, **{"optimizer": "adam", "weight_decay": 0.0, "device": "cpu", **options}
    )


def make_play(piece_steps=6, seed=0, games=4):
    replay = ReplayBuffer(500, discount=0.99, td_steps=5, support=SUPPORT)
    rng = np.random.default_rng(seed)
    search = SearchOptions(num_simulations=4)
    return SelfPlay(CartPoleGames(games, seed=seed), replay, search, piece_steps=piece_steps, rng=rng), replay


class TestGames:
    def test_are_those_of_gymnasium(self):
        games = CartPoleGames(5, seed=7)
        environment = gymnasium.make_vec("CartPole-v1", 5, vectorization_mode="vector_entry_point")
        observations, _ = environment.reset(seed=7)
        rng = np.random.default_rng(0)
        for _ in range(60):
            np.testing.assert_array_equal(games.observations, observations / OBSERVATION_SCALE)
            actions = rng.integers(2, size=5)
            rewards = games.step(actions)
            observations, expected, terminated, truncated, _ = environment.step(actions)
            np.testing.assert_array_equal(rewards, expected)
            np.testing.assert_array_equal(games.playing, ~(terminated | truncated))
            np.testing.assert_array_equal(games.ended, terminated)
        environment.close()


class TestSelfPlay:
    @pytest.mark.parametrize("piece_steps", [6, 100])
    def test_remembers_every_step_once(self, piece_steps):
        play, replay = make_play(piece_steps)
        network, returns, seen = SearchNetwork(WEIGHTS, SUPPORT), [], []
        for _ in range(40):
            playing, observations = play.games.playing, play.games.observations
            returns += play.move(network, 1.0)
            seen.append(observations[playing])
        waiting = play.state()["filled"].sum()
        assert len(replay) + waiting == sum(len(part) for part in seen)
        assert returns
        assert sum(returns) + play.state()["returns"].sum() == len(replay) + waiting
        # Rows of the replay are the observations in which somebody moved.
        remembered = replay.state()["column/observations"][: len(replay)]
        every = {row.tobytes() for part in seen for row in part}
        assert {row.tobytes() for row in remembered} <= every

    def test_pieces_end_as_games_do(self):
        play, replay = make_play(piece_steps=100)
        network = SearchNetwork(WEIGHTS, SUPPORT)
        returns = []
        while not returns:
            returns = play.move(network, 1.0)
        assert replay.state()["column/ended"][: len(replay)].all()
        play, replay = make_play(piece_steps=6)
        for _ in range(7):
            play.move(network, 1.0)
        assert len(replay) == 24
        assert not replay.state()["column/ended"][:24].any()

    def test_refuses_nonsense(self):
        with pytest.raises(ValueError, match="piece_steps must"):
            make_play(piece_steps=0)
        with pytest.raises(ValueError, match="num_envs must"):
            CartPoleGames(0)
        games, rng = BoardGames(TIC_TAC_TOE, 2), np.random.default_rng(0)
        replay = ReplayBuffer(10, two_players=True, support=TICTACTOE_SUPPORT)
        with pytest.raises(ValueError, match="must have two_players=True, as the games do; got False"):
            SelfPlay(games, replay, SearchOptions(), piece_steps=9, rng=rng)

    def test_games_are_played_to_their_ends(self):
        network, search = SearchNetwork(WEIGHTS, SUPPORT), SearchOptions(num_simulations=3)
        returns = play_to_the_end(network, search, CartPoleGames(6, seed=5))
        games, rng = CartPoleGames(6, seed=5), np.random.default_rng(0)
        expected, going_on = np.zeros(6), np.ones(6, bool)
        while going_on.any():
            chosen = search.choose(network, games.observations, rng)
            expected += games.step(chosen.action) * going_on
            going_on &= games.playing
        np.testing.assert_array_equal(returns, expected)


class TestTwoPlayers:
    WEIGHTS = draw_weights(
        3,
        state_size=8,
        hidden_size=16,
        observation_size=2 * TIC_TAC_TOE.squares,
        actions=TIC_TAC_TOE.actions,
        support_size=TICTACTOE_SUPPORT.size,
    )
    SEARCH = SearchOptions(num_simulations=6, discount=1.0, two_players=True)

    def test_games_follow_the_rules(self):
        games, rng = BoardGames(TIC_TAC_TOE, 16), np.random.default_rng(0)
        boards, over = TIC_TAC_TOE.empty_boards(16), np.zeros(16, bool)
        for _ in range(40):
            np.testing.assert_array_equal(games.observations, TIC_TAC_TOE.observe(boards))
            np.testing.assert_array_equal(games.playing, ~over)
            np.testing.assert_array_equal(games.ended, over)
            legal = TIC_TAC_TOE.legal_actions(boards)
            np.testing.assert_array_equal(games.invalid_actions, ~legal & ~over[:, None])
            actions = np.where(legal, rng.random(legal.shape), -1).argmax(axis=-1)
            rewards = games.step(actions)
            assert not rewards[over].any()
            going_on = ~over
            moved = TIC_TAC_TOE.step(boards[going_on], actions[going_on])
            np.testing.assert_array_equal(rewards[going_on], moved.rewards)
            boards, over = TIC_TAC_TOE.empty_boards(16), np.zeros(16, bool)
            boards[going_on], over[going_on] = moved.boards, moved.over

    def test_remembers_whole_games_and_who_won(self):
        replay = ReplayBuffer(500, discount=1.0, td_steps=None, two_players=True, support=TICTACTOE_SUPPORT)
        rng = np.random.default_rng(0)
        play = SelfPlay(BoardGames(TIC_TAC_TOE, 8), replay, self.SEARCH, piece_steps=9, rng=rng)
        network, returns = SearchNetwork(self.WEIGHTS, TICTACTOE_SUPPORT), []
        for _ in range(30):
            returns += play.move(network, 1.0)
        assert {-1.0, 1.0} <= set(returns) <= {-1.0, 0.0, 1.0}
        state = replay.state()
        firsts = np.flatnonzero(~state["column/observations"][: len(replay)].any(axis=-1))
        # Perfect information: with all rewards in it, a game's first target is its outcome.
        np.testing.assert_allclose(state["column/values"][firsts], returns)

    def test_learns_and_plays_a_match(self):
        agents = pytest.importorskip("gradtricks.agents.torch")
        learner = agents.MuZeroLearner(self.WEIGHTS, optimizer="adam", device="cpu")
        options = replace(OPTIONS, search=self.SEARCH, td_steps=None, piece_steps=9)
        history = train(
            learner,
            BoardGames(TIC_TAC_TOE, 8),
            options,
            decisions=160,
            support=TICTACTOE_SUPPORT,
            measurements=1,
        )
        assert history.losses
        agent = FrozenAgent(
            learner.copy_weights(), game="tic-tac-toe", support=TICTACTOE_SUPPORT, search=self.SEARCH
        )
        assert set(agent.play(5)) <= {-1, 0}

    def test_known_bounds_reach_the_search(self):
        network = SearchNetwork(self.WEIGHTS, TICTACTOE_SUPPORT)
        search = replace(self.SEARCH, qtransform="by_min_max", min_value=-9, max_value=np.int64(9))
        chosen = search.choose(
            network, TIC_TAC_TOE.observe(TIC_TAC_TOE.empty_boards(3)), np.random.default_rng(0)
        )
        assert (chosen.search_tree.min_values == -9).all()
        assert (chosen.search_tree.max_values == 9).all()


class TestLearner:
    @pytest.mark.parametrize("optimizer", ["adam", "momentum"])
    def test_updates_are_the_same_in_both_frameworks(self, optimizer):
        for name in BACKENDS:
            pytest.importorskip(name)
        play, replay = make_play()
        for _ in range(30):
            play.move(SearchNetwork(WEIGHTS, SUPPORT), 1.0)
        drawn = [replay.sample(8, 3, np.random.default_rng(i)) for i in range(3)]
        losses, weights = [], []
        for name in BACKENDS:
            agents = importlib.import_module(f"gradtricks.agents.{name}")
            learner = make_learner(agents, "float64", optimizer=optimizer, **UNUSUAL)
            gradients, _ = learner.gradients(drawn[0], **learner.scales._asdict())
            losses.append([learner.update(batch, learning_rate=0.01) for batch in drawn])
            weights.append(learner.copy_weights())
        np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
        for name in WEIGHTS:
            # Keras has its rates in 32 bits.
            np.testing.assert_allclose(weights[0][name], weights[1][name], rtol=1e-6, atol=1e-6)
            assert np.abs(weights[0][name] - WEIGHTS_64[name]).max() > 0
        if optimizer == "adam":  # whose first step is by the sign
            learner = make_learner(agents, "float64", optimizer=optimizer, **UNUSUAL)
            learner.update(drawn[0], learning_rate=0.01)
            for name, weight in learner.copy_weights().items():
                gradient = gradients[name] + 1e-3 * WEIGHTS_64[name]
                step = -0.01 * gradient / (np.abs(gradient) + 1e-8)
                np.testing.assert_allclose(weight - WEIGHTS_64[name], step, rtol=1e-4, atol=1e-7)

    def test_heads_can_begin_small(self):
        small, usual = (draw_weights(3, head_size=size) for size in (0.1, 1.0))
        for name, value in usual.items():
            head = name.startswith(("prediction/value", "prediction/policy", "dynamics/reward"))
            np.testing.assert_allclose(small[name], (0.1 if head else 1.0) * value, rtol=1e-6)


class TestTraining:
    def run(self, learner, moves=60, options=OPTIONS, **more):
        return train(
            learner,
            CartPoleGames(4),
            options,
            decisions=4 * moves,
            support=SUPPORT,
            **{"measurements": 3, **more},
        )

    def test_measures_gradients_as_often_as_it_is_told_which_changes_nothing(self, agents):
        learner = make_learner(agents)
        history = self.run(learner)
        expected = learner.state()
        # Gradients were measured as often as was told, the last time at the end, which changed nothing.
        assert len(history.norm_times) == 3
        assert history.norm_times[-1] == history.decisions == 240
        assert np.shape(history.norms["states"]) == (3, OPTIONS.num_unroll_steps + 1)
        assert min(history.norms["dynamics"]) > 0
        learner = make_learner(agents)
        assert self.run(learner, measurements=0).losses == history.losses
        for name, value in learner.state().items():
            np.testing.assert_array_equal(value, expected[name])

    def test_a_trial_that_is_passed_ends_it(self, agents):
        tried, options = [], replace(OPTIONS, moves_between_trials=12)

        def good_enough(network):
            tried.append(play_to_the_end(network, OPTIONS.search, CartPoleGames(2)).mean())
            return len(tried) == 3

        learner = make_learner(agents)
        history = self.run(learner, options=options, good_enough=good_enough)
        assert history.decisions == history.loss_times[-1] == 36 * 4
        # What was tried is what is kept, and to be tried changes nothing.
        network = SearchNetwork(learner.copy_weights(), SUPPORT)
        assert play_to_the_end(network, OPTIONS.search, CartPoleGames(2)).mean() == tried[-1]
        undisturbed = self.run(make_learner(agents), options=options).losses
        assert history.losses == undisturbed[: len(history.losses)]

    def test_refuses_a_loss_that_diverges(self, agents):
        history = History()
        with pytest.raises(NotFiniteError, match="training diverged"):
            self.run(make_learner(agents), options=replace(OPTIONS, learning_rate=1e30), history=history)
        assert 0 < history.decisions < 60 * 4  # what happened before is known

    def test_a_training_is_long_enough_for_an_update(self):
        learner = make_learner(pytest.importorskip("gradtricks.agents.torch"))
        history = self.run(learner, OPTIONS.moves_before_updates + 1)
        assert history.loss_times == history.norm_times == [history.decisions]
        needed = "decisions must be at least 36, 9 moves in 4 games, since the first 8 teach nothing; got 35"
        with pytest.raises(ValueError, match=needed):
            train(None, CartPoleGames(4), OPTIONS, decisions=35)
        options = replace(OPTIONS, moves_before_updates=1, piece_steps=128)
        with pytest.raises(ValueError, match=r"a game must end or last for 128 moves.* in 2 moves; remedy"):
            train(learner, CartPoleGames(1), options, decisions=2, support=SUPPORT)

    def test_plays_with_other_random_numbers_than_the_weights_were_drawn_with(self, monkeypatch):
        def caught(games, replay, search, *, piece_steps, rng):
            raise KeyboardInterrupt(rng)

        monkeypatch.setattr(muzero_training, "SelfPlay", caught)
        with pytest.raises(KeyboardInterrupt) as raised:
            train(None, CartPoleGames(4), OPTIONS, decisions=400, seed=3)
        [rng], first = raised.value.args, draw_weights(3)["representation/hidden/kernel"]
        assert not np.isin(rng.normal(0, 0.5, first.shape).astype(np.float32), first).any()

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"batch_size": 0}, "batch_size must"),
            ({"capacity": 3}, "capacity must"),
            ({"learning_rate": -1.0}, "learning_rate must"),
            ({"temperature": np.nan}, "temperature must"),
            ({"search": {"num_simulations": 0}}, "num_simulations must"),
            ({"search": {"discount": -1.0}}, "discount must"),
        ],
    )
    def test_options_are_checked(self, changes, message):
        with pytest.raises(ValueError, match=message):
            replace(OPTIONS, **changes) if "search" not in changes else SearchOptions(**changes["search"])


class TestCurve:
    def make(self, *returns):
        history = History()
        for some in returns:
            history.add_decisions(10, some)
        return history

    def test_has_parts_with_as_many_decisions(self):
        curve = self.make([], [4.0, 6.0], [], [8.0], []).curve(5)
        np.testing.assert_array_equal(curve.decisions, [10, 20, 30, 40, 50])
        np.testing.assert_array_equal(curve.games, [0, 2, 0, 1, 0])
        np.testing.assert_array_equal(curve.mean_returns, [np.nan, 5, np.nan, 8, np.nan])
        # The area bridges parts in which no game ended.
        assert curve.area == pytest.approx(np.mean([5, 5, 6.5, 8, 8]))
        # A part ends with its last decision.
        np.testing.assert_array_equal(self.make([1.0], [2.0], [3.0], [4.0]).curve(2).mean_returns, [1.5, 3.5])
        assert np.isnan(self.make([], []).curve(2).area)
        with pytest.raises(ValueError, match="windows must be at least 1; got 0"):
            self.make([1.0]).curve(0)
