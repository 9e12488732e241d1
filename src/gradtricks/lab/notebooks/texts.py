"""Values as texts: as users type them, which a type tells the meaning of later, and as Python source."""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import date, datetime, timezone
from types import NoneType
from typing import Any

import yaml

_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
WORDS = f"{', '.join([*_WORDS][:-1])} or {[*_WORDS][-1]}"
_INTEGER = re.compile(r"[+-]?(0[xX][0-9a-fA-F_]+|0[oO][0-7_]+|0[bB][01_]+|[0-9][0-9_]*)")
# Bits: Python may refuse to read decimal integers of more than 640 digits, never hexadecimal ones.
_LONG = 2000
_MATH = '__import__("math")'
_NOT_FINITE = {"nan": f"{_MATH}.nan", "inf": f"{_MATH}.inf", "-inf": f"-{_MATH}.inf"}


class Plain(str):
    """A text without quotes, whose type the notebook declares: ``no`` may be a word and ``1e-3`` a number."""

    __slots__ = ()


class ParameterError(ValueError):
    """What a user asked for isn't possible; the message lists everything that is wrong."""


class Problems(list[str]):
    """What is wrong, collected until all of it can be said at once."""

    @contextmanager
    def noted(self, *part: str) -> Iterator[None]:
        """Take a `ParameterError` down, and the part that it is about, instead of raising it."""
        try:
            yield
        except ParameterError as error:
            self.append(": ".join([*part, str(error)]))

    def error(self, *before: str) -> ParameterError:
        """Say each once, behind what comes before."""
        return ParameterError("\n".join([*before, *dict.fromkeys(self)]))

    def refuse(self) -> None:
        """Raise the `error` if there is any."""
        if self:
            raise self.error()


def together(*calls: Callable[[], Any]) -> list[Any]:
    """Call functions of which each may refuse what it is about; what all of them refuse is said at once."""
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


def read_json(text: str) -> Any:
    """Read JSON, numbers as plain texts; names that come twice are refused."""
    try:
        return json.loads(
            text, parse_int=Plain, parse_float=Plain, parse_constant=Plain, object_pairs_hook=_without_twins
        )
    except (ValueError, RecursionError) as error:
        raise ParameterError(f"expected JSON; got {text[:80]!r} ({error})") from error


def read_yaml(text: str) -> Any:
    """Read YAML without interpreting what isn't quoted.

    Tags and aliases are refused, so a file can neither make objects nor grow when it is read.
    """
    try:
        return yaml.load(text, _Loader)  # noqa: S506  # it makes texts, lists and dicts of texts only
    except yaml.YAMLError as error:
        raise ParameterError(" ".join(str(error).split())) from error
    except RecursionError:
        raise ParameterError("expected YAML; got something nested too deep") from None


def literal(value: Any) -> str:
    """Write a value as Python source.

    What JSON lacks is reached through ``__import__``, because a notebook may have another ``float`` or
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


def _read_integer(text: str) -> int:
    if not _INTEGER.fullmatch(text):
        raise ValueError(text)
    return int(text, 0 if text.lstrip("+-")[1:2].isalpha() else 10)


def _read_nested(text: str) -> Any:
    if text[:1] not in ("[", "{"):
        raise ValueError(text)
    return read_json(text)


# What a text means that is of a type; a ValueError or KeyError says that none of that type is written so.
READERS: Mapping[Any, Callable[[str], Any]] = {
    NoneType: {"null": None, "None": None}.__getitem__,
    bool: lambda text: _WORDS[text.lower()],
    int: _read_integer,
    # YAML writes .inf and .nan.
    float: lambda text: float(re.sub(r"^([+-]?)\.(?=inf|nan)", r"\1", text.lower())),
    str: str,
    date: date.fromisoformat,
    datetime: datetime.fromisoformat,
    list: _read_nested,
    dict: _read_nested,
}


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    twins = [name for name, times in Counter(name for name, _ in pairs).items() if times > 1]
    if twins:
        raise ValueError(f"given twice: {', '.join(twins)}")
    return dict(pairs)


class _Loader(yaml.BaseLoader):
    """Makes texts of all that isn't a list or a mapping."""

    def compose_node(self, parent: Any, index: Any) -> yaml.Node:
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent) or event.anchor or event.tag:
            raise ParameterError(
                f"line {event.start_mark.line + 1}: anchors, aliases and tags aren't allowed; "
                "remedy: write the value out"
            )
        return super().compose_node(parent, index)

    def construct_scalar(self, node: yaml.Node) -> str:
        return Plain(node.value) if node.style is None else node.value

    def construct_mapping(self, node: yaml.Node, deep: bool = False) -> dict[str, Any]:
        pairs = [(self.construct_object(key), self.construct_object(value)) for key, value in node.value]
        try:
            return _without_twins([(str(key), value) for key, value in pairs])
        except ValueError as error:
            raise ParameterError(f"line {node.start_mark.line + 1}: {error}") from error
