"""The Pong player that wins: what it sees, that it learns as the paper says, and that it can be killed."""

import ast
import json
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from scipy.special import log_softmax

from gradtricks._load import BACKENDS
from gradtricks.agents import blocks, evaluation, load, pong, ppo
from gradtricks.agents.evaluation import FrozenPolicy
from gradtricks.agents.muzero.cartpole import CartPoleGames
from gradtricks.agents.training import History, NotFiniteError
from gradtricks.lab.storage.published import Published
from gradtricks.reference import (
    clipped_surrogate_pg_loss,
    entropy_loss,
    standardize,
    truncated_generalized_advantage_estimation,
)

ROOT = Path(__file__).parents[2]
OPTIONS = ppo.Options(rollout_steps=32, minibatch_size=32, epochs=2, learning_rate=2e-3)
UNITS = 16
NETWORK = ppo.draw_weights(0, hidden_units=UNITS)
VIEWED = [("cells", True), ("places", True), ("screen", False)]  # and if with a mirror


def make_games(num_envs=2, view="cells", **options):  # to begin a game takes longer than to play some
    return pong.PongGames(num_envs, frame_skip=4, view=pong.VIEWS[view], **options)


def draw(view="cells", mirror=True, scale=1.0):
    """Draw weights whose heads say something, of two layers for places and otherwise of one."""
    second = 8 if view == "places" else 0
    weights = ppo.draw_weights(1, hidden_units=UNITS, second_units=second, view=view, mirror=mirror)
    heads = np.random.default_rng(2).normal(0, scale, weights["heads"].shape)
    return {**weights, "heads": heads.astype(np.float32)}


@cache
def some_observations(view="cells"):
    games, rng = make_games(2, view, seed=5), np.random.default_rng(0)
    for _ in range(40):
        games.step(rng.integers(0, 3, 2))
    seen = []
    for _ in range(16):
        games.step(rng.integers(0, 3, 2))
        seen.append(games.observations)
    return np.concatenate(seen)


def some_minibatch(view="cells"):
    rng, count = np.random.default_rng(3), 32
    return ppo.Minibatch(
        some_observations(view),
        rng.integers(0, 3, count),
        np.log(rng.uniform(0.2, 0.6, count)).astype(np.float32),
        rng.normal(size=count).astype(np.float32),
        rng.normal(size=count).astype(np.float32),
    )


def apply_by_matrix(weights, observations, mirror):
    """The network as products of matrices, in float64."""
    weights = {name: value.astype(float) for name, value in weights.items()}

    def half(seen):
        hidden = np.maximum(seen @ first + weights["bias"], 0)
        if "second" in weights:
            hidden = np.maximum(hidden @ weights["second"] + weights["second_bias"], 0)
        return hidden @ weights["heads"]

    if "screen" in weights:
        first, mirrored = weights["screen"], None
        seen = np.zeros((len(observations), blocks.NO_BLOCK + 1))
        np.put_along_axis(seen, observations[..., 0], observations[..., 1] / 2560, axis=1)
    elif "cells" in weights:
        first = weights["cells"][:-1]
        lit = np.zeros((len(observations), pong.NO_CELL + 1))
        np.put_along_axis(lit, observations, 1, axis=1)
        courts = lit[:, :-1].reshape(-1, 2, pong.CELL_ROWS, pong.CELL_COLUMNS)
        seen, mirrored = (x.reshape(len(lit), -1) for x in (courts, courts[:, :, ::-1]))
    else:
        first, seen = weights["places"], observations.astype(float)
        mirrored = observations * np.array([*[1, 1, -1, 1, 1, -1, -1] * 3, -1])
    outputs = half(seen)
    if mirror:
        outputs = outputs + half(mirrored)[:, [0, 2, 1, 3]]
    return outputs[:, :-1], outputs[:, -1]


# What it sees.


