"""The gradient through a choice: a relaxed sample, and a nearest code that turns gradients."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradtricks.reference._arrays import as_floating


def gumbel_softmax(
    logits: ArrayLike, gumbel: ArrayLike, temperature: float, *, hard: bool = False
) -> NDArray[np.floating]:
    """``softmax((logits + gumbel) / temperature)`` over the last axis, or 1 where that is largest."""
    scores = as_floating(logits) + as_floating(gumbel)
    above = scores - scores.max(-1, keepdims=True)
    weights = np.exp(above / temperature)
    soft = weights / weights.sum(-1, keepdims=True)
    return np.eye(scores.shape[-1])[scores.argmax(-1)] + 0 * soft if hard else soft


def gumbel_softmax_vjp(
    cotangent: ArrayLike, logits: ArrayLike, gumbel: ArrayLike, temperature: float, *, hard: bool = False
) -> NDArray[np.floating]:
    """``soft * (cotangent - sum(soft * cotangent)) / temperature``, whether ``hard`` or not."""
    soft, cotangent = gumbel_softmax(logits, gumbel, temperature), as_floating(cotangent)
    return soft * (cotangent - (soft * cotangent).sum(-1, keepdims=True)) / temperature


def rotation_trick(x: ArrayLike, code: ArrayLike) -> NDArray[np.floating]:
    """The value of ``code``, bit for bit."""
    return np.array(code)


def rotation_trick_vjp(cotangent: ArrayLike, x: ArrayLike, code: ArrayLike) -> NDArray[np.floating]:
    """``cotangent`` turned as ``code`` turns to ``x``, times ``|code| / |x|``.

    Where one of the two is 0 there is no angle: the cotangent passes.
    """
    cotangent, x, code = map(as_floating, (cotangent, x, code))
    length_c, length_x = (np.sqrt((v * v).sum(-1, keepdims=True)) for v in (code, x))
    defined = (length_c > 0) & (length_x > 0)
    to, of = code / np.where(defined, length_c, 1), x / np.where(defined, length_x, 1)
    middle = to + of
    middle = middle / np.maximum(np.sqrt((middle * middle).sum(-1, keepdims=True)), np.finfo(float).tiny)

    def along(vector: NDArray[np.floating]) -> NDArray[np.floating]:
        return (cotangent * vector).sum(-1, keepdims=True)

    turned = cotangent - 2 * middle * along(middle) + 2 * of * along(to)
    scale = length_c / np.where(defined, length_x, 1)
    return np.where(defined, scale * turned, cotangent)
