"""One kernel for one run: what it inherits, how it is reached, where its noise goes."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat
import papermill
from nbformat import NotebookNode
from traitlets.config import Config

_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
)

_PINNED = {
    "PYTHONHASHSEED": "0",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # without it, matrix products on a GPU aren't deterministic
    "OMP_WAIT_POLICY": "PASSIVE",  # threads that spin while they wait quarter the speed of a busy machine
}

LOG = "kernel.log"

# papermill warns of every parameter whose annotation it can't read; the lab has checked them all.
logging.getLogger("papermill").setLevel(logging.CRITICAL)


def run_notebook(source: NotebookNode, parameters: dict[str, Any], output: Path, *, threads: int) -> None:
    """Execute a notebook in a kernel of its own; papermill saves it after every cell.

    Args:
        source: The notebook; a last cell, which reports what the kernel ran on, is added to a copy.
        parameters: Checked already.
        output: Where the executed notebook goes; the kernel's log goes beside it.
        threads: That the kernel may use.
    """
    node = deepcopy(source)
    last = nbformat.v4.new_code_cell("import gradtricks.lab.recording\n\ngradtricks.lab.recording.report()")
    node.cells.append(last)
    # Sockets in a folder that only this user can enter, instead of open ports. Their paths must be short.
    with (
        TemporaryDirectory(prefix="gradtricks-") as sockets,
        _environment(threads),
        _stderr_to(output.with_name(LOG)),
    ):
        kernel = Config({"KernelManager": {"transport": "ipc", "ip": f"{sockets}/kernel"}})
        papermill.execute_notebook(
            node, output, parameters, kernel_name="python3", progress_bar=False, config=kernel
        )


@contextmanager
def _environment(threads: int) -> Iterator[None]:
    """Pin what the kernel inherits, for as long as it takes to run."""
    pinned = dict.fromkeys(_THREAD_VARIABLES, str(threads))
    pinned |= _PINNED
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
