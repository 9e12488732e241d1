"""Small runs for tests of the store, put there without running anything."""

import hashlib
import os
import subprocess
from contextlib import contextmanager
from types import SimpleNamespace

import nbformat
import pytest

from gradtricks.lab.identity import PYTHON, digests

INPUTS = {"modules": digests(["gradtricks/lab/recording.py"]), "versions": {}, "python": PYTHON}
PROVENANCE = {
    "commit": None,
    "dirty": None,
    "python": "3.11.7",
    "platform": "Linux",
    "processor": "a processor",
    "cores": 2,
    "threads": 1,
    "cpu_s": 0.5,
}


def asked(number=0, stem="small"):
    """Return what a store needs to know of a run."""
    return SimpleNamespace(
        title=f"{stem}-torch-seed={number}", request=hashlib.sha256(f"{stem}{number}".encode()).hexdigest()
    )


def record_of(run, **changes):
    """Return a whole record."""
    return {
        "schema_version": 3,
        "stem": run.title.partition("-")[0],
        "name": "small-torch",
        "title": run.title,
        "status": "finished",
        "parameters": {"seed": 0},
        "results": {"loss": 0.5, "nothing": {"$float": "nan"}},
        "varying": {"seconds": 1.5},
        "figures": {"curve": "a curve"},
        "request": run.request,
        "inputs": INPUTS,
        "provenance": PROVENANCE,
        "started": "2026-01-31T12:00:00+00:00",
        "duration_s": 1.5,
    } | changes


def put(store, run, **changes):
    """Put a run in the store."""
    record = record_of(run, **changes)
    with store.claim(run) as folder:
        nbformat.write(nbformat.v4.new_notebook(), folder / "notebook.ipynb")
        return (store.keep_failure if record["status"] == "failed" else store.commit)(folder, record)


def put_failure(store, run, error="RuntimeError: as asked"):
    """Put a failed run in the store."""
    return put(store, run, status="failed", error=error)


@contextmanager
def small_disk(path, *options):
    """Mount a small file system, or skip where that isn't allowed."""
    path.mkdir()
    mounted = ["mount", "-t", "tmpfs", "-o", ",".join(["size=256k", *options]), "none", str(path)]
    if os.geteuid() != 0 or subprocess.run(mounted, capture_output=True, check=False).returncode:
        pytest.skip("mounting a file system takes root")
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)
