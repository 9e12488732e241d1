"""A notebook's cells, executed by IPython in this process; what they show goes into an outbox."""

import asyncio
import base64
import builtins
import getpass
import os
import sys
from typing import Any, NoReturn

from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.error import StdinNotImplementedError
from IPython.core.interactiveshell import ExecutionResult, InteractiveShell
from traitlets import Type
from traitlets.config import Config

from gradtricks.lab.kernels.outbox import Outbox


class _DisplayPublisher(DisplayPublisher):
    """What ``display`` shows, and the updates and deletions of it."""

    def publish(
        self, data: Any, metadata: Any = None, *, transient: Any = None, update: bool = False, **_: Any
    ) -> None:
        kind = "update_display_data" if update else "display_data"
        content = {"data": _encoded(data), "metadata": metadata or {}, "transient": transient or {}}
        self.shell.outbox.send(kind, content)

    def clear_output(self, wait: bool = False) -> None:
        self.shell.outbox.send("clear_output", {"wait": wait})


class _DisplayHook(DisplayHook):
    """The value of a cell's last expression."""

    def write_output_prompt(self) -> None:
        pass

    def write_format_data(self, format_dict: dict[str, Any], md_dict: Any = None) -> None:
        content = {"data": _encoded(format_dict), "metadata": md_dict or {}}
        self.shell.outbox.send("execute_result", content | {"execution_count": self.prompt_count})


class Shell(InteractiveShell):
    """IPython without a terminal and without a history."""

    displayhook_class = Type(_DisplayHook)
    display_pub_class = Type(_DisplayPublisher)
    exiting = False  # a cell called exit() or quit()
    outbox: Outbox

    def open(self, outbox: Outbox) -> None:
        """Print and show into an outbox from here on; nobody is there to answer questions."""
        self.outbox = outbox
        self.loop = asyncio.new_event_loop()
        sys.stdout, sys.stderr = outbox.streams
        builtins.input = getpass.getpass = _refuse

    def execute(self, source: str) -> dict[str, str]:
        """Run a cell, and return how it ended, as a Jupyter kernel replies.

        As in a Jupyter kernel, an event loop runs meanwhile, and the cell may await. Only the result says
        whether it failed: not every error is shown, and not every one that is shown ended the cell.
        """
        result = self.loop.run_until_complete(self._execute(source))
        self.outbox.end_cell()
        if self.outbox.is_fork:  # the cell forked, and this is the child
            os._exit(not result.success)
        error = result.error_before_exec or result.error_in_exec
        if error is None:
            return {"status": "ok"}
        return {"status": "error", "ename": type(error).__name__, "evalue": str(error)}

    async def _execute(self, source: str) -> ExecutionResult:
        cell, error = source, None
        try:
            cell = self.transform_cell(source)
        except Exception:  # a syntax error of IPython's own; running the cell shows it
            error = sys.exc_info()
        options = {"transformed_cell": cell, "preprocessing_exc_tuple": error}
        result = await self.run_cell_async(source, store_history=True, **options)
        self.events.trigger("post_execute")
        self.events.trigger("post_run_cell", result)
        return result

    def enable_gui(self, gui: str | None = None) -> None:
        """Do nothing where no windows are asked for, as by ``%matplotlib inline``."""
        if gui is not None:
            super().enable_gui(gui)

    def ask_exit(self) -> None:
        """Let this be the last cell."""
        self.exiting = True

    def _showtraceback(self, etype: type, evalue: BaseException, stb: list[str]) -> None:
        content = {"ename": etype.__name__, "evalue": str(evalue), "traceback": stb}
        self.outbox.send("error", content)


def new_shell() -> Shell:
    """Make the one shell of this process; its history, which would need a thread, is off."""
    off = {"enabled": False}
    return Shell.instance(config=Config({"HistoryManager": off, "HistoryAccessor": off}))


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise StdinNotImplementedError("expected no questions: nobody answers; remedy: make it a parameter")


def _encoded(data: dict[str, Any]) -> dict[str, Any]:
    """Write pictures as text, as a notebook does."""
    return {k: base64.encodebytes(v).decode() if isinstance(v, bytes) else v for k, v in data.items()}
