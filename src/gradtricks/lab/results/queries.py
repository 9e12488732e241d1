"""A table in DuckDB: what SQL sees of it, and Parquet."""

import re
from collections.abc import Iterator
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradtricks.lab.results import columns
from gradtricks.lab.storage.dotted import quote, split_name

if TYPE_CHECKING:
    import duckdb
    import pandas

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SHOWN = 80  # columns in a message

# Parts by name; the expression of a column stands at its place under None.
_Tree = dict[str | None, Any]


class QueryError(ValueError):
    """A query that DuckDB refuses; the message says why, and which columns there are."""


def ask(frame: "pandas.DataFrame", sql: str) -> "pandas.DataFrame":
    """Ask a table, the view ``runs``, with SQL.

    Args:
        frame: What `tables.table` returned.
        sql: For DuckDB.

    Returns:
        What was asked for.

    Raises:
        QueryError: DuckDB refuses, or there is no query.
    """
    import duckdb

    with closing(_connect()) as connection:
        tree = _load(connection, frame)
        # From here on nothing reaches a file or the network, and nothing can change that.
        connection.execute("SET enable_external_access = false; SET lock_configuration = true")
        try:
            if not connection.extract_statements(sql):
                raise QueryError(f"expected a query; got {sql!r}; remedy: gradtricks table --help shows one")
            answer = connection.execute(sql)
            rows, names = answer.fetchall(), [column[0] for column in answer.description or ()]
        except duckdb.Error as error:
            raise QueryError(f"{error}\nThe columns of runs are:\n{_listed(tree)}") from None
    return _frame(rows, names)


def write_parquet(frame: "pandas.DataFrame", path: Path) -> None:
    """Write a table as Parquet, under the same names of columns.

    Args:
        frame: What `tables.table` or `tables.query` returned.
        path: Of the file.

    Raises:
        QueryError: Two columns have the same name.
    """
    with closing(_connect()) as connection:
        expressions = _register(connection, frame)
        # Parquet knows no integers beyond 64 bits, and DuckDB would make floats of them.
        exact = {n: e.replace("AS HUGEINT", "AS VARCHAR") for n, e in expressions.items()}
        selected = ", ".join(f"{expression} AS {quote(name)}" for name, expression in exact.items())
        target = str(path).replace("'", "''")
        connection.execute(f"COPY (SELECT {selected} FROM texts) TO '{target}' (FORMAT parquet)")  # noqa: S608  quoted above


def _connect() -> "duckdb.DuckDBPyConnection":
    import duckdb

    # Names in a query are columns, never variables of ours.
    return duckdb.connect(config={"python_enable_replacements": False})


def _load(connection: "duckdb.DuckDBPyConnection", frame: "pandas.DataFrame") -> _Tree:
    tree: _Tree = {}
    for name, expression in _register(connection, frame).items():
        place = tree
        for part in split_name(name):
            place = place.setdefault(part, {})
        place[None] = expression
    selected = ", ".join(f"{_expression(item)} AS {quote(name)}" for name, item in _parts(tree))
    connection.execute(f"CREATE TABLE runs AS SELECT {selected} FROM texts")  # noqa: S608  # all is quoted
    connection.unregister("texts")
    return tree


def _register(connection: "duckdb.DuckDBPyConnection", frame: "pandas.DataFrame") -> dict[str, str]:
    """Hand over all values as texts, and return the expression that reads each column from them.

    As numbers they would lose something on the way: DuckDB takes the NaN of pandas for NULL.
    """
    import pandas as pd

    twice = sorted({str(name) for name in frame.columns[frame.columns.duplicated()]})
    if twice:
        raise QueryError(
            f"expected columns of different names; got several called {', '.join(twice)}; "
            "remedy: rename them in the query with AS"
        )
    texts: dict[str, list[str | None]] = {}
    expressions: dict[str, str] = {}
    for number, name in enumerate(frame.columns):
        values = columns.values_of(frame.iloc[:, number])
        column = f"c{number}"
        texts[column], expressions[str(name)] = _as_sql(column, values, columns.sql_type(values))
    connection.register("texts", pd.DataFrame(texts, dtype="str"))
    return expressions


def _as_sql(column: str, values: list[Any], kind: str) -> tuple[list[str | None], str]:
    if kind.endswith("[]"):
        return [columns.list_text(value) for value in values], f"from_json({column}, '{_structure(kind)}')"
    if kind == "TIMESTAMPTZ":
        expression = f"CAST({column} AS TIMESTAMPTZ) AT TIME ZONE 'UTC'"
    else:
        expression = f"CAST({column} AS {kind})"
    return [columns.as_text(value, for_json=kind == "JSON") for value in values], expression


def _structure(kind: str) -> str:
    """Write a type of lists as `from_json` wants it: ``DOUBLE[]`` is ``["DOUBLE"]``."""
    depth = kind.count("[]")
    return "[" * depth + quote(kind.removesuffix("[]" * depth)) + "]" * depth


def _parts(tree: _Tree) -> Iterator[tuple[str, _Tree]]:
    """Name the parts of a struct. In SQL none may be empty, or differ from another in case only."""
    taken: set[str] = set()
    parts = [(name or "_", item) for name, item in tree.items() if name is not None]
    if None in tree:
        parts.append(("value", {None: tree[None]}))
    for name, item in parts:
        while name.lower() in taken:
            name += "_"
        taken.add(name.lower())
        yield name, item


def _expression(tree: _Tree) -> str:
    if tree.keys() == {None}:
        return str(tree[None])
    inner = ", ".join(f"{quote(name)} := {_expression(item)}" for name, item in _parts(tree))
    return f"struct_pack({inner})"


def _listed(tree: _Tree) -> str:
    names = [".".join(path) for path in _paths(tree)]
    more = [f"and {len(names) - _SHOWN} more"] if len(names) > _SHOWN else []
    return "\n".join(f"  {line}" for line in names[:_SHOWN] + more)


def _paths(tree: _Tree) -> Iterator[tuple[str, ...]]:
    for name, item in _parts(tree):
        written = name if _PLAIN.fullmatch(name) else quote(name)
        yield from [(written,)] if item.keys() == {None} else ((written, *rest) for rest in _paths(item))


def _frame(rows: list[tuple[Any, ...]], names: list[str]) -> "pandas.DataFrame":
    import pandas as pd

    answers = [columns.as_series([_plain(row[place]) for row in rows]) for place in range(len(names))]
    frame = pd.concat(answers, axis=1) if answers else pd.DataFrame()
    frame.columns = pd.Index(names)
    return frame


def _plain(value: Any) -> Any:
    return float(value) if isinstance(value, Decimal) else value
