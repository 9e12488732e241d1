"""All runs of a store as one table: for pandas, for SQL, and as files."""

import csv
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from gradtricks.lab.results import columns
from gradtricks.lab.results.grouping import CASE
from gradtricks.lab.results.markup import escape
from gradtricks.lab.storage.dotted import Path as Dotted
from gradtricks.lab.storage.dotted import join_name
from gradtricks.lab.storage.published import Published
from gradtricks.lab.storage.records import StoredRun, folder_name
from gradtricks.lab.storage.store import Requested, Store, StoreError

if TYPE_CHECKING:
    import pandas

_FIRST, _LAST = ("run", "status", "error", "stem"), ("started", "duration_s")
_GROUPS = ("parameters", "results", "varying", "provenance")
FORMATS = ("parquet", "csv", "md")


@dataclass(frozen=True)
class Planned:
    """A run of a sweep, as the store's plan names it.

    Attributes:
        request: Digest of what is asked.
        title: What people call it.
        place: Where it lies, where the plan means one run and no other; else empty.
        case: What its configuration is called; empty where it has no name.
    """

    request: str
    title: str
    place: str = ""
    case: str = ""


class _Sweep(Protocol):
    @property
    def runs(self) -> Sequence[Requested]: ...

    @property
    def cases(self) -> Mapping[str, str]: ...


def table(
    store: Store | Published, *, stem: str | None = None, sweep: "str | _Sweep | None" = None
) -> "pandas.DataFrame":
    """Tabulate the runs of a store, finished and failed, one in a row.

    Args:
        store: Of the runs.
        stem: Only the runs of this notebook.
        sweep: Only the runs of this sweep, in its order: a sweep, or the name of one that the store knows.

    Returns:
        Columns ``case`` where configurations have names, ``run``, ``status``, ``error``, ``stem``,
        ``parameters.<name>``, ``results.<name>``, ``varying.<name>``, ``provenance.<name>``, ``started`` and
        ``duration_s``. Nested results have dotted names, lists stay lists. What a run lacks is missing there,
        which isn't NaN.

    Raises:
        KeyError: The store knows no sweep of this name.
        StoreError: Somebody edited the sweep's plan.
    """
    if sweep is None:
        return tabulate(sorted(store.runs(stem), key=_place))
    cases: Mapping[str, str]
    if isinstance(sweep, str):
        planned = _planned(store, sweep)
        runs, cases = runs_of(store, planned), cases_of(planned)
    else:
        runs, cases = runs_of(store, sweep.runs), sweep.cases
    return tabulate((run for run in runs if stem in (None, run.record["stem"])), cases)


