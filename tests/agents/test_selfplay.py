"""Self-play on CartPole and board games, and the training that it feeds."""

from dataclasses import replace
from functools import cache

import gymnasium
import numpy as np
import pytest

from gradtricks.agents import load
from gradtricks.agents.muzero import loop
from gradtricks.agents.muzero.boards import TIC_TAC_TOE, BoardGames
from gradtricks.agents.muzero.cartpole import OBSERVATION_SCALE, CartPoleGames
from gradtricks.agents.muzero.deciding import GumbelOptions, SearchOptions
from gradtricks.agents.muzero.frozen import FrozenAgent
from gradtricks.agents.muzero.loop import Options, train
from gradtricks.agents.muzero.network import SearchNetwork, draw_weights
from gradtricks.agents.muzero.replay import ReplayBuffer
from gradtricks.agents.muzero.selfplay import SelfPlay, play_to_the_end
from gradtricks.agents.muzero.supports import Support
from gradtricks.agents.training import History, NotFiniteError

THREE = Support(-1, 1, 3)  # categories: lost, drawn, won
SUPPORT = Support(0, 15, 16)
WEIGHTS = draw_weights(3, state_size=8, hidden_size=16, support_size=SUPPORT.size, head_size=0.1)
NETWORK = SearchNetwork(WEIGHTS, SUPPORT)
OPTIONS = Options(
    search=SearchOptions(num_simulations=4),
    batch_size=8,
    num_unroll_steps=3,
    moves_before_updates=8,
    piece_steps=6,
    td_steps=5,
    capacity=200,
)


@cache
def made_once(agents):
    learner = agents.MuZeroLearner(WEIGHTS, optimizer="adam", weight_decay=0.0, device="cpu")
    return learner, learner.state()


@pytest.fixture
def learner(agents):
    """The same one for all tests, back at its start: to compile another takes longer than what they do."""
    learner, start = made_once(agents)
    learner.restore(start)
    return learner


def make_play(piece_steps):
    replay = ReplayBuffer(500, discount=0.99, td_steps=5, support=SUPPORT)
    options = {"piece_steps": piece_steps, "rng": np.random.default_rng(0)}
    return SelfPlay(CartPoleGames(4), replay, OPTIONS.search, **options), replay


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
        returns, seen = [], []
        for _ in range(40):
            playing, observations = play.games.playing, play.games.observations
            returns += play.move(NETWORK, 1.0)
            seen.append(observations[playing])
        waiting = play.state()["filled"].sum()
        assert len(replay) + waiting == sum(len(part) for part in seen)
        assert returns
        assert sum(returns) + play.state()["returns"].sum() == len(replay) + waiting
        # Rows of the replay are the observations in which somebody moved.
        remembered = replay.state()["column/observations"][: len(replay)]
        every = {row.tobytes() for part in seen for row in part}
        assert {row.tobytes() for row in remembered} <= every

    def test_remembers_the_policy_that_a_search_found(self):
        search, replay = GumbelOptions(num_simulations=2), ReplayBuffer(500, support=SUPPORT)
        play = SelfPlay(CartPoleGames(4, seed=2), replay, search, piece_steps=1, rng=np.random.default_rng(0))
        observations = play.games.observations
        play.move(NETWORK, 1.0)
        play.move(NETWORK, 1.0)  # before which the pieces of the first are full
        chosen = search.choose(NETWORK, observations, np.random.default_rng(0), noise=True)
        np.testing.assert_allclose(replay.state()["column/policies"][:4], chosen.action_weights, rtol=1e-6)

    def test_pieces_end_as_games_do(self):
        play, replay = make_play(100)
        while not play.move(NETWORK, 1.0):
            pass
        assert replay.state()["column/ended"][: len(replay)].all()
        play, replay = make_play(6)
        for _ in range(7):
            play.move(NETWORK, 1.0)
        assert len(replay) == 24
        assert not replay.state()["column/ended"][:24].any()

    def test_refuses_nonsense(self):
        with pytest.raises(ValueError, match="piece_steps must"):
            make_play(0)
        with pytest.raises(ValueError, match="num_envs must"):
            CartPoleGames(0)
        games, rng = BoardGames(TIC_TAC_TOE, 2), np.random.default_rng(0)
        replay = ReplayBuffer(10, two_players=True, support=THREE)
        with pytest.raises(ValueError, match="must have two_players=True, as the games do; got False"):
            SelfPlay(games, replay, SearchOptions(), piece_steps=9, rng=rng)

    def test_games_are_played_to_their_ends(self):
        returns = play_to_the_end(NETWORK, OPTIONS.search, CartPoleGames(6, seed=5))
        games, rng = CartPoleGames(6, seed=5), np.random.default_rng(0)
        expected, going_on = np.zeros(6), np.ones(6, bool)
        while going_on.any():
            chosen = OPTIONS.search.choose(NETWORK, games.observations, rng)
            expected += games.step(chosen.action) * going_on
            going_on &= games.playing
        np.testing.assert_array_equal(returns, expected)


