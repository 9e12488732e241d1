"""Runs in a folder of this machine."""

import fcntl
import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from filelock import FileLock, Timeout

from gradtricks.lab.storage.troubles import is_url

if TYPE_CHECKING:
    from gradtricks.lab.storage.remote import RemoteFolder

RECORD = "record.json"
KEPT = "files"  # folder of what a run kept
LARGEST = 64 << 20  # bytes of a record that are read; a larger one isn't ours

_UNFINISHED = ".unfinished"
_CHECKPOINTS = ".checkpoints"
_RUN = re.compile(r"[^/.][^/]*-[0-9a-f]{12}/(?:[0-9a-f]{12}|failed)")


def folder_at(location: str) -> "LocalFolder | RemoteFolder":
    """Return the files at a location, a path or a URL that fsspec knows."""
    if is_url(location):
        from gradtricks.lab.storage.remote import RemoteFolder

        return RemoteFolder(location)
    return LocalFolder(unquote(urlsplit(location).path) if location.startswith("file://") else location)


class LocalFolder:
    """A folder of this machine, made when it is first written to."""

    def __init__(self, location: str) -> None:
        self.location = location
        self._root = Path(location)

    def subfolders(self, path: str = "") -> list[str]:
        """List the names of folders, links not followed; nothing where there is no such folder."""
        try:
            with os.scandir(self._root / path) as entries:
                return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except PermissionError:
            if path:  # one folder that can't be read doesn't stop a scan
                return []
            raise

    def read(self, path: str, largest: int = LARGEST) -> bytes | None:
        """Read a file; None where there is no ordinary one, or one too large to be ours."""
        try:
            # A pipe that somebody put here must not hold up the scan.
            descriptor = os.open(self._root / path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            status = os.fstat(descriptor)
            ours = stat.S_ISREG(status.st_mode) and status.st_size <= largest
            return os.read(descriptor, status.st_size) if ours else None
        finally:
            os.close(descriptor)

    def records(self, folders: Iterable[str]) -> Iterator[tuple[str, bytes | None]]:
        """Yield path and text of each record two levels below here, in the named folders."""
        for folder in folders:
            for name in self.subfolders(folder):
                path = f"{folder}/{name}"
                if not is_run(path):
                    continue
                text = self.read(f"{path}/{RECORD}")
                if text is not None or (self._root / path).exists():  # it may just have been replaced
                    yield path, text

    def names(self, path: str) -> list[str]:
        """List the names of files."""
        folder = self._root / path
        return sorted(entry.name for entry in folder.iterdir() if entry.is_file()) if folder.is_dir() else []

    def write(self, path: str, data: bytes) -> None:
        """Write a file in one step."""
        target = self._root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        replace(target, data, target.with_name(f".{target.name}.{os.getpid()}"))

    def place(self, folder: Path, path: str) -> None:
        """Move a folder with a record to where it belongs, in one step, instead of what may be there."""
        target = self._root / path
        for file in (*folder.rglob("*"), folder):
            flush(file)
        target.parent.mkdir(parents=True, exist_ok=True)
        self._take_away(path)
        folder.rename(target)
        flush(target.parent)
        flush(self._root)

    def remove(self, path: str) -> None:
        """Delete a run's folder."""
        self._take_away(path)
        with suppress(OSError):  # other runs are beside it
            (self._root / path).parent.rmdir()

    @contextmanager
    def claim(self, key: str) -> Iterator[Path]:
        """Wait until nobody else has the key; then yield an empty folder, which is deleted at the end."""
        unfinished = self._root / _UNFINISHED
        unfinished.mkdir(parents=True, exist_ok=True)
        for path in self.leftovers():
            if path.startswith(_UNFINISHED):
                self.discard(path)
        folder, lock = unfinished / key, unfinished / f"{key}.lock"
        with FileLock(lock):
            _delete(folder)
            folder.mkdir()
            try:
                yield folder
            finally:
                _delete(folder)
                lock.unlink(missing_ok=True)  # whoever waits for it notices, and makes a new one

    def claimed(self) -> set[str]:
        """List the keys that processes have claimed now."""
        locks = (self._root / _UNFINISHED).glob("*.lock")
        return {lock.stem for lock in locks if _is_locked(lock)}

    def checkpoints(self, claimed: Path) -> Path:
        """Name the folder in which a run that is claimed finds what its last attempt left."""
        return (self._root / _CHECKPOINTS / claimed.name).absolute()

    def leftovers(self) -> list[str]:
        """List what killed processes left behind, and checkpoints: a claim ends with its process."""
        left = {path.name.removesuffix(".lock") for path in (self._root / _UNFINISHED).glob("*")}
        found = [(_UNFINISHED, left), (_CHECKPOINTS, set(self.subfolders(_CHECKPOINTS)))]
        claimed = self.claimed()
        return [f"{folder}/{key}" for folder, keys in found for key in sorted(keys - claimed)]

    def discard(self, path: str) -> None:
        """Delete something that was left behind, unless it has just been claimed again."""
        lock = self._root / _UNFINISHED / f"{Path(path).name}.lock"
        with suppress(Timeout, PermissionError), FileLock(lock, timeout=0):  # or it is another user's
            _delete(self._root / path)
            lock.unlink(missing_ok=True)

    def _take_away(self, path: str) -> None:
        """Delete a folder in one step, as far as others can see."""
        there, away = self._root / path, self._root / _UNFINISHED / path.replace("/", "-")
        if there.is_dir():
            away.parent.mkdir(exist_ok=True)
            _delete(away)
            with suppress(FileNotFoundError):  # somebody else has just done the same
                there.rename(away)
            _delete(away)


def is_run(path: str) -> bool:
    """Say whether a folder of a store is named as a run's: whatever else lies there is nobody's business."""
    return _RUN.fullmatch(path) is not None


def replace(path: Path, data: bytes, beside: Path) -> None:
    """Write a file in one step: first beside its place, on the same disk."""
    try:
        beside.write_bytes(data)
        flush(beside)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
    flush(path.parent)


def flush(path: Path) -> None:
    """Have a file or a folder on the disk before going on."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _delete(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def _is_locked(lock: Path) -> bool:
    """Look whether a process holds a lock, without keeping others from it."""
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError):  # another user's; whoever claims it too will hear of that
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
