"""Every training can be stopped and goes on as if nothing had happened; other files are refused."""

from pathlib import Path

import numpy as np
import pytest

from gradtricks.agents import load, muzero, pong, ppo, reinforce, training
from gradtricks.agents.checkpoints import load_checkpoint, save_checkpoint
from gradtricks.agents.evaluation import FrozenPolicy

MUZERO = muzero.Options(
    search=muzero.SearchOptions(num_simulations=4),
    batch_size=np.int32(8),  # a number of NumPy's, as tables have them
    num_unroll_steps=1,
    moves_before_updates=8,
    piece_steps=6,
    td_steps=5,
    capacity=200,
)
PPO = ppo.Options(rollout_steps=32, minibatch_size=32, epochs=2)


def make_learner(agents, kind, **options):
    if kind == "muzero":
        weights = muzero.draw_weights(3, state_size=8, hidden_size=16, support_size=16, head_size=0.1)
        return agents.MuZeroLearner(weights, optimizer="adam", weight_decay=0.0, device="cpu")
    if kind == "ppo":
        return agents.PPOLearner(ppo.draw_weights(0, hidden_units=16), PPO, device="cpu")
    return agents.PongPolicy(reinforce.draw_weights(0, hidden_units=8), device="cpu", **options)


def train(kind, learner, path=None, seed=0):
    """Train for a while, and return the state of the learner and what happened."""
    if kind == "muzero":
        options = {"support": muzero.Support(0, 15, 16), "measurements": 2, "seed": np.int64(seed)}
        games = muzero.CartPoleGames(4)
        history = muzero.train(learner, games, MUZERO, decisions=160, checkpoint=path, **options)
    elif kind == "ppo":
        games = pong.PongGames(2, seed=11, frame_skip=4, view=pong.CELLS)
        history = ppo.train(learner, games, decisions=4 * 64, seed=seed, checkpoint=path)
    else:
        games, rng = pong.PongGames(2, seed=seed, frame_skip=8), np.random.default_rng(seed)
        history = reinforce.train(learner, games, decisions=600, batch_size=64, rng=rng, checkpoint=path)
    return learner.state(), history


@pytest.fixture
def path(tmp_path, monkeypatch):
    """A file to which every training saves whenever it can."""
    monkeypatch.setattr(training, "_SECONDS_BETWEEN", 0.0)
    return tmp_path / "training.safetensors"


@pytest.mark.parametrize("kind", ["muzero", "ppo", "reinforce"])
def test_a_stopped_training_goes_on_bit_for_bit(agents, kind, path, monkeypatch):
    learner = make_learner(agents, kind)
    start = learner.state()
    expected, history = train(kind, learner)
    add_loss, updates = training.History.add_loss, []

    def stopped(history, loss):
        updates.append(loss)
        if len(updates) == stop:
            raise KeyboardInterrupt
        add_loss(history, loss)

    stop = len(history.losses) // 2 + 1
    monkeypatch.setattr(training.History, "add_loss", stopped)
    learner.restore(start)
    with pytest.raises(KeyboardInterrupt):
        train(kind, learner, path)
    # As in a new process, with nothing left from before.
    state, again = train(kind, make_learner(agents, kind), path)
    assert 0 < len(updates) - stop < len(history.losses)
    assert again == history
    assert np.all(np.diff(again.seconds) > 0)
    for name, value in expected.items():
        np.testing.assert_array_equal(state[name], value)
    learner.restore(start)
    with pytest.raises(ValueError, match="must be of the same training"):
        train(kind, learner, path, seed=1)
    path.write_bytes(b"torn")
    with pytest.raises(ValueError, match="can't be read"):
        train(kind, learner, path)


def test_the_time_to_play_again_is_none_of_the_training(path, monkeypatch):
    clock, history, games = [0.0], training.History(), training.Chance(np.random.default_rng(0))
    monkeypatch.setattr(training.time, "perf_counter", lambda: clock[-1])
    monkeypatch.setattr(games, "restore", lambda state: clock.append(100.0))
    snapshots = training.Snapshots(path, {}, {"history": history, "games": games})
    snapshots.save_if_due(1, seconds=1.0)
    snapshots.restore()
    history.add_loss(0.0)
    assert (history.seconds, clock) == ([0.0], [0.0, 100.0])


def test_a_checkpoint_of_other_weights_or_games_is_refused(in_torch, path):
    learner = make_learner(load("torch"), "ppo")
    start = learner.state()

    def go_on(**games):
        learner.restore(start)
        games = pong.PongGames(2, frame_skip=4, view=pong.CELLS, **games)
        ppo.train(learner, games, decisions=128, checkpoint=path)

    go_on()
    with pytest.raises(ValueError, match="games must do the same again"):
        go_on(sticky=0.5)
    start = {**start, "bias": start["bias"] + 1}
    with pytest.raises(ValueError, match="must be of the same training"):
        go_on()


def test_a_checkpoint_of_other_options_is_refused(in_torch, path):
    agents = load("torch")
    train("reinforce", make_learner(agents, "reinforce"), path)
    for option in ("learning_rate", "decay", "epsilon", "move_cost"):
        with pytest.raises(ValueError, match=f"same training; got .*'{option}': .* where .*'{option}': 0.5"):
            train("reinforce", make_learner(agents, "reinforce", **{option: 0.5}), path)


def test_until_a_file_is_whole_the_one_before_stays(path, monkeypatch):
    def killed(*paths):
        raise KeyboardInterrupt

    save_checkpoint(path, {"x": np.zeros(2)}, {"done": 1})
    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(path, {"x": np.ones(2)}, {"done": 2})
    arrays, about = load_checkpoint(path)
    assert (arrays["x"].tolist(), about) == ([0, 0], {"done": 1})


@pytest.mark.parametrize("agent", [FrozenPolicy, muzero.FrozenAgent])
def test_what_isnt_an_agent_is_refused(agent, tmp_path):
    path = tmp_path / "agent.safetensors"
    save_checkpoint(path, {"x": np.zeros(2)}, {"kind": "training"})
    with pytest.raises(ValueError, match=f"must hold a {agent.kind}; got 'training'"):
        agent.load(path)
    with pytest.raises(FileNotFoundError):
        agent.load(tmp_path / "none.safetensors")
    with pytest.raises(ValueError, match="can't be read"):
        agent.load(tmp_path)
