"""One pass over memory for masked steps of Adam, of many arrays at once."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numba
import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.unsafe.ndarray import to_fixed_tuple
from numpy.typing import DTypeLike, NDArray

from gradtricks._core.kernels._sharing import share
from gradtricks._core.masking import one_minus_exp

Array = NDArray[np.floating]

_LEAST = 2**14  # fewer elements aren't worth a turn of a thread
_TURNS = 16  # of each thread, since one may begin late
# Sums of products may be fused, in all loops alike. No other fast mathematics, because an element must come
# out the same bit for bit whichever loop it went through.
_compiled = numba.njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract"})
_NARROW, _WIDE = (one_minus_exp(name) for name in ("float32", "float64"))
_SERIES_32, _TWOS_32 = tuple(map(np.float32, _NARROW[0])), (np.float32(2),) * _NARROW[1]
_SERIES_64, _TWOS_64 = tuple(map(np.float64, _WIDE[0])), (np.float64(2),) * _WIDE[1]


def masked_adam_steps(
    rows: Sequence[Sequence[int]],
    dtype: DTypeLike,
    *,
    learning_rate: float,
    beta_1: float,
    beta_2: float,
    epsilon: float,
    l2: float,
    weight_decay: float,
    maximize: bool,
    threads: int,
    parallel: Callable[[int, int, int, int], object] | None,
) -> None:
    """Take one Adam step on the trainable elements of float32 or float64 arrays, in place.

    Threads take turns at parts of all arrays laid end to end, so small arrays share a parallel region.

    ``rows``: of each array its length, and the addresses of parameter, gradient, both moments, the largest
    second moment or 0, steps of each element before this one (int32) or 0 where all have taken those of the
    array, trainable mask, and steps of the array before this one (float32), which are counted here.
    ``parallel``: called as ``(function, argument, threads, 0)``, calls a C function in so many threads at
    once, as ``GOMP_parallel`` does; None takes threads of our own.
    """
    table = np.array(rows, np.int64).reshape(-1, 9)
    _, doublings, most = one_minus_exp(np.dtype(dtype).name)
    betas = beta_1, beta_2
    rates = [-math.log(beta) / 2**doublings if beta else most for beta in betas]
    factors = [x for beta in betas for x in (beta, 1 - beta)]
    options = [-1 if maximize else 1, l2, 1 - learning_rate * weight_decay, learning_rate, epsilon]
    numbers = np.array([most, *rates, *factors, *options], dtype)
    ends = table[:, 0].cumsum()
    total = int(ends[-1])
    size = max(_LEAST, -(-total // (threads * _TURNS)))
    threads = max(1, min(threads, -(-total // size)))
    head = [0, len(table), numbers.itemsize, size, table.ctypes.data, ends.ctypes.data, numbers.ctypes.data]
    job = np.array(head, np.int64)
    _count(table)
    if parallel is None:
        share(lambda *_: _work.ctypes(job.ctypes.data), threads, least=1, threads=threads)
    else:
        parallel(_work.address, job.ctypes.data, threads, 0)


@intrinsic
def _next_turn(typing: Any, address: Any) -> Any:
    # Numba has no atomic numbers on a CPU.
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        counter = builder.inttoptr(arguments[0], cgutils.intp_t.as_pointer())
        return builder.atomic_rmw("add", counter, cgutils.intp_t(1), "monotonic")

    return types.int64(types.int64), generate


@intrinsic
def _pointer(typing: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


@_compiled
def _count(table: NDArray[np.int64]) -> None:
    for row in table:
        numba.carray(_pointer(row[8]), 1, np.float32)[0] += 1


@_compiled
def _take_turns(
    turns: int,
    size: int,
    table: NDArray[np.int64],
    ends: NDArray[np.int64],
    numbers: Array,
    series: tuple[Any, ...],
    twos: tuple[Any, ...],
) -> None:
    while True:
        start = _next_turn(turns) * size
        stop = min(start + size, ends[-1])
        if start >= stop:
            return
        row = np.searchsorted(ends, start, "right")
        while start < stop:
            first = start - ends[row] + table[row, 0]
            count = min(stop, ends[row]) - start
            _step_row(table[row], first, count, numbers, series, twos)
            start += count
            row += 1


@_compiled
def _array(address: int, first: int, count: int, like: Array) -> Array:
    return numba.carray(_pointer(address + first * like.itemsize), count, like.dtype)


@_compiled
def _step_row(
    row: NDArray[np.int64],
    first: int,
    count: int,
    numbers: Array,
    series: tuple[Any, ...],
    twos: tuple[Any, ...],
) -> None:
    parameter, gradient = _array(row[1], first, count, numbers), _array(row[2], first, count, numbers)
    m, v = _array(row[3], first, count, numbers), _array(row[4], first, count, numbers)
    mask = numba.carray(_pointer(row[7] + first), count, np.bool_)
    steps = numba.carray(_pointer(row[8]), 1, np.float32)[0]
    own = numba.carray(_pointer(row[6] + 4 * first), count, np.int32)
    largest = _array(row[5], first, count, numbers)
    if row[5] and row[6]:
        _step(parameter, gradient, m, v, largest, own, mask, steps, numbers, series, twos)
    elif row[5]:
        _step(parameter, gradient, m, v, largest, None, mask, steps, numbers, series, twos)
    elif row[6]:
        _step(parameter, gradient, m, v, None, own, mask, steps, numbers, series, twos)
    else:
        _step(parameter, gradient, m, v, None, None, mask, steps, numbers, series, twos)


@_compiled
def _one_minus_power(x: Any, series: tuple[Any, ...], twos: tuple[Any, ...]) -> Any:
    y = series[0]
    for coefficient in series[1:]:
        y = y * x + coefficient
    y *= x
    for two in twos:
        y *= two - y
    return y


@_compiled
def _step(
    parameter: Array,
    gradient: Array,
    m: Array,
    v: Array,
    v_max: Array | None,
    own_steps: NDArray[np.int32] | None,
    trainable_mask: NDArray[np.bool_],
    count: float,
    numbers: Array,
    series: tuple[Any, ...],
    twos: tuple[Any, ...],
) -> None:
    most, rate_1, rate_2, beta_1, rest_1, beta_2, rest_2 = to_fixed_tuple(numbers[:7], 7)
    sign, l2, keep, learning_rate, epsilon = to_fixed_tuple(numbers[7:], 5)
    steps = parameter.dtype.type(count)  # wider ones would widen the loop
    correction_1 = _one_minus_power(min(rate_1 * steps, most), series, twos)
    correction_2 = _one_minus_power(min(rate_2 * steps, most), series, twos)
    for i in range(len(parameter)):
        on = trainable_mask[i]
        if own_steps is not None:
            taken = np.int32(own_steps[i] + on)
            own_steps[i] = taken
            steps = parameter.dtype.type(taken)
            correction_1 = _one_minus_power(min(rate_1 * steps, most), series, twos)
            correction_2 = _one_minus_power(min(rate_2 * steps, most), series, twos)
        slope = sign * gradient[i]
        if l2 != 0:  # an infinite parameter times 0 would be NaN
            slope += l2 * parameter[i]
        average = beta_1 * m[i] + rest_1 * slope
        largest = squares = beta_2 * v[i] + rest_2 * (slope * slope)
        if v_max is not None:
            largest = squares if not v_max[i] >= squares else v_max[i]  # NaN wins
            v_max[i] = largest if on else v_max[i]
        # Quotients are dear, so this is the only one: numerator and denominator times correction_2.
        root = np.sqrt(largest * correction_2) + epsilon * correction_2
        moved = parameter[i] * keep - learning_rate * correction_2 * average / (correction_1 * root)
        parameter[i] = moved if on else parameter[i]
        m[i] = average if on else m[i]
        v[i] = squares if on else v[i]


@numba.cfunc("void(int64)", cache=True)
def _work(address: int) -> None:
    _, length, itemsize, size, table, ends, numbers = to_fixed_tuple(
        numba.carray(_pointer(address), 7, np.int64), 7
    )
    rows = numba.carray(_pointer(table), (length, 9), np.int64)
    stops = numba.carray(_pointer(ends), length, np.int64)
    if itemsize == 4:
        narrow = numba.carray(_pointer(numbers), 12, np.float32)
        _take_turns(address, size, rows, stops, narrow, _SERIES_32, _TWOS_32)
    else:
        wide = numba.carray(_pointer(numbers), 12, np.float64)
        _take_turns(address, size, rows, stops, wide, _SERIES_64, _TWOS_64)
