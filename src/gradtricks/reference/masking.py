"""Adam for a changing set of trainable elements. Arguments are those in both frameworks."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.floating]


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
    """Take one Adam step on the trainable elements; leave everything of the frozen ones as it was."""
    gradient = -gradient if maximize else gradient
    new_m, new_v, largest, correction, root, _ = _moments(gradient, m, v, step, v_max, beta_1, beta_2)
    moved = parameter * (1 - learning_rate * weight_decay) - learning_rate * new_m / correction / (
        root + epsilon
    )
    return (
        np.where(trainable_mask, moved, parameter),
        np.where(trainable_mask, new_m, m),
        np.where(trainable_mask, new_v, v),
        np.where(trainable_mask, step + 1, step),
        None if v_max is None else np.where(trainable_mask, largest, v_max),
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
    """Return the gradients that reach ``parameter`` and ``gradient`` from the new parameter."""
    sign = -1 if maximize else 1
    gradient = sign * gradient
    new_m, new_v, largest, correction, root, root_slope = _moments(
        gradient, m, v, step, v_max, beta_1, beta_2
    )
    through_m = (1 - beta_1) / correction / (root + epsilon)
    through_v = new_m / correction / (root + epsilon) ** 2 * root_slope * (new_v >= largest)
    to_gradient = -learning_rate * sign * cotangent * (through_m - through_v)
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
) -> tuple[Array, Array, Array, Array, Array, Array]:
    # Both moments, the largest second one, the first's bias correction, the root of the second after its own,
    # and the slope of that root. At 0 the root has no slope; there it counts as 0.
    m, v = beta_1 * m + (1 - beta_1) * gradient, beta_2 * v + (1 - beta_2) * gradient**2
    largest = v if v_max is None else np.maximum(v_max, v)
    correction_1, correction_2 = (1 - beta ** (step + 1.0) for beta in (beta_1, beta_2))
    root = np.sqrt(largest / correction_2)
    slope = (1 - beta_2) * gradient / (correction_2 * np.where(root > 0, root, 1)) * (root > 0)
    return m, v, largest, correction_1, root, slope
