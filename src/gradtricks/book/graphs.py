"""Computation graphs as text: what a drawing's lines say, and where its nodes stand."""

import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

__all__ = ["Edge", "GraphError", "Node", "Panel", "read_panels"]

_MOST_PANELS = 3
_ARROW = re.compile(r"\s(?:->|<(?! )([^<>\[\]]+?)(?<! )-)(?=\s)")
_NODE = re.compile(r"(?:\[(?P<box>[^\[\]#]+)\]|(?P<round>[^\[\]#<>]+))(?:#\w+)?")


class GraphError(ValueError):
    """A line of a drawing that can't be read; ``line`` counts from 0."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True)
class Node:
    """A value, or with ``box`` an operation; ``name`` tells apart what has the same label."""

    name: str
    label: str
    box: bool


@dataclass
class Edge:
    """An arrow forward, along its row; ``gradient`` labels the arrow back, None says that there is none."""

    start: Node
    end: Node
    gradient: str | None
    line: int
    row: int = 0

    @property
    def strength(self) -> float | None:
        """The size of a gradient that is a finite number, such as ``-1``, ``0.25`` or ``½``; else None."""
        text = (self.gradient or "").replace("−", "-")
        try:
            size = abs(unicodedata.numeric(text) if len(text) == 1 else float(text))
        except ValueError:
            return None
        return size if math.isfinite(size) else None


@dataclass
class Panel:
    """One graph: the line of its title, its arrows line by line, and for each node its column and row."""

    title: str
    line: int = 0
    chains: list[list[Edge]] = field(default_factory=list)
    places: dict[Node, tuple[int, int]] = field(default_factory=dict)

    @property
    def edges(self) -> list[Edge]:
        """All arrows, in the order in which they were written."""
        return [edge for chain in self.chains for edge in chain]


def read_panels(lines: Sequence[str]) -> list[Panel]:
    """Read the lines of a drawing into arranged panels; a GraphError names the line that is wrong.

    ``panel: Title`` begins a panel. Each other line is a chain: ``a <g- b`` is an arrow from a to b with the
    gradient g that comes back, ``a -> b`` one with which nothing comes back. A name is a value, a name in
    brackets an operation. The same name is the same node, unless ``#`` and a word follow.
    """
    panels: list[Panel] = []
    for number, line in enumerate(lines):
        title = re.fullmatch(r"\s*panel:(.*)", line)
        if title:
            panels.append(Panel(title[1].strip(), number))
        elif line.strip():
            panels = panels or [Panel("")]
            panels[-1].chains.append(_read_chain(line, number))
    if not 1 <= len(panels) <= _MOST_PANELS:
        raise GraphError(0, f"expected 1 to {_MOST_PANELS} panels; got {len(panels)}; remedy: two drawings")
    for panel in panels:
        if not panel.edges:
            raise GraphError(
                panel.line, f"expected a line such as x <1- y in each panel; got none in {panel.title!r}"
            )
        _arrange(panel)
    return panels


def _arrange(panel: Panel) -> None:
    """Give each node a column, by the longest path to it, and each chain a row, from above in their order.

    A chain's row is the first that is free wherever the chain passes or leaves for a row above.
    """
    columns = _columns(panel.edges)
    taken: dict[tuple[int, int], Node | None] = {}
    places = panel.places
    for chain in panel.chains:
        cells: dict[int, Node | None] = {}  # what the chain needs in its row, and for which node
        for edge in chain:
            cells |= {columns[node]: node for node in (edge.start, edge.end)}
            cells |= dict.fromkeys(_between(columns, edge))
        above = max((places[node][1] for node in cells.values() if node in places), default=0)
        row = next(
            row
            for row in count(above)
            if all(
                (column, row) not in taken or (node is not None and taken[column, row] == node)
                for column, node in cells.items()
            )
        )
        for edge in chain:
            for node in (edge.start, edge.end):
                places.setdefault(node, (columns[node], row))
            ends = {places[node][1] for node in (edge.start, edge.end)}
            edge.row = row if _between(columns, edge) or len(ends) > 1 else ends.pop()
        taken |= {(column, row): node for column, node in cells.items()}


def _between(columns: Mapping[Node, int], edge: Edge) -> range:
    return range(columns[edge.start] + 1, columns[edge.end])


def _read_chain(line: str, number: int) -> list[Edge]:
    texts = _ARROW.split(f" {line.strip()} ")
    nodes = [_read_node(text.strip(), number) for text in texts[::2]]
    if len(nodes) < 2:
        raise GraphError(number, f"expected an arrow, such as x <1- y or x -> y; got {line.strip()!r}")
    return [Edge(start, end, label, number) for start, end, label in zip(nodes, nodes[1:], texts[1::2])]


def _read_node(text: str, number: int) -> Node:
    found = _NODE.fullmatch(text)
    if found is None:
        raise GraphError(
            number,
            f"expected a value such as x, or an operation such as [floor]; got {text!r}; "
            "remedy: spaces around each arrow, x <1- y or x -> y, and a pair of brackets",
        )
    return Node(text, (found["box"] or found["round"]).strip(), found["box"] is not None)


def _columns(edges: Sequence[Edge]) -> dict[Node, int]:
    """Count the arrows of the longest path to each node; what leads on then moves as far right as it can."""
    pairs: set[tuple[Node, Node]] = set()
    for edge in edges:
        if (edge.start, edge.end) in pairs:
            raise GraphError(
                edge.line, f"expected one arrow from {edge.start.name} to {edge.end.name}; got a second one"
            )
        pairs.add((edge.start, edge.end))
    columns = dict.fromkeys((node for edge in edges for node in (edge.start, edge.end)), 0)
    for _ in columns:
        longer = [edge for edge in edges if columns[edge.end] <= columns[edge.start]]
        for edge in longer:
            columns[edge.end] = max(columns[edge.end], columns[edge.start] + 1)
    if longer:
        raise GraphError(
            longer[0].line,
            f"expected no way from {longer[0].end.name} back to itself; remedy: another node with the same "
            f"label is {longer[0].end.name}#2",
        )
    for node in sorted(columns, key=lambda node: -columns[node]):
        after = (columns[edge.end] for edge in edges if edge.start == node)
        columns[node] = min(after, default=columns[node] + 1) - 1
    return columns
