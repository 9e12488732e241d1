"""Checking a gradient against differences of its function."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradtricks._core.checks import check_integer, check_number
from gradtricks.reference._differences import (
    Function,
    Place,
    Rows,
    Slopes,
    finite,
    moved,
    noise_of,
    rounding_unit,
    slopes,
)

CORRECT, WRONG, SURROGATE = "correct", "wrong gradient", "surrogate"
NOT_DIFFERENTIABLE, INCONCLUSIVE = "not differentiable here", "inconclusive"
REASONS = {
    "not finite": "the input or the value isn't finite",
    "edge": "the function is finite on one side only",
    "jump": "the difference quotient grows as 1/h, as at a jump",
    "steep": "the difference quotient grows without limit, as at a vertical tangent",
    "kink": "the slopes to the left and to the right differ",
}

Vjp = Callable[..., Sequence[NDArray]]


@dataclass(frozen=True)
class GradientCheck:
    """What came out of comparing a gradient with differences of its function.

    Attributes:
        verdict: ``"correct"``, ``"wrong gradient"``, ``"not differentiable here"``, ``"surrogate"`` or
            ``"inconclusive"``.
        reason: Why, in a sentence.
        relative_error: The largest one, among derivatives that exist; NaN if there is none.
        input: Position of the input where the verdict was decided.
        index: The element of that input.
        output_index: The element of the result; None where several were added up.
        analytic: What the gradient says there.
        numerical: What the differences say there.
        uncertainty: Of ``numerical``.
        left: Slope to the left.
        right: Slope to the right.
        noise: Relative rounding error of the function, as found.
        counts: How many derivatives got each verdict.
        num_checked: Elements of the inputs that were moved.
        num_elements: Elements of the inputs.
    """

    verdict: str
    reason: str
    relative_error: float
    input: int
    index: tuple[int, ...]
    output_index: tuple[int, ...] | None
    analytic: float
    numerical: float
    uncertainty: float
    left: float
    right: float
    noise: float
    counts: dict[str, int]
    num_checked: int
    num_elements: int

    def __str__(self) -> str:
        """Say it in a few lines."""
        output = "a sum of outputs" if self.output_index is None else f"output {list(self.output_index)}"
        counts = ", ".join(f"{count} {verdict}" for verdict, count in self.counts.items())
        return (
            f"{self.verdict}: {self.reason}\n"
            f"  at input {self.input} {list(self.index)}, {output}: analytic {self.analytic:.6g}, "
            f"numerical {self.numerical:.6g} ± {self.uncertainty:.1g}\n"
            f"  slopes: left {self.left:.6g}, right {self.right:.6g}\n"
            f"  largest relative error {self.relative_error:.2g}, rounding noise {self.noise:.1g}\n"
            f"  {counts or 'nothing compared'}; moved {self.num_checked} of {self.num_elements} elements"
        )


# What isn't finite shows in the report.
@np.errstate(divide="ignore", invalid="ignore", over="ignore")
def check_gradient(
    function: Function,
    vjp: Vjp,
    inputs: Sequence[ArrayLike],
    *,
    surrogate: Function | None = None,
    rtol: float = 1e-6,
    atol: float = 1e-9,
    num_samples: int = 100,
    seed: int = 0,
) -> GradientCheck:
    """Compare a vector-Jacobian product with differences of its function.

    Each element is moved by many steps, large to small. The difference quotients settle between the
    truncation of large steps and the rounding of small ones; where they settle is the derivative, and how
    well they agree is its uncertainty. Where they don't settle, or settle on two values, there's none.

    Args:
        function: Maps arrays to one array, float32 or float64.
        vjp: ``vjp(cotangent, *inputs)`` returns the gradients of the inputs.
        inputs: Arrays; made float64.
        surrogate: The function whose derivative ``vjp`` is meant to be, if that isn't ``function``.
        rtol: Relative error that passes; not below the square root of the function's noise, up to 1e-3.
        atol: Absolute error that passes.
        num_samples: Elements of the inputs that are moved at most, chosen at random. An output with more
            elements is added up, with random weights, into as many sums.
        seed: Of what is chosen at random.

    Returns:
        The report.

    Raises:
        TypeError: An option isn't a number.
        ValueError: ``function`` returns another result when called again, ``surrogate`` another shape, or an
            option is out of range.
    """
    rtol, atol = check_number("rtol", rtol, low=0.0), check_number("atol", atol, low=0.0)
    num_samples = check_integer("num_samples", num_samples, low=1)
    random = np.random.default_rng(check_integer("seed", seed, low=0))
    arrays = [np.array(x, np.float64) for x in inputs]
    value = _repeatable_value(function, arrays)
    compared = function if surrogate is None else surrogate
    if surrogate is not None and np.shape(surrogate(*arrays)) != value.shape:
        raise ValueError(
            f"surrogate must return the shape of function's result, {value.shape}; "
            f"got {np.shape(surrogate(*arrays))}"
        )
    places, rows = _places(arrays, num_samples, random), Rows(value.shape, num_samples, random)
    total = sum(x.size for x in arrays)
    if not places or not value.size:
        return _nothing(total)
    noise = noise_of(compared, arrays, rows, random)
    found = [slopes(compared, arrays, place, rows, noise) for place in places]
    numerical = Slopes(*(np.array(column) for column in zip(*found)))
    relative_noise = float(noise.max() / (numerical.size.max() or 1.0))
    table = _Table(
        _analytic(vjp, arrays, rows, places),
        numerical,
        places,
        max(rtol, min(relative_noise**0.5, 1e-3)),
        atol,
        relative_noise,
        surrogate is not None,
    )
    return _report(table, _verdicts(table, function, arrays, random), rows, arrays)


class _Table(NamedTuple):
    """Both sides of the comparison."""

    analytic: NDArray
    slopes: Slopes
    places: list[Place]
    rtol: float
    atol: float
    noise: float
    declared: bool

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


def _repeatable_value(function: Function, arrays: list[NDArray]) -> NDArray:
    first, second = np.asarray(function(*arrays)), np.asarray(function(*arrays))
    limit = 1e3 * rounding_unit(first) * np.abs(finite(first)).max(initial=0.0)
    same = (first == second) | (np.isnan(first) & np.isnan(second))
    if not np.all(same | (np.abs(first - second) <= limit)):
        raise ValueError(
            "function must return the same result each time; got two that differ; "
            "remedy: fix the seed inside it, or switch dropout off"
        )
    return first


def _places(arrays: list[NDArray], limit: int, random: np.random.Generator) -> list[Place]:
    places = [(position, index) for position, x in enumerate(arrays) for index in range(x.size)]
    if len(places) <= limit:
        return places
    return [places[chosen] for chosen in sorted(random.choice(len(places), limit, replace=False))]


def _analytic(vjp: Vjp, arrays: list[NDArray], rows: Rows, places: list[Place]) -> NDArray:
    columns = []
    for row in range(rows.count):
        gradients = [np.ravel(gradient) for gradient in vjp(rows.cotangent(row), *arrays)]
        columns.append([float(gradients[position][index]) for position, index in places])
    return np.array(columns).T


def _verdicts(
    table: _Table, function: Function, arrays: list[NDArray], random: np.random.Generator
) -> NDArray:
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
    return len(flat) >= 5 and sum(flat) >= len(flat) - 1


def _report(table: _Table, verdicts: NDArray, rows: Rows, arrays: list[NDArray]) -> GradientCheck:
    names = (WRONG, NOT_DIFFERENTIABLE, INCONCLUSIVE, SURROGATE, CORRECT)
    counts = {name: int(np.sum(verdicts == name)) for name in names if np.any(verdicts == name)}
    verdict = next(iter(counts))
    found, relative, exists = table.slopes, table.relative(), verdicts != NOT_DIFFERENTIABLE
    i, j = _worst(table, verdicts, verdict)
    position, index = table.places[i]
    return GradientCheck(
        verdict=verdict,
        reason=_reason(verdict, table, verdicts, i, j),
        relative_error=float(relative[exists].max()) if exists.any() else float("nan"),
        input=position,
        index=tuple(map(int, np.unravel_index(index, arrays[position].shape))),
        output_index=rows.index(j),
        analytic=float(table.analytic[i, j]),
        numerical=float(found.value[i, j]),
        uncertainty=float(found.error[i, j]),
        left=float(found.left[i, j]),
        right=float(found.right[i, j]),
        noise=table.noise,
        counts=counts,
        num_checked=len(table.places),
        num_elements=sum(x.size for x in arrays),
    )


def _worst(table: _Table, verdicts: NDArray, verdict: str) -> tuple[int, int]:
    weight, candidates = table.relative(), verdicts == verdict
    if verdict == NOT_DIFFERENTIABLE:
        weight = np.abs(table.slopes.right - table.slopes.left)
        weight = np.where(np.isfinite(weight), weight, np.inf)
        candidates &= table.slopes.kind != ""
    if verdict == INCONCLUSIVE:
        weight = table.slopes.error
    i, j = np.unravel_index(np.argmax(np.where(candidates, weight, -1.0)), verdicts.shape)
    return int(i), int(j)


def _reason(verdict: str, table: _Table, verdicts: NDArray, i: int, j: int) -> str:
    if verdict == NOT_DIFFERENTIABLE:
        kind, analytic = table.slopes.kind[i, j], table.analytic[i, j]
        low, high = sorted((table.slopes.left[i, j], table.slopes.right[i, j]))
        between = f"; the gradient {'lies' if low <= analytic <= high else 'does not lie'} between them"
        return REASONS[kind] + (between if kind == "kink" else "")
    if verdict == WRONG:
        return _what_is_wrong(table, verdicts, i)
    if verdict == SURROGATE and not table.declared:
        return "the function is flat wherever it was looked at, so its gradient was declared"
    return {
        CORRECT: "the gradient agrees with the differences",
        SURROGATE: "the gradient is the derivative of the declared surrogate",
        INCONCLUSIVE: "the function is too rough for differences",
    }[verdict]


def _what_is_wrong(table: _Table, verdicts: NDArray, i: int) -> str:
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


def _nothing(total: int) -> GradientCheck:
    return GradientCheck(
        verdict=INCONCLUSIVE,
        reason="there is nothing to compare",
        relative_error=np.nan,
        input=0,
        index=(),
        output_index=None,
        analytic=np.nan,
        numerical=np.nan,
        uncertainty=np.nan,
        left=np.nan,
        right=np.nan,
        noise=np.nan,
        counts={},
        num_checked=0,
        num_elements=total,
    )
