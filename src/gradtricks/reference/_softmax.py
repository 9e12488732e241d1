"""The logarithm of the softmax, which two stems need."""

import numpy as np
from numpy.typing import NDArray


def log_softmax(logits: NDArray[np.floating]) -> NDArray[np.floating]:
    """Normalise log-probabilities along the last axis, without overflow.

    Args:
        logits: ``[..., A]``.

    Returns:
        ``[..., A]``.
    """
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
