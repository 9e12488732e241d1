"""One pass over memory for a masked step of Adam."""

import math
from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from gradtricks._core.kernels._sharing import share
from gradtricks._core.masking import one_minus_exp

Array = NDArray[np.floating]

_LEAST = 2**18  # fewer elements aren't worth another thread
# Sums of products may be fused, in all loops alike. No other fast mathematics, because an element must come
# out the same bit for bit whichever loop it went through.
_compiled = numba.njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract"})


def masked_adam_step(
    arrays: Sequence[Any],
    *,
    step: float,
    learning_rate: float,
    beta_1: float,
    beta_2: float,
    epsilon: float,
    l2: float,
    weight_decay: float,
    maximize: bool,
    threads: int,
) -> None:
    """Take one Adam step on the trainable elements of float32 or float64 arrays ``[N]``, in place.

    ``arrays``: parameter, gradient, both moments, the largest second moments or None, steps of each element
    before this one (int32) or None where all have taken ``step``, this one included, and the trainable mask.
    """
    parameter = arrays[0]
    number = parameter.dtype.type  # wider ones would widen the loop
    coefficients, doublings, most = one_minus_exp(parameter.dtype.name)
    series, twos = tuple(map(number, coefficients)), (number(2),) * doublings
    betas = beta_1, beta_2
    rates = [-math.log(beta) / 2**doublings if beta else most for beta in betas]
    factors = [x for beta in betas for x in (beta, 1 - beta)]
    options = [-1 if maximize else 1, l2, 1 - learning_rate * weight_decay, learning_rate, epsilon]
    numbers = tuple(map(number, [step, most, *rates, *factors, *options]))

    def work(start: int, stop: int) -> None:
        _step(*(None if array is None else array[start:stop] for array in arrays), numbers, series, twos)

    share(work, len(parameter), least=_LEAST, threads=threads)


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
    numbers: tuple[Any, ...],
    series: tuple[Any, ...],
    twos: tuple[Any, ...],
) -> None:
    steps, most, rate_1, rate_2, beta_1, rest_1, beta_2, rest_2 = numbers[:8]
    sign, l2, keep, learning_rate, epsilon = numbers[8:]
    correction_1 = _one_minus_power(min(rate_1 * steps, most), series, twos)
    correction_2 = _one_minus_power(min(rate_2 * steps, most), series, twos)
    for i in range(len(parameter)):
        on = trainable_mask[i]
        if own_steps is not None:
            count = np.int32(own_steps[i] + on)
            own_steps[i] = count
            steps = parameter.dtype.type(count)
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
