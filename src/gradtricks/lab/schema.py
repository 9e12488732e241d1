"""The parameters of a notebook: read from its tagged cell, checked before any kernel starts."""

import ast
import io
import tokenize
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any, Literal, Union, get_args

import nbformat
from nbformat import NotebookNode
from pydantic import TypeAdapter, ValidationError

_SIMPLE = {"bool": bool, "int": int, "float": float, "str": str, "None": NoneType}
_GENERIC: dict[str, Any] = {"list": list, "dict": dict}


class ParameterError(ValueError):
    """Parameters that a notebook doesn't take; the message lists everything that is wrong."""


@dataclass(frozen=True)
class Parameter:
    """One parameter that a notebook declares.

    Attributes:
        name: Name of the variable.
        annotation: Its type as written.
        type: Its type.
        default: Value when none is given.
        meaning: The comment behind it.
    """

    name: str
    annotation: str
    type: Any
    default: Any
    meaning: str


def read_notebook(path: Path) -> NotebookNode:
    """Read a notebook.

    Args:
        path: Where it is.

    Returns:
        The notebook.

    Raises:
        FileNotFoundError: There is no such file.
        ParameterError: The file is no notebook.
    """
    if not path.is_file():
        raise FileNotFoundError(f"expected a notebook at {path}; got nothing there")
    try:
        return nbformat.read(path, as_version=4)
    except ValueError as error:
        raise ParameterError(f"expected a notebook at {path}; got a file that isn't one ({error})") from error


def read_parameters(notebook: NotebookNode, path: str) -> dict[str, Parameter]:
    """Read the parameters that a notebook declares.

    Args:
        notebook: With exactly one code cell tagged ``parameters``, holding lines such as
            ``seed: int = 0  # seeds NumPy and the framework``.
        path: Where the notebook is, for messages.

    Returns:
        The parameters by name.

    Raises:
        ParameterError: There is no such cell, or it holds something else.
    """
    cells = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    if len(cells) != 1:
        raise ParameterError(f"{path}: expected one cell tagged 'parameters'; got {len(cells)}")
    source = cells[0].source
    try:
        statements, comments = ast.parse(source).body, _comments(source)
    except (SyntaxError, tokenize.TokenError) as error:
        raise ParameterError(f"{path}: the parameters cell can't be read: {error}") from error
    parameters = {}
    for node in statements:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name) or node.value is None:
            raise ParameterError(
                f"{path}: the parameters cell may hold only lines such as 'seed: int = 0  # meaning'; "
                f"got {ast.unparse(node)!r}"
            )
        name = node.target.id
        try:
            type_, default = _resolve(node.annotation), ast.literal_eval(node.value)
            TypeAdapter(type_).validate_python(default, strict=True)
        except (ValueError, TypeError) as error:
            raise ParameterError(f"{path}: parameter {name}: {_first_line(error)}") from error
        meaning = comments.get(node.lineno, "")
        parameters[name] = Parameter(name, ast.unparse(node.annotation), type_, default, meaning)
    return parameters


def check_parameters(declared: Mapping[str, Parameter], given: Mapping[str, Any]) -> dict[str, Any]:
    """Check the values given for a notebook's parameters, and fill in the defaults.

    Args:
        declared: What `read_parameters` returned.
        given: Values by name, of the declared types exactly.

    Returns:
        A value for every declared parameter.

    Raises:
        ParameterError: A name is unknown or a value is of the wrong type; all such are listed.
    """
    problems = [
        f"{name}: unknown; the notebook takes {', '.join(declared)}" for name in given if name not in declared
    ]
    values = {name: parameter.default for name, parameter in declared.items()}
    for name, value in given.items():
        if name not in declared:
            continue
        try:
            values[name] = TypeAdapter(declared[name].type).validate_python(value, strict=True)
        except ValidationError:
            meaning = f" ({declared[name].meaning})" if declared[name].meaning else ""
            problems.append(f"{name}: expected {declared[name].annotation}{meaning}; got {value!r}")
    if problems:
        raise ParameterError("\n".join(problems))
    return values


def parse_value(parameter: Parameter, text: str) -> Any:
    """Read a value from the command line by the parameter's type.

    Args:
        parameter: Says which type is expected.
        text: What was typed; JSON for lists, dicts and None, otherwise the bare value.

    Returns:
        The value, or ``text`` itself where it doesn't fit, for `check_parameters` to refuse.
    """
    adapter = TypeAdapter(parameter.type)
    if text == "null" and NoneType in get_args(parameter.type):
        return None
    for read in (adapter.validate_strings, adapter.validate_json):
        try:
            return read(text)
        except ValidationError:
            continue
    return text


def parse_values(notebook: Path, given: Iterable[str]) -> dict[str, Any]:
    """Read ``name=value`` texts from the command line by the types that a notebook declares.

    Args:
        notebook: Path of the source notebook.
        given: Such as ``seed=3``.

    Returns:
        Values by name, for `check_parameters`.

    Raises:
        ParameterError: A text has another form, or a name comes twice.
    """
    declared = read_parameters(read_notebook(notebook), str(notebook))
    values: dict[str, Any] = {}
    for text in given:
        name, separator, value = text.partition("=")
        if not separator:
            raise ParameterError(f"expected name=value; got {text!r}")
        if name in values:
            raise ParameterError(f"{name}: given twice")
        values[name] = parse_value(declared[name], value) if name in declared else value
    return values


def _resolve(node: ast.expr) -> Any:
    """Turn an annotation into a type without evaluating code."""
    if isinstance(node, ast.Name) and node.id in _SIMPLE:
        return _SIMPLE[node.id]
    if isinstance(node, ast.Constant) and node.value is None:
        return NoneType
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return Union[_resolve(node.left), _resolve(node.right)]  # noqa: UP007  # the operator needs types
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
        items = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if node.value.id == "Literal":
            return Literal[tuple(ast.literal_eval(item) for item in items)]
        if node.value.id in _GENERIC:
            return _GENERIC[node.value.id][tuple(_resolve(item) for item in items)]
    raise ValueError(
        f"expected bool, int, float, str, Literal[...], X | None, list[X] or dict[str, X]; "
        f"got {ast.unparse(node)}"
    )


def _comments(source: str) -> dict[int, str]:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {t.start[0]: t.string.lstrip("# ") for t in tokens if t.type == tokenize.COMMENT}


def _first_line(error: ValueError | TypeError) -> str:
    if isinstance(error, ValidationError):
        return f"its default doesn't fit its type: {error.errors()[0]['msg']}"
    return str(error).splitlines()[0]
