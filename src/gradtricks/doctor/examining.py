"""Running somebody's script under the watch of its framework."""

import ast
import importlib
import os
import runpy
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradtricks.doctor.diagnosing import diagnosed
from gradtricks.doctor.flight import ReplayedError, replayed
from gradtricks.doctor.reports import Diagnosis

_FRAMEWORKS = {"torch": "torch", "tensorflow": "tensorflow", "keras": "tensorflow"}
_OURS = (f"{Path(__file__).parents[1]}{os.sep}", "<frozen runpy>")


class OutOfTimeError(BaseException):
    """The script took too long; no handler of its own is meant to catch this."""


@dataclass(frozen=True)
class Examination:
    """The result of running a script under watch.

    Attributes:
        diagnosis: What is wrong with its gradients, as far as it came.
        failure: What it failed of, where it did: an exception, or leaving with another code than 0.
        trained: Whether there was a backward pass or an update.
    """

    diagnosis: Diagnosis
    failure: BaseException | None = None
    trained: bool = True

    @property
    def exit_code(self) -> int:
        """0 all is well, 1 something was found, 3 the script failed, 4 it trains nothing, 124 out of time."""
        # A guard that leaves does so because of what was found; what raises is told first.
        ended = isinstance(self.failure, SystemExit | OutOfTimeError)
        if not self.diagnosis.healthy and (self.failure is None or ended):
            return 1
        if self.failure is not None:
            return 124 if isinstance(self.failure, OutOfTimeError) else 3
        return 0 if self.trained else 4

    @property
    def trace(self) -> str:
        """The script's own failure, as Python would have shown it; our own frames left out."""
        if isinstance(self.failure, OutOfTimeError):
            return str(self.failure)
        if isinstance(self.failure, SystemExit):
            code = self.failure.code
            return code if isinstance(code, str) else f"the script left with exit code {code}"
        if self.exit_code == 4:
            return (
                "expected a training; got a script without a backward pass and without an update; "
                "remedy: give the one that trains, or where another process, thread or replica trains, "
                "call diagnose there"
            )
        return "" if self.failure is None else "".join(_without_ours(self.failure).format()).rstrip()


def examine(
    script: Path,
    arguments: Sequence[str],
    num_updates: int | None,
    timeout_s: float | None = None,
    replay: Path | None = None,
) -> Examination:
    """Run a script until its optimizers have made some updates each, and say what is wrong with them.

    The script is given the arguments in ``sys.argv[1:]``, and left after so many updates, or where that is
    None, when its framework's watcher has seen enough. Its models and
    optimizers are noticed when they are used. Where it fails, or is stopped after ``timeout_s`` seconds, what
    was seen until then is told. Where it forks, a child that comes to its end ends there, and tells nothing.
    With ``replay``, a snapshot that a `FlightRecorder` kept, only the step is watched that the script gives
    its recorder first, from that snapshot.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It isn't Python, or imports neither framework or both.
    """
    if replay and not replay.is_file():
        raise FileNotFoundError(f"replay must be a snapshot's file; got {replay}, which isn't there")
    if not script.is_file():
        raise FileNotFoundError(f"script must be a file; got {script}, which isn't there")
    framework, before = _framework_of(script), (sys.argv, sys.path)
    replayed.set(replay)
    sys.argv, sys.path = [str(script), *arguments], [str(script.resolve().parent), *sys.path]
    try:
        return examine_code(
            lambda: runpy.run_path(str(script), run_name="__main__"),
            framework,
            num_updates,
            timeout_s,
            replay,
        )
    finally:
        sys.argv, sys.path = before
        replayed.set(None)


def examine_code(
    run: Callable[[], Any],
    framework: str,
    num_updates: int | None,
    timeout_s: float | None = None,
    replay: Path | None = None,
) -> Examination:
    """Run what uses a framework, as `examine` runs a script."""
    doctor = importlib.import_module(f"gradtricks.doctor.{framework}.diagnosing")
    watch, failure, process = doctor.Watch(limit=num_updates), None, os.getpid()
    try:
        with nullcontext() if replay else watch, _limited(timeout_s):
            run()
    except ReplayedError as error:
        return Examination(error.diagnosis)
    except BaseException as error:  # whatever a script ends itself with
        failure = error
    if os.getpid() != process:  # pragma: no cover  # in a process of its own, as the test has it
        sys.stdout.flush()
        os._exit(failure is not None)
    if replay:
        failure = failure or SystemExit(f"the script came to its end without a recorder's step from {replay}")
        return Examination(Diagnosis((), 0), failure)
    history, failure = watch.history, failure if watch.history.stopped else None
    trained = bool(history.updates or history.skips or history.backwards or history.unwell)
    return Examination(diagnosed(history.of_held(), doctor.REMEDIES), failure, trained)


@contextmanager
def _limited(timeout_s: float | None) -> Iterator[None]:
    """Raise `OutOfTimeError` in what runs too long, as soon as Python gets to it."""

    def stop(number: int, frame: Any) -> None:
        raise OutOfTimeError(f"the script was stopped after {timeout_s:g} s, before all updates were made")

    if timeout_s is None:
        yield
        return
    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, timeout_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


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


def frameworks_in(code: ast.AST | Iterable[str]) -> set[str]:
    """Return the frameworks that some code imports, or that are among the names of modules."""
    if isinstance(code, ast.AST):
        nodes = list(ast.walk(code))
        names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        names += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
    else:
        names = list(code)
    return {_FRAMEWORKS[head] for name in names if (head := name.partition(".")[0]) in _FRAMEWORKS}


def _framework_of(script: Path) -> str:
    try:
        found = frameworks_in(ast.parse(script.read_text(encoding="utf-8")))
    except SyntaxError as error:
        raise ValueError(f"script must be Python; got {script}: {error}") from error
    if len(found) != 1:
        got = "both" if found else "neither"
        raise ValueError(
            f"script must import torch, or tensorflow or keras; {script} imports {got}; "
            "remedy: call gradtricks.doctor.<framework>.diagnose(step, model, optimizer) in it"
        )
    return found.pop()
