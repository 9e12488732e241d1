"""Published sweeps: runs that take hours, kept with the sources so that the book need not run them."""

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from gradtricks.lab.recording import file_digests
from gradtricks.lab.results.grouping import text_of, varies_within
from gradtricks.lab.runs.planning import source_digest
from gradtricks.lab.storage.keeping import write_published
from gradtricks.lab.storage.published import Published
from gradtricks.lab.storage.records import StoredRun, installed_version, request_digest
from gradtricks.lab.sweeps.files import ENDING
from gradtricks.lab.sweeps.plans import Sweep, plan_of

FOLDER = "published"  # beside the sweeps' files

_LONGEST = 80  # characters of what a run is called
_ODD = re.compile(r"[^A-Za-z0-9_.=+]+")


def keep(sweep: Sweep, runs: Sequence[StoredRun]) -> Path:
    """Keep the finished runs of a sweep with the sources, instead of its former ones; return their table."""
    root, finished = _folder(sweep), {stored.request: stored for stored in runs}
    plan = plan_of(sweep) | {"notebook": Path(os.path.relpath(sweep.notebook, root)).as_posix()}
    ordered = [finished[run.request] for run in sweep.runs]
    return write_published(root, plan, ordered, _labels(sweep, ordered))


def as_published(sweep: Sweep) -> tuple[Sweep, list[StoredRun]]:
    """Look up the published runs of a sweep, whatever has changed since.

    Returns the sweep with what was varied then and what has changed since, and its runs; the sweep as it is
    and no runs where it was never published. A StoreError says that somebody edited them.
    """
    try:
        manifest, runs = Published(_folder(sweep)).sweep(sweep.name)
    except KeyError:
        return sweep, []
    cases = {run.request: run.case for run in runs if run.case}
    changed = tuple(_changed(sweep, runs))
    return replace(sweep, varied=manifest.varied, changed=changed, cases=cases), list(runs)


def _folder(sweep: Sweep) -> Path:
    return (sweep.path or sweep.notebook).parent / FOLDER


def _changed(sweep: Sweep, runs: Sequence[StoredRun]) -> Iterator[str]:
    """Name what the runs used and what is another one now: notebook, what varies, files, libraries."""
    source = source_digest(sweep.runs[0].source)
    requests = {
        request_digest(source, run.parameters, run.record["provenance"]["threads"]): run.request
        for run in runs
    }
    if any(now != then for now, then in requests.items()):
        yield sweep.notebook.name
    elif requests.keys() != {run.request for run in sweep.runs}:
        yield sweep.name + ENDING
    files, versions = (
        {used for run in runs for used in run.record["inputs"][part].items()}
        for part in ("files", "versions")
    )
    digests = file_digests(name for name, _ in files)
    yield from sorted({name for name, digest in files if digests[name] != digest})
    yield from sorted({name for name, version in versions if installed_version(name) != version})


def _labels(sweep: Sweep, runs: Sequence[StoredRun]) -> list[str]:
    """Call each run by what isn't the same in all: its configuration and the values of parameters."""
    cases = [sweep.cases.get(run.request, "") for run in runs]
    values = [[run.parameters[name] for run in runs] for name in sweep.varied]
    free = [some for some in values if not sweep.cases or varies_within(cases, some)]
    spelled = [[case, *map(text_of, some)] for case, *some in zip(cases, *free, strict=True)]
    labels = [_ODD.sub("-", "-".join(filter(None, each))).strip("-.")[:_LONGEST] for each in spelled]
    count = Counter(label.lower() for label in labels)
    return [
        label if label and count[label.lower()] == 1 else f"{label}-{run.request[:12]}".lstrip("-")
        for label, run in zip(labels, runs, strict=True)
    ]
