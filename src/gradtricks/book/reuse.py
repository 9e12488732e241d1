"""Files that are made from the same as those that are there are read instead of made again."""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def made_once(marker: Path, made_from: Any, make: Callable[[], Mapping[Path, bytes]]) -> dict[Path, bytes]:
    """Return files as they lie there, or make them where they were made from something else or were touched.

    Args:
        marker: File in which it is noted what the others were made from and what came out.
        made_from: All that they depend on, as JSON can hold it.
        make: Makes the contents by path, in the marker's folder or beside that.

    Returns:
        Contents by path, with the marker's.
    """
    digest = _digest(json.dumps(made_from, sort_keys=True).encode())
    files = _unchanged(marker, digest)
    if files is None:
        files = dict(make())
    made = {path.relative_to(marker.parents[1]).as_posix(): _digest(data) for path, data in files.items()}
    note = json.dumps({"made_from": digest, "files": made}, indent=1)
    return {**files, marker: f"{note}\n".encode()}


def _unchanged(marker: Path, digest: str) -> dict[Path, bytes] | None:
    """Read the files that a marker names; None where anything isn't what it was."""
    try:
        note = json.loads(marker.read_text(encoding="utf-8"))
        if note["made_from"] != digest:
            return None
        files = {marker.parents[1] / name: (marker.parents[1] / name).read_bytes() for name in note["files"]}
        same = all(_digest(data) == was for data, was in zip(files.values(), note["files"].values()))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
    return files if same else None


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
