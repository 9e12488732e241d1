"""Self-play on CartPole and board games, and the training that it feeds, which can be killed."""

import importlib
from dataclasses import replace
from functools import cache

import gymnasium
import numpy as np
import pytest

from gradtricks.agents import checkpoints, muzero_training, players
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


@pytest.fixture(params=BACKENDS)
def agents(request):
    pytest.importorskip(request.param)
    return importlib.import_module(f"gradtricks.agents.{request.param}")


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

    def test_go_on_from_where_they_were(self):
        games, again, rng = CartPoleGames(4, seed=1), CartPoleGames(4, seed=2), np.random.default_rng(0)
        actions = rng.integers(2, size=(80, 4))
        for row in actions[:31]:
            games.step(row)
        again.restore(games.state())
        for row in actions[31:]:
            np.testing.assert_array_equal(again.observations, games.observations)
            np.testing.assert_array_equal(again.playing, games.playing)
            np.testing.assert_array_equal(again.ended, games.ended)
            np.testing.assert_array_equal(again.step(row), games.step(row))

    def test_what_is_saved_doesnt_change(self):
        games = CartPoleGames(2)
        state = games.state()
        before = {name: array.copy() for name, array in state.items()}
        for _ in range(30):
            games.step(np.ones(2, np.int64))
        for name, array in state.items():
            np.testing.assert_array_equal(array, before[name])

    def test_refuse_no_games(self):
        with pytest.raises(ValueError, match="num_envs must"):
            CartPoleGames(0)


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

    def test_goes_on_from_where_it_was(self):
        network = SearchNetwork(WEIGHTS, SUPPORT)
        whole, replay = make_play()
        for _ in range(25):
            whole.move(network, 1.0)
        again, replay_again = make_play(seed=9)
        again.restore(whole.state())
        again.games.restore(whole.games.state())
        replay_again.restore(replay.state())
        checkpoints.Chance(again._rng).restore(checkpoints.Chance(whole._rng).state())
        for _ in range(25):
            assert again.move(network, 0.5) == whole.move(network, 0.5)
        for name, array in replay.state().items():
            np.testing.assert_array_equal(replay_again.state()[name], array)
        first, second = (memory.sample(16, 3, np.random.default_rng(1)) for memory in (replay, replay_again))
        for one, other in zip(first, second, strict=True):
            np.testing.assert_array_equal(one, other)

    def test_refuses_empty_pieces(self):
        with pytest.raises(ValueError, match="piece_steps must"):
            make_play(piece_steps=0)

    def test_refuses_a_search_for_another_number_of_players(self):
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

    def test_learns_and_plays_a_match(self, agents):
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

    def test_games_go_on_from_where_they_were(self):
        games, again, rng = BoardGames(TIC_TAC_TOE, 4), BoardGames(TIC_TAC_TOE, 4), np.random.default_rng(0)
        for _ in range(5):
            boards = np.where(games.playing[:, None], games._boards, 0)
            games.step(players.play_randomly(TIC_TAC_TOE)(boards, rng))
        again.restore(games.state())
        np.testing.assert_array_equal(again.observations, games.observations)
        np.testing.assert_array_equal(again.invalid_actions, games.invalid_actions)
        np.testing.assert_array_equal(again.playing, games.playing)


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
            losses.append([learner.update(batch, learning_rate=0.01) for batch in drawn])
            weights.append(learner.copy_weights())
        np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
        for name in WEIGHTS:
            np.testing.assert_allclose(
                weights[0][name], weights[1][name], rtol=1e-6, atol=1e-6
            )  # Keras has its rates in 32 bits
            assert np.abs(weights[0][name] - WEIGHTS_64[name]).max() > 0

    def test_adam_takes_its_first_step_by_the_sign(self, agents):
        play, replay = make_play()
        for _ in range(30):
            play.move(SearchNetwork(WEIGHTS, SUPPORT), 1.0)
        batch = replay.sample(8, 3, np.random.default_rng(0))
        learner = make_learner(agents, "float64", optimizer="adam", **UNUSUAL)
        gradients, _ = learner.gradients(batch, **learner.scales._asdict())
        learner.update(batch, learning_rate=0.01)
        for name, weight in learner.copy_weights().items():
            gradient = gradients[name] + 1e-3 * WEIGHTS_64[name]
            step = -0.01 * gradient / (np.abs(gradient) + 1e-8)
            np.testing.assert_allclose(weight - WEIGHTS_64[name], step, rtol=1e-4, atol=1e-7)

    def test_refuses_other_optimizers(self, agents):
        with pytest.raises(ValueError, match="optimizer must be one of 'momentum', 'adam'; got 'sgd'"):
            agents.MuZeroLearner(WEIGHTS, optimizer="sgd")

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

    def test_killed_and_resumed_ends_the_same(self, agents, tmp_path, monkeypatch):
        learner = make_learner(agents)
        history = self.run(learner)
        expected = learner.state()
        monkeypatch.setattr(checkpoints, "_SECONDS_BETWEEN", 0.0)
        learn, calls = muzero_training._learn, []

        def killed(*arguments):
            calls.append(1)
            if len(calls) == 31:
                raise KeyboardInterrupt
            return learn(*arguments)

        monkeypatch.setattr(muzero_training, "_learn", killed)
        path = tmp_path / "training.safetensors"
        with pytest.raises(KeyboardInterrupt):
            self.run(make_learner(agents), checkpoint=path)
        assert path.exists()
        before = len(calls)
        resumed = make_new_learner(agents)  # as in a new process, with nothing left from before
        resumed_history = self.run(resumed, checkpoint=path)
        assert 0 < len(calls) - before < len(history.losses)
        for name, value in expected.items():
            np.testing.assert_array_equal(resumed.state()[name], value)
        timeless = [name for name in history.state() if not name.endswith("seconds")]
        for name in timeless:
            np.testing.assert_array_equal(resumed_history.state()[name], history.state()[name])
        assert resumed_history.game_times == history.game_times
        assert np.all(np.diff(resumed_history.seconds) >= 0)

    def test_a_checkpoint_of_another_training_is_refused(self, agents, tmp_path, monkeypatch):
        monkeypatch.setattr(checkpoints, "_SECONDS_BETWEEN", 0.0)
        path = tmp_path / "training.safetensors"
        numbers = {"seed": np.int64(0), "options": replace(OPTIONS, batch_size=np.int32(8))}
        self.run(make_learner(agents), 20, checkpoint=path, **numbers)  # of NumPy, as a table has them
        with pytest.raises(ValueError, match="must be of the same training"):
            self.run(make_learner(agents), 20, checkpoint=path, options=replace(OPTIONS, batch_size=4))

    def test_measures_gradients_as_often_as_it_is_told(self, agents):
        history = self.run(make_learner(agents))
        assert len(history.norm_times) == 3
        assert history.norm_times[-1] == history.decisions == 240
        assert np.shape(history.norms["states"]) == (3, OPTIONS.num_unroll_steps + 1)
        assert min(history.norms["dynamics"]) > 0

    def test_measuring_changes_nothing(self, agents):
        learner = make_learner(agents)
        losses = self.run(learner).losses
        expected = learner.copy_weights()
        learner = make_learner(agents)
        assert self.run(learner, measurements=0).losses == losses
        for name, value in learner.copy_weights().items():
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

    def test_the_fewest_decisions_are_enough_for_an_update(self, agents):
        history = self.run(make_learner(agents), OPTIONS.moves_before_updates + 1)
        assert history.loss_times == history.norm_times == [history.decisions]

    def test_refuses_too_few_decisions_before_anything_is_done(self):
        needed = "decisions must be at least 36, 9 moves in 4 games, since the first 8 teach nothing; got 35"
        with pytest.raises(ValueError, match=needed):
            train(None, CartPoleGames(4), OPTIONS, decisions=35)

    def test_refuses_to_end_with_nothing_to_learn_from(self, agents):
        options = replace(OPTIONS, moves_before_updates=1, piece_steps=128)
        with pytest.raises(ValueError, match=r"a game must end or last for 128 moves.* in 2 moves; remedy"):
            train(make_learner(agents), CartPoleGames(1), options, decisions=2, support=SUPPORT)

    def begin(self, monkeypatch, options=OPTIONS, **arguments):
        """Return the replay and the generator with which a training begins."""
        begun = []

        def caught(games, replay, search, *, piece_steps, rng):
            begun.extend([replay, rng])
            raise KeyboardInterrupt

        monkeypatch.setattr(muzero_training, "SelfPlay", caught)
        with pytest.raises(KeyboardInterrupt):
            train(None, CartPoleGames(4), options, decisions=400, **arguments)
        return begun

    def test_plays_with_other_random_numbers_than_the_weights_were_drawn_with(self, monkeypatch):
        _, rng = self.begin(monkeypatch, seed=3)
        first = draw_weights(3)["representation/hidden/kernel"]
        assert not np.isin(rng.normal(0, 0.5, first.shape).astype(np.float32), first).any()

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"batch_size": 0}, "batch_size must"),
            ({"capacity": 3}, "capacity must"),
            ({"learning_rate": -1.0}, "learning_rate must"),
            ({"temperature": np.nan}, "temperature must"),
        ],
    )
    def test_options_are_checked(self, changes, message):
        with pytest.raises(ValueError, match=message):
            replace(OPTIONS, **changes)

    def test_search_options_are_checked(self):
        with pytest.raises(ValueError, match="num_simulations must"):
            SearchOptions(num_simulations=0)
        with pytest.raises(ValueError, match="discount must"):
            SearchOptions(discount=-1.0)


