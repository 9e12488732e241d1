"""Published sweeps: runs that take hours, kept with the sources so that the book need not run them."""

import hashlib
import os
import re
import shutil
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from filelock import FileLock

from gradtricks.lab.notebooks.texts import literal
from gradtricks.lab.results.grouping import text_of, varying
from gradtricks.lab.runs.planning import Spec
from gradtricks.lab.storage.manifests import LOCK, Manifest
from gradtricks.lab.storage.places import MANIFEST, explained
from gradtricks.lab.storage.published import RECORDS, Published, PublishedRun, as_lines
from gradtricks.lab.storage.records import StoredRun
from gradtricks.lab.sweeps.sweep import Sweep
from gradtricks.lab.sweeps.witness import judge, witnesses_of

FOLDER = "published"  # beside the sweeps' files

_LONGEST = 80  # characters of what a run is called
_ODD = re.compile(r"[^A-Za-z0-9_.=+]+")


def keep(
    sweep: Sweep,
    runs: Iterable[StoredRun],
    quick: Iterable[StoredRun] = (),
    former: Mapping[str, StoredRun] | None = None,
) -> Path:
    """Publish all runs of a sweep instead of its former ones: their records and files, not their notebooks.

    The quick runs of its notebook are what later code is judged by. Former runs, as `still_given` finds them,
    stay, and so do theirs, if these come from another processor: only there can later code give the same. A
    killed process may leave files of both: they aren't believed, and publishing again mends it. Returned is
    the file of the records. A StoreError says that the folder can't be written to, or that a file of a run
    isn't what it was.
    """
    root, finished = _folder(sweep), {run.request: run for run in runs} | dict(former or {})
    before, now = dict(as_published(sweep)[0].witnesses) if former else {}, list(quick)
    elsewhere = judge(before, now) == "another processor"
    ordered = [finished[run.request] for run in sweep.specs]
    published = _laid_out(sweep, ordered, root)
    records = as_lines(published)
    manifest = Manifest(
        title=sweep.title,
        question=sweep.question,
        notebook=Path(os.path.relpath(sweep.notebook, root)).as_posix(),
        varied=sweep.varied,
        shown=sweep.shown,
        records=hashlib.sha256(records).hexdigest(),
        witnesses=before if elsewhere else witnesses_of(now),
    )
    with explained(str(root)), _beside(root, sweep.name) as new:
        (new / sweep.name).mkdir()
        paths = []
        for run, laid_out in zip(ordered, published, strict=True):
            for name, path in laid_out.paths.items():
                (new / path).write_bytes(run.read_file(name))
                paths.append(path)
        (new / f"{sweep.name}{RECORDS}").write_bytes(records)
        (new / f"{sweep.name}{MANIFEST}").write_bytes(manifest.model_dump_json(indent=1).encode() + b"\n")
        # The manifest comes last: only what its digests mean counts.
        for path in (*paths, f"{sweep.name}{RECORDS}", f"{sweep.name}{MANIFEST}"):
            (root / path).parent.mkdir(exist_ok=True)
            os.replace(new / path, root / path)
        for left in (root / sweep.name).glob("*"):
            if f"{sweep.name}/{left.name}" not in paths and left.is_file():
                left.unlink()
    return root / f"{sweep.name}{RECORDS}"


def as_published(sweep: Sweep) -> tuple[Sweep, list[StoredRun]]:
    """Look up the published runs of a sweep, whatever has changed since.

    Returns the sweep with what was varied then and its witnesses, and its runs; the sweep as it is and no
    runs where it was never published. A StoreError says that somebody edited them.
    """
    try:
        manifest, runs = Published(_folder(sweep)).sweep(sweep.name)
    except KeyError:
        return sweep, []
    cases = {run.request: run.case for run in runs if run.case}
    # What the notebook got since has its default.
    known = {name for run in runs for name in run.parameters}
    asked, done = (_configurations(some, known) for some in (sweep.specs, runs))
    shown = replace(sweep, varied=manifest.varied, cases=cases, witnesses=manifest.witnesses)
    return replace(shown, replanned=asked != done), list(runs)


def still_given(sweep: Sweep, quick: Iterable[StoredRun]) -> dict[str, StoredRun]:
    """Find the published runs that a sweep would do again, by their request now.

    None where the quick runs of its notebook don't give the same numbers as then, bit for bit, unless another
    processor explains it. One with another parameter or another count of threads is another run.
    """
    then, runs = as_published(sweep)
    if judge(then.witnesses, quick) not in ("the same numbers", "another processor"):
        return {}
    known = {(_given(run), run.record["provenance"]["threads"]): run for run in runs}
    found = {spec.request: known.get((_given(spec), spec.threads)) for spec in sweep.specs}
    return {request: run for request, run in found.items() if run}


def _configurations(runs: Iterable[Spec | StoredRun], names: Collection[str]) -> set[str]:
    """Write what each run is given under some names."""
    return {_given(run, names) for run in runs}


def _given(run: Spec | StoredRun, names: Collection[str] | None = None) -> str:
    items = sorted(run.parameters.items())
    return literal({name: value for name, value in items if names is None or name in names})


def _laid_out(sweep: Sweep, runs: Sequence[StoredRun], root: Path) -> list[PublishedRun]:
    """Give each run its place, and each of its files a name of its own, whatever its case."""
    cases = [sweep.cases.get(spec.request, "") for spec in sweep.specs]
    labels = _labels(sweep, runs, cases)
    taken, published = {label.lower() for label in labels}, []
    for run, label, case in zip(runs, labels, cases, strict=True):
        paths = {}
        for name in run.files:
            called = f"{label}{Path(name).suffix if len(run.files) == 1 else f'-{name}'}"
            if called != label and called.lower() in taken:  # by another run, or by a file of one
                called = f"{label}-{run.request[:12]}-{name}"
            taken.add(called.lower())
            paths[name] = f"{sweep.name}/{called}"
        published.append(
            PublishedRun(f"{root}/{sweep.name}/{label}", run.record, sweep.notebook, case, paths)
        )
    return published


def _folder(sweep: Sweep) -> Path:
    return (sweep.path or sweep.notebook).parent / FOLDER


@contextmanager
def _beside(root: Path, sweep: str) -> Iterator[Path]:
    """Make a folder for what isn't in its place yet, on the same disk; delete that of a killed process."""
    root.mkdir(parents=True, exist_ok=True)
    with FileLock(root / LOCK):  # who else publishes waits
        for left in root.glob(f".{sweep}.*"):
            shutil.rmtree(left, ignore_errors=True)
        with TemporaryDirectory(dir=root, prefix=f".{sweep}.") as folder:
            yield Path(folder)


def _labels(sweep: Sweep, runs: Sequence[StoredRun], cases: Sequence[str]) -> list[str]:
    """Call each run by what isn't the same in all: its configuration and the values of parameters."""
    found = varying({name: [run.parameters.get(name) for run in runs] for name in sweep.varied}, cases)
    spelled = [*zip(*(map(text_of, values) for values in found.values()))] or [()] * len(runs)
    labels = [_ODD.sub("-", "-".join(filter(None, each))).strip("-.")[:_LONGEST] for each in spelled]
    count = Counter(label.lower() for label in labels)
    return [
        label if label and count[label.lower()] == 1 else f"{label}-{run.request[:12]}".lstrip("-")
        for label, run in zip(labels, runs, strict=True)
    ]
