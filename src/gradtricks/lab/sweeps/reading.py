"""Read a store: its runs as a table, a sweep as plots, one run by its name."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gradtricks.lab.notebooks.schema import ParameterError
from gradtricks.lab.results import tables
from gradtricks.lab.storage import DEFAULT_STORE
from gradtricks.lab.storage.places import StoreError, replace
from gradtricks.lab.storage.published import Published, open_store, published_at
from gradtricks.lab.storage.records import StoredRun
from gradtricks.lab.storage.store import Store
from gradtricks.lab.sweeps.files import ENDING

if TYPE_CHECKING:
    import pandas

    from gradtricks.lab.results.grouping import ResultSummary


def table(sweep: str | None = None, *, store: str | Path = DEFAULT_STORE) -> "pandas.DataFrame":
    """Tabulate runs, one in a row.

    Args:
        sweep: Name of a sweep; None takes the whole store.
        store: Of the runs.

    Raises:
        ParameterError: There is no such sweep.
        StoreError: Somebody edited the sweep's plan.
    """
    there = opened(store)
    return tables.table(there, None if sweep is None else _find_plan(there, sweep)[1])


def summarize(sweep: str, frame: "pandas.DataFrame", *, store: str | Path) -> "list[ResultSummary]":
    """Summarize the results that a sweep shows, of at least one run, or else how long its runs took."""
    from gradtricks.lab.results import grouping

    _, plan = _find_plan(opened(store), sweep)
    try:
        return grouping.summarize_results(frame, plan.varied, plan.shown)
    except grouping.PlotError:
        return grouping.summarize_results(frame, plan.varied, ["duration_s"])


def plot(
    sweep: str | Path | None = None, *, shown: Sequence[str] = (), store: str | Path = DEFAULT_STORE
) -> list[Path]:
    """Draw the results of a sweep so far, each as SVG in ``sweeps/<name>`` beside the store.

    Args:
        sweep: Its name or its file; None means the only one of the store.
        shown: Results such as ``results.loss``, or ``loss``; none means those that the sweep names, or some.
        store: Of the runs.

    Returns:
        The files.

    Raises:
        ParameterError: There is no such sweep, or no result that could be drawn.
        StoreError: Somebody edited the sweep's plan.
    """
    from gradtricks.lab.results import grouping

    there = opened(store)
    name, plan = _find_plan(there, sweep)
    results = grouping.summarize_results(tables.table(there, plan), plan.varied, shown or plan.shown)
    from gradtricks.lab.results.plots import plot_results  # with matplotlib, where there is something to draw

    drawn = plot_results(results)
    # What runs among the sources found is drawn beside the default store.
    place = Path(DEFAULT_STORE if plan.published else there.location).parent / "sweeps" / name
    place.mkdir(parents=True, exist_ok=True)
    files = {place / f"{name}.svg": figure.svg() for name, figure in drawn.items()}
    for path, text in files.items():
        replace(path, text.encode())
    return [*files]


def show(run: str, *, store: str | Path = DEFAULT_STORE) -> StoredRun:
    """Find a run by its path, its title or the beginning of that.

    A ParameterError says if none is meant, or several.
    """
    return find_run(opened(store), run)


def opened(store: str | Path) -> Store | Published:
    """Open runs to be read; a ParameterError refuses a folder that isn't there, but for the default one."""
    there = open_store(store)
    if not Path(there.location).is_dir() and Path(there.location) != Path(DEFAULT_STORE):
        raise ParameterError(
            f"expected a store in {there.location}; got no folder there; "
            "remedy: see how it is written, or leave out --store"
        )
    return there


def find_run(store: Store | Published, text: str) -> StoredRun:
    """Find the run that a text means, as it was typed; a ParameterError says if there is none, or several."""
    try:
        return published_at(text) or store.lookup(text)
    except StoreError as error:
        raise ParameterError(str(error)) from error


def _find_plan(store: Store | Published, name: str | Path | None) -> tuple[str, tables.Plan]:
    """Find the sweep that a name or a file means, or None if there is one only; else raise ParameterError."""
    there = store.plans()
    wanted = there[0] if name is None and len(there) == 1 else Path(name or "").name.removesuffix(ENDING)
    if wanted in there:
        plan = tables.read_plan(store.plan(wanted))
        file = Path(name or "")
        if file.name.endswith(ENDING) and Path(plan.file).is_file() and not _same(file, Path(plan.file)):
            raise ParameterError(
                f"expected the sweep of {file}; got one of the same name, whose file is {plan.file}; "
                "remedy: sweep it again, in a store of its own or under another name"
            )
        return wanted, plan
    raise ParameterError(
        f"expected one of the sweeps: {', '.join(there) or 'none yet'}; got {wanted or 'no name'!r}; "
        "remedy: gradtricks status lists them"
    )


def _same(file: Path, other: Path) -> bool:
    return file.exists() and file.samefile(other)
