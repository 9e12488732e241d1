"""Where runs are sent: this process's own threads, or a dask cluster."""

import secrets
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from dask.system import CPU_COUNT
from distributed import Client

from gradtricks.lab.engine import tasks
from gradtricks.lab.engine.cluster import Scheduler
from gradtricks.lab.engine.connecting import connected, count_threads
from gradtricks.lab.engine.embedded import embedded
from gradtricks.lab.engine.executing import Outcome, count_workers
from gradtricks.lab.runs.planning import Run
from gradtricks.lab.storage.store import Store


@dataclass
class Cluster:
    """Where runs are sent.

    Attributes:
        client: Of dask.
        sweep: Name of this sweep, unlike any other.
        scheduler: None means that all is inside of this process.
        limit: How many runs may go on at once; None means as many as there are threads of workers.
        cores: Of this machine.
    """

    client: Client
    sweep: str
    scheduler: Scheduler | None
    limit: int | None
    cores: int = 0

    def room(self) -> int:
        """Count the runs that can go on at once; 0 while a cluster has no worker.

        Raises:
            SchedulerError: The scheduler is gone.
        """
        there = count_threads(self.client, self.scheduler) if self.scheduler else self.limit
        return min(there or 0, self.limit or there or 0)

    def tell_all(self, function: Callable[[str], None]) -> None:
        """Call a function of `gradtricks.lab.engine.tasks` in every worker."""
        if self.scheduler is None:
            function(self.sweep)
        else:
            with suppress(Exception):  # a worker that can't be reached any more has stopped in any case
                self.client.run(function, self.sweep, on_error="ignore")

    def resources(self, run: Run) -> dict[str, float] | None:
        """Say what a run needs; on a cluster that is left to those who start workers."""
        if self.scheduler is not None:
            return None
        return {"cores": self.cores if run.alone else min(run.threads, self.cores)}


@contextmanager
def dispatching(
    outcomes: Sequence[Outcome], store: Store, *, workers: int | None, scheduler: Scheduler | None
) -> Iterator[Cluster]:
    """Start or reach a cluster.

    Args:
        outcomes: What is to be done is among them.
        store: Where runs are kept.
        workers: As in `gradtricks.lab.engine.executing.execute_all`.
        scheduler: As in `gradtricks.lab.engine.executing.execute_all`.

    Yields:
        The cluster.
    """
    sweep = secrets.token_hex(8)
    if scheduler is not None:
        with connected(scheduler, location_of(store)) as client:
            yield Cluster(client, sweep, scheduler, limit=workers)
        return
    runs = [outcome.run for outcome in outcomes if is_missing(outcome)]
    threads = workers or count_workers(runs)
    # Who says how many workers there are knows better than the number of cores.
    cores = max(CPU_COUNT, threads * max(run.threads for run in runs) if workers else 0)
    with embedded(threads, cores) as client:
        try:
            yield Cluster(client, sweep, None, limit=threads, cores=cores)
        finally:
            tasks.close_kernels(sweep)


def is_missing(outcome: Outcome) -> bool:
    """Say whether a run is still to be done.

    Args:
        outcome: Of the run.

    Returns:
        Whether it is.
    """
    return outcome.stored is None and outcome.error is None


def location_of(store: Store) -> str:
    """Say where a store is, so that a worker with another working directory finds it too.

    Args:
        store: With a location relative to this process's working directory, or not.

    Returns:
        A URL, or an absolute path.
    """
    return store.location if "://" in store.location else str(Path(store.location).resolve())


@contextmanager
def on_signal(act: Callable[[], None]) -> Iterator[None]:
    """Act on Ctrl-C and SIGTERM, instead of what is done otherwise; other threads than the main one can't.

    Args:
        act: What is done, each time.

    Yields:
        Nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, lambda *_: act())
    try:
        yield
    finally:
        for number, handler in before.items():
            # None is a handler that wasn't installed from Python; it can't be installed again.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
