"""One pass over memory for a masked step of Adam."""

import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from threading import Lock

import numba
import numpy as np
from numpy.typing import NDArray

from gradtricks._core.kernels.bias_corrections import table

Array = NDArray[np.floating]
Counts = NDArray[np.int32]
Mask = NDArray[np.bool_]
Corrections = NDArray[np.complexfloating]

_BLOCK = 512  # elements whose state stays in the first-level cache between the loops over them
_BLOCKS_PER_THREAD = 256  # fewer aren't worth the start of a thread
_LOOPS_IN_PARALLEL = sys.platform == "linux"  # elsewhere Numba's threads bear no second user in a process
_lock = Lock()

# No fast mathematics: an element must come out the same bit for bit whichever loop it went through.
_compiled = numba.njit(nogil=True, cache=True, error_model="numpy")


def masked_adam_step(
    parameter: Array,
    gradient: Array,
    m: Array,
    v: Array,
    v_max: Array | None,
    step: Counts,
    trainable_mask: Mask,
    *,
    since: int,
    common: int | None,
    learning_rate: float,
    beta_1: float,
    beta_2: float,
    epsilon: float,
    weight_decay: float,
    maximize: bool,
    threads: int,
) -> int | None:
    """Take one Adam step on the trainable elements, in place.

    Args:
        parameter: ``[N]``, float32 or float64, like all the floating-point arrays.
        gradient: ``[N]``.
        m: ``[N]``.
        v: ``[N]``.
        v_max: ``[N]``, selects AMSGrad; or None.
        step: ``[N]``, only read; a trainable element has taken ``step + since`` steps so far.
        trainable_mask: ``[N]``.
        since: See ``step``.
        common: What ``step`` is in every trainable element; None if that isn't known, or differs.
        learning_rate: Size of a step.
        beta_1: Decay of the first moment.
        beta_2: Decay of the second moment.
        epsilon: Added to the root of the second moment.
        weight_decay: Decoupled.
        maximize: Climb instead of descend.
        threads: Use at most so many.

    Returns:
        ``common``, found out if it wasn't known; None if trainable elements differ in ``step``.
    """
    sign = -1 if maximize else 1
    keep = 1 - learning_rate * weight_decay
    factors = (beta_1, sign * (1 - beta_1), beta_2, 1 - beta_2, keep, learning_rate)
    numbers = [parameter.dtype.type(factor) for factor in factors]  # wider ones would widen the loops
    corrections = _corrections(beta_1, beta_2, epsilon, parameter.dtype.name)
    bounds = _bounds(len(parameter), threads)
    if common is not None and len(bounds) > 2 and _LOOPS_IN_PARALLEL:
        same = corrections[min(common + since + 1, len(corrections) - 1)]
        with _lock, _Threads(len(bounds) - 1):
            _step_of_all(parameter, gradient, m, v, v_max, trainable_mask, same, *numbers)
        return common
    arrays = (parameter, gradient, m, v, v if v_max is None else v_max, step, trainable_mask)
    counting = (since + 1, -1 if common is None else common, v_max is not None)

    def work(start: int, stop: int) -> tuple[int, int]:
        return _step(*(array[start:stop] for array in arrays), corrections, *counting, *numbers)

    if len(bounds) == 2:
        found = [work(*bounds)]
    else:
        with ThreadPoolExecutor(len(bounds) - 1) as pool:
            found = list(pool.map(work, bounds[:-1], bounds[1:]))
    low, high = min(low for low, _ in found), max(high for _, high in found)
    return low if low == high else None


class _Threads:
    """Numba's number of threads, set for a while."""

    def __init__(self, count: int) -> None:
        self.count, self.before = min(count, numba.config.NUMBA_NUM_THREADS), numba.get_num_threads()

    def __enter__(self) -> None:
        numba.set_num_threads(self.count)

    def __exit__(self, *_: object) -> None:
        numba.set_num_threads(self.before)


@cache
def _corrections(beta_1: float, beta_2: float, epsilon: float, dtype: str) -> Corrections:
    # The divisor of a step is sqrt(v) * real + imag, so that one look-up does.
    first, second = table(beta_1, dtype), table(beta_2, dtype)
    longer = max(len(first), len(second))
    corrections = np.full(longer, 1 + 1j, np.result_type(dtype, np.complex64))
    corrections.real[: len(second)] /= np.sqrt(second)
    corrections.real[: len(first)] *= first
    corrections.imag[: len(first)] = first
    corrections.imag *= epsilon
    corrections[0] = 1  # no step is step 0, so this entry stands for leaving the root as it is
    return corrections


