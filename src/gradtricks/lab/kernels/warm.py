"""Warm kernels, as the process sees them that wants a notebook run: a server that forks, and its forks."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from nbclient.exceptions import DeadKernelError

_START_S = 300.0  # for a server to import all it has to
_PATIENCE_S = 5.0  # for a process to end by itself
_CHUNK = 1 << 18
_TOLD = 2000  # characters of what a server said before it ended
# By these a process ends through a fault of its own; others come from outside, as where memory is short.
_OWN_FAULTS = {"SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV", "SIGSYS", "SIGTRAP"}


class KernelLostError(DeadKernelError):
    """A run's process was ended by something else, or with the one it was forked from, or there was none."""


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
        # -P: a module beside the notebook may be called as one of the standard library.
        command = [sys.executable, "-P", "-m", "gradtricks.lab.kernels.forkserver", str(theirs.fileno())]
        none, self._errors = subprocess.DEVNULL, tempfile.TemporaryFile()  # noqa: SIM115  as long as this
        with theirs:
            self._process = subprocess.Popen(
                [*command, *modules],
                env=environment,
                pass_fds=[theirs.fileno()],
                stdin=none,
                stdout=none,
                stderr=self._errors,
            )

    def is_alive(self) -> bool:
        """Return whether the process is there."""
        return self._process.poll() is None

    def last_words(self) -> str:
        """Return the end of what it printed past Python, with a line's end before it, or nothing."""
        with self._lock:
            if self._errors.closed:
                return ""
            size = os.fstat(self._errors.fileno()).st_size
            said = os.pread(self._errors.fileno(), _TOLD, max(0, size - _TOLD))  # it goes on where it is
        text = said.decode(errors="replace").strip()
        return f"\n{text}" if text else ""

    @contextmanager
    def fork(self, environment: Mapping[str, str], log: int) -> "Iterator[Kernel | None]":
        """Fork for one run; what it started ends with it.

        The descriptor ``log`` gets what its libraries print to the file descriptors 1 and 2. There is no
        kernel, but None, where the server can't fork safely, or is gone.
        """
        channel, theirs = socket.socketpair()
        report, reported = socket.socketpair()
        with channel, report:
            with theirs, reported:
                pid = self._ask_for_fork(theirs.fileno(), log, reported.fileno())
            if not pid:
                yield None
                return
            kernel, patience_s = Kernel(pid, channel, report), 0.0
            try:
                kernel.send({"folder": str(Path.cwd()), "environment": dict(environment)})
                yield kernel
                patience_s = _PATIENCE_S
            finally:
                kernel.end(patience_s)

    def close(self) -> None:
        """End the server, and the forks that go on."""
        self._process.send_signal(signal.SIGUSR1)
        try:
            self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        with self._lock:  # whoever waits for an answer has heard by now that none will come
            self._control.close()
            self._errors.close()

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


class Kernel:
    """A forked process that runs the cells of one notebook.

    Args:
        pid: Of the process.
        channel: To its shell.
        report: From the server, which reports how the process ended.
    """

    def __init__(self, pid: int, channel: socket.socket, report: socket.socket) -> None:
        self._pid, self._channel, self._report = pid, channel, report
        self._deadline = 0.0
        self._lines = self._read_lines()

    def send(self, request: object) -> None:
        """Send JSON; a process that has ended is noticed when it should answer."""
        with suppress(OSError):
            self._channel.sendall(json.dumps(request).encode() + b"\n")

    def execute(self, source: str, deadline: float) -> Iterator[dict[str, Any]]:
        """Run a cell, and yield what it shows and, last, how it ended, as Jupyter's messages.

        A DeadKernelError says how the process ended, or that nothing more can be heard of it; a TimeoutError
        that the deadline, by `time.monotonic`, is over, and the process goes on.
        """
        self._deadline = deadline
        self.send(source)
        for line in self._lines:
            # A process that the notebook forked may have been killed while it printed: half a line is left
            # of what it said, and of nothing else.
            with suppress(ValueError):
                message = json.loads(line)
                if not isinstance(message, dict) or "msg_type" not in message:
                    continue
                header = {"msg_type": message["msg_type"]}
                yield message | {"header": header, "parent_header": {"msg_id": None}}
                if message["msg_type"] == "execute_reply":
                    return
        raise self._how_it_ended()

    def end(self, patience_s: float) -> None:
        """Tell the process that there are no more cells, and end it if it is there after so many seconds."""
        self._channel.close()
        if not _wait_for([self._report], patience_s):
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)  # the server ends what that leaves behind
            _wait_for([self._report], _PATIENCE_S)

    def _read_lines(self) -> Iterator[bytes]:
        """Yield what the process sends, until it has ended."""
        parts: list[bytes] = []
        # A process that the notebook forked may hold the channel open after the notebook's own has ended.
        while ready := _wait_for([self._channel, self._report], self._deadline - time.monotonic()):
            chunk = b""
            with suppress(ConnectionError):
                chunk = self._channel.recv(_CHUNK) if self._channel in ready else b""
            if not chunk:
                return
            first, *others = chunk.split(b"\n")
            parts.append(first)
            for part in others:
                yield b"".join(parts)
                parts = [part]
        raise TimeoutError

    def _how_it_ended(self) -> DeadKernelError:
        died = "Kernel died: its process "
        if not _wait_for([self._report], _PATIENCE_S):  # what the process has started is ended before
            return DeadKernelError(f"{died}closed the channel to the lab")
        status = self._report.recv(4)
        if not status:
            return KernelLostError(f"{died}ended with the one that it was forked from")
        code = os.waitstatus_to_exitcode(int.from_bytes(status, "big"))
        if code >= 0:
            return DeadKernelError(f"{died}ended by itself, with exit status {code}")
        names = {number.value: number.name for number in signal.Signals}
        name = names.get(-code, f"signal {-code}")
        kind = DeadKernelError if name in _OWN_FAULTS else KernelLostError
        return kind(f"{died}was ended by {name}")


def _wait_for(sockets: list[socket.socket], seconds: float) -> list[socket.socket]:
    """Wait until something can be read from one of them; return which, none where time is up."""
    poll = select.poll()
    for each in sockets:
        poll.register(each, select.POLLIN)
    ready = dict(poll.poll(min(max(seconds, 0.0), 1e6) * 1000))
    return [each for each in sockets if each.fileno() in ready]
