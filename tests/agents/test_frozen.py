"""A frozen MuZero agent: saved, loaded, and played by the command."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gradtricks.agents.checkpoints import save_checkpoint
from gradtricks.agents.frozen import FrozenAgent
from gradtricks.agents.muzero import draw_weights
from gradtricks.agents.selfplay import SearchOptions, evaluate
from gradtricks.agents.supports import TICTACTOE_SUPPORT, Support
from gradtricks.agents.tictactoe import ACTIONS, OBSERVATION_SIZE
from gradtricks.agents.tictactoe_players import as_player, meet_perfect_player
from gradtricks.lab.storage.published import Published

PUBLISHED = Path(__file__).parents[2] / "experiments" / "published"
SUPPORT = Support(0, 15, 16)


def cartpole_agent(**options):
    search = SearchOptions(num_simulations=4)
    weights = draw_weights(1, state_size=6, hidden_size=8, support_size=16)
    return FrozenAgent(weights, game="CartPole-v1", support=SUPPORT, search=search, **options)


def tictactoe_agent():
    search = SearchOptions(
        num_simulations=4, discount=1.0, two_players=True, qtransform="by_min_max", min_value=-1, max_value=1
    )
    sizes = {"observation_size": OBSERVATION_SIZE, "actions": ACTIONS, "support_size": 3}
    weights = draw_weights(1, state_size=6, hidden_size=8, **sizes)
    return FrozenAgent(weights, game="tic-tac-toe", support=TICTACTOE_SUPPORT, search=search)


def gradtricks(*arguments):
    command = [str(Path(sys.executable).with_name("gradtricks")), "evaluate", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_what_is_loaded_plays_as_what_was_saved(tmp_path):
    agent = cartpole_agent(about={"seed": 7})
    agent.save(tmp_path / "agent.safetensors")
    loaded = FrozenAgent.load(tmp_path / "agent.safetensors")
    assert (loaded.game, loaded.search, loaded.about["seed"]) == ("CartPole-v1", agent.search, 7)
    np.testing.assert_array_equal(
        evaluate(loaded.network, loaded.search, games=5), evaluate(agent.network, agent.search, games=5)
    )


def test_what_isnt_an_agent_is_refused(tmp_path):
    path = tmp_path / "agent.safetensors"
    save_checkpoint(path, {"x": np.zeros(2)}, {"kind": "Pong policy"})
    with pytest.raises(ValueError, match="must hold a MuZero agent; got 'Pong policy'"):
        FrozenAgent.load(path)
    with pytest.raises(FileNotFoundError):
        FrozenAgent.load(tmp_path / "none.safetensors")
    with pytest.raises(ValueError, match="game must be one of 'CartPole-v1', 'tic-tac-toe'; got 'chess'"):
        FrozenAgent({}, game="chess", support=SUPPORT, search=SearchOptions())
    with pytest.raises(ValueError, match="support"):
        FrozenAgent(
            draw_weights(0, support_size=5), game="CartPole-v1", support=SUPPORT, search=SearchOptions()
        )


def test_the_command_plays_both_games(tmp_path):
    agents = {"cartpole": cartpole_agent(), "tictactoe": tictactoe_agent()}
    for name, agent in agents.items():
        agent.save(tmp_path / name)
    done = gradtricks(tmp_path / "cartpole", tmp_path / "tictactoe", "--games", 6, "--seed", 4)
    assert done.returncode == 0, done.stderr
    returns = evaluate(agents["cartpole"].network, agents["cartpole"].search, games=6, seed=4)
    assert f"{returns.mean():+.2f}" in done.stdout
    agent = agents["tictactoe"]
    outcomes = meet_perfect_player(as_player(agent.network, agent.search), 6, 4)
    assert f"{outcomes.mean():+.2f}" in done.stdout


def test_what_only_pong_has_is_refused(tmp_path):
    cartpole_agent().save(tmp_path / "agent")
    done = gradtricks(tmp_path / "agent", "--sticky", 0.25)
    assert done.returncode == 2
    assert "expected --sticky with Pong only; got CartPole-v1" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_published_agent_plays_again_as_its_record_says():
    runs = [run for run in Published(PUBLISHED).runs("muzero") if run.parameters["keep_agent"]]
    assert len(runs) == 10
    run = min(runs, key=lambda run: run.results["mean_return"])  # the shortest games
    agent = FrozenAgent.load(PUBLISHED / run.kept["agent.safetensors"])
    assert agent.about["seed"] == run.parameters["seed"]
    played = evaluate(agent.network, agent.search, games=run.parameters["evaluation_games"])
    assert played.tolist() == run.results["returns"]
