"""Values as users type them, in sweep files and on the command line, read by the type that is declared."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import date, datetime
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml

MAX_CHARACTERS = 1_000_000  # of a sweep file

_DEPTH = 20
_BOOLS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_INTEGER = re.compile(r"[+-]?(0[xX][0-9a-fA-F_]+|0[oO][0-7_]+|0[bB][01_]+|[0-9][0-9_]*)")
_PLAIN = None | bool | int | float | list[Any] | dict[str, Any] | str  # what nothing is declared of
_ORDER = (NoneType, bool, int, float, date, datetime, list, dict, Literal, str)  # what a text is tried as


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


def read(raw: Any, type_: Any) -> Any:
    """Read a value by the type that the notebook declares; a ParameterError says that none is written so.

    Texts are `Plain`, or ``str`` where they were quoted; lists and dicts may hold them, and all else needs no
    reading.
    """
    if not isinstance(raw, str | list | dict):
        return raw
    type_ = _bare(type_)
    if type_ is Any:
        if isinstance(raw, Plain) and raw.lower() in _BOOLS.keys() - {"true", "false"}:
            return str(raw)  # only a declared bool can be meant by ``no``
        type_ = _PLAIN
    kind = _kind(type_)
    if kind in (Union, UnionType):
        return _read_first(raw, sorted(get_args(type_), key=lambda member: _ORDER.index(_kind(member))))
    if kind is Literal:
        return _read_choice(raw, get_args(type_))
    if isinstance(raw, Plain) and kind in (list, dict):
        raw = read_json(raw)
    if kind is list and isinstance(raw, list):
        return [read(item, *get_args(type_)) for item in raw]
    if kind is dict and isinstance(raw, dict):
        return {str(name): read(item, get_args(type_)[1]) for name, item in raw.items()}
    if isinstance(raw, Plain) or (isinstance(raw, str) and kind in (date, datetime)):
        return _read_text(str(raw), kind)
    if isinstance(raw, str) and kind is str:
        return raw
    raise ParameterError(f"expected {kind.__name__}; got {raw!r}")


def read_json(text: str) -> Any:
    """Read JSON for `read`, numbers as plain texts; names that come twice are refused."""
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
    if len(text) > MAX_CHARACTERS:
        raise ParameterError(f"expected at most {MAX_CHARACTERS} characters; got more")
    try:
        node = yaml.compose(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise ParameterError(" ".join(str(error).split())) from error
    return None if node is None else _build(node)


def split_values(text: str) -> list[str]:
    """Split a text such as ``0,[1, 2]`` at its commas, but not within brackets or double quotes."""
    parts, depth, quoted, start = [], 0, False, 0
    for place, sign in enumerate(text):
        if sign == '"':
            quoted = not quoted
        elif not quoted:
            depth += (sign in "[{") - (sign in "]}")
            if sign == "," and depth == 0:
                parts.append(text[start:place].strip())
                start = place + 1
    return [*parts, text[start:].strip()]


def _bare(type_: Any) -> Any:
    """Take the declared range off: it is checked later."""
    return get_args(type_)[0] if get_origin(type_) is Annotated else type_


def _kind(type_: Any) -> Any:
    return get_origin(_bare(type_)) or _bare(type_)


def _read_first(raw: Any, members: list[Any]) -> Any:
    for member in members:
        with suppress(ParameterError):
            return read(raw, member)
    raise ParameterError(f"expected one of {len(members)} types; got {raw!r}")


def _read_choice(raw: Any, choices: tuple[Any, ...]) -> Any:
    if raw in choices:
        return str(raw)
    for choice in choices:
        with suppress(ParameterError):
            if isinstance(raw, Plain) and _read_text(str(raw), type(choice)) == choice:
                return choice
    raise ParameterError(f"expected one of {choices}; got {raw!r}")


def _read_text(text: str, kind: Any) -> Any:
    try:
        return _READERS[kind](text)
    except (ValueError, KeyError) as error:
        raise ParameterError(f"expected {kind.__name__}; got {text!r}") from error


def _read_int(text: str) -> int:
    if not _INTEGER.fullmatch(text):
        raise ValueError(text)
    return int(text, 0 if text.lstrip("+-")[1:2].isalpha() else 10)


def _read_float(text: str) -> float:
    return float(re.sub(r"^([+-]?)\.(?=inf|nan)", r"\1", text.lower()))  # YAML writes .inf and .nan


_READERS: Mapping[Any, Callable[[str], Any]] = {
    NoneType: {"null": None, "None": None}.__getitem__,
    bool: lambda text: _BOOLS[text.lower()],
    int: _read_int,
    float: _read_float,
    str: str,
    date: date.fromisoformat,
    datetime: datetime.fromisoformat,
}


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    twins = [name for name, times in Counter(name for name, _ in pairs).items() if times > 1]
    if twins:
        raise ValueError(f"given twice: {', '.join(twins)}")
    return dict(pairs)


class _Loader(yaml.BaseLoader):
    """Refuses what a file may not hold before anything comes of it."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> yaml.Node:
        event = self.peek_event()
        where = f"line {event.start_mark.line + 1}"
        if isinstance(event, yaml.AliasEvent) or event.anchor or event.tag:
            raise ParameterError(
                f"{where}: anchors, aliases and tags aren't allowed; remedy: write the value out"
            )
        if self.depth > _DEPTH:
            raise ParameterError(f"{where}: nested deeper than {_DEPTH}")
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def _build(node: yaml.Node) -> Any:
    if isinstance(node, yaml.ScalarNode):
        return Plain(node.value) if node.style is None else node.value
    if isinstance(node, yaml.SequenceNode):
        return [_build(item) for item in node.value]
    where = f"line {node.start_mark.line + 1}"
    pairs = [(_build(key), _build(value)) for key, value in node.value]
    if not all(isinstance(key, str) for key, _ in pairs):
        raise ParameterError(f"{where}: names must be texts")
    try:
        return _without_twins([(str(key), value) for key, value in pairs])
    except ValueError as error:
        raise ParameterError(f"{where}: {error}") from error
