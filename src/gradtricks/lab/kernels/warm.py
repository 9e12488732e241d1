"""Warm kernels: each run is a fork of a process that has imported the framework already."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import metadata
from multiprocessing.connection import Connection
from pathlib import Path

from nbclient.exceptions import DeadKernelError
from nbformat import NotebookNode
from packaging.requirements import Requirement

from gradtricks.lab.kernels.bookkeeping import Interpreter
from gradtricks.lab.kernels.processes import end_tree

_ALWAYS = ("matplotlib.pyplot", "matplotlib.backends.backend_agg", "matplotlib.backends.backend_svg")
_LATE = {"torch": ("torch._dynamo",)}  # what a library imports when it is first used, and takes long
_START_S = 300.0  # for a server to import all it has to
_PATIENCE_S = 5.0  # for a run's process to end by itself


class ForkServer:
    """The process that forks. Nothing but this object can reach it, and it ends with it.

    Args:
        modules: To be imported before the first fork.
        environment: What the server inherits; thread counts have to be in it.
    """

    def __init__(self, modules: tuple[str, ...], environment: Mapping[str, str]) -> None:
        self.users = 0
        self._lock = threading.Lock()
        self._control, theirs = socket.socketpair()
        self._control.settimeout(_START_S)
        with theirs:
            command = [
                sys.executable,
                "-m",
                "gradtricks.lab.kernels.forkserver",
                str(theirs.fileno()),
                *modules,
            ]
            self._process = subprocess.Popen(
                command,
                env=environment,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )

    def is_alive(self) -> bool:
        """Return whether the process is there."""
        return self._process.poll() is None

    @contextmanager
    def fork(self, environment: Mapping[str, str], log: int) -> Iterator["WarmKernel | None"]:
        """Fork for one run; what it started ends with it.

        Args:
            environment: Of the run.
            log: Descriptor that gets what the run's libraries print to the file descriptors 1 and 2.

        Yields:
            The kernel; None where the server can't fork safely, or is gone.
        """
        ours, theirs = socket.socketpair()
        report, reported = os.pipe()
        try:
            try:
                pid = self._ask_for_fork(theirs.fileno(), log, reported)
            finally:
                theirs.close()
                os.close(reported)
            if not pid:
                yield None
                return
            kernel = WarmKernel(pid, Connection(ours.detach()), report)
            try:
                kernel.send({"folder": str(Path.cwd()), "environment": dict(environment)})
                yield kernel
            finally:
                kernel.end()
        finally:
            ours.close()
            os.close(report)

    def close(self) -> None:
        """End the server, and the forks that go on."""
        self._process.kill()
        self._process.wait()
        with suppress(OSError):  # closed before
            self._control.shutdown(socket.SHUT_RDWR)  # who waits for an answer hears that none will come
        with self._lock:
            self._control.close()

    def _ask_for_fork(self, *descriptors: int) -> int:
        with self._lock:
            try:
                socket.send_fds(self._control, [b"f"], descriptors)
                return int.from_bytes(self._control.recv(8, socket.MSG_WAITALL), "big")
            except OSError:  # it is dead, or will never be ready
                self._process.kill()
                return 0
            except BaseException:  # its answer to this request would be taken for that to the next one
                self._process.kill()
                raise


class WarmKernel:
    """A forked process, as the driver sees it.

    Args:
        pid: Of the process.
        channel: To its shell.
        report: Descriptor to which the server reports how the process ended.
    """

    def __init__(self, pid: int, channel: Connection, report: int) -> None:
        self.pid = pid
        self._channel, self._report = channel, report
        self._poll = select.poll()
        for descriptor in (channel.fileno(), report):
            self._poll.register(descriptor, select.POLLIN)

    def send(self, request: object) -> None:
        """Send JSON; a process that has ended is noticed when it should answer."""
        with suppress(OSError):
            self._channel.send_bytes(json.dumps(request).encode())

    def execute(self, interpreter: Interpreter, cell: NotebookNode, index: int) -> None:
        """Run a cell and give it its outputs.

        Args:
            interpreter: Knows what messages do to the notebook.
            cell: A code cell.
            index: Its place in the notebook.

        Raises:
            DeadKernelError: The process ended.
        """
        interpreter.clear_before_next_output = False
        self.send(cell.source)
        try:
            while (message := self._receive())["msg_type"] != "execute_reply":
                interpreter.process_message(message, cell, index)
        except (EOFError, OSError):
            raise DeadKernelError(f"Kernel died: {self._how_it_ended()}") from None
        finally:
            interpreter.settle()

    def leave(self) -> None:
        """Tell the process that there are no more cells, and let it end in an orderly way."""
        self._channel.close()
        _wait_for(self._report, _PATIENCE_S)

    def end(self) -> None:
        """End the process, if it is there."""
        self._channel.close()
        if not _wait_for(self._report, 0):
            end_tree(self.pid)
            _wait_for(self._report, _PATIENCE_S)

    def _receive(self) -> dict:
        # A process that the notebook forked may hold the channel open after the notebook's own has ended.
        ready = dict(self._poll.poll())
        if self._channel.fileno() not in ready:
            raise EOFError
        return json.loads(self._channel.recv_bytes())

    def _how_it_ended(self) -> str:
        if not _wait_for(self._report, 1):
            return "its process closed the channel to the lab"
        status = os.read(self._report, 4)
        if not status:
            return "its process ended with the one that it was forked from"
        return how_ended(os.waitstatus_to_exitcode(int.from_bytes(status, "big")))


def how_ended(code: int) -> str:
    """Say how a process ended.

    Args:
        code: Its exit status, or the negative number of the signal that ended it.

    Returns:
        The rest of a sentence.
    """
    if code >= 0:
        return f"its process ended by itself, with exit status {code}"
    names = {number.value: number.name for number in signal.Signals}
    return f"its process was ended by {names.get(-code, f'signal {-code}')}"


def modules_for(*extras: str | None) -> tuple[str, ...]:
    """Say what a run imports in any case, so that it can be imported before.

    Args:
        *extras: Names of extras of this package, such as the backend: what they install is meant.

    Returns:
        Names of modules.
    """
    wanted = {
        requirement.name.lower()
        for requirement in map(Requirement, metadata.requires("gradtricks") or ())
        if requirement.marker and any(requirement.marker.evaluate({"extra": extra or ""}) for extra in extras)
    }
    installed = metadata.packages_distributions()
    modules = [m for m, names in installed.items() if wanted & {name.lower() for name in names}]
    names = [name for name in sorted(modules) if name.lower() in wanted]
    return (*_ALWAYS, *names, *(late for name in names for late in _LATE.get(name, ())))


def _wait_for(descriptor: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(seconds * 1000))
