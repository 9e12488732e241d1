"""The manifest of a published sweep: who made its runs, what they have in common, which files there are."""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, StringConstraints

from gradtricks.lab.storage.places import MANIFEST, StoreError
from gradtricks.lab.storage.records import Inputs, KeptFile, Strict, inputs_digest

LABEL = "run"  # column: what the table calls a run
CASE = "case"  # column: what its configuration is called
INPUTS = "inputs"  # column: digest of what it used
LOCK = ".lock"  # held by who changes published runs

_LISTS = ("modules", "versions")  # of what a run computed with
_SHARED = ("schema_version", "stem", "name", "status", "figures")  # parts that many records have alike


class PublishedFile(KeptFile):
    """A file of a published sweep: its table, or what a run kept."""

    run: str | None = None  # as the table calls it
    name: str | None = None  # that the run gave it


class Witness(Strict):
    """What the notebook's quick run gave in a framework when its sweep was published."""

    parameters: dict[str, Any]  # as in a record
    results: str  # JSON, as in a record: a line, however long its lists are
    commit: str | None
    processor: str


class Manifest(Strict):
    """What is true of all runs of a published sweep."""

    title: str
    question: str
    notebook: str  # seen from the manifest's folder
    varied: tuple[str, ...]
    shown: tuple[str, ...]
    runs: int
    started: tuple[str, str]  # the first and the last of them
    same: dict[str, Any]  # in all their records
    used: Inputs  # by all of them
    used_besides: dict[str, Inputs]  # by some, by the digest of all that they used
    files: dict[
        Annotated[str, StringConstraints(pattern=r"^[^/\x00]+(/[^/\x00.][^/\x00]*)?$")], PublishedFile
    ]
    witnesses: dict[str, Witness] = Field(default_factory=dict)  # by backend, "" where the notebook has none

    @property
    def table(self) -> tuple[str, str]:
        """Path and digest of the table."""
        return next((path, kept.sha256) for path, kept in self.files.items() if kept.run is None)


def read_manifest(root: Path, sweep: str) -> Manifest:
    """Read the manifest of a sweep; a StoreError says that somebody edited it."""
    path = root / f"{sweep}{MANIFEST}"
    try:
        manifest = Manifest.model_validate_json(path.read_bytes())
        places = {path.split("/")[0] for path in manifest.files}
        if not places <= {sweep, manifest.table[0]}:
            raise ValueError(f"files in {', '.join(sorted(places))}")
    except (OSError, ValueError, StopIteration) as error:
        raise StoreError(
            f"expected the manifest of published runs in {path}; got another text: {error}; "
            f"remedy: git restore {path}, or gradtricks publish"
        ) from error
    return manifest


def shared(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Say which parts of some records are the same in all of them."""
    same = _same([{part: each[part] for part in _SHARED if part in each} for each in records])
    same["provenance"] = _same([each["provenance"] for each in records])
    # Where files lie, the manifest says.
    return same | ({"files": {}} if all("files" in each for each in records) else {})


def used_by(records: Sequence[Mapping[str, Any]]) -> tuple[Inputs, dict[str, Inputs]]:
    """Say what runs used: what all did, and what each did besides, by the digest of all that it used."""
    inputs = {inputs_digest(each["inputs"]): each["inputs"] for each in records}
    everywhere = {part: _same([each[part] for each in inputs.values()]) for part in _LISTS}
    besides = {
        digest: Inputs(**each | {part: _without(each[part], everywhere[part]) for part in _LISTS})
        for digest, each in inputs.items()
    }
    return Inputs(**everywhere, python=records[0]["inputs"]["python"]), besides


def inputs_of(manifest: Manifest) -> dict[str, dict[str, Any]]:
    """Undo `used_by`: say what runs used, by digest."""
    used = manifest.used.model_dump()
    return {
        digest: besides | {part: dict(sorted((used[part] | besides[part]).items())) for part in _LISTS}
        for digest, besides in ((digest, each.model_dump()) for digest, each in manifest.used_besides.items())
    }


def row_of(record: Mapping[str, Any], same: Mapping[str, Any], label: str, case: str) -> dict[str, Any]:
    """Leave out of a record what the manifest says; add what run and configuration are called."""
    row: dict[str, Any] = {LABEL: label} | ({CASE: case} if case else {}) | _without(record, same)
    row["provenance"] = _without(record["provenance"], same["provenance"])
    return row | {INPUTS: inputs_digest(record["inputs"])}


def record_of(
    row: Mapping[str, Any], manifest: Manifest, inputs: Mapping[str, Any], kept: Mapping[str, str]
) -> dict[str, Any]:
    """Undo `row_of`; ``kept`` are the paths of the run's files by name."""
    record = manifest.same | _without(row, (LABEL, CASE)) | {"inputs": inputs[row[INPUTS]]}
    record["provenance"] = manifest.same["provenance"] | row.get("provenance", {})
    if kept:
        about = {name: manifest.files[path] for name, path in kept.items()}
        record["files"] = {name: {"bytes": file.bytes, "sha256": file.sha256} for name, file in about.items()}
    return record


def _same(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    texts = [{(name, json.dumps(value)) for name, value in each.items()} for each in parts]
    same = {name for name, _ in set.intersection(*texts)}  # as texts, 1 isn't 1.0
    return {name: value for name, value in parts[0].items() if name in same}


def _without(parts: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in parts.items() if name not in names}


def digest_of(path: Path) -> str:
    """Digest a file: SHA-256 in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
