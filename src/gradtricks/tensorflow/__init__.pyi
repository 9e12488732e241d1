from .accumulating import accumulate_gradients as accumulate_gradients
from .branching import safe_where as safe_where
from .branching import where_gradients as where_gradients
from .checking import check_gradient as check_gradient
from .clipping import clip_by_global_norm as clip_by_global_norm
from .clipping import clip_gradient as clip_gradient
from .clipping import clip_gradient_norm as clip_gradient_norm
from .clipping import normalize_gradient as normalize_gradient
from .clipping import project_to_max_norm as project_to_max_norm
from .curvature import hessian_norm as hessian_norm
from .curvature import hessian_vector_product as hessian_vector_product
from .descent import gradient_descent_step as gradient_descent_step
from .diagnosing import diagnose as diagnose
from .discretizing import floor_straight_through as floor_straight_through
from .discretizing import piecewise_linear_floor as piecewise_linear_floor
from .discretizing import round_straight_through as round_straight_through
from .discretizing import soft_floor as soft_floor
from .discretizing import straight_through as straight_through
from .editing import edit_gradient as edit_gradient
from .masking import MaskedAdam as MaskedAdam
from .masking import MaskedOptimizer as MaskedOptimizer
from .masking import masked_adam_step as masked_adam_step
from .mixtures import mixture_density_nll as mixture_density_nll
from .overriding import gradient_override_map as gradient_override_map
from .overriding import override_gradient as override_gradient
from .policy_gradients import clipped_surrogate_pg_loss as clipped_surrogate_pg_loss
from .policy_gradients import discounted_returns as discounted_returns
from .policy_gradients import entropy_loss as entropy_loss
from .policy_gradients import policy_gradient_loss as policy_gradient_loss
from .policy_gradients import standardize as standardize
from .policy_gradients import (
    truncated_generalized_advantage_estimation as truncated_generalized_advantage_estimation,
)
from .ranking import soft_rank as soft_rank
from .ranking import spearman_correlation as spearman_correlation
from .scaling import ScaleGradient as ScaleGradient
from .scaling import reverse_gradient as reverse_gradient
from .scaling import scale_gradient as scale_gradient
from .sensitivities import input_gradients as input_gradients
from .sensitivities import input_jacobians as input_jacobians
from .tokens import average_tokens as average_tokens
from .tokens import group_advantages as group_advantages
from .tokens import kl_penalty as kl_penalty
from .tokens import token_policy_loss as token_policy_loss
from .tracing import explain_gradient as explain_gradient
from .unrolling import muzero_loss as muzero_loss
from .unrolling import unroll as unroll

__all__ = [
    "MaskedAdam",
    "MaskedOptimizer",
    "ScaleGradient",
    "accumulate_gradients",
    "average_tokens",
    "check_gradient",
    "clip_by_global_norm",
    "clip_gradient",
    "clip_gradient_norm",
    "clipped_surrogate_pg_loss",
    "diagnose",
    "discounted_returns",
    "edit_gradient",
    "entropy_loss",
    "explain_gradient",
    "floor_straight_through",
    "gradient_descent_step",
    "gradient_override_map",
    "group_advantages",
    "hessian_norm",
    "hessian_vector_product",
    "input_gradients",
    "input_jacobians",
    "kl_penalty",
    "masked_adam_step",
    "mixture_density_nll",
    "muzero_loss",
    "normalize_gradient",
    "override_gradient",
    "piecewise_linear_floor",
    "policy_gradient_loss",
    "project_to_max_norm",
    "reverse_gradient",
    "round_straight_through",
    "safe_where",
    "scale_gradient",
    "soft_floor",
    "soft_rank",
    "spearman_correlation",
    "standardize",
    "straight_through",
    "token_policy_loss",
    "truncated_generalized_advantage_estimation",
    "unroll",
    "where_gradients",
]
