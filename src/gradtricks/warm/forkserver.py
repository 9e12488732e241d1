"""A process that has imported what kernels need, and forks for each of them.

`gradtricks.warm.servers` starts it with a descriptor, the folder of the connection files, and the names of
the modules to import. It listens to nothing but the socket that it inherits.
"""

import gc
import os
import shutil
import signal
import socket
import sys
import time
from contextlib import suppress
from typing import Any, NoReturn

import psutil

from gradtricks.warm.chances import Chances
from gradtricks.warm.forked import PR_SET_CHILD_SUBREAPER, ask_system, become_kernel
from gradtricks.warm.libraries import all_may_fork, forget_per_fork
from gradtricks.warm.preloading import preload

_STOP_TIMEOUT_S = 5.0  # for processes that were killed to be gone
_END = signal.SIGUSR1  # from the driver
_SIGNALS = (signal.SIGCHLD, _END)


class _Forks:
    """Forks, and cleans up behind forks that have ended."""

    def __init__(self, chances: Chances, by_imports: dict[str, str], folder: str) -> None:
        self._chances, self._by_imports, self._folder = chances, by_imports, folder
        self._channels: dict[int, int] = {}

    def serve(self, control: socket.socket) -> NoReturn:
        """Fork for each pair of descriptors that arrives: a channel to the kernel, and its log.

        It ends, and all forks with it, when the other side is closed or `_END` comes. The answer is the
        child's process id in eight bytes, or 0 where there can't be a safe one. How a fork has ended goes
        into its channel, behind what it said itself: ``e``, and its status in four bytes.
        """
        signal.signal(signal.SIGCHLD, self._reap)
        signal.signal(_END, self._end)
        control.sendall(b"r")
        while (request := socket.recv_fds(control, 1, 2))[0]:
            control.sendall(self._fork(control, *request[1]).to_bytes(8, "big"))
        shutil.rmtree(self._folder, ignore_errors=True)  # the driver can't any more
        self._end()

    def _fork(self, control: socket.socket, channel: int, log: int) -> int:
        child = None
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # a fork may end before it's noted
        # A lock that another thread holds would stay locked in the child for ever.
        if psutil.Process().num_threads() == 1 and all_may_fork():
            with suppress(OSError):  # no memory, or too many processes
                child = os.fork()
        if child == 0:
            control.close()
            for descriptor in self._channels.values():
                os.close(descriptor)
            for number in _SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            become_kernel(socket.socket(fileno=channel), log, self._chances, self._by_imports)
        if child:
            self._channels[child] = os.dup(channel)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        for descriptor in (channel, log):
            os.close(descriptor)
        return child or 0

    def _reap(self, *_: Any) -> None:
        """End what forks that have ended left, which is a child of this process by now; then report them.

        A driver that hears that a run has ended may end this process at once.
        """
        ended: list[tuple[int, int]] = []
        with suppress(ChildProcessError):  # there are none any more
            while (child := os.waitpid(-1, os.WNOHANG))[0]:
                ended.append(child)
        reports = [(self._channels.pop(pid), status) for pid, status in ended if pid in self._channels]
        for orphan in psutil.Process().children():
            if orphan.pid not in self._channels:
                _end_tree(orphan.pid)
        for channel, status in reports:
            with suppress(OSError):
                os.write(channel, b"e" + status.to_bytes(4, "big"))
            os.close(channel)

    def _end(self, *_: Any) -> NoReturn:
        """End all that this process has below it, also what it was just about to end, and itself."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        for child in psutil.Process().children():
            _end_tree(child.pid)
        os._exit(0)


def main() -> None:
    """Import, then fork until the driver is gone."""
    for number in (signal.SIGINT, signal.SIGTERM):  # a signal to a group of processes is meant for the driver
        signal.signal(number, signal.SIG_IGN)
    ask_system(PR_SET_CHILD_SUBREAPER, 1)
    _, descriptor, folder, *modules = sys.argv
    control = socket.socket(fileno=int(descriptor))
    # A notebook imports this package itself, perhaps another one of that name.
    for name in [name for name in sys.modules if name.partition(".")[0] == __package__.partition(".")[0]]:
        del sys.modules[name]
    before = dict(os.environ)
    with Chances() as chances:
        preload(modules)
    forget_per_fork()
    by_imports = {name: value for name, value in os.environ.items() if before.get(name) != value}
    sys.modules.pop("__mp_main__", None)  # it is this module, to multiprocessing
    gc.collect()
    gc.freeze()  # a collection in a child would copy every page that it looks at
    _Forks(chances, by_imports, folder).serve(control)


def _end_tree(pid: int) -> None:
    """End a process, which may be gone already, and all that it started.

    It is stopped first, so that it can't start more; and what a process of it has left behind is given to it
    where it has asked the system for that.
    """
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        process.suspend()
        deadline = time.monotonic() + _STOP_TIMEOUT_S
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
