"""A notebook while it is executed: papermill's bookkeeping, and files that are never torn."""

import os
import platform
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import nbformat
import papermill
from nbclient import NotebookClient
from nbformat import NotebookNode
from papermill.engines import NotebookExecutionManager
from papermill.exceptions import PapermillExecutionError
from papermill.execute import ERROR_ANCHOR_MSG, ERROR_MARKER_TAG, ERROR_MESSAGE_TEMPLATE

from gradtricks.lab.notebooks.literals import inject
from gradtricks.lab.recording import REPORT_CELL

_SAVE_EVERY_S = 1.0
_SKIPPED = "skip-execution"  # the tag by which nbclient, and so plain papermill, passes a cell by


def prepare(source: NotebookNode, parameters: Mapping[str, Any], output: Path) -> NotebookNode:
    """Make the notebook that is executed.

    Args:
        source: The notebook; it isn't changed.
        parameters: Checked already.
        output: Where the executed notebook goes.

    Returns:
        A copy with the parameters, the metadata that papermill keeps, and a last cell that reports what the
        run used.
    """
    node = nbformat.v4.upgrade(inject(source, parameters))
    about = {"default_parameters": {}, "environment_variables": {}, "version": papermill.__version__}
    node.metadata.papermill = {**about, **node.metadata.papermill, "output_path": str(output)}
    node.metadata.language_info = {
        "name": "python",
        "version": platform.python_version(),
        "codemirror_mode": {"name": "ipython", "version": 3},
        "file_extension": ".py",
        "mimetype": "text/x-python",
        "nbconvert_exporter": "python",
        "pygments_lexer": "ipython3",
    }
    node.cells.append(nbformat.v4.new_code_cell(REPORT_CELL))
    for cell in node.cells:
        cell.metadata.setdefault("tags", [])
        cell.metadata.setdefault("papermill", {})
    node.cells = [cell for cell in node.cells if ERROR_MARKER_TAG not in cell.metadata.tags]
    return node


class Execution(NotebookExecutionManager):
    """Keeps a notebook's metadata and its file up to date while cells run.

    papermill's own ``execute_notebook`` isn't called, since it changes the folder of the whole process, in
    which other runs go on, and takes braces in paths for its own.

    Args:
        node: From `prepare`.
        output: Where it is saved.
    """

    def __init__(self, node: NotebookNode, output: Path) -> None:
        super().__init__(node, output_path=str(output), progress_bar=False)
        self._due_at = 0.0

    def run(self, execute: Callable[[NotebookNode, int], None]) -> None:
        """Run the cells until one fails.

        Args:
            execute: Runs a code cell, given with its place in the notebook, and gives it its outputs.

        Raises:
            PapermillExecutionError: A cell raised an exception, SystemExit too.
        """
        self.notebook_start()
        index = 0
        try:
            for index, cell in enumerate(self.nb.cells):
                self.cell_start(cell, index)
                if _is_executed(cell):
                    execute(cell, index)
                    _raise_for(cell, index)
                self.cell_complete(cell, cell_index=index)
        except BaseException as error:
            self._fail(self.nb.cells[index], index, error)
            raise
        self.notebook_complete()

    def is_due(self) -> bool:
        """Return whether a save would save."""
        return time.monotonic() >= self._due_at

    def save(self, **_: Any) -> None:
        """Save in one step, but seldom while cells run."""
        if not self.is_due() and not self.end_time:
            return
        began = time.monotonic()
        # Text that no encoding can write is no reason to lose a notebook.
        written = nbformat.writes(self.nb).encode(errors="replace")
        beside = Path(f"{self.output_path}.saving")
        beside.write_bytes(written)
        os.replace(beside, self.output_path)
        took = time.monotonic() - began
        self._due_at = began + max(_SAVE_EVERY_S, 10 * took)

    def _fail(self, cell: NotebookNode, index: int, error: BaseException) -> None:
        """Mark the cell that failed as papermill does; say in it what it couldn't say, such as a time-out."""
        if cell.cell_type == "code" and not isinstance(error, PapermillExecutionError):
            name, reason = type(error).__name__, str(error)
            told = nbformat.v4.new_output("error", ename=name, evalue=reason, traceback=[f"{name}: {reason}"])
            cell.outputs = [*cell.get("outputs", []), told]
        self.cell_exception(cell, index)
        self.cell_complete(cell, cell_index=index)
        self.notebook_complete()
        tagged = {"tags": [ERROR_MARKER_TAG]}
        message = ERROR_MESSAGE_TEMPLATE % cell.get("execution_count")
        for place, text in ((index, ERROR_ANCHOR_MSG), (0, message)):
            self.nb.cells.insert(place, nbformat.v4.new_markdown_cell(text, metadata=tagged))
        self.save()


class Interpreter(NotebookClient):
    """Knows what Jupyter's messages do to a notebook. Texts that are printed in a row become one output.

    Args:
        execution: Of the notebook.
        **options: Of nbclient.
    """

    def __init__(self, execution: Execution, **options: Any) -> None:
        super().__init__(execution.nb, record_timing=False, **options)
        self._execution = execution
        self._printed: NotebookNode | None = None
        self._texts: list[str] = []
        self.clear_before_next_output = False

    def process_message(
        self, msg: dict[str, Any], cell: NotebookNode, cell_index: int
    ) -> NotebookNode | None:
        """Do what a message says."""
        output = super().process_message(msg, cell, cell_index)
        if self._execution.is_due():
            self.settle()
            self._execution.save()
        return output

    def output(
        self, outs: list[NotebookNode], msg: dict[str, Any], display_id: str | None, cell_index: int
    ) -> NotebookNode | None:
        """Add an output to a cell."""
        if self._continues(outs, msg):
            self._texts.append(msg["content"]["text"])
            return self._printed
        self.settle()
        output = super().output(outs, msg, display_id, cell_index)
        if output is not None and output.output_type == "stream":
            self._printed, self._texts = output, [output.text]
        return output

    def settle(self) -> None:
        """Put printed texts together; done once, since it takes long for thousands."""
        if self._printed is not None:
            self._printed.text = "".join(self._texts)
            self._texts = [self._printed.text]

    def _continues(self, outs: list[NotebookNode], msg: dict[str, Any]) -> bool:
        last = self._printed
        return (
            msg["msg_type"] == "stream"
            and last is not None
            and bool(outs)
            and outs[-1] is last
            and last.name == msg["content"]["name"]
            and not self.clear_before_next_output
            and not self.output_hook_stack[msg["parent_header"].get("msg_id")]
        )


def _is_executed(cell: NotebookNode) -> bool:
    return cell.cell_type == "code" and bool(cell.source.strip()) and _SKIPPED not in cell.metadata.tags


def _raise_for(cell: NotebookNode, index: int) -> None:
    if "raises-exception" in cell.metadata.tags:
        return
    error = next((output for output in cell.outputs if output.output_type == "error"), None)
    if error is not None:
        reason = error.evalue
        if error.ename == "SystemExit":
            reason = f"{reason or 0}; expected a notebook that runs to its end; remedy: don't exit in a cell"
        raise PapermillExecutionError(
            cell_index=index,
            exec_count=cell.execution_count,
            source=cell.source,
            ename=error.ename,
            evalue=reason,
            traceback=error.traceback,
        )
