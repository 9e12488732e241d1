"""Tic-tac-toe against a recursive minimax and what is known of the game; Connect Four where it differs."""

from functools import cache, partial

import numpy as np
import pytest

from gradtricks.agents.muzero import players
from gradtricks.agents.muzero.boards import CONNECT_FOUR, TIC_TAC_TOE, BoardGames
from gradtricks.agents.muzero.players import look_ahead, rate_moves
from gradtricks.agents.muzero.searching import muzero_policy
from gradtricks.agents.muzero.trees import RootFnOutput
from gradtricks.agents.training import Snapshots

step, find_winners, legal_actions = TIC_TAC_TOE.step, TIC_TAC_TOE.find_winners, TIC_TAC_TOE.legal_actions
empty_boards, observe = TIC_TAC_TOE.empty_boards, TIC_TAC_TOE.observe
play_perfectly, play_randomly = look_ahead(TIC_TAC_TOE), TIC_TAC_TOE.play_randomly
play_games = partial(players.play_games, TIC_TAC_TOE)
find_lost_ends = partial(players.find_lost_ends, TIC_TAC_TOE)

FULL = np.array([1, -1, 1, 1, -1, -1, -1, 1, 1], np.int8)  # a drawn game, in which nothing can be done
ROWS = ["012", "345", "678", "036", "147", "258", "048", "246"]


def board(text):
    """Make a board of text: m is the player's whose turn it is, o the other's."""
    return np.array([[{"m": 1, "o": -1, ".": 0}[square] for square in text.replace(" ", "")]], np.int8)


def text_of(squares):
    return "".join({1: "m", -1: "o", 0: "."}[int(square)] for square in squares)


def has_line(position, player):
    return any(all(position[int(square)] == player for square in row) for row in ROWS)


def move(position, square):
    placed = position[:square] + "m" + position[square + 1 :]
    return placed.translate(str.maketrans("mo", "om"))


@cache
def minimax(position):
    """Return the value for the player whose turn it is."""
    if has_line(position, "o"):
        return -1
    free = [square for square in range(9) if position[square] == "."]
    return max((-minimax(move(position, square)) for square in free), default=0)


@cache
def reachable_boards():
    plies = [empty_boards(1)]
    while len(plies[-1]):
        rows, actions = np.nonzero(legal_actions(plies[-1]))
        plies.append(np.unique(step(plies[-1][rows], actions).boards, axis=0))
    return np.concatenate(plies)


def best_moves(boards, rules=TIC_TAC_TOE):
    rated = rate_moves(rules, boards, rules.depth)
    return (rated == rated.max(axis=-1, keepdims=True)) & (rated > -2)


class TestRules:
    def test_the_board_turns_to_the_other_player(self):
        before = empty_boards(2)
        moved = step(before, np.array([4, 0]))
        assert not before.any()
        np.testing.assert_array_equal(moved.boards, [*board("....o...."), *board("o........")])

    def test_winners_of_all_positions(self):
        boards = reachable_boards()
        expected = [has_line(text_of(b), "m") - int(has_line(text_of(b), "o")) for b in boards]
        np.testing.assert_array_equal(find_winners(boards), expected)

    def test_observation(self):
        expected = [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0]
        np.testing.assert_array_equal(observe(board("m.. .o. ..."))[0], expected)

    @pytest.mark.parametrize(
        ("position", "action", "message"),
        [
            ("m.. .o. ...", 0, "got 0 in game 0"),
            ("... ... ...", 9, "got 9 in game 0"),
            ("... ... ...", -1, "got -1 in game 0"),
            ("ooo mm. ...", 5, "a game that isn't over; got 5 in game 0"),
        ],
    )
    def test_refuses(self, position, action, message):
        with pytest.raises(ValueError, match=message):
            step(board(position), np.array([action]))

    def test_shapes_are_checked(self):
        with pytest.raises(ValueError, match=r"boards must have the shape of \[E, 9\]"):
            step(np.zeros((1, 8), np.int8), np.array([0]))
        with pytest.raises(ValueError, match=r"actions must have the shape of \[E\]"):
            step(empty_boards(2), np.array([0]))


