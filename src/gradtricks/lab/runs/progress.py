"""Execute runs and show them: a bar in a terminal, lines elsewhere, and how long the rest will take."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from heapq import nlargest
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task
from rich.table import Column
from rich.text import Text

from gradtricks.lab.encoding import encode
from gradtricks.lab.notebooks.texts import duration, near
from gradtricks.lab.runs.execution import RunError
from gradtricks.lab.runs.local import count_workers
from gradtricks.lab.runs.many import Run, execute_missing, look_up
from gradtricks.lab.runs.planning import Spec, plan_run
from gradtricks.lab.storage import DEFAULT_STORE
from gradtricks.lab.storage.store import Store, StoredRun, store_of_runs

_LINES = 100  # for all finished runs together
_QUIET_S = 30.0  # after which a finished run gets a line in any case
_EXPLAINED = 5  # failures that are printed in full
_RECENT = 64  # records of each notebook and backend that are compared with
_ENOUGH = 3  # runs that were just done say more than any record


class Board(ProgressColumn):
    """Shows runs that go on, so many ``workers`` at once, or as many as there are cores for."""

    max_refresh = 0.5

    def __init__(
        self, runs: Sequence[Run], store: Store, console: Console, *, workers: int | None = None
    ) -> None:
        super().__init__(Column(overflow="ellipsis", no_wrap=True))
        self._runs, self._console = runs, console
        self._left = {run.spec.request: run for run in runs if run.missing}
        specs = [run.spec for run in self._left.values()]
        self._total, self._failed, self._stopping = len(specs), 0, False
        self._workers = workers or count_workers(specs)
        self._pace = Pace([] if console.quiet else specs, store)
        self._printed = monotonic()
        count = Column(no_wrap=True, min_width=len(f"{self._total}/{self._total}"))
        columns = MofNCompleteColumn(table_column=count), BarColumn(bar_width=None), self
        hidden = not console.is_terminal or not specs
        self._bar = Progress(*columns, console=console, transient=True, disable=hidden, expand=True)
        self._task = self._bar.add_task("", total=self._total)

    @contextmanager
    def live(self) -> Iterator[None]:
        """Show the bar for as long as the runs take."""
        found = sum(run.stored is not None for run in self._runs)
        if found and len(self._runs) > 1:
            self._print(f"{found} of {len(self._runs)} runs are finished already.")
        if failed := sum(run.error is not None for run in self._runs):
            self._print(f"{failed} have failed before; --retry failed tries them again.")
        with self._bar:
            yield

    def stop(self) -> None:
        """Say that no further run will be started."""
        self._stopping = True
        self._print("Stopping: what is going on is finished and kept. Ctrl-C again ends that too.")

    def tell(self, run: Run) -> None:
        """Note a run that has begun, ended, or lost its process and waits again."""
        if self._console.quiet or run.missing or self._left.pop(run.spec.request, None) is None:
            return
        self._bar.advance(self._task)
        place = f"{self._total - len(self._left)}/{self._total} {run.spec.title}"
        if run.stored:
            self._pace.learn(run.spec, run.seconds)
            if self._is_due():
                left = None if self._console.is_terminal else self._left_s()
                self._print(f"{place}: {duration(run.seconds)}{f', {duration(left)} left' if left else ''}")
            return
        self._failed += 1
        if len(self._runs) == 1:  # a command for only this one says why
            self._print(f"{place}: failed", style="red")
        elif self._failed <= _EXPLAINED:
            self._print(f"{place}: failed\n{run.error}", style="red")
        elif self._is_due():
            self._print(f"{place}: failed, {self._failed} so far", style="red")

    def render(self, task: Task) -> Text:
        """Say behind the bar how long the rest takes, if that is known, and how many runs have failed."""
        left = self._left_s()
        parts = ["stopping"] if self._stopping else [f"about {duration(left)} left"] if left else []
        parts += [f"{self._failed} failed"] * bool(self._failed)
        return Text(", ".join([*parts, f"{len(self._going())} running"]))

    def _is_due(self) -> bool:
        """Say whether this one gets a line: of 10,000 runs, one in a hundred does."""
        done = self._total - len(self._left)
        step = max(1, -(-self._total // _LINES))
        return done % step == 0 or not self._left or monotonic() - self._printed > _QUIET_S

    def _going(self) -> list[Run]:
        return [run for run in list(self._left.values()) if run.state == "going"]

    def _left_s(self) -> float | None:
        return self._pace.left_s(list(self._left.values()), max(self._workers, len(self._going())))

    def _print(self, text: str, style: str = "") -> None:
        self._printed = monotonic()
        self._console.print(Text(text, style=style), soft_wrap=True)


class Pace:
    """Estimates how long runs take: from those that just ended, from a store's records, or their author."""

    def __init__(self, specs: Sequence[Spec], store: Store) -> None:
        self._done: Counter[str] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        earlier = _earlier(specs, store)
        self._recorded = {spec.request: _of_similar(spec, earlier[spec.name]) for spec in specs}

    def learn(self, spec: Spec, seconds: float) -> None:
        """Note how long a run took that has just finished."""
        self._done[spec.name] += 1
        self._seconds[spec.name] += seconds

    def expected_s(self, spec: Spec) -> float | None:
        """Estimate the seconds of a run; None where nothing is known."""
        recorded, done = self._recorded.get(spec.request), self._done[spec.name]
        if done >= _ENOUGH or (done and recorded is None):
            return self._seconds[spec.name] / done
        return spec.expected_s if recorded is None else recorded

    def left_s(self, runs: Collection[Run], workers: int) -> float | None:
        """Estimate in how many seconds runs are done that wait or go on; None if nothing is known of one."""
        now, left = monotonic(), list[float]()
        for run in runs:
            if (expected := self.expected_s(run.spec)) is None:
                return None
            left.append(max(expected - (now - run.began if run.state == "going" else 0.0), 0.0))
        # No worker can help with the longest one.
        return max(sum(left) / workers, max(left, default=0.0))


