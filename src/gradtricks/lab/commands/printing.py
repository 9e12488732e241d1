"""Tables for the terminal. Values are shown as they are: a label may well be "[red]"."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gradtricks.lab.results.columns import values_of
from gradtricks.lab.results.markup import one_line

if TYPE_CHECKING:
    import pandas

    from gradtricks.lab.commands.overviews import Description, Experiment, SweepStatus
    from gradtricks.lab.results.grouping import Found
    from gradtricks.lab.storage.records import StoredRun

_SHOWN = 20  # rows of a long table
_LONGEST = 120  # letters of a value
_ROOM = ("lowest", "highest")  # columns that a page has room for
_SAID = "Each interval is a bootstrap interval of its interquartile mean, from ten runs on."


def duration(seconds: float | None) -> str:
    """Say how long something takes, in seconds, minutes or hours."""
    if seconds is None:
        return ""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


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
    rows = [(p.name, p.expected, p.written, p.meaning) for p in described.parameters]
    threads = f"{described.threads} thread{'' if described.threads == 1 else 's'} a run"
    about = [
        f"about {duration(described.expected_s)} a run" if described.expected_s else "",
        threads,
        "nothing else runs meanwhile" if described.alone else "",
    ]
    return Group(
        Text(described.title, style="bold"),
        Text(", ".join(filter(None, about))),
        Text(""),
        table(("parameter", "type", "default", "meaning"), rows),
    )


def statuses_table(statuses: Iterable["SweepStatus"]) -> Table:
    """Show how far sweeps are: a line each."""
    rows = [
        (s.name, *(str(number) for number in (s.total, s.finished, s.failed, s.running, s.left)))
        for s in statuses
    ]
    return table(("sweep", "runs", "done", "failed", "running now", "left"), rows, right=range(1, 6))


def record_of(run: "StoredRun") -> RenderableType:
    """Show what a run recorded."""
    provenance = run.record["provenance"]
    about = [
        ("status", run.status),
        *([("error", run.record["error"])] if "error" in run.record else []),
        ("started", run.record["started"]),
        ("took", duration(run.record["duration_s"])),
        ("commit", f"{provenance['commit'] or 'unknown'}{', with changes' if provenance['dirty'] else ''}"),
        ("threads", str(provenance["threads"])),
    ]
    values = [
        (f"{group}.{name}", short(value))
        for group in ("parameters", "results", "varying")
        for name, value in getattr(run, group).items()
    ]
    files = [(f"file {name}", f"{kept['bytes']:,} bytes") for name, kept in run.files.items()]
    return Group(Text(run.title, style="bold"), table(("", ""), [*about, *values, *files]))


def results_tables(found: Sequence["Found"]) -> RenderableType:
    """Show what a sweep found: a table for each result, and in it a row for each configuration."""
    from gradtricks.lab.results.drawing import number
    from gradtricks.lab.results.grouping import spell
    from gradtricks.lab.results.summaries import summary_columns

    parts: list[RenderableType] = []
    for each in found:
        axes = each.axes[: len(each.parts[0].values)]
        columns = {
            axis.name: [spell(part.values[place]) for part in each.parts] for place, axis in enumerate(axes)
        }
        columns |= summary_columns(each, lambda value: "" if value != value else number(value))
        columns = {name: cells for name, cells in columns.items() if name not in _ROOM}
        rows = thinned([*zip(*columns.values())])
        parts += [
            Text(each.label, style="bold"),
            table([*columns], rows, right=range(len(axes), len(columns))),
        ]
        parts.append(Text(""))
    told = any("interval" in name for part in parts if isinstance(part, Table) for name in _names(part))
    return Group(*parts, *([Text(_SAID)] if told else []))


def runs_table(frame: "pandas.DataFrame") -> Table:
    """Show runs, a line each; of many, some from the beginning and the end."""
    columns = [values_of(frame[name]) for name in ("run", "status", "duration_s")]
    rows = [(run, status, duration(seconds)) for run, status, seconds in zip(*columns)]
    return table(("run", "status", "took"), thinned(rows), right={2})


def short(value: Any) -> str:
    """Show a value in a line: numbers with four digits, and nothing for nothing."""
    if value is None:
        return ""
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def whole_table(frame: "pandas.DataFrame") -> str:
    """Show every column and every row, a line each however long; quick where there are thousands."""
    columns = [
        [str(frame.columns[place]), *(one_line(short(value)) for value in values_of(frame.iloc[:, place]))]
        for place in range(frame.shape[1])
    ]
    widths = [max(map(len, column)) for column in columns]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths)) for row in zip(*columns))
    return "".join(f"{line.rstrip()}\n" for line in lines)


def thinned(rows: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Leave out the middle of a long table, and say so in its place."""
    if len(rows) <= _SHOWN:
        return list(rows)
    half = _SHOWN // 2
    left_out = (f"… {len(rows) - 2 * half} more", *[""] * (len(rows[0]) - 1))
    return [*rows[:half], left_out, *rows[-half:]]


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, right: Iterable[int] = ()) -> Table:
    """Make a table for Rich, whose cells are shown as they are; those of columns ``right`` stand there."""
    aligned = set(right)
    made = Table(box=None, pad_edge=False, header_style="bold")
    for index, name in enumerate(header):
        made.add_column(Text(name), justify="right" if index in aligned else "left", overflow="fold")
    for row in rows:
        made.add_row(*(Text(text) for text in row))
    return made


def _names(made: Table) -> list[str]:
    return [str(column.header) for column in made.columns]
