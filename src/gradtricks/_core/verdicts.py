"""Verdicts of comparing a gradient with differences of its function, derivative by derivative."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradtricks._core.differences import Function, Place, Slopes, finite, moved

CORRECT, WRONG, SURROGATE = "correct", "wrong gradient", "surrogate"
NOT_DIFFERENTIABLE, INCONCLUSIVE = "not differentiable here", "inconclusive"
_REASONS = {
    "not finite": "the input or the value isn't finite",
    "edge": "the function is finite on one side only",
    "jump": "the difference quotient grows as 1/h, as at a jump",
    "steep": "the difference quotient grows without limit, as at a vertical tangent",
    "kink": "the slopes to the left and to the right differ",
}


class Comparison(NamedTuple):
    """Both sides of the comparison, one entry for each element that was moved and each row of outputs."""

    analytic: NDArray  # what the gradient says
    slopes: Slopes  # what the differences say
    places: list[Place]  # which elements were moved
    rtol: float
    atol: float
    noise: float  # relative rounding error of the function
    declared: bool  # whether the gradient is meant to be that of a surrogate

    def differences(self) -> NDArray:
        difference = np.abs(self.analytic - self.slopes.value)
        return np.where(np.isfinite(difference), difference, np.inf)

    def scale(self) -> NDArray:
        return np.fmax(np.abs(self.analytic), np.abs(self.slopes.value))

    def relative(self) -> NDArray:
        # Below error / rtol the differences can't tell a number from zero.
        floor = np.fmax(self.scale(), self.slopes.error / self.rtol)
        difference = self.differences()
        return np.where(np.isinf(difference), np.inf, difference / np.where(floor > 0, floor, 1.0))

    def inputs(self) -> NDArray:
        return np.array([place[0] for place in self.places])


def verdicts_of(
    table: Comparison, function: Function, arrays: list[NDArray], random: np.random.Generator
) -> NDArray:
    """Judge each derivative of the table; ``random`` draws where else the function is looked at."""
    found, inputs = table.slopes, table.inputs()
    allowed = table.atol + table.rtol * table.scale() + 3 * found.error
    differs = ~(table.differences() <= allowed)
    amiss = found.kind != ""
    # Where one output has no derivative, an infinite gradient times 0 makes NaN of the others.
    amiss |= amiss.any(axis=1, keepdims=True) & ~np.isfinite(table.analytic)
    verdicts = np.full(differs.shape, SURROGATE if table.declared else CORRECT, dtype=object)
    for position in set(inputs):
        mine = (inputs == position)[:, None] & ~amiss
        largest = finite(np.where(mine, table.scale(), 0.0)).max()
        verdicts[mine & (found.error > 0.05 * largest + 1e-6 * found.size + table.atol)] = INCONCLUSIVE
        wrong = mine & differs
        indices = [table.places[i][1] for i in np.flatnonzero(wrong.any(axis=1))]
        flat = bool(indices) and (np.abs(found.value[wrong]) <= 3 * found.error[wrong]).all()
        if flat and not table.declared and _flat_elsewhere(function, arrays, int(position), indices, random):
            verdicts[wrong] = SURROGATE
        else:
            verdicts[wrong] = WRONG if table.noise < 1e-3 else INCONCLUSIVE
    verdicts[amiss] = NOT_DIFFERENTIABLE
    return verdicts


def _flat_elsewhere(
    function: Function, arrays: list[NDArray], position: int, indices: list[int], random: np.random.Generator
) -> bool:
    """Say whether the function is a staircase in these elements: flat far and wide, not only here.

    A rectifier is flat on one side. A staircase is flat everywhere, and its gradient can only be invented.
    """
    reach, flat = 4 * (1 + np.abs(arrays[position]).max()), []
    # Near zero, where most functions change, as well as far away.
    for number in np.concatenate([random.normal(size=12), reach * random.uniform(-1, 1, 12)]):
        place = position, int(random.choice(indices))
        here, near = (
            np.asarray(function(*moved(arrays, place, number + step * max(1.0, abs(number)))))
            for step in (0, 1e-7)
        )
        if np.isfinite(here).all():
            flat.append(np.array_equal(here, near))
    # One of them may stand at the edge of a stair.
    few_edges = len(flat) >= 5 and sum(flat) >= len(flat) - 1
    return few_edges and not _has_slope(function, arrays, (position, indices[0]), 8 * reach)


def _has_slope(function: Function, arrays: list[NDArray], place: Place, reach: float) -> bool:
    """Halve a way where the function changes most: a slope changes it less and less, a jump doesn't."""
    ends = [(x, np.asarray(function(*moved(arrays, place, x)))) for x in (-reach, reach)]

    def steepness(ends: list[tuple[float, NDArray]]) -> float:
        (low, before), (high, after) = ends
        return float(np.abs(after - before).sum() / (high - low)) if high > low else 0.0

    with np.errstate(invalid="ignore", over="ignore"):
        first = steepness(ends)
        for _ in range(52 if 0 < first < np.inf else 0):
            middle = (ends[0][0] + ends[1][0]) / 2
            between = middle, np.asarray(function(*moved(arrays, place, middle)))
            ends = max([ends[0], between], [between, ends[1]], key=steepness)
        return 0 < steepness(ends) < 1e6 * first


def reason_of(verdict: str, table: Comparison, verdicts: NDArray, i: int, j: int) -> str:
    """Say in a sentence why the verdict on the whole was reached, at element ``i`` and row ``j``."""
    if verdict == NOT_DIFFERENTIABLE:
        kind, analytic = table.slopes.kind[i, j], table.analytic[i, j]
        low, high = sorted((table.slopes.left[i, j], table.slopes.right[i, j]))
        between = f"; the gradient {'lies' if low <= analytic <= high else 'does not lie'} between them"
        return _REASONS[kind] + (between if kind == "kink" else "")
    if verdict == WRONG:
        return _what_is_wrong(table, verdicts, i)
    if verdict == SURROGATE and not table.declared:
        return "the function is flat wherever it was looked at, so its gradient was declared"
    return {
        CORRECT: "the gradient agrees with the differences",
        SURROGATE: "the gradient is the derivative of the declared surrogate",
        INCONCLUSIVE: "the function is too rough for differences",
    }[verdict]


def _what_is_wrong(table: Comparison, verdicts: NDArray, i: int) -> str:
    whose = "the declared surrogate" if table.declared else "the function"
    values, mine = table.slopes.value, (table.inputs() == table.inputs()[i])[:, None]
    mine = mine & (verdicts != NOT_DIFFERENTIABLE)
    clear = mine & (np.abs(values) > 1e-3 * np.abs(values[mine]).max())
    clear &= (table.slopes.error < 1e-4 * np.abs(values)) & np.isfinite(table.analytic)
    if clear.any():
        factors = table.analytic[clear] / values[clear]
        factor = float(np.median(factors))
        if np.ptp(factors) <= 0.01 * abs(factor - 1) and not np.any((verdicts == WRONG) & mine & ~clear):
            if factor == 0:
                return f"no gradient arrives, but the derivative of {whose} isn't zero"
            return (
                f"everywhere {factor:.4g} times the derivative of {whose}; "
                "if that's meant, say so with surrogate"
            )
    return f"{np.sum((verdicts == WRONG) & mine)} of {np.sum(mine)} aren't the derivative of {whose}"
