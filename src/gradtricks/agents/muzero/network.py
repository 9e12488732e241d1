"""MuZero's three networks without a framework: first weights, inference, and what their learners share."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradtricks._core.checks import check_choice, check_integer, check_number, check_shape
from gradtricks.agents.muzero.cartpole import ACTIONS, OBSERVATION_SIZE
from gradtricks.agents.muzero.replay import Batch
from gradtricks.agents.muzero.supports import CARTPOLE_SUPPORT, Support, expected_value
from gradtricks.agents.muzero.trees import RecurrentFnOutput, RootFnOutput
from gradtricks.agents.training import Part

Array = NDArray[np.floating]

OPTIMIZERS = ("momentum", "adam")
HEADS = ("dynamics/reward", "prediction/value", "prediction/policy")


def _layer_shapes(
    state_size: int, hidden_size: int, *, observation_size: int, actions: int, support_size: int
) -> dict[str, tuple[int, int]]:
    """Return inputs and outputs of each dense layer ``module/layer``."""
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


def check_weights(weights: Mapping[str, Array]) -> tuple[int, int, int]:
    """Return observation_size, state_size, actions; raise unless names are `draw_weights`' and shapes fit."""

    def size(name: str) -> int:
        return len(np.atleast_1d(weights[name])) if name in weights else 0

    read = "representation/hidden/kernel", "representation/state/bias", "prediction/policy/bias"
    observation_size, state_size, actions = map(size, read)
    hidden_size, support_size = size("representation/hidden/bias"), size("prediction/value/bias")
    sizes = {"observation_size": observation_size, "actions": actions, "support_size": support_size}
    shapes = _layer_shapes(state_size, hidden_size, **sizes)
    if difference := sorted(
        {f"{layer}/{part}" for layer in shapes for part in ("kernel", "bias")} ^ set(weights)
    ):
        raise ValueError(f"weights must have the names of draw_weights; missing or unknown: {difference}")
    for layer, shape in shapes.items():
        check_shape(
            f"{layer}/kernel", np.shape(weights[f"{layer}/kernel"]), shape, "what the other layers expect"
        )
        check_shape(f"{layer}/bias", np.shape(weights[f"{layer}/bias"]), shape[1:], "its kernel's outputs")
    return observation_size, state_size, actions


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
        head_size: Multiplies the kernels of value, reward and policy. Smaller heads make an untrained model's
            predictions nearly equal, so that they bias the search less.

    Returns:
        ``float32`` kernels ``[inputs, outputs]`` under ``module/layer/kernel`` and zero biases under
        ``module/layer/bias``; the modules are representation, dynamics and prediction.

    Raises:
        ValueError: A size is too small.
    """
    state_size = check_integer("state_size", state_size, low=2)
    hidden_size = check_integer("hidden_size", hidden_size, low=1)
    sizes = {
        "observation_size": check_integer("observation_size", observation_size, low=1),
        "actions": check_integer("actions", actions, low=1),
        "support_size": check_integer("support_size", support_size, low=2),
    }
    # The dynamics add to the state; small at first, so that it survives many steps.
    factors = {"dynamics/state": 0.1} | dict.fromkeys(HEADS, check_number("head_size", head_size, low=0))
    rng = np.random.default_rng(seed)
    weights: dict[str, Array] = {}
    for name, (inputs, outputs) in _layer_shapes(state_size, hidden_size, **sizes).items():
        size = factors.get(name, 1.0)
        weights[f"{name}/kernel"] = rng.normal(0, size * inputs**-0.5, (inputs, outputs)).astype(np.float32)
        weights[f"{name}/bias"] = np.zeros(outputs, np.float32)
    return weights


class Scales(NamedTuple):
    """Factors of the loss's gradients.

    Attributes:
        hidden_scale: The gradient of the state after each recurrent step.
        loss_scale: That of the losses after the root; None is 1/K.
        head_scale: The gradient of value and policy into the states after the root. The paper has 1;
            equal to ``hidden_scale`` it is a hook on the state.
        scale_root_loss: Multiply the gradient of the root's loss by ``loss_scale`` too.
        step_scales: ``[K+1]``, the gradient of each step's loss once more; None is all ones.
    """

    hidden_scale: float = 0.5
    loss_scale: float | None = None
    head_scale: float = 1.0
    scale_root_loss: bool = False
    step_scales: Sequence[float] | None = None


class BaseLearner(Part):
    """Base of the learners in both frameworks: their arguments, and how much gradient arrives where.

    Args:
        weights: From `draw_weights`; their dtype is the learner's.
        optimizer: ``"momentum"``, gradient descent with it, or ``"adam"``; the framework's own.
        learning_rate: Step size.
        momentum: Share of the last step that is kept; with Adam, of the mean gradient.
        weight_decay: Weight of half the sum of squares that is added to the loss.
        device: ``"auto"``, ``"cpu"`` or ``"gpu"``.
        **scales: Those of `Scales`.

    Attributes:
        scales: These, as updates use them.
        observation_size: Elements of an observation.
        state_size: Elements of a hidden state.
        actions: How many there are.

    Raises:
        ValueError: A number is out of range, or a name is another one.
    """

    def __init__(
        self,
        weights: Mapping[str, Array],
        *,
        optimizer: str = "momentum",
        learning_rate: float = 0.05,
        momentum: float = 0.9,
        weight_decay: float = 1e-4,
        device: str = "auto",
        **scales: Any,
    ) -> None:
        """Check the arguments."""
        self.observation_size, self.state_size, self.actions = check_weights(weights)
        self.scales = Scales(**scales)
        check_number("hidden_scale", self.scales.hidden_scale)
        check_number("head_scale", self.scales.head_scale)
        if self.scales.loss_scale is not None:
            check_number("loss_scale", self.scales.loss_scale)
        check_choice("optimizer", optimizer, OPTIMIZERS)
        self.optimizer, self.momentum = optimizer, check_number("momentum", momentum, low=0, high=1)
        if momentum == 1:
            raise ValueError("momentum must be below 1, or nothing is ever forgotten; got 1; remedy: 0.9")
        self.learning_rate = check_number("learning_rate", learning_rate, low=0)
        self.weight_decay = check_number("weight_decay", weight_decay, low=0)
        self._place(weights, device)

    @abstractmethod
    def _place(self, weights: Mapping[str, Array], device: str) -> None:
        """Copy the weights to the device, and make the framework's optimizer of them."""

    @abstractmethod
    def update(self, batch: Batch, *, learning_rate: float | None = None) -> float:
        """Take one step of the optimizer, with the constructor's learning rate or another one.

        Returns:
            The loss before the step, without weight decay: the sum over the K+1 steps, averaged over
            trajectories, in nats.
        """

    @abstractmethod
    def gradients(self, batch: Batch, **scales: Any) -> tuple[dict[str, Array], Array]:
        """Differentiate the mean loss; the weights stay as they are.

        Args:
            batch: From `gradtricks.agents.muzero.replay.ReplayBuffer`.
            **scales: Those of `Scales`; the learner's own count only in `update`.

        Returns:
            The gradient of each weight, and of the states ``[K+1, B, S]``, without weight decay.
        """

    def gradient_norms(self, batch: Batch, **scales: Any) -> dict[str, Any]:
        """Measure how much gradient reaches each module and each state; see `gradients`.

        Returns:
            For representation, dynamics and prediction the norm of the mean loss's gradient; for ``states``
            the K+1 norms of a trajectory's gradient, averaged over the batch.
        """
        weights, states = self.gradients(batch, **scales)
        norms: dict[str, Any] = {}
        for module in ("representation", "dynamics", "prediction"):
            parts = [np.linalg.norm(g) for name, g in weights.items() if name.startswith(module)]
            norms[module] = float(np.linalg.norm(parts))
        norms["states"] = (states.shape[1] * np.linalg.norm(states, axis=-1).mean(axis=-1)).tolist()
        return norms

    def copy_weights(self) -> dict[str, Array]:
        """Return the weights as they are now, under `draw_weights`' names."""
        return {name: array for name, array in self.state().items() if not name.startswith("optimizer/")}