def test_lit_cells_are_those_with_a_bright_pixel():
    environment, rng = pong.make_environment(2, frame_skip=4), np.random.default_rng(0)
    frames = [environment.reset(seed=3)[0]]
    for _ in range(300):
        frames.append(environment.step(rng.choice(pong.ACTIONS, 2))[0])
    bright = np.full((1, 1, *pong.FRAME_SHAPE), 236, np.uint8)  # more than there is room for is left out
    frames = np.concatenate([*frames, bright])
    blocks = (frames[:, 0, pong.COURT] > 130).reshape(-1, 80, 2, 40, 4).any(axis=(2, 4)).reshape(-1, 3200)
    assert blocks[:-1].sum(axis=1).max() <= pong.MOST_CELLS
    expected = np.sort(np.where(blocks, np.arange(3200), pong.CELL_COUNT), axis=1)[:, : pong.MOST_CELLS]
    np.testing.assert_array_equal(pong.list_cells(frames), expected)
    with pytest.raises(ValueError, match="grey Atari screens"):
        pong.list_cells(frames[:, :, 1:])


def test_an_observation_holds_two_pictures():
    games, rng = make_games(seed=1), np.random.default_rng(0)
    before = games.observations
    np.testing.assert_array_equal(before[:, :40] == pong.NO_CELL, before[:, 40:] == pong.NO_CELL)
    for _ in range(60):
        games.step(rng.integers(0, 3, 2))
        now, shown = before[:, :40], games.observations[:, 40:]
        np.testing.assert_array_equal(shown, np.where(now == pong.NO_CELL, now, now + pong.CELL_COUNT))
        before = games.observations


def test_places_are_the_centres_of_what_is_lit():
    frames = np.full((2, 1, *pong.FRAME_SHAPE), 87, np.uint8)
    frames[0, 0, 44:60, 16:20] = 200  # the other's paddle, at the rows 10 to 25 of the court
    frames[0, 0, 100:104, 20:22] = 236  # a ball beside it
    frames[1, 0, 34:194, 140] = 140
    expected = np.zeros((2, 3, 3))
    expected[0, 0] = 1, (17.5 - 79.5) / 80, (17.5 - 79.5) / 80
    expected[0, 1] = 1, (20.5 - 79.5) / 80, (67.5 - 79.5) / 80
    expected[1, 2] = 1, (140 - 79.5) / 80, 0
    np.testing.assert_allclose(pong.find_places(frames), expected, atol=1e-6)
    with pytest.raises(ValueError, match="grey Atari screens"):
        pong.find_places(frames[:, :, 1:])


def test_the_background_is_what_a_pixel_shows_most_of_the_time():
    background, games, rng = pong.find_background(), make_games(view="screen"), np.random.default_rng(0)
    frames = games.screens
    for _ in range(200):
        games.step(rng.integers(0, 6, 2))
        assert (games.observations[:, [63, -1], 0] == blocks.NO_BLOCK).all(), "what differs has room"
    assert background.shape == pong.FRAME_SHAPE
    assert (background != frames).mean() < 0.02, "paddles and ball"
    screens = np.array([[1, 7, 5], [1, 2, 5], [0, 7, 7]], np.uint8)[:, None]  # three, of three pixels
    np.testing.assert_array_equal(blocks.most_frequent(screens), [[1, 7, 5]])


def test_blocks_that_differ_from_the_background_are_listed():
    background = pong.find_background()
    frames = np.stack([background] * 3)[:, None]
    frames[1, 0, 5:10, 8:12] += 3  # the third block of the second row
    frames[1, 0, 209, 159] += 1
    frames[2, 0, 100:105, 80:82] += 1
    frames[2, 0, 100:105, 82:84] -= 1  # as bright as ever, on the whole
    expected = np.zeros((3, blocks.MOST_BLOCKS, 2), int)
    expected[..., 0] = blocks.NUM_BLOCKS
    expected[1, :2] = (40 + 2, 5 * 4 * 3), (42 * 40 - 1, 1)
    np.testing.assert_array_equal(found := pong.list_differences(frames), expected)
    frames[0] += 1  # more than there is room for
    np.testing.assert_array_equal(pong.list_differences(frames)[0], [(number, 20) for number in range(64)])
    seen = pong.SCREEN.compare(found[:2], found[1:])
    np.testing.assert_array_equal(seen[1, 64:66], [(42 + 1680, 60), (1679 + 1680, 1)])
    np.testing.assert_array_equal(seen[0, :2], expected[1, :2])
    assert (seen[seen[..., 1] == 0, 0] == blocks.NO_BLOCK).all()
    with pytest.raises(ValueError, match="grey Atari screens"):
        pong.list_differences(frames[:, :, 1:])


