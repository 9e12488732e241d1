"""What a dask worker does: runs, in warm kernels that its threads share, if it has what the driver has."""

import hashlib
import json
import platform
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path

from distributed import get_worker
from packaging.requirements import Requirement

from gradtricks.lab.kernels.choosing import Kernels, KernelsClosed
from gradtricks.lab.recording import package_digests
from gradtricks.lab.runs.execution import execute
from gradtricks.lab.runs.here import Places
from gradtricks.lab.runs.planning import Spec
from gradtricks.lab.runs.schedulers import SchedulerError
from gradtricks.lab.storage.records import installed_version
from gradtricks.lab.storage.store import Store, StoredRun

TOPIC = "gradtricks"
_UNRELATED = ("book", "dev", "mlflow", "optuna")  # extras that no run's result depends on


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
    environment: dict[str, str] = field(hash=False)


def _digest(of: str = "") -> str:
    files = {name: digest for name, digest in package_digests().items() if name.startswith(of)}
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()[:12]


# A worker lives long: what it has imported may be older than what is in the files by now.
_IMPORTED = _digest("lab/")


def environment() -> dict[str, str]:
    """Describe what has to be the same where a run is planned and where it is executed."""
    extras = tuple(f'extra == "{extra}"' for extra in _UNRELATED)
    requirements = map(Requirement, metadata.requires("gradtricks") or ())
    needed = {r.name for r in requirements if not any(extra in str(r.marker) for extra in extras)}
    return {
        "python": platform.python_version(),
        "gradtricks's files": _digest(),
        "gradtricks.lab as imported": _IMPORTED,
        **{name: installed_version(name) or "none" for name in sorted({"dask", *needed})},
    }


def describe_difference(expected: Mapping[str, str], got: Mapping[str, str]) -> str:
    """Say how an environment differs from the driver's; nothing where it doesn't."""
    names = sorted(name for name in {*expected, *got} if expected.get(name) != got.get(name))
    return "; ".join(f"{name}: expected {expected.get(name)}, got {got.get(name)}" for name in names)


_places, _lock = Places(), threading.Lock()
_kernels: dict[str, Kernels] = {}  # of each sweep that runs here, or was the last one that did
_busy: Counter[str] = Counter()
_ended: set[str] = set()


def perform(orders: Orders, spec: Spec, *, again: bool) -> StoredRun:
    """Execute a run in this process's kernels, and tell the driver who does it.

    Raises:
        SchedulerError: This worker has other packages than the driver: it may have come after the driver
            looked at all of them.
        KernelsClosed: The sweep was ended.
        RunError: The run failed.
        KernelLostError: With ``again``, as in `gradtricks.lab.runs.execution.execute`.
    """
    with _places.one() as place, _lent(orders.sweep) as kernels:
        name = f"{get_worker().name}/{place}"
        if difference := _difference(orders):
            raise unfit(name, [difference])
        # distributed itself adds its name of the worker, under "worker".
        get_worker().log_event(TOPIC, {"sweep": orders.sweep, "request": spec.request, "by": name})
        return execute(spec, Store(orders.store), kernels, timeout_s=orders.timeout_s, again=again)


def end(sweep: str) -> None:
    """End the runs of a sweep that are going on in this process, and begin no more of them."""
    with _lock:
        _ended.add(sweep)
        kernels = _kernels.pop(sweep, None)
    if kernels is not None:
        kernels.close()


def inspect(probe: str | None) -> tuple[dict[str, str], bool]:
    """Return a worker's environment, and whether it sees a file that the driver has put in the store."""
    return environment(), probe is None or Path(probe).exists()


def unfit(place: str, problems: Iterable[str]) -> SchedulerError:
    """Say that a cluster can't do what is asked, with a line for each problem."""
    lines = "\n".join(f"  {problem}" for problem in problems)
    return SchedulerError(
        f"scheduler and workers at {place} must have the same packages as this process, and see "
        f"the same store; got\n{lines}\n  remedy: install the same versions there, put the store where all "
        "see it, and start them again"
    )


@cache
def _difference(orders: Orders) -> str:
    return describe_difference(orders.environment, environment())


@contextmanager
def _lent(sweep: str) -> Iterator[Kernels]:
    """Lend the kernels of a sweep; those of sweeps that run nothing here make room for a new one."""
    with _lock:
        if sweep in _ended:
            raise KernelsClosed("the sweep was ended")
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
