"""What there is, without running anything: experiments, their parameters, and how far sweeps are."""

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import sleep

import nbformat
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gradtricks.lab.commands.options import DEFAULT_STORE
from gradtricks.lab.commands.terminal import duration, output, table
from gradtricks.lab.notebooks.schema import (
    Parameter,
    ParameterError,
    Settings,
    read_notebook,
    read_parameters,
    read_settings,
)
from gradtricks.lab.results.tables import read_plan, runs_of
from gradtricks.lab.storage.store import open_store
from gradtricks.lab.sweeps.files import ENDING, read_file

_LOOK_EVERY_S = 1.0


@dataclass(frozen=True)
class Description:
    """What a notebook takes, and what it says of itself; its title is its first heading."""

    title: str
    parameters: tuple[Parameter, ...]
    settings: Settings

    def __rich__(self) -> RenderableType:
        """Show each parameter in a line."""
        how = self.settings
        about = [f"about {duration(how.expected_s)} a run"] if how.expected_s else []
        about += [f"{how.threads} thread{'' if how.threads == 1 else 's'} a run"]
        about += ["nothing else runs meanwhile"] if how.alone else []
        rows = [(each.name, each.expected, each.written, each.meaning) for each in self.parameters]
        taken = table(("parameter", "type", "default", "meaning"), rows, whole=True)
        return Group(Text(self.title, style="bold"), Text(f"{', '.join(about)}\n"), taken)


@dataclass(frozen=True)
class Experiment:
    """A notebook, the seconds that a run is said to take, its finished runs, and files that sweep it."""

    notebook: Path  # or another file that can't be read
    title: str  # or what is wrong with it
    expected_s: float | None
    finished: int
    sweeps: tuple[Path, ...]


@dataclass(frozen=True)
class SweepStatus:
    """How many runs a sweep has, and how many of them are finished, failed when they last ran, or go on."""

    name: str
    total: int
    finished: int
    failed: int
    running: int  # in whatever process of this machine

    @property
    def left(self) -> int:
        """How many neither ran nor are running."""
        return self.total - self.finished - self.failed - self.running


def describe(notebook: str | Path) -> Description:
    """Read what a notebook takes, and what it says of itself.

    Raises:
        FileNotFoundError: There is no such notebook.
        ParameterError: A default contradicts its annotation, or a setting doesn't fit.
    """
    path = Path(notebook)
    node = read_notebook(path)
    parameters = tuple(read_parameters(node, str(path)).values())
    return Description(_title(node, path), parameters, read_settings(node, str(path)))


def list_experiments(
    folder: str | Path = "experiments", *, store: str | Path = DEFAULT_STORE
) -> list[Experiment]:
    """List the notebooks of a folder by name, with their sweeps and how many runs in the store are finished.

    A notebook that can't be read or understood has what is wrong for its title. Sweep files of which nobody
    can tell whose they are come last, in the same way.

    Raises:
        FileNotFoundError: The folder holds no notebook.
    """
    notebooks = _files(folder, ".ipynb")
    if not notebooks:
        raise FileNotFoundError(f"expected notebooks in {folder}; got none; remedy: name their folder")
    finished = Counter(run.record["stem"] for run in open_store(store).runs() if run.status == "finished")
    # What else is wrong in a sweep's file, running it says.
    sweeps = {path: read_file(path)[1:] for path in _files(folder, ENDING)}
    found = []
    for path in notebooks:
        own = tuple(p for p, (file, _) in sweeps.items() if file and Path(file.notebook).name == path.name)
        try:
            node = read_notebook(path)
            title, expected_s = _title(node, path), read_settings(node, str(path)).expected_s
        except ParameterError as error:
            title, expected_s = str(error), None
        found.append(Experiment(path, title, expected_s, finished[path.stem], own))
    broken = {path: str(problems.error()) for path, (file, problems) in sweeps.items() if file is None}
    return found + [Experiment(path, wrong, None, 0, ()) for path, wrong in broken.items()]


def status(*, store: str | Path = DEFAULT_STORE) -> list[SweepStatus]:
    """Say how far the sweeps of a store are, by name, whichever process runs them."""
    opened = open_store(store)
    claimed = opened.claimed()
    found = []
    for name in opened.plans():
        runs = read_plan(opened.plan(name)).runs
        states = Counter(run.status for run in runs_of(opened, runs) if run.request not in claimed)
        running = sum(run.request in claimed for run in runs)
        found.append(SweepStatus(name, len(runs), states["finished"], states["failed"], running))
    return found


def statuses_table(statuses: Iterable[SweepStatus]) -> Table:
    """Show how far sweeps are: a line each."""
    rows = [(s.name, *map(str, (s.total, s.finished, s.failed, s.running, s.left))) for s in statuses]
    header = ("sweep", "runs", "done", "failed", "running now", "left")
    return table(header, rows, right=range(1, 6), whole=True)


def watch(store: str | Path) -> None:
    """Show how far sweeps are until nothing is left, or somebody has seen enough."""
    with suppress(KeyboardInterrupt), Live(console=output, auto_refresh=False) as live:
        while True:
            found = status(store=store)
            live.update(statuses_table(found), refresh=True)
            if not any(each.left or each.running for each in found):
                return
            sleep(_LOOK_EVERY_S)


def _files(folder: str | Path, ending: str) -> list[Path]:
    return sorted(path for path in Path(folder).glob(f"*{ending}") if path.is_file())


def _title(node: nbformat.NotebookNode, path: Path) -> str:
    lines = (line for cell in node.cells if cell.cell_type == "markdown" for line in cell.source.splitlines())
    return next((line.lstrip("# ").strip() for line in lines if line.startswith("#")), None) or path.stem
