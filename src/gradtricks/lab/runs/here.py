"""Runs on this machine: a thread for each, which waits for its fork."""

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gradtricks.lab.kernels.choosing import Kernels
from gradtricks.lab.kernels.warm import KernelLostError
from gradtricks.lab.runs import execution
from gradtricks.lab.runs.planning import Spec
from gradtricks.lab.runs.pools import Places, Pool, Threads
from gradtricks.lab.storage.store import Store, StoredRun

_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # of a container: "MICROSECONDS PERIOD", or "max PERIOD"


@contextmanager
def here(
    specs: Sequence[Spec],
    store: Store,
    begun: Callable[[str, str], object],
    *,
    workers: int | None,
    timeout_s: float | None,
) -> Iterator[Pool]:
    """Execute runs on this machine; what still goes on at the end is ended.

    Another thread tells ``begun`` the request of a run that begins, and who does it. ``workers`` says how
    many go on at once; None means as many as there are cores for.
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
        yield Pool(threads, perform, lambda: limit, kernels.close, _cancelled, cores, (KernelLostError,))
    finally:
        kernels.close()
        threads.shutdown()


def _cancelled() -> Exception:
    return RuntimeError("runs of this process were cancelled by somebody else")


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
