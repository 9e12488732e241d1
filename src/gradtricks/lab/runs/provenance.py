"""Who produced a result, and on what."""

import os
import platform
import subprocess
from functools import cache
from pathlib import Path
from typing import Any


def describe_source(folder: Path) -> dict[str, Any]:
    """Describe the code that a run comes from.

    Args:
        folder: Of the source notebook, within a git checkout or not.

    Returns:
        ``commit``, and ``dirty`` where there are uncommitted changes; both None outside of a checkout.
    """
    status = _git_status(folder)
    if status is None:
        return {"commit": None, "dirty": None}
    said = [line for line in status.splitlines() if line.startswith("# ")]
    commit = next((line.split()[-1] for line in said if line.startswith("# branch.oid ")), None)
    changed = len(status.splitlines()) > len(said)
    return {"commit": None if commit == "(initial)" else commit, "dirty": changed}


@cache
def describe_machine() -> dict[str, Any]:
    """Describe the machine that this process runs on."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(terse=True),
        "processor": _processor(),
        "cores": os.cpu_count() or 1,
    }


def _git_status(folder: Path) -> str | None:
    # Optional locks would get in the way of somebody who commits meanwhile, and a checkout could name any
    # program as its monitor.
    options = ["--no-optional-locks", "-c", "core.fsmonitor=false", "-C", str(folder)]
    command = ["git", *options, "status", "--porcelain=v2", "--branch"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
