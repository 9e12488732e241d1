"""Adam for a changing set of trainable elements.

Where an element is trainable, and t counts the steps that it has taken itself::

    m <- beta_1 m + (1 - beta_1) g        v <- beta_2 v + (1 - beta_2) g^2
    parameter <- parameter - learning_rate (m / (1 - beta_1^t)) / (sqrt(v / (1 - beta_2^t)) + epsilon)

Where it is frozen, nothing of it changes: parameter, m, v and t stay as they are.
"""

import tensorflow as tf

from gradtricks._core.checks import check_broadcast, check_shape
from gradtricks.tensorflow._adam import adam_step, as_options
from gradtricks.tensorflow._masked_adam import MaskedAdam as MaskedAdam
from gradtricks.tensorflow._masked_optimizer import MaskedOptimizer as MaskedOptimizer
from gradtricks.tensorflow._tensors import TENSORS, as_floating, as_integers, as_mask, as_moments


def masked_adam_step(
    parameter: tf.Tensor,
    gradient: tf.Tensor,
    m: tf.Tensor,
    v: tf.Tensor,
    step: tf.Tensor,
    trainable_mask: tf.Tensor,
    *,
    v_max: tf.Tensor | None = None,
    learning_rate: float | tf.Tensor = 1e-3,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-8,
    weight_decay: float = 0.0,
    maximize: bool = False,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor | None]:
    """Take one Adam step on the trainable elements; leave everything of the frozen ones as it was.

    A frozen element keeps its parameter, moments and own step count, whatever its gradient (NaN too), and
    thaws as if nothing had happened. A pure function: nothing is edited in place.

    Args:
        parameter: Any shape, floating-point.
        gradient: Shape of ``parameter``.
        m: First moments, shape of ``parameter``, float32 or wider.
        v: Second moments, likewise. Moments keep their dtypes, and the widest is computed in.
        step: Steps that each element has taken so far, integer, broadcasts to the shape of ``parameter``.
        trainable_mask: True where an element may move; bool, broadcasts to the shape of ``parameter``.
        v_max: Largest second moments so far; given, it selects AMSGrad.
        learning_rate: Size of a step; a tensor broadcasts to the shape of ``parameter``, and its values
            aren't checked.
        beta_1: Decay of the first moment, within [0, 1).
        beta_2: Decay of the second moment, within [0, 1).
        epsilon: Added to the root of the second moment, after its bias correction.
        weight_decay: Decoupled (AdamW).
        maximize: Climb instead of descend.

    Returns:
        ``parameter, m, v, step, v_max`` after the step; ``v_max`` is None where it was None.

    References:
        Adam, https://arxiv.org/abs/1412.6980; AdamW, https://arxiv.org/abs/1711.05101;
        AMSGrad, https://openreview.net/forum?id=ryQu7f-RZ.
    """
    parameter, gradient = as_floating("parameter", parameter), as_floating("gradient", gradient)
    m, v, step = as_moments("m", m), as_moments("v", v), as_integers("step", step)
    check_broadcast("step", step.shape, parameter.shape, "parameter")
    v_max = None if v_max is None else as_moments("v_max", v_max)
    for name, tensor in {
        "gradient": gradient,
        "m": m,
        "v": v,
        "v_max": v if v_max is None else v_max,
    }.items():
        check_shape(name, tensor.shape, parameter.shape, "parameter")
    learning_rate, *others = as_options(learning_rate, beta_1, beta_2, epsilon, weight_decay)
    if isinstance(learning_rate, TENSORS):
        check_broadcast("learning_rate", learning_rate.shape, parameter.shape, "parameter")
    arguments = parameter, gradient, m, v, step, as_mask(trainable_mask, parameter), v_max
    return adam_step(*arguments, learning_rate, *others, maximize=maximize)
