"""Which run a text means: what people type, or copy from somewhere."""

import re
from collections.abc import Iterable
from pathlib import Path

from gradtricks.lab.storage.folders import RECORD, folder_at
from gradtricks.lab.storage.records import StoredRun, folder_name, read_record
from gradtricks.lab.storage.troubles import StoreError, explained, public

_REQUEST = re.compile(r"[0-9a-f]{4,64}")
_IN_NAME = 12  # digits of a request
_LISTED = 5


def run_at(text: str) -> StoredRun | None:
    """Read the run whose folder, record or notebook lies at a path or URL; None where no run lies there."""
    if "/" not in text and not Path(text).is_dir():
        return None
    location = re.sub(r"/(record\.json|notebook\.ipynb)?$", "", text)
    with explained(location):
        record = read_record(folder_at(location).read(RECORD))
    return StoredRun(location, record) if record else None


def matching(text: str, folders: Iterable[str]) -> list[str]:
    """Name the folders that a text may mean: those with exactly this title, else all that begin so."""
    folders = list(folders)
    digits = text[:_IN_NAME] if _REQUEST.fullmatch(text) else "-"
    exact = [name for name in folders if text in (name, name[: -_IN_NAME - 1])]
    return exact or [name for name in folders if name.startswith(text) or name[-_IN_NAME:].startswith(digits)]


def only_one(text: str, candidates: Iterable[StoredRun], location: str) -> StoredRun:
    """Choose the run that is meant among those in the folders that `matching` named.

    Of several with the same request it is a finished one, and of these the valid one, or else the newest. A
    StoreError says that there is none, or that several are meant.
    """
    fitting = [stored for stored in candidates if _fits(text, stored)]
    names = sorted({folder_name(stored.title, stored.request) for stored in fitting})
    where = public(location)
    if not names:
        raise StoreError(
            f"expected a run in {where}; got none called {text!r}; remedy: gradtricks table lists them"
        )
    if len(names) > 1:
        listed = "\n".join(f"  {name}" for name in names[:_LISTED])
        raise StoreError(
            f"expected one run in {where}; got {len(names)} called {text!r}:\n{listed}\n"
            "remedy: give more of its name"
        )
    return max(fitting, key=lambda each: (each.status == "finished", each.valid(), each.record["started"]))


def _fits(text: str, stored: StoredRun) -> bool:
    """Compare all digits of a request; a folder's name has only the first ones."""
    return len(text) <= _IN_NAME or not _REQUEST.fullmatch(text) or stored.request.startswith(text)
