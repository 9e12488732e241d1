"""Numerical differentiation that knows how far to trust itself."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

RATIO = float(np.e) ** 2

Function = Callable[..., NDArray]
Place = tuple[int, int]


class Rows:
    """Which outputs are looked at: each by itself, or sums with random weights where there are many."""

    def __init__(self, shape: tuple[int, ...], limit: int, random: np.random.Generator) -> None:
        self.shape, self.size = shape, int(np.prod(shape))
        self.grouped = self.size > limit
        self.weights, self.group = np.ones(self.size), np.arange(self.size)
        if self.grouped:
            # The weights differ, so that errors of one group don't cancel.
            self.weights = random.uniform(0.5, 1.5, self.size) * random.choice([-1, 1], self.size)
            self.group = random.permutation(self.size) % limit
        self.count = min(self.size, limit)

    def project(self, value: NDArray) -> NDArray:
        """Add up the outputs of each row."""
        return np.bincount(self.group, np.ravel(value).astype(np.float64) * self.weights, self.count)

    def cotangent(self, row: int) -> NDArray:
        """Return the cotangent whose vector-Jacobian product is the gradient of a row."""
        return np.where(self.group == row, self.weights, 0.0).reshape(self.shape)

    def index(self, row: int) -> tuple[int, ...] | None:
        """Return which output a row is, if it is one."""
        return None if self.grouped else tuple(map(int, np.unravel_index(row, self.shape)))


class Slopes(NamedTuple):
    """One entry for each element that is moved and each row."""

    value: NDArray  # the derivative, from central differences
    error: NDArray  # its uncertainty
    left: NDArray
    right: NDArray
    kind: NDArray  # what is amiss: "", "not finite", "edge", "jump", "steep" or "kink"
    size: NDArray  # largest value of the function on the way


def moved(arrays: list[NDArray], place: Place, number: float) -> list[NDArray]:
    """Return the arrays with one element replaced; only the array that changes is copied."""
    position, index = place
    copy = arrays[position].copy()
    copy.reshape(-1)[index] = number
    return [*arrays[:position], copy, *arrays[position + 1 :]]


def rounding_unit(value: NDArray) -> float:
    """Return the distance from 1 to the next number; what isn't floating-point counts as float64."""
    return float(np.finfo(value.dtype if value.dtype.kind == "f" else np.float64).eps)


def noise_of(function: Function, arrays: list[NDArray], rows: Rows, random: np.random.Generator) -> NDArray:
    """Return the absolute rounding noise of each row.

    Over so short a distance a smooth function is a cubic; what a cubic leaves over is noise. That finds
    arithmetic in float32 behind a float64 face, and cancellation.
    """
    directions = [
        random.uniform(0.5, 1, x.shape) * random.choice([-1, 1], x.shape) * np.maximum(1, finite(np.abs(x)))
        for x in arrays
    ]
    # Points at random, since at equal distances rounding may be regular. A little way off, so that a
    # singularity at the point itself isn't taken for noise.
    along = np.sort(random.uniform(-1, 1, 16))
    leftover = np.eye(16) - (cubic := np.vander(along, 4)) @ np.linalg.pinv(cubic)
    sides, size = [], np.zeros(rows.count)
    for sign in (1, -1):
        lengths = sign * (1e-3 + 4e-6 * along)
        points = [[x + length * d for x, d in zip(arrays, directions)] for length in lengths]
        values = np.array([rows.project(function(*point)) for point in points])
        size = np.maximum(size, finite(np.abs(values)).max(axis=0))
        noise = 3 * np.sqrt(np.square(leftover @ finite(values)).sum(axis=0) / 12)
        sides.append(np.where(np.isfinite(values).all(axis=0), noise, np.inf))
    # A jump or kink beside the point shows on one side only.
    noise = finite(np.minimum(*sides))
    return np.maximum(4 * rounding_unit(np.asarray(function(*arrays))) * size, noise)


