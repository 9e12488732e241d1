"""Shared by several stems: floating-point arrays, and the logarithm of the softmax."""

import numpy as np
from numpy.typing import ArrayLike, NDArray


def as_floating(x: ArrayLike) -> NDArray[np.floating]:
    """Make an array, perhaps in the memory of ``x``; what isn't floating-point becomes float64."""
    x = np.asarray(x)
    return x if np.issubdtype(x.dtype, np.floating) else x.astype(np.float64)


def log_softmax(logits: NDArray[np.floating]) -> NDArray[np.floating]:
    """Normalise log-probabilities along the last axis, without overflow."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
