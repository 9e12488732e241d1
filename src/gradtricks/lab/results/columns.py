"""Columns of a table: what their values are in pandas, in SQL and as text."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from gradtricks.lab.encoding import encode
from gradtricks.lab.storage.rows import Dotted as Path

if TYPE_CHECKING:
    import pandas

_INT64, _HUGEINT = range(-(2**63), 2**63), range(-(2**127), 2**127)
_EXACT_AS_FLOAT = range(-(2**53), 2**53 + 1)
_SQL = {"bool": "BOOLEAN", "int": "BIGINT", "float": "DOUBLE", "text": "VARCHAR"}


def flatten(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    """Take nested dicts apart, into paths and values; lists stay whole, and an empty dict has no columns."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from flatten(item, (*path, key))
    else:
        yield path, value


def kind_of(values: Iterable[Any]) -> str:
    """Say what the values of a column have in common; None is missing.

    It is ``bool``, ``int``, ``big`` (beyond 64 bits), ``float`` (whole numbers among them only where a float
    keeps them exactly), ``text`` (also where all are missing), ``time`` (with a zone), ``local time``
    (without one), ``list`` or ``mixed``.
    """
    there = [value for value in values if value is not None]
    types = {type(value) for value in there}
    if types <= {str}:
        return "text"
    if types == {int}:
        return "int" if all(value in _INT64 for value in there) else "big"
    if float in types and types <= {int, float}:
        return "float" if all(type(v) is float or v in _EXACT_AS_FLOAT for v in there) else "mixed"
    if types == {datetime}:
        zones = [value.tzinfo is not None for value in there]
        return "time" if all(zones) else "mixed" if any(zones) else "local time"
    return "bool" if types == {bool} else "list" if types == {list} else "mixed"


def as_series(values: Sequence[Any]) -> "pandas.Series":
    """Make a column of a DataFrame that tells a recorded NaN from a missing number and keeps all integers."""
    import numpy as np
    import pandas as pd

    kind = kind_of(values)
    mask = np.array([value is None for value in values], dtype=bool)
    numbers = {
        "float": (np.float64, pd.arrays.FloatingArray),
        "int": (np.int64, pd.arrays.IntegerArray),
        "bool": (np.bool_, pd.arrays.BooleanArray),
    }
    if kind in numbers:
        dtype, masked = numbers[kind]
        data: Any = np.array([0 if value is None else value for value in values], dtype=dtype)
        return pd.Series(masked(data, mask) if mask.any() else data)
    if kind == "text":
        return pd.Series(values, dtype="str")
    if kind in ("time", "local time"):
        return pd.Series(pd.to_datetime(list(values), utc=kind == "time"))
    objects = np.empty(len(values), dtype=object)
    objects[:] = values
    return pd.Series(objects, dtype=object)


def values_of(series: "pandas.Series") -> list[Any]:
    """Undo `as_series`, for a series of any kind: built-in types, None where one is missing."""
    if series.dtype == "float64":  # a column of its own kind holds missing numbers, so NaN is NaN here
        return series.tolist()
    if series.dtype == object:
        return [value.tolist() if hasattr(value, "tolist") else value for value in series]
    values = series.dt.to_pydatetime() if series.dtype.kind == "M" else series.tolist()
    return [None if gone else value for value, gone in zip(values, series.isna(), strict=True)]


def as_sql(values: Sequence[Any]) -> tuple[str, list[Any]]:
    """Choose the type that a column has in SQL, and return it and the values as it takes them.

    Times are in UTC; lists of one depth and kind are lists, other ones and what is beside them JSON; what
    else is mixed is text.
    """
    brackets, inner = "", [value for value in values if value is not None]
    while inner and all(isinstance(value, list) for value in inner):
        brackets += "[]"
        inner = [item for value in inner for item in value if item is not None]
    kind = kind_of(inner)
    if kind in _SQL:
        return _SQL[kind] + brackets, [*map(_as_float, values)] if kind == "float" else list(values)
    if kind in ("time", "local time") and not brackets:
        return "TIMESTAMP", [value if value is None or kind != "time" else _in_utc(value) for value in values]
    if kind == "big" and not brackets and all(value in _HUGEINT for value in inner):
        return "HUGEINT", list(values)
    if any(isinstance(value, list | dict) for value in values):
        return "JSON", [None if value is None else _as_json(value) for value in values]
    return "VARCHAR", [*map(as_text, values)]


def as_text(value: Any) -> str | None:
    """Write a value so that it can be read back exactly; what only SQL has, such as a UUID, as `str` does."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, date):
        return value.isoformat()
    return _as_json(value) if isinstance(value, bool | int | list | tuple | dict) else str(value)


def _as_json(value: Any) -> str:
    try:
        return json.dumps(encode(value, ""), ensure_ascii=False)
    except TypeError:
        named = {str(name): item for name, item in value.items()} if isinstance(value, dict) else value
        return json.dumps(named, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> Any:
    return float(value) if isinstance(value, Decimal) else str(value)


def _in_utc(value: datetime) -> datetime:
    return value.astimezone(UTC).replace(tzinfo=None)


def _as_float(value: Any) -> Any:
    if isinstance(value, list):
        return [_as_float(item) for item in value]
    return None if value is None else float(value)
