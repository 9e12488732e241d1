"""Execute many runs concurrently, and report each start and end."""

import queue
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from gradtricks.lab.runs.execution import RunError
from gradtricks.lab.runs.local import LocalPool
from gradtricks.lab.runs.planning import Spec
from gradtricks.lab.runs.schedulers import Scheduler, SchedulerError
from gradtricks.lab.storage.places import StoreError
from gradtricks.lab.storage.store import Store, StoredRun
from gradtricks.warm.servers import ServersClosed

if TYPE_CHECKING:
    from gradtricks.lab.runs.cluster import Cluster

_LOOK_EVERY_S = 1.0
_STOP_TIMEOUT_S = 10.0  # after the second Ctrl-C


@dataclass(eq=False)
class Run:
    """A run's progress, from when it is wanted to its result.

    Attributes:
        spec: The planned run.
        stored: Its record, found or new; None where it failed, or hasn't ended.
        error: Why it failed, now or, where it wasn't tried again, before.
        failure: What the store keeps of that; None where it keeps nothing.
        worker: Name of the worker that executes it, or did; empty where it hasn't begun.
        began: When that was, by `time.monotonic`.
        seconds: Its duration.
        lost: Whether something else ended its process once.
    """

    spec: Spec
    stored: StoredRun | None = None
    error: str | None = None
    failure: StoredRun | None = None
    worker: str = ""
    began: float = 0.0
    seconds: float = 0.0
    lost: bool = False

    @property
    def state(self) -> str:
        """``waiting``, ``going``, ``finished`` or ``failed``."""
        if self.missing:
            return "going" if self.worker else "waiting"
        return "failed" if self.stored is None else "finished"

    @property
    def missing(self) -> bool:
        """Whether it has neither a record nor an error yet."""
        return self.stored is None and self.error is None


class Interrupted(RuntimeError):  # noqa: N818  what happened isn't an error
    """Ctrl-C or SIGTERM ended the runs before all were done."""

    def __init__(self, runs: Sequence[Run]) -> None:
        left = sum(run.missing for run in runs)
        super().__init__(f"interrupted: {left} of {len(runs)} runs are left; the same command does them")


def look_up(specs: Sequence[Spec], store: Store, *, retry_failed: bool) -> list[Run]:
    """Look runs up before any is started; a run that is asked for twice is one object.

    Failed ones count as not tried with ``retry_failed``, or if a kill from outside ended them; those with
    ``anew`` do in any case.
    """
    finished = store.find_all(specs)
    others = [] if retry_failed else [spec for spec in specs if spec.request not in finished]
    failed = store.find_all(others, "failed")

    def known(spec: Spec) -> Run:
        if spec.anew:
            return Run(spec)
        failure = failed.get(spec.request)
        if failure is None or failure.record.get("lost"):
            return Run(spec, finished.get(spec.request))
        kept = f"It failed before, and is kept in {failure.location}"
        return Run(spec, error=f"{failure.record['error']}\n  {kept}", failure=failure)

    runs = {spec.request: known(spec) for spec in specs}
    return [runs[spec.request] for spec in specs]


def execute_missing(
    runs: Sequence[Run],
    store: Store,
    *,
    workers: int | None = None,
    scheduler: Scheduler | None = None,
    timeout_s: float | None = None,
    on_change: Callable[[Run], object] = lambda run: None,
    on_stop: Callable[[], object] = lambda: None,
) -> None:
    """Execute the runs that `look_up` didn't find, several at once; one that fails doesn't stop the others.

    Neither does a mistake of the lab's own, which is raised in the end and leaves its run missing.

    Ctrl-C or SIGTERM once: no further run starts, and those that are going on are finished and kept. Twice:
    they are ended. Either way the same call does later what is left.

    Args:
        runs: From `look_up`; they change as they begin and end.
        store: Where runs are kept.
        workers: How many runs go on at once; None means as many as there are cores for. With a scheduler it
            is a limit, and None means none.
        scheduler: Of a dask cluster that sees the same store; None means this machine.
        timeout_s: Ends a run that takes longer.
        on_change: Called in this thread with a run whenever that begins or ends.
        on_stop: Called in this thread when no further run will be started.

    Raises:
        Interrupted: By Ctrl-C or SIGTERM, before all was done.
        SchedulerError: The cluster can't be used, or is gone.
        ValueError: ``workers`` isn't positive.
    """
    if workers is not None and workers < 1:
        raise ValueError(f"workers must be at least 1; got {workers}")
    specs = [run.spec for run in runs if run.missing]
    if not specs:
        return
    driver = _Driver(runs, store, on_change, on_stop)
    pool: AbstractContextManager[LocalPool | Cluster]
    if scheduler is None:
        pool = closing(LocalPool(specs, store, driver.hear, workers=workers, timeout_s=timeout_s))
    else:
        from gradtricks.lab.runs.cluster import cluster  # dask takes a second to import

        pool = cluster(scheduler, store, driver.hear, limit=workers, timeout_s=timeout_s)
    with pool as opened, _on_signal(driver.hear_signal):
        driver.drive(opened)
    if driver.signals and any(run.missing for run in driver.runs):
        raise Interrupted(driver.runs)


