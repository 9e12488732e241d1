"""One launch on a GPU for masked steps of Adam of many arrays."""

# An annotation says to Triton that an argument is compiled in.
# mypy: allow-untyped-defs, allow-incomplete-defs

from collections.abc import Sequence
from typing import Any

import triton
import triton.language as tl

from gradtricks._core.masking import one_minus_exp

BLOCK = 1024  # elements that one program takes


def masked_adam_steps(
    table: Any,
    numbers: Any,
    learning_rate: Any,
    is_finite: Any,
    *,
    blocks: int,
    num_rows: int,
    dtypes: Sequence[str],
    largest: bool,
    own: bool,
    counted: bool,
) -> None:
    """Take one Adam step on the trainable elements of arrays, in place; of frozen ones only the mask is read.

    Args:
        table: int64 on the device. Of each array the first of its blocks of `BLOCK` elements, its length, the
            addresses of parameter, gradient, both moments, the largest second moment or 0, int32 steps of
            each element or 0, and mask, and the steps of the array before this one.
        numbers: float64 on the device: the ``most`` of `one_minus_exp`, what it is to be given for one step
            of each moment, over ``2**doublings``; beta and 1 - beta of each; 1, or -1 to climb; what of the
            parameter is added to the gradient; its decoupled decay; epsilon.
        learning_rate: float64, on the device.
        is_finite: int8 on the device, or None; where it is 0 nothing changes.
        blocks: Of all arrays.
        num_rows: Arrays.
        dtypes: Of parameters, gradients and moments, and the one to compute in.
        largest: There are largest second moments.
        own: There are steps of each element.
        counted: The table has the addresses of float32 instead of the steps of the arrays.
    """
    series, doublings, _ = one_minus_exp(dtypes[-1])
    _step[(max(1, blocks),)](
        table,
        numbers,
        learning_rate,
        is_finite,
        num_rows,
        *(getattr(tl, name) for name in dtypes),
        largest,
        own,
        counted,
        series,
        doublings,
        BLOCK,
    )


@triton.jit
def _one_minus_exp(x, series: tl.constexpr, doublings: tl.constexpr):
    y = x * 0 + series[0]
    for i in tl.static_range(1, len(series)):
        y = y * x + series[i]
    y *= x
    for _ in tl.static_range(doublings):
        y *= 2 - y
    return y


@triton.jit
def _row_of(block, table, num_rows):
    # The last row that begins at this block or before it, by bisection.
    low, high = block * 0, num_rows + block * 0
    while high - low > 1:
        middle = (low + high) // 2
        before = tl.load(table + 10 * middle) <= block
        low, high = tl.where(before, middle, low), tl.where(before, high, middle)
    return table + 10 * low


@triton.jit(do_not_specialize=["num_rows"])
def _step(
    table,
    numbers,
    learning_rate,
    is_finite,
    num_rows,
    parameter_dtype: tl.constexpr,
    gradient_dtype: tl.constexpr,
    moments_dtype: tl.constexpr,
    wide: tl.constexpr,
    has_largest: tl.constexpr,
    has_own: tl.constexpr,
    counted: tl.constexpr,
    series: tl.constexpr,
    doublings: tl.constexpr,
    size: tl.constexpr,
):
    block = tl.program_id(0)
    row = _row_of(block, table, num_rows)
    offsets = (block - tl.load(row)) * size + tl.arange(0, size).to(tl.int64)
    end = tl.load(row + 1)
    if is_finite is not None:
        end = tl.where(tl.load(is_finite) != 0, end, 0)
    masks = tl.load(row + 8).to(tl.pointer_type(tl.int8)) + offsets
    on = tl.load(masks, mask=offsets < end, other=0) != 0

    most, rate_1 = tl.load(numbers).to(wide), tl.load(numbers + 1).to(wide)
    rate_2, beta_1 = tl.load(numbers + 2).to(wide), tl.load(numbers + 3).to(wide)
    rest_1, beta_2 = tl.load(numbers + 4).to(wide), tl.load(numbers + 5).to(wide)
    rest_2, sign = tl.load(numbers + 6).to(wide), tl.load(numbers + 7).to(wide)
    l2, decay, epsilon = tl.load(numbers + 8).to(wide), tl.load(numbers + 9), tl.load(numbers + 10).to(wide)
    rate = tl.load(learning_rate)
    keep = (1 - rate * decay).to(wide)

    parameters = tl.load(row + 2).to(tl.pointer_type(parameter_dtype)) + offsets
    gradients = tl.load(row + 3).to(tl.pointer_type(gradient_dtype)) + offsets
    averages = tl.load(row + 4).to(tl.pointer_type(moments_dtype)) + offsets
    squares = tl.load(row + 5).to(tl.pointer_type(moments_dtype)) + offsets
    parameter = tl.load(parameters, mask=on, other=0).to(wide)
    slope = sign * tl.load(gradients, mask=on, other=0).to(wide)
    slope = tl.where(l2 != 0, slope + l2 * parameter, slope)  # an infinite parameter times 0 would be NaN
    m = beta_1 * tl.load(averages, mask=on, other=0).to(wide) + rest_1 * slope
    v = beta_2 * tl.load(squares, mask=on, other=0).to(wide) + rest_2 * (slope * slope)
    largest = v
    if has_largest:
        maxima = tl.load(row + 6).to(tl.pointer_type(moments_dtype)) + offsets
        old = tl.load(maxima, mask=on, other=0).to(wide)
        largest = tl.maximum(old, v, propagate_nan=tl.PropagateNan.ALL)
        tl.store(maxima, largest.to(moments_dtype), mask=on)
    if has_own:
        owns = tl.load(row + 7).to(tl.pointer_type(tl.int32)) + offsets
        taken = tl.load(owns, mask=on, other=0) + 1
        tl.store(owns, taken, mask=on)
        steps = taken.to(wide)
    elif counted:
        steps = (tl.load(tl.load(row + 9).to(tl.pointer_type(tl.float32))) + 1).to(wide)
    else:
        steps = (tl.load(row + 9) + 1).to(wide)
    correction_1 = _one_minus_exp(tl.minimum(rate_1 * steps, most), series, doublings)
    correction_2 = _one_minus_exp(tl.minimum(rate_2 * steps, most), series, doublings)
    # Quotients are dear, so this is the only one: numerator and denominator times correction_2.
    second = largest * correction_2
    root = tl.sqrt_rn(second) if tl.float32 == wide else tl.sqrt(second)  # which drops float32's tiny ones
    divisor = correction_1 * (root + epsilon * correction_2)
    moved = parameter * keep - rate.to(wide) * correction_2 * m / divisor
    tl.store(parameters, moved.to(parameter_dtype), mask=on)
    tl.store(averages, m.to(moments_dtype), mask=on)
    tl.store(squares, v.to(moments_dtype), mask=on)
