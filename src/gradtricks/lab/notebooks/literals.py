"""Values as Python source, and the cell that sets a notebook's parameters to them."""

import keyword
import math
from collections.abc import Mapping
from copy import deepcopy
from datetime import date, datetime, timezone
from typing import Any

import nbformat
from nbformat import NotebookNode

from gradtricks.lab.encoding import encode

TAG = "injected-parameters"
_COMMENT = "# Set by gradtricks: the parameters of this run."
# Bits: Python may refuse to read decimal integers of more than 640 digits, never hexadecimal ones.
_LONG = 2000
_MATH = '__import__("math")'
_NOT_FINITE = {"nan": f"{_MATH}.nan", "inf": f"{_MATH}.inf", "-inf": f"-{_MATH}.inf"}


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
    if kind is date or (kind is datetime and _is_plain(value)):
        return repr(value).replace("datetime.", '__import__("datetime").')
    raise TypeError(
        "expected None, bool, int, float, str, date, datetime (with a fixed offset or none), "
        f"or lists and dicts of them; got {value!r} of type {kind.__name__}"
    )


def inject(node: NotebookNode, parameters: Mapping[str, Any]) -> NotebookNode:
    """Set a notebook's parameters, as `check_parameters` returned them, in a copy of it.

    One cell tagged ``injected-parameters`` stands behind the one tagged ``parameters``, as papermill puts it,
    in place of an older one. A ValueError says that no cell is tagged so, or that a name can't be a variable.
    """
    node = deepcopy(node)
    node.cells = [cell for cell in node.cells if not _has_tag(cell, TAG)]
    if parameters:
        place = next((i for i, cell in enumerate(node.cells) if _has_tag(cell, "parameters")), None)
        if place is None:
            raise ValueError("expected a cell tagged 'parameters'; got none, so parameters can't be set")
        node.cells.insert(place + 1, _cell(node, parameters))
    about = node.metadata.get("papermill")  # of an earlier run, or anything
    node.metadata.papermill = NotebookNode(about if isinstance(about, dict) else {})
    node.metadata.papermill["parameters"] = {name: encode(value, name) for name, value in parameters.items()}
    return node


def _cell(node: NotebookNode, parameters: Mapping[str, Any]) -> NotebookNode:
    for name in parameters:
        if not name.isidentifier() or keyword.iskeyword(name):
            raise ValueError(f"expected the name of a variable; got {name!r}")
    lines = [f"{name} = {literal(value)}" for name, value in parameters.items()]
    cell = nbformat.v4.new_code_cell("\n".join([_COMMENT, *lines]), metadata={"tags": [TAG]})
    taken = {other.get("id") for other in node.cells}
    cell["id"] = TAG if TAG not in taken else cell["id"]  # equal runs are equal files
    if node.get("nbformat_minor", 5) < 5:
        del cell["id"]  # older notebooks may not have any
    return cell


def _has_tag(cell: NotebookNode, tag: str) -> bool:
    return tag in cell.metadata.get("tags", [])


def _is_plain(value: datetime) -> bool:
    """Return whether the zone is a fixed offset without a name, so that ``repr`` says all of it."""
    offset = value.utcoffset()
    return value.tzinfo is None or (offset is not None and repr(value.tzinfo) == repr(timezone(offset)))
