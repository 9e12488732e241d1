from .accumulating import accumulate_gradients as accumulate_gradients
from .branching import safe_where as safe_where
from .branching import safe_where_vjp as safe_where_vjp
from .branching import where_gradients as where_gradients
from .branching import where_gradients_vjp as where_gradients_vjp
from .checking import check_gradient as check_gradient
from .clipping import clip_by_global_norm as clip_by_global_norm
from .clipping import clip_by_global_norm_vjp as clip_by_global_norm_vjp
from .clipping import clip_gradient as clip_gradient
from .clipping import clip_gradient_norm as clip_gradient_norm
from .clipping import clip_gradient_norm_vjp as clip_gradient_norm_vjp
from .clipping import clip_gradient_vjp as clip_gradient_vjp
from .clipping import normalize_gradient as normalize_gradient
from .clipping import normalize_gradient_vjp as normalize_gradient_vjp
from .clipping import project_to_max_norm as project_to_max_norm
from .clipping import project_to_max_norm_vjp as project_to_max_norm_vjp
from .curvature import hessian_norm as hessian_norm
from .curvature import hessian_vector_product as hessian_vector_product
from .curvature import hessian_vector_product_vjp as hessian_vector_product_vjp
from .descent import gradient_descent_step as gradient_descent_step
from .descent import gradient_descent_step_vjp as gradient_descent_step_vjp
from .discretizing import floor_straight_through as floor_straight_through
from .discretizing import floor_straight_through_vjp as floor_straight_through_vjp
from .discretizing import piecewise_linear_floor as piecewise_linear_floor
from .discretizing import piecewise_linear_floor_vjp as piecewise_linear_floor_vjp
from .discretizing import round_straight_through as round_straight_through
from .discretizing import round_straight_through_vjp as round_straight_through_vjp
from .discretizing import soft_floor as soft_floor
from .discretizing import soft_floor_vjp as soft_floor_vjp
from .discretizing import straight_through as straight_through
from .discretizing import straight_through_vjp as straight_through_vjp
from .editing import edit_gradient as edit_gradient
from .editing import edit_gradient_vjp as edit_gradient_vjp
from .masking import masked_adam_step as masked_adam_step
from .masking import masked_adam_step_vjp as masked_adam_step_vjp
from .mixtures import mixture_density_nll as mixture_density_nll
from .mixtures import mixture_density_nll_vjp as mixture_density_nll_vjp
from .overriding import gradient_override_map_vjp as gradient_override_map_vjp
from .overriding import override_gradient as override_gradient
from .overriding import override_gradient_vjp as override_gradient_vjp
from .policy_gradients import clipped_surrogate_pg_loss as clipped_surrogate_pg_loss
from .policy_gradients import clipped_surrogate_pg_loss_vjp as clipped_surrogate_pg_loss_vjp
from .policy_gradients import discounted_returns as discounted_returns
from .policy_gradients import discounted_returns_vjp as discounted_returns_vjp
from .policy_gradients import entropy_loss as entropy_loss
from .policy_gradients import entropy_loss_vjp as entropy_loss_vjp
from .policy_gradients import policy_gradient_loss as policy_gradient_loss
from .policy_gradients import policy_gradient_loss_vjp as policy_gradient_loss_vjp
from .policy_gradients import standardize as standardize
from .policy_gradients import standardize_vjp as standardize_vjp
from .policy_gradients import (
    truncated_generalized_advantage_estimation as truncated_generalized_advantage_estimation,
)
from .policy_gradients import (
    truncated_generalized_advantage_estimation_vjp as truncated_generalized_advantage_estimation_vjp,
)
from .ranking import soft_rank as soft_rank
from .ranking import soft_rank_vjp as soft_rank_vjp
from .ranking import spearman_correlation as spearman_correlation
from .ranking import spearman_correlation_vjp as spearman_correlation_vjp
from .scaling import reverse_gradient as reverse_gradient
from .scaling import reverse_gradient_vjp as reverse_gradient_vjp
from .scaling import scale_gradient as scale_gradient
from .scaling import scale_gradient_vjp as scale_gradient_vjp
from .sensitivities import input_gradients as input_gradients
from .sensitivities import input_gradients_vjp as input_gradients_vjp
from .sensitivities import input_jacobians as input_jacobians
from .sensitivities import input_jacobians_vjp as input_jacobians_vjp
from .tokens import average_tokens as average_tokens
from .tokens import average_tokens_vjp as average_tokens_vjp
from .tokens import group_advantages as group_advantages
from .tokens import kl_penalty as kl_penalty
from .tokens import kl_penalty_vjp as kl_penalty_vjp
from .tokens import token_policy_loss as token_policy_loss
from .tokens import token_policy_loss_vjp as token_policy_loss_vjp
from .unrolling import muzero_loss as muzero_loss
from .unrolling import muzero_loss_vjp as muzero_loss_vjp
from .unrolling import unroll as unroll
from .unrolling import unroll_vjp as unroll_vjp

__all__ = [
    "accumulate_gradients",
    "average_tokens",
    "average_tokens_vjp",
    "check_gradient",
    "clip_by_global_norm",
    "clip_by_global_norm_vjp",
    "clip_gradient",
    "clip_gradient_norm",
    "clip_gradient_norm_vjp",
    "clip_gradient_vjp",
    "clipped_surrogate_pg_loss",
    "clipped_surrogate_pg_loss_vjp",
    "discounted_returns",
    "discounted_returns_vjp",
    "edit_gradient",
    "edit_gradient_vjp",
    "entropy_loss",
    "entropy_loss_vjp",
    "floor_straight_through",
    "floor_straight_through_vjp",
    "gradient_descent_step",
    "gradient_descent_step_vjp",
    "gradient_override_map_vjp",
    "group_advantages",
    "hessian_norm",
    "hessian_vector_product",
    "hessian_vector_product_vjp",
    "input_gradients",
    "input_gradients_vjp",
    "input_jacobians",
    "input_jacobians_vjp",
    "kl_penalty",
    "kl_penalty_vjp",
    "masked_adam_step",
    "masked_adam_step_vjp",
    "mixture_density_nll",
    "mixture_density_nll_vjp",
    "muzero_loss",
    "muzero_loss_vjp",
    "normalize_gradient",
    "normalize_gradient_vjp",
    "override_gradient",
    "override_gradient_vjp",
    "piecewise_linear_floor",
    "piecewise_linear_floor_vjp",
    "policy_gradient_loss",
    "policy_gradient_loss_vjp",
    "project_to_max_norm",
    "project_to_max_norm_vjp",
    "reverse_gradient",
    "reverse_gradient_vjp",
    "round_straight_through",
    "round_straight_through_vjp",
    "safe_where",
    "safe_where_vjp",
    "scale_gradient",
    "scale_gradient_vjp",
    "soft_floor",
    "soft_floor_vjp",
    "soft_rank",
    "soft_rank_vjp",
    "spearman_correlation",
    "spearman_correlation_vjp",
    "standardize",
    "standardize_vjp",
    "straight_through",
    "straight_through_vjp",
    "token_policy_loss",
    "token_policy_loss_vjp",
    "truncated_generalized_advantage_estimation",
    "truncated_generalized_advantage_estimation_vjp",
    "unroll",
    "unroll_vjp",
    "where_gradients",
    "where_gradients_vjp",
]
