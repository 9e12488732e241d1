"""Both frameworks on one page: what their runs of a notebook share stands there once, the rest in tabs."""

import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from itertools import groupby
from textwrap import dedent
from typing import Any

import nbformat
from docutils import nodes
from nbformat import NotebookNode
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform
from sphinx_design.shared import create_component

__all__ = ["FRAMEWORKS", "in_tabs", "merge", "setup"]

FRAMEWORKS = {"torch": "PyTorch", "tensorflow": "TensorFlow"}
_SVG = "image/svg+xml"
_NAMED = re.compile(r'(?:\bid="|#)[\w.-]+')  # after what is drawn, down to the last digit
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_VISIBLE = 0.7  # points, half a line's width; scales and colours have whole or small numbers
_GUARD = re.compile(r'if backend == "\w+":\n+((?:[ \t].*|\n)+)')


def in_tabs(texts: Mapping[str, str]) -> str:
    """Write texts in Markdown, by framework, as tabs; all tabs of a page follow the one that is chosen."""
    items = (
        f":::::{{tab-item}} {FRAMEWORKS[key]}\n:sync: {key}\n\n{text}\n:::::\n" for key, text in texts.items()
    )
    return "\n".join(["::::::{tab-set}", ":sync-group: framework\n", *items, "::::::\n"])


def merge(runs: Mapping[str, NotebookNode]) -> NotebookNode:
    """Make one notebook of the runs of one with each framework; cells tagged for another one are left out.

    Where their outputs differ, a cell for each framework holds them; cells of one framework are tagged.
    """
    merged = next(iter(runs.values())).copy()
    rows = zip(*(node.cells for node in runs.values()), strict=True)
    merged.cells = [cell for row in rows for cell in _merged(dict(zip(runs, row)))]
    return merged


def _merged(cells: Mapping[str, NotebookNode]) -> Iterator[NotebookNode]:
    first = next(iter(cells.values()))
    own = FRAMEWORKS.keys() & set(first.metadata.get("tags", []))
    if own:
        yield from (cell for key, cell in cells.items() if key in own or key not in FRAMEWORKS)
    elif all(_shown(cell) == _shown(first) and _alike(cell, first) for cell in cells.values()):
        yield first
    elif first.cell_type == "markdown":
        texts = {key: cell.source for key, cell in cells.items()}
        yield nbformat.v4.new_markdown_cell(in_tabs(texts), id=first.id)
    elif any(cell.source != first.source for cell in cells.values()):
        yield from (_tagged(cell, key, *cell.metadata.tags) for key, cell in cells.items())
    else:
        yield deepcopy(NotebookNode(first | {"outputs": []}))
        for key, cell in cells.items():
            cell.source = f"# What it shows with {FRAMEWORKS[key]}"
            yield _tagged(cell, key, "remove-input")


def _shown(cell: NotebookNode) -> list[Any]:
    """List what a reader sees of a cell, other than figures, which have their texts."""
    outputs = [output for output in cell.get("outputs", []) if output.get("name") != "stderr"]
    data = [{mime: mime == _SVG or shown for mime, shown in o.get("data", {}).items()} for o in outputs]
    return [cell.source, cell.metadata.get("mystnb"), data, [o.get("text") for o in outputs]]


def _alike(one: NotebookNode, other: NotebookNode) -> bool:
    """Say whether the figures of two cells look the same."""
    figures = (
        [o.data[_SVG] for o in cell.get("outputs", []) if _SVG in o.get("data", {})] for cell in (one, other)
    )
    for drawn in zip(*figures, strict=True):
        bare = [_NAMED.sub("", svg) for svg in drawn]
        places = zip(*(map(float, _NUMBER.findall(svg)) for svg in bare))
        if len({_NUMBER.sub("", svg) for svg in bare}) > 1 or any(abs(x - y) > _VISIBLE for x, y in places):
            return False
    return True


def _tagged(cell: NotebookNode, framework: str, *tags: str) -> NotebookNode:
    cell.metadata.tags = [framework, *tags]
    cell.id = f"{framework}-{cell.id}"[:64]
    return cell


class _Tabs(SphinxTransform):
    """Put cells that are tagged for one framework into tabs, a set for each row of them."""

    default_priority = 210

    def apply(self, **options: object) -> None:
        own = [each for each in self.document.findall(nodes.container) if _framework(each)]
        for cell in own:
            for block in cell.findall(nodes.literal_block):
                if guarded := _GUARD.fullmatch(f"{block.astext()}\n"):  # the tab says it
                    block.rawsource = dedent(guarded[1]).strip()  # or else Sphinx takes it for no code
                    block.clear()
                    block += nodes.Text(block.rawsource)
        for parent in {id(cell.parent): cell.parent for cell in own}.values():
            children = [*parent.children]
            parent.clear()
            for apart, group in groupby(children, key=lambda child: bool(_framework(child))):
                cells = [*group]
                parent += [_apart(row) for row in _rows(cells)] if apart else cells


class _Opened(SphinxTransform):
    """Open all tabs of a page on the framework that its first ones begin with: that of who asked."""

    default_priority = 220  # after those above

    def apply(self, **options: object) -> None:
        items = [node for node in self.document.findall(nodes.container) if _is(node, "tab-item")]
        frameworks = [item[0].get("sync_id") for item in items if isinstance(item[0], nodes.Element)]
        for item, framework in zip(items, frameworks):
            item["selected"] = framework == frameworks[0] and framework in FRAMEWORKS


def _is(node: nodes.Element, component: str) -> bool:
    return str(node.get("design_component")) == component


def _rows(cells: Sequence[nodes.Node]) -> Iterator[dict[str, list[nodes.Node]]]:
    """Begin a new row where a framework comes again after the other one."""
    row: dict[str, list[nodes.Node]] = {}
    before = ""
    for cell in cells:
        key = _framework(cell)
        if key in row and key != before:
            yield row
            row = {}
        row.setdefault(key, []).append(cell)
        before = key
    yield row


def _apart(row: Mapping[str, Sequence[nodes.Node]]) -> nodes.container:
    items = []
    for key in sorted(row, key=list(FRAMEWORKS).index):
        title = FRAMEWORKS[key] if len(row) > 1 else f"Only in {FRAMEWORKS[key]}"
        label = nodes.rubric("", title, classes=["sd-tab-label"])
        if len(row) > 1:
            label["sync_id"], label["sync_group"] = key, "framework"
        body = create_component("tab-content", ["sd-tab-content"], children=row[key])
        item = create_component("tab-item", ["sd-tab-item"], children=[label, body], selected=False)
        items.append(item)
    return create_component("tab-set", ["sd-tab-set"], children=items)


def _framework(node: nodes.Node) -> str:
    """Say for which framework alone a cell is, if for one."""
    classes = node.get("classes", []) if isinstance(node, nodes.container) else []
    return next((key for key in FRAMEWORKS if f"tag_{key}" in classes), "")


def setup(app: Sphinx) -> None:
    """Register the transforms."""
    app.add_transform(_Tabs)
    app.add_transform(_Opened)
