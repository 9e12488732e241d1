"""Results of a sweep by configuration: its runs, their mean and its interval."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from gradtricks.lab.notebooks.schema import ParameterError
from gradtricks.lab.results.columns import kind_of, split_name
from gradtricks.lab.results.statistics import bootstrap_interval, interquartile_mean
from gradtricks.lab.results.tables import one_line, values_of
from gradtricks.lab.storage.manifests import CASE

if TYPE_CHECKING:
    import pandas

_GROUPS = ("results", "varying")
_LISTED = 30
_UNITS = ("s", "ms", "mib")
_CHOSEN = 4  # results of a sweep that doesn't say which


class PlotError(ParameterError):
    """A result that was asked for can't be shown; the message says which can."""


class Word(str):
    """A word that stands on a page for a value."""

    __slots__ = ()


@dataclass(frozen=True)
class Axis:
    """A parameter that was varied: numbers by size, anything else in the order of the runs."""

    name: str
    values: tuple[Any, ...]
    numeric: bool  # all values are finite numbers

    @cached_property
    def ranks(self) -> dict[str, int]:
        """Number the values, by their `key_of`."""
        return {key_of(value): rank for rank, value in enumerate(self.values)}

    @cached_property
    def _spelled(self) -> Counter[str]:
        return Counter(map(spell, self.values))

    def spell(self, value: Any) -> str:
        """Write one of the values as `spell` does, but in full where another one is written alike."""
        short = spell(value)
        return text_of(value) if self._spelled[short] > 1 else short


@dataclass(frozen=True)
class Group:
    """The runs of one configuration and what they recorded under one name; ``values`` are of the axes."""

    values: tuple[Any, ...]
    data: np.ndarray  # finite numbers [n]; of lists of them [n, length], as far as all go
    failed: int
    missing: int  # finished runs that didn't record it
    non_finite: int  # runs that recorded NaN, infinity, or an empty list
    cut: int = 0  # runs whose list goes on for longer

    @property
    def n(self) -> int:
        """Count the runs that are part of the mean."""
        return len(self.data)

    @cached_property
    def mean(self) -> Any:
        """Take the interquartile mean, of lists at each place; NaN without a run."""
        return interquartile_mean(self.data)

    @cached_property
    def interval(self) -> tuple[Any, Any]:
        """Take the mean's bootstrap interval; NaN where there are too few runs."""
        return bootstrap_interval(self.data)

    @property
    def extremes(self) -> tuple[float, float]:
        """Return the lowest and the highest number; NaN without a run."""
        return min(self.data, default=math.nan), max(self.data, default=math.nan)

    def numbers(self) -> dict[str, Any]:
        """Name all numbers, as pages quote them."""
        numbers = {"mean": self.mean, "low": self.interval[0], "high": self.interval[1], "n": self.n}
        if self.data.ndim == 1:
            numbers |= dict(zip(("lowest", "highest"), self.extremes))
        return numbers | {"failed": self.failed, "missing": self.missing, "non_finite": self.non_finite}


@dataclass(frozen=True)
class ResultSummary:
    """One result of a sweep, by configuration."""

    column: str  # of the table, such as ``results.growth.end``
    axes: Sequence[Axis]  # what was varied besides the seed
    parts: Sequence[Group]
    curves: bool = False  # lists of numbers
    words: str = ""  # that stand for its name
    counted: str = "place in the list, counted from 1"  # by the axis of curves

    @property
    def label(self) -> str:
        """Shorten the name for people, such as ``growth.end``."""
        group, *rest = split_name(self.column)
        return ".".join(rest) or group

    @property
    def title(self) -> str:
        """Write the name in words, such as ``Growth, end``, with its unit, ``Training (s)``."""
        if self.words:
            return self.words
        group, *rest = split_name(self.column)
        said = ", ".join(part.replace("_", " ") for part in rest or [group])
        name, _, unit = said.rpartition(" ")
        if unit in _UNITS and name and not name.endswith(" per"):
            said = f"{name} ({unit})"
        return said[:1].upper() + said[1:]


def summarize_results(
    frame: "pandas.DataFrame", varied: Iterable[str], shown: Sequence[str]
) -> list[ResultSummary]:
    """Sort the runs of a sweep, a table, by configuration.

    ``shown`` names the results, as ``results.loss`` or ``loss``; without names, the first few that are
    numbers or lists of numbers are taken. A PlotError says that there are no runs, or that a result isn't
    there or isn't made of numbers.
    """
    if frame.empty:
        raise PlotError(
            "expected runs to show; got none: none has been run, or code or libraries have changed since; "
            "remedy: run the sweep, what is finished and unchanged isn't done again"
        )
    wanted = shown or _choose(frame)
    if not wanted:
        raise PlotError("expected a number, or a list of numbers, among the results; got none")
    axes, summaries = axes_of(frame, varied), []
    for column in (column_of(frame, name) for name in wanted):
        curves = _is_curve(frame, column)  # refuses what isn't made of numbers
        summaries.append(ResultSummary(column, axes, groups_of(frame, axes, column, curves), curves))
    return summaries


def axes_of(frame: "pandas.DataFrame", varied: Iterable[str]) -> list[Axis]:
    """Describe what was varied besides the seed."""
    cases = values_of(frame[CASE]) if CASE in frame.columns else []
    values_by_name = varying({name: _parameter(frame, name) for name in varied if name != "seed"}, cases)
    axes = []
    for name, values in values_by_name.items():
        distinct = {key_of(value): value for value in values}
        numeric = all(type(v) in (int, float) and math.isfinite(_floats(v)) for v in distinct.values())
        ordered = sorted(distinct.values()) if numeric else distinct.values()
        axes.append(Axis(name, tuple(ordered), numeric))
    return axes