def test_the_last_move_is_known_beside_the_places():
    games, rng = make_games(view="places", max_frames=80), np.random.default_rng(0)
    assert not games.observations[:, -1].any()
    for _ in range(25):
        ended, moves = ~games.playing, rng.integers(0, 3, 2)
        games.step(moves)
        expected = np.where(ended | ~games.playing, games.observations[:, -1] * 0, np.take([0, -1, 1], moves))
        np.testing.assert_array_equal(games.observations[:, -1] * games.playing, expected)


def test_the_moves_are_those_of_the_view():
    games = make_games(view="screen", seed=1)
    environment = pong.make_environment(2, frame_skip=4)
    environment.reset(seed=1)
    for step in range(60):
        moves = np.array([step // 10, 5 - step // 10])
        games.step(moves)
        frames = environment.step(moves)[0]
        np.testing.assert_array_equal(games.screens, frames[:, 0])


def test_places_tell_the_motion_of_what_was_seen_twice():
    before, after = np.zeros((2, 1, 3, 3), np.float32)
    before[0, :2], after[0, 1:] = (1, 0.5, -0.25), (1, 0.375, 0.5)
    after[0, 2] = 1, 0.75, 0.25
    seen = pong.PLACES.compare(before, after).reshape(3, 7)
    np.testing.assert_array_equal(seen[0], [0, 0, 0, 1, 0, 0, 0])
    np.testing.assert_array_equal(seen[1], [1, 0.75, 2, 1, -2, 4, 0])  # 12 would be too much
    np.testing.assert_array_equal(seen[2], [1, 1.5, 1, 0, 0, 0, 2])
    after[0, 1] = 0
    assert not pong.PLACES.compare(before, after).reshape(3, 7)[1:, 4:].any()


# What it learns.


@pytest.mark.parametrize(("view", "mirror"), [*VIEWED, ("cells", False)])
def test_the_network_is_a_product_of_matrices(agents, view, mirror):
    weights, observations = draw(view, mirror), some_observations(view)
    learner = agents.PPOLearner(weights, mirror=mirror, device="cpu")
    logits, values = learner.infer(observations)
    expected = apply_by_matrix(weights, observations, mirror)
    np.testing.assert_allclose(logits, expected[0], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(values, expected[1], rtol=1e-4, atol=1e-4)
    policy = FrozenPolicy.freeze(learner.state(), mirror=mirror)
    apart = np.abs(policy.logits(observations) - logits).max()
    assert apart < (0.02 if view == "cells" else 1e-4) * np.abs(logits).max(), "cells' weights have 8 bits"


def test_places_of_the_court_upside_down_are_mirrored():
    environment, rng = pong.make_environment(2, frame_skip=4), np.random.default_rng(0)
    environment.reset(seed=5)
    frames = [environment.step(rng.choice(pong.ACTIONS, 2))[0] for _ in range(90)]
    before, after = np.concatenate(frames[30:-1]), np.concatenate(frames[31:])

    def see(*frames):
        return pong.PLACES.compare(*map(pong.find_places, frames))

    def flip(frames):
        flipped = frames.copy()
        flipped[:, :, pong.COURT] = frames[:, :, pong.COURT][:, :, ::-1]
        return flipped

    expected = pong.mirror_places()[:-1] * see(before, after)
    assert np.abs(expected).max() > 1
    np.testing.assert_allclose(see(flip(before), flip(after)), expected, atol=1e-5)


def loss_by_matrix(weights, batch, entropy, mirror):
    logits, values = apply_by_matrix(weights, batch.observations, mirror)
    log_probs = log_softmax(logits, axis=1)
    ratios = np.exp(np.take_along_axis(log_probs, batch.actions[:, None], axis=1)[:, 0] - batch.log_probs)
    loss = clipped_surrogate_pg_loss(ratios, batch.advantages, OPTIONS.clip)
    loss += OPTIONS.entropy_cost * entropy * entropy_loss(logits)
    return loss + OPTIONS.value_cost * np.square(values - batch.targets).mean()


@pytest.mark.parametrize(("view", "mirror"), VIEWED)
def test_a_step_goes_down_the_slope_of_the_papers_loss(agents, view, mirror):
    weights, batch = draw(view, mirror, scale=0.3), some_minibatch(view)
    learner = agents.PPOLearner(weights, OPTIONS, mirror=mirror, device="cpu")
    start = learner.state()

    def loss(name, place):
        nudged = weights[name].astype(float)
        nudged.flat[place] += 1e-6
        return loss_by_matrix({**weights, name: nudged}, batch, entropy, mirror)

    for rate, entropy in ((1.0, 1.0), (0.25, 0.5), (0.2, 0)):
        learner.restore(start)
        expected = loss_by_matrix(weights, batch, entropy, mirror)
        assert learner.update(batch, rate=rate, entropy=entropy) == pytest.approx(expected, rel=1e-4)
        for name, values in weights.items():
            moved = (learner.state()[name] - values).ravel()
            places = np.flatnonzero(moved)
            places = [*places[:: 1 + len(places) // 65], -1]  # of the cells' weights the last rest
            slopes = [loss(name, place) - expected for place in places]
            np.testing.assert_array_equal(np.sign(moved[places]), -np.sign(slopes))
            # Adam's first step is as long as its learning rate.
            assert np.abs(moved).max() == pytest.approx(OPTIONS.learning_rate * rate, rel=0.02)


def methods(code):
    """Return arguments and statements of each function in some code, without annotations and docstrings."""
    nodes = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.FunctionDef)]
    lines = {n.name: n.body[1:] if ast.get_docstring(n) else n.body for n in nodes}
    return {n.name: [[a.arg for a in n.args.args], *map(ast.unparse, lines[n.name])] for n in nodes}


@pytest.mark.parametrize("framework", BACKENDS)
def test_the_notebook_shows_the_learners_own_policy_gradient(framework):
    cells = json.loads((ROOT / "experiments" / "pong.ipynb").read_text())["cells"]
    [cell] = [cell for cell in cells if framework in cell["metadata"].get("tags", [])]
    shown = methods("".join(cell["source"]))
    own = methods((Path(ppo.__file__).parent / framework / "ppo.py").read_text())
    assert list(shown) == ["estimate", "loss", "descend"]
    assert shown == {name: own[name] for name in shown}


def test_a_training_in_torch_runs_through_four_files(in_torch):
    learner = load("torch").PPOLearner(draw("places"), replace(OPTIONS, rollout_steps=2), device="cpu")
    games, files, folder = make_games(view="places"), set(), Path(ppo.__file__).parent
    sys.setprofile(lambda frame, event, argument: files.add(Path(frame.f_code.co_filename)))
    try:
        ppo.train(learner, games, decisions=8)
    finally:
        sys.setprofile(None)
    ours = {str(path.relative_to(folder)) for path in files if path.is_relative_to(folder)}
    assert ours - {"pong_loops.py"} == {"pong.py", "ppo.py", "training.py", "torch/ppo.py"}


def test_advantages_are_estimated_and_standardised(agents):
    rng = np.random.default_rng(4)
    rewards, values = rng.normal(size=(16, 4)).astype("f"), rng.normal(size=(17, 4)).astype("f")
    discounts = (0.99 * (rng.random((16, 4)) < 0.8)).astype("f")
    expected = truncated_generalized_advantage_estimation(rewards, discounts, OPTIONS.lambda_, values)
    advantages, targets = agents.PPOLearner(draw(), OPTIONS, device="cpu").advantages(
        rewards, discounts, values
    )
    np.testing.assert_allclose(advantages, standardize(expected), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(targets, expected + values[:-1], rtol=1e-4, atol=1e-5)


WRONG = {"rollout_steps": 0, "minibatch_size": 0, "epochs": 0, "discount": 1.1, "lambda_": -0.1, "clip": -1}
WRONG |= {"learning_rate": float("nan"), "sign": 0}


@pytest.mark.parametrize(("name", "value"), [*WRONG.items(), ("rollout_steps", 16.5)])
def test_options_that_cant_be_are_refused(name, value):
    with pytest.raises((TypeError, ValueError), match=f"{name} must .*; got ({value}|float)"):
        replace(OPTIONS, **{name: value})


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (draw() | {"other": np.zeros(3)}, r"missing or unknown: \['other'\]"),
        (draw() | {"heads": np.zeros((8, 3))}, r"weights\['heads'\]"),
        (draw() | {"bias": np.zeros((8, 5))}, r"weights\['bias'\]"),
        (draw() | {"second": np.zeros((8, 4))}, r"missing or unknown: \['second_bias'\]"),
        (draw("places") | {"second": np.zeros((8, 5))}, r"weights\['second'\]"),
        (draw("screen", mirror=False), "mirror must be False for screen"),
        (draw("cart", mirror=False), "mirror must be False for cart"),
    ],
)
def test_weights_that_arent_the_networks_are_refused(agents, weights, message):
    with pytest.raises(ValueError, match=message):
        agents.PPOLearner(weights)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"view": "all"}, "view must be one of 'cells', 'places', 'screen', 'cart'; got 'all'"),
        ({"hidden_units": 1}, "hidden_units"),
        ({"second_units": 1}, "second_units must be 0, or at least 2 with a mirror; got 1"),
    ],
)
def test_networks_that_cant_be_drawn_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ppo.draw_weights(**options)


