"""Ending a process with all that it started."""

import time
from contextlib import suppress

import psutil

_PATIENCE_S = 5.0  # for processes that were killed to be gone


def end_tree(pid: int) -> None:
    """End a process, which may be gone already, and all that it started.

    It is stopped first, so that it can't start more; and what a process of it has left behind is given to it
    where it has asked the system for that.
    """
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        process.suspend()
        deadline = time.monotonic() + _PATIENCE_S
        while (left := _alive_below(process)) and time.monotonic() < deadline:
            for each in left:
                with suppress(psutil.Error):  # gone already, or another user's by now
                    each.kill()
            time.sleep(0.001)
        process.kill()


def _alive_below(process: psutil.Process) -> list[psutil.Process]:
    found = []
    for each in process.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            found += [each] * (each.status() != psutil.STATUS_ZOMBIE)
    return found
