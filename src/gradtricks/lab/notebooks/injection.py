"""A run's parameters, set in a notebook exactly."""

import keyword
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import nbformat
from nbformat import NotebookNode

from gradtricks.lab.encoding import encode
from gradtricks.lab.notebooks.texts import literal

INJECTED = "injected-parameters"  # the tag of the cell that sets a notebook's parameters
_COMMENT = "# Set by gradtricks: the parameters of this run."


def inject(node: NotebookNode, parameters: Mapping[str, Any]) -> NotebookNode:
    """Set a notebook's parameters, as `check_parameters` returned them, in a copy of it.

    One cell tagged ``injected-parameters`` stands behind the one tagged ``parameters``, as papermill puts it,
    in place of an older one. A ValueError says that no cell is tagged so, or that a name can't be a variable.
    """
    node = deepcopy(node)
    node.cells = [cell for cell in node.cells if INJECTED not in cell.metadata.get("tags", [])]
    if parameters:
        tags = [cell.metadata.get("tags", []) for cell in node.cells]
        place = next((i for i, each in enumerate(tags) if "parameters" in each), None)
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
    cell = nbformat.v4.new_code_cell("\n".join([_COMMENT, *lines]), metadata={"tags": [INJECTED]})
    taken = {other.get("id") for other in node.cells}
    cell["id"] = INJECTED if INJECTED not in taken else cell["id"]  # equal runs are equal files
    if node.get("nbformat_minor", 5) < 5:
        del cell["id"]  # older notebooks may not have any
    return cell
