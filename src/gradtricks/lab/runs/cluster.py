"""Runs on a dask cluster that somebody else has started: how it is reached, and whether it fits."""

import logging
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

from distributed import Client, KilledWorker
from distributed.comm.core import CommClosedError

from gradtricks.lab.kernels.warm import KernelLostError
from gradtricks.lab.runs import worker
from gradtricks.lab.runs.schedulers import Scheduler, SchedulerError
from gradtricks.lab.storage.store import Store
from gradtricks.lab.storage.troubles import explained, is_url

_OF_SCHEDULER = ("python", "dask", "distributed", "gradtricks.lab as imported")
_LOGGERS = ("distributed", "distributed.client", "tornado.application", "asyncio")


@contextmanager
def cluster(
    scheduler: Scheduler,
    store: Store,
    begun: Callable[[str, str], object],
    *,
    limit: int | None,
    timeout_s: float | None,
) -> Iterator["Cluster"]:
    """Connect, wait for a worker, and check that all of them can do what is to be done.

    Another thread tells ``begun`` the request of a run that begins, and who does it. ``limit`` says how many
    go on at once; None means as many as workers have threads.

    Raises:
        SchedulerError: Nobody answers, there is no worker, or one doesn't fit.
        StoreError: The store can't be written to.
    """
    location = store.location if is_url(store.location) else str(Path(store.location).resolve())
    orders = worker.Orders(secrets.token_hex(8), location, timeout_s, worker.environment())

    def hear(event: tuple[float, Any]) -> None:
        if event[1]["sweep"] == orders.sweep:  # drivers that share a cluster hear each other's workers
            begun(event[1]["request"], event[1]["by"])

    with _quiet(), _connected(scheduler) as client:
        try:
            client.wait_for_workers(1, timeout=scheduler.patience_s)
        except TimeoutError as error:
            raise _no_workers(scheduler) from error
        _check_workers(client, scheduler, orders)
        client.subscribe_topic(worker.TOPIC, hear)
        yield Cluster(client, scheduler, orders, limit)


class Cluster:
    """The workers of a cluster; what can be done with them is as with `gradtricks.lab.runs.here.Here`."""

    cores = float("inf")  # whoever starts workers says how many runs each takes
    lost: tuple[type[Exception], ...] = (KernelLostError, KilledWorker)

    def __init__(
        self, client: Client, scheduler: Scheduler, orders: worker.Orders, limit: int | None
    ) -> None:
        self._client, self._scheduler, self._orders, self._limit = client, scheduler, orders, limit
        self.executor = client.get_executor(pure=False)
        self.perform = partial(worker.perform, orders)
        self._peopled = monotonic()

    def room(self) -> int:
        """Count the threads of all workers, and be patient where there are none."""
        try:
            threads = sum(self._client.nthreads().values())
        except Exception as error:  # what distributed raises here depends on when the connection broke
            raise _gone(self._scheduler) from error
        if threads:
            self._peopled = monotonic()
        elif monotonic() - self._peopled > self._scheduler.patience_s:
            raise _no_workers(self._scheduler)
        return min(threads, self._limit or threads)

    def end(self) -> None:
        """End what goes on of this sweep."""
        with suppress(Exception):  # a worker that can't be reached any more has stopped in any case
            self._client.run(worker.end, self._orders.sweep, on_error="ignore")


@contextmanager
def _connected(scheduler: Scheduler) -> Iterator[Client]:
    security, patience = scheduler.security(), scheduler.patience_s
    try:
        client = Client(scheduler.address, security=security, timeout=patience, set_as_default=False)
    except OSError as error:
        raise SchedulerError(
            f"expected a dask scheduler at {scheduler.address}; got none within {patience:.0f} s "
            f"({_cause(error)}); remedy: start one with `dask scheduler`, and see that address and "
            "certificates are right"
        ) from error
    try:
        yield client
    except SchedulerError:
        raise
    except Exception as error:
        if isinstance(error, CommClosedError | CancelledError) or client.status != "running":
            raise _gone(scheduler) from error
        raise
    finally:
        with suppress(Exception):  # whatever it was, it is over
            client.close(timeout=5)


def _check_workers(client: Client, scheduler: Scheduler, orders: worker.Orders) -> None:
    with _probe(orders.store) as probe:
        answers: dict[str, Any] = client.run(worker.inspect, probe, on_error="return")
    try:  # it runs nothing, but unpacks each task that it passes on
        theirs, _ = client.run_on_scheduler(worker.inspect, None)
        ours, its = ({name: each[name] for name in _OF_SCHEDULER} for each in (orders.environment, theirs))
        said = worker.describe_difference(ours, its)
    except OSError as error:  # it has ended meanwhile
        raise _gone(scheduler) from error
    except Exception as error:  # whatever it is that keeps it from answering
        said = f"{type(error).__name__}: {error}"
    problems = [f"the scheduler: {said}"] * bool(said)
    for address, answer in answers.items():
        if isinstance(answer, CommClosedError):  # it has ended meanwhile; others may be there
            continue
        if isinstance(answer, BaseException):
            problems.append(f"{address}: {type(answer).__name__}: {answer}")
            continue
        theirs, sees = answer
        difference = worker.describe_difference(orders.environment, theirs)
        problems += [f"{address}: {difference}"] * bool(difference)
        problems += [f"{address}: doesn't see the store {orders.store}"] * (not sees)
    if problems:
        raise worker.unfit(scheduler.address, problems)


@contextmanager
def _probe(store: str) -> Iterator[str | None]:
    """Put a file in the store for a moment, where it is a folder."""
    if is_url(store):
        yield None
        return
    folder = Path(store)
    path = folder / f".probe-{secrets.token_hex(8)}"
    with explained(store):
        folder.mkdir(parents=True, exist_ok=True)
        path.touch()
    try:
        yield str(path)
    finally:
        path.unlink(missing_ok=True)


def _gone(scheduler: Scheduler) -> SchedulerError:
    return SchedulerError(
        f"the dask scheduler at {scheduler.address} is gone; finished runs are kept; "
        "remedy: start it and its workers again, and give the same command"
    )


def _no_workers(scheduler: Scheduler) -> SchedulerError:
    return SchedulerError(
        f"expected a worker at {scheduler.address}; got none within {scheduler.patience_s:.0f} s; "
        f"finished runs are kept; remedy: dask worker {scheduler.address}"
    )


def _cause(error: BaseException) -> str:
    """Find the first reason: distributed wraps it several times."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {error}"


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep dask from printing tracebacks of what is said in a sentence here, or concerns no user."""
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before):
            logger.setLevel(level)
