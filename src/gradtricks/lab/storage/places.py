"""Where runs are kept: a folder, and what can go wrong there."""

import errno
import fcntl
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from stat import S_ISREG
from typing import TypeGuard

from filelock import FileLock, Timeout

RECORD = "record.json"
KEPT = "files"  # folder of what a run kept
_UNFINISHED = ".unfinished"  # folder of what isn't in its place yet
MANIFEST = ".json"  # how the manifest of a published sweep ends
RUN = re.compile(r"[^/.][^/]*-[0-9a-f]{12}/(?:[0-9a-f]{12}|failed)")  # all else there is nobody's business

_DIGEST = re.compile(r"[0-9a-f]{64}")
_TAKEN_AWAY = re.compile(RUN.pattern.replace("}/(", "}-("))
# A manifest's first two keys; enough to recognise one that was edited.
_MANIFEST = re.compile(rb'\{\s*"title":\s*"(?:[^"\\]|\\.)*",\s*"question":')
_CHECKPOINTS = ".checkpoints"
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO}


class Place:
    """A folder, made when it is first written to."""

    def __init__(self, location: str | Path) -> None:
        self._root = Path(location)

    def names(self, path: str = "", *, folders: bool = False) -> list[str]:
        """List the names of files, or of folders that aren't links; nothing where there is no such folder."""
        try:
            with os.scandir(f"{self._root}/{path}") as found:
                kept = (e for e in found if (e.is_dir(follow_symlinks=False) if folders else e.is_file()))
                return sorted(entry.name for entry in kept)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except PermissionError:
            if path:  # one folder that can't be read doesn't stop a scan
                return []
            raise

    def read(self, path: str) -> bytes | None:
        """Read a file; None where there is no ordinary one: a pipe there must not hold up a scan."""
        with suppress(OSError):  # there are thousands: to make a Path takes as long as to read it
            descriptor = os.open(f"{self._root}/{path}", os.O_RDONLY | os.O_NONBLOCK)
            try:
                about = os.fstat(descriptor)
                return os.read(descriptor, about.st_size) if S_ISREG(about.st_mode) else None
            finally:
                os.close(descriptor)
        return None

    def records(self, folders: Iterable[str]) -> Iterator[tuple[str, bytes | None]]:
        """Yield path and text of each record two levels below here, in the named folders."""
        for path in (f"{folder}/{name}" for folder in folders for name in self.names(folder, folders=True)):
            if RUN.fullmatch(path):
                text = self.read(f"{path}/{RECORD}")
                if text is not None or (self._root / path).exists():  # it may just have been replaced
                    yield path, text

    def write(self, path: str, data: bytes) -> None:
        """Write a file in one step."""
        target = self._root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        replace(target, data)

    def put(self, folder: Path, path: str) -> None:
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
                lock.unlink(missing_ok=True)  # a process that waits for it notices, and makes a new one

    def claimed(self) -> set[str]:
        """List the keys that processes have claimed now."""
        locks = (self._root / _UNFINISHED).glob("*.lock")
        return {lock.stem for lock in locks if _is_locked(lock)}

    def leftovers(self) -> list[str]:
        """List what killed processes left behind, and checkpoints: a claim ends with its process."""
        left = {path.name.removesuffix(".lock") for path in (self._root / _UNFINISHED).glob("*")}
        found = {
            _UNFINISHED: {name for name in left if _DIGEST.fullmatch(name) or _TAKEN_AWAY.fullmatch(name)},
            _CHECKPOINTS: set(filter(_DIGEST.fullmatch, self.names(_CHECKPOINTS, folders=True))),
        }
        claimed = self.claimed()
        return [f"{folder}/{key}" for folder, keys in found.items() for key in sorted(keys - claimed)]

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


def manifests(root: Path) -> list[str]:
    """Name the sweeps that are published in a folder, sorted."""
    return sorted(path.name.removesuffix(MANIFEST) for path in root.glob(f"[!.]*{MANIFEST}"))


def is_published(location: str | Path) -> bool:
    """Say whether runs are published in a folder: whether there is a manifest, as others' JSON isn't one."""
    texts = (Place(location).read(f"{sweep}{MANIFEST}") for sweep in manifests(Path(location)))
    return any(text and _MANIFEST.search(text) for text in texts)


def checkpoints_of(claimed: Path) -> Path:
    """Name the folder in which a run that is claimed finds what its last attempt left."""
    return (claimed.parents[1] / _CHECKPOINTS / claimed.name).absolute()


def replace(path: Path, data: bytes) -> None:
    """Write a file in one step: first beside its place, on the same disk."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
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
    except (
        FileNotFoundError,
        PermissionError,
    ):  # another user's; who claims it too hears of it
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


class StoreError(RuntimeError):
    """The store can't be written to, or doesn't hold what was asked for."""


def is_trouble(error: BaseException, folder: Path) -> TypeGuard[OSError]:
    """Say whether an error means that files can't be written to a folder: the disk, not what was run."""
    if not isinstance(error, OSError) or error.errno not in _DISK:
        return False
    # What can't be written to says no name: only what can't be opened does.
    return error.filename is None or Path(str(error.filename)).is_relative_to(folder)


@contextmanager
def explained(location: str) -> Iterator[None]:
    """Turn errors of reading and writing into a StoreError that names the store."""
    try:
        yield
    except OSError as error:
        raise trouble(location, error) from error


def trouble(location: str, error: OSError) -> StoreError:
    """Say what is wrong with a store, in an error that names it."""
    remedy = "see that it can be reached, and run again"
    if error.errno in _DISK:
        remedy = "free some space, make it writable, or choose another store"
    reason = error.strerror or repr(error)
    return StoreError(f"expected a store to read and write at {location}; got: {reason}; remedy: {remedy}")
