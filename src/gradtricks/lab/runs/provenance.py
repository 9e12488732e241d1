"""Who produced a result, and on what."""

import os
import platform
import subprocess
from functools import cache
from pathlib import Path
from typing import Any


def describe_source(notebook: Path) -> dict[str, Any]:
    """Describe the code that a run comes from.

    Args:
        notebook: Path of the source notebook, within a git checkout or not.

    Returns:
        ``commit``, and ``dirty`` where there are uncommitted changes; both None outside of a checkout.
    """
    changes = _git(notebook, "status", "--porcelain")
    return {
        "commit": _git(notebook, "rev-parse", "HEAD"),
        "dirty": None if changes is None else bool(changes),
    }


@cache
def describe_machine() -> dict[str, Any]:
    """Describe the machine that this process runs on.

    Returns:
        What a record says of it.
    """
    return {
        "python": platform.python_version(),
        "platform": platform.platform(terse=True),
        "processor": _processor(),
        "cores": os.cpu_count() or 1,
    }


def _git(notebook: Path, *arguments: str) -> str | None:
    # Optional locks would get in the way of somebody who commits meanwhile, and a checkout could name any
    # program as its monitor.
    options = ["--no-optional-locks", "-c", "core.fsmonitor=false", "-C", str(notebook.resolve().parent)]
    command = ["git", *options, *arguments]
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
