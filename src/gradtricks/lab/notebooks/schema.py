"""The parameters of a notebook: read from its tagged cell, checked before any kernel starts."""

import ast
import io
import tokenize
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode
from pydantic import TypeAdapter, ValidationError
from pydantic_core import SchemaError

from gradtricks.lab.notebooks import texts
from gradtricks.lab.notebooks.annotations import read_default, resolve

_SHOWN = 120  # characters of a wrong value


class ParameterError(ValueError):
    """Parameters that a notebook doesn't take; the message lists everything that is wrong."""


@dataclass(frozen=True)
class Parameter:
    """One parameter that a notebook declares.

    Attributes:
        name: Name of the variable.
        annotation: Its type as written.
        expected: Its type in words, such as ``float above 0 and at most 1``.
        type: Its type.
        default: Value when none is given.
        meaning: The comment behind it.
    """

    name: str
    annotation: str
    expected: str
    type: Any
    default: Any
    meaning: str

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        return TypeAdapter(self.type)

    def check(self, value: Any) -> Any:
        """Check a value.

        Args:
            value: Of the declared type exactly; only an int may stand for a float.

        Returns:
            The value in the types that `literal` writes.

        Raises:
            ParameterError: It is of another type, or out of the declared range.
        """
        try:
            return _plain(self._adapter.validate_python(value, strict=True))
        except ValidationError as error:
            meaning = f" ({self.meaning})" if self.meaning else ""
            raise ParameterError(
                f"{self.name}: expected {self.expected}{meaning}; got {shown(value)}"
            ) from error


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
    except (ValueError, AttributeError, nbformat.ValidationError) as error:
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
    except (SyntaxError, UnicodeError, tokenize.TokenError) as error:
        raise ParameterError(f"{path}: the parameters cell can't be read: {error}") from error
    parameters: dict[str, Parameter] = {}
    problems = []
    for node in statements:
        try:
            parameter = _read_parameter(node, comments)
        except ParameterError as error:
            problems.append(f"{path}: {error}")
            continue
        if parameter.name in parameters:
            problems.append(f"{path}: parameter {parameter.name}: declared twice")
        parameters[parameter.name] = parameter
    if problems:
        raise ParameterError("\n".join(problems))
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
    problems = []
    values = {name: parameter.default for name, parameter in declared.items()}
    for name, value in given.items():
        try:
            values[name] = find_parameter(declared, name).check(value)
        except ParameterError as error:
            problems.append(str(error))
    if problems:
        raise ParameterError("\n".join(problems))
    return values


def find_parameter(declared: Mapping[str, Parameter], name: str) -> Parameter:
    """Find a parameter by its name.

    Args:
        declared: What `read_parameters` returned.
        name: Of a parameter.

    Returns:
        The parameter.

    Raises:
        ParameterError: There is none of that name; the message names the nearest.
    """
    if name in declared:
        return declared[name]
    near = get_close_matches(name, declared, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    raise ParameterError(f"{name}: unknown{hint}; the notebook takes {', '.join(declared) or 'nothing'}")


def parse_value(parameter: Parameter, text: str) -> Any:
    """Read a value from the command line by the parameter's type.

    Args:
        parameter: Says which type is expected.
        text: What was typed; JSON for lists, dicts and None, otherwise the bare value.

    Returns:
        The value, or ``text`` itself where it doesn't fit, for `check_parameters` to refuse.
    """
    try:
        return texts.read(texts.Plain(text), parameter.type)
    except texts.TextError:
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
    for name, text in split_names(given).items():
        values[name] = parse_value(declared[name], text) if name in declared else text
    return values


def split_names(given: Iterable[str]) -> dict[str, str]:
    """Split ``name=value`` texts.

    Args:
        given: Such as ``seed=3``.

    Returns:
        Texts by name.

    Raises:
        ParameterError: A text has another form, or a name comes twice; all such are listed.
    """
    problems = []
    values: dict[str, str] = {}
    for text in given:
        name, separator, value = text.partition("=")
        if not separator:
            problems.append(f"expected name=value; got {text!r}")
        elif name in values:
            problems.append(f"{name}: given twice")
        values[name] = value
    if problems:
        raise ParameterError("\n".join(problems))
    return values


def shown(value: Any) -> str:
    """Write a wrong value for a message.

    Args:
        value: Of any type and size.

    Returns:
        Its ``repr``, or the beginning of it.
    """
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python writes
        text = hex(value) if isinstance(value, int) else f"a {type(value).__name__}"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(text)} characters)"


def _read_parameter(node: ast.stmt, comments: Mapping[int, str]) -> Parameter:
    if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name) or node.value is None:
        raise ParameterError(
            "the parameters cell may hold only lines such as 'seed: int = 0  # meaning'; "
            f"got {ast.unparse(node)!r}"
        )
    name = node.target.id
    meaning = comments.get(node.end_lineno or 0) or comments.get(node.lineno, "")
    try:
        type_, expected = resolve(node.annotation)
        parameter = Parameter(name, ast.unparse(node.annotation), expected, type_, None, meaning)
        default = read_default(node.value)
    except (ValueError, TypeError, OverflowError) as error:
        raise ParameterError(f"parameter {name}: {str(error).splitlines()[0]}") from error
    try:
        return replace(parameter, default=parameter.check(default))
    except ParameterError as error:
        message = f"its default doesn't fit its type: expected {expected}; got {shown(default)}"
        raise ParameterError(f"parameter {name}: {message}") from error
    except SchemaError as error:  # such as a choice that isn't valid Unicode
        raise ParameterError(f"parameter {name}: {str(error).splitlines()[-1].strip()}") from error


def _plain(value: Any) -> Any:
    """Give each time the one kind of zone that can be written out: an offset."""
    if isinstance(value, datetime):
        offset = value.utcoffset()
        return value.replace(tzinfo=None if offset is None else timezone(offset))
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _comments(source: str) -> dict[int, str]:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {t.start[0]: t.string.lstrip("# ") for t in tokens if t.type == tokenize.COMMENT}
