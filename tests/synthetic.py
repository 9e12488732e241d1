"""Runs that never ran: records for tests of tables, plots and pages."""

import hashlib
import json
from pathlib import Path

from gradtricks.lab.encoding import encode
from gradtricks.lab.storage.records import SCHEMA_VERSION, StoredRun, folder_name, inputs_digest, write_record
from gradtricks.lab.sweeps.plans import Sweep

PROVENANCE = {
    "commit": "0123456789abcdef",
    "dirty": False,
    "python": "3.11.7",
    "platform": "Linux",
    "processor": "a processor",
    "cores": 2,
    "threads": 1,
    "cpu_s": 0.5,
}


def make_run(parameters, results=None, *, error=None, stem="small", varying=None, second=0, **provenance):
    """Make the record of a run, as the store would hand it out."""
    digest = hashlib.sha256(repr((stem, parameters)).encode()).hexdigest()
    record = {
        "schema_version": SCHEMA_VERSION,
        "stem": stem,
        "name": stem,
        "title": f"{stem}-{digest[:6]}",
        "status": "failed" if error else "finished",
        **({"error": error} if error else {}),
        "parameters": {name: encode(value, name) for name, value in parameters.items()},
        "results": encode(results or {}, "results"),
        "varying": encode(varying or {}, "varying"),
        "figures": {},
        "request": digest,
        "inputs": {"files": {}, "versions": {}},
        "provenance": PROVENANCE | provenance,
        "started": f"2026-01-31T12:00:{second:02d}+00:00",
        "duration_s": 1.25,
    }
    return StoredRun("nowhere", json.loads(write_record(record)))


def put(root, runs):
    """Write runs where a store finds them."""
    for run in runs:
        place = "failed" if run.status == "failed" else inputs_digest(run.record["inputs"])
        folder = Path(root, folder_name(run.title, run.request), place)
        folder.mkdir(parents=True)
        (folder / "record.json").write_bytes(write_record(run.record))


def make_sweep(runs, varied, shown, **given):
    """Make what plots and pages need of a sweep."""
    about = {"name": "small", "notebook": Path("experiments/small.ipynb"), "title": "", "question": ""}
    return Sweep(runs=tuple(runs), varied=tuple(varied), shown=tuple(shown), **about | given)
