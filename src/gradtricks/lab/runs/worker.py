"""What a dask worker does: runs, in warm kernels that its threads share."""

import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from distributed import get_worker

from gradtricks.lab.kernels.choosing import Kernels, KernelsClosed
from gradtricks.lab.runs import environments
from gradtricks.lab.runs.execution import execute
from gradtricks.lab.runs.planning import Spec
from gradtricks.lab.runs.pools import Places
from gradtricks.lab.runs.schedulers import SchedulerError
from gradtricks.lab.storage.store import Store, StoredRun

TOPIC = "gradtricks"


@dataclass(frozen=True)
class Orders:
    """What the runs of a sweep have in common.

    Attributes:
        sweep: Name of the sweep, unlike any other.
        store: Where the runs are kept.
        timeout_s: For each run.
        environment: Of the driver; a worker with another one must not run anything.
    """

    sweep: str
    store: str
    timeout_s: float | None
    environment: dict[str, str]


class _Here:
    """This process: the kernels of each sweep that runs here, or was the last one that did."""

    def __init__(self) -> None:
        self.places = Places()
        self.ended: set[str] = set()
        self._lock = threading.Lock()
        self._kernels: dict[str, Kernels] = {}
        self._busy: Counter[str] = Counter()
        self._differences: dict[str, str] = {}

    def difference(self, orders: Orders) -> str:
        """Compare this process with a sweep's driver, once."""
        if orders.sweep not in self._differences:
            there = environments.environment()
            self._differences[orders.sweep] = environments.describe_difference(orders.environment, there)
        return self._differences[orders.sweep]

    @contextmanager
    def kernels(self, sweep: str) -> Iterator[Kernels]:
        """Lend the kernels of a sweep; those of sweeps that run nothing here make room for a new one."""
        with self._lock:
            if sweep in self.ended:
                raise KernelsClosed("the sweep was ended")
            if sweep not in self._kernels:
                for idle in [name for name in self._kernels if not self._busy[name]]:
                    self._kernels.pop(idle).close()
                self._kernels[sweep] = Kernels()
            kernels = self._kernels[sweep]
            self._busy[sweep] += 1
        try:
            yield kernels
        finally:
            with self._lock:
                self._busy[sweep] -= 1

    def end(self, sweep: str) -> None:
        """End what goes on of a sweep."""
        with self._lock:
            self.ended.add(sweep)
            kernels = self._kernels.pop(sweep, None)
        if kernels is not None:
            kernels.close()


_here = _Here()


def perform(orders: Orders, spec: Spec, *, again: bool) -> StoredRun:
    """Execute a run in this process's kernels.

    Args:
        orders: What it has in common with others.
        spec: What is to be run.
        again: As in `gradtricks.lab.runs.execution.execute`.

    Returns:
        The finished run.

    Raises:
        SchedulerError: This worker has other packages than the driver: it may have come after the driver
            looked at all of them.
        KernelsClosed: The sweep was ended.
        RunError: The run failed.
    """
    with _here.places.one() as place, _here.kernels(orders.sweep) as kernels:
        name = f"{get_worker().name}/{place}"
        if difference := _here.difference(orders):
            raise unfit(name, [difference])
        # distributed itself adds its name of the worker, under "worker".
        get_worker().log_event(TOPIC, {"sweep": orders.sweep, "request": spec.request, "by": name})
        return execute(spec, Store(orders.store), kernels, timeout_s=orders.timeout_s, again=again)


def end(sweep: str) -> None:
    """End the runs of a sweep that are going on in this process, and begin no more of them.

    Args:
        sweep: As in `Orders`.
    """
    _here.end(sweep)


def inspect(probe: str | None) -> tuple[dict[str, str], bool]:
    """Say what a worker is like, before anything is sent to it.

    Args:
        probe: A file that the driver has just written in the store, if that is a folder.

    Returns:
        Its environment, and whether it sees the file.
    """
    return environments.environment(), probe is None or Path(probe).exists()


def unfit(place: str, problems: Iterable[str]) -> SchedulerError:
    """Say that a cluster can't do what is asked.

    Args:
        place: The scheduler's address, or the name of a worker.
        problems: A line each.

    Returns:
        The error.
    """
    lines = "\n".join(f"  {problem}" for problem in problems)
    return SchedulerError(
        f"scheduler and workers at {place} must have the same packages as this process, and see "
        f"the same store; got\n{lines}\n  remedy: install the same versions there, put the store where all "
        "see it, and start them again"
    )
