"""A process that has imported what runs need, and forks for each of them.

`gradtricks.lab.warm` starts it as ``python -m gradtricks.lab.forkserver DESCRIPTOR MODULE...``. It listens to
nothing but the socket that it inherits.
"""

import atexit
import ctypes
import gc
import importlib
import os
import random
import signal
import socket
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

from gradtricks.lab.shell import Shell, new_shell

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Import, then fork until the driver is gone."""
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's business
    for name in sys.argv[2:]:
        importlib.import_module(name)
    shell = new_shell()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the children
    gc.collect()
    gc.freeze()  # a collection in a child would copy every page that it looks at
    serve(socket.socket(fileno=int(sys.argv[1])), shell)


def serve(control: socket.socket, shell: Shell) -> None:
    """Fork for each pair of descriptors that arrives: a channel and a log.

    Args:
        control: Where they arrive; the answer is the child's process id in eight bytes, or 0 where this
            process has threads: a lock that another thread holds would stay locked in the child for ever.
        shell: Runs the cells in the child.
    """
    while True:
        message, descriptors, *_ = socket.recv_fds(control, 1, 2)
        if not message:
            return
        child = 0
        if _num_threads() == 1:
            child = os.fork()
            if child == 0:
                control.close()
                _become_run(shell, *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        control.sendall(child.to_bytes(8, "big"))


def _become_run(shell: Shell, channel: int, log: int) -> NoReturn:
    """Be one run, in a session of its own, with nothing inherited but what was imported."""
    status = 1
    try:
        os.setsid()
        _die_with_parent()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        atexit._clear()
        _forget_random_state()
        shell.serve(Connection(channel))
        atexit._run_exitfuncs()
        status = 0
    finally:
        os._exit(status)


def _forget_random_state() -> None:
    # Without it all forks would draw the same numbers, which no fresh process does.
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _num_threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


if __name__ == "__main__":
    main()
