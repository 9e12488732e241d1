"""A table in DuckDB: what SQL sees of it, and Parquet."""

import re
from collections.abc import Iterator
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradtricks.lab.notebooks.schema import ParameterError
from gradtricks.lab.results.columns import as_series, as_sql, as_text, values_of
from gradtricks.lab.storage.dotted import quote, split_name

if TYPE_CHECKING:
    import duckdb
    import pandas

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SHOWN = 80  # columns in a message

# Parts by name; the column that holds the values stands at its place under None.
_Tree = dict[str | None, Any]


def ask(frame: "pandas.DataFrame", sql: str) -> "pandas.DataFrame":
    """Ask a table, the view ``runs``, with SQL. It works on a copy in memory and reaches no file.

    The columns ``parameters``, ``results``, ``varying`` and ``provenance`` are structs: ``SELECT
    parameters.seed, results.loss FROM runs``. A name of which some runs record a value and others parts has
    the value in its part ``value``. Of names that differ in case only, which SQL can't tell apart, the later
    one ends in an underscore. Values of different kinds are text, lists of such are JSON.

    Args:
        frame: What `gradtricks.lab.results.tables.table` returned.
        sql: For DuckDB.

    Returns:
        What was asked for.

    Raises:
        ParameterError: DuckDB refuses, or there is no query.
    """
    import duckdb
    import pandas as pd

    with closing(_connect()) as connection:
        names = _load(connection, frame)
        tree: _Tree = {}
        for column, name in names.items():
            place = tree
            for part in split_name(name):
                place = place.setdefault(part, {})
            place[None] = column
        selected = ", ".join(f"{_expression(item)} AS {quote(name)}" for name, item in _parts(tree))
        connection.execute(f"CREATE TABLE runs AS SELECT {selected} FROM loaded; DROP TABLE loaded")  # noqa: S608  # all is quoted
        # From here on nothing reaches a file or the network, and nothing can change that.
        connection.execute("SET enable_external_access = false; SET lock_configuration = true")
        try:
            if not connection.extract_statements(sql):
                raise ParameterError(
                    f"expected a query; got {sql!r}; remedy: gradtricks table --help shows one"
                )
            answer = connection.execute(sql)
            rows, found = answer.fetchall(), [column[0] for column in answer.description or ()]
        except duckdb.Error as error:
            raise ParameterError(f"{error}\nThe columns of runs are:\n{_listed(tree)}") from None
    columns = [[_plain(row[place]) for row in rows] for place in range(len(found))]
    asked = pd.concat([as_series(values) for values in columns], axis=1) if columns else pd.DataFrame()
    asked.columns = pd.Index(found)
    return asked


def write_parquet(frame: "pandas.DataFrame", path: Path) -> None:
    """Write a table or an answer as Parquet; a ParameterError says if two columns have one name."""
    with closing(_connect()) as connection:
        names = _load(connection, frame, parquet=True)
        selected = ", ".join(f"{column} AS {quote(name)}" for column, name in names.items())
        target = str(path).replace("'", "''")
        connection.execute(f"COPY (SELECT {selected} FROM loaded) TO '{target}' (FORMAT parquet)")  # noqa: S608  # quoted above


def _connect() -> "duckdb.DuckDBPyConnection":
    import duckdb

    # Names in a query are columns, never variables of ours.
    return duckdb.connect(config={"python_enable_replacements": False})


def _load(
    connection: "duckdb.DuckDBPyConnection", frame: "pandas.DataFrame", *, parquet: bool = False
) -> dict[str, str]:
    """Make the table ``loaded``, and return the names of its columns by what they are called in there."""
    twice = sorted({str(name) for name in frame.columns[frame.columns.duplicated()]})
    if twice:
        raise ParameterError(
            f"expected columns of different names; got several called {', '.join(twice)}; "
            "remedy: rename them in the query with AS"
        )
    # As lists: of a frame's own columns DuckDB would take NaN for NULL.
    loaded = [as_sql(values_of(frame.iloc[:, place])) for place in range(frame.shape[1])]
    if parquet:  # which knows no integers beyond 64 bits; DuckDB would make floats of them
        loaded = [("VARCHAR", [*map(as_text, v)]) if kind == "HUGEINT" else (kind, v) for kind, v in loaded]
    selected = ", ".join(
        f"unnest(CAST(${place + 1} AS {kind}[])) AS c{place}" for place, (kind, _) in enumerate(loaded)
    )
    connection.execute(f"CREATE TABLE loaded AS SELECT {selected}", [values for _, values in loaded])
    return {f"c{place}": str(name) for place, name in enumerate(frame.columns)}


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


def _plain(value: Any) -> Any:
    return float(value) if isinstance(value, Decimal) else value
