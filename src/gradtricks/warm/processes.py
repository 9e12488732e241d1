"""One forked kernel's process, as the process sees it that asked for it."""

import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress

from nbclient.exceptions import DeadKernelError

# By these a process ends through a fault of its own; others come from outside, as where memory is short.
_OWN_FAULTS = {"SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV", "SIGSYS", "SIGTRAP"}


class KernelLostError(DeadKernelError):
    """A kernel's process was ended by something else or with the one that forked it, or there was none."""


class Kernel:
    """A forked process that is a kernel, or will be soon.

    Args:
        pid: Of the process.
        channel: On which it says that it is ready, and the process that forks how it has ended.
    """

    def __init__(self, pid: int, channel: socket.socket) -> None:
        self.pid, self._channel = pid, channel
        channel.setblocking(False)
        self._heard = b""
        self._code: int | None = None
        self._lost = False
        self.released: Callable[[], object] = lambda: None

    def is_starting(self) -> bool:
        """Return whether it neither is ready nor has ended."""
        return self.poll() is None and not self._heard.startswith(b"r")

    def poll(self) -> int | None:
        """Return its exit code, negative where a signal ended it, or None while it goes on.

        By then all that it had started is ended.
        """
        while self._code is None:
            try:
                said = self._channel.recv(64)
            except BlockingIOError:
                return None
            except OSError:
                said = b""
            self._heard += said
            status = self._heard.removeprefix(b"r")
            if len(status) == 5:
                self._end(os.waitstatus_to_exitcode(int.from_bytes(status[1:], "big")))
            elif not said:
                self._lost = True
                self._end(-signal.SIGKILL)
        return self._code

    def send_signal(self, number: int) -> None:
        """Send a signal to its group of processes, if it goes on."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def how_it_ended(self) -> DeadKernelError:
        """Return an error that says how it ended; a `KernelLostError` where something else ended it."""
        died = "Kernel died: its process "
        if self._lost:
            return KernelLostError(f"{died}ended with the one that it was forked from")
        code = self.poll()
        if code is None:
            return DeadKernelError(f"{died}answers no more")
        if code >= 0:
            return DeadKernelError(f"{died}ended by itself, with exit status {code}")
        names = {number.value: number.name for number in signal.Signals}
        name = names.get(-code, f"signal {-code}")
        kind = DeadKernelError if name in _OWN_FAULTS else KernelLostError
        return kind(f"{died}was ended by {name}")

    def _end(self, code: int) -> None:
        self._code = code
        self._channel.close()
        self.released()
