"""Ending processes with all that they started."""

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
    end_descendants(pid)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def end_descendants(pid: int) -> None:
    """End all that a process started, which itself goes on."""
    deadline = time.monotonic() + _PATIENCE_S
    while (left := _descendants(pid)) and time.monotonic() < deadline:
        for process in left:
            with suppress(psutil.Error):  # gone already, or another user's by now
                process.kill()
        time.sleep(0.001)


def _descendants(pid: int) -> list[psutil.Process]:
    try:
        found = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return [process for process in found if not _is_dead(process)]


def _is_dead(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
