"""Checking a gradient, by complex steps instead of differences."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.floating]
_STEP = 1e-30  # of a complex step, which subtracts nothing and so rounds nothing


def check_gradient(
    function: Callable[..., NDArray],
    vjp: Callable[..., Sequence[NDArray]],
    inputs: Sequence[ArrayLike],
    *,
    surrogate: Callable[..., NDArray] | None = None,
    rtol: float = 1e-6,
    atol: float = 1e-9,
    num_samples: int = 100,
    seed: int = 0,
) -> str:
    """Say whether a vector-Jacobian product is that of an analytic function, called on complex arrays.

    Every element is moved and every output is looked at, so nothing is sampled.

    Returns:
        ``"correct"``, ``"surrogate"`` where it is that of the declared one, or ``"wrong gradient"``.
    """
    compared, arrays = function if surrogate is None else surrogate, [np.asarray(x, float) for x in inputs]
    shape = np.shape(function(*arrays))
    for output in np.ndindex(shape):
        cotangent = np.zeros(shape)
        cotangent[output] = 1
        for position, gradient in enumerate(vjp(cotangent, *arrays)):
            expected = _gradient(compared, arrays, position, output)
            if not np.allclose(gradient, expected, rtol=rtol, atol=atol):
                return "wrong gradient"
    return "correct" if surrogate is None else "surrogate"


def _gradient(
    function: Callable[..., NDArray], arrays: list[NDArray], position: int, output: tuple[int, ...]
) -> Array:
    gradient = np.zeros(arrays[position].shape)
    for element in np.ndindex(gradient.shape):
        moved = [x.astype(complex) for x in arrays]
        moved[position][element] += 1j * _STEP
        gradient[element] = np.asarray(function(*moved))[output].imag / _STEP
    return gradient
