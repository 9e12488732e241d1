"""The oracle: every trick in NumPy, as a value and a vector-Jacobian product.

Written to be read and checked by eye, not to be fast. ``f_vjp(cotangent, ...)`` returns the
gradient that a framework must produce when ``cotangent`` arrives at the output of ``f``.
"""

from gradtricks.reference.masking import masked_adam_step, masked_adam_step_vjp
from gradtricks.reference.policy_gradients import (
    discounted_returns,
    discounted_returns_vjp,
    policy_gradient_loss,
    policy_gradient_loss_vjp,
    standardize,
    standardize_vjp,
)
from gradtricks.reference.scaling import scale_gradient, scale_gradient_vjp
from gradtricks.reference.unrolling import muzero_loss, muzero_loss_vjp, unroll, unroll_vjp

__all__ = [
    "discounted_returns",
    "discounted_returns_vjp",
    "masked_adam_step",
    "masked_adam_step_vjp",
    "muzero_loss",
    "muzero_loss_vjp",
    "policy_gradient_loss",
    "policy_gradient_loss_vjp",
    "scale_gradient",
    "scale_gradient_vjp",
    "standardize",
    "standardize_vjp",
    "unroll",
    "unroll_vjp",
]
