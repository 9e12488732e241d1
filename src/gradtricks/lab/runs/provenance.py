"""Who produced a result, and on what."""

import os
import platform
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from gradtricks.lab.identity import installed_version
from gradtricks.lab.recording import installed_versions

_UNRELATED = ("book", "dev", "optuna")  # extras that no run's result depends on


def describe_source(folder: Path) -> dict[str, Any]:
    """Say which commit the code in a folder is of, and whether there are changes: ``commit`` and ``dirty``.

    Both are None outside of a git checkout.
    """
    # Optional locks would get in the way of somebody who commits meanwhile, and a checkout could name any
    # program as its monitor.
    options = ["--no-optional-locks", "-c", "core.fsmonitor=false", "-C", str(folder)]
    command = ["git", *options, "status", "--porcelain=v2", "--branch"]
    try:
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        return {"commit": None, "dirty": None}
    commit = next((line.split()[-1] for line in lines if line.startswith("# branch.oid ")), None)
    changed = any(not line.startswith("# ") for line in lines)
    return {"commit": None if commit == "(initial)" else commit, "dirty": changed}


def describe_libraries() -> dict[str, str]:
    """List the versions of all installed libraries that a run's result may depend on."""
    extras = tuple(f'extra == "{extra}"' for extra in _UNRELATED)
    try:
        requirements = map(Requirement, metadata.requires("gradtricks") or ())
        names = {r.name for r in requirements if not any(extra in str(r.marker) for extra in extras)}
    except metadata.PackageNotFoundError:  # it is only imported, so nothing says which of all it needs
        names = {name for each in installed_versions().values() for name in each}
    versions = {name: installed_version(name) for name in sorted({*names, "dask"})}
    return {name: version for name, version in versions.items() if version}


@cache
def describe_machine() -> dict[str, Any]:
    """Describe the machine that this process runs on."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(terse=True),
        "processor": _processor(),
        "cores": os.cpu_count() or 1,
    }


def find_gpus() -> tuple[str, ...]:
    """Name the GPUs that NVIDIA's driver lists; none where there is no ``nvidia-smi``."""
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ()
    return tuple(line.strip() for line in listed.splitlines())


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else ()
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, "") or platform.processor() or platform.machine()
