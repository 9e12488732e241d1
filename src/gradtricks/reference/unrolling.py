"""The MuZero unroll: K applications of the dynamics, with scaled gradients."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gradtricks.reference._arrays import log_softmax
from gradtricks.reference.scaling import scale_gradient_vjp

Array = NDArray[np.floating]


def unroll(
    recurrent_fn: Callable[[Array, Array], tuple[Array, Array]],
    root_state: Array,
    actions: Array,
    *,
    hidden_scale: float = 0.5,
) -> tuple[Array, Array]:
    """Apply ``recurrent_fn`` once for each action; scale the gradient of every state that it returns.

    Args:
        recurrent_fn: ``(state, action) -> (output, next_state)``.
        root_state: ``[B, ...]``.
        actions: ``[K, B, ...]``.
        hidden_scale: Only the backward pass uses it.

    Returns:
        Outputs ``[K, ...]`` and the last state.
    """
    del hidden_scale
    outputs, state = [], root_state
    for action in actions:
        output, state = recurrent_fn(state, action)
        outputs.append(output)
    return np.stack(outputs), state


def unroll_vjp(
    outputs_cotangent: Array,
    state_cotangent: Array,
    recurrent_fn: Callable[[Array, Array], tuple[Array, Array]],
    recurrent_vjp: Callable[[Array, Array, Array, Array], tuple[Array, Array]],
    root_state: Array,
    actions: Array,
    *,
    hidden_scale: float = 0.5,
) -> tuple[Array, Array]:
    """Return the gradients that reach ``root_state`` and the parameters of ``recurrent_fn``.

    Args:
        outputs_cotangent: ``[K, ...]``, arrives at the outputs.
        state_cotangent: ``[B, ...]``, arrives at the last state.
        recurrent_fn: As in `unroll`.
        recurrent_vjp: ``(output_cotangent, next_state_cotangent, state, action)`` to the gradients of
            ``state`` and of the parameters.
        root_state: ``[B, ...]``.
        actions: ``[K, B, ...]``.
        hidden_scale: Multiplies the gradient of every state that ``recurrent_fn`` returns.

    Returns:
        The gradient of ``root_state`` and the summed gradient of the parameters.
    """
    states = [root_state]
    for action in actions[:-1]:
        states.append(recurrent_fn(states[-1], action)[1])
    parameters_gradient: Array | float = 0.0
    for state, action, cotangent in zip(states[::-1], actions[::-1], outputs_cotangent[::-1], strict=True):
        scaled = scale_gradient_vjp(state_cotangent, state_cotangent, hidden_scale)
        state_cotangent, gradient = recurrent_vjp(cotangent, scaled, state, action)
        parameters_gradient = parameters_gradient + gradient
    return state_cotangent, np.asarray(parameters_gradient)


def muzero_loss(
    value: Array,
    reward: Array,
    policy_logits: Array,
    target_value: Array,
    target_reward: Array,
    target_policy: Array,
    *,
    loss_scale: float | None = None,
) -> Array:
    """Add the value, reward and policy losses of all steps; one sum for each trajectory.

    Args:
        value: ``[K+1, B]`` for squared errors, or logits ``[K+1, B, N]`` for cross-entropy.
        reward: ``[K, B]`` or ``[K, B, N]``, likewise.
        policy_logits: ``[K+1, B, A]``.
        target_value: Shape of ``value``.
        target_reward: Shape of ``reward``.
        target_policy: Shape of ``policy_logits``.
        loss_scale: Only the backward pass uses it.

    Returns:
        ``[B]``.
    """
    del loss_scale
    return (
        _term(value, target_value).sum(axis=0)
        + _term(reward, target_reward).sum(axis=0)
        + _cross_entropy(policy_logits, target_policy).sum(axis=0)
    )


def muzero_loss_vjp(
    cotangent: Array,
    value: Array,
    reward: Array,
    policy_logits: Array,
    target_value: Array,
    target_reward: Array,
    target_policy: Array,
    *,
    loss_scale: float | None = None,
) -> tuple[Array, Array, Array]:
    """Return the gradients that reach ``value``, ``reward`` and ``policy_logits``.

    Args:
        cotangent: ``[B]``.
        value: As in `muzero_loss`, like the five that follow.
        loss_scale: Multiplies the gradient of the steps after the root; None is 1/K.

    Returns:
        Gradients in the shapes of the predictions.
    """
    num_unroll_steps = len(reward)
    scale = 1 / num_unroll_steps if loss_scale is None else loss_scale
    steps = cotangent * np.where(np.arange(num_unroll_steps + 1) == 0, 1.0, scale)[:, None]
    return (
        _term_slope(value, target_value, steps),
        _term_slope(reward, target_reward, steps[1:]),
        _cross_entropy_slope(policy_logits, target_policy, steps),
    )


def _term(prediction: Array, target: Array) -> Array:
    return (prediction - target) ** 2 if prediction.ndim == 2 else _cross_entropy(prediction, target)


def _term_slope(prediction: Array, target: Array, cotangent: Array) -> Array:
    if prediction.ndim == 2:
        return 2 * (prediction - target) * cotangent
    return _cross_entropy_slope(prediction, target, cotangent)


def _cross_entropy(logits: Array, target: Array) -> Array:
    return -np.where(target == 0, 0, target * log_softmax(logits)).sum(axis=-1)


def _cross_entropy_slope(logits: Array, target: Array, cotangent: Array) -> Array:
    total = target.sum(axis=-1, keepdims=True)
    return cotangent[..., None] * (np.exp(log_softmax(logits)) * total - target)
