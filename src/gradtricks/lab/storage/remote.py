"""Runs at a URL, reached by fsspec."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from fsspec.core import url_to_fs
from fsspec.registry import get_filesystem_class

from gradtricks.lab.storage.folders import KEPT, LARGEST, RECORD, is_run

_FEW = 16  # folders that are listed one by one
_AT_ONCE = 256  # records that are fetched together
_PAUSES_S = (0, 1)  # before something is tried again
_Answer = TypeVar("_Answer")


class RemoteFolder:
    """A place that fsspec reaches by a URL; there, a record is written after all else.

    Passwords and keys belong into fsspec's configuration, or into the environment.
    """

    def __init__(self, location: str) -> None:
        self.location = location.rstrip("/")

    def subfolders(self, path: str = "") -> list[str]:
        """List the names of folders; nothing where there is no such folder."""
        return self._list(path, "directory")

    def names(self, path: str) -> list[str]:
        """List the names of files."""
        return self._list(path, "file")

    def read(self, path: str, largest: int = LARGEST) -> bytes | None:
        """Read a file; None where there is none, or one too large to be ours."""
        try:
            return self._do(partial(_read_remote, largest), path)
        except (FileNotFoundError, IsADirectoryError):
            return None

    def records(self, folders: Iterable[str]) -> Iterator[tuple[str, bytes | None]]:
        """Yield path and text of each record two levels below here, in the named folders."""
        wanted = dict.fromkeys(folders)
        # One long listing is faster than many short ones.
        found = [name for place in (wanted if len(wanted) <= _FEW else [""]) for name in self._find(place)]
        runs = sorted({"/".join(name.split("/")[-3:-1]) for name in found if name.endswith(f"/{RECORD}")})
        paths = [run for run in runs if is_run(run) and run.partition("/")[0] in wanted]
        for start in range(0, len(paths), _AT_ONCE):
            yield from self._do(partial(_read_all, paths[start : start + _AT_ONCE]))

    def write(self, path: str, data: bytes) -> None:
        """Write a file."""

        def write(files: Any, name: str) -> None:
            files.makedirs(name.rpartition("/")[0], exist_ok=True)
            files.pipe_file(name, data)

        self._do(write, path)

    def place(self, folder: Path, path: str) -> None:
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
        """Yield an empty folder of this machine; nothing can be claimed at a URL."""
        with TemporaryDirectory(prefix="gradtricks-") as folder:
            place = Path(folder, key)
            place.mkdir()
            yield place

    def claimed(self) -> set[str]:
        """Return nothing: nobody can tell what others are doing there."""
        return set()

    def checkpoints(self, claimed: Path) -> Path:
        """Name a folder of this machine that ends with the claim: two at once would share any other."""
        return claimed.with_name("checkpoints")

    def leftovers(self) -> list[str]:
        """List uploads that have no record; one that is going on looks the same."""
        return [
            f"{folder}/{name}"
            for folder in self.subfolders()
            for name in self.subfolders(folder)
            if is_run(f"{folder}/{name}") and RECORD not in self.names(f"{folder}/{name}")
        ]

    def _find(self, path: str) -> list[str]:
        return self._do(lambda files, folder: files.find(folder), path)

    def _list(self, path: str, kind: str) -> list[str]:
        try:
            entries = self._do(lambda files, folder: files.ls(folder, detail=True), path)
        except (FileNotFoundError, NotADirectoryError):
            return []
        names = (entry["name"].rstrip("/").rpartition("/")[2] for entry in entries if entry["type"] == kind)
        return sorted(names)

    def _do(self, action: Callable[[Any, str], _Answer], path: str = "") -> _Answer:
        """Do something that may be done twice: a connection that idled while a run went on may be gone."""
        for pause_s in _PAUSES_S:
            try:
                return action(*self._open(path))
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                raise
            except Exception:
                protocol = self.location.partition("://")[0].rpartition("::")[2]
                get_filesystem_class(protocol).clear_instance_cache()
                time.sleep(pause_s)
        return action(*self._open(path))

    def _open(self, path: str) -> tuple[Any, str]:
        # Asked for each time: a connection belongs to one thread of one process.
        files, root = url_to_fs(self.location)
        files.invalidate_cache()
        return files, f"{root.rstrip('/')}/{path}".rstrip("/")


def _read_remote(largest: int, files: Any, name: str) -> bytes | None:
    return None if files.size(name) > largest else files.cat_file(name)


def _remove_run(files: Any, folder: str) -> None:
    for name in sorted(files.find(folder), key=lambda name: not name.endswith(f"/{RECORD}")):
        with suppress(FileNotFoundError):  # somebody else has just deleted it
            files.rm_file(name)
    for empty in (f"{folder}/{KEPT}", folder, folder.rpartition("/")[0]):
        # It isn't there, other runs are in it, or this file system has no folders.
        with suppress(Exception):
            files.rmdir(empty)


def _read_all(paths: Iterable[str], files: Any, root: str) -> list[tuple[str, bytes]]:
    names = {path: f"{root}/{path}/{RECORD}" for path in paths}
    found = files.cat(list(names.values()), on_error="return")
    for name, text in found.items():
        # One odd thing in place of a record stops nobody; a connection that is gone does.
        if isinstance(text, Exception) and _is_file(files, name):
            raise text
    return [(path, found[name]) for path, name in names.items() if isinstance(found.get(name), bytes)]


def _is_file(files: Any, name: str) -> bool:
    try:
        return files.info(name)["type"] == "file"
    except FileNotFoundError:
        return False
