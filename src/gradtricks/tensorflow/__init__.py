"""The tricks in TensorFlow."""

from gradtricks.tensorflow.masking import MaskedAdam, masked_adam_step
from gradtricks.tensorflow.policy_gradients import discounted_returns, policy_gradient_loss, standardize
from gradtricks.tensorflow.scaling import scale_gradient
from gradtricks.tensorflow.unrolling import muzero_loss, unroll

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
