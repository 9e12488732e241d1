"""Searches: Optuna proposes parameters, the lab runs them, and a kill loses nothing that was told."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

from filelock import FileLock, Timeout

from gradtricks.lab.notebooks.schema import ParameterError
from gradtricks.lab.runs.many import Interrupted, Run, Scheduler, execute_missing, look_up
from gradtricks.lab.storage.store import Store, StoredRun
from gradtricks.lab.sweeps.plans import Sweep
from gradtricks.lab.sweeps.studies import Study, Trial, study_folder


def search(
    sweep: Sweep,
    store: Store,
    *,
    workers: int | None = None,
    scheduler: Scheduler | None = None,
    timeout_s: float | None = None,
    on_change: Callable[[Run], object] = lambda run: None,
    on_planned: Callable[[Sweep], object] = lambda grown: None,
) -> tuple[list[Run], list[StoredRun]]:
    """Search for good parameters: as soon as a worker is free, Optuna proposes what it should try next.

    The study is in a database beside the runs unless the sweep file names another. Interrupted or killed, the
    same call goes on: what was told stays told, and the trials that were going on are run again, those of
    their runs excepted that are finished. A trial with a failed run is a failed one, and the search goes on.
    With one worker the same seed proposes the same trials, interrupted or not.

    Args:
        sweep: From `gradtricks.lab.sweeps.plans.read_sweep`, with ``optuna``.
        store: Where runs are kept.
        workers: Runs at once; None means as many as the cores, or the cluster's workers, have room for.
        scheduler: Of a dask cluster; None means this machine.
        timeout_s: Ends a run that takes longer; None leaves it to the sweep file.
        on_change: Called in this thread with a run whenever that begins or ends.
        on_planned: Called in this thread whenever trials were added, with the sweep of all of them.

    Returns:
        What came of the runs of all trials, and those of the best trial, one for each seed.

    Raises:
        ParameterError: Optuna isn't installed, or the study can't be used.
        RunError: Runs don't record the objective, or the notebook was edited meanwhile.
        Interrupted: By Ctrl-C or SIGTERM.
        SchedulerError: The cluster can't be used, or is gone.
    """
    with _only_one(sweep, store), closing(Study(sweep, store)) as study:
        trials = _Trials(sweep, study, store, on_planned)
        try:
            execute_missing(
                trials.more(1),
                store,
                workers=workers,
                scheduler=scheduler,
                timeout_s=sweep.timeout_s if timeout_s is None else timeout_s,
                on_change=on_change,
                then=trials.more,
            )
        except Interrupted:
            raise Interrupted(trials.runs()) from None
        return trials.runs(), list(store.find_all(study.best()).values())


class _Trials:
    """Which trials go on, and what came of their runs so far."""

    def __init__(
        self, sweep: Sweep, study: Study, store: Store, on_planned: Callable[[Sweep], object]
    ) -> None:
        self._sweep = sweep
        self._study = study
        self._store = store
        self._on_planned = on_planned
        self._again = deque(study.unfinished())
        self._all = {trial.number: trial for trial in study.trials()}
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
            self._all[trial.number] = self._going[trial.number] = trial
            new = [spec for spec in trial.runs if spec.request not in self._known]
            found = look_up(new, self._store, retry_failed=False)
            self._known |= {run.spec.request: run for run in found}
            added += found
            self._tell_complete()
        if taken:  # with nothing to be done too, where another sweep has done it
            self._on_planned(self._grown())
        return added

    def runs(self) -> list[Run]:
        """Return what is known of all runs of all trials, those that went before this call included."""
        before = look_up(self._grown().runs, self._store, retry_failed=False)
        return [self._known.get(run.spec.request, run) for run in before]

    def _pending(self) -> int:
        requests = {spec.request for trial in self._going.values() for spec in trial.runs}
        return sum(self._known[request].missing for request in requests)

    def _tell_complete(self) -> None:
        for trial in list(self._going.values()):
            runs = [self._known[spec.request] for spec in trial.runs]
            if not any(run.missing for run in runs):
                self._study.tell(trial, [run.stored for run in runs if run.stored])
                del self._going[trial.number]

    def _grown(self) -> Sweep:
        specs = {spec.request: spec for _, trial in sorted(self._all.items()) for spec in trial.runs}
        return replace(self._sweep, runs=tuple(specs.values()))


@contextmanager
def _only_one(sweep: Sweep, store: Store) -> Iterator[None]:
    """Keep a second driver from doing the same trials; the store's own folder is where both would look."""
    folder = study_folder(store)
    if folder is None:
        yield
        return
    lock = FileLock(folder / f"{sweep.name}.lock")
    try:
        held: Any = lock.acquire(timeout=0)
    except Timeout:
        raise ParameterError(
            f"the search {sweep.name!r} is going on in another process; remedy: wait for it, or end it"
        ) from None
    with held:
        yield