class TestPerfectPlay:
    def test_counts_known_of_the_game(self):
        boards = reachable_boards()
        assert len(boards) == 5478
        over = ~legal_actions(boards).any(-1)
        first_moves = (boards == 1).sum(-1) == (boards == -1).sum(-1)
        winners = find_winners(boards)[over] * np.where(first_moves, 1, -1)[over]
        assert [(winners == who).sum() for who in (1, -1, 0)] == [626, 316, 16]

    def test_moves_are_worth_what_minimax_says(self):
        boards = reachable_boards()
        for squares, rated in zip(boards, rate_moves(TIC_TAC_TOE, boards, 9)):
            position = text_of(squares)
            over = has_line(position, "o") or has_line(position, "m")
            legal = [not over and square == "." for square in position]
            assert rated.tolist() == [-minimax(move(position, s)) if legal[s] else -2 for s in range(9)]

    def test_who_looks_one_move_ahead_sees_only_wins(self):
        boards = np.concatenate([board("mm. oo. ..."), board("oo. m.. .m.")])
        np.testing.assert_array_equal(
            rate_moves(TIC_TAC_TOE, boards, 1),
            [[-2, -2, 1, -2, -2, 0, 0, 0, 0], [-2, -2, 0, -2, 0, 0, 0, -2, 0]],
        )
        np.testing.assert_array_equal(rate_moves(TIC_TAC_TOE, boards[1:], 2)[0, [2, 4]], [0, -1])


class TestPlayers:
    def test_perfect_players_never_lose(self):
        for first, second, ends in (
            (play_perfectly, play_perfectly, {0}),
            (play_perfectly, play_randomly, {0, 1}),
            (play_randomly, play_perfectly, {0, -1}),
        ):
            assert set(play_games(first, second, 1000, np.random.default_rng(0))) == ends

    def test_random_games_end_as_chance_has_it(self):
        # Known: the first player wins 58.49 %, the second 28.81 %.
        outcomes = play_games(play_randomly, play_randomly, 40_000, np.random.default_rng(0))
        assert abs((outcomes == 1).mean() - 0.5849) < 0.01
        assert abs((outcomes == -1).mean() - 0.2881) < 0.01

    def test_every_best_move_is_played(self):
        actions = play_perfectly(empty_boards(2000), np.random.default_rng(0))
        assert set(actions) == set(range(9))  # from an empty board every move keeps the draw

    def test_no_games_are_refused(self):
        with pytest.raises(ValueError, match="games must be at least 1; got 0"):
            play_games(play_randomly, play_randomly, 0, np.random.default_rng(0))


class TestSearch:
    """The tree search, given the rules instead of a network, and nothing else."""

    @staticmethod
    def recurrent_fn(boards, actions):
        count = len(boards)
        legal = legal_actions(boards)[np.arange(count), actions]
        following, rewards, over = empty_boards(count), np.zeros(count), np.ones(count, bool)
        following[legal], rewards[legal], over[legal] = step(boards[legal], actions[legal])
        logits = np.where(legal_actions(following) & ~over[:, None], 0.0, -50.0)
        following[over] = FULL
        return np.zeros(count), rewards, logits, following

    def search(self, boards, num_simulations):
        root = RootFnOutput(np.zeros(boards.shape), np.zeros(len(boards)), boards)
        options = {"num_simulations": num_simulations, "dirichlet_fraction": 0.0, "temperature": 0.0}
        options |= {"two_players": True, "discount": 1.0, "min_value": -1.0, "max_value": 1.0}
        options["invalid_actions"] = ~legal_actions(boards)
        return muzero_policy(root, self.recurrent_fn, np.random.default_rng(0), **options).action

    @pytest.mark.parametrize(("free", "num_simulations"), [(2, 10), (3, 30), (4, 100)])
    def test_finds_the_best_moves(self, free, num_simulations):
        boards = reachable_boards()
        boards = boards[legal_actions(boards).sum(-1) == free][::4]
        actions = self.search(boards, num_simulations)
        assert best_moves(boards)[np.arange(len(boards)), actions].all()


class TestOpenings:
    def test_a_share_of_the_games_begins_after_moves_at_random(self):
        games = BoardGames(TIC_TAC_TOE, 4000, openings=0.5, seed=1)
        boards = games.observations[:, :9] - games.observations[:, 9:]
        stones = np.count_nonzero(boards, axis=-1)
        assert not find_winners(boards.astype(np.int8)).any()
        shares = np.bincount(stones) / len(stones)
        assert len(shares) == 7  # six moves at most
        np.testing.assert_allclose(shares, [0.52, 0.085, 0.085, 0.085, 0.085, 0.075, 0.065], atol=0.025)
        met = {board.tobytes() for board in boards.astype(np.int8)}
        assert met <= {board.tobytes() for board in reachable_boards()}
        assert len(met) > 500
        np.testing.assert_array_equal(games.signs, (-1.0) ** stones)

    def test_they_go_on_from_where_they_were(self):
        games, again = (BoardGames(CONNECT_FOUR, 8, openings=0.5, seed=seed) for seed in (1, 2))
        rng = np.random.default_rng(0)
        again.restore(games.state())
        for _ in range(30):
            actions = np.where(games.invalid_actions, -1, rng.random((8, 5))).argmax(axis=-1)
            np.testing.assert_array_equal(games.step(actions), again.step(actions))
            np.testing.assert_array_equal(games.observations, again.observations)

    def test_a_checkpoint_of_another_share_is_refused(self, tmp_path):
        def snapshots(openings):
            games = BoardGames(TIC_TAC_TOE, 2, openings=openings)
            return Snapshots(tmp_path / "training.safetensors", {}, {"games": games})

        snapshots(0.3).save_if_due(1, seconds=100.0)
        assert snapshots(0.3).restore() == 1
        with pytest.raises(ValueError, match="must be of the same training"):
            snapshots(0.31).restore()

    @pytest.mark.parametrize("option", [{"openings": 1.5}, {"seed": -1}, {"num_envs": 0}])
    def test_refuse_nonsense(self, option):
        with pytest.raises(ValueError, match=f"{next(iter(option))} must"):
            BoardGames(**{"rules": TIC_TAC_TOE, "num_envs": 1, **option})


