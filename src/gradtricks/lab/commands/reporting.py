"""What the commands say of a sweep or a rerun: before, and after."""

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from gradtricks.lab.commands.printing import duration, frame_table, short, table, thinned
from gradtricks.lab.commands.terminal import near, output
from gradtricks.lab.notebooks.schema import ParameterError
from gradtricks.lab.results.columns import values_of
from gradtricks.lab.storage.store import Store
from gradtricks.lab.sweeps.files import Optuna
from gradtricks.lab.sweeps.plans import Sweep

if TYPE_CHECKING:
    import pandas

    from gradtricks.lab.commands.running import SweepResult
    from gradtricks.lab.runs.many import Run
    from gradtricks.lab.runs.reproduction import Verdict


def dry_run_of(planned: Sweep, *, store: str, workers: int | None) -> RenderableType:
    """Show what a sweep would run, and how long that takes."""
    from gradtricks.lab.runs.estimates import estimate_s
    from gradtricks.lab.runs.here import count_workers

    if planned.optuna:
        return _search(planned.optuna, len(planned.given))
    opened = Store(store)
    finished = opened.find_all(planned.runs)
    rows = [
        (
            str(number),
            *(repr(run.parameters[name]) for name in planned.varied),
            "done" if run.request in finished else "",
        )
        for number, run in enumerate(planned.runs, start=1)
    ]
    at_once = workers or count_workers(planned.runs)
    seconds = estimate_s(planned.runs, opened, at_once)
    known = f"take about {duration(seconds)}" if seconds is not None else "take nobody knows how long"
    left = "" if len(finished) == len(rows) else f" The others {known}, {at_once} at once."
    return Group(
        table(("run", *planned.varied, ""), thinned(rows), right={0}),
        Text(f"{len(rows)} runs, {len(finished)} of them done.{left}"),
    )


def _search(how: Optuna, seeds: int) -> RenderableType:
    rows = [
        (
            name,
            f"{axis.low} to {axis.high}{', logarithmic' if axis.log else ''}"
            if axis.choices is None
            else "one of " + ", ".join(map(repr, axis.choices)),
        )
        for name, axis in how.parameters.items()
    ]
    return Group(
        table(("parameter", "is searched in"), rows),
        Text(f"{how.trials} trials of {seeds} run{'s' * (seeds > 1)}, to {how.direction} {how.objective}."),
    )


def summary(found: "SweepResult") -> RenderableType:
    """Show what came of a sweep: how many, where, and why some failed."""
    done = len(found.runs) - len(found.failed)
    lines = [f"{found.name}: {done} done, {len(found.failed)} failed."]
    lines += [f"Best: {near(run.location)}" for run in found.best]
    lines.append(f"Runs: {near(found.store)}")
    lines += [f"Published: {near(found.published)}"] if found.published else []
    lines += [f"Plot: {path}" for path in found.plots if path.suffix == ".svg"]
    lines += [f"No plot: {found.unplotted}"] if found.unplotted else []
    opened = Store(found.store)
    failed = [(run.spec.title, _why(run, opened)) for run in found.failed]
    shown = [table(("failed run", "why"), thinned(failed))] if failed else []
    return Group(*shown, *(Text(line) for line in lines))


def verdict_of(verdict: "Verdict") -> RenderableType:
    """Show what a rerun said: first the verdict, then every value that differs, then the environment."""
    rows = [
        (
            each.name,
            short(each.recorded),
            short(each.now),
            "" if each.relative is None else f"{each.relative:.1g}",
        )
        for each in (*verdict.differences, *verdict.environment)
    ]
    style = "red" if verdict.verdict == "different" else "green"
    head = Text.assemble(
        f"{verdict.title}: ", (verdict.verdict, style), f" ({verdict.count} values compared)"
    )
    return Group(head, *([table(("differs", "then", "now", "relative"), thinned(rows))] if rows else []))


def write_frame(frame: "pandas.DataFrame", to: str | None, path: Path | None, *, whole: bool = False) -> None:
    """Show a table of results, print it as text, or write it to a file.

    Args:
        frame: The table.
        to: Its form; None leaves it to the ending of the file's name.
        path: Of the file; None is the terminal.
        whole: Whether the terminal gets every column.

    Raises:
        ParameterError: The form isn't clear or isn't text, or the form doesn't take the table.
        FileNotFoundError: The file's folder isn't there.
    """
    from gradtricks.lab.results.queries import QueryError
    from gradtricks.lab.results.tables import FORMATS, export

    form = to or (path.suffix.removeprefix(".") if path else None)
    if form is None:
        readable = frame if whole else _readable(frame)
        output.print(frame_table(readable))
        hidden = frame.shape[1] - readable.shape[1]
        output.print(f"{len(frame)} rows" + (f", and {hidden} more columns: --to csv" if hidden else ""))
        return
    if form not in FORMATS:
        raise ParameterError(f"expected --to or an ending: one of {', '.join(FORMATS)}; got {path}")
    if form == "parquet" and path is None:
        raise ParameterError("expected --output FILE too, since parquet isn't text; got none")
    try:
        text = export(frame, form, path)
    except QueryError as error:
        raise ParameterError(str(error)) from error
    if text is not None:
        output.out(text, end="", highlight=False)


def _readable(frame: "pandas.DataFrame") -> "pandas.DataFrame":
    """Leave out what all runs have in common and where they came from: a terminal isn't wide."""
    return frame[[name for name in frame.columns if _is_telling(name, frame)]]


def _is_telling(name: str, frame: "pandas.DataFrame") -> bool:
    group = name.partition(".")[0]
    if group in ("run", "status", "results", "varying"):
        return True
    return group not in ("provenance", "started") and len(set(map(repr, values_of(frame[name])))) > 1


def _why(run: "Run", store: Store) -> str:
    """Reduce a failure to one line: the exception, without where and with which parameters."""
    failure = store.failure(run.spec)
    error = failure.record["error"] if failure else run.error or ""
    return next((line.strip() for line in error.splitlines() if line.strip()), "")
