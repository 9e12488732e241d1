"""The run store: a folder for each request, in it a folder for each finished run and for the last failure."""

import json
import re
import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from gradtricks.lab.identity import Installed
from gradtricks.lab.storage.places import (
    RECORD,
    Place,
    StoreError,
    checkpoints_of,
    explained,
    is_published,
)
from gradtricks.lab.storage.records import (
    FAILED,
    IN_NAME,
    LISTED,
    LONGEST_TITLE,
    StoredRun,
    folder_name,
    inputs_digest,
    only_one,
    path_of,
    read_record,
    write_record,
)

__all__ = ["Planned", "RecordWarning", "Requested", "Store", "StoreError", "StoredRun"]

_SWEEPS = ".sweeps"
# Of a sweep: a title, behind which a digest may stand.
_NAME = re.compile(rf"[A-Za-z0-9_=,+-][A-Za-z0-9_.=,+-]{{0,{LONGEST_TITLE + 8}}}")


class RecordWarning(UserWarning):
    """Records that were torn or edited by hand: they are left out."""


@dataclass(frozen=True, kw_only=True)
class Requested:
    """A run that is asked for."""

    request: str  # digest of what is asked for
    title: str  # what people call it


@dataclass(frozen=True)
class Planned(Requested):
    """A run as a store's plan of a sweep names it."""

    place: str = ""  # where the plan means the run that lies there and no other
    case: str = ""  # what its configuration is called, where it has a name


