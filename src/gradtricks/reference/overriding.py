"""One function's value with another's gradient."""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray


def override_gradient(
    forward: Callable[..., NDArray], gradient_of: Callable[..., object]
) -> Callable[..., NDArray]:
    """The value of ``forward``; the gradient of ``gradient_of``."""
    return forward


def override_gradient_vjp(
    cotangent: ArrayLike, gradient_of_vjp: Callable[..., object], *inputs: ArrayLike
) -> object:
    """The gradients of ``gradient_of``, by ``gradient_of_vjp(cotangent, *inputs)``."""
    return gradient_of_vjp(cotangent, *inputs)


def gradient_override_map_vjp(
    cotangent: ArrayLike, gradient: Callable[..., NDArray], op: Callable[..., NDArray], x: ArrayLike
) -> NDArray[np.floating]:
    """The gradient that reaches ``x``, the input of an operator within the block."""
    return gradient(np.asarray(cotangent), op(x), np.asarray(x))
