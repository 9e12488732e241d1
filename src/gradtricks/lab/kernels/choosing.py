"""Processes that fork, kept from run to run, and the call of papermill that runs a notebook in a fork."""

import atexit
import keyword
import os
import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import nbformat
import papermill
from nbclient.exceptions import DeadKernelError
from nbformat import NotebookNode
from papermill.engines import papermill_engines

from gradtricks.lab.encoding import encode
from gradtricks.lab.identity import PACKAGE
from gradtricks.lab.kernels import INJECTED, RECORDING, WarmEngine
from gradtricks.lab.kernels.imports import modules_of
from gradtricks.lab.kernels.warm import ForkServer, Kernel, KernelLostError
from gradtricks.lab.notebooks.texts import literal
from gradtricks.lab.recording import CHECKPOINTS, FILES, REPORT_CELL

_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
)
_DEFAULTS = {
    "OPENBLAS_NUM_THREADS": "1",  # NumPy would start threads when imported, and threads can't be forked
    "MPLBACKEND": "module://matplotlib_inline.backend_inline",
}
_PINNED = _DEFAULTS | {
    "PYTHONHASHSEED": "0",
    "PYTHONFAULTHANDLER": "1",  # a crash says in the log where it happened
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # without it, matrix products on a GPU aren't deterministic
    "OMP_WAIT_POLICY": "PASSIVE",  # threads that spin while they wait quarter the speed of a busy machine
}
_COMMENT = "# Set by gradtricks: the parameters of this run."
_SERVERS = 4  # that are kept; each holds what it has imported

LOG = "kernel.log"


class KernelsClosed(Exception):  # noqa: N818  what happened isn't an error
    """A run was ended by `Kernels.close`, or came after it."""


class Kernels:
    """Keeps processes that fork from one run to the next; several threads may use them at once.

    There is one for each set of modules and each environment, since libraries read variables when they are
    imported, and a new one where somebody edits the package. A notebook whose metadata say
    ``"gradtricks": {"fresh_kernel": true}`` gets a fork of a process that has imported nothing, and so does
    one whose imports start threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._servers: dict[Any, ForkServer] = {}
        self._closed = False

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
            timeout_s: As in `gradtricks.lab.kernels.cells.execute_cells`, which says what is raised.
            checkpoints: Folder for what the run may need if it is killed; None means one beside the output.

        Raises:
            PapermillExecutionError: A cell raised an exception.
        """
        output = output.absolute()  # a notebook may change the working directory
        kept, left = output.with_name("files"), checkpoints or output.with_name("checkpoints")
        shutil.rmtree(kept, ignore_errors=True)  # of a try that another sweep's end took along
        pinned = dict.fromkeys(_THREAD_VARIABLES, str(threads)) | _PINNED
        folders = {FILES: str(kept), CHECKPOINTS: str(left.absolute())}
        papermill_engines.register("warm", WarmEngine)  # where this package isn't installed, only imported
        with output.with_name(LOG).open("wb") as log:
            papermill.execute_notebook(
                _prepare(source, parameters),
                str(output).replace("{", "{{").replace("}", "}}"),  # papermill formats paths
                engine_name="warm",
                kernel_name="python3",
                progress_bar=False,
                autosave_cell_every=1,
                kernels=self,
                environment={**os.environ, **pinned, **folders},
                log=log.fileno(),
                timeout_s=timeout_s,
            )

    @contextmanager
    def start(
        self, node: NotebookNode, environment: Mapping[str, str] | None, log: int | None
    ) -> Iterator[Kernel]:
        """Fork for one run of a notebook; what it started ends with it.

        Without an environment it has this process's; without a log, what its libraries print past Python
        goes to standard error. A KernelLostError says that there can't be a process.
        """
        log = 2 if log is None else log
        environment = {**_DEFAULTS, **os.environ} if environment is None else environment
        modules = modules_of(node)
        for imported in (modules, ()) if modules else ((),):
            with self._server(imported, environment) as server, server.fork(environment, log) as kernel:
                if kernel is not None:
                    try:
                        yield kernel
                    except DeadKernelError:
                        self._refuse_closed()
                        raise
                    return
                said = server.last_words()
        self._refuse_closed()
        died = "Kernel died: the process that forks is gone, or there can't be more processes"
        raise KernelLostError(f"{died}{said}")

    def close(self) -> None:
        """End all runs that go on, and the processes that fork; there are no more runs after it."""
        with self._lock:
            self._closed = True
            while self._servers:
                self._servers.popitem()[1].close()  # also one that is importing, with runs that wait for it

    def _refuse_closed(self) -> None:
        if self._closed:
            raise KernelsClosed("the run was interrupted")

    @contextmanager
    def _server(self, modules: tuple[str, ...], environment: Mapping[str, str]) -> Iterator[ForkServer]:
        own = {name: value for name, value in environment.items() if name not in (FILES, CHECKPOINTS)}
        key = modules, frozenset(own.items()), _package_state() if RECORDING in modules else ()
        with self._lock:
            self._refuse_closed()
            server = self._servers.pop(key, None)
            if server is not None and not server.is_alive():
                server.close()
                server = None
            self._servers[key] = server = server or ForkServer(modules, own)  # the last one used comes last
            server.users += 1
            idle = [key for key, other in self._servers.items() if not other.users]
            for key in idle[: max(0, len(self._servers) - _SERVERS)]:
                self._servers.pop(key).close()
        try:
            yield server
        finally:
            with self._lock:
                server.users -= 1


