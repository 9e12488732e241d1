"""A notebook's cells, executed one after another in a forked process, with papermill's own bookkeeping."""

import math
import os
import platform
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel
from nbclient.exceptions import CellTimeoutError
from nbformat import NotebookNode
from nbformat.v4 import new_output, output_from_msg
from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import NBClientEngine, NotebookExecutionManager
from papermill.exceptions import PapermillExecutionError
from papermill.iorw import LocalHandler, papermill_io

from gradtricks.lab.kernels.choosing import Kernels, shared
from gradtricks.lab.kernels.warm import Kernel
from gradtricks.lab.recording import REPORT_CELL

_SAVE_EVERY_S = 1.0
_SKIPPED = "skip-execution"  # the tag by which nbclient, and so plain papermill, passes a cell by,
_ALLOWED = "raises-exception"  # and the one with which a cell may fail
_OF_MANAGER = ("output_path", "progress_bar", "log_output", "autosave_cell_every")  # papermill's options
_OF_CLIENT = ("log_output", "stdout_file", "stderr_file")
_LANGUAGE = {
    "name": "python",
    "version": platform.python_version(),
    "codemirror_mode": {"name": "ipython", "version": 3},
    "file_extension": ".py",
    "mimetype": "text/x-python",
    "nbconvert_exporter": "python",
    "pygments_lexer": "ipython3",
}


def execute_cells(
    nb: NotebookNode,
    kernel_name: str,
    *,
    kernels: Kernels | None = None,
    environment: Mapping[str, str] | None = None,
    log: int | None = None,
    timeout_s: float | None = None,
    **options: Any,
) -> NotebookNode:
    """Execute a notebook as papermill's own engine does, but in a fork; papermill raises what cells raised.

    Args:
        nb: The notebook, parameterized; its outputs go into it, and it is returned.
        kernel_name: Of its kernel; one that isn't this Python's is left to papermill's own engine.
        kernels: Where to fork; None means those that this process shares.
        environment: Of the run; None means this process's.
        log: Descriptor that gets what libraries print past Python; None means standard error.
        timeout_s: Seconds after which the run and all that it started is ended, counted from when its
            process is there; None for no limit.
        **options: Of papermill's own engine.

    Raises:
        DeadKernelError: The process ended.
        TimeoutError: A cell, or the run, took too long.
        KernelsClosed: The kernels were closed.
    """
    if kernels is None and not is_own_kernel(kernel_name):
        return NBClientEngine.execute_notebook(nb, kernel_name, **options)
    _write_whole(options.get("output_path"))
    nb.metadata.language_info = _LANGUAGE
    if not isinstance(nb.metadata.papermill.get("input_path"), str):
        nb.metadata.papermill.pop("input_path", None)  # papermill puts a notebook that has no path in itself
    manager = _Manager(nb, **{name: options[name] for name in _OF_MANAGER if name in options})
    client = _Client(
        manager, record_timing=False, **{name: options[name] for name in _OF_CLIENT if name in options}
    )
    manager.notebook_start()
    try:
        with (kernels or shared()).start(nb, environment, log) as kernel:
            _run(manager, kernel, client, timeout_s, options.get("execution_timeout"))
    except BaseException as error:
        with suppress(OSError):  # a disk that is full mustn't hide why
            manager.fail(error)
        raise
    manager.notebook_complete()
    return manager.nb


class _Manager(NotebookExecutionManager):
    """papermill's bookkeeping, which saves more seldom, and knows where it is."""

    _due_at = datetime.min.replace(tzinfo=UTC)
    _index: int | None = None

    def cell_start(self, cell: NotebookNode, cell_index: int | None = None, **said: Any) -> None:
        """Note that a cell begins."""
        self._index = cell_index
        super().cell_start(cell, cell_index, **said)

    def autosave_cell(self) -> None:
        """Save from time to time; papermill's way of it warns amid the progress where a disk is slow."""
        since = (self.now() - self.last_save_time).total_seconds()
        if self.autosave_cell_every and since >= self.autosave_cell_every:
            self.save()

    def save(self, **said: Any) -> None:
        """Save, unless that was done just now; the longer it takes, the more seldom."""
        began = self.now()
        if self.end_time or began >= self._due_at:
            super().save(**said)
            took = self.now() - began
            self._due_at = began + max(timedelta(seconds=_SAVE_EVERY_S), 10 * took)

    def fail(self, error: BaseException) -> None:
        """Mark the cell that was going on as papermill does, and say in it what happened to the process."""
        from papermill.execute import raise_for_execution_errors  # imports this when it is imported

        cell = None if self._index is None else self.nb.cells[self._index]
        if cell is not None and cell.cell_type == "code":
            name, reason = type(error).__name__, str(error)
            cell.outputs.append(
                new_output("error", ename=name, evalue=reason, traceback=[f"{name}: {reason}"])
            )
            self.cell_exception(cell, self._index)
            self.cell_complete(cell, self._index)
        self.notebook_complete()
        with suppress(PapermillExecutionError):
            raise_for_execution_errors(self.nb, self.output_path)


