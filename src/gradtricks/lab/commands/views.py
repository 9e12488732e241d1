"""Show results: how far sweeps are, tables, plots, and one run by itself."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from gradtricks import lab
from gradtricks.lab.commands import options as given
from gradtricks.lab.commands.options import Printed, command
from gradtricks.lab.commands.terminal import output, short
from gradtricks.lab.commands.terminal import table as laid_out
from gradtricks.lab.notebooks.texts import ParameterError, duration, near
from gradtricks.lab.storage import DEFAULT_STORE

if TYPE_CHECKING:
    import pandas

    from gradtricks.lab.results.grouping import ResultSummary
    from gradtricks.lab.storage.records import StoredRun

_NO_ROOM = ("lowest", "highest")  # columns that only a page has room for


@command("Results", "gradtricks status")
def status(store: given.StoreLocation = DEFAULT_STORE) -> Printed:
    """Show how far each sweep of a store is, whichever process runs it: done, failed, running now, left."""
    from gradtricks.lab.sweeps.overviews import SweepStatus

    yield laid_out(SweepStatus._fields, lab.status(store=store), right=range(1, 6), whole=True)


@command(
    "Results",
    "gradtricks table unrolling",
    "gradtricks table unrolling --all",
    "gradtricks table unrolling --to parquet --output unrolling.parquet",
)
def table(
    sweep_name: given.SweepName = None,
    everything: given.All = False,
    to: given.To = None,
    path: given.Output = None,
    store: given.StoreLocation = DEFAULT_STORE,
) -> Printed:
    """Tabulate the results of a sweep: the mean, its interval and the number of runs of each configuration.

    Without a sweep, list the runs of the store. --all and files have a row for each run,
    with the columns run, status, error, stem, parameters.NAME, results.NAME,
    varying.NAME, provenance.NAME, started and duration_s.
    """
    from gradtricks.lab.sweeps.reading import summarize

    frame = lab.table(sweep_name, store=store)
    if everything or to or path:
        yield from write(frame, to, path)
    else:
        sweep = None if frame.empty else sweep_name
        yield summary_of(frame, summarize(sweep, frame, store=store) if sweep else ())


@command("Results", "gradtricks plot unrolling", "gradtricks plot unrolling --show results.loss_after")
def plot(
    sweep_name: given.SweepName = None,
    shown: given.Results = None,
    store: given.StoreLocation = DEFAULT_STORE,
) -> Printed:
    """Draw the results of a sweep so far, as SVG, in the folder sweeps beside the store."""
    yield from map(str, lab.plot(sweep_name, shown=shown or (), store=store))


@command("Results", "gradtricks show masking-torch")
def show(name: given.StoredName, store: given.StoreLocation = DEFAULT_STORE) -> Printed:
    """Show what a run recorded, and where its executed notebook is, for Jupyter or an editor to open."""
    stored = lab.show(name, store=store)
    yield record_of(stored)
    if stored.executed:
        yield f"Notebook: {near(stored.location)}/notebook.ipynb"


def summary_of(frame: "pandas.DataFrame", results: "Sequence[ResultSummary]") -> RenderableType:
    """Show runs as people read them: a table of each result of a sweep, or a line for each of the runs."""
    from gradtricks.lab.results.captions import number, summary_columns

    count = f"{len(frame)} runs"
    if not results:
        runs = zip(frame["run"], frame["status"], map(duration, frame["duration_s"]))
        every = laid_out(("run", "status", "took"), runs, right={2})
        return Group(every, Text(f"{count}. --all shows what is known of them."))
    parts: list[RenderableType] = []
    names: list[str] = []
    for each in results:
        columns = {
            axis.name: [axis.spell(part.values[place]) for part in each.parts]
            for place, axis in enumerate(each.axes)
        }
        summed = summary_columns(each, lambda value: "" if value != value else number(value))
        columns |= {name: cells for name, cells in summed.items() if name not in _NO_ROOM}
        names += summed
        made = laid_out([*columns], zip(*columns.values()), right=range(len(each.axes), len(columns)))
        parts += [Text(each.label, style="bold"), made, Text("")]
    if any("interval" in name for name in names):
        parts.append(Text("Intervals are bootstrap intervals of the interquartile mean, from ten runs on."))
    failed = sum(frame["status"] == "failed")
    said = f"{count}{f', {failed} of them failed' if failed else ''}. --all shows each of them."
    return Group(*parts, Text(said))


def write(frame: "pandas.DataFrame", to: str | None, path: Path | None) -> Iterator[str]:
    """Write every row and column of a table to a file, in one step, or yield them as text to be printed.

    Its form is ``to``, or the ending of the file's name. A ParameterError says that it isn't clear or isn't
    text, or that it doesn't take the table, and a FileNotFoundError that there is no folder for the file.
    """
    from gradtricks.lab.results import tables  # with pandas
    from gradtricks.lab.storage.places import replace

    form = to or (path.suffix.removeprefix(".") if path else None)
    if form is None:
        yield _whole(frame, output.width)
    elif form not in ("parquet", "csv"):
        raise ParameterError(f"expected --to or an ending: one of parquet, csv; got {path}")
    elif path is None:
        if form != "csv":
            raise ParameterError(f"expected --output FILE too, since {form} isn't text; got none")
        yield tables.as_csv(frame).removesuffix("\n")
    elif path.is_dir():
        raise ParameterError(f"expected a file to write; got the folder {path}")
    elif not path.parent.is_dir():
        raise FileNotFoundError(f"expected a folder {path.parent} to write {path.name} in; got none")
    else:
        data = tables.as_csv(frame).encode() if form == "csv" else tables.as_parquet(frame)
        path = path.resolve()  # a link stays one
        if path.exists() and not path.is_file():  # and so does a pipe
            path.write_bytes(data)
        else:
            replace(path, data)


def record_of(run: "StoredRun") -> RenderableType:
    """Show a run's record."""
    record, provenance = run.record, run.record["provenance"]
    commit = f"{provenance['commit'] or 'unknown'}{', with changes' if provenance['dirty'] else ''}"
    rows = {"status": run.status} | ({"error": record["error"]} if "error" in record else {})
    rows |= {"started": record["started"], "took": duration(record["duration_s"]), "commit": commit}
    rows["threads"] = str(provenance["threads"])
    for group in ("parameters", "results", "varying"):
        rows |= {f"{group}.{name}": short(value) for name, value in getattr(run, group).items()}
    rows |= {f"file {name}": f"{kept['bytes']:,} bytes" for name, kept in run.files.items()}
    return Group(Text(run.title, style="bold"), laid_out(("", ""), rows.items(), whole=True))


def _whole(frame: "pandas.DataFrame", width: int) -> str:
    """Show every column and every row; quick where there are thousands.

    As many columns stand side by side as there is room for; the others follow below, with the first one
    before them, which names the run.
    """
    from gradtricks.lab.results import tables

    named = [(str(name), tables.values_of(column)) for name, column in frame.items()]
    columns = [[name, *(tables.one_line(short(value)) for value in values)] for name, values in named]
    if not columns:
        return ""
    first, *others = [[cell.ljust(max(map(len, column))) for cell in column] for column in columns]
    blocks, room = [[first]], width - len(first[0])
    for column in others:
        if len(column[0]) + 2 > room and len(blocks[-1]) > 1:
            blocks.append([first])
            room = width - len(first[0])
        blocks[-1].append(column)
        room -= len(column[0]) + 2
    return "\n\n".join("\n".join("  ".join(row).rstrip() for row in zip(*block)) for block in blocks)