class Store:
    """Runs, found again by what was asked (notebook, parameters, threads) and by what they then used.

    When a module that a run read means something else now, or the version of a library that it used has
    changed, it counts as not run. Records that were torn or edited by hand aren't believed.

    Args:
        location: A folder, made when it is first written to.
    """

    def __init__(self, location: str | Path) -> None:
        self.location = str(location)
        if not self.location:
            raise StoreError("expected a store's folder; got nothing; remedy: leave out --store")
        if "://" in self.location:
            raise StoreError(
                f"expected a store's folder; got a URL, {self.location.partition('://')[0]}://…; "
                "remedy: a folder that all machines see, such as a bucket that is mounted"
            )
        self._place = Place(self.location)

    def find(self, run: Requested) -> StoredRun | None:
        """Find a finished run that is still valid."""
        return self.find_all([run]).get(run.request)

    def failure(self, run: Requested) -> StoredRun | None:
        """Find the last failure of a run, unless what may have been its reason has changed since."""
        return self.find_all([run], "failed").get(run.request)

    def find_all(self, runs: Iterable[Requested], status: str = "finished") -> dict[str, StoredRun]:
        """Find many runs that are still valid, finished or "failed", by their request."""
        wanted = {folder_name(run.title, run.request): run.request for run in runs}
        there = set(self._requests()) if len(wanted) > 1 else wanted.keys()
        installed = Installed()
        return {
            stored.request: stored
            for path, stored in self._read(name for name in wanted if name in there)
            if stored
            and stored.status == status
            and stored.request == wanted[path.partition("/")[0]]
            and installed.matches(stored.record["inputs"])
        }

    def runs(self, stem: str | None = None) -> Iterator[StoredRun]:
        """Yield all runs by title, finished and failed, valid or not, or those of the notebook ``stem``.

        Of records that can't be believed it warns.
        """
        names = self._requests()
        if stem and len(stem) <= LONGEST_TITLE and _NAME.fullmatch(stem):  # then a title begins with it
            names = [name for name in names if name.startswith(stem)]
        damaged = []
        for path, stored in self._read(names):
            if stored is None:
                damaged.append(path)
            elif stem is None or stored.record["stem"] == stem:
                yield stored
        if damaged:
            listed = ", ".join(damaged[:LISTED]) + (", …" if len(damaged) > LISTED else "")
            warnings.warn(
                f"expected whole records in {self.location}; got {len(damaged)} torn, edited or of another "
                f"version of the lab, which are left out: {listed}; remedy: gradtricks clean",
                RecordWarning,
                stacklevel=2,
            )

    def lookup(self, text: str) -> StoredRun:
        """Find the one run that a text means: a title or its beginning, or a path.

        Of several with the same request it is the valid one, else the newest. A StoreError says that there is
        none, or that several are meant.
        """
        if "/" in text or Path(text).is_dir():
            location = re.sub(r"/(record\.json|notebook\.ipynb)?$", "", text)
            with explained(location):
                record = read_record(Place(location).read(RECORD))
            if record:
                return StoredRun(location, record)
        return only_one(text, self._requests(), self._runs_for, self.location)

    @contextmanager
    def claim(self, run: Requested) -> Iterator[Path]:
        """Claim a run that is to be done, and wait while another process of this machine has it.

        Yields an empty folder of this machine to write it in; what is left of it at the end is deleted.
        """
        folder_name(run.title, run.request)  # refuses what would leave the store
        with ExitStack() as stack:
            with explained(self.location):
                folder = stack.enter_context(self._place.claim(run.request))
            yield folder  # what goes wrong in there isn't the store's trouble

    def commit(self, folder: Path, record: Mapping[str, Any], *, instead: bool = False) -> StoredRun:
        """Put a finished run in its place, in one step; the folder from `claim` has all but its record.

        Where the same one is finished already, as by another process meanwhile, that one stays and is
        returned, unless this one is to be there ``instead``.
        """
        path = path_of(record)
        with explained(self.location):
            there = None if instead else self._believed(path, self._place.read(f"{path}/{RECORD}"), {})
            stored = there or self._put(folder, record)
        shutil.rmtree(checkpoints_of(folder), ignore_errors=True)
        return stored

    def keep_failure(self, folder: Path, record: Mapping[str, Any]) -> StoredRun:
        """Keep a failed run, instead of an older failure of the same one."""
        with explained(self.location):
            return self._put(folder, record)

    def claimed(self) -> set[str]:
        """List the requests that processes of this machine are running now."""
        with explained(self.location):
            return self._place.claimed()

    def write_plan(self, name: str, plan: Mapping[str, Any]) -> None:
        """Keep the plan of a sweep, instead of an older one; refuse a name that could leave the store."""
        if not _NAME.fullmatch(name):
            raise StoreError(f"expected a sweep's name of letters, digits and _.=,+-; got {name!r}")
        text = json.dumps(plan, indent=1, ensure_ascii=False, allow_nan=False)
        with explained(self.location):
            self._place.write(f"{_SWEEPS}/{name}.json", text.encode() + b"\n")

    def plans(self) -> list[str]:
        """Name the sweeps whose plans are kept, sorted."""
        with explained(self.location):
            files = self._place.names(_SWEEPS)
        return sorted(file.removesuffix(".json") for file in files if file.endswith(".json"))

    def plan(self, sweep: str) -> Any:
        """Read the plan of a sweep, whatever somebody made of it since; None where it can't be read."""
        with explained(self.location), suppress(ValueError):
            return from_json(self._place.read(f"{_SWEEPS}/{sweep}.json") or b"")
        return None

    def clean(self, *, failed: bool = False, stale: bool = False, dry_run: bool = False) -> list[str]:
        """Delete what killed processes left behind, records that can't be believed, and what is asked for.

        Checkpoints go too: a run that was killed or failed then begins anew. Nothing that is running now is
        touched.

        Args:
            failed: Delete the failed runs too.
            stale: Delete the runs too whose inputs have changed since.
            dry_run: Delete nothing.

        Returns:
            What was deleted, or would be.
        """
        installed = Installed()
        with explained(self.location):
            gone = self._place.leftovers()
            for path in () if dry_run else gone:
                self._place.discard(path)
            for path, stored in self._read(self._requests()):
                wanted = (
                    stored is None
                    or (failed and stored.status == "failed")
                    or (stale and not installed.matches(stored.record["inputs"]))
                )
                digits = path.partition("/")[0][-IN_NAME:]
                if wanted and not any(request.startswith(digits) for request in self.claimed()):
                    gone.append(path)
                    if not dry_run:
                        self._place.remove(path)
        return [f"{self.location}/{path}" for path in gone]

    def _requests(self) -> list[str]:
        with explained(self.location):
            return [name for name in self._place.names(folders=True) if not name.startswith(".")]

    def _read(self, names: Iterable[str]) -> Iterator[tuple[str, StoredRun | None]]:
        known: dict[str, dict[str, Any]] = {}
        with explained(self.location):
            for path, text in self._place.records(names):
                yield path, self._believed(path, text, known)

    def _believed(self, path: str, text: bytes | None, known: dict[str, dict[str, Any]]) -> StoredRun | None:
        """Take a text for a record if it is a whole one that belongs here; inputs are known by digest."""
        name = path.rpartition("/")[2]
        record = read_record(text, known.get(name))
        if record is None:
            return None
        digest = name if record["inputs"] is known.get(name) else inputs_digest(record["inputs"])
        if path_of(record, digest) != path:
            return None
        known[digest] = record["inputs"]
        return self._stored(path, record)

    def _runs_for(self, request: str) -> list[StoredRun]:
        return [stored for _, stored in self._read([request]) if stored]

    def _stored(self, path: str, record: dict[str, Any]) -> StoredRun:
        return StoredRun(f"{self.location.rstrip('/')}/{path}", record)

    def _put(self, folder: Path, record: Mapping[str, Any]) -> StoredRun:
        text, path = write_record(record), path_of(record)
        (folder / RECORD).write_bytes(text)
        if record["status"] == "finished":
            self._place.remove(f"{path.partition('/')[0]}/{FAILED}")
        self._place.put(folder, path)
        return self._stored(path, from_json(text))


def store_of_runs(location: str | Path) -> Store:
    """Open a store to be written to; a StoreError refuses published runs, and folders among them."""
    if any(map(is_published, (location, Path(location).resolve().parent))):
        raise StoreError(
            f"expected a store of runs; got published ones in {location}, which nothing but "
            "gradtricks publish changes; remedy: leave out --store"
        )
    return Store(location)
