"""One result of a run, found by its name."""

from collections.abc import Mapping
from typing import Any


class RecordError(ValueError):
    """A record or one of its results isn't there, or can't be shown as asked."""


def result_from(results: Any, name: str) -> Any:
    """Look up one result by its dotted name, such as ``curve.0`` or ``norms.hidden``.

    A key that itself holds a dot, as in ``share.0.1``, is found too. A RecordError lists what there is.
    """
    value, parts = results, name.split(".")
    while parts:
        said = ".".join(parts)
        if isinstance(value, Mapping):
            keys = {count: ".".join(parts[:count]) for count in range(len(parts), 0, -1)}
            count = next((count for count, key in keys.items() if key in value), None)
            if count is None:
                there = ", ".join(map(str, value)) or "nothing"
                raise RecordError(f"expected one of: {there}; got {said!r}")
            value, parts = value[keys[count]], parts[count:]
        elif isinstance(value, list):
            try:
                value, parts = value[int(parts[0])], parts[1:]
            except (IndexError, ValueError) as error:
                raise RecordError(f"expected a position below {len(value)}; got {parts[0]!r}") from error
        else:
            raise RecordError(f"expected the name to end before {said!r}; got the value {value!r}")
    return value
