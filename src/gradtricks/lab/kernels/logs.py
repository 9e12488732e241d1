"""What a run's libraries write past the notebook, kept up to a limit."""

import os
import select
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from gradtricks.lab.kernels.limits import LOG_LIMIT

_CHUNK = 1 << 16


@contextmanager
def log_to(path: Path) -> Iterator[int]:
    """Copy what processes write into a file, up to a limit. They never have to wait.

    Args:
        path: Of the file.

    Yields:
        The descriptor of a pipe, for the processes to write to.
    """
    with path.open("wb", buffering=0) as file:
        source, sink = os.pipe()
        end, ending = os.pipe()
        thread = threading.Thread(target=_copy, args=(source, end, file), daemon=True)
        thread.start()
        try:
            yield sink
        finally:
            os.close(sink)
            os.close(ending)
            thread.join()
            os.close(source)
            os.close(end)


def _copy(source: int, end: int, file: BinaryIO) -> None:
    # A process that couldn't be ended may hold the pipe for ever: what is there by the end is enough.
    poll = select.poll()
    poll.register(source, select.POLLIN)
    poll.register(end, select.POLLIN)
    written = left_out = 0
    while source in dict(poll.poll()) and (data := os.read(source, _CHUNK)):
        kept = data[: LOG_LIMIT - written]
        with suppress(OSError):  # on a full disk, reading on is what keeps the run going
            written += file.write(kept)
        left_out += len(data) - len(kept)
    if left_out:
        with suppress(OSError):
            file.write(f"\n[left out: {left_out:,} more bytes]\n".encode())
