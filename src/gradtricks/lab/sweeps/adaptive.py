"""Adaptive search: Optuna proposes parameters, the lab runs them, and a kill loses nothing that was told."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from filelock import FileLock, Timeout

from gradtricks.lab.runs.many import Interrupted, Run, Scheduler, execute_missing, look_up
from gradtricks.lab.storage.store import Store, StoredRun
from gradtricks.lab.sweeps.planning import Search, Sweep
from gradtricks.lab.sweeps.studies import SearchError, Study, Trial, TrialError, study_folder

__all__ = ["Found", "SearchError", "TrialError", "search"]


@dataclass(frozen=True)
class Found:
    """What a search found.

    Attributes:
        sweep: All runs of all trials, as of a sweep, for tables and plots.
        runs: What came of each of them.
        best: The runs of the best trial, one for each seed; empty where no trial succeeded.
        value: Of the objective in the best trial; None where no trial succeeded.
    """

    sweep: Sweep
    runs: tuple[Run, ...]
    best: tuple[StoredRun, ...]
    value: float | None


def search(
    spec: Search,
    store: Store,
    *,
    workers: int | None = None,
    scheduler: Scheduler | None = None,
    timeout_s: float | None = None,
    on_change: Callable[[Run], object] | None = None,
    on_planned: Callable[[Sweep], object] | None = None,
) -> Found:
    """Search for good parameters: as soon as a worker is free, Optuna proposes what it should try next.

    The study is in a database beside the runs unless the sweep file names another. Interrupted or killed, the
    same call goes on: what was told stays told, and the trials that were going on are run again, those of
    their runs excepted that are finished. A trial with a failed run is a failed one, and the search goes on.
    With one worker the same seed proposes the same trials, interrupted or not.

    Args:
        spec: From `gradtricks.lab.sweeps.planning.read_search`.
        store: Where runs are kept.
        workers: Runs at once; None means as many as the cores, or the cluster's workers, have room for.
        scheduler: Of a dask cluster; None means this machine.
        timeout_s: Ends a run that takes longer; None leaves it to the sweep file.
        on_change: Called in this thread with a run whenever that begins or ends.
        on_planned: Called in this thread whenever trials were added, with all of them.

    Returns:
        What was found.

    Raises:
        SearchError: Optuna isn't installed, or the study can't be used.
        TrialError: Runs don't record the objective, or the notebook was edited meanwhile.
        Interrupted: By Ctrl-C or SIGTERM.
        SchedulerError: The cluster can't be used, or is gone.
    """
    with _only_one(spec, store), closing(Study(spec, store)) as study:
        progress = _Progress(spec, study, store, on_planned or (lambda sweep: None))
        try:
            execute_missing(
                progress.more(1),
                store,
                workers=workers,
                scheduler=scheduler,
                timeout_s=spec.timeout_s if timeout_s is None else timeout_s,
                on_change=on_change,
                then=progress.more,
            )
        except Interrupted:
            raise Interrupted(progress.runs()) from None
        return progress.found()


class _Progress:
    """Which trials go on, and what came of their runs so far."""

    def __init__(
        self, spec: Search, study: Study, store: Store, on_planned: Callable[[Sweep], object]
    ) -> None:
        self._spec = spec
        self._study = study
        self._store = store
        self._on_planned = on_planned
        self._again = deque(study.unfinished())
        self._trials = {trial.number: trial for trial in study.trials()}
        self._going: dict[int, Trial] = {}
        self._known: dict[str, Run] = {}

    def more(self, room: int) -> list[Run]:
        """Tell the study what has ended, and ask it for trials until there is enough to do."""
        added: list[Run] = []
        taken = False
        self._tell_complete()
        while self._pending() < room and (
            trial := self._again.popleft() if self._again else self._study.ask()
        ):
            taken = True
            self._trials[trial.number] = self._going[trial.number] = trial
            new = [spec for spec in trial.runs if spec.request not in self._known]
            for run in look_up(new, self._store, retry_failed=False):
                self._known[run.spec.request] = run
                added.append(run)
            self._tell_complete()
        if taken:  # with nothing to be done too, where another sweep has done it
            self._on_planned(self._sweep())
        return added

    def runs(self) -> list[Run]:
        """Return what is known of all runs of all trials, those that went before this call included."""
        specs = self._sweep().runs
        return [
            self._known.get(run.spec.request, run) for run in look_up(specs, self._store, retry_failed=False)
        ]

    def found(self) -> Found:
        """Return what was found."""
        best = self._study.best()
        stored = self._store.find_all(best[0].runs) if best else {}
        return Found(self._sweep(), tuple(self.runs()), tuple(stored.values()), best[1] if best else None)

    def _pending(self) -> int:
        specs = {spec.request for trial in self._going.values() for spec in trial.runs}
        return sum(self._known[request].missing for request in specs)

    def _tell_complete(self) -> None:
        for trial in list(self._going.values()):
            runs = [self._known[spec.request] for spec in trial.runs]
            if not any(run.missing for run in runs):
                self._study.tell(trial, [run.stored for run in runs if run.stored])
                del self._going[trial.number]

    def _sweep(self) -> Sweep:
        spec, trials = self._spec, [self._trials[number] for number in sorted(self._trials)]
        runs = {run.request: run for trial in trials for run in trial.runs}
        return Sweep(
            name=spec.name,
            notebook=spec.notebook,
            runs=tuple(runs.values()),
            shown=spec.shown or (spec.optuna.objective,),
            title=spec.title,
            question=spec.question,
            varied=(*spec.space, *(["seed"] if len(spec.seeds) > 1 else [])),
            timeout_s=spec.timeout_s,
        )


@contextmanager
def _only_one(spec: Search, store: Store) -> Iterator[None]:
    """Keep a second driver from doing the same trials; the store's own folder is where both would look."""
    folder = study_folder(store)
    if folder is None:
        yield
        return
    lock = FileLock(folder / f"{spec.name}.lock")
    try:
        held: Any = lock.acquire(timeout=0)
    except Timeout:
        raise SearchError(
            f"the search {spec.name!r} is going on in another process; remedy: wait for it, or end it"
        ) from None
    with held:
        yield
