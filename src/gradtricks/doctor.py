"""Running somebody's script under the watch of its framework."""

import ast
import importlib
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from gradtricks._core.diagnosing import Diagnosis, diagnosed

_FRAMEWORKS = {"torch": "torch", "tensorflow": "tensorflow", "keras": "tensorflow"}


def examine(script: Path, arguments: Sequence[str], num_updates: int) -> Diagnosis:
    """Run a script until its optimizers have made some updates each, and say what is wrong with them.

    The script is given the arguments in ``sys.argv[1:]``, and left after so many updates. Its models and
    optimizers are noticed when they are used.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It isn't Python, or imports neither framework or both.
    """
    if not script.is_file():
        raise FileNotFoundError(f"script must be a file; got {script}, which isn't there")
    framework = _framework_of(script)
    tricks = importlib.import_module(f"gradtricks.{framework}.diagnosing")
    watch = tricks.Watch(limit=num_updates)
    before = sys.argv, sys.path
    sys.argv, sys.path = [str(script), *arguments], [str(script.resolve().parent), *sys.path]
    try:
        with watch:
            runpy.run_path(str(script), run_name="__main__")
    finally:
        sys.argv, sys.path = before
    return diagnosed(watch.record.of_held(), tricks.REMEDIES)


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
            "remedy: call gradtricks.<framework>.diagnose(step, model, optimizer) in it"
        )
    return found.pop()
