"""Fresh kernels: Jupyter's own, for notebooks that ask for one and for systems that can't fork."""

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

import nbformat
from jupyter_core.utils import ensure_event_loop
from nbclient.exceptions import CellExecutionError, DeadKernelError
from nbformat import NotebookNode
from traitlets.config import Config

from gradtricks.lab.kernels.bookkeeping import Execution, Interpreter
from gradtricks.lab.kernels.limits import OutputLimit
from gradtricks.lab.kernels.processes import end_marked, end_tree
from gradtricks.lab.kernels.warm import how_ended

_MARK = "GRADTRICKS_RUN"
_PATIENCE_S = 5.0
# What a fork does at its end too. ipykernel's own way out takes seconds now and then.
_FAREWELL = """\
def leave(run=__import__("atexit")._run_exitfuncs, end=__import__("os")._exit, names=get_ipython().user_ns):
    run()
    names.clear()
    end(0)
leave()
"""


class FreshKernel(Interpreter):
    """A process of Jupyter's kernel, as the driver sees it.

    Args:
        execution: Of the notebook.
        folder: For its sockets; the path must be short.
    """

    def __init__(self, execution: Execution, folder: str) -> None:
        super().__init__(
            execution,
            kernel_name="python3",
            config=Config({"KernelManager": {"transport": "ipc", "ip": f"{folder}/kernel"}}),
            # What libraries print past Python goes to the log, not into the notebook.
            extra_arguments=["--IPKernelApp.capture_fd_output=False"],
            raise_on_iopub_timeout=True,
            iopub_timeout=60,
            shutdown_kernel="immediate",
            on_cell_executed=self._look_for_exit,
            on_cell_error=self._show_error,
        )
        self._limit = OutputLimit()
        self._exiting = False

    @property
    def pid(self) -> int:
        """Of the process."""
        return self.km.provisioner.pid

    def execute(self, interpreter: Interpreter, cell: NotebookNode, index: int) -> None:
        """Run a cell and give it its outputs; as `WarmKernel.execute`."""
        if self._exiting:  # the process may take its time
            raise DeadKernelError(f"Kernel died: {how_ended(0)}")
        try:
            self.execute_cell(cell, index)
        except CellExecutionError:
            pass  # the cell has it among its outputs
        except (DeadKernelError, RuntimeError):
            code = self.km.provisioner.process.poll() if self.km.provisioner.process else None
            if code is None:
                raise
            # The message that numbers the cell may have been lost in the crash.
            cell.execution_count = cell.execution_count or self.code_cells_executed
            raise DeadKernelError(f"Kernel died: {how_ended(code)}") from None
        finally:
            self._end_cell(cell, index)

    def process_message(
        self, msg: dict[str, Any], cell: NotebookNode, cell_index: int
    ) -> NotebookNode | None:
        """Do what a message says, within limits."""
        kind, content = msg["msg_type"], msg["content"]
        if kind == "stream":
            content["text"] = self._limit.cut(content["text"])
            if not content["text"]:
                return None
        elif kind == "clear_output":
            self._limit.clear()
        else:
            msg["content"] = self._limit.trim(kind, content)
            if msg["content"] is None:
                return None
        return super().process_message(msg, cell, cell_index)

    def leave(self) -> None:
        """Let the process end in an orderly way."""
        self.kc.execute(_FAREWELL, silent=True, store_history=False)
        deadline = time.monotonic() + _PATIENCE_S
        while self.km.provisioner.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)

    def _look_for_exit(self, execute_reply: dict[str, Any], **_: Any) -> None:
        asked = [payload.get("source") for payload in execute_reply["content"].get("payload", [])]
        self._exiting = "ask_exit" in asked

    def _show_error(self, cell: NotebookNode, execute_reply: dict[str, Any], **_: Any) -> None:
        """Let a magic that was used wrongly be an error as any other: IPython only prints it."""
        if not any(output.output_type == "error" for output in cell.outputs):
            name, reason = (execute_reply["content"].get(key, "") for key in ("ename", "evalue"))
            told = nbformat.v4.new_output("error", ename=name, evalue=reason, traceback=[f"{name}: {reason}"])
            cell.outputs.append(told)

    def _end_cell(self, cell: NotebookNode, index: int) -> None:
        if note := self._limit.note():
            header = {"msg_type": "stream"}
            content = {"name": "stdout", "text": note}
            message = {**header, "header": header, "parent_header": {"msg_id": None}, "content": content}
            self.output(cell.outputs, message, None, index)
        self._limit.clear()
        self.settle()


def _close_loop() -> None:
    """Close the event loop that jupyter_core made for this thread; it makes another when it needs one."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        ensure_event_loop().close()
        asyncio.set_event_loop(None)


@contextmanager
def fresh_kernel(execution: Execution, environment: Mapping[str, str], log: int) -> Iterator[FreshKernel]:
    """Start a kernel for one run; what it started ends with it.

    Args:
        execution: Of the notebook.
        environment: Of the run.
        log: Descriptor that gets what the run's libraries print to the file descriptors 1 and 2.

    Yields:
        The kernel.
    """
    mark = uuid4().hex
    # Sockets in a folder that only this user can enter, instead of open ports.
    with TemporaryDirectory(prefix="gradtricks-") as folder:
        kernel = FreshKernel(execution, folder)
        try:
            with kernel.setup_kernel(env={**environment, _MARK: mark}, stdout=log, stderr=log):
                try:
                    yield kernel
                finally:
                    end_tree(kernel.pid)
        finally:
            end_marked(_MARK, mark)
            _close_loop()
