"""Copies of what is frozen of many arrays, taken before a step and put back after it."""

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from gradtricks._core.kernels.turns import Region, compiled, parts, pointer, take_turns

KEEP, KEEP_AND_CLEAR, PICK, PUT_BACK = range(4)


def exchange(table: NDArray[np.int64], *, threads: int, parallel: Region | None) -> None:
    """Copy the frozen elements of arrays to others, or back.

    ``table``: of each array its length, bytes of an element (1, 2, 4 or 8), how many consecutive elements
    share one of the mask, the addresses of mask, array and copy, and what to do: ``KEEP`` copies what is
    frozen, ``KEEP_AND_CLEAR`` makes it 0 besides, ``PICK`` copies what is trainable, and 0 for the rest,
    ``PUT_BACK`` copies what is frozen back. Where each element has its own, ``KEEP`` copies all of them.
    """
    take_turns(_work, table, threads, parallel)


@compiled
def _exchange(row: NDArray[np.int64], first: int, count: int, dtype: Any) -> None:
    x = numba.carray(pointer(row[4] + first * row[1]), count, dtype)
    copy = numba.carray(pointer(row[5] + first * row[1]), count, dtype)
    shared = row[2]
    if shared == 1:
        _exchange_each(numba.carray(pointer(row[3] + first), count, np.bool_), x, copy, row[6])
        return
    mask, start = numba.carray(pointer(row[3]), row[0] // shared, np.bool_), 0
    while start < count:
        at = (first + start) // shared
        stop = min(count, (at + 1) * shared - first)
        _exchange_alike(mask[at], x[start:stop], copy[start:stop], row[6])
        start = stop


@compiled
def _exchange_each(mask: NDArray[np.bool_], x: NDArray[Any], copy: NDArray[Any], what: int) -> None:
    zero = x.dtype.type(0)
    if what == KEEP:
        copy[:] = x
    elif what == KEEP_AND_CLEAR:
        copy[:] = x
        for i in range(len(x)):
            value = x[i]  # read in any case, or else the loop isn't vectorized
            x[i] = value if mask[i] else zero
    elif what == PICK:
        for i in range(len(x)):
            value = x[i]
            copy[i] = value if mask[i] else zero
    else:
        for i in range(len(x)):
            value, frozen = x[i], copy[i]
            x[i] = value if mask[i] else frozen


@compiled
def _exchange_alike(trainable: bool, x: NDArray[Any], copy: NDArray[Any], what: int) -> None:
    if trainable:
        if what == PICK:
            copy[:] = x
    elif what == PUT_BACK:
        x[:] = copy
    elif what == PICK:
        copy[:] = 0
    else:
        copy[:] = x
        if what == KEEP_AND_CLEAR:
            x[:] = 0


@numba.cfunc("void(int64)", cache=True)
def _work(job: int) -> None:
    for row, first, count in parts(job):
        if row[1] == 1:
            _exchange(row, first, count, np.uint8)
        elif row[1] == 2:
            _exchange(row, first, count, np.uint16)
        elif row[1] == 4:
            _exchange(row, first, count, np.uint32)
        else:
            _exchange(row, first, count, np.uint64)
