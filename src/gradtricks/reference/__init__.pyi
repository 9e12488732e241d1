from .masking import masked_adam_step as masked_adam_step
from .masking import masked_adam_step_vjp as masked_adam_step_vjp
from .policy_gradients import discounted_returns as discounted_returns
from .policy_gradients import discounted_returns_vjp as discounted_returns_vjp
from .policy_gradients import policy_gradient_loss as policy_gradient_loss
from .policy_gradients import policy_gradient_loss_vjp as policy_gradient_loss_vjp
from .policy_gradients import standardize as standardize
from .policy_gradients import standardize_vjp as standardize_vjp
from .scaling import scale_gradient as scale_gradient
from .scaling import scale_gradient_vjp as scale_gradient_vjp
from .unrolling import muzero_loss as muzero_loss
from .unrolling import muzero_loss_vjp as muzero_loss_vjp
from .unrolling import unroll as unroll
from .unrolling import unroll_vjp as unroll_vjp

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