class TestCurve:
    def make(self, *returns):
        history = History()
        for some in returns:
            history.add_decisions(10, some)
        return history

    def test_counts_the_games_of_each_part_and_averages_them(self):
        curve = self.make([], [4.0, 6.0], [], [8.0]).curve(4)
        np.testing.assert_array_equal(curve.decisions, [10, 20, 30, 40])
        np.testing.assert_array_equal(curve.games, [0, 2, 0, 1])
        np.testing.assert_array_equal(curve.mean_returns, [np.nan, 5, np.nan, 8])

    def test_a_part_ends_with_its_last_decision(self):
        curve = self.make([1.0], [2.0], [3.0], [4.0]).curve(2)
        np.testing.assert_array_equal(curve.mean_returns, [1.5, 3.5])

    def test_the_area_bridges_parts_in_which_no_game_ended(self):
        curve = self.make([], [4.0, 6.0], [], [8.0], []).curve(5)
        assert curve.area == pytest.approx(np.mean([5, 5, 6.5, 8, 8]))

    def test_the_area_is_the_mean_where_games_ended_in_every_part(self):
        assert self.make([4.0, 6.0], [7.0]).curve(2).area == 6

    def test_without_games_there_is_no_area(self):
        curve = self.make([], []).curve(2)
        np.testing.assert_array_equal(curve.mean_returns, [np.nan, np.nan])
        assert np.isnan(curve.area)

    def test_refuses_no_parts(self):
        with pytest.raises(ValueError, match="windows must be at least 1; got 0"):
            self.make([1.0]).curve(0)
