"""One number of a run, for running text: find it in a record and format it."""

import json
import math
import re
from collections.abc import Mapping
from datetime import date
from functools import lru_cache
from pathlib import Path
from typing import Any

from gradtricks.lab.notebooks.schema import shown
from gradtricks.lab.recording import decode

__all__ = ["RecordError", "format_result", "published_record", "result_from"]

# Libraries whose versions a reader is shown; the record holds all of them.
SHOWN_LIBRARIES = ("torch", "tensorflow", "keras", "numpy", "envpool", "gymnasium", "scikit-learn")

_SCIENTIFIC = re.compile(r"(?P<mantissa>.*\d)e(?P<exponent>[+-]\d+)")
_MINUS = "\N{MINUS SIGN}"


class RecordError(ValueError):
    """A record or one of its results isn't there, or can't be shown as asked."""


@lru_cache(maxsize=64)
def _parse_record(path: Path, modified_ns: int) -> dict[str, Any]:
    record = decode(json.loads(path.read_text(encoding="utf-8")))
    if not isinstance(record, dict) or not isinstance(record.get("results"), dict):
        raise RecordError(f"{path} must be a record with results; got {type(record).__name__}")
    return record


def published_record(path: Path) -> dict[str, Any]:
    """Read the record of one run.

    Args:
        path: The record, ``<stem>-<backend>.json``.

    Returns:
        The record, with non-finite numbers as floats.

    Raises:
        RecordError: There is no such file, or it isn't a record.
    """
    try:
        return _parse_record(path, path.stat().st_mtime_ns)
    except FileNotFoundError as error:
        there = ", ".join(sorted(p.stem for p in path.parent.glob("*.json"))) or "none"
        raise RecordError(
            f"expected the record {path.name}; got the records: {there}; remedy: run `make book`, "
            "which runs the notebooks, or mend the name"
        ) from error
    except json.JSONDecodeError as error:
        raise RecordError(f"{path.name} must be JSON; got {error}; remedy: run `make book` again") from error


def result_from(results: Any, name: str) -> Any:
    """Look up one result by its dotted name.

    Args:
        results: What a run recorded: a mapping of names to values.
        name: Names of mappings and positions in lists, joined by dots: ``curve.0``, ``norms.hidden``. A key
            that itself holds a dot, as in ``share.0.1``, is found too.

    Returns:
        The value.

    Raises:
        RecordError: There is no such result; the message lists those that there are.
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


def format_result(value: Any, spec: str = "") -> tuple[str, str | None]:
    """Format one result for running text.

    Args:
        value: A number, string, bool, date or None.
        spec: Python's format specification; without one, floats have four significant digits.

    Returns:
        The text, and the power of ten to set as a superscript or None.

    Raises:
        RecordError: The value is a list or a mapping, or ``spec`` doesn't fit it.
    """
    if isinstance(value, list | Mapping):
        raise RecordError(
            f"expected one value; got a {type(value).__name__} of {len(value)}; remedy: name a part of it"
        )
    if isinstance(value, float) and not math.isfinite(value):
        return {"nan": "NaN", "inf": "∞", "-inf": _MINUS + "∞"}[str(value)], None
    if value is None or isinstance(value, bool | str):
        return _apply(str(value), spec), None
    if isinstance(value, date):
        return _apply(value, spec), None
    return _typographic(_apply(value, spec or (".4g" if isinstance(value, float) else "")))


def _apply(value: str | float | date, spec: str) -> str:
    try:
        return format(value, spec)
    except (OverflowError, ValueError) as error:  # a huge integer is no float, or has too many digits
        raise RecordError(
            f"expected a format that fits {shown(value)}; got {spec!r} ({error}); remedy: for instance ':.3f'"
        ) from error


def _typographic(text: str) -> tuple[str, str | None]:
    scientific = _SCIENTIFIC.fullmatch(text)
    if scientific is None:
        return text.replace("-", _MINUS), None
    mantissa = scientific["mantissa"].replace("-", _MINUS)
    return f"{mantissa} × 10", str(int(scientific["exponent"])).replace("-", _MINUS)
