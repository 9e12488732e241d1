"""Ending a process with all that it started."""

import os
import signal
import time
from contextlib import suppress

import psutil

_PATIENCE_S = 5.0  # for processes that were killed to be gone


def end_tree(pid: int) -> None:
    """End a process, which may be gone already, and all that it started.

    It is stopped first, so that it can't start more; and what a process of it has left behind is given to it
    where it has asked the system for that.
    """
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + _PATIENCE_S
    while (left := _descendants(pid)) and time.monotonic() < deadline:
        for process in left:
            with suppress(psutil.Error):  # gone already, or another user's by now
                process.kill()
        time.sleep(0.001)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _descendants(pid: int) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return [each for each in psutil.Process(pid).children(recursive=True) if _is_alive(each)]
    return []


def _is_alive(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False
