"""List experiments, their parameters, and how far sweeps are; nothing is run."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import nbformat

from gradtricks.lab.notebooks.schema import (
    Parameter,
    ParameterError,
    Settings,
    read_notebook,
    read_settings,
)
from gradtricks.lab.notebooks.texts import duration
from gradtricks.lab.results.tables import read_plan, runs_of
from gradtricks.lab.runs.planning import parse_notebook
from gradtricks.lab.storage import DEFAULT_STORE
from gradtricks.lab.storage.published import open_store
from gradtricks.lab.sweeps.files import ENDING, read_file
from gradtricks.lab.sweeps.reading import opened


@dataclass(frozen=True)
class Description:
    """A notebook's title, its first heading, with its parameters and settings."""

    title: str
    parameters: tuple[Parameter, ...]
    settings: Settings


class Experiment(NamedTuple):
    """A notebook or a sweep's file."""

    notebook: Path  # or a sweep's file that names none
    question: str  # its title, or what is wrong with it
    expected: str  # how long a run is said to take
    finished: int  # runs
    sweeps: str  # files that sweep it


class SweepStatus(NamedTuple):
    """The number of a sweep's runs, and how far they are."""

    sweep: str
    runs: int
    done: int
    failed: int  # when they last ran
    running: int  # in whatever process of this machine
    left: int  # neither ran nor are running


def describe(notebook: str | Path) -> Description:
    """Read a notebook's title, parameters and settings.

    Raises:
        FileNotFoundError: There is no such notebook.
        ParameterError: A default contradicts its annotation, or a setting doesn't fit.
    """
    path, node, parameters = parse_notebook(Path(notebook))
    return Description(_title(node, path), tuple(parameters.values()), read_settings(node, str(path)))


def list_experiments(
    folder: str | Path = "experiments", *, store: str | Path = DEFAULT_STORE
) -> list[Experiment]:
    """List the notebooks of a folder by name, with their sweeps and how many runs in the store are finished.

    Sweep files that name no notebook come last.

    Raises:
        FileNotFoundError: The folder holds no notebook.
    """
    notebooks = _files(folder, ".ipynb")
    if not notebooks:
        raise FileNotFoundError(f"expected notebooks in {folder}; got none; remedy: name their folder")
    finished = Counter(run.record["stem"] for run in open_store(store).runs() if run.status == "finished")
    # Other faults of a sweep's file are told when it is run.
    sweeps = {path: read_file(path)[1:] for path in _files(folder, ENDING)}
    found = []
    for path in notebooks:
        own = (p.name for p, (file, _) in sweeps.items() if file and Path(file.notebook).name == path.name)
        try:
            node = read_notebook(path)
            title, expected_s = _title(node, path), read_settings(node, str(path)).expected_s
        except ParameterError as error:
            title, expected_s = str(error), None
        found.append(Experiment(path, title, duration(expected_s), finished[path.stem], ", ".join(own)))
    broken = {path: str(problems.error()) for path, (file, problems) in sweeps.items() if file is None}
    return found + [Experiment(path, wrong, "", 0, "") for path, wrong in broken.items()]


def status(*, store: str | Path = DEFAULT_STORE) -> list[SweepStatus]:
    """Say how far the sweeps of a store are, by name, whichever process runs them."""
    there = opened(store)
    claimed = there.claimed()
    found = []
    for name in there.plans():
        runs = read_plan(there.plan(name)).runs
        states = Counter(run.status for run in runs_of(there, runs) if run.request not in claimed)
        counts = states["finished"], states["failed"], sum(run.request in claimed for run in runs)
        found.append(SweepStatus(name, len(runs), *counts, left=len(runs) - sum(counts)))
    return found


def _files(folder: str | Path, ending: str) -> list[Path]:
    return sorted(path for path in Path(folder).glob(f"*{ending}") if path.is_file())


def _title(node: nbformat.NotebookNode, path: Path) -> str:
    lines = (line for cell in node.cells if cell.cell_type == "markdown" for line in cell.source.splitlines())
    return next((line.lstrip("# ").strip() for line in lines if line.startswith("#")), None) or path.stem
