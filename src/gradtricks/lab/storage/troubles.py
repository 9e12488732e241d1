"""What can go wrong with a store, and how it is said."""

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeGuard

_REMEDIES = {
    errno.ENOSPC: "free some space, or choose another store",
    errno.EDQUOT: "free some of your quota, or choose another store",
    errno.EROFS: "choose a store that can be written to",
    errno.EACCES: "choose a store that you may write to",
    errno.EPERM: "choose a store that you may write to",
    errno.EIO: "look after the disk, or choose another store",
}


class StoreError(RuntimeError):
    """The store can't be written to, or doesn't hold what was asked for."""


def is_trouble(error: BaseException, folder: Path) -> TypeGuard[OSError]:
    """Say whether an error means that files of a run can't be written.

    Args:
        error: Whatever was raised.
        folder: Where the files are to be.

    Returns:
        Whether the disk, and not what was run, is the reason.
    """
    if not isinstance(error, OSError) or error.errno not in _REMEDIES:
        return False
    # What can't be written to says no name: only what can't be opened does.
    return error.filename is None or Path(str(error.filename)).is_relative_to(folder)


@contextmanager
def explained(location: str) -> Iterator[None]:
    """Turn errors of reading and writing into errors that name the store.

    Args:
        location: Of the store.

    Yields:
        Nothing.

    Raises:
        StoreError: Something couldn't be read or written.
    """
    # Each of fsspec's file systems has exceptions of its own.
    errors = Exception if is_url(location) else OSError
    try:
        yield
    except StoreError:
        raise
    except errors as error:
        raise trouble(location, error) from error


def trouble(location: str, error: Exception) -> StoreError:
    """Say what is wrong with a store.

    Args:
        location: Of the store.
        error: What the system said.

    Returns:
        An error that names the store.
    """
    number, reason = getattr(error, "errno", None), getattr(error, "strerror", None)
    remedy = _REMEDIES.get(number or 0, "see that it can be reached, and run again")
    return StoreError(
        f"expected a store to read and write at {public(location)}; got: {reason or repr(error)}; "
        f"remedy: {remedy}"
    )


def public(location: str) -> str:
    """Take a password out of a URL.

    Args:
        location: A path or a URL.

    Returns:
        What may be shown.
    """
    return re.sub(r"://[^/]*@", "://", location)  # a chain of URLs may have several


def is_url(location: str) -> bool:
    """Say whether a location isn't a folder of this machine.

    Args:
        location: A path or a URL.

    Returns:
        Whether fsspec is needed to reach it.
    """
    return "://" in location and not location.startswith("file://")
