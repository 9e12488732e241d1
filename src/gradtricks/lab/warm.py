"""Warm kernels: each run is a fork of a process that has imported the framework already."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import metadata
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from nbclient import NotebookClient
from nbclient.exceptions import DeadKernelError
from nbformat import NotebookNode
from packaging.requirements import Requirement
from papermill.engines import Engine, NotebookExecutionManager, papermill_engines

ENGINE = "gradtricks-warm"

_ALWAYS = ("matplotlib.pyplot", "gradtricks.lab")
_SAVE_EVERY_S = 1.0
_PATIENCE_S = 1.0  # for a run's process to end by itself


class ForkServer:
    """The process that forks. Nothing but this object can reach it, and it ends with it.

    Args:
        modules: To be imported before the first fork.
        environment: What the server and its forks inherit; thread counts have to be in it.
    """

    def __init__(self, modules: tuple[str, ...], environment: Mapping[str, str]) -> None:
        self._control, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "gradtricks.lab.forkserver", str(theirs.fileno()), *modules]
            self._process = subprocess.Popen(
                command,
                env=environment,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )

    @contextmanager
    def fork(self, log: Path) -> Iterator["WarmKernel | None"]:
        """Fork for one run; what it started ends with it.

        Args:
            log: Gets what the run's libraries print to the file descriptors 1 and 2.

        Yields:
            The kernel; None where the server can't fork safely, or is gone.
        """
        ours, theirs = socket.socketpair()
        with ours, log.open("wb") as file:
            with theirs:
                pid = self._ask_for_fork(theirs.fileno(), file.fileno())
            if not pid:
                yield None
                return
            kernel = WarmKernel(Connection(os.dup(ours.fileno())))
            try:
                yield kernel
            finally:
                kernel.close()
                ours.close()
                _end(pid)

    def close(self) -> None:
        """End the server."""
        self._control.close()
        self._process.wait()

    def _ask_for_fork(self, *descriptors: int) -> int:
        try:
            socket.send_fds(self._control, [b"f"], descriptors)
            return int.from_bytes(self._control.recv(8, socket.MSG_WAITALL), "big")
        except OSError:
            return 0


class WarmKernel:
    """A forked process, as the driver sees it.

    Args:
        channel: To its shell.
    """

    def __init__(self, channel: Connection) -> None:
        self._channel = channel

    def execute(self, client: NotebookClient, cell: NotebookNode, index: int) -> None:
        """Run a cell and give it its outputs.

        Args:
            client: Knows what Jupyter's messages do to a notebook.
            cell: A code cell.
            index: Its place in the notebook.

        Raises:
            DeadKernelError: The process ended.
        """
        try:
            self._channel.send_bytes(cell.source.encode())
            while True:
                message = json.loads(self._channel.recv_bytes())
                if message["msg_type"] == "execute_reply":
                    cell.execution_count = message["content"]["execution_count"]
                    return
                client.process_message(message, cell, index)
        except (EOFError, OSError):
            raise DeadKernelError("Kernel died") from None
        finally:
            cell.outputs = _joined(cell.outputs)

    def close(self) -> None:
        """Tell the process that there are no more cells."""
        self._channel.close()


class WarmEngine(Engine):
    """Papermill's engine for such kernels."""

    @classmethod
    def execute_notebook(cls, nb: NotebookNode, kernel_name: str, **options: Any) -> NotebookNode:
        """Execute a notebook, as every engine does, but save it once a second at most."""
        manager = _Manager(nb, output_path=options["output_path"], progress_bar=False)
        manager.notebook_start()
        try:
            cls.execute_managed_notebook(manager, kernel_name, kernel=options["kernel"])
        finally:
            manager.notebook_complete()
        return manager.nb

    @classmethod
    def execute_managed_notebook(
        cls, nb_man: NotebookExecutionManager, kernel_name: str, *, kernel: WarmKernel
    ) -> None:
        """Run cells until one fails."""
        client = NotebookClient(nb_man.nb)
        client.reset_execution_trackers()
        client.clear_before_next_output = False
        for index, cell in enumerate(nb_man.nb.cells):
            nb_man.cell_start(cell, index)
            try:
                if cell.cell_type == "code" and cell.source.strip():
                    kernel.execute(client, cell, index)
            except DeadKernelError:
                nb_man.cell_exception(cell, index)
                raise
            if _failed(cell):
                nb_man.cell_exception(cell, index)
                return
            nb_man.cell_complete(cell, cell_index=index)


papermill_engines.register(ENGINE, WarmEngine)


class _Manager(NotebookExecutionManager):
    """Saves at the beginning, at the end, and seldom while cells run."""

    _saved = False

    def save(self, **options: Any) -> None:
        age_s = (self.now() - self.last_save_time).total_seconds()
        if not self._saved or self.end_time or age_s >= _SAVE_EVERY_S:
            super().save(**options)
            self._saved = True


def modules_for(backend: str | None) -> tuple[str, ...]:
    """Say what a run imports in any case, so that it can be imported before.

    Args:
        backend: Name of an extra of this package: what it installs is meant.

    Returns:
        Names of modules.
    """
    wanted = {
        requirement.name.lower()
        for requirement in map(Requirement, metadata.requires("gradtricks") or ())
        if requirement.marker and requirement.marker.evaluate({"extra": backend or ""})
    }
    installed = metadata.packages_distributions()
    modules = [m for m, names in installed.items() if wanted & {name.lower() for name in names}]
    return (*_ALWAYS, *(name for name in sorted(modules) if name.lower() in wanted))


def _end(pid: int) -> None:
    """Wait a little for a process to end; then end it, and in any case all that it started."""
    deadline = time.monotonic() + _PATIENCE_S
    while _exists(pid) and time.monotonic() < deadline:
        time.sleep(0.002)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _failed(cell: NotebookNode) -> bool:
    allowed = "raises-exception" in cell.metadata.get("tags", [])
    return not allowed and any(output.output_type == "error" for output in cell.get("outputs", []))


def _joined(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Make one output of texts that were printed in a row."""
    joined: list[NotebookNode] = []
    for output in outputs:
        last = joined[-1] if joined else None
        if last and output.output_type == last.output_type == "stream" and output.name == last.name:
            last.text += output.text
        else:
            joined.append(output)
    return joined