def varying(values: Mapping[str, Sequence[Any]], cases: Sequence[str]) -> dict[str, Sequence[Any]]:
    """Return the values of what varies, by run; names of configurations stand for all that these set."""
    if not any(cases):
        return dict(values)
    configurations = len({*cases})
    within = {n: v for n, v in values.items() if len({*zip(cases, map(key_of, v))}) > configurations}
    return {CASE: cases} | within


def groups_of(frame: "pandas.DataFrame", axes: Sequence[Axis], column: str, curves: bool) -> list[Group]:
    """Sort what runs recorded by configuration, in the order of the axes."""
    configurations = list(zip(*(_parameter(frame, axis.name) for axis in axes))) or [()] * len(frame)
    places: dict[tuple[str, ...], list[int]] = {}
    for place, values in enumerate(configurations):
        places.setdefault(tuple(map(key_of, values)), []).append(place)
    ordered = sorted(places, key=lambda keys: [axis.ranks[key] for axis, key in zip(axes, keys)])
    results, status = values_of(frame[column]), values_of(frame["status"])

    def group(rows: list[int]) -> Group:
        finished = [row for row in rows if status[row] == "finished"]
        there = [_floats(results[row]) for row in finished if results[row] is not None]
        whole = [each for each in there if np.size(each) and np.isfinite(each).all()]
        length = min(map(len, whole), default=0) if curves else 0
        kept = [each[:length] for each in whole] if curves else whole
        return Group(
            tuple(configurations[rows[0]]),
            np.reshape(kept, (len(kept), length) if curves else -1),
            failed=len(rows) - len(finished),
            missing=len(finished) - len(there),
            non_finite=len(there) - len(whole),
            cut=sum(len(each) > length for each in whole) if curves else 0,
        )

    return [group(places[keys]) for keys in ordered]


def in_words(result: ResultSummary, labels: Mapping[str, str]) -> ResultSummary:
    """Put words in place of names and values: ``{"rate": "learning rate", "rate=0.1": "ours"}``."""

    def worded(axis: Axis, value: Any) -> Any:
        word = labels.get(f"{axis.name}={text_of(value)}", value if axis.name == CASE else None)
        return value if word is None else Word(word)

    axes = []
    for axis in result.axes:
        values = tuple(worded(axis, value) for value in axis.values)
        axes.append(Axis(labels.get(axis.name, axis.name), values, axis.numeric and values == axis.values))
    parts = [replace(p, values=tuple(map(worded, result.axes, p.values))) for p in result.parts]
    name = ".".join(split_name(result.column))
    counted = labels.get(f"{name}=position", result.counted)
    return replace(result, axes=axes, parts=parts, words=labels.get(name, ""), counted=counted)


def column_of(frame: "pandas.DataFrame", name: str) -> str:
    """Find the column of a result, such as ``results.loss`` or ``loss``; a PlotError lists what there is."""
    plain = {".".join(split_name(column)): column for column in map(str, frame.columns)}
    for wanted in (name, *(f"{group}.{name}" for group in _GROUPS)):
        if wanted in plain:
            return plain[wanted]
    there = [column for column in plain if column.partition(".")[0] in _GROUPS]
    parts = [column for column in there if column.startswith((f"{name}.", f"results.{name}."))]
    listed = (parts or there)[:_LISTED] or ["none"]
    more = ", …" if len(parts or there) > _LISTED else ""
    raise PlotError(f"expected a recorded result; got {name!r}; there are: {', '.join(listed)}{more}")


def text_of(value: Any) -> str:
    """Write a parameter's value in one line, with all digits."""
    if isinstance(value, float) and float(f"{value:g}") == value:
        return f"{value:g}"
    return one_line(str(value))


def spell(value: Any, longest: int = 24) -> str:
    """Write a parameter's value for people: at most six digits, and an ellipsis where a text is too long."""
    text = text_of(value)
    if isinstance(value, float) and len(text) > len(f"{value:g}"):
        text = f"{value:.4g}"
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def key_of(value: Any) -> str:
    """Tell values apart as Python does not: 1, 1.0 and True are three."""
    return f"{type(value).__name__} {value!r}"


def _choose(frame: "pandas.DataFrame") -> list[str]:
    """Choose what to show of a sweep that doesn't say it: numbers first, then curves."""
    kinds = {}
    for name in (name for name in map(str, frame.columns) if name.startswith("results.")):
        with suppress(PlotError):
            kind = "curve" if _is_curve(frame, name) else kind_of(values_of(frame[name]))
            kinds[".".join(split_name(name))] = kind
    return [name for kind in ("DOUBLE", "BIGINT", "curve") for name in kinds if kinds[name] == kind][:_CHOSEN]


def _is_curve(frame: "pandas.DataFrame", column: str) -> bool:
    values = [value for value in values_of(frame[column]) if value is not None]
    items = [item for value in values for item in (value if isinstance(value, list) else [value])]
    odd = [item for item in items if not isinstance(item, bool | int | float)]
    kinds = {isinstance(value, list) for value in values}
    if odd or len(kinds) > 1:
        got = f"{odd[0]!r:.60}" if odd else "both"
        raise PlotError(f"{column} must be numbers, or lists of numbers, to be shown; got {got}")
    return kinds == {True}


def _floats(number: Any) -> Any:
    """Make floats of a number or of a list of numbers; those beyond all floats are infinite."""
    if isinstance(number, list):
        return [*map(_floats, number)]
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def _parameter(frame: "pandas.DataFrame", name: str) -> list[Any]:
    column = name if name == CASE in frame.columns else f"parameters.{name}"
    if column not in frame.columns:
        raise PlotError(f"expected a table with the parameter {name}; got none of that name")
    return values_of(frame[column])
