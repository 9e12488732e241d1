"""Read the cell tagged ``parameters`` from its syntax; nothing but literals and types is ever evaluated."""

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, timezone
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationInfo,
)

from gradtricks.lab.notebooks.texts import ParameterError
from gradtricks.warm.imports import parse

_WORDS = {
    "gt": "above {}",
    "ge": "at least {}",
    "lt": "below {}",
    "le": "at most {}",
    "multiple_of": "a multiple of {}",
    "min_length": "of length at least {}",
    "max_length": "of length at most {}",
    "allow_inf_nan": "",
}


def parse_cell(source: str) -> tuple[list[ast.stmt], dict[int, str]]:
    """Parse a cell: its statements, and its comments by their lines.

    Magics such as ``%matplotlib inline`` are read as IPython reads them. A ParameterError says which line
    can't be read.
    """
    try:
        try:
            tree = parse(source)
        except SyntaxError:
            from IPython.core.inputtransformer2 import TransformerManager  # slow to import

            source = TransformerManager().transform_cell(re.sub(r"\A\s*%%.*", "", source))
            tree = parse(source)
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        return tree.body, {t.start[0]: t.string.lstrip("# ") for t in tokens if t.type == tokenize.COMMENT}
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        said = f"line {error.lineno}: {error.msg}" if isinstance(error, SyntaxError) else error
        raise ParameterError(f"the parameters cell can't be read: {said}") from error


class Assigned(NamedTuple):
    """One name that a cell sets, or only annotates."""

    name: str
    node: ast.stmt
    value: ast.expr | None  # None where it can't be told, or there is none
    written: str  # the value as the cell has it
    is_certain: (
        bool  # whether the statement is carried out in any case, and gives no other name the same list
    )


def assignments(statements: Iterable[ast.stmt], *, in_branch: bool = False) -> Iterator[Assigned]:
    """Find the names that a cell sets: in plain assignments, chains of them and tuples, also in branches."""
    for node in statements:
        match node:
            case ast.Assign(targets=targets, value=value):
                shared = len(targets) > 1 and isinstance(value, ast.List | ast.Dict)
                found = [(*pair, not shared) for target in targets for pair in _pairs(target, value)]
            case ast.AnnAssign(target=ast.Name(id=name), value=value):
                found = [(name, value, True)]
            case ast.If() | ast.For() | ast.While() | ast.With() | ast.Try() | ast.TryStar() | ast.Match():
                found = []
                blocks = [getattr(node, part, []) for part in ("body", "orelse", "finalbody")]
                blocks += [each.body for part in ("handlers", "cases") for each in getattr(node, part, [])]
                for block in blocks:
                    yield from assignments(block, in_branch=True)
            case _:
                found = []
        for name, part, certain in found:
            written = ast.unparse(part) if part else ""
            written += " (in a branch)" * in_branch
            yield Assigned(name, node, part, written.strip(), certain and not in_branch)


def _pairs(target: ast.expr, value: ast.expr | None) -> Iterator[tuple[str, ast.expr | None]]:
    match target:
        case ast.Name(id=name):
            yield name, value
        case ast.Tuple(elts=targets) | ast.List(elts=targets):
            values: list[Any] = value.elts if isinstance(value, ast.Tuple | ast.List) else []
            starred = any(isinstance(each, ast.Starred) for each in (*targets, *values))
            known = len(values) == len(targets) and not starred
            for each, part in zip(targets, values if known else [None] * len(targets)):
                yield from _pairs(each, part)
        case ast.Starred(value=inner):
            yield from _pairs(inner, None)


def resolve(node: ast.expr) -> tuple[Any, str]:
    """Turn an annotation into a type for pydantic, and into words, such as ``float above 0 and at most 1``.

    A LookupError says that values can't be checked by it, a ValueError that its range makes no sense.
    """
    text, name = ast.unparse(node), _last_name(node)
    if text == "None":
        return _NONE
    if name in _NAMED:
        return _NAMED[name]
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return resolve(parse_annotation(node.value))
    if len(members := _members(node)) > 1:
        return _union(*map(resolve, members))
    if isinstance(node, ast.Subscript):
        items = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        match _last_name(node.value):
            case "Literal" if choices := [ast.literal_eval(item) for item in items]:
                if {type(choice) for choice in choices} <= {bool, int, str, NoneType}:
                    return Literal[tuple(choices)], text
            case "Annotated" if len(items) == 2:
                return _annotated(*items)
            case "Union":
                return _union(*map(resolve, items))
            case "Optional" if len(items) == 1:
                return optional(*resolve(items[0]))
            case "list" if len(items) == 1:
                item, words = resolve(items[0])
                return list[item], f"list[{words}]"  # type: ignore[valid-type]  # made here
            case "dict" if len(items) == 2 and ast.unparse(items[0]) == "str":
                item, words = resolve(items[1])
                return dict[str, item], f"dict[str, {words}]"  # type: ignore[valid-type]
    raise LookupError(text)


