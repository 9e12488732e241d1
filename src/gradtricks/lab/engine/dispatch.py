"""Hands runs to dask, a few more than can go on at once, and hears of each that started and ended."""

import hashlib
import itertools
import pickle
import queue
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Any

from distributed import Future, KilledWorker
from nbformat import NotebookNode

from gradtricks.lab.engine import environments, tasks
from gradtricks.lab.engine.cluster import gone, no_workers, unfit
from gradtricks.lab.engine.executing import Event, Outcome
from gradtricks.lab.engine.pool import Cluster, dispatching, is_missing, location_of, on_signal
from gradtricks.lab.runs.planning import Run
from gradtricks.lab.storage.store import Store

__all__ = ["Cluster", "Dispatch", "dispatching"]

_LOOK_EVERY_S = 1.0
_PATIENCE_S = 10.0  # for runs to end that were told to


class Dispatch:
    """Executes what is missing among outcomes.

    Args:
        cluster: Where.
        outcomes: From `gradtricks.lab.engine.executing.look_up`; replaced in a copy as runs end.
        store: Where runs are kept.
        timeout_s: For each run.
        tell: Is told of everything, in the thread that calls `run`.
        then: Is asked, whenever a run has ended, which further ones to execute.
    """

    def __init__(
        self,
        cluster: Cluster,
        outcomes: Sequence[Outcome],
        store: Store,
        *,
        timeout_s: float | None,
        tell: Callable[[Event], object],
        then: Callable[[Outcome], Iterable[Run]] | None = None,
    ) -> None:
        self.outcomes = list(outcomes)
        self._cluster = cluster
        self._store = store
        self._tell = tell
        self._then = then
        self._common = tasks.Orders(cluster.sweep, location_of(store), timeout_s, environments.environment())
        missing = [index for index, outcome in enumerate(outcomes) if is_missing(outcome)]
        # Long runs first: a long one that starts last keeps all others waiting. Those that need the machine
        # for themselves come last, so that it doesn't have to run empty for them in between.
        self._waiting = deque(sorted(missing, key=self._rank))
        self._flying: dict[int, Future] = {}
        self._workers: dict[int, str] = {}
        self._suspects: deque[int] = deque()
        self._suspected: set[int] = set()
        self._orders: dict[bytes, Future] = {}
        self._digests: dict[int, bytes] = {}
        self._news: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._window = 1
        self._count = itertools.count()
        self._signals = 0
        self._deadline = float("inf")
        self._looked = self._peopled = monotonic()
        self._claimed: set[str] = set()

    @property
    def interrupted(self) -> bool:
        """Whether somebody asked to stop."""
        return self._signals > 0

    def run(self) -> None:
        """Execute all of them, or those that go on when somebody interrupts."""
        client = self._cluster.client
        client.subscribe_topic(tasks.TOPIC, self._hear)
        try:
            with on_signal(lambda: self._news.put(self._interrupt)):
                self._look()
                while self._flying or (not self._signals and (self._waiting or self._suspects)):
                    self._submit()
                    with suppress(queue.Empty):
                        self._news.get(timeout=_LOOK_EVERY_S)()
                    if monotonic() - self._looked > _LOOK_EVERY_S:
                        self._look()
                    if monotonic() > self._deadline:
                        return
        except BaseException:
            if self._cluster.scheduler is None:  # a cluster finishes what it has begun
                self._cluster.tell_all(tasks.end)
            raise
        finally:
            with suppress(Exception):  # the scheduler may be gone
                client.unsubscribe_topic(tasks.TOPIC)

    def _rank(self, index: int) -> tuple[bool, float]:
        run = self.outcomes[index].run
        return run.alone, -(run.expected_s or 0.0)

    def _submit(self) -> None:
        while not self._signals and len(self._flying) < self._window:
            index = self._next()
            if index is None:
                return
            self._send(index)

    def _next(self) -> int | None:
        """Take a run that no other sweep is doing just now: that one may well do it for us."""
        index = next((i for i in self._waiting if self.outcomes[i].run.request not in self._claimed), None)
        if index is not None:
            self._waiting.remove(index)
        elif self._suspects and not self._waiting and not self._flying:
            index = self._suspects.popleft()
        return index

    def _send(self, index: int) -> None:
        run, number = self.outcomes[index].run, next(self._count)
        future = self._cluster.client.submit(
            tasks.perform,
            self._orders_for(run.source),
            replace(run, source=NotebookNode()),
            index,
            key=(run.name, self._cluster.sweep, number),
            priority=-number,  # or dask starts what comes within a moment in any order
            resources=self._cluster.resources(run),
        )
        self._flying[index] = future
        future.add_done_callback(partial(self._hear_end, index))

    def _orders_for(self, source: NotebookNode) -> Future:
        """Send a notebook, once; runs that were planned one by one have equal copies of it."""
        if id(source) not in self._digests:
            pickled = pickle.dumps(source)
            digest = self._digests[id(source)] = hashlib.sha256(pickled).digest()
            if digest not in self._orders:
                key = ("orders", self._cluster.sweep, len(self._orders))
                # A task and not scattered data: what a dying worker held of it is made again.
                self._orders[digest] = self._cluster.client.submit(
                    tasks.complete, self._common, pickled, key=key
                )
        return self._orders[self._digests[id(source)]]

    def _hear(self, event: tuple[float, Any]) -> None:
        """Take a message of a worker, in dask's thread."""
        message = event[1]
        if message["sweep"] == self._cluster.sweep:
            self._news.put(partial(self._started, message["index"], message["by"]))

    def _hear_end(self, index: int, future: Future) -> None:
        """Take a finished task, in another one of dask's threads."""
        self._news.put(partial(self._done, index, future))

    def _started(self, index: int, worker: str) -> None:
        if index in self._flying and self._workers.get(index) != worker:
            self._workers[index] = worker
            run = self.outcomes[index].run
            self._tell(Event("started", run.title, worker, request=run.request))

    def _done(self, index: int, future: Future) -> None:
        run = self.outcomes[index].run
        try:
            answer = future.result(timeout=_PATIENCE_S)
        except TimeoutError:  # the worker that has it may just have died; then another one does it
            self._look()
            self._news.put(partial(self._done, index, future))
            return
        except KilledWorker as error:
            if index not in self._suspected:
                self._suspect(index)
                return
            answer = tasks.Answer("failed", "", error=f"{run.title}: its worker died each time: {error}")
        except CancelledError as error:
            raise self._gone() from error
        except Exception as error:  # of dask itself; the other runs go on
            answer = tasks.Answer("failed", "", error=f"{run.title}: {type(error).__name__}: {error}")
        self._take(index, answer)

    def _suspect(self, index: int) -> None:
        """Run it again when nothing else runs; another one may have killed the worker that both were at."""
        del self._flying[index]
        self._suspected.add(index)
        self._suspects.append(index)

    def _take(self, index: int, answer: tasks.Answer) -> None:
        run = self.outcomes[index].run
        if answer.kind == "unfit" and self._cluster.scheduler is not None:
            raise unfit(self._cluster.scheduler, [f"{answer.worker}: {answer.error}"])
        if answer.kind != "stopped":
            self._started(index, answer.worker)  # where the message comes later than the answer
            self.outcomes[index] = Outcome(run, answer.stored, answer.error)
        del self._flying[index]
        if answer.kind in ("finished", "failed"):
            event = Event(answer.kind, run.title, answer.worker, answer.seconds, answer.error, run.request)
            self._tell(event)
            if self._then is not None and not self._signals:
                self._add(self._then(self.outcomes[index]))

    def _add(self, runs: Iterable[Run]) -> None:
        for run in runs:
            self._waiting.append(len(self.outcomes))
            self.outcomes.append(Outcome(run))

    def _look(self) -> None:
        """Look around, once a second."""
        self._looked = monotonic()
        own = {self.outcomes[index].run.request for index in self._flying}
        self._claimed = self._store.claimed() - own
        if self._signals > 1:  # again, for those that were just starting
            self._cluster.tell_all(tasks.end)
        room, scheduler = self._cluster.room(), self._cluster.scheduler
        if room:
            self._peopled = self._looked
            # Some more, so that no worker waits for this thread; but on a cluster with more threads than may
            # be used, no more than that.
            self._window = room if scheduler and self._cluster.limit else 2 * room + 8
        elif scheduler and self._looked - self._peopled > scheduler.patience_s:
            raise no_workers(scheduler)

    def _interrupt(self) -> None:
        self._signals += 1
        if self._signals == 1:
            self._tell(Event("stopping"))
            self._cluster.tell_all(tasks.stop)
        else:
            self._deadline = min(self._deadline, monotonic() + _PATIENCE_S)
            self._cluster.tell_all(tasks.end)

    def _gone(self) -> Exception:
        scheduler = self._cluster.scheduler
        return gone(scheduler) if scheduler else RuntimeError("dask inside of this process has stopped")
