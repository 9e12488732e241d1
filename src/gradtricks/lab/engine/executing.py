"""Many runs: on this machine's cores, or on a dask cluster."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from gradtricks.lab.engine.cluster import Scheduler, SchedulerError
from gradtricks.lab.runs.planning import Run
from gradtricks.lab.storage.store import Store, StoredRun
from gradtricks.lab.storage.troubles import public

__all__ = ["Event", "Interrupted", "Outcome", "Scheduler", "SchedulerError", "count_workers", "execute_all"]


@dataclass(frozen=True)
class Event:
    """Something that happened to a run.

    Attributes:
        kind: What; "stopping" concerns all runs: none is started any more.
        run: Its title.
        worker: Who runs it.
        seconds: That it took.
        error: Why it failed.
        request: Of the run; titles are shortened, so that two runs may have the same.
    """

    kind: Literal["started", "finished", "failed", "stopping"]
    run: str = ""
    worker: str = ""
    seconds: float | None = None
    error: str | None = None
    request: str = ""


@dataclass(frozen=True)
class Outcome:
    """What came of a run.

    Attributes:
        run: What was asked.
        stored: What was found or done; None where it failed, or wasn't run because somebody interrupted.
        error: Why it failed, now or, where it wasn't tried again, before.
    """

    run: Run
    stored: StoredRun | None = None
    error: str | None = None


class Interrupted(RuntimeError):  # noqa: N818  what happened isn't an error
    """Somebody pressed Ctrl-C, or this process was told to end.

    Attributes:
        outcomes: What had come of each run by then.
    """

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        left = sum(outcome.stored is None and outcome.error is None for outcome in outcomes)
        super().__init__(f"interrupted: {left} of {len(outcomes)} runs are left; the same command does them")
        self.outcomes = list(outcomes)


def execute_all(
    runs: Sequence[Run],
    store: Store,
    *,
    workers: int | None = None,
    scheduler: Scheduler | None = None,
    timeout_s: float | None = None,
    retry_failed: bool = False,
    on_event: Callable[[Event], object] | None = None,
) -> list[Outcome]:
    """Execute runs, several at once; one that fails doesn't stop the others.

    Ctrl-C or SIGTERM once: no further run starts, and those that are going on are finished and kept. Twice:
    they are ended. Either way the same call does later what is left.

    Args:
        runs: What is to be run. What is finished already isn't done again.
        store: Where runs are kept.
        workers: How many runs go on at once; None means as many as there are cores for. With a scheduler it
            is a limit, and None means none.
        scheduler: Of a dask cluster that sees the same store; None means this machine.
        timeout_s: Ends a run that takes longer.
        retry_failed: Try those again that have failed before.
        on_event: Called in this thread whenever a run starts or ends.

    Returns:
        What came of each run, in the order of ``runs``.

    Raises:
        Interrupted: By Ctrl-C or SIGTERM.
        SchedulerError: The cluster can't be used, or is gone.
        ValueError: ``workers`` isn't positive.
    """
    if workers is not None and workers < 1:
        raise ValueError(f"workers must be at least 1; got {workers}")
    tell = on_event or (lambda event: None)
    outcomes = look_up(runs, store, retry_failed=retry_failed)
    return execute_missing(
        outcomes, store, workers=workers, scheduler=scheduler, timeout_s=timeout_s, tell=tell
    )


def look_up(runs: Sequence[Run], store: Store, *, retry_failed: bool) -> list[Outcome]:
    """Find what is known of runs before any is started.

    Args:
        runs: What is to be run.
        store: Where runs are kept.
        retry_failed: Forget failures.

    Returns:
        An outcome each; one without run nor error is still to be done.
    """
    finished = store.find_all(runs)
    failed = {} if retry_failed else store.failures(run for run in runs if run.request not in finished)

    def outcome(run: Run) -> Outcome:
        stored, failure = finished.get(run.request), failed.get(run.request)
        if failure is None:
            return Outcome(run, stored)
        where = f"{public(failure.location)}/notebook.ipynb"
        return Outcome(run, None, f"{failure.record['error']}\n  It failed before; its notebook: {where}")

    return [outcome(run) for run in runs]


def execute_missing(
    outcomes: Sequence[Outcome],
    store: Store,
    *,
    workers: int | None,
    scheduler: Scheduler | None,
    timeout_s: float | None,
    tell: Callable[[Event], object],
) -> list[Outcome]:
    """Execute what `look_up` didn't find.

    Args:
        outcomes: From `look_up`.
        store: As in `execute_all`.
        workers: As in `execute_all`.
        scheduler: As in `execute_all`.
        timeout_s: As in `execute_all`.
        tell: As ``on_event`` in `execute_all`.

    Returns:
        The outcomes, with none left to be done.
    """
    if all(outcome.stored or outcome.error for outcome in outcomes):
        return list(outcomes)
    # Half a second of imports, which nobody waits for where nothing is to be done.
    from gradtricks.lab.engine.dispatch import Dispatch, dispatching

    with dispatching(outcomes, store, workers=workers, scheduler=scheduler) as cluster:
        dispatch = Dispatch(cluster, outcomes, store, timeout_s=timeout_s, tell=tell)
        dispatch.run()
    if dispatch.interrupted:
        raise Interrupted(dispatch.outcomes)
    return dispatch.outcomes


def count_workers(runs: Iterable[Run]) -> int:
    """Count the runs that this machine's cores can do at once.

    Args:
        runs: What is to be run.

    Returns:
        One at least.
    """
    from dask.system import CPU_COUNT  # knows what a container is allowed

    return max(1, CPU_COUNT // min((run.threads for run in runs), default=1))
