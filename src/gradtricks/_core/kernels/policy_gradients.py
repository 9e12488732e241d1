"""A recursion through time, one pass over memory."""

import numba
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]


def accumulate(x: Array, carry: Array | float, *, transposed: bool) -> Array:
    """Return ``y_t = x_t + carry_t * y_(t+1)``, or its transpose ``y_t = x_t + carry_(t-1) * y_(t-1)``.

    Where ``carry`` is 0 nothing is carried, not even an infinity or NaN.

    Args:
        x: ``[T, ...]``, float32 or float64.
        carry: Shape of ``x``, or one number for all. The last slice isn't read.
        transposed: Run forward in time, as a gradient does.

    Returns:
        Shape and dtype of ``x``.
    """
    y = np.empty(x.shape, x.dtype)
    if y.size:
        arrays = (x, np.broadcast_to(np.asarray(carry, x.dtype), x.shape), y)
        rows = (np.ascontiguousarray(array).reshape(len(x), -1) for array in arrays)
        _accumulate(*rows, transposed)
    return y


@numba.njit(nogil=True, cache=True)
def _accumulate(x: Array, carry: Array, y: Array, transposed: bool) -> None:
    steps = len(x)
    for k in range(steps):
        t = k if transposed else steps - 1 - k
        before = t - 1 if transposed else t + 1
        factor = t - 1 if transposed else t
        if k == 0:
            y[t] = x[t]
        else:
            _add(y[t], x[t], carry[factor], y[before])


@numba.njit(nogil=True, cache=True)
def _add(y: Array, x: Array, carry: Array, before: Array) -> None:
    for i in range(len(y)):
        y[i] = x[i] if carry[i] == 0 else x[i] + carry[i] * before[i]
