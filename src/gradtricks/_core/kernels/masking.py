"""One pass over memory for masked steps of Adam, of many arrays at once."""

import math
from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
from numba.np.unsafe.ndarray import to_fixed_tuple
from numpy.typing import DTypeLike, NDArray

from gradtricks._core.kernels.turns import Region, compiled, more_of, parts, pointer, take_turns
from gradtricks._core.masking import one_minus_exp

Array = NDArray[np.floating]

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
    parallel: Region | None,
) -> None:
    """Take one Adam step on the trainable elements of float32 or float64 arrays, in place.

    ``rows``: of each array its length, and the addresses of parameter, gradient, both moments, the largest
    second moment or 0, steps of each element before this one (int32) or 0 where all have taken those of the
    array, trainable mask, and steps of the array before this one (float32), which are counted here.
    ``threads`` and ``parallel``: those of `take_turns`.
    """
    table = np.array(rows, np.int64).reshape(-1, 9)
    _, doublings, most = one_minus_exp(np.dtype(dtype).name)
    betas = beta_1, beta_2
    rates = [-math.log(beta) / 2**doublings if beta else most for beta in betas]
    factors = [x for beta in betas for x in (beta, 1 - beta)]
    options = [-1 if maximize else 1, l2, 1 - learning_rate * weight_decay, learning_rate, epsilon]
    numbers = np.array([most, *rates, *factors, *options], dtype)
    _count(table)
    take_turns(_work, table, threads, parallel, numbers.itemsize, numbers.ctypes.data)


@compiled
def _count(table: NDArray[np.int64]) -> None:
    for row in table:
        numba.carray(pointer(row[8]), 1, np.float32)[0] += 1


@compiled
def _array(address: int, first: int, count: int, like: Array) -> Array:
    return numba.carray(pointer(address + first * like.itemsize), count, like.dtype)


@compiled
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
    mask = numba.carray(pointer(row[7] + first), count, np.bool_)
    steps = numba.carray(pointer(row[8]), 1, np.float32)[0]
    own = numba.carray(pointer(row[6] + 4 * first), count, np.int32)
    largest = _array(row[5], first, count, numbers)
    if row[5] and row[6]:
        _step(parameter, gradient, m, v, largest, own, mask, steps, numbers, series, twos)
    elif row[5]:
        _step(parameter, gradient, m, v, largest, None, mask, steps, numbers, series, twos)
    elif row[6]:
        _step(parameter, gradient, m, v, None, own, mask, steps, numbers, series, twos)
    else:
        _step(parameter, gradient, m, v, None, None, mask, steps, numbers, series, twos)


@compiled
def _one_minus_power(x: Any, series: tuple[Any, ...], twos: tuple[Any, ...]) -> Any:
    y = series[0]
    for coefficient in series[1:]:
        y = y * x + coefficient
    y *= x
    for two in twos:
        y *= two - y
    return y


@compiled
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
def _work(job: int) -> None:
    itemsize, address = more_of(job, 2)
    if itemsize == 4:
        narrow = numba.carray(pointer(address), 12, np.float32)
        for row, first, count in parts(job):
            _step_row(row, first, count, narrow, _SERIES_32, _TWOS_32)
    else:
        wide = numba.carray(pointer(address), 12, np.float64)
        for row, first, count in parts(job):
            _step_row(row, first, count, wide, _SERIES_64, _TWOS_64)
