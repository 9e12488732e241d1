"""A table in DuckDB: what SQL sees of it, and Parquet."""

import re
from collections.abc import Iterator, Sequence
from datetime import UTC
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from gradtricks.lab.notebooks.schema import ParameterError
from gradtricks.lab.results.tables import as_json, as_series, as_text, values_of
from gradtricks.lab.storage.rows import Column, connect, kind_of, quote, selection, split_name, write_columns

if TYPE_CHECKING:
    import pandas

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LISTED = 80  # columns in a message
_ZONED = "TIMESTAMP WITH TIME ZONE"


def ask(frame: "pandas.DataFrame", sql: str) -> "pandas.DataFrame":
    """Ask a table, the view ``runs``, with SQL. It works on a copy in memory and reaches no file.

    The columns ``parameters``, ``results``, ``varying`` and ``provenance`` are structs: ``SELECT
    parameters.seed, results.loss FROM runs``. A name of which some runs record a value and others parts has
    the value in its part ``value``. Of names that differ in case only, which SQL can't tell apart, the later
    one ends in an underscore. Values of different kinds are text, lists of such are JSON.

    A ParameterError says why DuckDB refuses, and which columns there are. Ctrl-C is a KeyboardInterrupt.
    """
    import duckdb
    import pandas as pd

    with connect() as connection:
        columns = _columns(frame)
        loaded = [(f"c{place}", kind, values) for place, (_, kind, values) in enumerate(columns)]
        connection.execute(f"CREATE TABLE loaded AS {selection(loaded)}", [values for *_, values in loaded])
        nested = _nest([(split_name(name), f"c{place}") for place, (name, _, _) in enumerate(columns)])
        selected = ", ".join(f"{_expression(part)} AS {quote(name)}" for name, part in nested.items())
        connection.execute(f"CREATE TABLE runs AS SELECT {selected} FROM loaded; DROP TABLE loaded")  # noqa: S608  # all is quoted
        # From here on nothing reaches a file or the network, and nothing can change that.
        connection.execute("SET enable_external_access = false; SET lock_configuration = true")
        try:
            if not connection.extract_statements(sql):
                raise ParameterError(
                    f"expected a query; got {sql!r}; remedy: gradtricks table --help shows one"
                )
            answer = connection.execute(sql)
            described = answer.description or ()
            if zoned := [str(name) for name, kind, *_ in described if _ZONED in str(kind)]:
                raise ParameterError(  # DuckDB would want pytz
                    f"expected times without a zone; got {_ZONED} in {', '.join(zoned)}; "
                    "remedy: cast them, such as now()::TIMESTAMP, which is in UTC"
                )
            rows, found = answer.fetchall(), [name for name, *_ in described]
        except duckdb.Error as error:
            names = list(_names(nested))
            more = [f"and {len(names) - _LISTED} more"] if len(names) > _LISTED else []
            listed = "\n  ".join(names[:_LISTED] + more)
            raise ParameterError(f"{error}\nThe columns of runs are:\n  {listed}") from None
        except RuntimeError as error:
            if "interrupted" not in str(error):
                raise
            raise KeyboardInterrupt from error  # for which DuckDB has a word of its own
    answers = [
        [float(row[place]) if isinstance(row[place], Decimal) else row[place] for row in rows]
        for place in range(len(found))
    ]
    asked = pd.concat([as_series(values) for values in answers], axis=1) if answers else pd.DataFrame()
    asked.columns = pd.Index(found)
    return asked


def as_parquet(frame: "pandas.DataFrame") -> bytes:
    """Write a table or an answer as Parquet; a ParameterError says if two columns have one name."""
    with TemporaryDirectory(prefix="gradtricks-") as folder:
        path = Path(folder, "table")
        write_columns(_columns(frame), path)
        return path.read_bytes()


def _columns(frame: "pandas.DataFrame") -> list[Column]:
    twice = sorted({str(name) for name in frame.columns[frame.columns.duplicated()]})
    if twice:
        raise ParameterError(
            f"expected columns of different names; got several called {', '.join(twice)}; "
            "remedy: rename them in the query with AS"
        )
    # As lists: of a frame's own columns DuckDB would take NaN for NULL.
    return [(str(name), *_as_sql(values_of(column))) for name, column in frame.items()]


def _as_sql(values: Sequence[Any]) -> tuple[str, list[Any]]:
    """Choose the type that a column has in SQL, and return it and the values as it takes them.

    Times are in UTC. What has no type of its own is JSON where there are lists or dicts, else text.
    """
    kind = kind_of(values)
    if kind == "TIMESTAMP":
        return kind, [value and value.astimezone(UTC).replace(tzinfo=None) for value in values]
    if kind != "JSON":
        return kind, list(values)
    if any(isinstance(value, list | dict) for value in values):
        return "JSON", [None if value is None else as_json(value) for value in values]
    return "VARCHAR", [*map(as_text, values)]


def _nest(columns: Sequence[tuple[tuple[str, ...], str]]) -> dict[str, Any]:
    """Put columns into each other by their names; SQL takes none that is empty or differs in case only."""
    groups: dict[str, list[tuple[tuple[str, ...], str]]] = {}
    for (name, *rest), column in columns:
        groups.setdefault(name, []).append((tuple(rest), column))
    nested: dict[str, Any] = {}
    for group, inside in groups.items():
        name = group or "_"
        while name.lower() in map(str.lower, nested):
            name += "_"
        parts = [(rest, column) for rest, column in inside if rest]
        own = [column for rest, column in inside if not rest]
        # Some runs record a value under this name, and others parts.
        value = "value_" if any(rest[0].lower() == "value" for rest, _ in parts) else "value"
        nested[name] = _nest([*parts, *(((value,), column) for column in own)]) if parts else own[0]
    return nested


def _expression(part: str | dict[str, Any]) -> str:
    if isinstance(part, str):
        return part
    inner = ", ".join(f"{quote(name)} := {_expression(item)}" for name, item in part.items())
    return f"struct_pack({inner})"


def _names(nested: dict[str, Any]) -> Iterator[str]:
    for name, part in nested.items():
        written = name if _PLAIN.fullmatch(name) else quote(name)
        yield from [written] if isinstance(part, str) else (f"{written}.{rest}" for rest in _names(part))
