"""The layers of MuZero's three networks, and the weights that both frameworks start from."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from gradtricks._checks import check_number
from gradtricks.agents.cartpole import ACTIONS, OBSERVATION_SIZE
from gradtricks.agents.replay import SUPPORT_SIZE

Array = NDArray[np.floating]


def layer_shapes(state_size: int, hidden_size: int) -> dict[str, tuple[int, int]]:
    """Return inputs and outputs of each dense layer of the three networks.

    Args:
        state_size: Elements of a hidden state.
        hidden_size: Units of the one hidden layer in each network.

    Returns:
        ``module/layer`` to ``(inputs, outputs)``; the modules are representation, dynamics and prediction.
    """
    return {
        "representation/hidden": (OBSERVATION_SIZE, hidden_size),
        "representation/state": (hidden_size, state_size),
        "dynamics/hidden": (state_size + ACTIONS, hidden_size),
        "dynamics/state": (hidden_size, state_size),
        "dynamics/reward": (hidden_size, SUPPORT_SIZE),
        "prediction/hidden": (state_size, hidden_size),
        "prediction/value": (hidden_size, SUPPORT_SIZE),
        "prediction/policy": (hidden_size, ACTIONS),
    }


def check_weights(weights: Mapping[str, Array]) -> None:
    """Raise unless the names are those of `draw_weights`.

    Args:
        weights: Arrays under their names.

    Raises:
        ValueError: Some name is missing or unknown.
    """
    expected = {f"{layer}/{part}" for layer in layer_shapes(2, 1) for part in ("kernel", "bias")}
    if difference := sorted(expected ^ set(weights)):
        raise ValueError(f"weights must have the names of draw_weights; missing or unknown: {difference}")


def draw_weights(seed: int = 0, *, state_size: int = 32, hidden_size: int = 64) -> dict[str, Array]:
    """Draw the weights of the three networks, the same for both frameworks.

    Args:
        seed: Of the generator.
        state_size: Elements of a hidden state.
        hidden_size: Units of the one hidden layer in each network.

    Returns:
        ``float32`` kernels ``[inputs, outputs]`` under ``module/layer/kernel`` and zero biases under
        ``module/layer/bias``, for the layers of `layer_shapes`.
    """
    state_size = int(check_number("state_size", state_size, low=2))
    hidden_size = int(check_number("hidden_size", hidden_size, low=1))
    rng = np.random.default_rng(seed)
    weights: dict[str, Array] = {}
    for name, (inputs, outputs) in layer_shapes(state_size, hidden_size).items():
        # The dynamics add to the state; small at first, so that it survives many steps.
        size = 0.1 if name == "dynamics/state" else 1.0
        weights[f"{name}/kernel"] = rng.normal(0, size * inputs**-0.5, (inputs, outputs)).astype(np.float32)
        weights[f"{name}/bias"] = np.zeros(outputs, np.float32)
    return weights
