"""Runs that never ran: records for tests of tables, plots and pages."""

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace

import stored
from gradtricks.lab.encoding import encode
from gradtricks.lab.storage.records import StoredRun, write_record
from gradtricks.lab.storage.store import Store
from gradtricks.lab.sweeps.sweep import Sweep

PROVENANCE = stored.PROVENANCE | {"commit": "0123456789abcdef", "dirty": False}


def make_run(parameters, results=None, *, error=None, stem="small", varying=None, second=0, **provenance):
    """Make the record of a run, as the store would hand it out."""
    digest = hashlib.sha256(repr((stem, parameters)).encode()).hexdigest()
    record = stored.record_of(
        SimpleNamespace(title=f"{stem}-{digest[:6]}", request=digest),
        stem=stem,
        name=stem,
        parameters={name: encode(value, name) for name, value in parameters.items()},
        results=encode(results or {}, "results"),
        varying=encode(varying or {}, "varying"),
        figures={},
        inputs=stored.INPUTS | {"modules": {}},
        provenance=PROVENANCE | provenance,
        started=f"2026-01-31T12:00:{second:02d}+00:00",
        duration_s=1.25,
        **({"status": "failed", "error": error} if error else {}),
    )
    return StoredRun("nowhere", json.loads(write_record(record)))


def put(root, runs):
    """Write runs where a store finds them."""
    for run in runs:
        stored.put(Store(root), run, **run.record)


def make_sweep(runs, varied, shown, **given):
    """Make what plots and pages need of a sweep."""
    about = {"name": "small", "notebook": Path("experiments/small.ipynb"), "title": "", "question": ""}
    return Sweep(specs=tuple(runs), varied=tuple(varied), shown=tuple(shown), **about | given)
