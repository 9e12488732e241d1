"""Runs are told apart by the two scales of MuZero's unroll."""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from gradtricks.agents.muzero.scales import CORNERS, LOOKS, choose, learning_curve
from gradtricks.lab import check_claims

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"


@pytest.fixture
def runs():
    cells = [
        (k, state, loss, seed)
        for seed in (2, 1)
        for k in (1, 5)
        for state, loss in CORNERS.values()
        if k > 1 or (state, loss) == (0.5, None)
    ]
    names = ("num_unroll_steps", "hidden_gradient_scale", "loss_gradient_scale", "seed")
    return pd.DataFrame(cells, columns=[f"parameters.{name}" for name in names])


@pytest.mark.parametrize("corner", CORNERS)
def test_a_configuration_is_chosen_in_the_order_of_its_seeds(runs, corner):
    state_scale, loss_scale = CORNERS[corner]
    chosen = choose(runs, 5, *CORNERS[corner])
    assert list(chosen["parameters.seed"]) == [1, 2]
    assert set(chosen["parameters.hidden_gradient_scale"]) == {state_scale}
    assert list(chosen["parameters.loss_gradient_scale"].isna()) == [loss_scale is None] * 2
    # Without an unroll all configurations are one.
    assert list(choose(runs, 1, *CORNERS[corner])["parameters.seed"]) == [1, 2]


def test_a_curve_is_straight_where_no_game_ended():
    run = pd.Series({"results.curve.mean_return": [np.nan, 1.0, np.nan, np.nan, 4.0, np.nan]})
    np.testing.assert_allclose(learning_curve(run), [1, 1, 2, 3, 4, 4])


def source_of(notebook):
    cells = json.loads((EXPERIMENTS / f"{notebook}.ipynb").read_text())["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")


def test_a_configuration_looks_alike_in_all_figures():
    # This notebook draws its settings in their order, so they get the style's colours one after the other.
    [settings, styles] = re.search(
        r"^settings = \{(.*?)^\}.*?^styles = (.*?)$", source_of("unrolling"), re.M | re.S
    ).groups()
    drawn = zip(re.findall(r'"(\w+)":', settings), re.findall(r'"(\S)-"', styles), strict=True)
    looks = {name: (look["color"], look["marker"]) for name, look in LOOKS.items()}
    assert {name: (f"C{place}", marker) for place, (name, marker) in enumerate(drawn)} == looks
    for notebook in ("scales_with_adam", "scales_with_momentum", "scales_on_boards"):
        assert 'f"C{' not in source_of(notebook), "by LOOKS"


def test_claims_that_are_not_true_are_named():
    check_claims({"one": True})
    with pytest.raises(ValueError, match=r"expected the chapters to be true; got \['two'\]; remedy: rewrite"):
        check_claims({"one": True, "two": False})
