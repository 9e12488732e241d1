"""Execute runs on a running dask cluster: connect, check its workers, and what a worker does.

A worker executes runs in warm kernels that its threads share, if its packages are the driver's.
"""

import logging
import platform
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from time import monotonic
from typing import Any

from distributed import Client, KilledWorker, get_worker
from distributed.comm.core import CommClosedError

from gradtricks.lab.identity import PACKAGE, bytes_below
from gradtricks.lab.runs.execution import execute_run
from gradtricks.lab.runs.kernels import Kernels
from gradtricks.lab.runs.planning import Spec
from gradtricks.lab.runs.provenance import describe_libraries
from gradtricks.lab.runs.schedulers import Scheduler, SchedulerError
from gradtricks.lab.storage.places import explained
from gradtricks.lab.storage.store import Store, StoredRun
from gradtricks.warm.processes import KernelLostError
from gradtricks.warm.servers import ServersClosed

_TOPIC = "gradtricks"
_OF_SCHEDULER = ("python", "dask", "distributed", "gradtricks.lab as imported")
_LOGGERS = ("distributed", "distributed.client", "tornado.application", "asyncio")


@dataclass(frozen=True)
class _Orders:
    """Settings that all runs of a sweep share."""

    sweep: str  # its name, unlike any other
    store: str
    timeout_s: float | None
    environment: dict[str, str] = field(hash=False)  # of the driver


@contextmanager
def cluster(
    scheduler: Scheduler,
    store: Store,
    begun: Callable[[str, str], object],
    *,
    limit: int | None,
    timeout_s: float | None,
) -> Iterator["Cluster"]:
    """Connect, wait for a worker, and check that all workers have the driver's packages and see its store.

    Another thread calls ``begun`` with a run's request and worker as it begins. ``limit`` is the number of
    runs at once; None means as many as workers have threads. A SchedulerError says that no scheduler
    answers, there is no worker, or one doesn't fit.
    """
    folder = str(Path(store.location).resolve())
    orders = _Orders(secrets.token_hex(8), folder, timeout_s, environment())

    def hear(event: tuple[float, Any]) -> None:
        if event[1]["sweep"] == orders.sweep:  # drivers that share a cluster hear each other's workers
            begun(event[1]["request"], event[1]["by"])

    with _quiet(), _connected(scheduler) as client:
        try:
            client.wait_for_workers(1, timeout=scheduler.patience_s)
        except TimeoutError as error:
            raise _no_workers(scheduler) from error
        _check_workers(client, scheduler, orders)
        client.subscribe_topic(_TOPIC, hear)
        yield Cluster(client, scheduler, orders, limit)


class Cluster:
    """Executes runs on the workers of a cluster, as `gradtricks.lab.runs.local.LocalPool` does here."""

    cores = float("inf")  # a worker takes as many runs as it was started with threads
    lost: tuple[type[Exception], ...] = (KernelLostError, KilledWorker)

    def __init__(self, client: Client, scheduler: Scheduler, orders: _Orders, limit: int | None) -> None:
        self._client, self._scheduler, self._orders, self._limit = client, scheduler, orders, limit
        self.executor = client.get_executor(pure=False)
        self.perform = partial(_perform, orders)
        self._peopled = monotonic()

    def room(self) -> int:
        """Count the threads of all workers; wait for some where there are none."""
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
        """End the running runs of this sweep."""
        with suppress(Exception):  # a worker that can't be reached any more has stopped in any case
            self._client.run(_end, self._orders.sweep, on_error="ignore")


