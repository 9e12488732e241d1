"""The manifest of a published sweep: who made its runs, what they have in common, which files there are."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, StringConstraints

from gradtricks.lab.storage.records import inputs_digest
from gradtricks.lab.storage.troubles import StoreError

ENDING = ".json"
LABEL = "run"  # column: what the table calls a run
CASE = "case"  # column: what its configuration is called
INPUTS = "inputs"  # column: digest of what it used

_SHARED = (
    "schema_version",
    "stem",
    "name",
    "status",
    "figures",
)  # parts of a record that many runs have alike
# The order in which runs write the parts of a record, and those of its provenance.
_PARTS = (
    *("schema_version", "stem", "name", "title", "status", "parameters", "results", "varying", "figures"),
    *("files", "request", "provenance", "started", "inputs", "duration_s"),
)
_PROVENANCE = ("commit", "dirty", "python", "platform", "processor", "cores", "threads")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Used(_Strict):
    """What runs used.

    Attributes:
        files: Of the package, with their digests.
        versions: Of libraries.
    """

    files: dict[str, str | None] = {}
    versions: dict[str, str | None] = {}


class Kept(_Strict):
    """A file of a published sweep.

    Attributes:
        bytes: How large it is.
        sha256: Digest of what is in it.
        run: That kept it, as the table calls it; None for the table itself.
        name: That the run gave it.
    """

    bytes: int
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    run: str | None = None
    name: str | None = None


class Manifest(_Strict):
    """What is true of all runs of a published sweep.

    Attributes:
        title: Of the sweep.
        question: That it answers.
        notebook: That was run, seen from the manifest's folder.
        varied: Parameters that have several values.
        shown: Results to plot.
        runs: How many.
        started: When the first and the last of them were.
        same: What is the same in all their records.
        used: By all of them.
        used_besides: What else some used, by the digest of all that they used.
        files: By path, the table first.
    """

    title: str
    question: str
    notebook: str
    varied: tuple[str, ...]
    shown: tuple[str, ...]
    runs: int
    started: tuple[str, str]
    same: dict[str, Any]
    used: Used
    used_besides: dict[str, Used]
    files: dict[Annotated[str, StringConstraints(pattern=r"^[^/\x00]+(/[^/\x00.][^/\x00]*)?$")], Kept]

    @property
    def table(self) -> tuple[str, str]:
        """Path and digest of the table."""
        return next((path, kept.sha256) for path, kept in self.files.items() if kept.run is None)

    def text(self) -> bytes:
        """Write it as JSON, which `read_manifest` reads."""
        plain = self.model_dump(mode="json", exclude_none=True)
        # None is a value of what runs have in common.
        plain |= {"same": self.same, "used": self.used.model_dump()}
        plain["used_besides"] = {digest: used.model_dump() for digest, used in self.used_besides.items()}
        return json.dumps(plain, indent=1, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def manifests(root: Path) -> list[str]:
    """Name the sweeps that are published in a folder, sorted."""
    return sorted(path.name.removesuffix(ENDING) for path in root.glob(f"[!.]*{ENDING}"))


def read_manifest(root: Path, sweep: str) -> Manifest:
    """Read the manifest of a sweep; a StoreError says that somebody edited it."""
    path = root / f"{sweep}{ENDING}"
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
    """Say what is the same in all of some records: parts of a record."""
    same = _same([{part: each[part] for part in _SHARED if part in each} for each in records])
    same["provenance"] = _same([each["provenance"] for each in records])
    # Where files lie, the manifest says.
    return same | ({"files": {}} if all("files" in each for each in records) else {})


def used_by(records: Sequence[Mapping[str, Any]]) -> tuple[Used, dict[str, Used]]:
    """Say what runs used: what all did, and what each did besides, by the digest of all that it used."""
    inputs = {inputs_digest(each["inputs"]): each["inputs"] for each in records}
    everywhere = {part: _same([each[part] for each in inputs.values()]) for part in Used.model_fields}
    besides = {
        digest: {part: _without(each[part], everywhere[part]) for part in Used.model_fields}
        for digest, each in inputs.items()
    }
    return Used(**everywhere), {digest: Used(**each) for digest, each in besides.items()}


def row_of(record: Mapping[str, Any], same: Mapping[str, Any], label: str, case: str) -> dict[str, Any]:
    """Leave out of a record what the manifest says; add what run and configuration are called."""
    row: dict[str, Any] = {LABEL: label} | ({CASE: case} if case else {})
    row |= _without(record, dict.fromkeys(same))
    row["provenance"] = _without(record["provenance"], same["provenance"])
    return row | {INPUTS: inputs_digest(record["inputs"])}


def record_of(row: Mapping[str, Any], manifest: Manifest, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Undo `row_of`."""
    files = {
        kept.name: {"bytes": kept.bytes, "sha256": kept.sha256}
        for kept in manifest.files.values()
        if kept.run == row[LABEL]
    }
    provenance = _ordered(manifest.same["provenance"] | row.get("provenance", {}), _PROVENANCE)
    parts = manifest.same | _without(row, {LABEL: None, CASE: None}) | ({"files": files} if files else {})
    return _ordered(parts | {"provenance": provenance, "inputs": inputs[row[INPUTS]]}, _PARTS)


def inputs_of(manifest: Manifest) -> dict[str, dict[str, Any]]:
    """Say what the runs of a manifest used: the ``inputs`` of records, by digest."""
    used = manifest.used.model_dump()
    return {
        digest: {
            part: dict(sorted((used[part] | each).items())) for part, each in besides.model_dump().items()
        }
        for digest, besides in manifest.used_besides.items()
    }


def _same(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    texts = [{name: json.dumps(value) for name, value in each.items()} for each in parts]
    first, others = texts[0], texts[1:]  # as texts, 1 isn't 1.0
    return {
        name: parts[0][name] for name, text in first.items() if all(each.get(name) == text for each in others)
    }


def _without(parts: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: value for name, value in parts.items() if name not in set(names)}


def _ordered(parts: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: parts[name] for name in names if name in parts} | dict(parts)
