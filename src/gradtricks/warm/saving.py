"""papermill's bookkeeping and files: saved whole, and not too often."""

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from nbformat import NotebookNode
from nbformat.v4 import new_output
from papermill.engines import NotebookExecutionManager
from papermill.exceptions import PapermillExecutionError
from papermill.iorw import LocalHandler, papermill_io

_SAVE_EVERY_S = 1.0


class Manager(NotebookExecutionManager):
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
            counts = [each.get("execution_count") or 0 for each in self.nb.cells]
            cell.execution_count = cell.execution_count or 1 + max(counts)  # it may have died without a word
            add_error(cell, type(error).__name__, str(error))
            self.cell_exception(cell, self._index)
            self.cell_complete(cell, self._index)
        self.notebook_complete()
        with suppress(PapermillExecutionError):
            raise_for_execution_errors(self.nb, self.output_path)


def add_error(cell: NotebookNode, name: str, value: str) -> None:
    """Show an error in a cell, by which papermill knows that it failed."""
    cell.outputs.append(new_output("error", ename=name, evalue=value, traceback=[f"{name}: {value}"]))


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


def write_whole(path: str | None) -> None:
    """Let papermill write a file of this machine so from now on; every file, where the path is absolute."""
    local = papermill_io.get_handler("local")
    if path is not None and papermill_io.get_handler(path) is local:
        papermill_io.register("/" if path.startswith("/") else path, _WholeFiles(local))
