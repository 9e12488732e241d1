"""Values as texts: as users write them, as JSON for pydantic to read, and as Python source."""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import date, datetime, timezone
from difflib import get_close_matches
from pathlib import Path
from types import NoneType
from typing import Any

_LONGEST = 120  # characters of a wrong value
_JSON = {"None": "null", "True": "true", "False": "false"}  # as Python writes them
_JSON |= {".nan": "NaN", ".inf": "Infinity", "-.inf": "-Infinity"}  # and YAML
# Bits: Python may refuse to read decimal integers of more than 640 digits, never hexadecimal ones.
_LONG = 2000
_MATH = '__import__("math")'
_NOT_FINITE = {"nan": f"{_MATH}.nan", "inf": f"{_MATH}.inf", "-inf": f"-{_MATH}.inf"}


class Plain(str):
    """A text without quotes, whose type the notebook declares: ``no`` may be a word and ``1e-3`` a number."""

    __slots__ = ()


class ParameterError(ValueError):
    """A wrong request; the message lists everything that is wrong with it."""


class Problems(list[str]):
    """Collects everything that is wrong, to refuse it at once."""

    @contextmanager
    def noted(self, *part: str) -> Iterator[None]:
        """Note a `ParameterError`, and the part that it is about, instead of raising it."""
        try:
            yield
        except ParameterError as error:
            self.append(": ".join([*part, str(error)]))

    def error(self, *before: str) -> ParameterError:
        """Make an error that lists each problem once, below the lines ``before``."""
        return ParameterError("\n".join([*before, *dict.fromkeys(self)]))

    def refuse(self) -> None:
        """Raise the `error` if there is any."""
        if self:
            raise self.error()


def together(*calls: Callable[[], Any]) -> list[Any]:
    """Call every function; if some raise ParameterError, raise one that lists all their messages."""
    answers, refused = [], list[ParameterError | FileNotFoundError]()
    for call in calls:
        try:
            answers.append(call())
        except (ParameterError, FileNotFoundError) as error:
            refused.append(error)
    if len(refused) == 1:
        raise refused[0]
    Problems(map(str, refused)).refuse()
    return answers


def alike(name: str, known: Iterable[str]) -> str:
    """Ask whether the nearest known name was meant; an empty text where none is near."""
    near = get_close_matches(name, list(known), n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def excerpt(value: Any) -> str:
    """Write a wrong value of any size for a message: its ``repr``, or the beginning of it."""
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python writes
        text = hex(value) if isinstance(value, int) else f"a {type(value).__name__}"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text)} characters)"


def duration(seconds: float | None) -> str:
    """Say how long something takes, in seconds, minutes or hours."""
    if seconds is None:
        return ""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def near(location: str) -> str:
    """Name a place as it is seen from the working directory if it lies below that."""
    path = Path(location)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else location


def as_json(written: Any) -> str:
    """Write a user's input as JSON: `Plain` texts as they stand, others in quotes, and lists and dicts.

    Raises:
        ValueError: The text isn't JSON, or a name comes twice in it.
        TypeError: JSON has no such type, as for a date or a tuple.
    """
    kind = type(written)
    if kind is Plain:
        text = _JSON.get(written, written)
        try:
            json.loads(text, parse_int=str, object_pairs_hook=without_twins)
        except RecursionError as error:
            raise ValueError("nested too deep") from error
        if text.lstrip()[:1] == '"':
            raise ValueError("quotes that are part of a text")
        return text
    if kind is list:
        return f"[{', '.join(map(_item, written))}]"
    if kind is dict:
        return f"{{{', '.join(f'{json.dumps(name)}: {_item(each)}' for name, each in written.items())}}}"
    if written is None or kind in (bool, int, float, str):
        return json.dumps(written)
    raise TypeError(kind.__name__)


def _item(written: Any) -> str:
    """Write a part: there, a plain text that isn't JSON is a number such as ``.5``, or a text."""
    try:
        return as_json(written)
    except ValueError:
        with suppress(ValueError):
            return json.dumps(float(written))
        return json.dumps(written)


def literal(value: Any) -> str:
    """Write a value as Python source.

    Infinities, NaN and dates are reached through ``__import__``: a notebook may have another ``float`` or
    ``datetime`` by then. Nothing of a value is ever outside of quotes or brackets.

    Args:
        value: As `check_parameters` returns it: None, bool, int, float, str, date, datetime (naive or with a
            fixed offset), or lists and dicts of them, of exactly these types; others raise TypeError.

    Returns:
        One line of printable characters that evaluates to the value.

    Example:
        >>> print(literal({"a": [1, -0.0, "it's", float("inf")]}))
        {'a': [1, -0.0, "it's", __import__("math").inf]}
    """
    kind = type(value)
    if value is None or kind in (bool, str):
        return repr(value)
    if kind is int:
        return repr(value) if value.bit_length() < _LONG else hex(value)
    if kind is float:
        return repr(value) if math.isfinite(value) else _NOT_FINITE[repr(value)]
    if kind is list:
        return f"[{', '.join(map(literal, value))}]"
    if kind is dict and all(type(key) is str for key in value):
        return f"{{{', '.join(f'{literal(key)}: {literal(item)}' for key, item in value.items())}}}"
    if kind is date or (kind is datetime and type(value.tzinfo) in (NoneType, timezone)):
        return repr(value).replace("datetime.", '__import__("datetime").')
    raise TypeError(
        "expected None, bool, int, float, str, date, datetime (with a fixed offset or none), "
        f"or lists and dicts of them; got {value!r} of type {kind.__name__}"
    )


def without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a dict of pairs; ValueError if a name is given twice."""
    twins = [name for name, times in Counter(name for name, _ in pairs).items() if times > 1]
    if twins:
        raise ValueError(f"given twice: {', '.join(twins)}")
    return dict(pairs)
