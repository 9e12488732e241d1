"""Searches: Optuna proposes parameters, the lab runs them, and a kill loses nothing that was told."""

from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from typing import Any

from filelock import FileLock, Timeout

from gradtricks.lab.notebooks.schema import ParameterError
from gradtricks.lab.runs.many import Interrupted, Run, execute_missing, look_up
from gradtricks.lab.runs.planning import Spec
from gradtricks.lab.storage.store import Store, StoredRun
from gradtricks.lab.sweeps.studies import Study, Trials, study_folder
from gradtricks.lab.sweeps.sweep import Sweep


def search(
    sweep: Sweep, store: Store, *, on_planned: Callable[[Sweep], object] = lambda grown: None, **options: Any
) -> tuple[list[Run], list[StoredRun]]:
    """Search for good parameters: as soon as a worker is free, Optuna proposes what it should try next.

    The study is in a database beside the runs unless the sweep file names another. Interrupted or killed, the
    same call goes on: what was told stays told, and the trials that were going on are run again, those of
    their runs excepted that are finished. A trial with a failed run is a failed one, and the search goes on.
    With one worker the same seed proposes the same trials, interrupted or not.

    The other options are those of `gradtricks.lab.runs.many.execute_missing`; ``on_planned`` is called in
    this thread whenever trials were added, with the sweep of all of them.

    Returns:
        What came of the runs of all trials, and those of the best trial, one for each seed.

    Raises:
        ParameterError: Optuna isn't installed, or the study can't be used.
        RunError: Runs don't record the objective, or the notebook was edited meanwhile.
    """
    with _only_one(sweep, store), closing(Study(sweep, store)) as study:
        trials = _Trials(sweep, study, store, on_planned)
        try:
            execute_missing(trials.more(1), store, then=trials.more, **options)
        except Interrupted:
            raise Interrupted(trials.runs()) from None
        return trials.runs(), list(store.find_all(study.best()).values())


class _Trials:
    """Which trials go on, and what came of their runs so far."""

    def __init__(
        self, sweep: Sweep, study: Study, store: Store, on_planned: Callable[[Sweep], object]
    ) -> None:
        self._sweep, self._study, self._store, self._on_planned = sweep, study, store, on_planned
        self._again = study.unfinished()
        self._all = study.trials()
        self._going: Trials = {}
        self._known: dict[str, Run] = {}

    def more(self, room: int) -> list[Run]:
        """Tell the study what has ended, and ask it for trials until there is enough to do."""
        added: list[Run] = []
        taken = False
        self._tell_complete()
        while self._pending() < room:
            first = min(self._again, default=None)
            trial = self._study.ask() if first is None else {first: self._again.pop(first)}
            if not trial:
                break
            taken = True
            self._all |= trial
            self._going |= trial
            new = [spec for spec in _specs(trial) if spec.request not in self._known]
            found = look_up(new, self._store, retry_failed=False)
            self._known |= {run.spec.request: run for run in found}
            added += found
            self._tell_complete()
        if taken:  # with nothing to be done too, where another sweep has done it
            self._on_planned(self._grown())
        return added

    def runs(self) -> list[Run]:
        """Return what is known of all runs of all trials, those that went before this call included."""
        before = look_up(self._grown().specs, self._store, retry_failed=False)
        return [self._known.get(run.spec.request, run) for run in before]

    def _pending(self) -> int:
        return sum(self._known[spec.request].missing for spec in _specs(self._going))

    def _tell_complete(self) -> None:
        for number, specs in list(self._going.items()):
            runs = [self._known[spec.request] for spec in specs]
            if not any(run.missing for run in runs):
                self._study.tell(number, [run.stored for run in runs])
                del self._going[number]

    def _grown(self) -> Sweep:
        return replace(self._sweep, specs=tuple(_specs(dict(sorted(self._all.items())))))


def _specs(trials: Trials) -> list[Spec]:
    """List what is to be run, each once however many trials ask for it."""
    return list({spec.request: spec for specs in trials.values() for spec in specs}.values())


def _only_one(sweep: Sweep, store: Store) -> AbstractContextManager[object]:
    """Keep a second driver from doing the same trials; the store's own folder is where both would look."""
    folder = study_folder(store)
    try:
        return FileLock(folder / f"{sweep.name}.lock").acquire(timeout=0) if folder else nullcontext()
    except Timeout:
        raise ParameterError(
            f"the search {sweep.name!r} is going on in another process; remedy: wait for it, or end it"
        ) from None
