"""Checking a gradient against differences of its function."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradtricks._core.checks import check_integer, check_number
from gradtricks._core.differences import (
    Function,
    Place,
    Rows,
    Slopes,
    finite,
    noise_of,
    rounding_unit,
    slopes,
)
from gradtricks._core.verdicts import (
    CORRECT,
    INCONCLUSIVE,
    NOT_DIFFERENTIABLE,
    SURROGATE,
    WRONG,
    Comparison,
    reason_of,
    verdicts_of,
)

Vjp = Callable[..., Sequence[NDArray]]


@dataclass(frozen=True)
class GradientCheck:
    """Result of comparing a gradient with differences of its function.

    Attributes:
        verdict: ``"correct"``, ``"wrong gradient"``, ``"not differentiable here"``, ``"surrogate"`` or
            ``"inconclusive"``.
        reason: Why, in a sentence.
        num_elements: Elements of the inputs.
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
    """

    verdict: str
    reason: str
    num_elements: int
    relative_error: float = math.nan
    input: int = 0
    index: tuple[int, ...] = ()
    output_index: tuple[int, ...] | None = None
    analytic: float = math.nan
    numerical: float = math.nan
    uncertainty: float = math.nan
    left: float = math.nan
    right: float = math.nan
    noise: float = math.nan
    counts: dict[str, int] = field(default_factory=dict)
    num_checked: int = 0

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


def check_accepts_float64(in_float64: Callable[[], object], in_float32: Callable[[], object]) -> None:
    """Raise a TypeError if a function takes float32 only; its other errors are the caller's own."""
    try:
        in_float64()
    except Exception as error:  # whatever a caller's function raises
        in_float32()
        raise TypeError(
            f"function must accept float64; got {type(error).__name__} from it; "
            "remedy: make its parameters, variables and constants float64 too"
        ) from error


# What isn't finite shows in the report.
@np.errstate(divide="ignore", invalid="ignore", over="ignore")
def compare_with_differences(
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

    ``function`` maps arrays to one array, float32 or float64; ``vjp(cotangent, *inputs)`` returns the
    gradients of the inputs. The options are those of `check_gradient`; ``rtol`` isn't below the square root
    of the function's noise, up to 1e-3.
    """
    rtol, atol = check_number("rtol", rtol, low=0.0), check_number("atol", atol, low=0.0)
    num_samples = check_integer("num_samples", num_samples, low=1)
    random = np.random.default_rng(check_integer("seed", seed, low=0))
    arrays = [np.array(x, np.float64) for x in inputs]
    function = _of_one_shape("function", function)
    value = _repeatable_value(function, arrays)
    compared = function if surrogate is None else _of_one_shape("surrogate", surrogate)
    if (shape := compared(*arrays).shape) != value.shape:
        raise ValueError(f"surrogate must return the shape of function's result, {value.shape}; got {shape}")
    places, rows = _places(arrays, num_samples, random), Rows(value.shape, num_samples, random)
    total = sum(x.size for x in arrays)
    if not places or not value.size:
        return GradientCheck(INCONCLUSIVE, "there is nothing to compare", total)
    noise = noise_of(compared, arrays, rows, random)
    found = [slopes(compared, arrays, place, rows, noise) for place in places]
    numerical = Slopes(*(np.array(column) for column in zip(*found)))
    relative_noise = float(noise.max() / (numerical.size.max() or 1.0))
    table = Comparison(
        _analytic(vjp, arrays, rows, places),
        numerical,
        places,
        max(rtol, min(relative_noise**0.5, 1e-3)),
        atol,
        relative_noise,
        surrogate is not None,
    )
    return _report(table, verdicts_of(table, function, arrays, random), rows, arrays)


def _of_one_shape(name: str, function: Function) -> Function:
    """Return a function that refuses another shape than its first result's, which NumPy may broadcast."""
    shapes: list[tuple[int, ...]] = []

    def checked(*arrays: NDArray) -> NDArray:
        value = np.asarray(function(*arrays))
        shapes.append(value.shape)
        if shapes[0] != value.shape:
            raise ValueError(
                f"{name} must return one shape, whatever the values of its inputs; got {shapes[0]} and "
                f"{value.shape}; remedy: multiply by a mask, or use where, instead of selecting elements"
            )
        return value

    return checked


def _repeatable_value(function: Function, arrays: list[NDArray]) -> NDArray:
    first, second = function(*arrays), function(*arrays)
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


def _report(table: Comparison, verdicts: NDArray, rows: Rows, arrays: list[NDArray]) -> GradientCheck:
    names = (WRONG, NOT_DIFFERENTIABLE, INCONCLUSIVE, SURROGATE, CORRECT)
    counts = {name: int(np.sum(verdicts == name)) for name in names if np.any(verdicts == name)}
    verdict = next(iter(counts))
    found, relative, exists = table.slopes, table.relative(), verdicts != NOT_DIFFERENTIABLE
    i, j = _worst(table, verdicts, verdict)
    position, index = table.places[i]
    return GradientCheck(
        verdict=verdict,
        reason=reason_of(verdict, table, verdicts, i, j),
        relative_error=float(relative[exists].max()) if exists.any() else math.nan,
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


def _worst(table: Comparison, verdicts: NDArray, verdict: str) -> tuple[int, int]:
    weight, candidates = table.relative(), verdicts == verdict
    if verdict == NOT_DIFFERENTIABLE:
        weight = np.abs(table.slopes.right - table.slopes.left)
        weight = np.where(np.isfinite(weight), weight, np.inf)
        candidates &= table.slopes.kind != ""
    if verdict == INCONCLUSIVE:
        weight = table.slopes.error
    i, j = np.unravel_index(np.argmax(np.where(candidates, weight, -1.0)), verdicts.shape)
    return int(i), int(j)
