"""What each command shows of what it found. Values are shown as they are: a label may well be "[red]"."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gradtricks.lab.commands.printing import duration, short, table, thinned, whole_table
from gradtricks.lab.commands.terminal import near
from gradtricks.lab.notebooks.schema import ParameterError
from gradtricks.lab.results.columns import values_of
from gradtricks.lab.storage.store import Store

if TYPE_CHECKING:
    import pandas

    from gradtricks.lab.commands.overviews import Description, Experiment, SweepStatus
    from gradtricks.lab.commands.running import SweepResult
    from gradtricks.lab.results.grouping import Found
    from gradtricks.lab.runs.reproduction import Verdict
    from gradtricks.lab.storage.records import StoredRun
    from gradtricks.lab.sweeps.files import Optuna
    from gradtricks.lab.sweeps.plans import Sweep

_NO_ROOM = ("lowest", "highest")  # columns that only a page has room for
_SAID = "Each interval is a bootstrap interval of its interquartile mean, from ten runs on."


def experiments_table(experiments: Iterable["Experiment"]) -> Table:
    """Show experiments: a line each."""
    rows = [
        (
            str(found.notebook),
            found.title,
            duration(found.expected_s),
            str(found.finished),
            ", ".join(path.name for path in found.sweeps),
        )
        for found in experiments
    ]
    return table(("notebook", "question", "expected", "finished runs", "sweeps"), rows, right={2, 3})


def description(described: "Description") -> RenderableType:
    """Show what a notebook takes."""
    how = described.settings
    about = [
        f"about {duration(how.expected_s)} a run" if how.expected_s else "",
        f"{how.threads} thread{'' if how.threads == 1 else 's'} a run",
        "nothing else runs meanwhile" if how.alone else "",
    ]
    rows = [(each.name, each.expected, each.written, each.meaning) for each in described.parameters]
    return Group(
        Text(described.title, style="bold"),
        Text(f"{', '.join(filter(None, about))}\n"),
        table(("parameter", "type", "default", "meaning"), rows),
    )


def statuses_table(statuses: Iterable["SweepStatus"]) -> Table:
    """Show how far sweeps are: a line each."""
    rows = [(s.name, *map(str, (s.total, s.finished, s.failed, s.running, s.left))) for s in statuses]
    return table(("sweep", "runs", "done", "failed", "running now", "left"), rows, right=range(1, 6))


def record_of(run: "StoredRun") -> RenderableType:
    """Show what a run recorded."""
    record, provenance = run.record, run.record["provenance"]
    rows = [
        ("status", run.status),
        *([("error", record["error"])] if "error" in record else []),
        ("started", record["started"]),
        ("took", duration(record["duration_s"])),
        ("commit", f"{provenance['commit'] or 'unknown'}{', with changes' if provenance['dirty'] else ''}"),
        ("threads", str(provenance["threads"])),
    ]
    for group in ("parameters", "results", "varying"):
        rows += [(f"{group}.{name}", short(value)) for name, value in getattr(run, group).items()]
    rows += [(f"file {name}", f"{kept['bytes']:,} bytes") for name, kept in run.files.items()]
    return Group(Text(run.title, style="bold"), table(("", ""), rows))


def dry_run_of(planned: "Sweep", *, store: str, workers: int | None) -> RenderableType:
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
    known = f"about {duration(seconds)}" if seconds is not None else "nobody knows how long"
    left = "" if len(finished) == len(rows) else f" The others take {known}, {at_once} at once."
    return Group(
        table(("run", *planned.varied, ""), thinned(rows), right={0}),
        Text(f"{len(rows)} runs, {len(finished)} of them done.{left}"),
    )


def _search(how: "Optuna", seeds: int) -> RenderableType:
    rows = [
        (
            name,
            f"{domain.low} to {domain.high}{', logarithmic' if domain.log else ''}"
            if domain.choices is None
            else "one of " + ", ".join(map(repr, domain.choices)),
        )
        for name, domain in how.parameters.items()
    ]
    return Group(
        table(("parameter", "is searched in"), rows),
        Text(f"{how.trials} trials of {seeds} run{'s' * (seeds > 1)}, to {how.direction} {how.objective}."),
    )


def summary(found: "SweepResult") -> RenderableType:
    """Show what came of a sweep: how many, where, and why some failed."""
    lines = [f"{found.name}: {len(found.runs) - len(found.failed)} done, {len(found.failed)} failed."]
    lines += [f"Best: {near(run.location)}" for run in found.best]
    lines.append(f"Runs: {near(found.store)}")
    lines += [f"Published: {near(found.published)}"] if found.published else []
    lines += [f"Plot: {path}" for path in found.plots if path.suffix == ".svg"]
    lines += [f"No plot: {found.unplotted}"] if found.unplotted else []
    said = Text("\n".join(lines))
    if not found.failed:
        return said
    failures = Store(found.store).failures(run.spec for run in found.failed)
    rows = []
    for run in found.failed:  # a line of each error: without where, and with which parameters
        kept = failures.get(run.spec.request)
        error = kept.record["error"] if kept else run.error or ""
        rows.append((run.spec.title, error.strip().partition("\n")[0].rstrip()))
    return Group(table(("failed run", "why"), thinned(rows)), said)


def verdict_of(verdict: "Verdict") -> RenderableType:
    """Show what a rerun said: first the verdict, then every value that differs, then the environment."""
    style = "red" if verdict.verdict == "different" else "green"
    head = Text.assemble(
        f"{verdict.title}: ", (verdict.verdict, style), f" ({verdict.count} values compared)"
    )
    rows = [
        (d.name, short(d.recorded), short(d.now), "" if d.relative is None else f"{d.relative:.1g}")
        for d in (*verdict.differences, *verdict.environment)
    ]
    return Group(head, table(("differs", "then", "now", "relative"), thinned(rows))) if rows else head


def table_of(frame: "pandas.DataFrame", found: "Sequence[Found]") -> RenderableType:
    """Show runs as people read them: what a sweep found, or a line for each of a store's runs."""
    count = f"{len(frame)} runs"
    if found:
        failed = sum(status == "failed" for status in frame["status"])
        said = f"{count}{f', {failed} of them failed' if failed else ''}. --all shows each of them."
        return Group(_results(found), Text(said))
    columns = [values_of(frame[name]) for name in ("run", "status", "duration_s")]
    rows = [(run, status, duration(seconds)) for run, status, seconds in zip(*columns)]
    return Group(
        table(("run", "status", "took"), thinned(rows), right={2}),
        Text(f"{count}. --all shows what is known of them."),
    )


