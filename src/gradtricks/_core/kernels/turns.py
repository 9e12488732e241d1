"""Threads that take turns at parts of many arrays, laid end to end."""

from collections.abc import Callable, Iterator
from typing import Any

import numba
import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.unsafe.ndarray import to_fixed_tuple
from numpy.typing import NDArray

from gradtricks._core.kernels._sharing import share

Region = Callable[[int, int, int, int], object]

_LEAST = 2**14  # fewer elements aren't worth a turn of a thread
_TURNS = 16  # of each thread, since one may begin late
# What a loop leaves over goes through other instructions than what it takes at once, and they
# may fuse other sums. So parts of an array begin at multiples of this: the same is left over for any threads.
_AT_ONCE = 64
# Sums of products may be fused, in all loops alike. No other fast mathematics, because an element must come
# out the same bit for bit whichever loop it went through.
compiled = numba.njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract"})


def take_turns(
    work: Any, table: NDArray[np.int64], threads: int, parallel: Region | None, *more: int
) -> None:
    """Call ``work``, a C function, in so many threads on parts of arrays; small ones share threads.

    ``table``: a row for each array, whose length stands first. ``work`` takes the address of ``more``, behind
    what `parts` reads. ``parallel``: called as ``(function, argument, threads, 0)``, calls a C function in so
    many threads at once, as ``GOMP_parallel`` does; None takes threads of our own.
    """
    ends = table[:, 0].cumsum()
    total = int(ends[-1])
    size = max(_LEAST, -(-total // (threads * _TURNS)))
    threads = max(1, min(threads, -(-total // size)))
    job = np.array([0, size, *table.shape, table.ctypes.data, ends.ctypes.data, *more], np.int64)
    if parallel is None:
        share(lambda *_: work.ctypes(job.ctypes.data), threads, least=1, threads=threads)
    else:
        parallel(work.address, job.ctypes.data, threads, 0)


@intrinsic
def _next_turn(typing: Any, address: Any) -> Any:
    # Numba has no atomic numbers on a CPU.
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        counter = builder.inttoptr(arguments[0], cgutils.intp_t.as_pointer())
        return builder.atomic_rmw("add", counter, cgutils.intp_t(1), "monotonic")

    return types.int64(types.int64), generate


@intrinsic
def pointer(typing: Any, address: Any) -> Any:
    """Make a pointer of an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


@compiled
def more_of(job: int, count: int) -> NDArray[np.int64]:
    """Return what `take_turns` was given beside the table."""
    return numba.carray(pointer(job + 48), count, np.int64)


@numba.njit(nogil=True, error_model="numpy")
def _cut(place: int, table: NDArray[np.int64], ends: NDArray[np.int64]) -> int:
    if place >= ends[-1]:
        return ends[-1]
    row = np.searchsorted(ends, place, "right")
    begin = ends[row] - table[row, 0]
    return begin + (place - begin) // _AT_ONCE * _AT_ONCE


@numba.njit(nogil=True, error_model="numpy")  # not cached: a generator can't be read back, its callers can
def parts(job: int) -> Iterator[tuple[NDArray[np.int64], int, int]]:
    """Take turns until none is left: a row, the first element of a part of its array, and how many."""
    _, size, rows, columns, table_at, ends_at = to_fixed_tuple(numba.carray(pointer(job), 6, np.int64), 6)
    table = numba.carray(pointer(table_at), (rows, columns), np.int64)
    ends = numba.carray(pointer(ends_at), rows, np.int64)
    while True:
        turn = _next_turn(job) * size
        if turn >= ends[-1]:
            return
        start, stop = _cut(turn, table, ends), _cut(turn + size, table, ends)
        row = np.searchsorted(ends, start, "right")
        while start < stop:
            count = min(stop, ends[row]) - start
            yield table[row], start - ends[row] + table[row, 0], count
            start += count
            row += 1
