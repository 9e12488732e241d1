"""Where a run's cells are executed: in a fork of a warm process, in a fresh kernel, or in this process."""

import os
import shutil
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from nbformat import NotebookNode
from papermill.exceptions import PapermillExecutionError

from gradtricks.lab.kernels.bookkeeping import Execution, Interpreter, prepare
from gradtricks.lab.kernels.fresh import fresh_kernel
from gradtricks.lab.kernels.inprocess import run_in_process
from gradtricks.lab.kernels.logs import log_to
from gradtricks.lab.kernels.processes import end_marked, end_tree
from gradtricks.lab.kernels.warm import ForkServer, modules_for
from gradtricks.lab.recording import CHECKPOINTS, FILES, package_digests

_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
)

_PINNED = {
    "PYTHONHASHSEED": "0",
    "PYTHONFAULTHANDLER": "1",  # a crash says in the log where it happened
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # without it, matrix products on a GPU aren't deterministic
    "OMP_WAIT_POLICY": "PASSIVE",  # threads that spin while they wait quarter the speed of a busy machine
    "OPENBLAS_NUM_THREADS": "1",  # NumPy would start threads when imported, and threads can't be forked
    "MPLBACKEND": "module://matplotlib_inline.backend_inline",
}

LOG = "kernel.log"


class KernelInterrupted(Exception):  # noqa: N818  what happened isn't an error
    """A run was ended by `Kernels.interrupt`."""


class Kernel(Protocol):
    """Executes the cells of one run."""

    pid: int

    def execute(self, interpreter: Interpreter, cell: NotebookNode, index: int) -> None:
        """Run a cell and give it its outputs."""

    def leave(self) -> None:
        """Let the process end in an orderly way."""


class Kernels:
    """Runs notebooks, and keeps warm processes from one run to the next.

    A notebook whose metadata say ``"gradtricks": {"fresh_kernel": true}`` gets a fresh kernel, and so does
    every notebook where a process can't be forked. ``"preload": ["torch", "tensorflow"]`` names extras that
    are imported before the fork, besides the backend's. Several threads may run notebooks at once.

    Args:
        in_process: Run the cells in this very process and thread, so that ``breakpoint()``, debuggers and
            profilers reach them. What they change stays changed, and neither threads nor time are limited.
    """

    def __init__(self, *, in_process: bool = False) -> None:
        self._in_process = in_process
        self._lock = threading.Lock()
        self._servers: dict[Any, ForkServer] = {}
        self._package = package_digests()
        self._watches: set[_Watch] = set()
        self._interrupts = 0

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
        """Execute a notebook and save it, also while it goes on.

        Args:
            source: The notebook; a last cell, which reports what the run used, is added to a copy.
            parameters: Checked already.
            output: Where the executed notebook goes; the kernel's log goes beside it.
            threads: That the run may use.
            timeout_s: Seconds after which the run and all that it started is ended, counted from when its
                process is there; None for no limit.
            checkpoints: Folder for what the run may need if it is killed; None means one beside the output.

        Raises:
            PapermillExecutionError: A cell raised an exception.
            DeadKernelError: The process ended.
            TimeoutError: The run took too long.
            KernelInterrupted: `interrupt` was called.
        """
        execution = Execution(prepare(source, parameters, output), output)
        folders = _folders(output, checkpoints)
        shutil.rmtree(folders[FILES], ignore_errors=True)  # of a try that another sweep's end took along
        if self._in_process:
            with _told(folders):
                run_in_process(execution)
            return
        interrupts = self._interrupts
        environment = {**os.environ, **_pinned(threads), **folders}
        with log_to(output.with_name(LOG)) as log:
            said = source.metadata.get("gradtricks")
            said = said if isinstance(said, dict) else {}
            if not said.get("fresh_kernel", False) and sys.platform == "linux":
                with (
                    self._server((parameters.get("backend"), *said.get("preload", ())), threads) as server,
                    server.fork(environment, log) as kernel,
                ):
                    if kernel is not None:
                        self._run(execution, kernel, Interpreter(execution), timeout_s, interrupts)
                        return
            # Of an attempt whose driver was killed: a kernel looks for that only once a second.
            end_marked(CHECKPOINTS, folders[CHECKPOINTS])
            with fresh_kernel(execution, environment, log) as fresh:
                self._run(execution, fresh, fresh, timeout_s, interrupts)

    def interrupt(self) -> None:
        """End all runs that go on; their `run` raises `KernelInterrupted`. Later runs aren't concerned."""
        with self._lock:
            self._interrupts += 1
            watches = list(self._watches)
        for watch in watches:
            watch.end(KernelInterrupted("the run was interrupted"))
        self.close()  # a server may be importing, with runs that wait for it

    def close(self) -> None:
        """End the warm processes."""
        with self._lock:
            while self._servers:
                self._servers.popitem()[1].close()

    def _run(
        self,
        execution: Execution,
        kernel: Kernel,
        interpreter: Interpreter,
        timeout_s: float | None,
        interrupts: int,
    ) -> None:
        with _Watch(kernel.pid, timeout_s) as watch:
            with self._lock:
                self._watches.add(watch)
                interrupted = interrupts != self._interrupts
            try:
                if interrupted:
                    watch.end(KernelInterrupted("the run was interrupted"))
                execution.run(lambda cell, index: watch.execute(kernel, interpreter, cell, index))
            except PapermillExecutionError:
                kernel.leave()
                raise
            finally:
                with self._lock:
                    self._watches.discard(watch)
        kernel.leave()

    @contextmanager
    def _server(self, extras: tuple[Any, ...], threads: int) -> Iterator[ForkServer]:
        key = extras, threads
        with self._lock:
            server = self._current_server(key)
            server.users += 1
        try:
            yield server
        finally:
            with self._lock:
                server.users -= 1
                if not server.users and self._servers.get(key) is not server:
                    server.close()

    def _current_server(self, key: tuple[tuple[Any, ...], int]) -> ForkServer:
        digests = package_digests()
        if digests != self._package:  # what a server has imported of the package is old
            self._package = digests
            for old in self._servers.values():
                if not old.users:  # runs that go on keep theirs
                    old.close()
            self._servers.clear()
        server = self._servers.get(key)
        if server is None or not server.is_alive():
            if server is not None and not server.users:
                server.close()
            extras, threads = key
            server = ForkServer(modules_for(*extras), {**os.environ, **_pinned(threads)})
            self._servers[key] = server
        return server


