"""Annotations and defaults of parameters, read from their syntax and never evaluated."""

import ast
from datetime import UTC, date, datetime
from types import NoneType
from typing import Annotated, Any, Literal, Union

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

_SIMPLE: dict[str, Any] = {
    "bool": bool,
    "int": int,
    "float": float,
    "str": str,
    "date": date,
    "datetime": datetime,
    "None": NoneType,
}
_SHORTHANDS: dict[str, tuple[Any, str]] = {
    "PositiveInt": (PositiveInt, "int above 0"),
    "NonNegativeInt": (NonNegativeInt, "int at least 0"),
    "PositiveFloat": (PositiveFloat, "float above 0"),
    "NonNegativeFloat": (NonNegativeFloat, "float at least 0"),
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
    """Turn an annotation into a type.

    Args:
        node: Its syntax.

    Returns:
        The type for pydantic, and the same in words, such as ``float above 0 and at most 1``.

    Raises:
        ValueError: It is none that a parameter may have.
    """
    text = ast.unparse(node)
    if text in _SIMPLE:
        return _SIMPLE[text], text
    if text in _SHORTHANDS:
        return _SHORTHANDS[text]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        (left, left_words), (right, right_words) = resolve(node.left), resolve(node.right)
        return Union[left, right], f"{left_words} | {right_words}"  # noqa: UP007  # the operator needs types
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
        items = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        match node.value.id:
            case "Literal" if choices := [ast.literal_eval(item) for item in items]:
                if {type(choice) for choice in choices} <= {bool, int, str, NoneType}:
                    return Literal[tuple(choices)], text
            case "Annotated" if len(items) == 2:
                return _annotated(*items)
            case "list" if len(items) == 1:
                item, words = resolve(items[0])
                return list[item], f"list[{words}]"  # type: ignore[valid-type]  # made at run time
            case "dict" if len(items) == 2 and ast.unparse(items[0]) == "str":
                item, words = resolve(items[1])
                return dict[str, item], f"dict[str, {words}]"  # type: ignore[valid-type]  # made at run time
    raise ValueError(
        "expected bool, int, float, str, date, datetime, Literal[...], X | None, list[X], dict[str, X], "
        f"Annotated[X, Field(...)], {', '.join(_SHORTHANDS)}; got {text}"
    )


def read_default(node: ast.expr) -> Any:
    """Read a default.

    Args:
        node: Its syntax.

    Returns:
        The value of a literal, of ``float("nan")`` and its like, or of ``date(...)`` or ``datetime(...)``.

    Raises:
        ValueError: It is anything else.
    """
    match node:
        case ast.Call(func=ast.Name(id="float"), args=[ast.Constant(value=str(text))], keywords=[]):
            return float(text)
        case ast.Call(func=ast.Name(id="date" | "datetime" as name)):
            arguments = [ast.literal_eval(argument) for argument in node.args]
            options = {option.arg or "**": _option(option.value) for option in node.keywords}
            return _SIMPLE[name](*arguments, **options)
        case ast.List():
            return [read_default(item) for item in node.elts]
        case ast.Dict() if None not in node.keys:
            keys = [ast.literal_eval(key) for key in node.keys if key is not None]
            return dict(zip(keys, [read_default(value) for value in node.values]))
    return ast.literal_eval(node)


def _option(node: ast.expr) -> Any:
    return UTC if ast.unparse(node) in ("UTC", "timezone.utc") else ast.literal_eval(node)


def _annotated(base: ast.expr, field: ast.expr) -> tuple[Any, str]:
    """Read ``Annotated[base, Field(gt=0)]``, where all arguments of ``Field`` are literals."""
    if not isinstance(field, ast.Call) or ast.unparse(field.func) != "Field" or field.args:
        raise ValueError(f"expected Annotated[X, Field(name=literal)]; got {ast.unparse(field)}")
    type_, words = resolve(base)
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
