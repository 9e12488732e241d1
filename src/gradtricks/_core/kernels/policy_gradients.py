"""A recursion through time, one pass over memory."""

import numba
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]


def accumulate(x: Array, carry: Array | float, transposed: bool) -> Array:
    """Return ``y_t = x_t + carry_t * y_(t+1)``, or its transpose ``y_t = x_t + carry_(t-1) * y_(t-1)``.

    Where ``carry`` is 0 nothing is carried, not even an infinity or NaN. It broadcasts to the shape of ``x``,
    ``[T, ...]``; one number for all stays one. Its last slice isn't read. The transpose runs forward in time,
    as a gradient does.
    """
    y = np.empty(x.shape, x.dtype)
    if y.size:
        factors = np.asarray(carry, x.dtype)
        if factors.ndim:
            factors = np.broadcast_to(factors, x.shape)
        # One number stays one, rather than as much memory again.
        shape = (len(x), -1) if factors.ndim else (1, 1)
        rows = (np.ascontiguousarray(x).reshape(len(x), -1), np.ascontiguousarray(factors).reshape(shape))
        _accumulate(*rows, y.reshape(len(x), -1), transposed)
    return y


@numba.njit(nogil=True, cache=True)
def _accumulate(x: Array, carry: Array, y: Array, transposed: bool) -> None:
    steps = len(x)
    for k in range(steps):
        t = k if transposed else steps - 1 - k
        before = t - 1 if transposed else t + 1
        factor = t - 1 if transposed else t
        if k == 0 or (carry.size == 1 and carry[0, 0] == 0):
            y[t] = x[t]
        elif carry.size == 1:
            _add_all(y[t], x[t], carry[0, 0], y[before])
        else:
            _add(y[t], x[t], carry[factor], y[before])


@numba.njit(nogil=True, cache=True)
def _add(y: Array, x: Array, carry: Array, before: Array) -> None:
    for i in range(len(y)):
        y[i] = x[i] if carry[i] == 0 else x[i] + carry[i] * before[i]


@numba.njit(nogil=True, cache=True)
def _add_all(y: Array, x: Array, carry: float, before: Array) -> None:
    for i in range(len(y)):
        y[i] = x[i] + carry * before[i]
