"""What can go wrong with a store, and how it is said."""

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeGuard

_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO}


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
    # Each of fsspec's file systems has exceptions of its own.
    errors = Exception if is_url(location) else OSError
    try:
        yield
    except StoreError:
        raise
    except errors as error:
        raise trouble(location, error) from error


def trouble(location: str, error: Exception) -> StoreError:
    """Say what is wrong with a store, in an error that names it."""
    remedy = "see that it can be reached, and run again"
    if getattr(error, "errno", None) in _DISK:
        remedy = "free some space, make it writable, or choose another store"
    reason = getattr(error, "strerror", None) or repr(error)
    return StoreError(
        f"expected a store to read and write at {public(location)}; got: {reason}; remedy: {remedy}"
    )


def public(location: str) -> str:
    """Take the passwords out of a path or URL that is to be shown."""
    return re.sub(r"://[^/]*@", "://", location)  # a chain of URLs may have several


def is_url(location: str) -> bool:
    """Say whether fsspec is needed to reach a location, because it isn't a folder of this machine."""
    return "://" in location and not location.startswith("file://")
