"""What a cell prints and shows, on its way out of the process: in order."""

import fcntl
import io
import json
import os
import socket
import tempfile
import threading
import time
from typing import Any

TEXT_LIMIT = 2_000_000  # characters that a cell may print; a line says how many more there were
_DELAY_S = 0.1  # printed text waits so long at most,
_MOST = 1 << 16  # and so many characters


class Outbox:
    """Sends what is printed and shown through a socket, as Jupyter's messages, each a line of JSON.

    Several threads may print. A process that the notebook forks prints into the same notebook, as it does in
    a Jupyter kernel; nothing else of it is shown. Such a process may be killed in the middle of a line, so
    each line has an end before it too. Until there is a socket, all is thrown away.
    """

    def __init__(self) -> None:
        self._channel: socket.socket | None = None
        self._lock = threading.RLock()
        self._waiting, self._stream = io.StringIO(), "stdout"
        self._printed = 0  # characters of this cell
        self._has_thread = False
        self.is_fork = False  # whether this process was forked by the notebook
        self.streams = [_Stream(self, name) for name in ("stdout", "stderr")]

    def connect(self, channel: socket.socket) -> None:
        """Send from here on."""
        self.flush()  # nobody wants what the imports said
        self._channel, self._printed = channel, 0
        # A lock on a file is gone with the process that holds it.
        self._turn = tempfile.TemporaryFile()  # noqa: SIM115  as long as the process
        release = self._lock.release
        os.register_at_fork(before=self._hold, after_in_parent=release, after_in_child=self._be_forked)

    def print(self, stream: str, text: str) -> None:
        """Take a text for ``stdout`` or ``stderr``; it is sent soon."""
        with self._lock:
            if stream != self._stream:
                self.flush()
                self._stream = stream
            self._waiting.write(text)
            if self._waiting.tell() > _MOST or (self.is_fork and "\n" in text):
                self.flush()
            elif not (self._has_thread or self.is_fork or self._channel is None):
                self._has_thread = True  # a run that prints nothing does without
                threading.Thread(target=self._flush_now_and_then, daemon=True).start()

    def flush(self) -> None:
        """Send what was printed."""
        with self._lock:
            if self._waiting.tell():
                text, self._waiting = self._waiting.getvalue(), io.StringIO()
                room = max(0, TEXT_LIMIT - self._printed)
                self._printed += len(text)
                if room:
                    self._emit("stream", {"name": self._stream, "text": text[:room]})

    def send(self, kind: str, content: dict[str, Any]) -> None:
        """Send a message, after whatever was printed before it."""
        if not self.is_fork:
            with self._lock:
                self.flush()
                if kind == "clear_output":
                    self._printed = 0
                self._emit(kind, content)

    def end_cell(self) -> None:
        """Send what is left of a cell."""
        with self._lock:
            self.flush()
            left_out, self._printed = self._printed - TEXT_LIMIT, 0
            if left_out > 0:
                note = f"\n[left out: {left_out:,} more characters; a cell may print {TEXT_LIMIT:,}]\n"
                self._emit("stream", {"name": "stdout", "text": note})

    def _hold(self) -> None:
        self._lock.acquire()
        self.flush()  # else both processes would send it

    def _be_forked(self) -> None:
        self._lock.release()
        self.is_fork = True

    def _flush_now_and_then(self) -> None:
        while True:
            time.sleep(_DELAY_S)
            self.flush()

    def _emit(self, kind: str, content: dict[str, Any]) -> None:
        if self._channel is None:
            return
        line = b"\n%b\n" % _packed({"msg_type": kind, "content": content})
        fcntl.lockf(self._turn, fcntl.LOCK_EX)
        try:
            self._channel.sendall(line)
        finally:
            fcntl.lockf(self._turn, fcntl.LOCK_UN)


def _packed(message: dict[str, Any]) -> bytes:
    """Write a message as JSON; NumPy's numbers, dates and the like as a Jupyter kernel does."""
    try:
        return json.dumps(message, ensure_ascii=False).encode(errors="replace")  # no lone surrogates
    except TypeError:
        from jupyter_client.session import json_packer  # takes its time, and is seldom needed

        return json_packer(message)


class _Stream(io.TextIOBase):
    """What stands for ``sys.stdout`` or ``sys.stderr``."""

    encoding = "utf-8"

    def __init__(self, outbox: Outbox, name: str) -> None:
        self._outbox, self.name = outbox, name

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self._outbox.print(self.name, text)
        return len(text)

    def flush(self) -> None:
        self._outbox.flush()
