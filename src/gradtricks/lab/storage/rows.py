"""Nested records as columns with dotted names, and as the rows of a Parquet file that keeps every value."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from gradtricks.lab.encoding import decode, encode

Column = tuple[str, str, Sequence[Any]]  # its name, its type in SQL, and its values as that takes them

# Every run has all parameters, so that NULL is None there; elsewhere it means that nothing was recorded.
_COMPLETE = "parameters"
_PART = re.compile(r'"(?:[^"]|"")*"|[^.]+')
_MISSING = object()
_TYPES = {bool: "BOOLEAN", int: "BIGINT", float: "DOUBLE", str: "VARCHAR", datetime: "TIMESTAMP"}
_INT64, _EXACT_AS_FLOAT = range(-(2**63), 2**63), range(-(2**53), 2**53 + 1)


def split_name(name: str) -> tuple[str, ...]:
    """Take the name of a column apart, into a group and the keys within it: see `flattened`."""
    parts = _PART.findall(name)
    return tuple(part[1:-1].replace('""', '"') if part[0] == '"' else part for part in parts)


def quote(name: str) -> str:
    """Write a name for SQL, in quotation marks."""
    return '"' + name.replace('"', '""') + '"'


def flattened(
    value: Mapping[str, Any], name: str = "", whole: Callable[[Any, str], object] = lambda value, name: False
) -> Iterator[tuple[str, Any]]:
    """Take nested dicts apart, into columns' names and values, but lists and what is to stay ``whole``.

    A name is a group and the keys within it, joined by dots. A key that holds a dot or a quotation mark
    itself stands in quotation marks, as in SQL: ``results.share."0.1"``.
    """
    for key, item in value.items():
        inner = _joined(name, key)
        if isinstance(item, dict) and not whole(item, inner):
            yield from flattened(item, inner, whole)
        else:
            yield inner, item


@cache
def _joined(name: str, key: str) -> str:
    part = key if key and not set('."') & set(key) else quote(key)
    return f"{name}.{part}" if name else part


def kind_of(values: Iterable[Any], *, exact: bool = False) -> str:
    """Name the type in SQL that values have in common, or lists of one depth; where there is none, JSON.

    None is missing, and where all are, that is text. Integers are of 64 bits, beside floats such as a float
    keeps exactly; times have a zone. An ``exact`` type keeps every value as it is: it makes no float of an
    integer, takes no time out of its zone, and says nothing of nothing.
    """
    brackets, there = "", [value for value in values if value is not None]
    while there and all(type(value) is list for value in there):
        brackets += "[]"
        there = [item for value in there for item in value if item is not None]
    types = {type(value) for value in there}
    if not exact:
        fit = types == {int, float} and all(type(v) is float or v in _EXACT_AS_FLOAT for v in there)
        types = {float} if fit else types or {str}
    kind = types.pop() if len(types) == 1 else None
    odd = kind is int and not all(value in _INT64 for value in there)
    if kind is datetime:
        odd = exact or bool(brackets) or not all(value.tzinfo for value in there)
    return "JSON" if odd or kind not in _TYPES else _TYPES[kind] + brackets


def write_rows(records: Sequence[dict[str, Any]], path: Path) -> None:
    """Write records as Parquet: a row each, nested names joined by dots.

    Numbers, texts and lists of them have types of their own. What has none, or would be another value when it
    is read again, is JSON, as `gradtricks.lab.encoding.encode` writes it. Equal records make equal files.
    """
    columns = []
    for name, values in _columns(records).items():
        kind = _type_of(name, values)
        columns.append((name, kind, [_as_sql(value, kind) for value in values]))
    write_columns(columns, path)


def write_columns(columns: Sequence[Column], path: Path) -> None:
    """Write columns as Parquet."""
    import duckdb

    target = str(path).replace("'", "''")
    selected = ", ".join(
        f"unnest(CAST(${number} AS {kind}[])) AS {quote(name)}"
        for number, (name, kind, _) in enumerate(columns, start=1)
    )
    with duckdb.connect(config={"threads": 1}) as connection:
        connection.execute(
            f"COPY (SELECT {selected}) TO '{target}' (FORMAT parquet, COMPRESSION zstd)",
            [values for *_, values in columns],
        )


def read_rows(paths: Iterable[Path]) -> list[list[dict[str, Any]]]:
    """Read what `write_rows` wrote, the records of each file; a ValueError says that one is no such file."""
    import duckdb

    found = []
    with duckdb.connect(
        config={"threads": 1}
    ) as connection:  # one for all, since it takes longer than to read a file
        for path in paths:
            try:
                answer = connection.execute("SELECT * FROM read_parquet($1)", [str(path)])
                columns = [(split_name(name), str(kind)) for name, kind, *_ in answer.description or ()]
                found.append([_record(columns, row) for row in answer.fetchall()])
            except (duckdb.Error, ValueError, TypeError, AttributeError) as error:
                raise ValueError(f"expected runs in {path}; got {error}") from error
    return found


def _columns(records: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    together: set[str] = set()

    def whole(found: Mapping[str, Any], name: str) -> bool:
        """Say whether a dict is empty, stands for a value, such as NaN, or is to be one column."""
        return name in together or not found or (len(found) == 1 and next(iter(found)).startswith("$"))

    names = {name for record in records for name, _ in flattened(record, whole=whole)}
    spelled = Counter(map(str.lower, names))
    # SQL can't tell names apart that differ in case only: their whole group becomes one column.
    together |= {_joined("", split_name(name)[0]) for name in names if spelled[name.lower()] > 1}
    rows = [dict(flattened(record, whole=whole)) for record in records]
    ordered = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name, _MISSING) for row in rows] for name in ordered}


def _type_of(name: str, values: Sequence[Any]) -> str:
    """Name the type that keeps all values of a column; JSON keeps any."""
    there = [decode(value) for value in values if value is not _MISSING]
    given = [value for value in there if value is not None]
    complete = split_name(name)[0] == _COMPLETE
    unclear = len(there) < len(values) if complete else len(given) < len(there)
    return "JSON" if unclear else kind_of(given, exact=True)


def _as_sql(value: Any, kind: str) -> Any:
    if value is _MISSING:
        return None
    return json.dumps(value, ensure_ascii=False) if kind == "JSON" else decode(value)


def _record(columns: Iterable[tuple[tuple[str, ...], str]], row: Iterable[Any]) -> dict[str, Any]:
    record: dict[str, Any] = {}
    for (path, kind), value in zip(columns, row, strict=True):
        if value is None and (kind == "JSON" or path[0] != _COMPLETE):
            continue
        place = record
        for part in path[:-1]:
            place = place.setdefault(part, {})
        place[path[-1]] = json.loads(value) if kind == "JSON" else encode(value, path[-1])
    return record
