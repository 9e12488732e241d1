"""Runs as one table: which runs, their columns in pandas, and files of them."""

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from gradtricks.lab.encoding import encode
from gradtricks.lab.results.columns import flattened, kind_of, write_columns
from gradtricks.lab.storage.manifests import CASE
from gradtricks.lab.storage.records import StoredRun, folder_name
from gradtricks.lab.storage.store import Planned, Requested, Store, StoreError

if TYPE_CHECKING:
    import pandas

    from gradtricks.lab.storage.published import Published

_LINE_ENDS = re.compile(r"\s*[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]\s*")


class Plan(BaseModel):
    """The part of a sweep's plan that tables and plots need."""

    runs: tuple[Planned, ...]
    shown: tuple[str, ...] = ()  # results
    varied: tuple[str, ...] = ()  # parameters
    published: bool = False  # whether its runs are kept with the sources
    file: str = ""  # that asked for it


def read_plan(plan: Any) -> Plan:
    """Read the plan of a sweep; a StoreError says if it was edited."""
    try:
        return Plan.model_validate(plan)
    except ValidationError as error:
        where, said = ".".join(map(str, error.errors()[0]["loc"])) or "all", error.errors()[0]["msg"]
        raise StoreError(
            f"expected a plan as a sweep writes it; got {str(plan)[:200]}: {where}: {said}; "
            "remedy: sweep again, which writes it anew"
        ) from error


def table(store: "Store | Published", plan: Plan | None = None) -> "pandas.DataFrame":
    """Tabulate runs of a store as `tabulate` does: all, or those of a plan in its order."""
    if plan is None:
        return tabulate(sorted(store.runs(), key=lambda run: (run.record["stem"], run.title, run.location)))
    return tabulate(runs_of(store, plan.runs), {run.request: run.case for run in plan.runs if run.case})


def runs_of(store: "Store | Published", runs: Sequence[Requested]) -> list[StoredRun]:
    """Look up the records of runs, in their order: finished and valid, or published; else their failures."""
    finished = store.find_all(runs)
    found = finished | store.find_all((run for run in runs if run.request not in finished), "failed")
    return [found[run.request] for run in runs if run.request in found]


def tabulate(runs: Iterable[StoredRun], cases: Mapping[str, str] | None = None) -> "pandas.DataFrame":
    """Tabulate runs, finished or failed, one in a row; ``cases`` names configurations by a run's request.

    The columns are ``case`` where configurations have names, ``run``, ``status``, ``error``, ``stem``,
    ``parameters.<name>``, ``results.<name>``, ``varying.<name>``, ``provenance.<name>``, ``started`` and
    ``duration_s``. Nested results have dotted names, lists stay lists. A value that a run lacks is missing,
    which isn't NaN.
    """
    import pandas as pd

    runs = list(runs)
    records = [run.record for run in runs]
    columns: dict[str, list[Any]] = {CASE: [cases[run.request] for run in runs]} if cases else {}
    columns["run"] = [folder_name(run.title, run.request) for run in runs]
    columns |= {name: [record.get(name) for record in records] for name in ("status", "error", "stem")}
    for rows in _groups(runs):
        columns |= {name: [row.get(name) for row in rows] for name in dict.fromkeys(chain(*rows))}
    columns["started"] = [datetime.fromisoformat(record["started"]) for record in records]
    columns["duration_s"] = [record["duration_s"] for record in records]
    return pd.DataFrame({name: as_series(values) for name, values in columns.items()})


def _groups(runs: Sequence[StoredRun]) -> Iterator[list[dict[str, Any]]]:
    """Yield each run's values by the names of their columns, a group of columns after another."""
    # A dict is a parameter's value as it is.
    yield [{f"parameters.{name}": value for name, value in run.parameters.items()} for run in runs]
    yield [dict(flattened(run.results, "results")) for run in runs]
    yield [dict(flattened(run.varying, "varying")) for run in runs]
    yield [dict(flattened(run.record["provenance"], "provenance")) for run in runs]


def as_series(values: Sequence[Any]) -> "pandas.Series":
    """Make a column of a DataFrame that tells a recorded NaN from a missing number and keeps all integers."""
    import numpy as np
    import pandas as pd

    kind, missing = kind_of(values), np.array([value is None for value in values], dtype=bool)
    masked: Any = {
        "DOUBLE": (float, pd.arrays.FloatingArray),
        "BIGINT": (int, pd.arrays.IntegerArray),
        "BOOLEAN": (bool, pd.arrays.BooleanArray),
    }
    if kind in masked:
        dtype, array = masked[kind]
        data: Any = np.array([0 if value is None else value for value in values], dtype=dtype)
        return pd.Series(array(data, missing) if missing.any() else data)
    if kind == "VARCHAR":
        return pd.Series(values, dtype="str")
    if kind == "TIMESTAMP":
        return pd.Series(pd.to_datetime(list(values), utc=True))
    objects = np.empty(len(values), dtype=object)
    objects[:] = values
    return pd.Series(objects, dtype=object)


def values_of(series: "pandas.Series") -> list[Any]:
    """Undo `as_series`: built-in types, None where one is missing."""
    if series.dtype in ("float64", object):  # which hold no missing numbers, so NaN is NaN here
        return series.tolist()
    values = series.dt.to_pydatetime() if series.dtype.kind == "M" else series.tolist()
    return [None if gone else value for value, gone in zip(values, series.isna(), strict=True)]


def as_csv(frame: "pandas.DataFrame") -> str:
    """Write a table as CSV: every digit of a float, lists as JSON, nothing where a value is missing."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(frame.columns)
    writer.writerows(zip(*(map(as_text, values_of(column)) for _, column in frame.items())))
    return buffer.getvalue()


def as_parquet(frame: "pandas.DataFrame") -> bytes:
    """Write a table as Parquet: times are in UTC, and what has no type of its own is JSON or text."""
    # As lists: of a frame's own columns DuckDB would take NaN for NULL.
    columns = [(str(name), *_as_sql(values_of(column))) for name, column in frame.items()]
    with TemporaryDirectory(prefix="gradtricks-") as folder:
        path = Path(folder, "table")
        write_columns(columns, path)
        return path.read_bytes()


def _as_sql(values: Sequence[Any]) -> tuple[str, Sequence[Any]]:
    """Return the type that a column has in SQL, and its values as that takes them."""
    kind = kind_of(values)
    if kind == "TIMESTAMP":
        return kind, [value and value.astimezone(UTC).replace(tzinfo=None) for value in values]
    if kind != "JSON":
        return kind, values
    if any(isinstance(value, list | dict) for value in values):
        return kind, [None if value is None else as_json(value) for value in values]
    return "VARCHAR", [*map(as_text, values)]


def as_text(value: Any) -> str | None:
    """Write a value so that it can be read back exactly."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, float):
        return repr(value)
    return value.isoformat() if isinstance(value, date) else as_json(value)


def as_json(value: Any) -> str:
    """Write a value as `encode` does."""
    return json.dumps(encode(value, ""), ensure_ascii=False)


def one_line(text: str) -> str:
    """Write a text in one line, with a space for each line's end.

    Signs that can't be seen, or that turn the direction of writing, are shown by their number.
    """
    joined = _LINE_ENDS.sub(" ", text.strip())
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in joined)