@contextmanager
def _connected(scheduler: Scheduler) -> Iterator[Client]:
    security, patience = scheduler.security(), scheduler.patience_s
    try:
        client = Client(scheduler.address, security=security, timeout=patience, set_as_default=False)
    except OSError as error:
        cause: BaseException = error
        while cause.__cause__ is not None:  # distributed wraps the first reason several times
            cause = cause.__cause__
        raise SchedulerError(
            f"expected a dask scheduler at {scheduler.address}; got none within {patience:.0f} s "
            f"({type(cause).__name__}: {cause}); remedy: start one with `dask scheduler`, and see that "
            "address and certificates are right"
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
        with suppress(Exception):  # the connection is given up in any case
            client.close(timeout=5)


def _check_workers(client: Client, scheduler: Scheduler, orders: _Orders) -> None:
    with _probe(orders.store) as probe:
        answers: dict[str, Any] = client.run(_differences, orders, probe, on_error="return")
    try:  # it runs nothing, but unpacks each task that it passes on
        answers["the scheduler"] = client.run_on_scheduler(_differences, orders, None, _OF_SCHEDULER)
    except OSError as error:  # it has ended meanwhile
        raise _gone(scheduler) from error
    except Exception as error:  # any reason not to answer
        answers["the scheduler"] = error
    problems = [
        f"{place}: {answer if isinstance(answer, str) else f'{type(answer).__name__}: {answer}'}"
        for place, answer in answers.items()
        if answer and not isinstance(answer, CommClosedError)  # a worker that has ended; others may be there
    ]
    if problems:
        raise _unfit(scheduler.address, problems)


@contextmanager
def _probe(store: str) -> Iterator[str]:
    """Put a file in the store for a moment."""
    path = Path(store, f".probe-{secrets.token_hex(8)}")
    with explained(store):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    try:
        yield str(path)
    finally:
        path.unlink(missing_ok=True)


def _unfit(place: str, problems: Iterable[str]) -> SchedulerError:
    lines = "\n".join(f"  {problem}" for problem in problems)
    return SchedulerError(
        f"scheduler and workers at {place} must have the same packages as this process, and see "
        f"the same store; got\n{lines}\n  remedy: install the same versions there, put the store where all "
        "see it, and start them again"
    )


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


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence dask's tracebacks: our errors are sentences, and the rest concerns no user."""
    before = {logger: logger.level for logger in map(logging.getLogger, _LOGGERS)}
    for logger in before:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in before.items():
            logger.setLevel(level)


# In a worker

_lock = threading.Lock()
_threads: dict[int, int] = {}  # their numbers, as people see them
_kernels: dict[str, Kernels] = {}  # of each sweep that runs here, or was the last one that did
_busy: Counter[str] = Counter()
_ended: set[str] = set()


def _perform(orders: _Orders, spec: Spec, *, again: bool) -> StoredRun:
    """Execute a run in this process's kernels, and tell the driver which worker does it.

    A SchedulerError says that this worker, which may have come late, has other packages than the driver. The
    others are those of `gradtricks.lab.runs.execution.execute_run`.
    """
    worker = get_worker()
    with _lock:
        name = f"{worker.name}/{_threads.setdefault(threading.get_ident(), len(_threads) + 1)}"
    with _lent(orders.sweep) as kernels:
        if different := _differences(orders):
            raise _unfit(name, [different])
        # distributed itself adds its name of the worker, under "worker".
        worker.log_event(_TOPIC, {"sweep": orders.sweep, "request": spec.request, "by": name})
        return execute_run(spec, Store(orders.store), kernels, timeout_s=orders.timeout_s, again=again)


def _end(sweep: str) -> None:
    """End the runs of a sweep in this process, and begin no more of them."""
    with _lock:
        _ended.add(sweep)
        kernels = _kernels.pop(sweep, None)
    if kernels is not None:
        kernels.close()


@contextmanager
def _lent(sweep: str) -> Iterator[Kernels]:
    """Lend the kernels of a sweep; close those of sweeps that run nothing here, to make room."""
    with _lock:
        if sweep in _ended:
            raise ServersClosed("the sweep was ended")
        if sweep not in _kernels:
            for idle in [name for name in _kernels if not _busy[name]]:
                _kernels.pop(idle).close()
            _kernels[sweep] = Kernels()
        kernels = _kernels[sweep]
        _busy[sweep] += 1
    try:
        yield kernels
    finally:
        with _lock:
            _busy[sweep] -= 1


@cache
def _differences(orders: _Orders, probe: str | None = None, names: tuple[str, ...] = ()) -> str:
    """List how this process differs from the driver's, in all or some names, or that it can't see a file."""
    expected, got = orders.environment, environment()
    said = [
        f"{name}: expected {expected.get(name)}, got {got.get(name)}"
        for name in names or sorted({*expected, *got})
        if expected.get(name) != got.get(name)
    ]
    blind = probe is not None and not Path(probe).exists()
    return "; ".join(said + [f"doesn't see the store {orders.store}"] * blind)


def environment() -> dict[str, str]:
    """Describe the packages, which must be the same where a run is planned and where it is executed."""
    return {
        "python": platform.python_version(),
        "gradtricks's files": bytes_below(PACKAGE),
        "gradtricks.lab as imported": _IMPORTED,
        **describe_libraries(),
    }


# A worker lives long: what it has imported may be older than what is in the files by now.
_IMPORTED = bytes_below(PACKAGE / "lab") + bytes_below(PACKAGE / "warm")
