"""Where runs are kept that lie at a URL."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from fsspec.core import url_to_fs
from fsspec.registry import get_filesystem_class

from gradtricks.lab.storage.places import KEPT, RECORD, RUN, LocalPlace

_FEW = 16  # folders that are listed one by one
_AT_ONCE = 256  # records that are fetched together
_PAUSES_S = (0, 1)  # before something is tried again
_Answer = TypeVar("_Answer")


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
        paths = [run for run in runs if RUN.fullmatch(run) and run.partition("/")[0] in wanted]
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
        return [path for path in paths if RUN.fullmatch(path) and RECORD not in self.names(path)]

    def _do(self, action: Callable[[Any, str], _Answer], path: str = "") -> _Answer:
        """Do something that may be done twice: a connection that idled while a run went on may be gone."""

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
