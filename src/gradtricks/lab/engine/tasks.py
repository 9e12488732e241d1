"""What a dask worker does: one run after another, in warm kernels that its threads share."""

import atexit
import pickle
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from distributed import get_worker

from gradtricks.lab.engine import environments

if TYPE_CHECKING:
    from nbformat import NotebookNode

    from gradtricks.lab.kernels.choosing import Kernels
    from gradtricks.lab.runs.planning import Run
    from gradtricks.lab.storage.store import StoredRun

TOPIC = "gradtricks"


@dataclass(frozen=True)
class Orders:
    """What the runs of one notebook in one sweep share; it travels to each worker once.

    Attributes:
        sweep: Name of the sweep, unlike any other.
        store: Where the runs are kept.
        timeout_s: For each run.
        environment: Of the driver; a worker with another one must not run anything.
        source: The notebook.
    """

    sweep: str
    store: str
    timeout_s: float | None
    environment: dict[str, str]
    source: "NotebookNode | None" = None


@dataclass(frozen=True)
class Answer:
    """What came of a task.

    Attributes:
        kind: "stopped" was not run, or not to its end; "unfit" is a worker with another environment.
        worker: Who did it.
        seconds: How long it took.
        stored: The finished run.
        error: Why it failed.
    """

    kind: Literal["finished", "failed", "stopped", "unfit"]
    worker: str
    seconds: float = 0.0
    stored: "StoredRun | None" = None
    error: str | None = None


class _Here:
    """This process, as its threads share it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.kernels: dict[str, Kernels] = {}
        self.busy: set[int] = set()
        self.differences: dict[str, str] = {}
        self.stopped: set[str] = set()
        self.ended: set[str] = set()
        self.interruptions = 0


_here = _Here()


def complete(orders: Orders, source: bytes) -> Orders:
    """Add the notebook, so that this isn't done for each run.

    Args:
        orders: What is the same for all notebooks.
        source: The pickled notebook.

    Returns:
        The orders.
    """
    return replace(orders, source=pickle.loads(source))  # noqa: S301  from the driver, as the task itself


def perform(orders: Orders, run: "Run", index: int) -> Answer:
    """Execute a run in this process's kernels.

    Args:
        orders: What it has in common with others.
        run: The run without its notebook.
        index: Its place in the sweep, for the driver.

    Returns:
        What came of it; failures too.
    """
    with _slot() as worker:
        if orders.sweep in _here.stopped:
            return Answer("stopped", worker)
        difference = "" if _embedded() else _difference(orders)
        if difference:
            return Answer("unfit", worker, error=difference)
        # distributed itself adds its name of the worker, under "worker".
        get_worker().log_event(TOPIC, {"sweep": orders.sweep, "index": index, "by": worker})
        return _answer(orders, replace(run, source=orders.source), worker)


def _difference(orders: Orders) -> str:
    """Compare with the driver once a sweep: a worker may have come after the driver looked at all of them."""
    if orders.sweep not in _here.differences:
        _here.differences[orders.sweep] = environments.describe_difference(
            orders.environment, environments.environment()
        )
    return _here.differences[orders.sweep]


def _answer(orders: Orders, run: "Run", worker: str) -> Answer:
    from gradtricks.lab.runs.execution import RunError, execute
    from gradtricks.lab.storage.store import Store

    clock = time.monotonic()
    try:
        kernels = _Endable(kernels_of(orders.sweep if _embedded() else ""), orders.sweep)
        # It has all of Kernels that a run uses.
        stored = execute(run, Store(orders.store), kernels, timeout_s=orders.timeout_s)  # type: ignore[arg-type]
        return Answer("finished", worker, time.monotonic() - clock, stored=stored)
    except _EndedError:
        return Answer("stopped", worker)
    except Exception as error:  # whatever it is, the other runs go on
        text = str(error) if isinstance(error, RunError) else f"{run.title}: {type(error).__name__}: {error}"
        return Answer("failed", worker, time.monotonic() - clock, error=text)


class _EndedError(BaseException):
    """A run was told to end. That isn't a failure, and must not be kept as one."""


class _Endable:
    """Kernels, as one sweep sees them; sweeps of several drivers share those of a worker.

    Args:
        kernels: Where runs are executed.
        sweep: As in `Orders`.
    """

    def __init__(self, kernels: "Kernels", sweep: str) -> None:
        self._kernels = kernels
        self._sweep = sweep

    def run(self, *args: Any, **options: Any) -> None:
        """As `gradtricks.lab.kernels.choosing.Kernels.run`."""
        while self._sweep not in _here.ended:
            before = _here.interruptions
            try:
                return self._kernels.run(*args, **options)
            except Exception:
                # Where another sweep was ended, this run went with those, and is done again.
                if before == _here.interruptions:
                    raise
        raise _EndedError


@contextmanager
def _slot() -> Iterator[str]:
    """Name the thread: by the lowest number that no other one has at the moment."""
    with _here.lock:
        number = next(n for n in range(1, len(_here.busy) + 2) if n not in _here.busy)
        _here.busy.add(number)
    try:
        yield str(number) if _embedded() else f"{get_worker().name}/{number}"
    finally:
        with _here.lock:
            _here.busy.discard(number)


def _embedded() -> bool:
    return get_worker().address.startswith("inproc")


def kernels_of(owner: str) -> "Kernels":
    """Return kernels, and make them when they are first asked for.

    Args:
        owner: A sweep within its driver; in a worker, whose kernels live as long as itself, "".

    Returns:
        The kernels.
    """
    from gradtricks.lab.kernels.choosing import Kernels

    with _here.lock:
        if owner not in _here.kernels:
            _here.kernels[owner] = Kernels()
        return _here.kernels[owner]


def close_kernels(owner: str) -> None:
    """End the warm processes.

    Args:
        owner: As in `kernels_of`.
    """
    kernels = _here.kernels.pop(owner, None)
    if kernels is not None:
        kernels.close()


atexit.register(close_kernels, "")


def stop(sweep: str) -> None:
    """Start no further run of a sweep in this process.

    Args:
        sweep: As in `Orders`.
    """
    _here.stopped.add(sweep)


def end(sweep: str) -> None:
    """End the runs of a sweep that are going on in this process.

    Args:
        sweep: As in `Orders`.
    """
    _here.stopped.add(sweep)
    _here.ended.add(sweep)
    _here.interruptions += 1
    for owner in ("", sweep):
        if owner in _here.kernels:
            _here.kernels[owner].interrupt()


def inspect(probe: str | None) -> tuple[dict[str, str], bool]:
    """Say what a worker is like, before anything is sent to it.

    Args:
        probe: A file that the driver has just written in the store, if that is a folder.

    Returns:
        Its environment, and whether it sees the file.
    """
    return environments.environment(), probe is None or Path(probe).exists()