def first_of_the_best(boards, rng):
    return best_moves(boards).argmax(axis=-1)


def first_free(boards, rng):
    return legal_actions(boards).argmax(axis=-1)


def test_lost_ends_are_all_ways_to_lose():
    assert [len(found) for found in find_lost_ends(first_of_the_best)] == [0, 0]
    rng = np.random.default_rng(0)
    for moves_first, found in zip((True, False), find_lost_ends(first_free)):
        assert (find_winners(found) == -1).all()  # lost for the player whose turn it would be
        boards, his_turn, met = empty_boards(10_000), moves_first, set()
        while len(boards):
            moved = step(boards, (first_free if his_turn else play_randomly)(boards, rng))
            if not his_turn:
                met |= {final.tobytes() for final in moved.boards[moved.rewards > 0]}
            boards, his_turn = moved.boards[~moved.over], not his_turn
        assert len(met) == len(found)
        assert met == {final.tobytes() for final in found}


def test_half_of_the_games_against_a_perfect_player_are_begun():
    def careless_as_second(boards, rng):
        begins = (boards != 0).sum(axis=-1, keepdims=True) % 2 == 0
        return np.where(begins[:, 0], first_of_the_best(boards, rng), first_free(boards, rng))

    meet = partial(players.meet, TIC_TAC_TOE, opponent=play_perfectly, seed=0)
    assert meet(careless_as_second, games=7).tolist() == [0] * 4 + [-1] * 3
    assert meet(careless_as_second, games=1).tolist() == [0]


class TestConnectFour:
    def make(self, *moves):
        boards = CONNECT_FOUR.empty_boards(1)
        for column in moves:
            boards = CONNECT_FOUR.step(boards, np.array([column])).boards
        return boards

    def test_stones_fall_onto_others(self):
        boards = self.make(1, 1, 1, 4)
        expected = np.zeros((4, 5), np.int8)
        expected[3, 1], expected[2, 1], expected[1, 1], expected[3, 4] = 1, -1, 1, -1
        np.testing.assert_array_equal(boards.reshape(4, 5), expected)
        assert self.make(0, 0, 0, 0).reshape(4, 5)[:, 0].all()
        assert CONNECT_FOUR.legal_actions(self.make(0, 0, 0, 0)).tolist() == [[False, True, True, True, True]]
        with pytest.raises(ValueError, match="got 0 in game 0"):
            self.make(0, 0, 0, 0, 0)

    @pytest.mark.parametrize(
        ("moves", "last"),
        [
            ((0, 0, 1, 1, 2, 2), 3),
            ((4, 3, 4, 3, 4, 3), 4),
            ((0, 1, 1, 2, 2, 3, 2, 3, 3, 0), 3),
            ((4, 3, 3, 2, 2, 1, 2, 1, 1, 4), 1),
        ],
    )
    def test_four_in_a_row_win(self, moves, last):
        before = self.make(*moves)
        assert not CONNECT_FOUR.find_winners(before).any()
        moved = CONNECT_FOUR.step(before, np.array([last]))
        assert (moved.rewards[0], moved.over[0]) == (1, True)
        assert rate_moves(CONNECT_FOUR, before, 1)[0, last] == 1

    def test_lines_are_those_of_the_board(self):
        lines = {tuple(sorted(line)) for line in CONNECT_FOUR.lines.tolist()}
        assert len(lines) == len(CONNECT_FOUR.lines) == 4 * 2 + 5 * 1 + 2 * 2

    def test_who_looks_ahead_stops_what_he_sees(self):
        threat = self.make(0, 4, 1, 4, 2)
        rated = rate_moves(CONNECT_FOUR, threat, CONNECT_FOUR.depth)[0]
        assert rated[3] == 0
        assert (rated[[0, 1, 2, 4]] == -1).all()
        outcomes = players.meet(CONNECT_FOUR, look_ahead(CONNECT_FOUR), CONNECT_FOUR.play_randomly, 40, 0)
        assert (outcomes == 1).sum() > 3 * (outcomes == -1).sum()  # zugzwang lies further ahead
