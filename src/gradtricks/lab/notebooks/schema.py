"""Read a notebook's declarations: parameters, which are checked before any kernel starts, and settings."""

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date, datetime
from functools import cached_property
from pathlib import Path, PurePath
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

import nbformat
from nbformat import NotebookNode
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError, SchemaError

from gradtricks.lab.notebooks.declarations import (
    Assigned,
    assignments,
    infer,
    optional,
    parse_annotation,
    parse_cell,
    read_default,
    resolve,
)
from gradtricks.lab.notebooks.texts import ParameterError as ParameterError  # also for who imports this one
from gradtricks.lab.notebooks.texts import Plain, Problems, alike, as_json, literal
from gradtricks.lab.notebooks.texts import excerpt as excerpt

_TYPE_COMMENT = re.compile(r"type:\s*([\w.]+(?:\[.*\])?)\s*(.*)")
_KINDS = (NoneType, bool, int, float, str, date, datetime, list, dict)
_BOOL = ", written true, yes, on, false, no or off"

# Of a text of which nothing is declared; only a declared bool can be meant by ``no``.
_UNDECLARED: TypeAdapter[Any] = TypeAdapter(Annotated[int | float | str, Field(union_mode="left_to_right")])
_ANY: TypeAdapter[Any] = TypeAdapter(Any)


def _read(written: Any, declared: TypeAdapter[Any], plain: TypeAdapter[Any]) -> Any:
    """Read JSON, in which dates are texts; other texts, such as ``no`` and ``007``, by a type for these."""
    try:
        text = as_json(written)
    except ValueError:
        return plain.validate_strings(str(written), strict=True)
    return declared.validate_json(text, strict=True)


@dataclass(frozen=True)
class Parameter:
    """One parameter of a notebook."""

    name: str
    expected: str  # its type in words, such as ``float above 0 and at most 1``
    type: Any  # declared, or taken from the default
    default: Any = None  # None where only running the cell tells
    written: str = "None"  # as the cell has it
    computed: bool = False  # whether only running the cell tells
    meaning: str = ""  # the comment behind it
    inferred: bool = False  # whether its type is only that of its default

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        return TypeAdapter(self.type)

    @property
    def is_typed(self) -> bool:
        """Whether not any value will do."""
        return self.type is not Any

    @property
    def choices(self) -> tuple[Any, ...]:
        """The values of a ``Literal``."""
        return get_args(self.type) if get_origin(self.type) is Literal else ()

    def read(self, written: Any) -> Any:
        """Read and check a value as written: `Plain`, ``str`` where it was quoted, or made of these."""
        if type(written) is Plain and written in self.choices:
            return str(written)
        with suppress(ValueError, TypeError):
            value = _read(written, self._adapter, self._adapter if self.is_typed else _UNDECLARED)
            literal(value)
            return value
        return self.check(written)  # a text may look like something else

    def check(self, value: Any) -> Any:
        """Check a value: of the declared type exactly, but that an int may stand for a float."""
        try:
            checked = self._adapter.validate_python(value, strict=True)
            literal(checked)
            return checked
        except (ValidationError, TypeError) as error:
            meaning = f" ({self.meaning})" if self.meaning else ""
            words = _BOOL if "bool" in self.expected.split(" | ") else ""
            with suppress(ValueError, TypeError):
                value = _read(value, _ANY, _UNDECLARED)
            said = f"{self.name}: expected {self.expected}{words}{meaning}; got {excerpt(value)}"
            raise ParameterError(said + self._remedy(value)) from error

    def _remedy(self, got: Any) -> str:
        """Say how to let a value of another type pass where only the default says a type."""
        if not (self.inferred and self.is_typed) or type(got) not in _KINDS:
            return ""
        kind = "None" if got is None else type(got).__name__
        wanted = kind if (self.expected, kind) == ("int", "float") else f"{self.expected} | {kind}"
        return (
            f"; remedy: its default says {self.expected}; where {kind} is meant too, write "
            f"{self.name}: {wanted} = {self.written}"
        )


