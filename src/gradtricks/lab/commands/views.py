"""What runs have found: as a table, as plots, or one run by itself."""

import tempfile
import webbrowser
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradtricks.lab.commands.options import DEFAULT_STORE
from gradtricks.lab.notebooks.schema import ParameterError
from gradtricks.lab.storage.published import Published, open_store, published_at
from gradtricks.lab.storage.records import StoredRun
from gradtricks.lab.storage.store import Store
from gradtricks.lab.storage.troubles import StoreError
from gradtricks.lab.sweeps.files import ENDING

if TYPE_CHECKING:
    import pandas

    from gradtricks.lab.results.grouping import Found


def table(
    sweep: str | None = None,
    *,
    notebook: str | None = None,
    sql: str | None = None,
    store: str | Path = DEFAULT_STORE,
) -> "pandas.DataFrame":
    """Tabulate runs, one in a row.

    Args:
        sweep: Name of a sweep; None takes the whole store.
        notebook: Only runs of this notebook, by the name of its file without the ending.
        sql: A query for DuckDB, in which the table is called ``runs``; None asks for the table itself.
        store: Of the runs.

    Returns:
        The table, or the answer.

    Raises:
        ParameterError: There is no such sweep, or DuckDB refuses the query.
        StoreError: Somebody edited the sweep's plan.
    """
    from gradtricks.lab.results import queries, tables

    opened = open_store(store)
    plan = None if sweep is None else opened.plans()[find_sweep(opened, sweep)]
    found = tables.table(opened, stem=notebook, plan=plan)
    return found if sql is None else queries.ask(found, sql)


def found(sweep: str, frame: "pandas.DataFrame", *, store: str | Path) -> "list[Found]":
    """Sort a sweep's runs, at least one, by what it shows, or by how long they took if that isn't there."""
    from gradtricks.lab.results import grouping, tables

    opened = open_store(store)
    plan = opened.plans()[find_sweep(opened, sweep)]
    varied, shown = tables.planned_names(plan, "varied"), tables.planned_names(plan, "shown")
    try:
        return grouping.find_results(frame, varied, shown)
    except grouping.PlotError:
        return grouping.find_results(frame, varied, ["duration_s"])


def plot(
    sweep: str | Path | None = None,
    *,
    shown: Sequence[str] = (),
    folder: str | Path | None = None,
    store: str | Path = DEFAULT_STORE,
) -> list[Path]:
    """Draw what a sweep has found so far, each result as SVG and PNG.

    Args:
        sweep: Its name or its file; None means the only one of the store.
        shown: Results such as ``results.loss``, or ``loss``; none means those that the sweep names, or some.
        folder: Of the files; None means ``sweeps/<name>`` beside the store.
        store: Of the runs.

    Returns:
        The files.

    Raises:
        ParameterError: There is no such sweep, or no result that could be drawn.
        StoreError: Somebody edited the sweep's plan.
    """
    from gradtricks.lab.results import grouping, plots, tables

    opened = open_store(store)
    name = find_sweep(opened, sweep)
    plan = opened.plans()[name]
    frame = tables.table(opened, plan=plan)
    varied, planned = tables.planned_names(plan, "varied"), tables.planned_names(plan, "shown")
    drawn = plots.plot_results(grouping.find_results(frame, varied, tuple(shown) or planned))
    place = Path(folder) if folder else _beside(opened, plan) / name
    place.mkdir(parents=True, exist_ok=True)
    files = [place / f"{figure}.{ending}" for figure in drawn for ending in ("svg", "png")]
    for path in files:
        drawn[path.stem].save(path)
    return files


def show(
    run: str, *, open_it: bool = True, store: str | Path = DEFAULT_STORE
) -> tuple[StoredRun, Path | None]:
    """Find a run, and open its executed notebook in the browser.

    Args:
        run: Its path, its title or the beginning of that, or the beginning of its request's digest.
        open_it: Whether to open it.
        store: Of the runs.

    Returns:
        The run, and its executed notebook as HTML in a temporary file; None where none was opened.

    Raises:
        ParameterError: The text means no run, or several.
    """
    stored = find_run(open_store(store), run)
    if not open_it or not stored.executed:
        return stored, None
    from gradtricks.lab.commands.rendering import to_html

    page = Path(tempfile.mkdtemp(prefix="gradtricks-"), "notebook.html")
    page.write_text(to_html(stored.read_notebook(), stored.title), encoding="utf-8")
    webbrowser.open(page.as_uri())
    return stored, page


def find_run(store: Store | Published, text: str) -> StoredRun:
    """Find the run that a text means, as it was typed; a ParameterError says if there is none, or several."""
    try:
        return published_at(text) or store.lookup(text)
    except StoreError as error:
        raise ParameterError(str(error)) from error


def find_sweep(store: Store | Published, name: str | Path | None) -> str:
    """Name the sweep that a name or a file means, or None if there is one only; else raise ParameterError."""
    there = sorted(store.plans())
    if name is None and len(there) == 1:
        return there[0]
    wanted = Path(name or "").name.removesuffix(ENDING)
    if wanted in there:
        return wanted
    raise ParameterError(
        f"expected one of the sweeps: {', '.join(there) or 'none yet'}; got {wanted or 'no name'!r}; "
        "remedy: gradtricks status lists them"
    )


def _beside(store: Store | Published, plan: Mapping[str, Any]) -> Path:
    """Name the folder for what is drawn; of runs at a URL or among the sources, the default store's."""
    location = DEFAULT_STORE if "://" in store.location or plan.get("published") else store.location
    return Path(location).parent / "sweeps"
