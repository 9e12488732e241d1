"""Where the lab's runs are executed: papermill's engine "warm", with what the lab adds to a kernel."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nbformat
import papermill
from nbformat import NotebookNode
from papermill.engines import papermill_engines

from gradtricks.lab.identity import PACKAGE
from gradtricks.lab.notebooks.injection import inject
from gradtricks.lab.notebooks.schema import read_settings
from gradtricks.lab.recording import CHECKPOINTS, FILES, REPORT_CELL
from gradtricks.warm import WarmEngine
from gradtricks.warm.imports import imports_of, is_installed
from gradtricks.warm.libraries import LIBRARIES, pinned_environment
from gradtricks.warm.servers import Servers

LOG = "kernel.log"

_OF_PYTHON = {"PYTHONHASHSEED": "0", "PYTHONFAULTHANDLER": "1"}  # a crash says where, in the log
_RECORDING = "gradtricks.lab.recording"  # the one module of this package that may be there before a fork
# To TensorFlow a kernel is a terminal, where it logs to stdout; pages leave out stderr alone.
_LOG_TO_STDERR = """if tf := __import__("sys").modules.get("tensorflow"):
    for handler in tf.get_logger().handlers:
        handler.setStream(__import__("sys").stderr)"""
_WATCH = "from gradtricks.lab.identity import SOURCES; SOURCES.watch()"


class Kernels:
    """Runs notebooks in kernels that are forked; several threads may do so at once.

    A notebook whose metadata say ``"gradtricks": {"fresh_kernel": true}`` gets a fork of a process that has
    imported nothing.
    """

    def __init__(self) -> None:
        self._servers = Servers()

    def run(
        self,
        source: NotebookNode,
        parameters: Mapping[str, Any],
        output: Path,
        *,
        threads: int = 1,
        timeout_s: float | None = None,
        checkpoints: Path | None = None,
    ) -> None:
        """Execute a notebook with papermill and save it, also while it goes on.

        Args:
            source: The notebook; a last cell, which reports what the run used, is added to a copy.
            parameters: Checked already. papermill would make texts of dates, and read none of thousands of
                digits: they are set before it gets the notebook.
            output: Where the executed notebook goes; the kernel's log goes beside it.
            threads: That the run may use.
            timeout_s: As in `gradtricks.warm.engine.execute_notebook`, which says what is raised.
            checkpoints: Folder for what the run may need if it is killed; None means one beside the output.

        Raises:
            PapermillExecutionError: A cell raised an exception.
        """
        output = output.absolute()  # a notebook may change the working directory
        kept, left = output.with_name("files"), checkpoints or output.with_name("checkpoints")
        shutil.rmtree(kept, ignore_errors=True)  # of a try that another sweep's end took along
        node = _prepare(source, parameters)
        modules = _modules_of(node)
        papermill_engines.register("warm", WarmEngine)  # where this package isn't installed, only imported
        with output.with_name(LOG).open("wb") as log:
            papermill.execute_notebook(
                node,
                str(output).replace("{", "{{").replace("}", "}}"),  # papermill formats paths
                engine_name="warm",
                kernel_name="python3",
                progress_bar=False,
                autosave_cell_every=1,
                servers=self._servers,
                modules=modules,
                state=_package_state() if modules else (),
                environment={**os.environ, **_OF_PYTHON, **pinned_environment(threads)},
                variables={FILES: str(kept), CHECKPOINTS: str(left.absolute())},
                lines=[_WATCH, _LOG_TO_STDERR],
                log=log.fileno(),
                timeout_s=timeout_s,
                reports=True,
            )

    def close(self) -> None:
        """End all runs that go on, and the processes that fork; there are no more runs after it."""
        self._servers.close()


def _prepare(source: NotebookNode, parameters: Mapping[str, Any]) -> NotebookNode:
    """Set the parameters, and add a last cell that reports what the run used."""
    node = nbformat.v4.upgrade(inject(source, parameters))
    about = {"default_parameters": {}, "environment_variables": {}, "version": papermill.__version__}
    node.metadata.papermill = {**about, **node.metadata.papermill}
    node.cells.append(nbformat.v4.new_code_cell(REPORT_CELL))
    return node


def _modules_of(node: NotebookNode) -> tuple[str, ...]:
    """List what a notebook's kernel has imported before its fork.

    With this package, a ``backend`` means the framework and figures, but nothing else: so all notebooks of a
    backend fork from one process.
    """
    if read_settings(node, "the notebook").fresh_kernel:
        return ()
    names, values = imports_of(node)
    tops = {name: name.partition(".")[0] for name in names}
    found = {name for name, top in tops.items() if top != "gradtricks" and is_installed(top)}
    backend = str(values.get("backend"))
    if "gradtricks" in tops.values() and backend in LIBRARIES and is_installed(backend):
        found = {backend, "numba"} | (found & {"matplotlib.pyplot"})
    # Listing what is installed takes long.
    recording = (f"{_RECORDING}:installed_versions",) if _RECORDING in names else ()
    return (*sorted(found), *recording)


def _package_state() -> tuple[Any, ...]:
    """Return what changes when somebody edits the package."""
    walked = os.walk(PACKAGE)  # at each run: pathlib takes five times as long
    files = sorted(f"{folder}/{name}" for folder, _, names in walked for name in names)
    wanted = (file for file in files if file.endswith((".py", ".mplstyle")))
    return tuple((file, (about := os.stat(file)).st_mtime_ns, about.st_size) for file in wanted)  # noqa: PTH116
