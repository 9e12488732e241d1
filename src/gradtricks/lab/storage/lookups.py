"""Which run a text means: what people type, or copy from somewhere."""

import re
from collections.abc import Callable, Iterable
from pathlib import Path

from gradtricks.lab.storage.folders import RECORD, folder_at
from gradtricks.lab.storage.records import StoredRun, read_record
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


def only_one(
    text: str, folders: Iterable[str], read: Callable[[str], Iterable[StoredRun]], location: str
) -> StoredRun:
    """Find the run that a text means by its title, its request or the beginning of one of them.

    Of several with the same request it is a finished one, and of these the valid one, or else the newest. A
    StoreError says that there is none, or that several are meant.

    Args:
        text: That was typed.
        folders: Names of all that were run: title and request.
        read: Gives the runs in one of them.
        location: Of the store.
    """
    folders = sorted(folders)
    digits = text if _REQUEST.fullmatch(text) else "-"
    names = [name for name in folders if text in (name, name[: -_IN_NAME - 1])] or [
        name for name in folders if name.startswith(text) or name[-_IN_NAME:].startswith(digits[:_IN_NAME])
    ]
    if len(names) > 1:
        listed = "\n".join(f"  {name}" for name in names[:_LISTED])
        raise StoreError(
            f"expected one run in {public(location)}; got {len(names)} called {text!r}:\n{listed}\n"
            "remedy: give more of its name"
        )
    # A folder's name has only the first digits of a request.
    long = digits if len(digits) > _IN_NAME else ""
    found = [stored for name in names for stored in read(name) if stored.request.startswith(long)]
    if not found:
        raise StoreError(
            f"expected a run in {public(location)}; got none called {text!r}; "
            "remedy: gradtricks table lists them"
        )
    return max(found, key=lambda each: (each.status == "finished", each.valid(), each.record["started"]))
