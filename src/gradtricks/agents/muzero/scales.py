"""Agents that learned with and without the two scales of MuZero's unroll: which of many runs are which."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from pandas import DataFrame, Series

# The scale of the state's gradient, and that of the later losses, where None is 1/K.
CORNERS = {"both": (0.5, None), "loss_only": (1.0, None), "state_only": (0.5, 1.0), "neither": (1.0, 1.0)}
LABELS = {"both": "both scales", "loss_only": "1/K only", "state_only": "0.5 only", "neither": "neither"}
# Their colours, markers and lines: a configuration looks alike in all figures, `unrolling.ipynb` included.
_LOOKS = ("C3", "D", "-"), ("C1", "s", "--"), ("C2", "^", "-."), ("C0", "o", ":")
LOOKS = {name: dict(zip(("color", "marker", "ls"), look)) for name, look in zip(CORNERS, _LOOKS)}


def choose(runs: "DataFrame", steps: int, state_scale: float, loss_scale: float | None = None) -> "DataFrame":
    """Choose the runs of one configuration, in the order of their seeds.

    Args:
        runs: A row for each run of `muzero.ipynb` or `tictactoe.ipynb`, as the lab's `table` returns them.
        steps: Length of the unroll, K. With 1 no scaled state is stepped from and 1/K is 1, so all runs of
            that length are chosen.
        state_scale: Of the state's gradient.
        loss_scale: Of the later losses; None is 1/K.
    """
    chosen = runs[runs["parameters.num_unroll_steps"] == steps]
    if steps > 1:
        losses = chosen["parameters.loss_gradient_scale"]
        of_losses = losses.isna() if loss_scale is None else losses == loss_scale
        chosen = chosen[(chosen["parameters.hidden_gradient_scale"] == state_scale) & of_losses]
    return chosen.sort_values("parameters.seed")


def learning_curve(run: "Series") -> NDArray[np.float64]:
    """Return a run's mean return in each part of its training, ``[num_windows]``.

    Across parts in which no game ended it is drawn straight, and level at its ends.
    """
    returns = np.array(run["results.curve.mean_return"], float)
    times, ended = np.arange(len(returns)), ~np.isnan(returns)
    return np.interp(times, times[ended], returns[ended])
