"""Where a run's cells are executed: in a fork of a warm process, or in a fresh kernel."""

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat
import papermill
from nbformat import NotebookNode
from traitlets.config import Config

from gradtricks.lab.recording import package_digests
from gradtricks.lab.warm import ENGINE, ForkServer, modules_for

_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
)

_PINNED = {
    "PYTHONHASHSEED": "0",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # without it, matrix products on a GPU aren't deterministic
    "OMP_WAIT_POLICY": "PASSIVE",  # threads that spin while they wait quarter the speed of a busy machine
    "OPENBLAS_NUM_THREADS": "1",  # NumPy would start threads when imported, and threads can't be forked
    "MPLBACKEND": "module://matplotlib_inline.backend_inline",
}

LOG = "kernel.log"

# papermill warns of every parameter whose annotation it can't read; the lab has checked them all.
logging.getLogger("papermill").setLevel(logging.CRITICAL)


class Kernels:
    """Runs notebooks, and keeps a warm process for each backend from one run to the next.

    A notebook whose metadata say ``"gradtricks": {"fresh_kernel": true}`` gets a fresh kernel, and so does
    every notebook where a process can't be forked.

    Args:
        threads: That a run may use.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._servers: dict[Any, ForkServer] = {}
        self._package = package_digests()

    def close(self) -> None:
        """End the warm processes."""
        while self._servers:
            self._servers.popitem()[1].close()

    def run(self, source: NotebookNode, parameters: Mapping[str, Any], output: Path) -> None:
        """Execute a notebook; papermill saves it while it goes on.

        Args:
            source: The notebook; a last cell, which reports what the run used, is added to a copy.
            parameters: Checked already.
            output: Where the executed notebook goes; the kernel's log goes beside it.
        """
        node = deepcopy(source)
        last = "import gradtricks.lab.recording\n\ngradtricks.lab.recording.report()"
        node.cells.append(nbformat.v4.new_code_cell(last))
        options = {"kernel_name": "python3", "progress_bar": False}
        wants_fresh = source.metadata.get("gradtricks", {}).get("fresh_kernel", False)
        if not wants_fresh and sys.platform == "linux":
            server = self._server(parameters.get("backend"))
            with server.fork(output.with_name(LOG)) as kernel:
                if kernel is not None:
                    papermill.execute_notebook(
                        node, output, dict(parameters), engine_name=ENGINE, kernel=kernel, **options
                    )
                    return
        self._run_fresh(node, parameters, output, options)

    def _run_fresh(
        self, node: NotebookNode, parameters: Mapping[str, Any], output: Path, options: dict[str, Any]
    ) -> None:
        # Sockets in a folder that only this user can enter, instead of open ports. Their paths must be short.
        with (
            TemporaryDirectory(prefix="gradtricks-") as sockets,
            _environment(self._pinned()),
            _stderr_to(output.with_name(LOG)),
        ):
            config = Config({"KernelManager": {"transport": "ipc", "ip": f"{sockets}/kernel"}})
            papermill.execute_notebook(node, output, dict(parameters), config=config, **options)

    def _server(self, backend: Any) -> ForkServer:
        digests = package_digests()
        if digests != self._package:  # what a server has imported of the package is old
            self.close()
            self._package = digests
        if backend not in self._servers:
            environment = {**os.environ, **self._pinned()}
            self._servers[backend] = ForkServer(modules_for(backend), environment)
        return self._servers[backend]

    def _pinned(self) -> dict[str, str]:
        return dict.fromkeys(_THREAD_VARIABLES, str(self.threads)) | _PINNED


@contextmanager
def _environment(pinned: Mapping[str, str]) -> Iterator[None]:
    """Pin what a fresh kernel inherits, for as long as it takes to run."""
    before = {name: os.environ.get(name) for name in pinned}
    os.environ.update(pinned)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _stderr_to(log: Path) -> Iterator[None]:
    """Send what the kernel's libraries print to file descriptor 2, from greetings to crashes, to a file."""
    before = os.dup(2)
    try:
        with log.open("wb") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
