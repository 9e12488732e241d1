"""One run: a notebook and its parameters, executed by papermill and recorded."""

import re
import shutil
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import nbformat
from nbclient.exceptions import DeadKernelError
from papermill.exceptions import PapermillExecutionError

from gradtricks.lab.encoding import encode
from gradtricks.lab.identity import PYTHON, anything_near
from gradtricks.lab.notebooks.schema import excerpt
from gradtricks.lab.recording import REPORT_CELL
from gradtricks.lab.runs.kernels import Kernels
from gradtricks.lab.runs.outputs import OutputError, finish
from gradtricks.lab.runs.planning import Spec
from gradtricks.lab.runs.provenance import describe_libraries, describe_machine
from gradtricks.lab.storage.places import KEPT, checkpoints_of, is_trouble, trouble
from gradtricks.lab.storage.records import SCHEMA_VERSION, StoredRun, write_record
from gradtricks.lab.storage.store import Store
from gradtricks.warm.processes import KernelLostError

# What a notebook, its process or its time can do to a run: not an interruption, and no mistake of the lab's.
FAILURES = (PapermillExecutionError, DeadKernelError, OSError, OutputError)

_LONGEST_REASON = 2000
_CHECKPOINTED = (
    "\n  It left checkpoints, from which the next attempt goes on.\n  To begin anew: gradtricks clean"
)


class RunError(RuntimeError):
    """A run that failed; the message says which, where, with which parameters, and where it is kept.

    Args:
        message: All of that.
        stored: What the store keeps of it.
    """

    def __init__(self, message: str, stored: StoredRun | None = None) -> None:
        super().__init__(message)
        self.stored = stored


def execute_run(
    spec: Spec, store: Store, kernels: Kernels, *, timeout_s: float | None = None, again: bool = False
) -> StoredRun:
    """Execute a run, unless it is finished already and not to be done anew.

    Args:
        spec: From `gradtricks.lab.runs.planning`.
        store: Where finished runs are.
        kernels: Where the cells run.
        timeout_s: How long it may take, counted from when its process is there.
        again: Whether a run that ends with the process that it was forked from is to be done again; then
            nothing is kept of it but its checkpoints, and a KernelLostError says so.

    Returns:
        The finished run.

    Raises:
        RunError: A cell failed, the kernel died, or time was up; the store keeps the notebook.
        StoreError: The store can't be written to; nothing is kept.
    """
    failed = store.failure(spec)
    with store.claim(spec) as folder:
        if not spec.anew and (finished := store.find(spec)):
            return finished
        meanwhile = store.failure(spec)
        if meanwhile and meanwhile != failed:  # another process had it claimed, and it failed there
            raise RunError(_message(spec, "in another process", meanwhile), meanwhile)
        return _attempt(spec, store, kernels, folder, timeout_s, again)


def _attempt(
    spec: Spec, store: Store, kernels: Kernels, folder: Path, timeout_s: float | None, again: bool
) -> StoredRun:
    clock, output = time.monotonic(), folder / "notebook.ipynb"
    record, left = _about(spec), checkpoints_of(folder)
    # Then neither its duration nor its processor time is all that was spent on it.
    record["provenance"]["resumed"] = int(left.exists())
    how: dict[str, Any] = {"threads": spec.threads, "timeout_s": timeout_s, "checkpoints": left}
    try:
        kernels.run(spec.source, spec.parameters, output, **how)
        parts = finish(output)
        finished = record | parts | {"provenance": record["provenance"] | parts["provenance"]}
        finished["duration_s"] = round(time.monotonic() - clock, 3)
        _check(finished)
    except FAILURES as error:
        if again and isinstance(error, KernelLostError):
            raise
        if is_trouble(error, folder):
            raise trouble(store.location, error) from error
        if isinstance(error, OutputError):  # after the last cell: there is nothing to go on with
            shutil.rmtree(left, ignore_errors=True)
        where = _close(output, error)
        # It can't say what it used: any source and any library may have been the reason.
        inputs = {"modules": anything_near(spec.notebook), "versions": describe_libraries(), "python": PYTHON}
        record |= {"status": "failed", "error": reason_of(error), "inputs": inputs}
        record["lost"] = isinstance(error, KernelLostError)  # to a kill: the same command tries it again
        record["duration_s"] = round(time.monotonic() - clock, 3)
        stored = store.keep_failure(folder, record)
        more = _CHECKPOINTED if left.exists() else ""
        raise RunError(_message(spec, where, stored) + more, stored) from error
    return store.commit(folder, finished, instead=spec.anew)


def _check(record: Mapping[str, Any]) -> None:
    """Refuse what the notebook wrote in our name."""
    try:
        write_record(record)
    except ValueError as error:
        raise OutputError(str(error)) from error


def _about(spec: Spec) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "stem": spec.stem,
        "name": spec.name,
        "title": spec.title,
        "status": "finished",
        "parameters": {name: encode(value, name) for name, value in spec.parameters.items()},
        "results": {},
        "varying": {},
        "figures": {},
        "files": {},
        "request": spec.request,
        "provenance": spec.provenance | describe_machine() | {"threads": spec.threads},
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _message(spec: Spec, where: str, stored: StoredRun) -> str:
    given = "\n".join(f"    {name} = {excerpt(value)}" for name, value in spec.parameters.items())
    kept = stored.location
    left = f"The notebook as far as it came: {kept}/notebook.ipynb" if stored.executed else f"Kept in {kept}"
    error = stored.record["error"]
    return f"{spec.notebook} failed {where}\n  {error}\n  with parameters\n{given}\n  {left}"


def _close(output: Path, error: Exception) -> str:
    """Take the lab's own last cell off the notebook of a failed run, leave out its files, and say where."""
    shutil.rmtree(output.with_name(KEPT), ignore_errors=True)
    before = "before its first cell"
    if not output.exists():
        return before
    node = nbformat.read(output, as_version=4)
    node.cells = [cell for cell in node.cells if cell.source != REPORT_CELL]
    nbformat.write(node, output)
    if isinstance(error, OutputError):
        return "after its last cell"
    cells = [cell for cell in node.cells if cell.cell_type == "code"]
    started = [cell for cell in cells if cell.metadata.get("papermill", {}).get("start_time")]
    if not started:
        return before
    lines = started[-1].source.splitlines()
    number = _line_of(error)
    if 0 < number <= len(lines):
        return f"in cell {len(started)}, line {number}: {lines[number - 1].strip()}"
    return f"in cell {len(started)} ({next(iter(started[-1].source.strip().splitlines()), '')})"


def _line_of(error: Exception) -> int:
    """Say which line of its cell was going on when that failed; 0 where no traceback says it."""
    if not isinstance(error, PapermillExecutionError):
        return 0
    plain = re.sub(r"\x1b\[[\d;]*m", "", "\n".join(error.traceback))
    found = re.findall(rf"Cell In\[{error.exec_count}\], line (\d+)", plain)
    return int(found[-1]) if found else 0


def reason_of(error: Exception) -> str:
    """Say in a line or a few why a run failed: type and message, cut where they are very long."""
    if isinstance(error, PapermillExecutionError):
        text = f"{error.ename}: {error.evalue}"
    else:
        text = str(error) if isinstance(error, OutputError) else f"{type(error).__name__}: {error}"
    text = text.encode(errors="replace").decode()
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]}…"
