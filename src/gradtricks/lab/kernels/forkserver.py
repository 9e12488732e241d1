"""A process that has imported what runs need, and forks for each of them.

`gradtricks.lab.kernels.warm` starts it with a descriptor and the names of the modules to import. It listens
to nothing but the socket that it inherits.
"""

import atexit
import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import psutil

from gradtricks.lab.kernels import RECORDING
from gradtricks.lab.kernels.chances import Chances
from gradtricks.lab.kernels.outbox import Outbox
from gradtricks.lab.kernels.shell import Shell, new_shell

_PATIENCE_S = 5.0  # for processes that were killed to be gone
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_END = signal.SIGUSR1  # from the driver
_SIGNALS = (signal.SIGCHLD, _END)


class _Forks:
    """Forks, and cleans up behind forks that have ended."""

    def __init__(self, shell: Shell, outbox: Outbox, chances: Chances) -> None:
        self._shell, self._outbox, self._chances = shell, outbox, chances
        self._reports: dict[int, int] = {}

    def serve(self, control: socket.socket) -> None:
        """Fork for each triple of descriptors that arrives: a channel, a log, and where to report the end.

        It ends, and all forks with it, when the other side is closed or `_END` comes. The answer is the
        child's process id in eight bytes, or 0 where there can't be a safe one.
        """
        signal.signal(signal.SIGCHLD, self._bury)
        signal.signal(_END, self._end)
        while (request := socket.recv_fds(control, 1, 3))[0]:
            control.sendall(self._fork(control, *request[1]).to_bytes(8, "big"))
        self._end()

    def _fork(self, control: socket.socket, channel: int, log: int, report: int) -> int:
        child = None
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # a fork may end before it's noted
        if _may_fork():
            with suppress(OSError):  # no memory, or too many processes
                child = os.fork()
        if child == 0:
            control.close()
            for descriptor in (report, *self._reports.values()):
                os.close(descriptor)
            _become_run(self._shell, self._outbox, self._chances, socket.socket(fileno=channel), log)
        if child:
            self._reports[child] = os.dup(report)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        for descriptor in (channel, log, report):
            os.close(descriptor)
        return child or 0

    def _bury(self, *_: Any) -> None:
        """End what forks that have ended left, which is a child of this process by now; then report them.

        Who hears that a run has ended may end this process at once.
        """
        ended: list[tuple[int, int]] = []
        with suppress(ChildProcessError):  # there are none any more
            while (child := os.waitpid(-1, os.WNOHANG))[0]:
                ended.append(child)
        reports = [(self._reports.pop(pid), status) for pid, status in ended if pid in self._reports]
        for orphan in psutil.Process().children():
            if orphan.pid not in self._reports:
                _end_tree(orphan.pid)
        for report, status in reports:
            with suppress(BrokenPipeError):
                os.write(report, status.to_bytes(4, "big"))
            os.close(report)

    def _end(self, *_: Any) -> NoReturn:
        """End all that this process has below it, also what it was just about to end, and itself."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        for child in psutil.Process().children():
            _end_tree(child.pid)
        os._exit(0)


def main() -> None:
    """Import, then fork until the driver is gone."""
    for number in (signal.SIGINT, signal.SIGTERM):  # whoever ends a group of processes means the driver
        signal.signal(number, signal.SIG_IGN)
    _ask_system(_PR_SET_CHILD_SUBREAPER, 1)
    control, modules = socket.socket(fileno=int(sys.argv[1])), sys.argv[2:]
    del sys.argv[1:]
    # A run's record names what the run imports, not what this process does.
    for name in [name for name in sys.modules if name.partition(".")[0] == "gradtricks"]:
        del sys.modules[name]
    outbox = Outbox()
    sys.stdout, sys.stderr = outbox.streams  # loggers keep what they find here when they are imported
    with Chances() as chances:
        for name in modules:
            with suppress(Exception):  # the run will say what is wrong with it
                importlib.import_module(name)
            if name == RECORDING:
                sys.modules[name].installed_versions()  # takes long
    sys.modules.pop("__mp_main__", None)  # it is this module, to multiprocessing
    # Imports look in whatever folder the run is in, but after the standard library, as in a Jupyter kernel.
    names = [Path(path).name for path in sys.path]
    installed = (i for i, name in enumerate(names) if name in ("site-packages", "dist-packages"))
    sys.path.insert(next(installed, len(names)), "")
    forks = _Forks(new_shell(), outbox, chances)
    gc.collect()
    gc.freeze()  # a collection in a child would copy every page that it looks at
    forks.serve(control)


def _may_fork() -> bool:
    """A lock that another thread holds would stay locked in the child for ever, and CUDA can't be forked."""
    torch = sys.modules.get("torch")
    return psutil.Process().num_threads() == 1 and not (torch and torch.cuda.is_initialized())


def _end_tree(pid: int) -> None:
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


def _become_run(shell: Shell, outbox: Outbox, chances: Chances, channel: socket.socket, log: int) -> NoReturn:
    """Be one run, in a session of its own, with nothing inherited but what was imported."""
    status = 1
    try:
        os.setsid()
        _ask_system(_PR_SET_PDEATHSIG, signal.SIGKILL)
        _ask_system(_PR_SET_CHILD_SUBREAPER, 1)  # so that what it started can be found at the end
        for number in (*_SIGNALS, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        atexit._clear()
        chances.draw()
        _run_cells(shell, outbox, channel)
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
        atexit._run_exitfuncs()
        shell.user_ns.clear()  # closes files that the notebook left open
        status = 0
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
    finally:
        os._exit(status)


def _run_cells(shell: Shell, outbox: Outbox, channel: socket.socket) -> None:
    """Run the cells that arrive, until the other side closes the channel.

    What arrives is lines of JSON: first the folder and the environment, then cells. The last message that
    goes out for each cell is an ``execute_reply``. After a cell that called ``exit()`` only the lab's own is
    run, which reports.
    """
    requests = channel.makefile("rb")
    place = json.loads(requests.readline())
    os.chdir(place["folder"])
    os.environ.clear()
    os.environ.update(place["environment"])
    _watch_sources()
    outbox.connect(channel)
    shell.open(outbox)
    while request := requests.readline():
        source = json.loads(request)
        if shell.exiting and not source.startswith(f"import {RECORDING}"):
            return
        outbox.send("execute_input", {"execution_count": shell.execution_count})
        outbox.send("execute_reply", shell.execute(source))


def _watch_sources() -> None:
    """Let the run's record say which sources it read; a run's own process imports what does that."""
    from gradtricks.lab.identity import SOURCES

    SOURCES.watch()


def _ask_system(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value)


if __name__ == "__main__":
    main()