def parse_annotation(text: str) -> ast.expr:
    """Parse an annotation in a text or a comment; a LookupError says that it is none."""
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError) as error:
        raise LookupError(text) from error


def infer(default: Any) -> tuple[Any, str]:
    """Take the type of a parameter that declares none from its default, as `resolve`; None says nothing."""
    return _NAMED["Any" if default is None else type(default).__name__]


def optional(type_: Any, words: str) -> tuple[Any, str]:
    """Let a type, as `resolve` gives it, take None too."""
    return _union((type_, words), _NONE)


def read_default(node: ast.expr) -> Any:
    """Read a default: a literal, ``float("nan")`` and its like, ``date(...)`` or ``datetime(...)``.

    Anything else raises ValueError, TypeError, OverflowError or SyntaxError.
    """
    match node:
        case ast.Call(func=ast.Name(id="float"), args=[ast.Constant(value=str(text))], keywords=[]):
            return float(text)
        case ast.Call(func=ast.Name(id="date" | "datetime" as name)):
            arguments = [ast.literal_eval(argument) for argument in node.args]
            options = {option.arg or "**": _option(option.value) for option in node.keywords}
            return {"date": date, "datetime": datetime}[name](*arguments, **options)
        case ast.List():
            return [read_default(item) for item in node.elts]
        case ast.Dict() if None not in node.keys:
            keys = [ast.literal_eval(key) for key in node.keys if key is not None]
            return dict(zip(keys, [read_default(value) for value in node.values]))
    return ast.literal_eval(node)


def _option(node: ast.expr) -> Any:
    return UTC if ast.unparse(node) in ("UTC", "timezone.utc") else ast.literal_eval(node)


def _last_name(node: ast.expr) -> str:
    """Return ``list`` for ``typing.List``, ``List`` and ``list``."""
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return {"List": "list", "Dict": "dict"}.get(name, name)


def _read_time(value: Any, info: ValidationInfo) -> Any:
    """Read a time as ISO 8601 has it; pydantic would take a number in quotes for seconds since 1970."""
    return datetime.fromisoformat(value) if isinstance(value, str) and info.mode != "python" else value


def _with_offset(value: datetime) -> datetime:
    """Give a time the one kind of zone that can be written out: an offset."""
    offset = value.utcoffset()
    return value.replace(tzinfo=None if offset is None else timezone(offset))


def _members(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return [*_members(node.left), *_members(node.right)]
    return [node]


def _union(*members: tuple[Any, str]) -> tuple[Any, str]:
    types, words = zip(*members)
    others = [type_ for type_ in types if type_ is not NoneType] or [NoneType]
    # The operator needs types, and makes another kind of union of some.
    one: Any = Union[tuple(sorted(others, key=lambda type_: _ORDER.index(_kind(type_))))]  # noqa: UP007
    if len(others) > 1:
        one = Annotated[one, Field(union_mode="left_to_right")]
    return (Union[one, None] if NoneType in types else one), " | ".join(words)  # noqa: UP007


def _kind(type_: Any) -> Any:
    bare = get_args(type_)[0] if get_origin(type_) is Annotated else type_
    return get_origin(bare) or bare


def _annotated(base: ast.expr, field: ast.expr) -> tuple[Any, str]:
    """Read ``Annotated[base, Field(gt=0)]``, where all arguments of ``Field`` are literals."""
    type_, words = resolve(base)
    if not isinstance(field, ast.Call) or _last_name(field.func) != "Field":
        return type_, words  # of another library
    options = {option.arg or "**": ast.literal_eval(option.value) for option in field.keywords}
    if field.args or not options.keys() <= _WORDS.keys():
        raise ValueError(f"Field takes {', '.join(_WORDS)}, all by name; got {ast.unparse(field)}")
    said = [_WORDS[name].format(value) for name, value in options.items() if _WORDS[name]]
    if options.get("allow_inf_nan") is False:
        words = f"finite {words}"
    if "multiple_of" in options and _kind(type_) is float:
        options["allow_inf_nan"] = False  # pydantic would let NaN pass as a multiple of anything
    return Annotated[type_, Field(**options)], f"{words} {' and '.join(said)}".rstrip()


_ORDER = (NoneType, bool, int, float, date, datetime, list, dict, Literal, Union, str, Any)  # of trying
_NONE = NoneType, "None"
_NAMED: dict[str, tuple[Any, str]] = {
    **{kind.__name__: (kind, kind.__name__) for kind in (bool, int, float, str, date)},
    "datetime": (
        Annotated[datetime, BeforeValidator(_read_time), AfterValidator(_with_offset)],
        "datetime",
    ),
    "PositiveInt": (PositiveInt, "int above 0"),
    "NonNegativeInt": (NonNegativeInt, "int at least 0"),
    "PositiveFloat": (PositiveFloat, "float above 0"),
    "NonNegativeFloat": (NonNegativeFloat, "float at least 0"),
    "Any": (Any, "any plain value"),
    "list": (list[Any], "list"),
    "dict": (dict[str, Any], "dict"),
}
