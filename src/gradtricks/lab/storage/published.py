"""Published runs, kept with the sources: for each sweep a table, a manifest, and the files that runs kept."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbformat import NotebookNode

from gradtricks.lab.notebooks.schema import read_notebook
from gradtricks.lab.storage.manifests import (
    CASE,
    LABEL,
    Manifest,
    digest_of,
    inputs_of,
    read_manifest,
    record_of,
)
from gradtricks.lab.storage.places import MANIFEST, StoreError, is_published, manifests
from gradtricks.lab.storage.records import StoredRun, folder_name, inputs_digest, only_one
from gradtricks.lab.storage.rows import read_rows
from gradtricks.lab.storage.store import Planned, Requested


@dataclass(frozen=True)
class PublishedRun(StoredRun):
    """A published run. Its executed notebook isn't kept."""

    notebook: Path  # that was run, as it may be now
    case: str  # what its configuration is called; empty where it has no name
    kept: Mapping[str, str]  # paths of its files, seen from the folder of manifests, by name

    @property
    def executed(self) -> bool:
        """Its executed notebook isn't kept."""
        return False

    @property
    def label(self) -> str:
        """What the table calls it."""
        return Path(self.location).name

    @property
    def place(self) -> str:
        """Where it lies in the folder of manifests, such as ``pong/torch-140``."""
        return "/".join(Path(self.location).parts[-2:])

    def read_notebook(self) -> NotebookNode:
        """Read the notebook as it is now, not executed."""
        return read_notebook(self.notebook)

    def _read_kept(self, name: str) -> bytes | None:
        path = Path(self.location).parents[1] / self.kept[name]
        return _checked(path, self.files[name]["sha256"]).read_bytes()


class Published:
    """The published runs in a folder, for whoever reads a store: they count whatever has changed since."""

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
        if name not in manifests(self._root):
            raise KeyError(name)
        return self._read([name])[0]

    def runs(self, stem: str | None = None) -> Iterator[PublishedRun]:
        """Yield all runs, or those of one notebook, each once even if several sweeps have it."""
        runs = [run for _, some in self._read(manifests(self._root)) for run in some]
        for run in {(run.request, inputs_digest(run.record["inputs"])): run for run in runs}.values():
            if stem in (None, run.record["stem"]):
                yield run

    def find_all(self, runs: Iterable[Requested], status: str = "finished") -> dict[str, StoredRun]:
        """Find runs of a plan that are there, by their request; only what has finished is published."""
        planned = (run for run in runs if isinstance(run, Planned) and status == "finished")
        places = {run.place for run in planned}
        sweeps = {place.partition("/")[0] for place in places} & set(manifests(self._root))
        found = (run for _, some in self._read(sorted(sweeps)) for run in some)
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

    def _read(self, sweeps: Sequence[str]) -> list[tuple[Manifest, list[PublishedRun]]]:
        new = {sweep: read_manifest(self._root, sweep) for sweep in sweeps if sweep not in self._known}
        tables = [_checked(self._root / path, digest) for path, digest in (m.table for m in new.values())]
        try:
            found = read_rows(tables)
            for (sweep, manifest), rows in zip(new.items(), found, strict=True):
                self._known[sweep] = manifest, runs_in(self._root, sweep, manifest, rows)
        except (ValueError, KeyError) as error:
            raise _edited(self._root / f"{', '.join(new)}{MANIFEST}", error) from error
        return [self._known[sweep] for sweep in sweeps]


def published_at(path: str) -> PublishedRun | None:
    """Find the published run that a path means, or that kept the file there; None where it means none."""
    place = Path(path).resolve()
    root, sweep = place.parent.parent, place.parent.name
    if sweep not in manifests(root) or not is_published(root):
        return None
    runs, meant = Published(root).sweep(sweep)[1], f"{sweep}/{place.name}"
    return next((run for run in runs if meant in (run.place, *run.kept.values())), None)


def runs_in(root: Path, sweep: str, manifest: Manifest, rows: Iterable[dict[str, Any]]) -> list[PublishedRun]:
    """Make runs of the rows of a table; a KeyError says that they are another table's."""
    inputs = inputs_of(manifest)
    kept: dict[str | None, dict[str, str]] = {}
    for path, file in manifest.files.items():
        kept.setdefault(file.run, {})[str(file.name)] = path
    return [
        PublishedRun(
            location=f"{root}/{sweep}/{row[LABEL]}",
            record=record_of(row, manifest, inputs, kept.get(row[LABEL], {})),
            notebook=Path(os.path.normpath(root / manifest.notebook)),
            case=row.get(CASE, ""),
            kept=kept.get(row[LABEL], {}),
        )
        for row in rows
    ]


def _checked(path: Path, digest: str) -> Path:
    """Refuse a file that isn't what a manifest means, as where whoever published was killed meanwhile."""
    if not path.is_file() or digest_of(path) != digest:
        raise _edited(path, "none, or another file")
    return path


def _edited(path: Path, got: object) -> StoreError:
    return StoreError(
        f"expected published runs in {path} as they were written; got {got}; "
        f"remedy: git restore {path.parent}, or gradtricks publish"
    )
