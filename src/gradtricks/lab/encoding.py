"""Results and parameters as JSON that keeps them exactly, and back."""

import math
import numbers
from collections.abc import Callable
from datetime import date, datetime, timezone
from typing import Any

LARGE_BITS = 13_000  # Python doesn't read decimal integers of more than 4,300 digits, or 14,284 bits


def encode(value: Any, name: str) -> Any:
    """Turn a result or a parameter, which the notebook calls ``name``, into JSON that keeps it exactly.

    Returns:
        Built-in types only; what JSON lacks becomes a dict with one key: ``{"$float": "nan"}``, ``"inf"`` or
        ``"-inf"``, ``{"$date": "2026-01-31"}``, ``{"$int": "0x…"}`` where there are thousands of digits, and
        ``{"$dict": …}`` around a dict that looks like one of these.

    Raises:
        TypeError: The value is of a type that a record can't keep.
    """
    # NumPy scalars and arrays, but not dates: they would become integers.
    if hasattr(value, "tolist") and getattr(getattr(value, "dtype", None), "kind", "") not in ("m", "M"):
        value = value.tolist()
    if value is None or isinstance(value, bool) or (isinstance(value, str) and _is_text(value)):
        return value
    if isinstance(value, int):
        return value if value.bit_length() < LARGE_BITS else {"$int": hex(value)}
    if isinstance(value, numbers.Real):
        number = float(value)
        return number if math.isfinite(number) else {"$float": str(number)}
    if isinstance(value, date) and _has_plain_zone(value):
        return {"$date": value.isoformat()}
    if isinstance(value, list | tuple):
        return [encode(item, name) for item in value]
    if isinstance(value, dict) and all(isinstance(key, str) and _is_text(key) for key in value):
        items = {key: encode(item, name) for key, item in value.items()}
        return {"$dict": items} if len(items) == 1 and items.keys() <= _SPECIAL.keys() else items
    raise TypeError(
        f"{name} must be numbers, strings (of valid Unicode), bools, None, dates (with a fixed offset or "
        f"none), or lists and dicts (with string keys) of them; got {type(value).__name__}"
    )


def decode(value: Any) -> Any:
    """Undo `encode`; a ValueError or a TypeError says that something else wrote the value."""
    if isinstance(value, dict):
        if len(value) == 1:
            ((key, item),) = value.items()
            if key in _SPECIAL:
                return _SPECIAL[key](item)
        return {key: decode(item) for key, item in value.items()}
    if isinstance(value, list):
        return [decode(item) if isinstance(item, dict | list) else item for item in value]
    return value


_SPECIAL: dict[str, Callable[[Any], Any]] = {
    "$float": float,
    "$int": lambda text: int(text, 16),
    "$date": lambda text: (datetime if "T" in text else date).fromisoformat(text),
    "$dict": lambda items: {key: decode(item) for key, item in dict(items).items()},
}


def _is_text(value: str) -> bool:
    """Half of a surrogate pair is no text that a file could hold."""
    return value == value.encode(errors="ignore").decode()


def _has_plain_zone(value: date) -> bool:
    """The name of a place would be lost; an offset isn't, unless it has parts of a second (CPython 3.11)."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        return True
    offset = value.utcoffset()
    return type(value.tzinfo) is timezone and offset is not None and not offset.microseconds
