"""What runs have found: as a table, as plots, or one run by itself."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from gradtricks.lab.commands.options import DEFAULT_STORE
from gradtricks.lab.commands.terminal import duration, output, short
from gradtricks.lab.commands.terminal import table as laid_out
from gradtricks.lab.notebooks.schema import ParameterError
from gradtricks.lab.results import tables
from gradtricks.lab.storage.places import StoreError, replace
from gradtricks.lab.storage.records import StoredRun
from gradtricks.lab.storage.store import Store, open_store
from gradtricks.lab.sweeps.files import ENDING

if TYPE_CHECKING:
    import pandas

    from gradtricks.lab.results.grouping import Found
    from gradtricks.lab.storage.published import Published

_NO_ROOM = ("lowest", "highest")  # columns that only a page has room for


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


def found(sweep: str, frame: "pandas.DataFrame", *, store: str | Path) -> "list[Found]":
    """Sort a sweep's runs, at least one, by what it shows, or by how long they took if that isn't there."""
    from gradtricks.lab.results import grouping

    _, plan = _find_plan(opened(store), sweep)
    try:
        return grouping.find_results(frame, plan.varied, plan.shown)
    except grouping.PlotError:
        return grouping.find_results(frame, plan.varied, ["duration_s"])


def summary_of(frame: "pandas.DataFrame", found: "Sequence[Found]") -> RenderableType:
    """Show runs as people read them: a table of each result of a sweep, or a line for each of the runs."""
    from gradtricks.lab.results.captions import number, summary_columns

    count = f"{len(frame)} runs"
    if not found:
        runs = zip(frame["run"], frame["status"], map(duration, frame["duration_s"]))
        every = laid_out(("run", "status", "took"), runs, right={2})
        return Group(every, Text(f"{count}. --all shows what is known of them."))
    parts: list[RenderableType] = []
    names: list[str] = []
    for each in found:
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


def plot(
    sweep: str | Path | None = None, *, shown: Sequence[str] = (), store: str | Path = DEFAULT_STORE
) -> list[Path]:
    """Draw what a sweep has found so far, each result as SVG in ``sweeps/<name>`` beside the store.

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
    results = grouping.find_results(tables.table(there, plan), plan.varied, shown or plan.shown)
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


def record_of(run: StoredRun) -> RenderableType:
    """Show what a run recorded."""
    record, provenance = run.record, run.record["provenance"]
    commit = f"{provenance['commit'] or 'unknown'}{', with changes' if provenance['dirty'] else ''}"
    rows = {"status": run.status} | ({"error": record["error"]} if "error" in record else {})
    rows |= {"started": record["started"], "took": duration(record["duration_s"]), "commit": commit}
    rows["threads"] = str(provenance["threads"])
    for group in ("parameters", "results", "varying"):
        rows |= {f"{group}.{name}": short(value) for name, value in getattr(run, group).items()}
    rows |= {f"file {name}": f"{kept['bytes']:,} bytes" for name, kept in run.files.items()}
    return Group(Text(run.title, style="bold"), laid_out(("", ""), rows.items(), whole=True))


def opened(store: str | Path) -> "Store | Published":
    """Open runs to be read; a ParameterError refuses a folder that isn't there, but for the default one."""
    there = open_store(store)
    if not Path(there.location).is_dir() and Path(there.location) != Path(DEFAULT_STORE):
        raise ParameterError(
            f"expected a store in {there.location}; got no folder there; "
            "remedy: see how it is written, or leave out --store"
        )
    return there


def find_run(store: "Store | Published", text: str) -> StoredRun:
    """Find the run that a text means, as it was typed; a ParameterError says if there is none, or several."""
    from gradtricks.lab.storage.published import published_at

    try:
        return published_at(text) or store.lookup(text)
    except StoreError as error:
        raise ParameterError(str(error)) from error


def _find_plan(store: "Store | Published", name: str | Path | None) -> tuple[str, tables.Plan]:
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


def _whole(frame: "pandas.DataFrame", width: int) -> str:
    """Show every column and every row; quick where there are thousands.

    As many columns stand side by side as there is room for; the others follow below, with the first one
    before them, which names the run.
    """
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
