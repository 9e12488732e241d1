"""Runs on this machine: a thread for each, which waits for its fork."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from gradtricks.lab.kernels.choosing import Kernels
from gradtricks.lab.kernels.warm import KernelLostError
from gradtricks.lab.runs import execution
from gradtricks.lab.runs.planning import Spec
from gradtricks.lab.storage.store import Store, StoredRun

_PATIENCE_S = 5.0  # for threads whose runs were ended
_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # of a container: "MICROSECONDS PERIOD", or "max PERIOD"


class Places:
    """Numbers for those who work at once, from 1 on, each the lowest that is free."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken: set[int] = set()

    @contextmanager
    def one(self) -> Iterator[int]:
        """Take a number, for as long as the block lasts."""
        with self._lock:
            number = next(n for n in count(1) if n not in self._taken)
            self._taken.add(number)
        try:
            yield number
        finally:
            self._taken.discard(number)


class Here:
    """This machine.

    Another thread tells ``begun`` the request of a run that begins, and who does it. ``workers`` says how
    many go on at once; None means as many as there are cores for.
    """

    lost: tuple[type[Exception], ...] = (KernelLostError,)  # raised where something else ended the process

    def __init__(
        self,
        specs: Sequence[Spec],
        store: Store,
        begun: Callable[[str, str], object],
        *,
        workers: int | None,
        timeout_s: float | None,
    ) -> None:
        self._store, self._begun, self._timeout_s = store, begun, timeout_s
        self._kernels, self._places = Kernels(), Places()
        self._threads: list[threading.Thread] = []
        self._workers = workers or count_workers(specs)
        # Who says how many there are knows better than the number of cores.
        needed = self._workers * max(spec.threads for spec in specs) if workers else 0
        self.cores: float = max(count_cores(), needed)

    def close(self) -> None:
        """End what goes on, and wait a while for the threads."""
        self.end()
        deadline = time.monotonic() + _PATIENCE_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def submit(self, spec: Spec, *, again: bool) -> "Future[StoredRun]":
        """Begin a run, which is submitted ``again`` if its process is lost."""
        future: Future[StoredRun] = Future()
        # Those of the standard library's executors would keep this process from ending, while one may be
        # waiting for what another process does.
        thread = threading.Thread(target=self._perform, args=(future, spec, again), daemon=True)
        self._threads = [each for each in self._threads if each.is_alive()] + [thread]
        thread.start()
        return future

    def room(self) -> int:
        """Count the runs that can go on at once."""
        return self._workers

    def end(self) -> None:
        """End what goes on; nothing more begins."""
        self._kernels.close()

    def gone(self) -> Exception:
        """Say why runs are cancelled that nobody has cancelled here."""
        return RuntimeError("runs of this process were cancelled by somebody else")

    def _perform(self, future: "Future[StoredRun]", spec: Spec, again: bool) -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            with self._places.one() as number:
                self._begun(spec.request, str(number))
                stored = execution.execute(
                    spec, self._store, self._kernels, timeout_s=self._timeout_s, again=again
                )
            future.set_result(stored)
        except BaseException as error:
            future.set_exception(error)


def count_workers(specs: Iterable[Spec]) -> int:
    """Count the runs that this machine's cores can do at once."""
    return max(1, count_cores() // min((spec.threads for spec in specs), default=1))


def count_cores() -> int:
    """Count the cores that this process may use: those of a container are fewer than the machine's."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota, period = _QUOTA.read_text().split() if _QUOTA.exists() else ("max", "")
    return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))


@contextmanager
def on_signal(act: Callable[[], None]) -> Iterator[None]:
    """Act on Ctrl-C and SIGTERM, instead of what is done otherwise; other threads than the main one can't."""
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