class _Valuing:
    """Values everything at five, and estimates as the reference does."""

    mirror = False

    def __init__(self, view="cells", **options):
        self.view = view
        self.options = replace(OPTIONS, discount=1.0, **options)

    def update(self, batch, *, rate, entropy):
        return 0.0

    def infer(self, observations):
        return np.zeros((len(observations), 3)), np.full(len(observations), 5.0)

    def advantages(self, rewards, discounts, values):
        estimated = truncated_generalized_advantage_estimation(
            rewards, discounts, self.options.lambda_, values
        )
        return estimated, estimated + values[:-1]


@pytest.mark.parametrize("reset_at_points", [True, False])
@pytest.mark.parametrize("lambda_", [0.5, 1.0])
def test_no_return_reaches_over_the_end_of_a_game(reset_at_points, lambda_):
    learner = _Valuing(reset_at_points=reset_at_points, lambda_=lambda_)
    column = np.zeros((3, 1))
    decided = ppo._Decisions(
        observations=np.zeros((3, 1, 80), np.int32),
        actions=column.astype(int),
        log_probs=column,
        values=column,
        rewards=np.array([[0.0], [0.0], [-1.0]]),
        playing=np.ones((3, 1), bool),
        going_on=np.array([[True], [True], [False]]),
    )
    batch = ppo._processed(learner, decided, np.zeros((1, 80), np.int32))
    np.testing.assert_allclose(batch.targets, [-(lambda_**2), -lambda_, -1])


