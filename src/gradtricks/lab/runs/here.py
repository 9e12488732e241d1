"""Runs on this machine: a thread for each, which waits for its fork."""

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gradtricks.lab.kernels.choosing import Kernels
from gradtricks.lab.kernels.warm import KernelLostError
from gradtricks.lab.runs import execution
from gradtricks.lab.runs.planning import Spec
from gradtricks.lab.storage.store import Store, StoredRun

_PATIENCE_S = 5.0  # for threads whose runs were ended
_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # of a container: "MICROSECONDS PERIOD", or "max PERIOD"


class Threads(Executor):
    """An executor with a thread for each call.

    Unlike those of the standard library, its threads don't keep a process from ending: one may be waiting
    for what another process does.
    """

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []

    def submit(self, function: Callable[..., Any], /, *args: Any, **options: Any) -> "Future[Any]":
        """Call a function in a thread of its own."""
        future: Future[Any] = Future()

        def call() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function(*args, **options))
                except BaseException as error:
                    future.set_exception(error)

        thread = threading.Thread(target=call, daemon=True)
        self._threads = [each for each in self._threads if each.is_alive()] + [thread]
        thread.start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Wait a while for the threads."""
        for thread in self._threads if wait else ():
            thread.join(_PATIENCE_S)


class Places:
    """Numbers for those who work at once, from 1 on, each the lowest that is free."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken: set[int] = set()

    @contextmanager
    def one(self) -> Iterator[int]:
        """Take a number.

        Yields:
            The number.
        """
        with self._lock:
            number = next(n for n in range(1, len(self._taken) + 2) if n not in self._taken)
            self._taken.add(number)
        try:
            yield number
        finally:
            with self._lock:
                self._taken.discard(number)


class Here:
    """This machine, as `gradtricks.lab.runs.many.Pool` says.

    Args:
        limit: How many runs go on at once.
        cores: That they share.
        perform: Executes a run.
        kernels: In which that is done.
    """

    lost: tuple[type[Exception], ...] = (KernelLostError,)

    def __init__(
        self, limit: int, cores: int, perform: Callable[..., StoredRun], kernels: Kernels, threads: Threads
    ) -> None:
        self.cores: float = cores
        self._limit, self._perform, self._kernels, self._threads = limit, perform, kernels, threads

    def room(self) -> int:
        """As many as were asked for."""
        return self._limit

    def submit(self, spec: Spec, *, again: bool) -> "Future[StoredRun]":
        """Execute a run in a thread."""
        return self._threads.submit(self._perform, spec, again=again)

    def end(self) -> None:
        """End what goes on."""
        self._kernels.close()

    def gone(self) -> Exception:
        """Say what can't be."""
        return RuntimeError("a run was cancelled by somebody else")


@contextmanager
def here(
    specs: Sequence[Spec],
    store: Store,
    begun: Callable[[str, str], object],
    *,
    workers: int | None,
    timeout_s: float | None,
) -> Iterator[Here]:
    """Execute runs on this machine; what still goes on at the end is ended.

    Args:
        specs: What is to be run.
        store: Where runs are kept.
        begun: Is told, in another thread, the request of a run that begins, and who does it.
        workers: How many runs go on at once; None means as many as there are cores for.
        timeout_s: Ends a run that takes longer.

    Yields:
        Who executes them.
    """
    kernels, threads, places = Kernels(), Threads(), Places()

    def perform(spec: Spec, *, again: bool) -> StoredRun:
        with places.one() as number:
            begun(spec.request, str(number))
            return execution.execute(spec, store, kernels, timeout_s=timeout_s, again=again)

    limit = workers or count_workers(specs)
    # Who says how many there are knows better than the number of cores.
    cores = max(count_cores(), limit * max(spec.threads for spec in specs) if workers else 0)
    try:
        yield Here(limit, cores, perform, kernels, threads)
    finally:
        kernels.close()
        threads.shutdown()


def count_workers(specs: Iterable[Spec]) -> int:
    """Count the runs that this machine's cores can do at once.

    Args:
        specs: What is to be run.

    Returns:
        One at least.
    """
    return max(1, count_cores() // min((spec.threads for spec in specs), default=1))


def count_cores() -> int:
    """Count the cores that this process may use: those of a container are fewer than the machine's.

    Returns:
        One at least.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota, period = _QUOTA.read_text().split() if _QUOTA.exists() else ("max", "")
    return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))


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
