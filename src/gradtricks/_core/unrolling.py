"""Predictions of a MuZero unroll: stacked, and their shapes."""

from collections.abc import Callable, Sequence
from typing import Any

from gradtricks._core.checks import check_shape
from gradtricks._core.structures import map_structure


def stacked(outputs: list[Any], stack: Callable[[tuple[Any, ...]], Any]) -> Any:
    """Stack what stands at the same place of each step's output; raise unless all are built alike."""
    outlines = [map_structure(lambda _: "tensor", output) for output in outputs]
    for outline in outlines:
        if outline != outlines[0]:
            raise ValueError(f"every step must put out the same structure; got {outlines[0]} and {outline}")
    return map_structure(lambda *steps: stack(steps), *outputs)


def check_loss_shapes(predictions: Sequence[Any], targets: Sequence[Any]) -> None:
    """Raise unless value, reward and policy logits, and their targets, have shapes that fit together.

    A dimension that is unknown until run fits any.
    """
    value, reward, policy_logits = (tensor.shape for tensor in predictions)
    if len(reward) not in (2, 3) or reward[0] == 0:
        raise ValueError(f"reward must have shape [K, B] or [K, B, N] with K >= 1; got {tuple(reward)}")
    steps, batch = reward[:2]
    with_root = None if steps is None else steps + 1
    if len(value) not in (2, 3):
        raise ValueError(f"value must have shape [K+1, B] or [K+1, B, N]; got {tuple(value)}")
    if len(policy_logits) != 3:
        raise ValueError(f"policy_logits must have shape [K+1, B, A]; got {tuple(policy_logits)}")
    check_shape("value[..., 0]", value[:2], (with_root, batch), "[K+1, B] of reward")
    check_shape("policy_logits[..., 0]", policy_logits[:2], (with_root, batch), "[K+1, B] of reward")
    target_value, target_reward, target_policy = (tensor.shape for tensor in targets)
    check_shape("target_value", target_value, value, "value")
    check_shape("target_reward", target_reward, reward, "reward")
    check_shape("target_policy", target_policy, policy_logits, "policy_logits")
