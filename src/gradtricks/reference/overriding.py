"""One function's value with another's gradient."""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray


def override_gradient(
    forward: Callable[..., NDArray], gradient_of: Callable[..., object]
) -> Callable[..., NDArray]:
    """The value of ``forward``; the gradient of ``gradient_of``.

    Args:
        forward: Takes arrays, returns one.
        gradient_of: Takes the same arrays. Only the backward pass uses it.

    Returns:
        ``forward`` itself.
    """
    del gradient_of
    return forward


def override_gradient_vjp(
    cotangent: ArrayLike, gradient_of_vjp: Callable[..., object], *inputs: ArrayLike
) -> object:
    """Return the gradients that reach the inputs: those of ``gradient_of``.

    Args:
        cotangent: Shape of the value.
        gradient_of_vjp: ``(cotangent, *inputs) -> gradients`` of ``gradient_of``.
        *inputs: What the function was called with.

    Returns:
        What ``gradient_of_vjp`` returns.
    """
    return gradient_of_vjp(cotangent, *inputs)


def gradient_override_map_vjp(
    cotangent: ArrayLike, gradient: Callable[..., NDArray], op: Callable[..., NDArray], x: ArrayLike
) -> NDArray[np.floating]:
    """Return the gradient that reaches ``x``, the input of an operator within the block.

    Args:
        cotangent: Shape of ``x``.
        gradient: ``(cotangent, output, x) -> gradient``, given in the map.
        op: The operator.
        x: Any shape.

    Returns:
        Shape of ``x``.
    """
    return gradient(np.asarray(cotangent), op(x), np.asarray(x))
