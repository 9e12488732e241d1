"""papermill's engine "warm": its own client and bookkeeping, with a kernel that is forked."""

import asyncio
import logging
import math
import os
import threading
import time
import uuid
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from jupyter_core.utils import ensure_event_loop
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from nbformat.v4 import new_output, output_from_msg
from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import NBClientEngine
from papermill.log import logger

from gradtricks.warm.client import WarmKernelManager
from gradtricks.warm.imports import modules_of
from gradtricks.warm.provisioner import WarmProvisioner
from gradtricks.warm.saving import Manager, add_error, write_whole
from gradtricks.warm.servers import Servers, shared
from gradtricks.warm.specs import is_own_kernel

TEXT_LIMIT = 2_000_000  # characters that a cell may print: one that prints for ever would fill the disk
_DRAIN_TIMEOUT_S = 60  # for outputs that are on their way when a cell has ended
_LONGEST_FOLDER = 50  # bytes: systems allow about a hundred for the name of a socket in it
_OF_MANAGER = ("output_path", "progress_bar", "log_output", "autosave_cell_every")  # papermill's options
_NOT_OF_CLIENT = ("input_path", "output_path", "progress_bar", "autosave_cell_every")
# After ``exit()`` a kernel ends within a tenth of a second, amid any next cell: here it waits to be told.
_EXIT_LATER = "shell.unobserve_all('exit_now')"
# Errors are raised here, which says more; what a notebook prints is logged as papermill does.
_LOGGER = logger.getChild("warm")
_LOGGER.addFilter(lambda said: said.levelno < logging.ERROR)


def execute_notebook(
    nb: NotebookNode,
    kernel_name: str,
    *,
    servers: Servers | None = None,
    modules: Iterable[str] | None = None,
    environment: Mapping[str, str] | None = None,
    variables: Mapping[str, str] | None = None,
    state: Hashable = (),
    lines: Iterable[str] = (),
    log: int = 2,
    timeout_s: float | None = None,
    reports: bool = False,
    start_timeout: float = 60,
    execution_timeout: float | None = None,
    **options: Any,
) -> NotebookNode:
    """Execute a notebook as papermill's own engine does, but in a fork; papermill raises what cells raised.

    Args:
        nb: The notebook, parameterized; its outputs go into it, and it is returned.
        kernel_name: Of its kernel; one that isn't this Python's is left to papermill's own engine.
        servers: Where to fork; None means those that this process shares.
        modules: To be imported before the fork, ``module:function`` to be called too; None means those that
            the notebook imports in any case.
        environment: Of the kernel; None means this process's.
        variables: More variables, of this kernel alone, which no library reads when it is imported.
        state: Another state means another process that forks.
        lines: Python to be run before the first cell, in a namespace of its own with the kernel's ``shell``.
        log: Descriptor that gets what is printed past the kernel.
        timeout_s: Seconds after which the run and all that it started is ended, counted from its first cell;
            None for no limit.
        reports: Whether the last cell is run even after one that called ``sys.exit(0)`` or ``exit()``, which
            end a notebook without a failure.
        start_timeout: As papermill's own engine takes it.
        execution_timeout: As papermill's own engine takes it, for each cell.
        **options: Of papermill's own engine, and of nbclient.

    Raises:
        DeadKernelError: The process ended; a KernelLostError where it was no fault of its own.
        TimeoutError: A cell, or the run, took too long.
        ServersClosed: The servers were closed.
    """
    given = {"start_timeout": start_timeout, "execution_timeout": execution_timeout}
    if servers is None and not is_own_kernel(kernel_name):
        return NBClientEngine.execute_notebook(nb, kernel_name, **options, **given)
    write_whole(options.get("output_path"))
    if not isinstance(nb.metadata.papermill.get("input_path"), str):
        nb.metadata.papermill.pop("input_path", None)  # without a path, papermill stores the notebook itself
    manager = Manager(nb, **{name: options[name] for name in _OF_MANAGER if name in options})
    kernels = WarmKernelManager(kernel_name=kernel_name, kernel_id=uuid.uuid4().hex)
    if len(os.fsencode((servers or shared()).folder)) < _LONGEST_FOLDER:
        kernels.transport = "ipc"  # so that no port takes code
    provisioner = WarmProvisioner(
        kernel_id=kernels.kernel_id, kernel_spec=kernels.kernel_spec, parent=kernels
    )
    provisioner.modules = list(modules_of(nb) if modules is None else modules)
    provisioner.servers, provisioner.variables = servers, variables or {}
    provisioner.state, provisioner.log, provisioner.lines = state, log, (_EXIT_LATER, *lines)
    kernels.provisioner = provisioner
    traits = {"iopub_timeout": _DRAIN_TIMEOUT_S}
    traits |= {name: value for name, value in options.items() if name not in _NOT_OF_CLIENT}
    traits |= {"timeout": execution_timeout or options.get("timeout"), "startup_timeout": start_timeout}
    client = _Client(manager, km=kernels, kernel_name=kernel_name, log=_LOGGER, **traits)
    client.timeout_s, client.reports = timeout_s, reports
    manager.notebook_start()
    try:
        with _own_loop():
            client.execute(cleanup_kc=True, env=dict(os.environ if environment is None else environment))
    except BaseException as error:
        ended = provisioner.kernel is not None and isinstance(error, DeadKernelError | RuntimeError)
        reason = provisioner.how_it_ended() if ended else error
        with suppress(OSError):  # a disk that is full mustn't hide why
            manager.fail(reason)
        raise reason from None
    manager.notebook_complete()
    return manager.nb