def test_enough_points_won_end_a_training(monkeypatch):
    monkeypatch.setattr(ppo, "_ENOUGH_POINTS", 4)
    learner = _Valuing()
    ended, whole = (ppo.train(learner, make_games(), decisions=640, stop_at=share) for share in (0.0, 1.0))
    assert whole.decisions == 640
    assert sum(time <= ended.decisions - 64 for time in ended.point_times) < 4
    assert len(ended.point_times) >= 4, "as soon as there are enough"
    assert np.isnan(History().share_won(4))
    assert History(point_rewards=[-1.0, -1.0, 1.0, 1.0, 1.0]).share_won(4) == 0.75
    with pytest.raises(ValueError, match="stop_at must lie in"):
        ppo.train(learner, make_games(), decisions=64, stop_at=1.5)


@pytest.mark.parametrize(
    ("anneal_decisions", "final_rate", "rates", "entropies"),
    [
        (None, 1.0, [1, 1, 1, 1, 1], [1, 0.8, 0.6, 0.4, 0.2]),
        (12, 0.25, [1, 0.75, 0.5, 0.25, 0.25], [1, 2 / 3, 1 / 3, 0, 0]),
        (12, 0.0, [1, 2 / 3, 1 / 3, 0, 0], [1, 2 / 3, 1 / 3, 0, 0]),
        (10**6, 0.25, [1] * 5, [1] * 5),
    ],
)
def test_rate_and_entropy_fall(anneal_decisions, final_rate, rates, entropies):
    learner, seen = _Valuing(rollout_steps=2, final_rate=final_rate), []
    learner.update = lambda batch, rate, entropy: seen.append((rate, entropy)) or 0.0
    ppo.train(learner, make_games(), decisions=20, anneal_decisions=anneal_decisions)
    np.testing.assert_allclose(seen[:: len(seen) // 5], list(zip(rates, entropies)), rtol=1e-3)


def test_a_training_that_diverges_says_so():
    learner = _Valuing(rollout_steps=2)
    learner.update = lambda batch, rate, entropy: np.nan
    with pytest.raises(NotFiniteError, match="the loss must be finite; got nan"):
        ppo.train(learner, make_games(), decisions=4)


def test_games_of_another_view_are_refused():
    with pytest.raises(ValueError, match=r"learner's view, VIEWS\['cells'\]; got observations \(2, 22\)"):
        ppo.train(_Valuing(), make_games(view="places"), decisions=4)


# Frozen.


def test_views_of_the_other_game_are_refused():
    with pytest.raises(ValueError, match=r"learner's view, VIEWS\['cart'\]; got observations \(2, 22\)"):
        ppo.train(_Valuing("cart"), make_games(view="places"), decisions=4)
    with pytest.raises(ValueError, match=r"see CartPole; got VIEWS\['cells'\], which is Pong's; remedy:"):
        ppo.train(_Valuing(), CartPoleGames(2), decisions=4)
    with pytest.raises(ValueError, match="view must be one of 'cells', 'places', 'screen'; got 'cart'"):
        FrozenPolicy(draw("cart", mirror=False), mirror=False)


def test_cartpole_is_learned_until_a_trial_is_passed(agents):
    options = replace(OPTIONS, rollout_steps=64, minibatch_size=128, epochs=6, reset_at_points=False)
    weights = ppo.draw_weights(2, hidden_units=UNITS, view="cart", mirror=False)
    learner, trials = agents.PPOLearner(weights, options, mirror=False, device="cpu"), []

    def good_enough():
        trials.append(len(trials))
        return len(trials) == 8

    history = ppo.train(learner, CartPoleGames(16, seed=1), decisions=16_384, seed=1, good_enough=good_enough)
    assert (len(trials), history.decisions, len(history.losses)) == (8, 8 * 64 * 16, 8)
    third = len(history.game_returns) // 3
    assert np.mean(history.game_returns[-third:]) > 1.5 * np.mean(history.game_returns[:third])


@pytest.mark.parametrize("view", pong.VIEWS)
def test_a_frozen_policy_is_saved_and_loaded(tmp_path, view):
    mirror = view != "screen"
    policy = FrozenPolicy.freeze(draw(view, mirror), mirror=mirror, about={"seed": 3})
    policy.save(tmp_path / "policy.safetensors")
    loaded, observations = FrozenPolicy.load(tmp_path / "policy.safetensors"), some_observations(view)
    assert loaded.about["seed"] == 3
    assert loaded.view is pong.VIEWS[view]
    np.testing.assert_array_equal(loaded.logits(observations), policy.logits(observations))
    assert view != "cells" or loaded.weights["cells"].dtype == np.int8


def test_each_game_counts_once(monkeypatch):
    monkeypatch.setattr(evaluation, "_SIDE_BY_SIDE", 2)  # one of them plays twice
    policy = FrozenPolicy(draw("places"), mirror=True)
    played = evaluation.evaluate(policy, games=3)
    assert played.returns.shape == played.decisions.shape == (3,)
    assert (np.abs(played.returns) <= 21).all()
    assert (played.decisions > 500).all()
    for other in ({"seed": 6}, {"temperature": 2}):
        assert (evaluation.evaluate(policy, games=2, **other).decisions != played.decisions[:2]).any()


def test_a_game_without_end_is_ended(monkeypatch):
    monkeypatch.setattr(evaluation, "_LONGEST_GAME", 400)
    policy = FrozenPolicy(NETWORK, mirror=True)
    played = evaluation.evaluate(policy, games=2, temperature=0, sticky=0.25)
    np.testing.assert_array_equal(played.decisions, [100, 100])
    with pytest.raises(ValueError, match="games"):
        evaluation.evaluate(policy, games=0)
    with pytest.raises(ValueError, match="temperature"):
        evaluation.evaluate(policy, games=2, temperature=-1)


def test_the_command_plays_what_was_saved(gradtricks, tmp_path, monkeypatch):
    monkeypatch.setattr(evaluation, "_LONGEST_GAME", 400)
    policy = FrozenPolicy(NETWORK, mirror=True, about={"frame_skip": 4, "seed": 0})
    policy.save(tmp_path / "policy.safetensors")
    done = gradtricks("evaluate", tmp_path / "policy.safetensors", "--games", 2, FORCE_COLOR="1")
    assert done.exit_code == 0, done.stderr
    assert "policy.safetensors" in done.stderr, "whose turn it is, where somebody looks"
    plain = gradtricks("evaluate", tmp_path / "policy.safetensors", "--games", 2)
    assert plain.stderr.startswith("1/1 ")
    expected = evaluation.evaluate(policy, games=2)
    assert f"{expected.returns.mean():+.2f}" in done.stdout
    assert "2 games each." in done.stdout
    for part in ("Pong,", "temperature 0.5,", "sticky 0", "cells"):  # the cell may be broken into lines
        assert part in done.stdout


def test_a_film_ends_when_asked_or_with_its_game():
    policy = FrozenPolicy(draw("places"), mirror=True)
    assert evaluation.film(policy, seconds=20).screens.shape == (300, *pong.FRAME_SHAPE)
    game = evaluation.film(policy, seconds=300)
    assert len(game.rewards) < 300 * 15
    assert np.abs([(game.rewards > 0).sum(), (game.rewards < 0).sum()]).max() == 21


def test_a_published_policy_plays_again_as_its_record_says():
    published = ROOT / "experiments" / "published"
    runs = [run for run in Published(published).runs("pong") if run.parameters["keep_policy"]]
    run = min(runs, key=lambda run: run.results["mean_length"]["plain"])
    parameters, results = run.parameters, run.results
    policy = FrozenPolicy.load(published / run.paths["policy.safetensors"])
    assert policy.about["seed"] == parameters["seed"]
    how = {name: parameters[name] for name in ("frame_skip", "temperature")}
    assert {*results["returns"]["plain"]} == {21}, "it won every point, so a few games say as much as all"
    assert evaluation.evaluate(policy, games=2, **how).returns.tolist() == [21, 21]


def test_the_command_refuses_what_it_cant_play(gradtricks, tmp_path):
    done = gradtricks("evaluate", tmp_path / "none.safetensors")
    assert done.exit_code == 2
    assert "none.safetensors" in done.stderr
    assert gradtricks("evaluate", tmp_path, "--games", 0).exit_code == 2
    with pytest.raises(ValueError, match="seed must lie in"):
        make_games(seed=2**31)
