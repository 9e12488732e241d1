"""One result of a run, found by its name."""

from collections.abc import Mapping
from typing import Any

__all__ = ["RecordError", "result_from"]


class RecordError(ValueError):
    """A record or one of its results isn't there, or can't be shown as asked."""


def result_from(results: Any, name: str) -> Any:
    """Look up one result by its dotted name, such as ``curve.0`` or ``norms.hidden``.

    A key that itself holds a dot, as in ``share.0.1``, is found too. A RecordError lists what there is.
    """
    return _descend(results, name.split("."))


def _descend(value: Any, parts: list[str]) -> Any:
    if not parts:
        return value
    if isinstance(value, Mapping):
        for count in range(len(parts), 0, -1):
            key = ".".join(parts[:count])
            if key in value:
                return _descend(value[key], parts[count:])
        there = ", ".join(map(str, value)) or "nothing"
        raise RecordError(f"expected one of: {there}; got {'.'.join(parts)!r}")
    if isinstance(value, list):
        try:
            return _descend(value[int(parts[0])], parts[1:])
        except (IndexError, ValueError) as error:
            if isinstance(error, RecordError):
                raise
            raise RecordError(f"expected a position below {len(value)}; got {parts[0]!r}") from error
    raise RecordError(f"expected the name to end before {'.'.join(parts)!r}; got the value {value!r}")
