"""What a cell prints and shows, on its way out of the process: in order, in batches, within limits."""

import fcntl
import io
import json
import os
import socket
import tempfile
import threading
import time
from typing import Any

from gradtricks.lab.kernels.limits import OutputLimit

_BATCH = 1 << 16  # characters of printed text that travel together
_HASTE_S = 0.02  # text that is printed after a pause of this length travels at once
_DELAY_S = 0.1  # other text waits so long at most


class Outbox:
    """Sends what is printed and shown through a socket, as Jupyter's messages, each a line of JSON.

    Several threads may print. A process that the notebook forks prints into the same notebook, as it does in
    a Jupyter kernel; nothing else of it is shown. Such a process may be killed in the middle of a line, so
    each line has an end before it too. Until there is a socket, all is thrown away.
    """

    def __init__(self) -> None:
        self._channel: socket.socket | None = None
        self._owner = 0
        self._limit = OutputLimit()
        self.forget()
        self.streams = [Stream(self, "stdout"), Stream(self, "stderr")]

    def connect(self, channel: socket.socket) -> None:
        """Send from here on."""
        self._channel, self._owner = channel, os.getpid()
        # A lock on a file is gone with the process that holds it.
        self._turn = tempfile.TemporaryFile()  # noqa: SIM115  as long as the process

    def forget(self) -> None:
        """Begin with nothing, in a process that the notebook forked."""
        self._lock = threading.RLock()
        self._name = ""
        self._texts: list[str] = []
        self._length, self._sent = 0, 0.0
        self._waiting: threading.Thread | None = None

    def is_fork(self) -> bool:
        """Return whether this process was forked by the notebook."""
        return os.getpid() != self._owner

    def write(self, name: str, text: str) -> None:
        """Print to ``stdout`` or ``stderr``."""
        with self._lock:
            text = self._limit.cut(text)
            if not text or self._channel is None:
                return
            if name != self._name:
                self.flush()
                self._name = name
            self._texts.append(text)
            self._length += len(text)
            if self._length >= _BATCH or time.monotonic() - self._sent > _HASTE_S:
                self.flush()
            elif self._waiting is None:
                self._waiting = threading.Thread(target=self._flush_soon, daemon=True)
                self._waiting.start()

    def flush(self) -> None:
        """Send what was printed."""
        with self._lock:
            text, self._texts, self._length = "".join(self._texts), [], 0
            if text:
                self._emit("stream", {"name": self._name, "text": text})
                self._sent = time.monotonic()

    def send(self, kind: str, content: dict[str, Any]) -> None:
        """Send a message, after whatever was printed before it."""
        if self.is_fork():
            return
        with self._lock:
            self.flush()
            if kind == "clear_output":
                self._limit.clear()
            trimmed = self._limit.trim(kind, content)
            if trimmed is not None:
                self._emit(kind, trimmed)

    def end_cell(self) -> None:
        """Send what is left of a cell."""
        with self._lock:
            self.flush()
            if note := self._limit.note():
                self._emit("stream", {"name": "stdout", "text": note})
            self._limit.clear()

    def _flush_soon(self) -> None:
        time.sleep(_DELAY_S)
        with self._lock:
            self._waiting = None
            self.flush()

    def _emit(self, kind: str, content: dict[str, Any]) -> None:
        if self._channel is None:
            return
        text = json.dumps({"msg_type": kind, "content": content}, default=repr, ensure_ascii=False)
        line = b"\n%b\n" % text.encode(errors="replace")  # lone surrogates can't be written
        fcntl.lockf(self._turn, fcntl.LOCK_EX)
        try:
            self._channel.sendall(line)
        finally:
            fcntl.lockf(self._turn, fcntl.LOCK_UN)


class Stream(io.TextIOBase):
    """What stands for ``sys.stdout`` or ``sys.stderr``."""

    encoding = "utf-8"

    def __init__(self, outbox: Outbox, name: str) -> None:
        self._outbox, self.name = outbox, name

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, text: str) -> int:
        """Print a text, and return the number of its characters.

        Raises:
            TypeError: It isn't a string.
        """
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        self._outbox.write(self.name, text)
        return len(text)

    def flush(self) -> None:
        """Send at once what was printed."""
        self._outbox.flush()
