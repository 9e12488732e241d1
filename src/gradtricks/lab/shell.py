"""A notebook's cells, executed by IPython in this process; what they show goes through a channel."""

import base64
import io
import json
import sys
import threading
from multiprocessing.connection import Connection
from typing import Any

from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from traitlets import Type
from traitlets.config import Config

_BUFFERED = 1 << 16  # characters of printed text that travel together


class _DisplayPublisher(DisplayPublisher):
    """What ``display`` shows, and the updates and deletions of it."""

    def publish(
        self,
        data: dict[str, Any],
        metadata: dict[str, Any] | None = None,
        *,
        transient: dict[str, Any] | None = None,
        update: bool = False,
        **_: Any,
    ) -> None:
        kind = "update_display_data" if update else "display_data"
        self.shell.send(kind, data=_encoded(data), metadata=metadata or {}, transient=transient or {})

    def clear_output(self, wait: bool = False) -> None:
        self.shell.send("clear_output", wait=wait)


class _DisplayHook(DisplayHook):
    """The value of a cell's last expression."""

    def write_output_prompt(self) -> None:
        pass

    def write_format_data(self, format_dict: dict[str, Any], md_dict: dict[str, Any] | None = None) -> None:
        data, metadata, count = _encoded(format_dict), md_dict or {}, self.prompt_count
        self.shell.send("execute_result", data=data, metadata=metadata, execution_count=count)


class Shell(InteractiveShell):
    """IPython without a terminal and without a history."""

    displayhook_class = Type(_DisplayHook)
    display_pub_class = Type(_DisplayPublisher)

    def serve(self, channel: Connection) -> None:
        """Run the cells that arrive, one after another, until the other side closes the channel.

        Args:
            channel: Cells come in as text. Messages go out, in JSON and with the names of Jupyter's protocol;
                the last one for each cell is an ``execute_reply``.
        """
        self._channel, self._lock = channel, threading.RLock()
        self._streams = [_Stream(self, name) for name in ("stdout", "stderr")]
        sys.stdout, sys.stderr = self._streams
        while True:
            try:
                source = channel.recv_bytes().decode()
            except EOFError:
                return
            count = self.execution_count
            self.run_cell(source, store_history=True)
            self.send("execute_reply", execution_count=count)

    def send(self, kind: str, **content: Any) -> None:
        """Send a message, after whatever was printed before it."""
        with self._lock:
            for stream in self._streams:
                stream.flush()
            self.send_now(kind, content)

    def send_now(self, kind: str, content: dict[str, Any]) -> None:
        """Send a message."""
        header = {"msg_type": kind}
        message = {**header, "header": header, "parent_header": {"msg_id": None}, "content": content}
        self._channel.send_bytes(json.dumps(message, default=repr).encode())

    def _showtraceback(self, etype: type, evalue: BaseException, stb: list[str]) -> None:
        self.send("error", ename=etype.__name__, evalue=str(evalue), traceback=stb)


class _Stream(io.TextIOBase):
    """Printed text; it travels in batches, in the order in which both streams were written."""

    encoding = "utf-8"

    def __init__(self, shell: Shell, name: str) -> None:
        self._shell, self.name = shell, name
        self._texts: list[str] = []
        self._length = 0

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        with self._shell._lock:
            for stream in self._shell._streams:
                if stream is not self:
                    stream.flush()
            self._texts.append(text)
            self._length += len(text)
            if self._length >= _BUFFERED:
                self.flush()
        return len(text)

    def flush(self) -> None:
        with self._shell._lock:
            text, self._texts, self._length = "".join(self._texts), [], 0
            if text:
                self._shell.send_now("stream", {"name": self.name, "text": text})


def new_shell() -> Shell:
    """Make the one shell of this process.

    Returns:
        The shell; its history, which would need a thread, is off.
    """
    off = {"enabled": False}
    return Shell.instance(config=Config({"HistoryManager": off, "HistoryAccessor": off}))


def _encoded(data: dict[str, Any]) -> dict[str, Any]:
    """Write pictures as text, as a notebook does."""
    return {
        mime: base64.encodebytes(value).decode() if isinstance(value, bytes) else value
        for mime, value in data.items()
    }