class _Watch:
    """Ends a run that takes too long, or that isn't wanted any longer.

    Args:
        pid: Of the run's process.
        timeout_s: Seconds that it may take.
    """

    def __init__(self, pid: int, timeout_s: float | None) -> None:
        self._pid = pid
        self._lock = threading.Lock()
        self._over = False
        self._why: Exception | None = None
        self._timer = None
        if timeout_s is not None:
            late = TimeoutError(f"the run took longer than {timeout_s:g} s and was ended")
            self._timer = threading.Timer(timeout_s, self.end, [late])

    def __enter__(self) -> "_Watch":
        if self._timer:
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer:
            self._timer.cancel()
        with self._lock:
            self._over = True

    def end(self, why: Exception) -> None:
        """End the run, and let it raise an exception."""
        with self._lock:
            if not self._over:
                self._why = self._why or why
                end_tree(self._pid)

    def execute(self, kernel: Kernel, interpreter: Interpreter, cell: NotebookNode, index: int) -> None:
        """Run a cell."""
        try:
            kernel.execute(interpreter, cell, index)
        except Exception as error:
            with self._lock:
                raise self._why or error from None


def _folders(output: Path, checkpoints: Path | None) -> dict[str, str]:
    """Say where a run may leave what isn't in its notebook; a notebook may change the working directory."""
    kept, left = output.with_name("files"), checkpoints or output.with_name("checkpoints")
    return {FILES: str(kept.absolute()), CHECKPOINTS: str(left.absolute())}


@contextmanager
def _told(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables of this process's environment meanwhile."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)  # the notebook may have taken it away
            else:
                os.environ[name] = value


def _pinned(threads: int) -> dict[str, str]:
    return dict.fromkeys(_THREAD_VARIABLES, str(threads)) | _PINNED
