"""Published runs, kept with the sources: for each sweep a manifest, its records, and files of its runs."""

import gzip
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbformat import NotebookNode
from pydantic_core import from_json

from gradtricks.lab.notebooks.schema import read_notebook
from gradtricks.lab.storage.manifests import CASE, Manifest, read_manifest
from gradtricks.lab.storage.places import StoreError, is_published, manifests
from gradtricks.lab.storage.records import StoredRun, folder_name, inputs_digest, only_one
from gradtricks.lab.storage.store import Planned, Requested, Store

RECORDS = ".jsonl.gz"  # how the records of a published sweep end

_LABEL, _PATHS = "run", "paths"  # what a line holds besides the record and its case


@dataclass(frozen=True)
class PublishedRun(StoredRun):
    """A published run. Its executed notebook isn't kept."""

    notebook: Path  # that was run, as it may be now
    case: str  # what its configuration is called; empty where it has no name
    paths: Mapping[str, str]  # of its files, seen from the folder of manifests, by name

    @property
    def executed(self) -> bool:
        """Its executed notebook isn't kept."""
        return False

    @property
    def label(self) -> str:
        """Its name among the sweep's runs, such as ``torch-140``."""
        return Path(self.location).name

    @property
    def place(self) -> str:
        """Where it lies in the folder of manifests, such as ``pong/torch-140``."""
        return "/".join(Path(self.location).parts[-2:])

    def read_notebook(self) -> NotebookNode:
        """Read the notebook as it is now, not executed."""
        return read_notebook(self.notebook)

    def _read_kept(self, name: str) -> bytes | None:
        return _read(Path(self.location).parents[1] / self.paths[name], self.files[name]["sha256"])


class Published:
    """The published runs in a folder, read as a store: they count whatever has changed since."""

    def __init__(self, location: str | Path) -> None:
        self.location = str(location)
        self._root = Path(self.location)
        self._known: dict[str, tuple[Manifest, list[PublishedRun]]] = {}

    def plans(self) -> list[str]:
        """Name the sweeps that are published, sorted."""
        return manifests(self._root)

    def plan(self, sweep: str) -> dict[str, Any]:
        """Say which runs belong to a sweep, as the plan of a store does."""
        manifest, runs = self.sweep(sweep)
        named = ("request", "title", "place", "case")
        listed = [{part: getattr(run, part) for part in named} for run in runs]
        return {"runs": listed, "varied": manifest.varied, "shown": manifest.shown, "published": True}

    def sweep(self, name: str) -> tuple[Manifest, list[PublishedRun]]:
        """Read the runs of one sweep; a KeyError says that there is none of that name."""
        if name not in self._known:
            if name not in self.plans():
                raise KeyError(name)
            manifest = read_manifest(self._root, name)
            text = gzip.decompress(_read(self._root / f"{name}{RECORDS}", manifest.records))
            self._known[name] = manifest, [self._run(name, manifest, line) for line in text.splitlines()]
        return self._known[name]

    def runs(self, stem: str | None = None) -> Iterator[PublishedRun]:
        """Yield all runs, or those of one notebook, each once even if several sweeps have it."""
        runs = [run for name in self.plans() for run in self.sweep(name)[1]]
        for run in {(run.request, inputs_digest(run.record["inputs"])): run for run in runs}.values():
            if stem in (None, run.record["stem"]):
                yield run

    def find_all(self, runs: Iterable[Requested], status: str = "finished") -> dict[str, StoredRun]:
        """Find runs of a plan that are there, by their request; only what has finished is published."""
        planned = (run for run in runs if isinstance(run, Planned) and status == "finished")
        places = {run.place for run in planned}
        sweeps = {place.partition("/")[0] for place in places} & set(self.plans())
        found = (run for name in sorted(sweeps) for run in self.sweep(name)[1])
        return {run.request: run for run in found if run.place in places}

    def claimed(self) -> set[str]:
        """Return nothing: nothing runs here."""
        return set()

    def lookup(self, text: str) -> StoredRun:
        """Find the one run that a text means: a title or its beginning."""
        named: dict[str, list[StoredRun]] = {}
        for run in self.runs():
            named.setdefault(folder_name(run.title, run.request), []).append(run)
        return only_one(text, named, named.__getitem__, self.location)

    def _run(self, sweep: str, manifest: Manifest, line: bytes) -> PublishedRun:
        record = from_json(line)
        return PublishedRun(
            location=f"{self._root}/{sweep}/{record.pop(_LABEL)}",
            case=record.pop(CASE),
            paths=record.pop(_PATHS),
            notebook=Path(os.path.normpath(self._root / manifest.notebook)),
            record=record,
        )


def open_store(location: str | Path) -> Store | Published:
    """Open runs to be read: those of a store, or published ones."""
    return Published(location) if is_published(location) else Store(location)


def published_at(path: str) -> PublishedRun | None:
    """Find the published run that a path means, or that kept the file there; None where it means none."""
    place = Path(path).resolve()
    root, sweep = place.parent.parent, place.parent.name
    if sweep not in manifests(root) or not is_published(root):
        return None
    runs, meant = Published(root).sweep(sweep)[1], f"{sweep}/{place.name}"
    return next((run for run in runs if meant in (run.place, *run.paths.values())), None)


def as_lines(runs: Iterable[PublishedRun]) -> bytes:
    """Write runs as compressed JSONL: a line has what a run is called, where its files lie, and its record.

    Equal runs make equal bytes.
    """
    lines = ({_LABEL: run.label, CASE: run.case, _PATHS: run.paths} | run.record for run in runs)
    text = "".join(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n" for line in lines)
    return gzip.compress(text.encode(), mtime=0)


def _read(path: Path, digest: str) -> bytes:
    """Read a file; refuse another one than is meant, as after a publication that was killed."""
    data = path.read_bytes() if path.is_file() else None
    if data is None or hashlib.sha256(data).hexdigest() != digest:
        raise StoreError(
            f"expected published runs in {path} as they were written; got none, or another file; "
            f"remedy: git restore {path.parent}, or gradtricks publish"
        )
    return data