def slopes(function: Function, arrays: list[NDArray], place: Place, rows: Rows, noise: NDArray) -> Slopes:
    """Differentiate each row with respect to one element; ``noise`` is that of each row."""
    number = float(arrays[place[0]].reshape(-1)[place[1]])
    steps = _steps(number)
    raw = np.asarray(function(*arrays))
    center = rows.project(raw)
    above, below = (
        np.array([rows.project(function(*moved(arrays, place, number + sign * step))) for step in steps])
        for sign in (1, -1)
    )
    up, down = ((number + steps) - number)[:, None], (number - (number - steps))[:, None]
    sizes = finite(np.abs([above, below, np.broadcast_to(center, above.shape)])).max(axis=0)
    rounding = np.maximum(noise, 4 * rounding_unit(raw) * sizes) / steps[:, None]
    central, sides = (above - below) / (up + down), ((center - below) / down, (above - center) / up)
    value, error = _settled(central, rounding)
    (left, left_error), (right, right_error) = (
        _settled((RATIO * side[1:] - side[:-1]) / (RATIO - 1), 3 * rounding[1:]) for side in sides
    )
    growth = np.maximum(*(_growth(side, rounding) for side in sides))
    growth = np.where(noise > 1e-3 * sizes.max(axis=0), -1.0, growth)
    limit = 5 * (left_error + right_error) + 1e-6 * np.maximum(np.abs(left), np.abs(right))
    kink = np.abs(right - left) > limit
    edge = np.isinf(left_error + right_error)
    kind = np.select(
        [~(np.isfinite(center) & np.isfinite(number)), edge, growth > 0.9, growth > 0.07, kink],
        ["not finite", "edge", "jump", "steep", "kink"],
        "",
    )
    # Where quotients grow, those of the smallest step say most.
    value, left, right = (
        np.where(growth > 0.07, quotients[-1], settled)
        for quotients, settled in ((central, value), (sides[0], left), (sides[1], right))
    )
    return Slopes(value, np.where(growth > 0.07, np.inf, error), left, right, kind, sizes.max(axis=0))


def finite(values: NDArray) -> NDArray:
    """Put 0 in the place of what isn't finite."""
    return np.where(np.isfinite(values), values, 0.0)


def _steps(number: float) -> NDArray:
    # No round numbers, nor is the ratio of two steps one: those could fall in step with a periodic function
    # or with a staircase.
    size = abs(number) if np.isfinite(number) else 1.0
    largest = 0.05 * np.sqrt(2) * max(1.0, size)
    smallest = max(2.0**-27 * (min(1.0, max(size, 1e-30)) if size else 1.0), 2.0**-40 * size)
    return largest * RATIO ** -np.arange(1 + np.ceil(np.log(largest / smallest) / np.log(RATIO)))


def _settled(quotients: NDArray, rounding: NDArray) -> tuple[NDArray, NDArray]:
    """Return where the quotients agree best with those of smaller steps, and how well."""
    values, allowed = quotients[1:], rounding[1:]
    errors = np.abs(np.diff(quotients, axis=0)) + allowed
    for last in range(1, len(values)):
        # A value that a smaller step contradicts, by more than rounding explains, hasn't settled.
        contradiction = np.abs(values[:last] - values[last]) - 3 * allowed[last]
        errors[:last] = np.maximum(errors[:last], finite(contradiction))
    errors = np.where(np.isfinite(errors), errors, np.inf)
    best = errors.argmin(axis=0)[None]
    return np.take_along_axis(values, best, 0)[0], np.take_along_axis(errors, best, 0)[0]


def _growth(quotients: NDArray, rounding: NDArray) -> NDArray:
    """Return p where the quotients grow as h to the power -p down to the smallest steps; else -1."""
    before, last = np.abs(np.diff(quotients[-3:], axis=0))
    clear = (last > 10 * (rounding[-1] + rounding[-2])) & (last > before)
    ratio = np.divide(last, before, out=np.full_like(last, RATIO), where=clear & (before > 0))
    return np.where(clear, np.log(ratio) / np.log(RATIO), -1.0)
