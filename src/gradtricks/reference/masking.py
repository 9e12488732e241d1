"""Adam for a changing set of trainable elements.

The arguments are those of the functions in both frameworks.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.floating]


class _Moments(NamedTuple):
    m: Array
    v: Array
    v_max: Array | None
    correction_1: Array
    correction_2: Array
    root: Array  # sqrt of the second moment after its bias correction


def masked_adam_step(
    parameter: Array,
    gradient: Array,
    m: Array,
    v: Array,
    step: NDArray[np.integer],
    trainable_mask: ArrayLike,
    *,
    v_max: Array | None = None,
    learning_rate: float = 1e-3,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-8,
    weight_decay: float = 0.0,
    maximize: bool = False,
) -> tuple[Array, Array, Array, NDArray[np.integer], Array | None]:
    """Take one Adam step on the trainable elements; leave everything of the frozen ones as it was.

    Returns:
        ``parameter, m, v, step, v_max`` after the step.
    """
    new = _moments(gradient, m, v, step, v_max, beta_1, beta_2, maximize)
    new_v_max = None if v_max is None or new.v_max is None else np.where(trainable_mask, new.v_max, v_max)
    update = learning_rate * new.m / new.correction_1 / (new.root + epsilon)
    moved = parameter * (1 - learning_rate * weight_decay) - update
    return (
        np.where(trainable_mask, moved, parameter),
        np.where(trainable_mask, new.m, m),
        np.where(trainable_mask, new.v, v),
        np.where(trainable_mask, step + 1, step),
        new_v_max,
    )


def masked_adam_step_vjp(
    cotangent: Array,
    parameter: Array,
    gradient: Array,
    m: Array,
    v: Array,
    step: NDArray[np.integer],
    trainable_mask: ArrayLike,
    *,
    v_max: Array | None = None,
    learning_rate: float = 1e-3,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-8,
    weight_decay: float = 0.0,
    maximize: bool = False,
) -> tuple[Array, Array]:
    """Return the gradients that reach ``parameter`` and ``gradient`` from the new parameter.

    Args:
        cotangent: Arrives at the new parameter.
        parameter: As in `masked_adam_step`, like all that follow.

    Returns:
        Gradients of shape ``parameter``, for ``parameter`` and for ``gradient``.
    """
    new = _moments(gradient, m, v, step, v_max, beta_1, beta_2, maximize)
    sign = -1 if maximize else 1
    through_m = (1 - beta_1) * sign / (new.correction_1 * (new.root + epsilon))
    # At 0 the root has no slope; there it counts as 0, which leaves that of the first moment.
    moving = new.root > 0
    root_slope = (1 - beta_2) * gradient / (new.correction_2 * np.where(moving, new.root, 1)) * moving
    if v_max is not None:
        root_slope = np.where(new.v >= v_max, root_slope, 0)
    through_v = new.m / new.correction_1 / (new.root + epsilon) ** 2 * root_slope
    to_gradient = -learning_rate * cotangent * (through_m - through_v)
    return (
        np.where(trainable_mask, cotangent * (1 - learning_rate * weight_decay), cotangent),
        np.where(trainable_mask, to_gradient, 0),
    )


def _moments(
    gradient: Array,
    m: Array,
    v: Array,
    step: NDArray[np.integer],
    v_max: Array | None,
    beta_1: float,
    beta_2: float,
    maximize: bool,
) -> _Moments:
    gradient = -gradient if maximize else gradient
    m = beta_1 * m + (1 - beta_1) * gradient
    v = beta_2 * v + (1 - beta_2) * gradient**2
    v_max = None if v_max is None else np.maximum(v_max, v)
    correction_1 = 1 - beta_1 ** (step + 1.0)
    correction_2 = 1 - beta_2 ** (step + 1.0)
    root = np.sqrt((v if v_max is None else v_max) / correction_2)
    return _Moments(m, v, v_max, correction_1, correction_2, root)