class _Client(PapermillNotebookClient):
    """Knows what Jupyter's messages do to a notebook. Texts that are printed in a row become one output."""

    def output(
        self, outs: list[NotebookNode], msg: dict[str, Any], display_id: str | None, cell_index: int
    ) -> NotebookNode | None:
        """Add an output to a cell."""
        last = outs[-1] if outs and not self.clear_before_next_output else NotebookNode()
        if msg["msg_type"] == "stream" and last.get("name") == msg["content"]["name"]:
            more = output_from_msg(msg)
            last.text += more.text
            return more
        return super().output(outs, msg, display_id, cell_index)


def _run(
    manager: _Manager, kernel: Kernel, client: _Client, timeout_s: float | None, cell_timeout_s: float | None
) -> None:
    over = False
    run_deadline = time.monotonic() + (timeout_s or math.inf)
    for index, cell in enumerate(manager.nb.cells):
        if over and cell.source != REPORT_CELL:
            continue
        manager.cell_start(cell, index)
        if cell.cell_type == "code" and cell.source.strip() and _SKIPPED not in cell.metadata.tags:
            client.clear_before_next_output = False
            deadline = min(run_deadline, time.monotonic() + (cell_timeout_s or math.inf))
            try:
                for message in kernel.execute(cell.source, deadline):
                    if message["msg_type"] == "execute_reply":
                        _note_error(cell, message["content"])
                    else:
                        client.process_message(message, cell, index)
            except TimeoutError:
                if deadline == run_deadline:
                    raise TimeoutError(f"the run took longer than {timeout_s:g} s and was ended") from None
                late = "A cell timed out while it was being executed"
                raise CellTimeoutError.error_from_timeout_and_cell(late, cell_timeout_s, cell) from None
            if _ALLOWED not in cell.metadata.tags and _errors(cell):
                manager.cell_exception(cell, index)
        manager.cell_complete(cell, index)
        if cell.metadata.papermill["exception"]:
            # To papermill, ``sys.exit(0)``, or without a number, isn't a failure.
            if _errors(cell) not in ([("SystemExit", "")], [("SystemExit", "0")]):
                return
            over = True


def _note_error(cell: NotebookNode, reply: Mapping[str, str]) -> None:
    """Let papermill see that a cell failed: some errors, such as groups, show only as printed text."""
    if reply["status"] == "error" and _ALLOWED not in cell.metadata.tags and not _errors(cell):
        name, value = reply["ename"], reply["evalue"]
        cell.outputs.append(new_output("error", ename=name, evalue=value, traceback=[f"{name}: {value}"]))


def _errors(cell: NotebookNode) -> list[tuple[str, str]]:
    return [(each.ename, each.evalue) for each in cell.outputs if each.output_type == "error"]


def is_own_kernel(name: str) -> bool:
    """Say whether a kernel is what Jupyter starts for this very Python, and this system can fork."""
    try:
        spec = KernelSpecManager().get_kernel_spec(name)
    except NoSuchKernel:
        return False
    program, own = Path(spec.argv[0]), Path(sys.executable)
    # Jupyter puts this Python in place of a name without a folder.
    ours = program.parent == own.parent or (
        program.name == str(program) and program.name.startswith("python")
    )
    return ours and "ipykernel_launcher" in spec.argv and not spec.env and hasattr(os, "fork")


class _WholeFiles(LocalHandler):
    """Local files, each written beside and moved into its place, so that no notebook is ever torn."""

    def __init__(self, local: LocalHandler) -> None:
        super().__init__()
        self._local = local

    def write(self, buf: str, path: str) -> None:
        """Write a text; what no encoding can write becomes a question mark."""
        folder = self._local.cwd(None)  # where papermill was called; its way of asking is to set it
        self._local.cwd(folder)
        target = Path(folder or "", path).absolute()
        beside = target.with_name(f"{target.name}.saving")
        super().write(buf.encode(errors="replace").decode(), str(beside))
        beside.replace(target)


def _write_whole(path: str | None) -> None:
    """Let papermill write a file of this machine so from now on; every file, where the path is absolute."""
    local = papermill_io.get_handler("local")
    if path is not None and papermill_io.get_handler(path) is local:
        papermill_io.register("/" if path.startswith("/") else path, _WholeFiles(local))
