"""The MuZero unroll: K applications of the dynamics, with scaled gradients.

Forward ``h_k = dynamics(h_(k-1), a_k)``; of the gradient of step k's loss ``hidden_scale**(k - 1)`` reaches
``h_0``.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from gradtricks._core.checks import check_number, check_shape
from gradtricks._core.unrolling import check_loss_shapes, stacked
from gradtricks.tensorflow._tensors import TENSORS, as_ranked, as_tensor, at_least_float32, product
from gradtricks.tensorflow.scaling import scale_gradient


def unroll(
    recurrent_fn: Callable[[Any, tf.Tensor], tuple[Any, Any]],
    root_state: Any,
    actions: tf.Tensor,
    *,
    hidden_scale: float | tf.Tensor = 0.5,
    prediction_fn: Callable[[Any], Any] | None = None,
    scale_predictions: bool = False,
    scale_root_state: bool = False,
) -> tuple[Any, Any]:
    """Apply ``recurrent_fn`` once for each action; scale the gradient of every state that it returns.

    Forward, the states are untouched. Backward, what a later step sends into a state is multiplied by
    ``hidden_scale``, so the loss of step k reaches the root through ``hidden_scale**(k - 1)``. By default
    this is the paper's pseudocode: the root state isn't scaled, and the outputs of a step are computed
    before the scale. The other options are what some reimplementations do.

    Args:
        recurrent_fn: ``(state, action) -> (output, next_state)``, for a whole batch.
        root_state: ``[B, ...]`` floating-point, or a tuple, list or dict of such tensors.
        actions: ``[K, B, ...]``, one slice for each step; K is known when a graph is traced.
        hidden_scale: A finite number, or a floating-point tensor that broadcasts to every state: 1 leaves the
            gradient alone, 0 cuts it between steps. Annealing a tensor neither retraces nor recompiles.
        prediction_fn: ``state -> prediction``, read off every state that ``recurrent_fn`` returns. An output
            is then ``(output, prediction)``.
        scale_predictions: Multiply also what ``prediction_fn`` sends into the state, as a hook on the state
            does.
        scale_root_state: Multiply also what the first step sends into the root state.

    Returns:
        The outputs, stacked along a new first axis ``[K, ...]`` in the structure of one output, and the
        last state.

    Raises:
        ValueError: The steps differ in the structure of their outputs, or ``scale_predictions`` comes without
            ``prediction_fn``.

    References:
        ``update_weights`` in the pseudocode of MuZero, https://arxiv.org/abs/1911.08265.

    Example:
        >>> outputs, state = unroll(lambda s, a: (s + a, s + a), tf.zeros(1), tf.ones((3, 1)))
        >>> tf.squeeze(outputs).numpy(), state.numpy()
        (array([1., 2., 3.], dtype=float32), array([3.], dtype=float32))
    """
    actions = as_tensor("actions", actions)
    hidden_scale = _as_scale("hidden_scale", hidden_scale)
    if actions.shape.rank == 0 or not actions.shape[0]:
        raise ValueError(f"actions must have shape [K, B, ...] with K >= 1; got {tuple(actions.shape)}")
    if scale_predictions and prediction_fn is None:
        raise ValueError("scale_predictions needs prediction_fn, to know the predictions; got None")
    outputs, state = [], scale_gradient(root_state, hidden_scale) if scale_root_state else root_state
    for action in tf.unstack(actions):
        output, state = recurrent_fn(state, action)
        scaled = scale_gradient(state, hidden_scale)
        if prediction_fn is not None:
            output = (output, prediction_fn(scaled if scale_predictions else state))
        outputs.append(output)
        state = scaled
    return stacked(outputs, lambda steps: tf.stack([as_tensor("each output", x) for x in steps])), state


def muzero_loss(
    value: tf.Tensor,
    reward: tf.Tensor,
    policy_logits: tf.Tensor,
    target_value: tf.Tensor,
    target_reward: tf.Tensor,
    target_policy: tf.Tensor,
    *,
    loss_scale: float | tf.Tensor | None = None,
    scale_root_loss: bool = False,
    value_weight: float = 1.0,
    reward_weight: float = 1.0,
    policy_weight: float = 1.0,
) -> tf.Tensor:
    """Add the value, reward and policy losses of all steps; one sum for each trajectory.

    Forward, every step counts once. Backward, the steps after the root are multiplied by ``loss_scale``:
    the pseudocode scales gradients, not losses. By default this is the pseudocode; the other options are
    what some reimplementations do.

    Args:
        value: ``[K+1, B]`` for squared errors, or logits ``[K+1, B, N]`` for cross-entropy against
            distributions. The first slice belongs to the root.
        reward: ``[K, B]`` or ``[K, B, N]``, likewise; the root has none.
        policy_logits: ``[K+1, B, A]``.
        target_value: Shape of ``value``.
        target_reward: Shape of ``reward``.
        target_policy: Shape of ``policy_logits``; a row of zeros adds nothing.
        loss_scale: None is 1/K, as in the paper. A floating-point tensor ``[B]`` scales each trajectory by
            itself, for instance by the number of steps that it has.
        scale_root_loss: Multiply the gradient of the root's loss too.
        value_weight: Multiplies the value losses, forward and backward.
        reward_weight: Multiplies the reward losses.
        policy_weight: Multiplies the policy losses.

    Returns:
        ``[B]``, in float32 or wider. Its sum is the loss of the pseudocode, its mean doesn't grow with B.

    References:
        ``update_weights`` in the pseudocode of MuZero, https://arxiv.org/abs/1911.08265.
    """
    value, target_value = as_ranked("value", value), as_ranked("target_value", target_value)
    reward, target_reward = as_ranked("reward", reward), as_ranked("target_reward", target_reward)
    policy_logits = as_ranked("policy_logits", policy_logits)
    target_policy = as_ranked("target_policy", target_policy)
    check_loss_shapes((value, reward, policy_logits), (target_value, target_reward, target_policy))
    steps = reward.shape[0] or tf.shape(reward)[0]
    scale = 1 / steps if loss_scale is None else _as_scale("loss_scale", loss_scale)
    if isinstance(loss_scale, TENSORS):
        check_shape("loss_scale", loss_scale.shape, reward.shape[1:2], "[B] of reward")
    weights = {"value_weight": value_weight, "reward_weight": reward_weight, "policy_weight": policy_weight}
    for_value, for_reward, for_policy = (check_number(name, weight) for name, weight in weights.items())
    heads = for_value * _term(value, target_value)
    heads = heads + for_policy * _cross_entropy(policy_logits, target_policy)
    root, later = heads[:1], heads[1:] + for_reward * _term(reward, target_reward)
    root = scale_gradient(root, scale) if scale_root_loss else root
    return tf.reduce_sum(tf.concat([root, scale_gradient(later, scale)], axis=0), axis=0)


def _as_scale(name: str, scale: object) -> float | tf.Tensor:
    return as_ranked(name, scale) if isinstance(scale, TENSORS) else check_number(name, scale)


def _term(prediction: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
    if prediction.shape.rank == 2:
        prediction = at_least_float32(prediction)
        return tf.square(prediction - tf.cast(target, prediction.dtype))
    return _cross_entropy(prediction, target)


def _cross_entropy(logits: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
    log_probability = tf.nn.log_softmax(at_least_float32(logits))
    return -tf.reduce_sum(product(tf.cast(target, log_probability.dtype), log_probability), axis=-1)
