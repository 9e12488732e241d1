"""Columns of a table: their dotted names, and what their values are in pandas, in SQL and as text."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from gradtricks.lab.recording import encode
from gradtricks.lab.storage.dotted import Path

if TYPE_CHECKING:
    import pandas

_INT64, _HUGEINT = range(-(2**63), 2**63), range(-(2**127), 2**127)
_EXACT_AS_FLOAT = range(-(2**53), 2**53 + 1)
_SQL_TYPES = {
    "bool": "BOOLEAN",
    "int": "BIGINT",
    "big": "HUGEINT",
    "float": "DOUBLE",
    "text": "VARCHAR",
    "time": "TIMESTAMPTZ",
    "local time": "TIMESTAMP",
}


def flatten(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    """Take nested dicts apart; lists stay whole, and an empty dict has no columns.

    Args:
        value: What was recorded.
        path: Where it stands.

    Yields:
        A path and the value there.
    """
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from flatten(item, (*path, key))
    else:
        yield path, value


def kind_of(values: Iterable[Any]) -> str:
    """Say what the values of a column have in common.

    Args:
        values: Built-in types; None is missing.

    Returns:
        ``bool``, ``int``, ``big`` (beyond 64 bits), ``float`` (whole numbers among them only where a float
        keeps them exactly), ``text`` (also where all are missing), ``time`` (with a zone), ``local time``
        (without one), ``list``, ``mixed``.
    """
    there = [value for value in values if value is not None]
    types = {type(value) for value in there}
    if types <= {str}:
        return "text"
    if types == {int}:
        return "int" if all(value in _INT64 for value in there) else "big"
    if types == {float} or (
        types == {int, float} and all(value in _EXACT_AS_FLOAT for value in there if isinstance(value, int))
    ):
        return "float"
    if types == {datetime}:
        zones = [value.tzinfo is not None for value in there]
        return "time" if all(zones) else "mixed" if any(zones) else "local time"
    single = {bool: "bool", list: "list"}
    return single.get(next(iter(types)), "mixed") if len(types) == 1 else "mixed"


def as_series(values: Sequence[Any]) -> "pandas.Series":
    """Make a column of a DataFrame.

    Args:
        values: Built-in types; None is missing.

    Returns:
        A series that tells a recorded NaN from a missing number, and keeps every integer.
    """
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
    """Undo `as_series`.

    Args:
        series: Of any kind that pandas has.

    Returns:
        Built-in types; None is missing.
    """
    if series.dtype == "float64":  # a column of its own kind holds missing numbers, so NaN is NaN here
        return series.tolist()
    if series.dtype == object:
        return [None if value is None else _built_in(value) for value in series]
    values = series.dt.to_pydatetime() if series.dtype.kind == "M" else series.tolist()
    return [None if gone else value for value, gone in zip(values, series.isna(), strict=True)]


def sql_type(values: Sequence[Any]) -> str:
    """Name the type that a column has in SQL.

    Args:
        values: Built-in types; None is missing.

    Returns:
        A type, TIMESTAMPTZ where it has to be turned to UTC; a list of it where all are lists of one depth
        and kind; JSON for other lists, those of times too, and for dicts; VARCHAR for what is mixed.
    """
    kind = kind_of(values)
    if kind == "big" and not all(value is None or value in _HUGEINT for value in values):
        return "VARCHAR"
    if kind == "list":
        return _list_type(values)
    if kind == "mixed":
        return "JSON" if any(isinstance(value, list | dict) for value in values) else "VARCHAR"
    return _SQL_TYPES[kind]


def as_text(value: Any, *, for_json: bool = False) -> str | None:
    """Write one value so that it can be read back exactly.

    Args:
        value: Of a built-in type; what records can't keep, such as a UUID of SQL's, is as `str` writes it.
        for_json: Whether it is for a column of JSON, where a text has its quotation marks.

    Returns:
        The text; None for None.
    """
    if value is None:
        return None
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False) if for_json else value
    if isinstance(value, float):
        return repr(value) if not for_json or math.isfinite(value) else json.dumps(encode(value, ""))
    if isinstance(value, date) and not for_json:
        return value.isoformat()
    try:
        encoded = encode(value, "")
    except TypeError:
        encoded = encode(_recordable(value), "")
        if isinstance(encoded, str) and not for_json:
            return encoded
    return json.dumps(encoded, ensure_ascii=False)


def list_text(value: Any) -> str | None:
    """Write a list for a column of lists in SQL.

    Args:
        value: A list of one depth, or None.

    Returns:
        JSON in which NaN and the infinities are texts; None for None.
    """
    return None if value is None else json.dumps(_json_numbers(value), ensure_ascii=False)


def _recordable(value: Any) -> Any:
    """Replace what SQL gives and a record can't keep, in lists and dicts too; the rest stays as it is."""
    if isinstance(value, list | tuple):
        return [_recordable(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _recordable(item) for key, item in value.items()}
    if isinstance(value, Decimal):
        return float(value)
    try:
        encode(value, "")
    except TypeError:
        return str(value)
    return value


def _json_numbers(value: Any) -> Any:
    if isinstance(value, list):
        return [_json_numbers(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _list_type(values: Iterable[Any]) -> str:
    brackets = ""
    level = [value for value in values if value is not None]
    while level and all(isinstance(value, list) for value in level):
        brackets += "[]"
        level = [item for value in level for item in value if item is not None]
    kind = kind_of(level)
    exact = kind in ("bool", "int", "float", "text")
    return _SQL_TYPES[kind] + brackets if exact else "JSON"


def _built_in(value: Any) -> Any:
    if isinstance(value, Decimal):
        return float(value)
    return value.tolist() if hasattr(value, "tolist") else value
