"""The runs of a sweep by configuration: what was varied, and what came out for each value."""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from gradtricks.lab.results.columns import values_of
from gradtricks.lab.results.markup import one_line
from gradtricks.lab.results.statistics import Summary, summarize
from gradtricks.lab.storage.dotted import join_name, split_name

if TYPE_CHECKING:
    import pandas

CASE = "case"  # the column that says what a configuration is called
SEED = "seed"
_GROUPS = ("results", "varying")
_LISTED = 30


class PlotError(ValueError):
    """What is to be shown can't be; the message says what can."""


@dataclass(frozen=True)
class Axis:
    """A parameter that was varied.

    Attributes:
        name: Of the parameter.
        values: Numbers by size, anything else in the order of the runs.
        numeric: Whether all values are finite numbers.
    """

    name: str
    values: tuple[Any, ...]
    numeric: bool

    @property
    def logarithmic(self) -> bool:
        """Whether the values ask for a logarithmic axis."""
        return self.numeric and wants_logarithm(self.values)

    def spelled(self, value: Any) -> str:
        """Write a name and a value, such as ``scale = 0.5``."""
        return f"{self.name} = {spell(value)}"


@dataclass(frozen=True)
class Group:
    """The runs of one configuration, or of several that are pooled.

    Attributes:
        values: Of the axes.
        found: What each finished run recorded under one name: a number, or a list of numbers.
        strata: The configuration of each of them.
        failed: How many runs failed.
        missing: How many finished without recording it.
    """

    values: tuple[Any, ...]
    found: tuple[Any, ...]
    strata: tuple[str, ...]
    failed: int
    missing: int

    @cached_property
    def summary(self) -> Summary:
        """Of numbers."""
        return summarize(self.found, strata=self.strata)

    @property
    def lost(self) -> int:
        """How many runs aren't part of the mean."""
        return self.failed + self.missing + self.summary.non_finite


def axes_of(frame: "pandas.DataFrame", varied: Iterable[str]) -> list[Axis]:
    """Describe what was varied besides the seed.

    Args:
        frame: The table of a sweep.
        varied: Names of parameters.

    Returns:
        An axis for each that isn't the seed. Where configurations have names, one axis stands for all the
        parameters that these set.
    """
    names = [name for name in varied if name != SEED]
    if CASE in frame.columns:
        cases = values_of(frame[CASE])
        names = [CASE, *(name for name in names if varies_within(cases, _parameter(frame, name)))]
    return [_axis(name, _parameter(frame, name)) for name in names]


def varies_within(cases: Sequence[str], values: Sequence[Any]) -> bool:
    """Say whether a parameter varies within named configurations too.

    Args:
        cases: What the configuration of each run is called.
        values: Of the parameter, in each run.

    Returns:
        Whether some name has several values.
    """
    return len({(case, key_of(value)) for case, value in zip(cases, values)}) > len(set(cases))


def groups_of(frame: "pandas.DataFrame", axes: Sequence[Axis], column: str, pooled: int = 0) -> list[Group]:
    """Sort runs by configuration.

    Args:
        frame: The table of a sweep.
        axes: From `axes_of`.
        column: Of the results.
        pooled: How many axes, from the last, are to be pooled.

    Returns:
        A group for each configuration that has runs, in the order of the axes.
    """
    kept = axes[: len(axes) - pooled]
    configurations = list(zip(*(_parameter(frame, axis.name) for axis in axes))) or [()] * len(frame)
    places: dict[tuple[str, ...], list[int]] = {}
    for place, values in enumerate(configurations):
        places.setdefault(tuple(map(key_of, values[: len(kept)])), []).append(place)
    ranks = [{key_of(value): rank for rank, value in enumerate(axis.values)} for axis in kept]
    ordered = sorted(places, key=lambda keys: [rank[key] for rank, key in zip(ranks, keys)])
    found, status = values_of(frame[column]), values_of(frame["status"])

    def group(rows: list[int]) -> Group:
        finished = [row for row in rows if status[row] == "finished"]
        there = [row for row in finished if found[row] is not None]
        return Group(
            values=tuple(configurations[rows[0]][: len(kept)]),
            found=tuple(found[row] for row in there),
            strata=tuple(json.dumps([key_of(value) for value in configurations[row]]) for row in there),
            failed=len(rows) - len(finished),
            missing=len(finished) - len(there),
        )

    return [group(places[keys]) for keys in ordered]


def column_of(frame: "pandas.DataFrame", name: str) -> str:
    """Find the column of a result.

    Args:
        frame: The table of a sweep.
        name: Such as ``results.loss``; ``loss`` does too.

    Returns:
        The column.

    Raises:
        PlotError: There is none; the message lists those that there are.
    """
    plain = {".".join(split_name(column)): column for column in map(str, frame.columns)}
    for wanted in (name, *(f"{group}.{name}" for group in _GROUPS)):
        if wanted in plain:
            return plain[wanted]
    there = [column for column in plain if column.startswith(tuple(f"{group}." for group in _GROUPS))]
    parts = [column for column in there if column.startswith((f"{name}.", f"results.{name}."))]
    listed = (parts or there)[:_LISTED] or ["none"]
    more = ", …" if len(parts or there) > _LISTED else ""
    raise PlotError(f"expected a recorded result; got {name!r}; there are: {', '.join(listed)}{more}")


def wants_logarithm(values: Iterable[float]) -> bool:
    """Say whether numbers are better told apart on a logarithmic axis.

    Args:
        values: Finite numbers.

    Returns:
        Whether they are positive, span a factor of 20 or more, and lie more evenly on such an axis.
    """
    array = np.sort(np.asarray([*values], dtype=np.float64))
    if array.size < 3 or array[0] <= 0 or array[-1] < 20 * array[0]:
        return False
    logs = np.log(array)
    return bool(_skew(logs) < _skew(array))


def text_of(value: Any) -> str:
    """Write a parameter's value in one line.

    Args:
        value: Any.

    Returns:
        Its text, with all digits.
    """
    if isinstance(value, float) and float(f"{value:g}") == value:
        return f"{value:g}"
    return one_line(str(value))


def spell(value: Any, longest: int = 24) -> str:
    """Write a parameter's value for people.

    Args:
        value: Any.
        longest: How many signs may be shown.

    Returns:
        Its text; a number has at most six digits, and a text that is too long ends in an ellipsis.
    """
    text = text_of(value)
    if isinstance(value, float) and len(text) > len(f"{value:g}"):
        text = f"{value:.4g}"
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def key_of(value: Any) -> str:
    """Tell values apart as Python does not: 1, 1.0 and True are three.

    Args:
        value: Any.

    Returns:
        A text that equal values have in common.
    """
    return f"{type(value).__name__} {value!r}"


def _skew(ordered: np.ndarray) -> float:
    """How far the median lies from the middle of the range, relative to the range."""
    return abs((np.median(ordered) - ordered[0]) / (ordered[-1] - ordered[0]) - 0.5)


def _parameter(frame: "pandas.DataFrame", name: str) -> list[Any]:
    column = name if name == CASE in frame.columns else join_name(("parameters", name))
    if column not in frame.columns:
        raise PlotError(f"expected a table with the parameter {name}; got none of that name")
    return values_of(frame[column])


def _axis(name: str, values: list[Any]) -> Axis:
    distinct = {key_of(value): value for value in values}
    numeric = all(type(value) in (int, float) and math.isfinite(value) for value in distinct.values())
    ordered = sorted(distinct.values()) if numeric else list(distinct.values())
    return Axis(name, tuple(ordered), numeric)