def _bounds(length: int, threads: int) -> list[int]:
    blocks = -(-length // _BLOCK)
    parts = max(1, min(threads, blocks // _BLOCKS_PER_THREAD))
    return [*(part * blocks // parts * _BLOCK for part in range(parts)), length]


# Only a loop that Numba runs in parallel is compiled in the belief that its arrays don't overlap.
@numba.njit(parallel=True, nogil=True, cache=True, error_model="numpy")
def _step_of_all(
    parameter: Array,
    gradient: Array,
    m: Array,
    v: Array,
    v_max: Array | None,
    trainable_mask: Mask,
    same: complex,
    beta_1: float,
    rest_1: float,
    beta_2: float,
    rest_2: float,
    keep: float,
    learning_rate: float,
) -> None:
    for i in numba.prange(len(parameter)):
        on = trainable_mask[i]
        average = beta_1 * m[i] + rest_1 * gradient[i]
        largest = squares = beta_2 * v[i] + rest_2 * (gradient[i] * gradient[i])
        if v_max is not None:
            largest = squares if not v_max[i] >= squares else v_max[i]  # NaN wins
            v_max[i] = largest if on else v_max[i]
        moved = parameter[i] * keep - learning_rate * average / (np.sqrt(largest) * same.real + same.imag)
        parameter[i] = moved if on else parameter[i]
        m[i] = average if on else m[i]
        v[i] = squares if on else v[i]


# Elsewhere several short loops, because the compiler must prove that the arrays of a loop don't overlap, and
# gives up when they are many.


@_compiled
def _step(
    parameter: Array,
    gradient: Array,
    m: Array,
    v: Array,
    v_max: Array,
    step: Counts,
    trainable_mask: Mask,
    corrections: Corrections,
    since: int,
    common: int,
    amsgrad: bool,
    beta_1: float,
    rest_1: float,
    beta_2: float,
    rest_2: float,
    keep: float,
    learning_rate: float,
) -> tuple[int, int]:
    known = common >= 0
    low, high = 2**31, -1
    index, found = np.empty(_BLOCK, np.uint32), np.empty(_BLOCK, corrections.dtype)
    divisor = np.empty(_BLOCK, parameter.dtype)
    last = len(corrections) - 1
    same = corrections[min(common + since, last) if known else 0]
    for start in range(0, len(parameter), _BLOCK):
        part = slice(start, start + _BLOCK)
        on = trainable_mask[part]
        _average_squares(v[part], gradient[part], on, divisor, beta_2, rest_2, same)
        if amsgrad:
            _keep_largest(v_max[part], v[part], on, divisor, same)
        if not known:
            low, high = _range(step[part], on, low, high)
            _look_up(corrections, step[part], since, index, found)
            _correct(divisor, found)
        _move(parameter[part], m[part], gradient[part], on, divisor, beta_1, rest_1, keep, learning_rate)
    if known:
        low, high = common, common
    return low, high


@_compiled
def _range(step: Counts, on: Mask, low: int, high: int) -> tuple[int, int]:
    for i in range(len(step)):
        low = min(low, step[i] if on[i] else low)
        high = max(high, step[i] if on[i] else high)
    return low, high


@_compiled
def _look_up(
    corrections: Corrections, step: Counts, since: int, index: NDArray[np.uint32], found: Corrections
) -> None:
    last = np.uint32(len(corrections) - 1)
    for i in range(len(step)):
        index[i] = min(np.uint32(step[i] + since), last)  # unsigned, so never out of bounds
    for i in range(len(step)):
        found[i] = corrections[index[i]]


@_compiled
def _average_squares(
    v: Array, gradient: Array, on: Mask, divisor: Array, beta: float, rest: float, same: complex
) -> None:
    for i in range(len(v)):
        average = beta * v[i] + rest * (gradient[i] * gradient[i])
        average = average if on[i] else v[i]
        v[i] = average
        divisor[i] = np.sqrt(average) * same.real + same.imag


@_compiled
def _keep_largest(v_max: Array, v: Array, on: Mask, divisor: Array, same: complex) -> None:
    for i in range(len(v)):
        largest = v[i] if on[i] and not v_max[i] >= v[i] else v_max[i]  # NaN wins
        v_max[i] = largest
        divisor[i] = np.sqrt(largest) * same.real + same.imag


@_compiled
def _correct(divisor: Array, found: Corrections) -> None:
    for i in range(len(divisor)):
        divisor[i] = divisor[i] * found[i].real + found[i].imag


@_compiled
def _move(
    parameter: Array,
    m: Array,
    gradient: Array,
    on: Mask,
    divisor: Array,
    beta: float,
    rest: float,
    keep: float,
    learning_rate: float,
) -> None:
    for i in range(len(parameter)):
        average = beta * m[i] + rest * gradient[i]
        moved = parameter[i] * keep - learning_rate * average / divisor[i]
        parameter[i] = moved if on[i] else parameter[i]
        m[i] = average if on[i] else m[i]
