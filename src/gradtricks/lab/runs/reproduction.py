"""Run a recorded run again, and say whether the same came out."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from nbformat import NotebookNode

from gradtricks.lab.encoding import decode
from gradtricks.lab.notebooks.schema import read_settings
from gradtricks.lab.runs.execution import FAILURES, RunError, reason_of
from gradtricks.lab.runs.kernels import Kernels
from gradtricks.lab.runs.outputs import finish
from gradtricks.lab.runs.planning import digests, note_reads, source_digest
from gradtricks.lab.runs.provenance import describe_machine
from gradtricks.lab.storage.places import StoreError
from gradtricks.lab.storage.published import PublishedRun
from gradtricks.lab.storage.records import StoredRun, request_digest

_TOLERANCE = 1e-5


class _Absent:
    """Stands for a value that only the other side has."""

    def __repr__(self) -> str:
        return "nothing"


ABSENT = _Absent()


@dataclass(frozen=True)
class Difference:
    """One value that isn't what it was."""

    name: str  # dotted, such as ``results.curve.3`` or ``versions.numpy``
    recorded: Any  # `ABSENT` where it wasn't there
    now: Any  # `ABSENT` where it isn't there any more
    relative: float | None = None  # between two floats: their distance by the larger one's magnitude


@dataclass(frozen=True)
class Verdict:
    """The outcome of a rerun."""

    title: str  # of the run
    verdict: str  # ``identical``, ``within tolerance``, ``different`` or ``nothing to compare``
    count: int  # of the values that were compared
    differences: tuple[Difference, ...]  # of results, however little
    environment: tuple[Difference, ...]  # files of the package, versions, machine, files that are read


def reproduce(stored: StoredRun, kernels: Kernels, *, timeout_s: float | None = None) -> Verdict:
    """Run a recorded run again, with the parameters and threads that it had, and compare the results.

    Its cells are those that were run, but of a published run, whose notebook is taken as it is now.

    Files that it kept are compared by their digests: one other bit, and the verdict is "different". What was
    recorded as varying isn't judged, and figures aren't either. Two floats are within tolerance whose
    difference is at most a hundred thousandth of the larger one.

    Raises:
        StoreError: The run has failed, or its executed notebook can't be read or was edited.
        RunError: This time it failed.
    """
    if stored.status != "finished":
        raise StoreError(
            f"expected a finished run; got {stored.title}, which failed; remedy: run it until it finishes"
        )
    source = stored.read_notebook()  # papermill takes out what came of it
    if isinstance(stored, PublishedRun):  # that is the notebook as it is now, with the files as they are
        note_reads(source, stored.notebook, read_settings(source, stored.title))
    elif request_digest(source_digest(source), stored.parameters, stored.record["provenance"]["threads"]) != (
        stored.request
    ):
        raise StoreError(
            f"expected the notebook that was run in {stored.location}; got one that was edited since, or a "
            "record that was; remedy: run it again"
        )
    how = read_settings(source, stored.title)
    files = compare(how.read, digests(Path(how.folder), how.reads), "reads")
    parts = _rerun(stored, source, kernels, timeout_s)
    before, now = (
        {"results": decode(results), "files": {name: about["sha256"] for name, about in kept.items()}}
        for results, kept in ((stored.record["results"], stored.files), (parts["results"], parts["files"]))
    )
    differences = tuple(each for part in now for each in compare(before[part], now[part], part))
    count = sum(_count(value) for part in now.values() for value in part.values())
    near = all(map(is_near, differences))
    alike = "identical" if count else "nothing to compare"
    verdict = alike if not differences else "within tolerance" if near else "different"
    record, machine = stored.record, describe_machine()
    told = {"machine": {name: record["provenance"][name] for name in machine}, **record["inputs"]}
    found = {"machine": machine, **parts["inputs"]}
    environment = [each for name in found for each in compare(told[name], found[name], name)]
    return Verdict(stored.title, verdict, count, differences, (*environment, *files))


def is_near(difference: Difference) -> bool:
    """Say whether two floats differ by at most a hundred thousandth of the larger one."""
    return difference.relative is not None and difference.relative <= _TOLERANCE


def compare(recorded: Any, now: Any, name: str) -> Iterator[Difference]:
    """Compare two values, part by part.

    Equal are floats with the same bits, and NaN with NaN; other values of the same type that are equal.
    """
    if isinstance(recorded, dict) and isinstance(now, dict):
        for key in recorded | now:
            yield from compare(recorded.get(key, ABSENT), now.get(key, ABSENT), f"{name}.{key}")
    elif isinstance(recorded, list) and isinstance(now, list):
        for index, (old, new) in enumerate(zip_longest(recorded, now, fillvalue=ABSENT)):
            yield from compare(old, new, f"{name}.{index}")
    elif not _are_same(recorded, now):
        yield Difference(name, recorded, now, _relative(recorded, now))


def _are_same(recorded: Any, now: Any) -> bool:
    if type(recorded) is float and type(now) is float:
        return recorded.hex() == now.hex()  # NaN is NaN, and the zeros have signs
    return type(recorded) is type(now) and recorded == now


def _relative(recorded: Any, now: Any) -> float | None:
    if type(recorded) is not float or type(now) is not float:
        return None
    if not (math.isfinite(recorded) and math.isfinite(now)):
        return math.inf
    largest = max(abs(recorded), abs(now))
    return abs(recorded / largest - now / largest) if largest else 0.0


def _count(value: Any) -> int:
    """Count the values in a result; an empty list is one too."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return sum(map(_count, parts)) or 1


def _rerun(
    stored: StoredRun, source: NotebookNode, kernels: Kernels, timeout_s: float | None
) -> dict[str, dict[str, Any]]:
    with TemporaryDirectory(prefix="gradtricks-") as folder:
        output = Path(folder, "notebook.ipynb")
        threads = stored.record["provenance"]["threads"]
        try:
            kernels.run(source, stored.parameters, output, threads=threads, timeout_s=timeout_s)
            return finish(output)
        except FAILURES as error:
            commit = stored.record["provenance"]["commit"] or "the code of then"
            then = f"compare with the notebook of then, {stored.location}/notebook.ipynb"
            raise RunError(
                f"expected {stored.title} to finish as it did before; got {reason_of(error)}; "
                f"remedy: {then if stored.executed else f'check out {commit}'}"
            ) from error
