"""Any rule for what flows back."""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradtricks.reference._arrays import as_floating


def edit_gradient(x: ArrayLike, rule: Callable[..., ArrayLike], *tensors: ArrayLike) -> NDArray[np.floating]:
    """Identity forward; the incoming gradient goes through ``rule``.

    Args:
        x: Any shape.
        rule: ``rule(gradient, *tensors)``; only the backward pass uses it.
        *tensors: What the rule needs besides.

    Returns:
        A copy of ``x``, bit for bit.
    """
    return np.array(x)


def edit_gradient_vjp(
    cotangent: ArrayLike, x: ArrayLike, rule: Callable[..., ArrayLike], *tensors: ArrayLike
) -> NDArray[np.floating]:
    """Return the gradient that reaches ``x``: ``rule(cotangent, *tensors)``.

    Args:
        cotangent: Shape of ``x``.
        x: Any shape.
        rule: Takes and returns a gradient.
        *tensors: What the rule needs besides.

    Returns:
        Shape of ``x``.
    """
    return as_floating(rule(as_floating(cotangent), *tensors))
