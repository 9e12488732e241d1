"""Runs as one table: for pandas, and as files."""

import csv
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gradtricks.lab.results.columns import as_series, as_text, flatten, values_of
from gradtricks.lab.results.grouping import CASE
from gradtricks.lab.storage.published import Published
from gradtricks.lab.storage.records import StoredRun, folder_name
from gradtricks.lab.storage.rows import Dotted, join_name
from gradtricks.lab.storage.store import Requested, Store, StoreError

if TYPE_CHECKING:
    import pandas

_FIRST, _LAST = ("run", "status", "error", "stem"), ("started", "duration_s")
_GROUPS = ("parameters", "results", "varying", "provenance")
FORMATS = ("parquet", "csv")


def table(
    store: Store | Published, *, stem: str | None = None, plan: Mapping[str, Any] | None = None
) -> "pandas.DataFrame":
    """Tabulate runs of a store as `tabulate` does: all, or those of a notebook, or of a plan in its order.

    A StoreError says if somebody edited the plan.
    """
    if plan is None:
        return tabulate(
            sorted(store.runs(stem), key=lambda run: (run.record["stem"], run.title, run.location))
        )
    planned = planned_runs(plan)
    there = (run for run in runs_of(store, planned) if stem in (None, run.record["stem"]))
    return tabulate(there, cases_of(planned))


def planned_runs(plan: Mapping[str, Any]) -> list[Requested]:
    """List the runs of a store's plan, in the sweep's order; a StoreError says if somebody edited it."""
    try:
        runs = [Requested(**run) for run in plan["runs"]]
    except (KeyError, TypeError) as error:
        raise _edited(plan, "the request and the title of each run") from error
    if not all(isinstance(text, str) for run in runs for text in astuple(run)):
        raise _edited(plan, "the request and the title of each run")
    return runs


def cases_of(runs: Iterable[Requested]) -> dict[str, str]:
    """Say by request what the configurations of planned runs are called; empty where they have no names."""
    return {run.request: run.case for run in runs if run.case}


def planned_names(plan: Mapping[str, Any], part: Literal["shown", "varied"]) -> tuple[str, ...]:
    """List what a plan shows or varies, results or parameters; a StoreError says if somebody edited it."""
    names = plan.get(part)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise _edited(plan, f"a list of names as {part!r}")
    return tuple(names)


def runs_of(store: Store | Published, runs: Sequence[Requested]) -> list[StoredRun]:
    """Look up what became of runs, in their order: finished and valid, or published; else their failures."""
    finished = store.find_all(runs)
    failed = store.failures(run for run in runs if run.request not in finished)
    found = finished | failed
    return [found[run.request] for run in runs if run.request in found]


def tabulate(runs: Iterable[StoredRun], cases: Mapping[str, str] | None = None) -> "pandas.DataFrame":
    """Tabulate runs, one in a row.

    Args:
        runs: Finished and failed ones.
        cases: What configurations are called, by the request of a run.

    Returns:
        Columns ``case`` where configurations have names, ``run``, ``status``, ``error``, ``stem``,
        ``parameters.<name>``, ``results.<name>``, ``varying.<name>``, ``provenance.<name>``, ``started`` and
        ``duration_s``. Nested results have dotted names, lists stay lists. What a run lacks is missing there,
        which isn't NaN.
    """
    import pandas as pd

    rows = [_row(run) | ({(CASE,): cases[run.request]} if cases else {}) for run in runs]
    paths = dict.fromkeys(path for row in rows for path in row) or [(name,) for name in (*_FIRST, *_LAST)]
    order = {name: place for place, name in enumerate((CASE, *_FIRST, *_GROUPS, *_LAST))}
    ordered = sorted(paths, key=lambda path: order[path[0]])
    return pd.DataFrame({join_name(path): as_series([row.get(path) for row in rows]) for path in ordered})


def as_csv(frame: "pandas.DataFrame") -> str:
    """Write a table as CSV: every digit of a float, lists as JSON, nothing where a value is missing."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(map(str, frame.columns))
    columns = (values_of(frame.iloc[:, place]) for place in range(frame.shape[1]))
    writer.writerows(zip(*([as_text(value) for value in column] for column in columns)))
    return buffer.getvalue()


def export(frame: "pandas.DataFrame", to: str, path: Path) -> None:
    """Write a table or an answer to a file, ``parquet`` or ``csv``, which is replaced in one step.

    It raises FileNotFoundError where there is no such folder, and ParameterError where two columns have the
    same name, which Parquet doesn't take.
    """
    if not path.parent.is_dir():
        raise FileNotFoundError(f"expected a folder {path.parent} to write {path.name} in; got none")
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        if to == "parquet":
            from gradtricks.lab.results.queries import write_parquet

            write_parquet(frame, unfinished)
        else:
            unfinished.write_text(as_csv(frame), encoding="utf-8", newline="")
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def _edited(plan: Mapping[str, Any], expected: str) -> StoreError:
    return StoreError(
        f"expected a plan with {expected}; got {str(plan)[:200]}; remedy: sweep again, which writes it anew"
    )


def _row(run: StoredRun) -> dict[Dotted, Any]:
    record = run.record
    row: dict[Dotted, Any] = {("run",): folder_name(run.title, run.request)}
    row.update({(name,): record.get(name) for name in ("status", "error", "stem")})
    row.update({("parameters", name): value for name, value in run.parameters.items()})
    for group, found in (("results", run.results), ("varying", run.varying)):
        row.update(flatten(found, (group,)))
    row.update(flatten(record["provenance"], ("provenance",)))
    row["started",] = datetime.fromisoformat(record["started"])
    row["duration_s",] = record["duration_s"]
    return row
