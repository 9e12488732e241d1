"""Annotations and defaults of parameters, read from their syntax and never evaluated."""

import ast
from datetime import UTC, date, datetime
from types import NoneType
from typing import Annotated, Any, Literal, Union

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

_NAMED: dict[str, tuple[Any, str]] = {
    **{kind.__name__: (kind, kind.__name__) for kind in (bool, int, float, str, date, datetime)},
    "PositiveInt": (PositiveInt, "int above 0"),
    "NonNegativeInt": (NonNegativeInt, "int at least 0"),
    "PositiveFloat": (PositiveFloat, "float above 0"),
    "NonNegativeFloat": (NonNegativeFloat, "float at least 0"),
    "Any": (Any, "any plain value"),
    "list": (list[Any], "list"),
    "List": (list[Any], "list"),
    "dict": (dict[str, Any], "dict"),
    "Dict": (dict[str, Any], "dict"),
}
_LENGTHS = ("min_length", "max_length")
_WORDS = {
    "gt": "above {}",
    "ge": "at least {}",
    "lt": "below {}",
    "le": "at most {}",
    "multiple_of": "a multiple of {}",
    "min_length": "of length at least {}",
    "max_length": "of length at most {}",
}


def resolve(node: ast.expr) -> tuple[Any, str]:
    """Turn an annotation into a type for pydantic, and into words, such as ``float above 0 and at most 1``.

    A LookupError says that values can't be checked by it, a ValueError that its range makes no sense.
    """
    text, name = ast.unparse(node), _last_name(node)
    if text == "None":
        return NoneType, text
    if name in _NAMED:
        return _NAMED[name]
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return resolve(parse_annotation(node.value))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _union([node.left, node.right])
    if isinstance(node, ast.Subscript):
        items = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        match _last_name(node.value):
            case "Literal" if choices := [ast.literal_eval(item) for item in items]:
                if {type(choice) for choice in choices} <= {bool, int, str, NoneType}:
                    return Literal[tuple(choices)], text
            case "Annotated" if len(items) == 2:
                return _annotated(*items)
            case "Union":
                return _union(items)
            case "Optional" if len(items) == 1:
                return _union([*items, ast.Constant(None)])
            case "list" | "List" if len(items) == 1:
                item, words = resolve(items[0])
                return list[item], f"list[{words}]"  # type: ignore[valid-type]  # made at run time
            case "dict" | "Dict" if len(items) == 2 and ast.unparse(items[0]) == "str":
                item, words = resolve(items[1])
                return dict[str, item], f"dict[str, {words}]"  # type: ignore[valid-type]  # made at run time
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
            return _NAMED[name][0](*arguments, **options)
        case ast.List():
            return [read_default(item) for item in node.elts]
        case ast.Dict() if None not in node.keys:
            keys = [ast.literal_eval(key) for key in node.keys if key is not None]
            return dict(zip(keys, [read_default(value) for value in node.values]))
    return ast.literal_eval(node)


def _last_name(node: ast.expr) -> str:
    """Return ``List`` for ``typing.List`` and for ``List``."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _union(members: list[ast.expr]) -> tuple[Any, str]:
    types, words = zip(*map(resolve, members))
    return Union[types], " | ".join(words)  # noqa: UP007  # the operator needs types


def _option(node: ast.expr) -> Any:
    return UTC if ast.unparse(node) in ("UTC", "timezone.utc") else ast.literal_eval(node)


def _annotated(base: ast.expr, field: ast.expr) -> tuple[Any, str]:
    """Read ``Annotated[base, Field(gt=0)]``, where all arguments of ``Field`` are literals."""
    type_, words = resolve(base)
    if not isinstance(field, ast.Call) or _last_name(field.func) != "Field":
        return type_, words  # somebody else's
    if field.args:
        raise ValueError(f"expected Annotated[X, Field(name=literal)]; got {ast.unparse(field)}")
    options = {option.arg or "**": ast.literal_eval(option.value) for option in field.keywords}
    for name, value in options.items():
        _check_option(type_, words, name, value)
    said = [_WORDS[name].format(value) for name, value in options.items() if name in _WORDS]
    if options.get("allow_inf_nan") is False:
        words = f"finite {words}"
    if "multiple_of" in options and type_ is float:
        options["allow_inf_nan"] = False  # pydantic would let NaN pass as a multiple of anything
    return Annotated[type_, Field(**options)], f"{words} {' and '.join(said)}".rstrip()


def _check_option(type_: Any, words: str, name: str, value: Any) -> None:
    kind = getattr(type_, "__origin__", type_)
    number = isinstance(value, int | float) and not isinstance(value, bool) and value == value
    if name == "allow_inf_nan":
        fits = kind is float and isinstance(value, bool)
    elif name in _LENGTHS:
        fits = kind in (str, list, dict) and type(value) is int and value >= 0
    else:
        fits = name in _WORDS and kind in (int, float) and number and (name != "multiple_of" or value > 0)
    if not fits:
        raise ValueError(
            "Field takes gt, ge, lt, le or multiple_of (above 0) for int and float, min_length or max_length "
            f"for str, list and dict, and allow_inf_nan for float; got {name}={value!r} for {words}"
        )
