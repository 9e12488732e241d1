"""A notebook's cells, executed in this very process, where debuggers, profilers and coverage reach them."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from IPython.core.interactiveshell import InteractiveShell
from IPython.core.pylabtools import select_figure_formats
from nbclient.exceptions import DeadKernelError
from nbformat import NotebookNode

from gradtricks.lab.kernels.bookkeeping import Execution, Interpreter
from gradtricks.lab.kernels.outbox import Outbox
from gradtricks.lab.kernels.shell import Shell, new_shell


def run_in_process(execution: Execution) -> None:
    """Run a notebook with variables of its own; what it prints goes to the terminal too.

    Args:
        execution: Of the notebook.

    Raises:
        PapermillExecutionError: A cell raised an exception.
        DeadKernelError: A cell called ``exit()``, and others were to come.
        KeyboardInterrupt: The user pressed Ctrl-C.
    """
    with _only_shell() as shell:
        kernel = _InProcessKernel(shell, Interpreter(execution))
        outbox = Outbox()
        outbox.connect(kernel.take, sys.stdout)
        shell.open(outbox)
        shell.enable_matplotlib("inline")
        select_figure_formats(shell, {"png"})  # the line before does so for the first shell only
        try:
            execution.run(kernel.execute)
        finally:
            shell.close()


class _InProcessKernel:
    def __init__(self, shell: Shell, interpreter: Interpreter) -> None:
        self._shell, self._interpreter = shell, interpreter

    def execute(self, cell: NotebookNode, index: int) -> None:
        if self._shell.exiting:
            raise DeadKernelError("Kernel died: an earlier cell called exit()")
        self._cell, self._index = cell, index
        cell.execution_count = self._shell.execution_count
        try:
            result = self._shell.execute(cell.source)
        finally:
            self._interpreter.settle()
        if isinstance(result.error_in_exec, KeyboardInterrupt):
            raise result.error_in_exec

    def take(self, message: dict[str, Any]) -> None:
        message = json.loads(json.dumps(message, default=repr))
        self._interpreter.process_message(message, self._cell, self._index)


@contextmanager
def _only_shell() -> Iterator[Shell]:
    """Be the one IPython of this process meanwhile; the user may be in another one."""
    other = InteractiveShell._instance
    if other is not None:
        type(other).clear_instance()
    shell = new_shell()
    try:
        yield shell
    finally:
        shell.restore_sys_module_state()
        Shell.clear_instance()
        if other is not None:
            for kind in type(other)._walk_mro():
                kind._instance = other