def _results(found: Sequence["Found"]) -> RenderableType:
    """Show a table for each result, and in it a row for each configuration."""
    from gradtricks.lab.results.captions import number, summary_columns
    from gradtricks.lab.results.grouping import spell

    parts: list[RenderableType] = []
    names: list[str] = []
    for each in found:
        axes = each.axes[: len(each.parts[0].values)]
        columns = {
            axis.name: [spell(part.values[place]) for part in each.parts] for place, axis in enumerate(axes)
        }
        summed = summary_columns(each, lambda value: "" if value != value else number(value))
        columns |= {name: cells for name, cells in summed.items() if name not in _NO_ROOM}
        names += summed
        made = table([*columns], thinned([*zip(*columns.values())]), right=range(len(axes), len(columns)))
        parts += [Text(each.label, style="bold"), made, Text("")]
    return Group(*parts, *([Text(_SAID)] if any("interval" in name for name in names) else []))


def write_frame(frame: "pandas.DataFrame", to: str | None, path: Path | None) -> Iterator[str]:
    """Write every row and column of a table to a file, or yield them as text to be printed.

    Its form is ``to``, or the ending of the file's name. A ParameterError says that it isn't clear or isn't
    text, or that it doesn't take the table.
    """
    from gradtricks.lab.results.tables import FORMATS, as_csv, export

    form = to or (path.suffix.removeprefix(".") if path else None)
    if form is None:
        yield whole_table(frame)
    elif form not in FORMATS:
        raise ParameterError(f"expected --to or an ending: one of {', '.join(FORMATS)}; got {path}")
    elif path is not None:
        export(frame, form, path)
    elif form == "csv":
        yield as_csv(frame).removesuffix("\n")
    else:
        raise ParameterError(f"expected --output FILE too, since {form} isn't text; got none")
