"""What the commands say of a sweep or a rerun: before, and after."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from gradtricks.lab.commands.printing import (
    duration,
    results_tables,
    runs_table,
    short,
    table,
    thinned,
    whole_table,
)
from gradtricks.lab.commands.terminal import near, output
from gradtricks.lab.notebooks.schema import ParameterError
from gradtricks.lab.storage.store import Store
from gradtricks.lab.sweeps.files import Optuna
from gradtricks.lab.sweeps.plans import Sweep

if TYPE_CHECKING:
    import pandas

    from gradtricks.lab.commands.running import SweepResult
    from gradtricks.lab.results.grouping import Found
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


def table_of(frame: "pandas.DataFrame", found: "Sequence[Found]") -> RenderableType:
    """Show runs as people read them: what a sweep found, or a line for each of a store's runs."""
    if not found:
        return Group(runs_table(frame), Text(f"{len(frame)} runs. --all shows what is known of them."))
    failed = sum(status == "failed" for status in frame["status"])
    said = f"{len(frame)} runs{f', {failed} of them failed' if failed else ''}. --all shows each of them."
    return Group(results_tables(found), Text(said))


def write_frame(frame: "pandas.DataFrame", to: str | None, path: Path | None) -> None:
    """Print every row and column of a table, or write it to a file.

    Its form is ``to``, or the ending of the file's name. A ParameterError says that it isn't clear or isn't
    text, or that it doesn't take the table.
    """
    from gradtricks.lab.results.queries import QueryError
    from gradtricks.lab.results.tables import FORMATS, as_csv, export

    form = to or (path.suffix.removeprefix(".") if path else None)
    if form is None:
        output.out(whole_table(frame), end="", highlight=False)
    elif form not in FORMATS:
        raise ParameterError(f"expected --to or an ending: one of {', '.join(FORMATS)}; got {path}")
    elif path is not None:
        try:
            export(frame, form, path)
        except QueryError as error:
            raise ParameterError(str(error)) from error
    elif form == "csv":
        output.out(as_csv(frame), end="", highlight=False)
    else:
        raise ParameterError(f"expected --output FILE too, since {form} isn't text; got none")


def _why(run: "Run", store: Store) -> str:
    """Reduce a failure to one line: the exception, without where and with which parameters."""
    failure = store.failure(run.spec)
    error = failure.record["error"] if failure else run.error or ""
    return next((line.strip() for line in error.splitlines() if line.strip()), "")