class TestTwoPlayers:
    WEIGHTS = draw_weights(3, state_size=8, hidden_size=16, observation_size=18, actions=9, support_size=3)
    NETWORK = SearchNetwork(WEIGHTS, THREE)
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
        replay = ReplayBuffer(500, discount=1.0, td_steps=None, two_players=True, support=THREE)
        rng = np.random.default_rng(0)
        play = SelfPlay(BoardGames(TIC_TAC_TOE, 8), replay, self.SEARCH, piece_steps=9, rng=rng)
        returns = []
        for _ in range(30):
            returns += play.move(self.NETWORK, 1.0)
        assert {-1.0, 1.0} <= set(returns) <= {-1.0, 0.0, 1.0}
        state = replay.state()
        firsts = np.flatnonzero(~state["column/observations"][: len(replay)].any(axis=-1))
        # Perfect information: with all rewards in it, a game's first target is its outcome.
        np.testing.assert_allclose(state["column/values"][firsts], returns)

    def test_learns_and_plays_a_match(self, in_torch):
        learner = load(in_torch.name).MuZeroLearner(self.WEIGHTS, optimizer="adam", device="cpu")
        options = replace(OPTIONS, search=self.SEARCH, td_steps=None, piece_steps=9)
        games = BoardGames(TIC_TAC_TOE, 8)
        assert train(learner, games, options, decisions=160, support=THREE).losses
        kept = {"game": "tic-tac-toe", "support": THREE, "search": self.SEARCH}
        assert set(FrozenAgent(learner.copy_weights(), **kept).play(5)) <= {-1, 0}

    def test_known_bounds_reach_the_search(self):
        search = replace(self.SEARCH, qtransform="by_min_max", min_value=-9, max_value=np.int64(9))
        boards = TIC_TAC_TOE.observe(TIC_TAC_TOE.empty_boards(3))
        tree = search.choose(self.NETWORK, boards, np.random.default_rng(0)).search_tree
        assert (tree.min_values == -9).all()
        assert (tree.max_values == 9).all()


WRONG = {"batch_size": 0, "capacity": 3, "learning_rate": -1.0, "temperature": np.nan}
WRONG |= {"num_simulations": 0, "discount": -1.0}


class TestTraining:
    def run(self, learner, moves=60, options=OPTIONS, **more):
        return train(learner, CartPoleGames(4), options, decisions=4 * moves, support=SUPPORT, **more)

    def test_measuring_gradients_changes_nothing(self, learner):
        start = learner.state()
        history, expected = self.run(learner, measurements=3), learner.state()
        assert len(history.norm_times) == 3
        assert history.norm_times[-1] == history.decisions == 240
        assert np.shape(history.norms["states"]) == (3, OPTIONS.num_unroll_steps + 1)
        assert min(history.norms["dynamics"]) > 0
        learner.restore(start)
        assert self.run(learner).losses == history.losses
        for name, value in learner.state().items():
            np.testing.assert_array_equal(value, expected[name])

    def test_a_trial_that_is_passed_ends_it(self, learner):
        tried, options, start = [], replace(OPTIONS, moves_between_trials=12), learner.state()

        def good_enough(network):
            tried.append(play_to_the_end(network, OPTIONS.search, CartPoleGames(2)).mean())
            return len(tried) == 3

        history = self.run(learner, options=options, good_enough=good_enough)
        assert history.decisions == history.loss_times[-1] == 36 * 4
        # What was tried is what is kept, and to be tried changes nothing.
        network = SearchNetwork(learner.copy_weights(), SUPPORT)
        assert play_to_the_end(network, OPTIONS.search, CartPoleGames(2)).mean() == tried[-1]
        learner.restore(start)
        assert history.losses == self.run(learner, options=options).losses[: len(history.losses)]

    def test_is_traced_once_in_tensorflow(self, in_tensorflow):
        learner, _ = made_once(load(in_tensorflow.name))
        self.run(learner, moves=12)
        assert learner._update_graph.experimental_get_tracing_count() == 1

    def test_refuses_a_loss_that_diverges(self, learner):
        history = History()
        with pytest.raises(NotFiniteError, match="training diverged"):
            self.run(learner, options=replace(OPTIONS, learning_rate=1e30), history=history)
        assert 0 < history.decisions < 60 * 4  # what happened before is known

    def test_is_long_enough_for_an_update(self, learner):
        history = self.run(learner, OPTIONS.moves_before_updates + 1, measurements=3)
        assert history.loss_times == history.norm_times == [history.decisions]
        needed = "decisions must be at least 36, 9 moves in 4 games, since the first 8 teach nothing; got 35"
        with pytest.raises(ValueError, match=needed):
            train(None, CartPoleGames(4), OPTIONS, decisions=35)
        options = replace(OPTIONS, search=replace(OPTIONS.search, two_players=True))
        with pytest.raises(ValueError, match=r"games' observations and actions, \(18, 9\); got \(4, 2\)"):
            train(learner, BoardGames(TIC_TAC_TOE, 4), options, decisions=400)
        options = replace(OPTIONS, moves_before_updates=1, piece_steps=128)
        with pytest.raises(ValueError, match=r"a game must end or last for 128 moves.* in 2 moves; remedy"):
            train(learner, CartPoleGames(1), options, decisions=2, support=SUPPORT)

    def test_play_and_weights_have_other_random_numbers(self, monkeypatch):
        def caught(games, replay, search, *, piece_steps, rng):
            raise KeyboardInterrupt(rng)

        monkeypatch.setattr(loop, "SelfPlay", caught)
        with pytest.raises(KeyboardInterrupt) as raised:
            train(None, CartPoleGames(4), OPTIONS, decisions=400, seed=3)
        [rng], first = raised.value.args, draw_weights(3)["representation/hidden/kernel"]
        assert not np.isin(rng.normal(0, 0.5, first.shape).astype(np.float32), first).any()

    @pytest.mark.parametrize(("name", "value"), WRONG.items())
    def test_options_are_checked(self, name, value):
        options = OPTIONS.search if hasattr(OPTIONS.search, name) else OPTIONS
        with pytest.raises(ValueError, match=f"{name} must .*; got {value}"):
            replace(options, **{name: value})


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
