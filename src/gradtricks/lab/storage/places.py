"""Where runs are kept: a folder of this machine, or a URL that fsspec knows."""

import fcntl
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from filelock import FileLock, Timeout

from gradtricks.lab.storage.troubles import is_url

RECORD = "record.json"
KEPT = "files"  # folder of what a run kept

_UNFINISHED = ".unfinished"
_CHECKPOINTS = ".checkpoints"
_RUN = re.compile(r"[^/.][^/]*-[0-9a-f]{12}/(?:[0-9a-f]{12}|failed)")  # all else there is nobody's business
_FEW = 16  # folders at a URL that are listed one by one
_AT_ONCE = 256  # records at a URL that are fetched together
_PAUSES_S = (0, 1)  # before something is tried again
_Answer = TypeVar("_Answer")


def place_at(location: str) -> "LocalPlace | RemotePlace":
    """Return the files at a location, a path or a URL that fsspec knows."""
    return RemotePlace(location) if is_url(location) else LocalPlace(location.removeprefix("file://"))


class LocalPlace:
    """A folder, made when it is first written to."""

    def __init__(self, location: str) -> None:
        self._root = Path(location)

    def names(self, path: str = "", *, folders: bool = False) -> list[str]:
        """List the names of files, or of folders that aren't links; nothing where there is no such folder."""
        try:
            with os.scandir(self._root / path) as found:
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
        file = self._root / path
        with suppress(OSError):
            return file.read_bytes() if file.is_file() else None
        return None

    def records(self, folders: Iterable[str]) -> Iterator[tuple[str, bytes | None]]:
        """Yield path and text of each record two levels below here, in the named folders."""
        for path in (f"{folder}/{name}" for folder in folders for name in self.names(folder, folders=True)):
            if _RUN.fullmatch(path):
                text = self.read(f"{path}/{RECORD}")
                if text is not None or (self._root / path).exists():  # it may just have been replaced
                    yield path, text

    def write(self, path: str, data: bytes) -> None:
        """Write a file in one step."""
        target = self._root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        replace(target, data, target.with_name(f".{target.name}.{os.getpid()}"))

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
                lock.unlink(missing_ok=True)  # whoever waits for it notices, and makes a new one

    def claimed(self) -> set[str]:
        """List the keys that processes have claimed now."""
        locks = (self._root / _UNFINISHED).glob("*.lock")
        return {lock.stem for lock in locks if _is_locked(lock)}

    def leftovers(self) -> list[str]:
        """List what killed processes left behind, and checkpoints: a claim ends with its process."""
        left = {path.name.removesuffix(".lock") for path in (self._root / _UNFINISHED).glob("*")}
        found = {_UNFINISHED: left, _CHECKPOINTS: set(self.names(_CHECKPOINTS, folders=True))}
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