class SearchNetwork:
    """The three networks in NumPy, as the search needs them.

    The search asks for a few dozen states at a time, for which starting a framework's operations costs more
    than the arithmetic does.

    Args:
        weights: As from `draw_weights`; used as they are, so don't change them meanwhile.
        support: Categories of values and rewards.

    Attributes:
        observation_size: Elements of an observation.
        actions: How many there are.

    Raises:
        ValueError: The weights aren't those of `draw_weights`, or their heads haven't the support's size.
    """

    def __init__(self, weights: Mapping[str, Array], support: Support = CARTPOLE_SUPPORT) -> None:
        """Join the layers that have the same input."""
        self.observation_size, self._state_size, self.actions = check_weights(weights)
        check_shape(
            "prediction/value/bias", weights["prediction/value/bias"].shape, (support.size,), "the support"
        )
        self.support = support
        self._represent = [_join(weights, f"representation/{layer}") for layer in ("hidden", "state")]
        kernel, bias = _join(weights, "dynamics/hidden")
        # An action is a one-hot input, which picks a row of the kernel.
        self._action_rows = kernel[self._state_size :] + bias
        self._state_kernel = kernel[: self._state_size]
        self._advance = _join(weights, "dynamics/state", "dynamics/reward")
        self._prediction = [
            _join(weights, "prediction/hidden"),
            _join(weights, "prediction/value", "prediction/policy"),
        ]

    def look(self, observations: Array) -> RootFnOutput:
        """Look at real observations ``[B, observation_size]``, where the search starts."""
        hidden, state = self._represent
        states = np.tanh(_dense(_relu(_dense(observations, hidden)), state))
        value, logits = self._predict(states)
        return RootFnOutput(logits, expected_value(value, self.support), states)

    def imagine(self, states: NDArray[Any], actions: NDArray[np.int64]) -> RecurrentFnOutput:
        """Imagine a step from states ``[B, S]`` by actions ``[B]``; this is the search's ``recurrent_fn``."""
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