@cache
def shared() -> Kernels:
    """Return the kernels of this process; they end with it."""
    kernels = Kernels()
    atexit.register(kernels.close)
    return kernels


def _package_state() -> tuple[Any, ...]:
    """Return what changes when somebody edits the package."""
    files = sorted(path for ending in ("py", "mplstyle") for path in PACKAGE.rglob(f"*.{ending}"))
    return tuple((str(file), (about := file.stat()).st_mtime_ns, about.st_size) for file in files)


def _prepare(source: NotebookNode, parameters: Mapping[str, Any]) -> NotebookNode:
    """Set the parameters, and add a last cell that reports what the run used."""
    node = nbformat.v4.upgrade(inject(source, parameters))
    about = {"default_parameters": {}, "environment_variables": {}, "version": papermill.__version__}
    node.metadata.papermill = {**about, **node.metadata.papermill}
    node.cells.append(nbformat.v4.new_code_cell(REPORT_CELL))
    return node


def inject(node: NotebookNode, parameters: Mapping[str, Any]) -> NotebookNode:
    """Set a notebook's parameters, as `check_parameters` returned them, in a copy of it.

    One cell tagged ``injected-parameters`` stands behind the one tagged ``parameters``, as papermill puts it,
    in place of an older one. A ValueError says that no cell is tagged so, or that a name can't be a variable.
    """
    node = deepcopy(node)
    node.cells = [cell for cell in node.cells if INJECTED not in cell.metadata.get("tags", [])]
    if parameters:
        tags = [cell.metadata.get("tags", []) for cell in node.cells]
        place = next((i for i, each in enumerate(tags) if "parameters" in each), None)
        if place is None:
            raise ValueError("expected a cell tagged 'parameters'; got none, so parameters can't be set")
        node.cells.insert(place + 1, _cell(node, parameters))
    about = node.metadata.get("papermill")  # of an earlier run, or anything
    node.metadata.papermill = NotebookNode(about if isinstance(about, dict) else {})
    node.metadata.papermill["parameters"] = {name: encode(value, name) for name, value in parameters.items()}
    return node


def _cell(node: NotebookNode, parameters: Mapping[str, Any]) -> NotebookNode:
    for name in parameters:
        if not name.isidentifier() or keyword.iskeyword(name):
            raise ValueError(f"expected the name of a variable; got {name!r}")
    lines = [f"{name} = {literal(value)}" for name, value in parameters.items()]
    cell = nbformat.v4.new_code_cell("\n".join([_COMMENT, *lines]), metadata={"tags": [INJECTED]})
    taken = {other.get("id") for other in node.cells}
    cell["id"] = INJECTED if INJECTED not in taken else cell["id"]  # equal runs are equal files
    if node.get("nbformat_minor", 5) < 5:
        del cell["id"]  # older notebooks may not have any
    return cell
