"""Who produced a result, and on what."""

import os
import platform
import subprocess
from pathlib import Path
from typing import Any


def describe(notebook: Path, threads: int) -> dict[str, Any]:
    """Describe the code and the machine that a run comes from.

    Args:
        notebook: Path of the source notebook, within a git checkout or not.
        threads: That the kernel was allowed.

    Returns:
        What a record says of them.
    """
    changes = _git(notebook, "status", "--porcelain")
    return {
        "commit": _git(notebook, "rev-parse", "HEAD"),
        "dirty": None if changes is None else bool(changes),
        "python": platform.python_version(),
        "platform": platform.platform(terse=True),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": threads,
    }


def _git(notebook: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(notebook.resolve().parent), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