@dataclass
class _Driver:
    """The driver's state: waiting runs, running futures, queued events."""

    wanted: Sequence[Run]
    store: Store
    on_change: Callable[[Run], object]
    on_stop: Callable[[], object]

    def __post_init__(self) -> None:
        self._news: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.signals = 0
        self.runs = list(dict.fromkeys(self.wanted))
        self._going: dict[str, tuple[Run, Future[StoredRun]]] = {}
        self._deadline = float("inf")
        self._mistake: Exception | None = None  # of the lab, the first one
        # Long runs first: a long one that starts last keeps all others waiting. Those that need the machine
        # for themselves come last, so that it doesn't have to run empty for them in between.
        order = sorted(self.runs, key=lambda run: (run.spec.alone, -(run.spec.expected_s or 0.0)))
        self._waiting = deque(run for run in order if run.missing)

    def drive(self, pool: "LocalPool | Cluster") -> None:
        """Execute all runs; after an interruption, only finish those that have begun."""
        self._pool = pool
        self._look()
        while self._going or (not self.signals and self._waiting):
            while not self.signals and (run := self._next()):
                self._submit(run)
            with suppress(queue.Empty):
                self._news.get(timeout=_LOOK_EVERY_S)()
            if monotonic() - self._looked > _LOOK_EVERY_S:
                self._look()
            if monotonic() > self._deadline:
                break
        if self._mistake:
            raise self._mistake

    def hear(self, request: str, worker: str) -> None:
        """Note, from any thread, that this worker began this run."""
        self._news.put(partial(self._begun, request, worker))

    def hear_signal(self) -> None:
        """Note Ctrl-C or SIGTERM."""
        self._news.put(self._interrupt)

    def _begun(self, request: str, worker: str) -> None:
        if request in self._going:
            run, _ = self._going[request]
            run.worker, run.began = worker, monotonic()
            self.on_change(run)

    def _interrupt(self) -> None:
        """Begin no further run; the second time, end the running ones."""
        self.signals += 1
        if self.signals == 1:
            self.on_stop()
            for run, future in list(self._going.values()):
                if not run.worker:
                    future.cancel()
        else:
            self._deadline = min(self._deadline, monotonic() + _STOP_TIMEOUT_S)
            self._pool.end()

    def _look(self) -> None:
        self._looked = monotonic()
        self._claimed = self.store.claimed() - self._going.keys()
        self._room = self._pool.room()

    def _next(self) -> Run | None:
        """Choose the next run that fits; leave one that another process has claimed to that process."""
        if len(self._going) >= self._room:
            return None
        run = next((run for run in self._waiting if run.spec.request not in self._claimed), None)
        going = [run for run, _ in self._going.values()]
        if run is None or (going and (run.lost or going[0].lost)):
            return None
        cores = sum(map(self._cores, going)) + self._cores(run)
        return run if cores <= self._pool.cores else None

    def _cores(self, run: Run) -> float:
        return self._pool.cores if run.spec.alone else min(run.spec.threads, self._pool.cores)

    def _submit(self, run: Run) -> None:
        self._waiting.remove(run)
        run.began = monotonic()
        future = self._pool.executor.submit(self._pool.perform, run.spec, again=not run.lost)
        self._going[run.spec.request] = run, future
        future.add_done_callback(lambda _: self._news.put(partial(self._ended, run, future)))

    def _ended(self, run: Run, future: "Future[StoredRun]") -> None:
        del self._going[run.spec.request]
        run.seconds = monotonic() - run.began
        try:
            run.stored = future.result()
        except ServersClosed:  # by us: that isn't a failure, and must not be shown as one
            return
        except CancelledError:  # by us, or because the scheduler is gone
            if self.signals:
                return
            raise
        except SchedulerError:
            raise
        except RunError as error:
            run.error, run.failure = str(error), error.stored
        except StoreError as error:
            run.error = str(error)
        except self._pool.lost as error:
            if not run.lost:
                # Something else that went on may have been the reason, so it is alone the next time.
                run.lost, run.worker = True, ""
                self._waiting.append(run)
            else:
                run.error = f"{run.spec.title}: its process was ended each time: {error}"
        except Exception as error:  # unforeseen, so it isn't the notebook's
            error.add_note(f"That is a mistake of the lab's own, in {run.spec.title}.")
            self._mistake, run.worker = self._mistake or error, ""
        self.on_change(run)


@contextmanager
def _on_signal(act: Callable[[], None]) -> Iterator[None]:
    """Call ``act`` on Ctrl-C and SIGTERM; only the main thread can."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda *_: act()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            # None is a handler that wasn't installed from Python; it can't be installed again.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
