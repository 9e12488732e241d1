"""The tricks in PyTorch."""

from gradtricks.torch.masking import MaskedAdam, masked_adam_step
from gradtricks.torch.policy_gradients import discounted_returns, policy_gradient_loss, standardize
from gradtricks.torch.scaling import scale_gradient
from gradtricks.torch.unrolling import muzero_loss, unroll

__all__ = [
    "MaskedAdam",
    "discounted_returns",
    "masked_adam_step",
    "muzero_loss",
    "policy_gradient_loss",
    "scale_gradient",
    "standardize",
    "unroll",
]
