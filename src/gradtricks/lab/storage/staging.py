"""Several files at once: staged under their digests, meant by one manifest, and then moved to their names."""

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock

from gradtricks.lab.storage.folders import flush, replace
from gradtricks.lab.storage.manifests import manifests, read_manifest
from gradtricks.lab.storage.troubles import StoreError

_FOLDER = ".unfinished"
_DIGEST = re.compile(r"[0-9a-f]{64}")


@contextmanager
def alone(root: Path, *, timeout_s: float = -1) -> Iterator[Path]:
    """Keep other processes from publishing in a folder, and yield one for what isn't finished yet.

    It waits for whoever publishes, by default as long as that takes, else raises Timeout.
    """
    folder = root / _FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / "lock", timeout=timeout_s):
        yield folder


def staged(root: Path) -> list[Path]:
    """List the files that aren't at their names yet."""
    return [path for path in (root / _FOLDER).glob("*") if _DIGEST.fullmatch(path.name)]


def stage(path: Path) -> str:
    """Move a file in the folder that `alone` yielded to where it waits under its digest; return that."""
    digest = digest_of(path)
    flush(path)
    os.replace(path, path.with_name(digest))
    flush(path.parent)
    return digest


def put(root: Path, name: str, data: bytes) -> None:
    """Write a file in one step."""
    path = root / name
    path.parent.mkdir(exist_ok=True)
    replace(path, data, root / _FOLDER / "new")


def settle(root: Path) -> None:
    """Copy what is staged to where the manifests mean it, and delete what none means."""
    understood = True
    for sweep in manifests(root):
        try:
            files = read_manifest(root, sweep).files
        except StoreError:  # somebody edited it, and will hear of that who reads this sweep
            understood = False
            continue
        for name, kept in files.items():
            waiting = root / _FOLDER / kept.sha256
            if waiting.exists():
                put(root, name, waiting.read_bytes())
        for path in (root / sweep).glob("*"):
            if f"{sweep}/{path.name}" not in files and path.is_file():
                path.unlink()
    for path in staged(root) if understood else ():
        path.unlink()


def find(root: Path, name: str, digest: str) -> Path | None:
    """Find a file that a manifest means by path and digest, wherever it is by now; None where it is gone."""
    # It may be moved from the second place to the first one meanwhile.
    places = (root / name, root / _FOLDER / digest, root / name)
    return next((path for path in places if path.is_file() and digest_of(path) == digest), None)


def digest_of(path: Path) -> str:
    """Digest a file: SHA-256 in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