def estimate_s(missing: Sequence[Spec], store: Store, workers: int | None) -> float | None:
    """Estimate in how many seconds runs are done, so many at once, or as many as there are cores for.

    None where nothing is known of one of them.
    """
    runs = [Run(spec) for spec in missing]
    return Pace(missing, store).left_s(runs, workers or count_workers(missing))


def run(
    notebook: str | Path,
    parameters: Mapping[str, Any] | Iterable[str] = (),
    *,
    threads: int | None = None,
    timeout_s: float | None = None,
    again: bool = False,
    store: str | Path = DEFAULT_STORE,
    console: Console | None = None,
) -> StoredRun:
    """Run a notebook, unless the same run is finished already, and return the finished run.

    It runs in this process's working directory, as papermill runs it.

    Args:
        notebook: Path of the source notebook.
        parameters: By name, or texts such as ``scale=0.5``; the others keep their defaults.
        threads: That the run may use; None leaves it to the notebook.
        timeout_s: Ends the run when it takes longer.
        again: Run it in any case; a run that is kept is replaced when the new one has finished.
        store: Of the runs.
        console: Where to show how it goes, and at the end where the run is kept; None shows nothing.

    Raises:
        ParameterError: A parameter is unknown or of the wrong type; nothing was started.
        RunError: The run failed; its notebook is kept.
    """
    notebook = Path(notebook)
    planned = plan_run(notebook, parameters, threads=threads)
    opened = store_of_runs(store)
    how: dict[str, Any] = {"workers": 1, "timeout_s": timeout_s, "retry_failed": True, "again": again}
    (done,) = execute_shown([planned], opened, console, **how)
    if done.stored is None:
        raise RunError(done.error or f"{planned.title} wasn't run")
    if console is not None:
        kept = f"Kept from {done.stored.record['started']}, nothing was run (--again does)"
        said = "Finished" if done.worker else kept
        console.print(Text(f"{said}: {near(done.stored.location)}"), soft_wrap=True)
    return done.stored


def execute_shown(
    specs: Sequence[Spec],
    store: Store,
    console: Console | None = None,
    *,
    retry_failed: bool = False,
    again: bool = False,
    **options: Any,
) -> list[Run]:
    """Execute runs, and show how far they are; return a `Run` each, in their order.

    Without a console nothing is shown. Runs that failed before are left alone but for ``retry_failed``, and
    finished ones but for ``again``, with which each is replaced when its new run has finished. The other
    options are those of `gradtricks.lab.runs.many.execute_missing`, and so is what it raises.
    """
    specs = [replace(spec, anew=again) for spec in specs]
    runs = look_up(specs, store, retry_failed=retry_failed)
    board = Board(runs, store, console or Console(quiet=True), workers=options.get("workers"))
    with board.live():
        execute_missing(runs, store, on_change=board.tell, on_stop=board.stop, **options)
    return runs


def _earlier(specs: Iterable[Spec], store: Store) -> defaultdict[str, list[StoredRun]]:
    found: defaultdict[str, list[StoredRun]] = defaultdict(list)
    for stem in {spec.stem for spec in specs}:
        for stored in store.runs(stem):
            if stored.status == "finished":
                found[stored.record["name"]].append(stored)
    for each in found.values():
        each[:] = nlargest(_RECENT, each, key=lambda stored: stored.record["started"])
    return found


def _of_similar(spec: Spec, earlier: Sequence[StoredRun]) -> float | None:
    """Take the median of those with the most parameters in common: a quick run tells little of a full one."""
    alike: defaultdict[int, list[float]] = defaultdict(list)
    wanted = {name: encode(value, name) for name, value in spec.parameters.items()}
    for stored in earlier:
        recorded = stored.record["parameters"]
        equal = sum(name in recorded and recorded[name] == value for name, value in wanted.items())
        alike[equal].append(float(stored.record["duration_s"]))
    return median(alike[max(alike)]) if alike else None
