"""MuZero's three networks without a framework: layers, first weights, and inference for the search."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradtricks._core.checks import check_integer, check_number, check_shape
from gradtricks.agents.cartpole import ACTIONS, OBSERVATION_SIZE
from gradtricks.agents.search import RecurrentFnOutput, RootFnOutput
from gradtricks.agents.supports import CARTPOLE_SUPPORT, Support, expected_value

Array = NDArray[np.floating]

OPTIMIZERS = ("momentum", "adam")
HEADS = ("dynamics/reward", "prediction/value", "prediction/policy")


def layer_shapes(
    state_size: int,
    hidden_size: int,
    *,
    observation_size: int = OBSERVATION_SIZE,
    actions: int = ACTIONS,
    support_size: int = CARTPOLE_SUPPORT.size,
) -> dict[str, tuple[int, int]]:
    """Return inputs and outputs of each dense layer of the three networks.

    Args:
        state_size: Elements of a hidden state.
        hidden_size: Units of the one hidden layer in each network.
        observation_size: Elements of an observation.
        actions: How many there are.
        support_size: Categories of values and rewards.

    Returns:
        ``module/layer`` to ``(inputs, outputs)``; the modules are representation, dynamics and prediction.
    """
    return {
        "representation/hidden": (observation_size, hidden_size),
        "representation/state": (hidden_size, state_size),
        "dynamics/hidden": (state_size + actions, hidden_size),
        "dynamics/state": (hidden_size, state_size),
        "dynamics/reward": (hidden_size, support_size),
        "prediction/hidden": (state_size, hidden_size),
        "prediction/value": (hidden_size, support_size),
        "prediction/policy": (hidden_size, actions),
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


class Sizes(NamedTuple):
    """Of the three networks.

    Attributes:
        observation: Elements of an observation.
        state: Elements of a hidden state.
        actions: How many there are.
    """

    observation: int
    state: int
    actions: int


def find_sizes(weights: Mapping[str, Array]) -> Sizes:
    """Read the sizes of the networks off their weights.

    Args:
        weights: As from `draw_weights`.

    Returns:
        The sizes.
    """
    state, actions = (len(weights[f"{layer}/bias"]) for layer in ("dynamics/state", "prediction/policy"))
    return Sizes(len(weights["representation/hidden/kernel"]), state, actions)


def check_optimizer(optimizer: str, momentum: float) -> tuple[str, float]:
    """Raise unless a learner has the optimizer, and the momentum fits.

    Args:
        optimizer: Its name.
        momentum: Share of what was that is kept, from 0 to 1; with Adam, which divides by the rest, below 1.

    Returns:
        Both.

    Raises:
        ValueError: It's another one, or the momentum is out of range.
    """
    if optimizer not in OPTIMIZERS:
        raise ValueError(f"optimizer must be one of {', '.join(map(repr, OPTIMIZERS))}; got {optimizer!r}")
    momentum = check_number("momentum", momentum, low=0, high=1)
    if optimizer == "adam" and momentum == 1:
        raise ValueError("momentum must be below 1 with Adam; got 1.0; remedy: 0.9")
    return optimizer, momentum


def draw_weights(
    seed: int = 0,
    *,
    state_size: int = 32,
    hidden_size: int = 64,
    observation_size: int = OBSERVATION_SIZE,
    actions: int = ACTIONS,
    support_size: int = CARTPOLE_SUPPORT.size,
    head_size: float = 1.0,
) -> dict[str, Array]:
    """Draw the weights of the three networks, the same for both frameworks.

    Args:
        seed: Of the generator.
        state_size: Elements of a hidden state.
        hidden_size: Units of the one hidden layer in each network.
        observation_size: Elements of an observation.
        actions: How many there are.
        support_size: Categories of values and rewards.
        head_size: Multiplies the kernels of value, reward and policy. What an untrained network says of
            states differs less where it is small, and misleads the search less.

    Returns:
        ``float32`` kernels ``[inputs, outputs]`` under ``module/layer/kernel`` and zero biases under
        ``module/layer/bias``, for the layers of `layer_shapes`.

    Raises:
        ValueError: A size is too small.
    """
    state_size = int(check_number("state_size", state_size, low=2))
    hidden_size = int(check_number("hidden_size", hidden_size, low=1))
    sizes = {
        "observation_size": check_integer("observation_size", observation_size, low=1),
        "actions": check_integer("actions", actions, low=1),
        "support_size": check_integer("support_size", support_size, low=2),
    }
    # The dynamics add to the state; small at first, so that it survives many steps.
    factors = {"dynamics/state": 0.1} | dict.fromkeys(HEADS, check_number("head_size", head_size, low=0))
    rng = np.random.default_rng(seed)
    weights: dict[str, Array] = {}
    for name, (inputs, outputs) in layer_shapes(state_size, hidden_size, **sizes).items():
        size = factors.get(name, 1.0)
        weights[f"{name}/kernel"] = rng.normal(0, size * inputs**-0.5, (inputs, outputs)).astype(np.float32)
        weights[f"{name}/bias"] = np.zeros(outputs, np.float32)
    return weights


class SearchNetwork:
    """The three networks in NumPy, as the search needs them.

    The search asks for a few dozen states at a time, for which starting a framework's operations costs more
    than the arithmetic does.

    Args:
        weights: As from `draw_weights`; used as they are, so don't change them meanwhile.
        support: Categories of values and rewards.

    Raises:
        ValueError: The names aren't those of `draw_weights`, or the heads don't have the support's size.
    """

    def __init__(self, weights: Mapping[str, Array], support: Support = CARTPOLE_SUPPORT) -> None:
        """Join the layers that have the same input."""
        check_weights(weights)
        for layer in ("dynamics/reward", "prediction/value"):
            check_shape(f"{layer}/bias", weights[f"{layer}/bias"].shape, (support.size,), "the support")
        self.support = support
        self._represent = [_join(weights, f"representation/{layer}") for layer in ("hidden", "state")]
        kernel, bias = _join(weights, "dynamics/hidden")
        self._state_size = len(weights["dynamics/state/bias"])
        # An action is a one-hot input, which picks a row of the kernel.
        self._action_rows = kernel[self._state_size :] + bias
        self._state_kernel = kernel[: self._state_size]
        self._advance = _join(weights, "dynamics/state", "dynamics/reward")
        self._prediction = [
            _join(weights, "prediction/hidden"),
            _join(weights, "prediction/value", "prediction/policy"),
        ]

    def look(self, observations: Array) -> RootFnOutput:
        """Look at real observations.

        Args:
            observations: ``[B, observation_size]``.

        Returns:
            Where the search starts.
        """
        hidden, state = self._represent
        states = np.tanh(_dense(_relu(_dense(observations, hidden)), state))
        value, logits = self._predict(states)
        return RootFnOutput(logits, expected_value(value, self.support), states)

    def imagine(self, states: NDArray[Any], actions: NDArray[np.int64]) -> RecurrentFnOutput:
        """Imagine one step; this is the search's ``recurrent_fn``.

        Args:
            states: ``[B, S]``.
            actions: ``[B]``.

        Returns:
            What follows.
        """
        hidden = _relu(states @ self._state_kernel + self._action_rows[actions])
        outputs = _dense(hidden, self._advance)
        next_states = np.tanh(states + outputs[:, : self._state_size])
        value, logits = self._predict(next_states)
        both = np.stack([value, outputs[:, self._state_size :]])  # in one go, as this is what takes time
        value, reward = expected_value(both, self.support)
        return RecurrentFnOutput(value, reward, logits, next_states)

    def _predict(self, states: Array) -> tuple[Array, Array]:
        hidden, heads = self._prediction
        outputs = _dense(_relu(_dense(states, hidden)), heads)
        return outputs[:, : self.support.size], outputs[:, self.support.size :]


def _join(weights: Mapping[str, Array], *layers: str) -> tuple[Array, Array]:
    kernels, biases = ([weights[f"{layer}/{part}"] for layer in layers] for part in ("kernel", "bias"))
    return np.concatenate(kernels, axis=1), np.concatenate(biases)


def _dense(x: Array, layer: tuple[Array, Array]) -> Array:
    y: Array = x @ layer[0] + layer[1]
    return y


def _relu(x: Array) -> Array:
    return np.maximum(x, 0)
