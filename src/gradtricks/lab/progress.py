"""Runs one after another, with a progress bar: which one is going on, and how long is left."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from time import monotonic

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from gradtricks.lab.kernels import Kernels
from gradtricks.lab.recording import decode
from gradtricks.lab.runs import Run, execute
from gradtricks.lab.store import Store

_UNKNOWN_S = 60.0  # a guess for a notebook that never ran here and says nothing about itself


def execute_all(runs: Sequence[Run], store: Store, failures: Path, console: Console) -> dict[str, Path]:
    """Execute runs, and show how far they are.

    Args:
        runs: What is to be executed; what is finished already isn't done again.
        store: Where finished runs are.
        failures: Folder that keeps the notebooks of failed runs.
        console: Where to show it; a line for each run, and a bar where it is a terminal.

    Returns:
        The folder of each finished run, by the run's name.

    Raises:
        RunError: A run failed; those before it are kept.
    """
    folders = {run.name: store.find(run.stem, run.request) for run in runs}
    missing = [run for run in runs if not folders[run.name]]
    if len(missing) < len(runs):
        console.print(
            f"{len(runs) - len(missing)} of {len(runs)} runs are finished already.", highlight=False
        )
    left = [_expected_s(run, store) for run in missing]
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[left]} left"))
    with (
        closing(Kernels(max((run.threads for run in missing), default=1))) as kernels,
        Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress,
    ):
        task = progress.add_task("", total=sum(left), left="")
        for index, run in enumerate(missing):
            title, started = f"{index + 1}/{len(missing)} {run.name}", monotonic()
            with _ticking(progress, task, title, left[index:]):
                folders[run.name] = execute(run, store, failures, kernels)
            console.print(f"{title}: {monotonic() - started:.0f} s", highlight=False)
    return {name: folder for name, folder in folders.items() if folder}


@contextmanager
def _ticking(progress: Progress, task: TaskID, title: str, left: Sequence[float]) -> Iterator[None]:
    """Let the bar move while one run, whose expected seconds come first in ``left``, is going on."""
    started, stop = monotonic(), threading.Event()
    total = progress.tasks[task].total or 0.0

    def tick() -> None:
        while not stop.is_set():
            remaining = sum(left) - min(monotonic() - started, left[0])
            progress.update(task, description=title, completed=total - remaining, left=_spoken(remaining))
            stop.wait(0.5)

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _expected_s(run: Run, store: Store) -> float:
    """Take the time of the last run with these parameters, or what the notebook says of itself."""
    before = [record for record in store.records(run.stem) if decode(record["parameters"]) == run.parameters]
    if before:
        return float(max(before, key=lambda record: record["started"])["duration_s"])
    return float(run.expected_s or _UNKNOWN_S)


def _spoken(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
