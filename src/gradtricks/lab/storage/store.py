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

from gradtricks.lab.storage.folders import RECORD, folder_at
from gradtricks.lab.storage.lookups import only_one, run_at
from gradtricks.lab.storage.records import (
    LONGEST_TITLE,
    Installed,
    StoredRun,
    folder_name,
    inputs_digest,
    path_of,
    read_record,
    write_record,
)
from gradtricks.lab.storage.troubles import StoreError, explained, is_url, public

__all__ = ["RecordWarning", "Requested", "Store", "StoreError", "StoredRun"]

_FAILED = "failed"
_SWEEPS = ".sweeps"
_SWEEP_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.=,+-]{0,99}")
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.=,+-]*")
_LISTED = 5  # damaged records


class RecordWarning(UserWarning):
    """Records that were torn or edited by hand: they are left out."""


@dataclass(frozen=True, kw_only=True)
class Requested:
    """A run that is asked for, as the plan of a sweep names it."""

    request: str  # digest of what is asked for
    title: str  # what people call it
    place: str = ""  # where the plan means the run that lies there and no other
    case: str = ""  # what its configuration is called, where it has a name


class Store:
    """Runs, found again by what was asked (notebook, parameters, threads) and by what they then used.

    When a file of the package that a run imported has changed since, or the version of a library, it counts
    as not run. Records that were torn or edited by hand aren't believed.

    Args:
        location: A folder, made when it is first written to, or a URL that fsspec knows, such as
            ``s3://bucket/runs``. On a URL, two processes may happen to do the same run.
    """

    def __init__(self, location: str | Path) -> None:
        self.location = str(location)
        self._folder = folder_at(self.location)
        self._warned: set[str] = set()

    def find(self, run: Requested) -> StoredRun | None:
        """Find a finished run that is still valid."""
        return self._find_all([run], "finished").get(run.request)

    def failure(self, run: Requested) -> StoredRun | None:
        """Find the last failure of a run, unless what may have been its reason has changed since."""
        return self._find_all([run], "failed").get(run.request)

    def find_all(self, runs: Iterable[Requested]) -> dict[str, StoredRun]:
        """Find many finished runs that are still valid, by their request."""
        return self._find_all(runs, "finished")

    def failures(self, runs: Iterable[Requested]) -> dict[str, StoredRun]:
        """Find the last failures of many runs, by their request, as `failure` does."""
        return self._find_all(runs, "failed")

    def runs(self, stem: str | None = None) -> Iterator[StoredRun]:
        """Yield all runs by title, finished and failed, valid or not, or those of the notebook ``stem``.

        Of records that can't be believed it warns.
        """
        names = self._requests()
        if stem and _PLAIN.fullmatch(stem):  # then a title begins with it
            names = [name for name in names if name.startswith(stem[:LONGEST_TITLE])]
        damaged = []
        for path, stored in self._read(names):
            if stored is None:
                damaged.append(path)
            elif stem is None or stored.record["stem"] == stem:
                yield stored
        self._warn(damaged)

    def lookup(self, text: str) -> StoredRun:
        """Find the one run that a text means: a title or its beginning, that of a request, a path or a URL.

        Of several with the same request it is the valid one, else the newest. A StoreError says that there is
        none, or that several are meant.
        """
        if stored := run_at(text):
            return stored
        return only_one(text, self._requests(), self._runs_for, self.location)

    @contextmanager
    def claim(self, run: Requested) -> Iterator[Path]:
        """Claim a run that is to be done, and wait while another process of this machine has it.

        Yields an empty folder of this machine to write it in; what is left of it at the end is deleted.
        """
        folder_name(run.title, run.request)  # refuses what would leave the store
        with ExitStack() as stack:
            with explained(self.location):
                folder = stack.enter_context(self._folder.claim(run.request))
            yield folder  # what goes wrong in there isn't the store's trouble

    def commit(self, folder: Path, record: Mapping[str, Any]) -> StoredRun:
        """Put a finished run in its place, in one step; the folder from `claim` has all but its record.

        Where another process has finished the same one meanwhile, that one stays and is returned.
        """
        path = path_of(record)
        with explained(self.location):
            there = read_record(self._folder.read(f"{path}/{RECORD}"))
            done = there is not None and _belongs(path, there, {})
            stored = self._stored(path, there) if there and done else self._place(folder, path, record)
        self.drop_checkpoints(folder)
        return stored

    def checkpoints(self, folder: Path) -> Path:
        """Name the folder of this machine in which the attempts at a run leave checkpoints to one another.

        Nobody has made it yet where no attempt needed it. At a URL it ends with the claim.
        """
        return self._folder.checkpoints(folder)

    def keeps_checkpoints(self, folder: Path) -> bool:
        """Say whether a run has left checkpoints that its next attempt will find; never at a URL."""
        return not is_url(self.location) and self.checkpoints(folder).exists()

    def drop_checkpoints(self, folder: Path) -> None:
        """Delete the checkpoints of a run."""
        shutil.rmtree(self.checkpoints(folder), ignore_errors=True)

    def keep_failure(self, folder: Path, record: Mapping[str, Any]) -> StoredRun:
        """Keep a failed run, instead of an older failure of the same one."""
        path = f"{folder_name(record['title'], record['request'])}/{_FAILED}"
        with explained(self.location):
            return self._place(folder, path, record)

    def claimed(self) -> set[str]:
        """List the requests that processes of this machine are running now; at a URL none."""
        with explained(self.location):
            return self._folder.claimed()

    def write_plan(self, name: str, plan: Mapping[str, Any]) -> None:
        """Keep the plan of a sweep, instead of an older one; refuse a name that could leave the store."""
        if not _SWEEP_NAME.fullmatch(name):
            raise StoreError(f"expected a sweep's name of letters, digits and _.=,+-; got {name!r}")
        text = json.dumps(plan, indent=1, ensure_ascii=False, allow_nan=False)
        with explained(self.location):
            self._folder.write(f"{_SWEEPS}/{name}.json", text.encode() + b"\n")

    def plans(self) -> dict[str, dict[str, Any]]:
        """Read the plans of all sweeps, by name; those that can't be read are left out."""
        plans: dict[str, dict[str, Any]] = {}
        for file in self._folder.names(_SWEEPS):
            name, _, ending = file.rpartition(".")
            if ending != "json" or not _SWEEP_NAME.fullmatch(name):
                continue
            with suppress(ValueError):
                plan = from_json(self._folder.read(f"{_SWEEPS}/{file}") or b"null")
                plans |= {name: plan} if isinstance(plan, dict) else {}
        return plans

    def clean(self, *, failed: bool = False, stale: bool = False, dry_run: bool = False) -> list[str]:
        """Delete what killed processes left behind, records that can't be believed, and what is asked for.

        Checkpoints go too: a run that was killed or failed then begins anew. Nothing that is running now is
        touched. At a URL nobody can tell what is: an upload that is going on looks like one that was cut off,
        so call this when nothing runs there.

        Args:
            failed: Delete the failed runs too.
            stale: Delete the runs too whose inputs have changed since.
            dry_run: Delete nothing.

        Returns:
            What was deleted, or would be.
        """
        installed = Installed()
        with explained(self.location):
            gone = self._folder.leftovers()
            if not dry_run:
                for path in gone:
                    self._folder.discard(path)
            for path, stored in self._read(self._requests()):
                wanted = (
                    stored is None
                    or (failed and stored.status == "failed")
                    or (stale and not installed.matches(stored.record["inputs"]))
                )
                if wanted and not self._is_busy(path):
                    gone.append(path)
                    if not dry_run:
                        self._folder.remove(path)
        return [f"{public(self.location)}/{path}" for path in gone]

    def _find_all(self, runs: Iterable[Requested], status: str) -> dict[str, StoredRun]:
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

    def _is_busy(self, path: str) -> bool:
        digits = path.partition("/")[0][-12:]
        return any(request.startswith(digits) for request in self.claimed())

    def _requests(self) -> list[str]:
        with explained(self.location):
            return [name for name in self._folder.subfolders() if not name.startswith(".")]

    def _read(self, names: Iterable[str]) -> Iterator[tuple[str, StoredRun | None]]:
        with explained(self.location):
            known: dict[str, dict[str, Any]] = {}
            for path, text in self._folder.records(names):
                record = read_record(text, known.get(path.rpartition("/")[2]))
                yield path, self._stored(path, record) if record and _belongs(path, record, known) else None

    def _runs_for(self, name: str) -> list[StoredRun]:
        return [stored for _, stored in self._read([name]) if stored]

    def _stored(self, path: str, record: dict[str, Any]) -> StoredRun:
        return StoredRun(f"{self.location.rstrip('/')}/{path}", record)

    def _place(self, folder: Path, path: str, record: Mapping[str, Any]) -> StoredRun:
        text = write_record(record)
        (folder / RECORD).write_bytes(text)
        if record["status"] == "finished":
            self._folder.remove(f"{path.partition('/')[0]}/{_FAILED}")
        self._folder.place(folder, path)
        return self._stored(path, read_record(text) or {})

    def _warn(self, damaged: Iterable[str]) -> None:
        new = sorted(set(damaged) - self._warned)
        self._warned.update(new)
        if new:
            listed = ", ".join([*new[:_LISTED], *(["…"] if len(new) > _LISTED else [])])
            warnings.warn(
                f"expected whole records in {public(self.location)}; got {len(new)} torn or edited, which "
                f"are left out: {listed}; remedy: gradtricks clean",
                RecordWarning,
                stacklevel=3,
            )


def _belongs(path: str, record: Mapping[str, Any], known: dict[str, dict[str, Any]]) -> bool:
    """Say whether a record lies where it says that it belongs; inputs that were digested before are known."""
    folder, _, name = path.partition("/")
    if folder != folder_name(record["title"], record["request"]):
        return False
    if record["status"] == "failed":
        return name == _FAILED
    if record["inputs"] is known.get(name):
        return True
    if inputs_digest(record["inputs"]) != name:
        return False
    known[name] = record["inputs"]
    return True
