"""Processes that fork, as the process sees them that wants kernels: kept from one kernel to the next."""

import asyncio
import atexit
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from gradtricks.warm.libraries import default_environment
from gradtricks.warm.processes import Kernel, KernelLostError

_START_TIMEOUT_S = 300.0  # for a server to import all it has to
_STOP_TIMEOUT_S = 5.0
_POLL_S = 0.01
_TOLD = 2000  # characters of what a server said before it ended
# Meanwhile without the working directory: a module beside the notebook may be called as a standard one.
_MAIN = (
    "import sys; sys.path = [place for place in sys.path if place]; "
    "from gradtricks.warm.forkserver import main; main()"
)
_SERVERS = 4  # that are kept; each holds what it has imported


class ServersClosed(Exception):  # noqa: N818  what happened isn't an error
    """A kernel was ended by `Servers.close`, or asked for after it."""


@dataclass(frozen=True)
class Order:
    """A kernel that is wanted.

    Args:
        options: Of Python, as the kernel's specification has them.
        arguments: Of ipykernel's application, such as ``-f FILE``.
        modules: To be imported before the fork; ``module:function`` is called too.
        environment: Of the kernel, and of the process that forks, since libraries read it when they are
            imported; that one has `libraries.default_environment` besides.
        variables: Of the kernel alone.
        folder: In which the kernel works.
        lines: Python to be run before the first cell, in a namespace of its own with the kernel's ``shell``.
        log: Descriptor that gets what is printed past the kernel, and how it crashed.
        state: Another state means another process that forks.
    """

    options: tuple[str, ...]
    arguments: list[str]
    modules: tuple[str, ...]
    environment: Mapping[str, str]
    variables: Mapping[str, str] = field(default_factory=dict)
    folder: str = "."
    lines: tuple[str, ...] = ()
    log: int = 2
    state: Hashable = ()


class _Server:
    """One process that forks. Nothing but this object can reach it, and it ends with it."""

    def __init__(self, modules: tuple[str, ...], order: Order, folder: Path) -> None:
        self.users = 0
        self._lock, self._ready = threading.Lock(), False
        self._control, theirs = socket.socketpair()
        command = [sys.executable, *order.options, "-c", _MAIN, str(theirs.fileno()), str(folder)]
        none, self._errors = subprocess.DEVNULL, tempfile.TemporaryFile()  # noqa: SIM115  as long as this
        with theirs:
            self._process = subprocess.Popen(
                [*command, *modules],
                env=default_environment() | dict(order.environment),
                pass_fds=[theirs.fileno()],
                stdin=none,
                stdout=none,
                stderr=self._errors,
            )

    def is_alive(self) -> bool:
        """Return whether the process is there."""
        return self._process.poll() is None

    def is_importing(self) -> bool:
        """Return whether the process isn't ready yet; one that has ended never will be."""
        with self._lock, suppress(OSError):
            if not self._ready:
                self._control.setblocking(False)
                try:
                    self._control.recv(1)
                except BlockingIOError:
                    return True
                self._control.settimeout(_START_TIMEOUT_S)
                self._ready = True
        return False

    def last_words(self) -> str:
        """Return the end of what it printed past Python, with a line's end before it, or nothing."""
        with self._lock:
            if self._errors.closed:
                return ""
            size = os.fstat(self._errors.fileno()).st_size
            said = os.pread(self._errors.fileno(), _TOLD, max(0, size - _TOLD))  # it goes on where it is
        text = said.decode(errors="replace").strip()
        return f"\n{text}" if text else ""

    def fork(self, order: Order) -> Kernel | None:
        """Fork for one kernel; None where the process can't fork safely, or is gone."""
        pid, (channel, theirs) = 0, socket.socketpair()
        try:
            with theirs:
                pid = self._ask_for_fork(theirs.fileno(), order.log)
        finally:
            if not pid:
                channel.close()
        if not pid:
            return None
        about: dict[str, Any] = {"arguments": order.arguments, "folder": order.folder, "lines": order.lines}
        about["environment"] = {**order.environment, **order.variables}
        with suppress(OSError):  # that it has ended is noticed later
            channel.sendall(json.dumps(about).encode() + b"\n")
        return Kernel(pid, channel)

    def close(self) -> None:
        """End the process, and the kernels that go on."""
        self._process.send_signal(signal.SIGUSR1)
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        with self._lock:  # a thread that waits for an answer has heard by now that none will come
            self._control.close()
            self._errors.close()

    def _ask_for_fork(self, *descriptors: int) -> int:
        with self._lock:
            try:
                socket.send_fds(self._control, [b"f"], descriptors)
                return int.from_bytes(self._control.recv(8, socket.MSG_WAITALL), "big")
            except BaseException as error:
                self._process.kill()  # its answer to this request would be taken for that to the next one
                self._process.wait()
                if isinstance(error, OSError):  # it is dead, or will never answer
                    return 0
                raise


class Servers:
    """Keeps processes that fork from one kernel to the next; several threads may use them at once.

    There is one for each set of modules and each environment, since libraries read variables when they are
    imported.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._servers: dict[Any, _Server] = {}
        self._closed = False
        self.folder = Path(tempfile.mkdtemp(prefix="warm-kernels-"))  # of connection files; the user's alone

    async def start(self, order: Order) -> Kernel:
        """Fork for a kernel.

        Where a process with its modules can't fork safely, such as one that has threads, the fork is of one
        that has imported nothing. A KernelLostError says that there can't be a process.
        """
        for modules in (order.modules, ()) if order.modules else ((),):
            with self._server(modules, order) as server:
                while server.is_importing():
                    await asyncio.sleep(_POLL_S)
                kernel = server.fork(order)
                if kernel is not None:
                    server.users += 1
                    kernel.released = lambda: self._release(server)
                    return kernel
                said = server.last_words()
        self.refuse_closed()
        died = "Kernel died: the process that forks is gone, or there can't be more processes"
        raise KernelLostError(f"{died}{said}")

    def close(self) -> None:
        """End all kernels, and the processes that fork; there are no more kernels after it."""
        with self._lock:
            self._closed = True
            while self._servers:
                self._servers.popitem()[1].close()  # also one that is importing, for which others wait
            shutil.rmtree(self.folder, ignore_errors=True)

    def refuse_closed(self) -> None:
        """Raise that this was closed, if it was."""
        if self._closed:
            raise ServersClosed("the run was interrupted")

    @contextmanager
    def _server(self, modules: tuple[str, ...], order: Order) -> Iterator[_Server]:
        key = modules, order.options, frozenset(order.environment.items()), order.state
        with self._lock:
            self.refuse_closed()
            server = self._servers.pop(key, None)
            if server is not None and not server.is_alive():
                server.close()
                server = None
            # The last one used comes last.
            self._servers[key] = server = server or _Server(modules, order, self.folder)
            server.users += 1
            idle = [key for key, other in self._servers.items() if not other.users]
            for key in idle[: max(0, len(self._servers) - _SERVERS)]:
                self._servers.pop(key).close()
        try:
            yield server
        finally:
            self._release(server)

    def _release(self, server: _Server) -> None:
        with self._lock:
            server.users -= 1


@cache
def shared() -> Servers:
    """Return the servers of this process; they end with it."""
    servers = Servers()
    atexit.register(servers.close)
    return servers