def _check_pattern(pattern: str) -> str:
    """Refuse patterns that `Path.glob` doesn't take, or that reach above the notebook's folder."""
    parts = PurePath(pattern).parts
    if not parts or PurePath(pattern).anchor or any(p == ".." or ("**" in p and p != "**") for p in parts):
        said = "Input should be a pattern such as data/*.csv, of files beside the notebook"
        raise PydanticCustomError("pattern", said)
    return pattern


class Settings(BaseModel):
    """How a notebook is to be run; CONTRIBUTING.md has the keys in a table."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    threads: int = Field(1, ge=1, le=1024)
    alone: bool = False
    expected_s: float | None = Field(None, ge=0, allow_inf_nan=False)
    fresh_kernel: bool = False
    reads: list[Annotated[str, AfterValidator(_check_pattern)]] = []
    quick: dict[str, Any] | None = None
    # Written by planning: the digest of each file that it reads, and where these files lie.
    read: dict[str, str] = Field({}, exclude=True)
    folder: str = Field("", exclude=True)


def read_notebook(path: Path) -> NotebookNode:
    """Read a notebook; a FileNotFoundError or ParameterError says that none is there."""
    if not path.is_file():
        raise FileNotFoundError(f"expected a notebook at {path}; got nothing there")
    try:
        notebook = nbformat.from_dict(nbformat.read(path, as_version=4))  # of an old version: another class
        for cell in notebook.cells:
            if not isinstance(cell.metadata.get("tags", []), list):
                raise ValueError(f"tags of a cell that are {excerpt(cell.metadata.tags)}")
        return notebook
    except (ValueError, TypeError, AttributeError, nbformat.ValidationError) as error:
        raise ParameterError(f"expected a notebook at {path}; got a file that isn't one ({error})") from error


def read_parameters(notebook: NotebookNode, path: str) -> dict[str, Parameter]:
    """Read the parameters of a notebook, as papermill means them.

    They are the variables that its first cell tagged ``parameters`` sets. Annotations, comments such as
    ``# type: float`` and defaults say which values they take; where nothing says it, any plain value does.
    A ParameterError says that the cell isn't Python, or that defaults contradict their annotations.
    """
    source = next((c.source for c in notebook.cells if "parameters" in c.metadata.get("tags", [])), "")
    problems, statements, comments = Problems(), list[ast.stmt](), dict[int, str]()
    with problems.noted(path):
        statements, comments = parse_cell(source)
    names = [each for statement in statements for each in ast.walk(statement) if isinstance(each, ast.Name)]
    used = Counter(each.id for each in names)
    bound = Counter(each.id for each in names if not isinstance(each.ctx, ast.Load))
    parameters: dict[str, Parameter] = {}
    for each in assignments(statements):
        # A cell may change a value by setting it again, and a list or dict by doing anything with it.
        steady = bound[each.name] == 1 and each.is_certain, used[each.name] == 1
        try:
            if each.is_certain or each.name not in parameters:
                parameters[each.name] = _parameter(each, comments, *steady)
        except (ValueError, SchemaError) as error:  # such as a choice that isn't valid Unicode
            problems.append(f"{path}: parameter {each.name}: {str(error).splitlines()[-1].strip()}")
    problems.refuse()
    return parameters


def read_settings(notebook: NotebookNode, path: str, **instead: Any) -> Settings:
    """Read how a notebook is to be run; ``instead`` holds instead of what it says.

    A ParameterError lists the keys that are unknown, and what doesn't fit.
    """
    said = notebook.metadata.get("gradtricks", {})
    if not isinstance(said, dict):
        raise ParameterError(
            f"{path}: expected metadata named gradtricks to hold settings by name; got {excerpt(said)}"
        )
    try:
        return Settings.model_validate({**said, **instead})
    except ValidationError as error:
        lines = (f"{path}: {problem}" for problem in faults(error, Settings))
        raise ParameterError("\n".join(lines)) from error


def faults(error: ValidationError, model: type[BaseModel]) -> Iterator[str]:
    """Yield one line per validation error."""
    keys = [field.alias or name for name, field in model.model_fields.items() if not field.exclude]
    for detail in error.errors(include_url=False):
        # Where several types are possible, pydantic says after which of them it looked.
        where = ".".join(str(place) for place in detail["loc"] if "[" not in str(place))
        if detail["type"] == "extra_forbidden" and len(detail["loc"]) == 1:
            yield f"{where}: unknown{alike(where, keys)}; expected {', '.join(keys)}"
        elif detail["type"] == "missing":
            yield f"{where}: missing"
        else:
            said = re.sub(r"^\w+ should (be|have)", "expected", detail["msg"])
            yield f"{where}: {said}; got {excerpt(detail['input'])}"


def check_parameters(
    declared: Mapping[str, Parameter], given: Mapping[str, Any] | Iterable[str]
) -> dict[str, Any]:
    """Check the values given for a notebook's parameters, of the declared types exactly; add the defaults.

    Texts such as ``name=value`` are read by these types. Returns a value for every parameter, but for
    defaults that only running the notebook tells. A ParameterError lists texts of another form, the names
    that are unknown and the values that are of the wrong type.
    """
    problems = Problems()
    values = {name: parameter.default for name, parameter in declared.items() if not parameter.computed}
    for name, value in by_name(given, problems).items():
        with problems.noted():
            parameter = find_parameter(declared, name)
            values[name] = parameter.read(value) if isinstance(value, Plain) else parameter.check(value)
    problems.refuse()
    return values


def find_parameter(declared: Mapping[str, Parameter], name: str) -> Parameter:
    """Find a parameter by its name; a ParameterError names the nearest."""
    if name in declared:
        return declared[name]
    taken = ", ".join(declared) or "nothing"
    raise ParameterError(f"{name}: unknown{alike(name, declared)}; the notebook takes {taken}")


def by_name(given: Mapping[str, Any] | Iterable[str], problems: Problems) -> dict[str, Any]:
    """Split ``name=value`` texts, if it is texts; others are noted, and names that come twice."""
    if isinstance(given, Mapping):
        return dict(given)
    values: dict[str, Any] = {}
    for text in given:
        name, separator, value = text.partition("=")
        if not separator:
            problems.append(f"expected name=value; got {text!r}")
            continue
        if name in values:
            problems.append(f"{name}: given twice")
        values[name] = Plain(value)
    return values


def _parameter(assigned: Assigned, comments: Mapping[int, str], set_once: bool, unused: bool) -> Parameter:
    name, node, value, written, _ = assigned
    meaning = comments.get(node.end_lineno or 0) or comments.get(node.lineno, "")
    annotation = node.annotation if isinstance(node, ast.AnnAssign) else None
    if value is None and annotation and ast.unparse(annotation) == "None":
        annotation = None  # as in ``x: None``, which only declares that it takes a value
    default: Any = None
    computed = True
    with suppress(ValueError, TypeError, OverflowError, RecursionError):
        default = read_default(value or ast.Name(""))
        literal(default)
        computed = not (set_once and (unused or not isinstance(default, list | dict)))
    default = None if computed else default
    try:
        if said := _TYPE_COMMENT.fullmatch(meaning):
            meaning = said[2]
            annotation = annotation or parse_annotation(said[1])
        type_, expected = resolve(annotation) if annotation else infer(default)
    except LookupError:
        type_, expected = infer(default)
    parameter = Parameter(name, expected, type_, default, written, computed, meaning, not annotation)
    if computed:
        return parameter
    try:
        return replace(parameter, default=parameter.check(default))
    except ParameterError as error:
        if default is None:  # as in ``count: int = None``
            type_, expected = optional(type_, expected)
            return replace(parameter, type=type_, expected=expected)
        raise ParameterError(
            f"its default doesn't fit its type: expected {expected}; got {excerpt(default)}"
        ) from error
