"""The MuZero unroll: K applications of the dynamics, with scaled gradients."""

from collections.abc import Callable
from typing import Any

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
    prediction_fn: Callable[[Array], Array] | None = None,
) -> tuple[Any, Array]:
    """Apply ``recurrent_fn`` once for each of ``actions``; the scales are for the backward pass alone.

    Returns:
        Outputs ``[K, ...]``, or a tuple of outputs and predictions, and the last state.
    """
    outputs, predictions, state = [], [], root_state
    for action in actions:
        output, state = recurrent_fn(state, action)
        outputs.append(output)
        predictions += [] if prediction_fn is None else [prediction_fn(state)]
    stacked = np.stack(outputs)
    return (stacked if prediction_fn is None else (stacked, np.stack(predictions))), state


def unroll_vjp(
    outputs_cotangent: Array,
    state_cotangent: Array,
    recurrent_fn: Callable[[Array, Array], tuple[Array, Array]],
    recurrent_vjp: Callable[[Array, Array, Array, Array], tuple[Array, Array]],
    root_state: Array,
    actions: Array,
    *,
    hidden_scale: float = 0.5,
    predictions_cotangent: Array | None = None,
    prediction_vjp: Callable[[Array, Array], Array] | None = None,
    scale_predictions: bool = False,
    scale_root_state: bool = False,
) -> tuple[Array, Array]:
    """The gradient of ``root_state``, and the summed gradient of the parameters of ``recurrent_fn``.

    ``recurrent_vjp(output_cotangent, next_state_cotangent, state, action)`` returns the gradients of the
    state and of the parameters, ``prediction_vjp(prediction_cotangent, state)`` that of the state.
    """
    states = [root_state]
    for action in actions:
        states.append(recurrent_fn(states[-1], action)[1])
    parameters_gradient: Array | float = 0.0
    for k in reversed(range(len(actions))):
        state_cotangent = _scaled(state_cotangent, hidden_scale)
        if predictions_cotangent is not None and prediction_vjp is not None:
            from_prediction = prediction_vjp(predictions_cotangent[k], states[k + 1])
            state_cotangent += _scaled(from_prediction, hidden_scale if scale_predictions else 1.0)
        arriving = outputs_cotangent[k], state_cotangent, states[k], actions[k]
        state_cotangent, gradient = recurrent_vjp(*arriving)
        parameters_gradient = parameters_gradient + gradient
    if scale_root_state:
        state_cotangent = _scaled(state_cotangent, hidden_scale)
    return state_cotangent, np.asarray(parameters_gradient)


def muzero_loss(
    value: Array,
    reward: Array,
    policy_logits: Array,
    target_value: Array,
    target_reward: Array,
    target_policy: Array,
    *,
    value_weight: float = 1.0,
    reward_weight: float = 1.0,
    policy_weight: float = 1.0,
) -> Array:
    """Add the value, reward and policy losses of all steps: ``[B]``. Scales are for the backward pass alone.

    Values and rewards are ``[K+1, B]`` and ``[K, B]`` for squared errors, or logits with an axis ``[N]`` more
    for cross-entropy; policy logits are ``[K+1, B, A]``.
    """
    return (
        value_weight * _term(value, target_value).sum(axis=0)
        + reward_weight * _term(reward, target_reward).sum(axis=0)
        + policy_weight * _cross_entropy(policy_logits, target_policy).sum(axis=0)
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
    loss_scale: float | Array | None = None,
    scale_root_loss: bool = False,
    value_weight: float = 1.0,
    reward_weight: float = 1.0,
    policy_weight: float = 1.0,
) -> tuple[Array, Array, Array]:
    """For ``value``, ``reward`` and ``policy_logits``; a ``loss_scale`` of None is 1/K."""
    scale = 1 / len(reward) if loss_scale is None else loss_scale
    steps = np.repeat((cotangent * scale)[None], len(value), axis=0)
    if not scale_root_loss:
        steps[0] = cotangent
    return (
        value_weight * _term_slope(value, target_value, steps),
        reward_weight * _term_slope(reward, target_reward, steps[1:]),
        policy_weight * _cross_entropy_slope(policy_logits, target_policy, steps),
    )


def _scaled(cotangent: Array, scale: float) -> Array:
    return scale_gradient_vjp(cotangent, cotangent, scale)


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
