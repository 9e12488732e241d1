"""Any rule for what flows back."""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradtricks.reference._arrays import as_floating


def edit_gradient(x: ArrayLike, rule: Callable[..., ArrayLike], *tensors: ArrayLike) -> NDArray[np.floating]:
    """Identity forward, bit for bit; the incoming gradient goes through ``rule``."""
    return np.array(x)


def edit_gradient_vjp(
    cotangent: ArrayLike, x: ArrayLike, rule: Callable[..., ArrayLike], *tensors: ArrayLike
) -> NDArray[np.floating]:
    """``rule(cotangent, *tensors)``."""
    return as_floating(rule(as_floating(cotangent), *tensors))
