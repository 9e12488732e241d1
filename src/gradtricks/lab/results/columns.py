"""Nested results as columns with dotted names, their types in SQL, and a Parquet file of them."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

Column = tuple[str, str, Sequence[Any]]  # its name, its type in SQL, and its values as that takes them

_PART = re.compile(r'"(?:[^"]|"")*"|[^.]+')
_TYPES = {bool: "BOOLEAN", int: "BIGINT", float: "DOUBLE", str: "VARCHAR", datetime: "TIMESTAMP"}
_INT64, _EXACT_AS_FLOAT = range(-(2**63), 2**63), range(-(2**53), 2**53 + 1)


def split_name(name: str) -> tuple[str, ...]:
    """Take the name of a column apart, into a group and the keys within it: see `flattened`."""
    parts = _PART.findall(name)
    return tuple(part[1:-1].replace('""', '"') if part[0] == '"' else part for part in parts)


def flattened(value: Mapping[str, Any], name: str = "") -> Iterator[tuple[str, Any]]:
    """Take nested dicts apart, into columns' names and values; lists stay whole.

    A name is a group and the keys within it, joined by dots. A key that holds a dot or a quotation mark
    itself stands in quotation marks, as in SQL: ``results.share."0.1"``.
    """
    for key, item in value.items():
        inner = _joined(name, key)
        if isinstance(item, dict):
            yield from flattened(item, inner)
        else:
            yield inner, item


@cache
def _joined(name: str, key: str) -> str:
    part = key if key and not set('."') & set(key) else _quoted(key)
    return f"{name}.{part}" if name else part


def kind_of(values: Iterable[Any]) -> str:
    """Name the type in SQL that values have in common, or lists of one depth; where there is none, JSON.

    None is missing, and where all are, that is text. Integers are of 64 bits, beside floats such as a float
    keeps exactly; times have a zone.
    """
    brackets, there = "", [value for value in values if value is not None]
    while there and all(type(value) is list for value in there):
        brackets += "[]"
        there = [item for value in there for item in value if item is not None]
    types = {type(value) for value in there}
    fit = types == {int, float} and all(type(v) is float or v in _EXACT_AS_FLOAT for v in there)
    types = {float} if fit else types or {str}
    kind = types.pop() if len(types) == 1 else None
    odd = kind is int and not all(value in _INT64 for value in there)
    if kind is datetime:
        odd = bool(brackets) or not all(value.tzinfo for value in there)
    return "JSON" if odd or kind not in _TYPES else _TYPES[kind] + brackets


def write_columns(columns: Sequence[Column], path: Path) -> None:
    """Write columns as Parquet."""
    import duckdb

    target = str(path).replace("'", "''")
    selected = ", ".join(
        f"unnest(CAST(${number} AS {kind}[])) AS {_quoted(name)}"
        for number, (name, kind, _) in enumerate(columns, start=1)
    )
    with duckdb.connect(config={"threads": 1}) as connection:
        connection.execute(
            f"COPY (SELECT {selected}) TO '{target}' (FORMAT parquet, COMPRESSION zstd)",
            [values for *_, values in columns],
        )


def _quoted(name: str) -> str:
    """Write a name for SQL, in quotation marks."""
    return '"' + name.replace('"', '""') + '"'
