"""The gradient of a batch that comes in parts."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradtricks.reference._arrays import as_floating

Gradient = Callable[[Sequence[ArrayLike], Any], tuple[float, float, Sequence[ArrayLike]]]


def accumulate_gradients(
    gradient: Gradient, parameters: Sequence[ArrayLike], parts: Iterable[Any]
) -> tuple[float, list[NDArray[np.floating]]]:
    """Return the mean loss of all parts together, and its gradients.

    ``gradient(parameters, part)`` returns the sum of a part's losses, the sum of its weights, and the
    gradients of the former.
    """
    found = [gradient(parameters, part) for part in parts]
    weight = sum(weight for _, weight, _ in found)
    sums = [sum(as_floating(g) for g in each) for each in zip(*(gradients for *_, gradients in found))]
    return sum(total for total, *_ in found) / weight, [np.asarray(g / weight) for g in sums]
