"""Running somebody's script under the watch of its framework."""

import ast
import importlib
import os
import runpy
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gradtricks.doctor.diagnosing import diagnosed
from gradtricks.doctor.reports import Diagnosis

_FRAMEWORKS = {"torch": "torch", "tensorflow": "tensorflow", "keras": "tensorflow"}
_OURS = (f"{Path(__file__).parents[1]}{os.sep}", "<frozen runpy>")


@dataclass(frozen=True)
class Examination:
    """The result of running a script under watch.

    Attributes:
        diagnosis: What is wrong with its gradients, as far as it came.
        failure: What it failed of, where it did: an exception, or leaving with another code than 0.
    """

    diagnosis: Diagnosis
    failure: BaseException | None = None

    @property
    def exit_code(self) -> int:
        """0 where all is well, 1 where something was found, 3 where the script failed of something else."""
        # A guard that leaves does so because of what was found; what raises is told first.
        if self.failure is None or (isinstance(self.failure, SystemExit) and not self.diagnosis.healthy):
            return 0 if self.diagnosis.healthy else 1
        return 3

    @property
    def trace(self) -> str:
        """The script's own failure, as Python would have shown it; our own frames left out."""
        if isinstance(self.failure, SystemExit):
            code = self.failure.code
            return code if isinstance(code, str) else f"the script left with exit code {code}"
        return "" if self.failure is None else "".join(_without_ours(self.failure).format()).rstrip()


def examine(script: Path, arguments: Sequence[str], num_updates: int) -> Examination:
    """Run a script until its optimizers have made some updates each, and say what is wrong with them.

    The script is given the arguments in ``sys.argv[1:]``, and left after so many updates. Its models and
    optimizers are noticed when they are used. Where it fails, what was seen until then is told.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It isn't Python, or imports neither framework or both.
    """
    if not script.is_file():
        raise FileNotFoundError(f"script must be a file; got {script}, which isn't there")
    framework = _framework_of(script)
    doctor = importlib.import_module(f"gradtricks.doctor.{framework}.diagnosing")
    watch, failure = doctor.Watch(limit=num_updates), None
    before = sys.argv, sys.path
    sys.argv, sys.path = [str(script), *arguments], [str(script.resolve().parent), *sys.path]
    try:
        with watch:
            runpy.run_path(str(script), run_name="__main__")
    except BaseException as error:  # whatever a script ends itself with
        failure = error
    finally:
        sys.argv, sys.path = before
    failure = failure if watch.history.stopped else None
    return Examination(diagnosed(watch.history.of_held(), doctor.REMEDIES), failure)


def _without_ours(error: BaseException) -> traceback.TracebackException:
    trace = traceback.TracebackException.from_exception(error)
    pending: list[traceback.TracebackException | None] = [trace]
    while pending:
        part = pending.pop()
        if part is not None:
            theirs = [not frame.filename.startswith(_OURS) for frame in part.stack]
            # What raised stays, even if it is ours.
            end = len(theirs) - theirs[::-1].index(True) if any(theirs) else 0
            kept = [f for i, (f, keep) in enumerate(zip(part.stack, theirs)) if keep or i >= end]
            part.stack = traceback.StackSummary.from_list(kept)
            pending += [part.__cause__, part.__context__, *(part.exceptions or [])]
    return trace


def _framework_of(script: Path) -> str:
    try:
        nodes = list(ast.walk(ast.parse(script.read_text(encoding="utf-8"))))
    except SyntaxError as error:
        raise ValueError(f"script must be Python; got {script}: {error}") from error
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
    found = {_FRAMEWORKS[head] for name in names if (head := name.partition(".")[0]) in _FRAMEWORKS}
    if len(found) != 1:
        got = "both" if found else "neither"
        raise ValueError(
            f"script must import torch, or tensorflow or keras; {script} imports {got}; "
            "remedy: call gradtricks.doctor.<framework>.diagnose(step, model, optimizer) in it"
        )
    return found.pop()
