"""Modules imported before a fork, as they would be in a kernel."""

import importlib
import io
import sys
from collections.abc import Iterable
from contextlib import suppress
from operator import attrgetter

from ipykernel.zmqshell import ZMQInteractiveShell
from traitlets.config import Config

# What a kernel imports while it starts, and at its first cell. None of it may start a thread.
_OF_KERNEL = (
    "IPython.core.completerlib",
    "IPython.core.debugger",
    "IPython.core.logger",
    "IPython.extensions.storemagic",
    "ipykernel.debugger",
    "ipykernel.ipkernel",
    "ipykernel.kernelapp",
    "ipykernel.parentpoller",
    "sqlite3",
    "tornado.platform.asyncio",
)


def preload(modules: Iterable[str]) -> None:
    """Import modules, and what kernels need; ``module:function`` is called too.

    Some modules, such as pandas and tqdm, ask when they are imported in which kind of shell they are. So
    there is one of a kernel's kind meanwhile. Loggers keep the stream that they find, so that passes on.
    """
    for name in _OF_KERNEL:
        importlib.import_module(name)
    path, main = list(sys.path), sys.modules["__main__"]
    off = {"enabled": False}  # a history would need a thread
    config = Config({"HistoryManager": off, "HistoryAccessor": off, "IPKernelApp": {"connection_file": ""}})
    shell = ZMQInteractiveShell.instance(config=config)
    sys.stdout, sys.stderr = _Stream("stdout"), _Stream("stderr")
    shell.transform_cell("0")  # compiles regular expressions
    with shell.builtin_trap:
        for each in modules:
            name, _, function = each.partition(":")
            with suppress(Exception):  # the notebook will say what is wrong with it
                module = importlib.import_module(name)
                if function:
                    attrgetter(function)(module)()
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    ZMQInteractiveShell.clear_instance()
    sys.path[:], sys.modules["__main__"] = path, main


class _Stream(io.TextIOBase):
    """Passes what is written on to what the stream of this name is by then; nothing before there is one."""

    encoding = "utf-8"

    def __init__(self, name: str) -> None:
        self.name = name

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        now = getattr(sys, self.name)
        return len(text) if now is self else now.write(text)

    def flush(self) -> None:
        now = getattr(sys, self.name)
        if now is not self:
            now.flush()
