"""A frozen MuZero agent: saved, loaded, and played by the command."""

from pathlib import Path

import numpy as np
import pytest

from gradtricks.agents.checkpoints import EVALUATION_SEED
from gradtricks.agents.muzero.boards import CONNECT_FOUR, TIC_TAC_TOE
from gradtricks.agents.muzero.cartpole import CartPoleGames
from gradtricks.agents.muzero.deciding import GumbelOptions, SearchOptions
from gradtricks.agents.muzero.frozen import FrozenAgent
from gradtricks.agents.muzero.network import draw_weights
from gradtricks.agents.muzero.selfplay import play_to_the_end
from gradtricks.agents.muzero.supports import Support
from gradtricks.lab.storage.published import Published

THREE = Support(-1, 1, 3)  # categories: lost, drawn, won
PUBLISHED = Path(__file__).parents[2] / "experiments" / "published"
SUPPORT = Support(0, 15, 16)


def cartpole_agent(**options):
    search = SearchOptions(num_simulations=4)
    weights = draw_weights(1, state_size=6, hidden_size=8, support_size=16)
    return FrozenAgent(weights, game="CartPole-v1", support=SUPPORT, search=search, **options)


def board_agent(rules):
    bounds = {"qtransform": "by_min_max", "min_value": -1, "max_value": 1}
    search = SearchOptions(num_simulations=4, discount=1.0, two_players=True, **bounds)
    sizes = {"observation_size": 2 * rules.squares, "actions": rules.actions, "support_size": 3}
    weights = draw_weights(1, state_size=6, hidden_size=8, **sizes)
    return FrozenAgent(weights, game=rules.name, support=THREE, search=search)


def test_what_is_loaded_plays_as_what_was_saved(tmp_path):
    agent = cartpole_agent(about={"seed": 7})
    agent.save(tmp_path / "agent.safetensors")
    loaded = FrozenAgent.load(tmp_path / "agent.safetensors")
    assert (loaded.game, loaded.search, loaded.about["seed"]) == ("CartPole-v1", agent.search, 7)
    np.testing.assert_array_equal(loaded.play(5), agent.play(5))
    assert loaded.play(12, 1).tolist() != loaded.play(12, 2).tolist()


def test_an_agent_plays_by_another_search():
    agent, fewer = cartpole_agent(), SearchOptions(num_simulations=1)
    np.testing.assert_array_equal(agent.play(5, search=agent.search), agent.play(5))
    expected = play_to_the_end(agent.network, fewer, CartPoleGames(5, seed=EVALUATION_SEED))
    np.testing.assert_array_equal(agent.play(5, search=fewer), expected)
    search = GumbelOptions(num_simulations=3, discount=1.0, two_players=True)
    assert len(board_agent(TIC_TAC_TOE).play(5, search=search)) == 5
    with pytest.raises(ValueError, match="remedy: GumbelOptions\\(two_players=True\\)"):
        board_agent(TIC_TAC_TOE).player(GumbelOptions())


def test_what_cant_play_is_refused():
    options = {"support": SUPPORT, "search": SearchOptions()}
    with pytest.raises(ValueError, match=r"game must be one of 'CartPole-v1', .*; got 'chess'"):
        FrozenAgent({}, game="chess", **options)
    for game, two in (("CartPole-v1", True), ("tic-tac-toe", False)):
        with pytest.raises(ValueError, match=f"must have two_players={not two}, as the games do; got {two}"):
            FrozenAgent({}, game=game, support=SUPPORT, search=SearchOptions(two_players=two))
    with pytest.raises(ValueError, match="support"):
        FrozenAgent(draw_weights(0, support_size=5), game="CartPole-v1", **options)
    with pytest.raises(
        ValueError, match=r"of the observations and actions of CartPole-v1, \(4, 2\); got \(4, 3\)"
    ):
        FrozenAgent(draw_weights(0, actions=3, support_size=16), game="CartPole-v1", **options)
    with pytest.raises(ValueError, match="must be one for two players; got 'CartPole-v1'; remedy: play"):
        cartpole_agent().player()


def test_the_command_plays_every_game(gradtricks, tmp_path):
    agents = {"cartpole": cartpole_agent(), "3": board_agent(TIC_TAC_TOE), "4": board_agent(CONNECT_FOUR)}
    for name, agent in agents.items():
        agent.save(tmp_path / name)
    done = gradtricks("evaluate", *(tmp_path / name for name in agents), "--games", 6, "--seed", 4)
    assert done.exit_code == 0, done.stderr
    for agent in agents.values():
        assert f"{agent.play(6, 4).mean():+.2f}" in done.stdout
    said = done.stdout.split()
    assert (said.count("board"), said.count("cart"), said.count("pole")) == (2, 1, 1)


def test_what_only_pong_has_is_refused(gradtricks, tmp_path):
    cartpole_agent().save(tmp_path / "agent")
    done = gradtricks("evaluate", tmp_path / "agent", "--sticky", 0.25)
    assert done.exit_code == 2
    assert "expected --sticky with Pong only; got CartPole-v1" in done.stderr


def test_a_published_agent_plays_again_as_its_record_says():
    runs = [run for run in Published(PUBLISHED).runs("muzero") if run.parameters["keep_agent"]]
    assert len(runs) == 20
    run = min(runs, key=lambda run: run.results["mean_return"])  # the shortest games
    agent = FrozenAgent.load(PUBLISHED / run.paths["agent.safetensors"])
    assert agent.about["seed"] == run.parameters["seed"]
    played = agent.play(run.parameters["evaluation_games"])
    assert played.tolist() == run.results["returns"]