class RemotePlace:
    """What fsspec reaches by a URL; there, a record is written after all else, and nothing can be claimed.

    Passwords and keys belong into fsspec's configuration, or into the environment.
    """

    def __init__(self, location: str) -> None:
        self._location = location.rstrip("/")

    def names(self, path: str = "", *, folders: bool = False) -> list[str]:
        """List the names of files, or of folders; nothing where there is no such folder."""
        try:
            found = self._do(lambda files, folder: files.ls(folder, detail=True), path)
        except (FileNotFoundError, NotADirectoryError):
            return []
        kind = "directory" if folders else "file"
        return sorted(each["name"].rstrip("/").rpartition("/")[2] for each in found if each["type"] == kind)

    def read(self, path: str) -> bytes | None:
        """Read a file; None where there is none."""
        with suppress(FileNotFoundError, IsADirectoryError):
            return self._do(lambda files, name: files.cat_file(name), path)
        return None

    def records(self, folders: Iterable[str]) -> Iterator[tuple[str, bytes | None]]:
        """Yield path and text of each record two levels below here, in the named folders."""
        wanted = dict.fromkeys(folders)
        listed = wanted if len(wanted) <= _FEW else [""]  # one long listing is faster than many short ones
        found = [name for each in listed for name in self._do(lambda files, place: files.find(place), each)]
        runs = sorted({"/".join(name.split("/")[-3:-1]) for name in found if name.endswith(f"/{RECORD}")})
        paths = [run for run in runs if _RUN.fullmatch(run) and run.partition("/")[0] in wanted]
        for start in range(0, len(paths), _AT_ONCE):
            yield from self._do(partial(_read_all, paths[start : start + _AT_ONCE]))

    def write(self, path: str, data: bytes) -> None:
        """Write a file."""
        self._do(partial(_write, data), path)

    def put(self, folder: Path, path: str) -> None:
        """Upload a folder, its record last."""
        self.remove(path)
        files = (file for file in folder.rglob("*") if file.is_file())
        for file in sorted(files, key=lambda file: file == folder / RECORD):
            self.write(f"{path}/{file.relative_to(folder).as_posix()}", file.read_bytes())

    def remove(self, path: str) -> None:
        """Delete a run's folder, its record first: what is half deleted isn't believed."""
        self._do(_remove_run, path)

    discard = remove

    @contextmanager
    def claim(self, key: str) -> Iterator[Path]:
        """Yield an empty folder of this machine."""
        with TemporaryDirectory(prefix="gradtricks-") as own, LocalPlace(own).claim(key) as folder:
            yield folder

    def claimed(self) -> set[str]:
        """Return nothing: nobody can tell what others are doing there."""
        return set()

    def leftovers(self) -> list[str]:
        """List uploads that have no record; one that is going on looks the same."""
        requests = self.names(folders=True)
        paths = (f"{each}/{name}" for each in requests for name in self.names(each, folders=True))
        return [path for path in paths if _RUN.fullmatch(path) and RECORD not in self.names(path)]

    def _do(self, action: Callable[[Any, str], _Answer], path: str = "") -> _Answer:
        """Do something that may be done twice: a connection that idled while a run went on may be gone."""
        from fsspec.core import url_to_fs  # slow to import
        from fsspec.registry import get_filesystem_class

        def act() -> _Answer:
            # Asked for each time: a connection belongs to one thread of one process.
            files, root = url_to_fs(self._location)
            files.invalidate_cache()
            return action(files, f"{root.rstrip('/')}/{path}".rstrip("/"))

        for pause_s in _PAUSES_S:
            try:
                return act()
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                raise
            except Exception:
                protocol = self._location.partition("://")[0].rpartition("::")[2]
                get_filesystem_class(protocol).clear_instance_cache()
                time.sleep(pause_s)
        return act()


def checkpoints_of(claimed: Path) -> Path:
    """Name the folder in which a run that is claimed finds what its last attempt left; none at a URL."""
    return (claimed.parents[1] / _CHECKPOINTS / claimed.name).absolute()


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


def _write(data: bytes, files: Any, name: str) -> None:
    files.makedirs(name.rpartition("/")[0], exist_ok=True)
    files.pipe_file(name, data)


def _remove_run(files: Any, folder: str) -> None:
    for name in sorted(files.find(folder), key=lambda name: not name.endswith(f"/{RECORD}")):
        with suppress(FileNotFoundError):  # somebody else has just deleted it
            files.rm_file(name)
    for empty in (f"{folder}/{KEPT}", folder, folder.rpartition("/")[0]):
        with suppress(Exception):  # it isn't there, other runs are in it, or there are no folders
            files.rmdir(empty)


def _read_all(paths: Iterable[str], files: Any, root: str) -> list[tuple[str, bytes]]:
    names = {path: f"{root}/{path}/{RECORD}" for path in paths}
    found = files.cat(list(names.values()), on_error="return")
    for name, text in found.items():
        # One odd thing in place of a record stops nobody; a connection that is gone does.
        with suppress(FileNotFoundError):
            if isinstance(text, Exception) and files.info(name)["type"] == "file":
                raise text
    return [(path, found[name]) for path, name in names.items() if isinstance(found.get(name), bytes)]
