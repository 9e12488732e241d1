"""Run trainings under one tool, each in a fork of a process that has imported the framework.

``examine.py TOOL FRAMEWORK`` reads a JSON list of command lines from standard input, and prints for each
a line of JSON: ``findings``, ``ended`` (how the training ended), ``seconds`` (CPU time without imports).
"""

import importlib
import json
import os
import resource
import signal
import sys
import tempfile
import traceback
from pathlib import Path

CPU_SECONDS = 120  # after which a training is stopped
WALL_SECONDS = 600
FAILED = "the tool failed: "  # before the traceback of an error that isn't the training's


def examine(tool, line):
    """Return what a tool finds in a training, how that ended, and CPU seconds."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        process = os.fork()
        if not process:
            _examine_here(tool, line, out)
        _, status, usage = os.wait4(process, 0)
        told = json.loads(out.read_text()) if out.is_file() else {"findings": [], "ended": "killed"}
    if os.WIFSIGNALED(status):
        told["ended"] = f"stopped after {CPU_SECONDS} CPU seconds, or killed (signal {os.WTERMSIG(status)})"
    return told | {"seconds": usage.ru_utime + usage.ru_stime}


def _examine_here(tool, line, out):
    """Do it in this process, and end it."""
    try:
        os.chdir(out.parent)
        sink = os.open("printed.txt", os.O_RDWR | os.O_CREAT)
        os.dup2(sink, 1)
        os.dup2(sink, 2)
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 5))
        signal.alarm(WALL_SECONDS)
        sys.argv = list(line)
        sys.path.insert(0, str(Path(line[0]).parent))
        findings, ended = tool(*line)
        told = {"findings": findings, "ended": ended}
    except BaseException:
        told = {"findings": [], "ended": f"{FAILED}{traceback.format_exc()[-1500:]}"}
    out.write_text(json.dumps(told))
    os._exit(0)


def main():
    """Read command lines, and print what was found."""
    name, framework = sys.argv[1:]
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    for module in ("keras", framework) if framework == "tensorflow" else (framework,):
        importlib.import_module(module)
    tool = importlib.import_module(f"adapters.{name}").examine
    for line in json.load(sys.stdin):
        sys.stdout.write(f"{json.dumps(examine(tool, line))}\n")


if __name__ == "__main__":
    main()