def planned_runs(plan: Mapping[str, Any]) -> list[Planned]:
    """List the runs of a sweep's plan.

    Args:
        plan: Of `gradtricks.lab.storage.store.Store.plans`.

    Returns:
        The runs, in the sweep's order.

    Raises:
        StoreError: Somebody edited the plan.
    """
    try:
        runs = [
            Planned(run["request"], run["title"], run.get("place", ""), run.get(CASE, ""))
            for run in plan["runs"]
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise _edited(plan, "the request and the title of each run") from error
    if not all(isinstance(text, str) for run in runs for text in astuple(run)):
        raise _edited(plan, "the request and the title of each run")
    return runs


def cases_of(runs: Iterable[Planned]) -> dict[str, str]:
    """Say what the configurations of a sweep are called.

    Args:
        runs: From `planned_runs`.

    Returns:
        Names by request; empty where they have none.
    """
    return {run.request: run.case for run in runs if run.case}


def planned_names(plan: Mapping[str, Any], part: Literal["shown", "varied"]) -> tuple[str, ...]:
    """List the results that a sweep's plan shows, or the parameters that it varies.

    Args:
        plan: Of `gradtricks.lab.storage.store.Store.plans`.
        part: Which of them.

    Returns:
        The names.

    Raises:
        StoreError: Somebody edited the plan.
    """
    names = plan.get(part)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise _edited(plan, f"a list of names as {part!r}")
    return tuple(names)


def runs_of(store: Store | Published, runs: Sequence[Requested]) -> list[StoredRun]:
    """Look up what became of runs: those that are finished and valid, or published; else failures.

    Args:
        store: Of the runs.
        runs: Of a sweep.

    Returns:
        What is there, in the order of ``runs``.
    """
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
        As `table`.
    """
    import pandas as pd

    rows = [_row(run) | ({(CASE,): cases[run.request]} if cases else {}) for run in runs]
    paths = dict.fromkeys(path for row in rows for path in row) or [(name,) for name in (*_FIRST, *_LAST)]
    order = {name: place for place, name in enumerate((CASE, *_FIRST, *_GROUPS, *_LAST))}
    ordered = sorted(paths, key=lambda path: order[path[0]])
    series = {join_name(path): columns.as_series([row.get(path) for row in rows]) for path in ordered}
    return pd.DataFrame(series)


def query(store: "Store | Published | pandas.DataFrame", sql: str) -> "pandas.DataFrame":
    """Ask a table with SQL.

    The view is called ``runs``; its columns ``parameters``, ``results``, ``varying`` and ``provenance`` are
    structs: ``SELECT parameters.seed, results.loss FROM runs``. A name of which some runs record a value and
    others parts has the value in its part ``value``. Of names that differ in case only, which SQL can't tell
    apart, the later one ends in an underscore. Values of different kinds are text, lists of such are JSON.

    Args:
        store: A store, or what `table` returned.
        sql: For DuckDB. It works on a copy in memory and reaches no file.

    Returns:
        What was asked for.

    Raises:
        QueryError: DuckDB refuses.
    """
    from gradtricks.lab.results.queries import ask

    return ask(table(store) if isinstance(store, Store | Published) else store, sql)


def export(frame: "pandas.DataFrame", to: str, path: Path | None = None) -> str | None:
    """Write a table as a file, or as text.

    Args:
        frame: What `table` or `query` returned.
        to: ``parquet``, ``csv`` or ``md``. Floats have all their digits; in CSV, lists are JSON.
        path: Of the file, which is replaced in one step; None returns the text.

    Returns:
        The text where no path is given, else None.

    Raises:
        ValueError: ``to`` is something else, or Parquet has no path.
        FileNotFoundError: There is no such folder.
        QueryError: Two columns have the same name, which Parquet doesn't take.
    """
    if to not in FORMATS:
        raise ValueError(f"to must be one of {', '.join(FORMATS)}; got {to!r}")
    if path is None:
        if to == "parquet":
            raise ValueError("parquet must have a path, since it isn't text; got None; remedy: give a path")
        return _as_csv(frame) if to == "csv" else _as_markdown(frame)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"expected a folder {path.parent} to write {path.name} in; got none")
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        if to == "parquet":
            from gradtricks.lab.results.queries import write_parquet

            write_parquet(frame, unfinished)
        else:
            text = _as_csv(frame) if to == "csv" else _as_markdown(frame)
            unfinished.write_text(text, encoding="utf-8", newline="")
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    return None


def _place(run: StoredRun) -> tuple[str, str, str]:
    return run.record["stem"], run.title, run.location


def _edited(plan: Mapping[str, Any], expected: str) -> StoreError:
    return StoreError(
        f"expected a plan with {expected}; got {str(plan)[:200]}; remedy: sweep again, which writes it anew"
    )


def _planned(store: Store | Published, name: str) -> list[Planned]:
    plans = store.plans()
    if name not in plans:
        raise KeyError(f"expected one of the sweeps {', '.join(sorted(plans)) or '(none)'}; got {name!r}")
    return planned_runs(plans[name])


def _row(run: StoredRun) -> dict[Dotted, Any]:
    record = run.record
    row: dict[Dotted, Any] = {("run",): folder_name(run.title, run.request)}
    row.update({(name,): record.get(name) for name in ("status", "error", "stem")})
    row.update({("parameters", name): value for name, value in run.parameters.items()})
    for group, found in (("results", run.results), ("varying", run.varying)):
        row.update(columns.flatten(found, (group,)))
    row.update(columns.flatten(record["provenance"], ("provenance",)))
    row["started",] = datetime.fromisoformat(record["started"])
    row["duration_s",] = record["duration_s"]
    return row


def _texts(frame: "pandas.DataFrame") -> Iterable[list[str]]:
    """Yield the rows of a frame as texts, the names first; what is missing is empty."""
    yield [str(name) for name in frame.columns]
    yield from zip(*(map(_text, columns.values_of(frame.iloc[:, place])) for place in range(frame.shape[1])))


def _text(value: Any) -> str:
    return columns.as_text(value) or ""


def _as_csv(frame: "pandas.DataFrame") -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(_texts(frame))
    return buffer.getvalue()


def _as_markdown(frame: "pandas.DataFrame") -> str:
    names, *rows = ([escape(text) for text in row] for row in _texts(frame))
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (names, ["---"] * len(names), *rows))
