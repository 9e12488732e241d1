"""The manifest of a published sweep: what it asked, and the digest of its records."""

from pathlib import Path
from typing import Any

from pydantic import Field

from gradtricks.lab.storage.places import MANIFEST, StoreError
from gradtricks.lab.storage.records import Digest, Strict

CASE = "case"  # column: what a run's configuration is called
LOCK = ".lock"  # held by who changes published runs


class Witness(Strict):
    """Results of the notebook's quick run in a framework, of when its sweep was published."""

    parameters: dict[str, Any]  # as in a record
    results: str  # JSON, as in a record: a line, however long its lists are
    commit: str | None
    processor: str


class Manifest(Strict):
    """A published sweep: its question, and the digest of its records, which say all else."""

    title: str
    question: str
    notebook: str  # seen from the manifest's folder
    varied: tuple[str, ...]
    shown: tuple[str, ...]
    records: Digest  # of their file
    witnesses: dict[str, Witness] = Field(default_factory=dict)  # by backend, "" where the notebook has none


def read_manifest(root: Path, sweep: str) -> Manifest:
    """Read the manifest of a sweep; a StoreError says that somebody edited it."""
    path = root / f"{sweep}{MANIFEST}"
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise StoreError(
            f"expected the manifest of published runs in {path}; got another text: {error}; "
            f"remedy: git restore {path}, or gradtricks publish"
        ) from error