@contextmanager
def _own_loop() -> Iterator[None]:
    """Close the event loop that nbclient leaves behind in a thread that had none."""
    had_one = threading.current_thread() is threading.main_thread()
    if not had_one:
        with suppress(RuntimeError):  # there is none in this thread
            asyncio.get_event_loop()
            had_one = True
    try:
        yield
    finally:
        if not had_one:
            ensure_event_loop().close()
            asyncio.set_event_loop(None)


class _Client(PapermillNotebookClient):
    """papermill's client, with a time-out of the whole run, and a notebook that says what happened."""

    timeout_s: float | None = None
    reports = False
    _deadline = math.inf
    _printed = 0  # characters of this cell
    _exits = False  # whether a cell has called ``exit()``

    def papermill_execute_cells(self) -> None:
        """Execute the cells, until one fails."""
        over, last = False, len(self.nb.cells) - 1
        self._deadline = time.monotonic() + (self.timeout_s or math.inf)
        for index, cell in enumerate(self.nb.cells):
            if over and not (self.reports and index == last):
                continue
            self.nb_man.cell_start(cell, index)
            self._printed = 0
            try:
                self.execute_cell(cell, index)
            except CellExecutionError as error:
                if not _errors(cell):
                    add_error(cell, error.ename, error.evalue)  # groups are only printed
                self.nb_man.cell_exception(cell, index, exception=error)
                over = True
            except BaseException as error:
                self.shutdown_kernel = "immediate"
                if isinstance(error, CellTimeoutError) and time.monotonic() >= self._deadline:
                    late = f"the run took longer than {self.timeout_s:g} s and was ended"
                    raise TimeoutError(late) from None
                raise
            self._say_what_is_left_out(cell)
            self.nb_man.cell_complete(cell, index)
            # To papermill, ``sys.exit(0)``, or without a number, isn't a failure.
            if over and _errors(cell) not in ([("SystemExit", "")], [("SystemExit", "0")]):
                return
            over = over or self._exits

    def output(
        self, outs: list[NotebookNode], msg: dict[str, Any], display_id: str | None, cell_index: int
    ) -> NotebookNode | None:
        """Add an output to a cell; texts that are printed in a row become one, up to a limit."""
        if msg["msg_type"] != "stream" or self.output_hook_stack[msg["parent_header"].get("msg_id")]:
            return super().output(outs, msg, display_id, cell_index)
        content = msg["content"]
        room = max(0, TEXT_LIMIT - self._printed)
        self._printed += len(content["text"])
        content["text"] = content["text"][:room]
        last = outs[-1] if outs and not self.clear_before_next_output else NotebookNode()
        if last.get("name") != content["name"]:
            return super().output(outs, msg, display_id, cell_index)
        more = output_from_msg(msg)
        last.text += more.text
        return more

    def clear_output(self, outs: list[NotebookNode], msg: dict[str, Any], cell_index: int) -> None:
        """Clear a cell's outputs, after which there is room again."""
        self._printed = 0
        super().clear_output(outs, msg, cell_index)

    def _say_what_is_left_out(self, cell: NotebookNode) -> None:
        if self._printed > TEXT_LIMIT:
            left_out = f"{self._printed - TEXT_LIMIT:,} more characters; a cell may print {TEXT_LIMIT:,}"
            cell.outputs.append(new_output("stream", name="stdout", text=f"\n[left out: {left_out}]\n"))

    async def _check_raise_for_error(
        self, cell: NotebookNode, cell_index: int, exec_reply: dict[str, Any] | None
    ) -> None:
        said = exec_reply["content"].get("payload", ()) if exec_reply else ()
        self._exits = any(each["source"] == "ask_exit" for each in said)
        await super()._check_raise_for_error(cell, cell_index, exec_reply)

    def _get_timeout(self, cell: NotebookNode | None) -> float | None:
        of_cell = super()._get_timeout(cell)
        left = max(self._deadline - time.monotonic(), 0.001)
        return left if math.isfinite(left) and left < (of_cell or math.inf) else of_cell


def _errors(cell: NotebookNode) -> list[tuple[str, str]]:
    return [(each.ename, each.evalue) for each in cell.outputs if each.output_type == "error"]
