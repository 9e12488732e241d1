"""What a cell prints and shows, on its way out of the process: in order, and within limits."""

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

_DELAY_S = 0.1  # printed text waits so long at most


class Outbox:
    """Sends what is printed and shown through a socket, as Jupyter's messages, each a line of JSON.

    Several threads may print. A process that the notebook forks prints into the same notebook, as it does in
    a Jupyter kernel; nothing else of it is shown. Such a process may be killed in the middle of a line, so
    each line has an end before it too. Until there is a socket, all is thrown away.
    """

    def __init__(self) -> None:
        self._channel: socket.socket | None = None
        self._limit = OutputLimit()
        self.lock = threading.RLock()
        self._is_looked_after = False
        self.streams = [_Stream(_Printed(self, name), self) for name in ("stdout", "stderr")]
        for stream, other in zip(self.streams, reversed(self.streams)):
            stream.other = other

    def connect(self, channel: socket.socket) -> None:
        """Send from here on."""
        self._channel, self._owner = channel, os.getpid()
        # A lock on a file is gone with the process that holds it.
        self._turn = tempfile.TemporaryFile()  # noqa: SIM115  as long as the process
        release = self.lock.release
        os.register_at_fork(before=self._hold, after_in_parent=release, after_in_child=self._be_forked)

    def is_fork(self) -> bool:
        """Return whether this process was forked by the notebook."""
        return os.getpid() != self._owner

    def flush(self) -> None:
        """Send what was printed."""
        for stream in self.streams:
            stream.flush()

    def send(self, kind: str, content: dict[str, Any]) -> None:
        """Send a message, after whatever was printed before it."""
        if self.is_fork():
            return
        with self.lock:
            self.flush()
            if kind == "clear_output":
                self._limit.clear()
            trimmed = self._limit.trim(kind, content)
            if trimmed is not None:
                self._emit(kind, trimmed)

    def look_after(self) -> None:
        """Let a thread send what waits, from the first print on: a run that prints nothing does without."""
        if self._channel is not None and not self._is_looked_after:
            self._is_looked_after = True
            threading.Thread(target=self._flush_now_and_then, daemon=True).start()

    def send_text(self, name: str, text: str) -> None:
        """Send what was printed to ``stdout`` or ``stderr``, as far as there is room for it."""
        with self.lock:
            if self._channel is not None and (text := self._limit.cut(text)):
                self._emit("stream", {"name": name, "text": text})

    def end_cell(self) -> None:
        """Send what is left of a cell."""
        with self.lock:
            self.flush()
            if note := self._limit.note():
                self._emit("stream", {"name": "stdout", "text": note})
            self._limit.clear()

    def _hold(self) -> None:
        self.lock.acquire()
        self.flush()  # else both processes would send it

    def _be_forked(self) -> None:
        self.lock.release()
        for stream in self.streams:  # no thread looks after them here
            stream.reconfigure(line_buffering=True)

    def _flush_now_and_then(self) -> None:
        while True:
            time.sleep(_DELAY_S)
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


class _Printed(io.RawIOBase):
    """Bytes of a stream, on their way into an outbox."""

    def __init__(self, outbox: Outbox, name: str) -> None:
        self._outbox, self.name = outbox, name

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._outbox.send_text(self.name, bytes(data).decode(errors="replace"))
        return len(data)


class _Stream(io.TextIOWrapper):
    """What stands for ``sys.stdout`` or ``sys.stderr``; the two stay in order."""

    other: "_Stream"

    def __init__(self, printed: _Printed, outbox: Outbox) -> None:
        super().__init__(printed, encoding="utf-8", errors="replace", newline="\n")
        self._outbox = outbox

    def write(self, text: str) -> int:
        with self._outbox.lock:
            self.other.flush()
            self._outbox.look_after()
            return super().write(text)
