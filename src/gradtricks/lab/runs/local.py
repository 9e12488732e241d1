"""Execute runs on this machine: a thread for each, which waits for its fork."""

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future
from itertools import count
from pathlib import Path
from typing import Any

from gradtricks.lab.runs import execution
from gradtricks.lab.runs.kernels import Kernels
from gradtricks.lab.runs.planning import Spec
from gradtricks.lab.storage.store import Store, StoredRun
from gradtricks.warm.processes import KernelLostError

_CLOSE_TIMEOUT_S = 5.0  # for runs that were ended
_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # of a container: "MICROSECONDS PERIOD", or "max PERIOD"


class Threads(Executor):
    """Begins each call at once, in a daemon thread.

    The threads of the standard library's executor would keep this process from ending while one waits for
    another process.
    """

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        """Begin a call."""
        future: Future[Any] = Future()

        def work() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(fn(*args, **kwargs))
                except BaseException as error:
                    future.set_exception(error)

        threading.Thread(target=work, daemon=True).start()
        return future


class LocalPool:
    """Executes runs on this machine.

    Another thread calls ``begun`` with a run's request and worker as it begins. ``workers`` is the number of
    runs at once; None means as many as there are cores for.
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
        self._kernels, self._lock = Kernels(), threading.Lock()
        self._taken: set[int] = set()  # numbers of busy workers
        self.executor: Executor = Threads()
        self._workers = workers or count_workers(specs)
        # A number that was given is right, whatever the number of cores.
        needed = self._workers * max(spec.threads for spec in specs) if workers else 0
        self.cores: float = max(count_cores(), needed)

    def close(self) -> None:
        """End all runs, and wait a while for that."""
        self.end()
        deadline = time.monotonic() + _CLOSE_TIMEOUT_S
        while self._taken and time.monotonic() < deadline:
            time.sleep(0.02)

    def perform(self, spec: Spec, *, again: bool) -> StoredRun:
        """Execute a run, which is submitted ``again`` if its process is lost."""
        with self._lock:
            number = next(n for n in count(1) if n not in self._taken)
            self._taken.add(number)
        try:
            self._begun(spec.request, str(number))
            return execution.execute_run(
                spec, self._store, self._kernels, timeout_s=self._timeout_s, again=again
            )
        finally:
            self._taken.discard(number)

    def room(self) -> int:
        """Return the number of runs at once."""
        return self._workers

    def end(self) -> None:
        """End all runs; no further one begins."""
        self._kernels.close()


def count_workers(specs: Iterable[Spec]) -> int:
    """Count the runs that this machine's cores can do at once."""
    return max(1, count_cores() // min((spec.threads for spec in specs), default=1))


def count_cores() -> int:
    """Count the cores that this process may use: those of a container are fewer than the machine's."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota, period = _QUOTA.read_text().split() if _QUOTA.exists() else ("max", "")
    return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))
