"""A forked process that becomes a kernel: ipykernel's own application, with nothing inherited but imports."""

import atexit
import ctypes
import faulthandler
import json
import logging
import os
import signal
import socket
import sys
import traceback
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any, NoReturn

from ipykernel import ipkernel
from ipykernel.kernelapp import IPKernelApp
from traitlets.config import Config

from gradtricks.warm.chances import Chances

PR_SET_CHILD_SUBREAPER = 36
_PR_SET_PDEATHSIG = 1
_STOP_TIMEOUT_S = 2.0  # for the thread that was asked to end the kernel
_OF_KERNEL = dict(sys.modules)
_LAUNCHER = find_spec("ipykernel_launcher")


def ask_system(option: int, value: int) -> None:
    """Ask Linux for something; other systems lack it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value)


def become_kernel(
    channel: socket.socket, log: int, chances: Chances, by_imports: Mapping[str, str]
) -> NoReturn:
    """Be a kernel, in a session of its own, until it is shut down.

    A line of JSON arrives through the channel: its ``arguments``, ``folder``, ``environment`` and ``lines``.
    An ``r`` goes back when it listens to the ports that it has written into the connection file.
    Variables that imports have set, ``by_imports``, are set again, as the kernel would import that itself.
    """
    status = 1
    try:
        os.setsid()
        ask_system(_PR_SET_PDEATHSIG, signal.SIGKILL)
        ask_system(PR_SET_CHILD_SUBREAPER, 1)  # so that what it started can be found at the end
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if faulthandler.is_enabled():
            faulthandler.enable(os.dup(log))  # the kernel reads its own standard error, and dies with it
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        atexit._clear()
        order = json.loads(channel.makefile("rb").readline())
        os.chdir(order["folder"])
        os.environ.clear()
        os.environ.update(order["environment"] | by_imports)
        chances.draw()
        sys.argv = [str(_LAUNCHER and _LAUNCHER.origin), *order["arguments"]]
        app = IPKernelApp.instance(parent_handle=os.getppid(), log_level=logging.ERROR)
        app.init_iopub = lambda context: _init_iopub(app, context)
        app.init_kernel = lambda: _init_kernel(app)
        app.parse_command_line = lambda arguments: _read_arguments(app, arguments)
        app.initialize(order["arguments"])
        for line in order["lines"]:
            exec(line, {"shell": app.shell})  # noqa: S102  ours, or the caller's
        channel.sendall(b"r")
        channel.close()
        app.start()
        _finish(app)
        status = 0
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
    finally:
        os._exit(status)


def _init_iopub(app: Any, context: Any) -> None:
    """Make the socket for outputs; by itself it would drop what a thousand messages wait before."""
    context.sndhwm = 0
    IPKernelApp.init_iopub(app, context)


def _init_kernel(app: Any) -> None:
    """Make the kernel; what was imported before it is its own, and no debugger goes in there.

    That isn't so of what a notebook imports, and a look at thousands of modules copies as many pages.
    """
    vars(ipkernel)["sys"] = SimpleNamespace(**vars(sys) | {"modules": _OF_KERNEL})
    try:
        IPKernelApp.init_kernel(app)
    finally:
        vars(ipkernel)["sys"] = sys


def _read_arguments(app: Any, arguments: list[str]) -> None:
    """Read a kernel's arguments; a parser of all that there can be takes a sixth of its start."""
    if len(arguments) == 2 and arguments[0] == "-f":
        app.argv = arguments
        app.cli_config = Config(IPKernelApp={"connection_file": arguments[1]})
        app.update_config(app.cli_config)
    else:
        IPKernelApp.parse_command_line(app, arguments)


def _finish(app: Any) -> None:
    """Call exit functions and close files; threads of the notebook aren't waited for.

    Without joining the thread that was asked to end the kernel first, ipykernel waits for it for seconds.
    """
    with suppress(RuntimeError):  # it has ended
        app.control_thread.stop()
    app.control_thread.join(_STOP_TIMEOUT_S)
    atexit._run_exitfuncs()
    app.shell.user_ns.clear()
