"""``{graph}``: computation graphs with what flows forward and what flows back, drawn as SVG."""

import math
import unicodedata
from collections.abc import Sequence
from html import escape
from itertools import groupby, pairwise
from typing import ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

from gradtricks.book.graphs import Edge, GraphError, Node, Panel, read_panels

__all__ = ["Graph", "drawn", "setup"]

logger = logging.getLogger(__name__)

# All lengths are CSS pixels, since a drawing is shown in its own size wherever it fits.
_VALUE, _OPERATION, _GRADIENT = 16, 14, 13  # sizes of the labels
_HEIGHT = 34  # of a node
_BOLD = 1.15  # how much wider than others a gradient's label is
_GAP, _TIGHT = 46, 30  # how long an arrow is where there is room, and where there isn't
_APART = 6.5  # from the line between two nodes to the arrow forward, and to the arrow back
_CLEAR = 4  # between an arrow and a node
_HEAD = 7
_ROUND = 14  # radius of corners
_PHONE = 340  # what a page on a phone has room for
_SMALLEST = 11  # size of a label that is shrunk with its drawing
_COLUMN = 672  # width of the text

_Box = tuple[float, float, float, float]  # along the arrows and across them: middle, middle, size, size


def drawn(panels: Sequence[Panel], alt: str) -> str:
    """Draw arranged panels as HTML, once more downwards where they are too wide for a phone.

    A GraphError says which panel has no room.
    """
    wide = [_Drawing(panel, down=False) for panel in panels]
    narrow = [_Drawing(panel, down=True) for panel in panels]
    fits = all(drawing.width <= _PHONE for drawing in wide)
    figures = []
    for across, down in zip(wide, narrow):
        _check_room(across, _COLUMN)
        svgs = across.svg("") if fits else across.svg("wide") + down.svg("narrow")
        if not fits:
            _check_room(down, _PHONE)
        named = escape(across.panel.title.replace("'", "’"))
        title = f'<div class="graph-title">{named}</div>' if named else ""
        room = f' style="--narrow: {math.ceil(down.width)}px"'
        figures.append(f'<div class="graph-panel"{"" if fits else room}>{title}{svgs}</div>')
    label = escape(alt, quote=True)
    return f'<div class="graph" role="img" aria-label="{label}"><div>{"".join(figures)}</div></div>\n'


class Graph(SphinxDirective):
    """``{graph}``: one to three panels with computation graphs, for those who can't see them an ``alt``."""

    has_content = True
    option_spec: ClassVar[dict] = {"alt": directives.unchanged_required}

    def run(self) -> list[nodes.Node]:
        """Draw the graph; a line that can't be read is a warning, which fails the build."""
        alt = self.options.get("alt")
        if alt is None:
            return self._refused("expected the option alt, which says what the drawing shows", self.lineno)
        try:
            return [nodes.raw("", drawn(read_panels(list(self.content)), alt), format="html")]
        except GraphError as error:
            return self._refused(error, self.lineno + self.content_offset + 1 + error.line)

    def _refused(self, why: GraphError | str, line: int) -> list[nodes.Node]:
        logger.warning("graph: %s", why, location=(self.env.docname, line), type="graph")
        return [nodes.problematic("graph", "graph")]


class _Drawing:
    """A panel, placed. Until they are written, points are complex: along the arrows, and across them."""

    def __init__(self, panel: Panel, *, down: bool) -> None:
        self.panel, self.down = panel, down
        sizes = {node: self._turned(_node_width(node), _HEIGHT) for node in panel.places}
        labels: list[list[float]] = [[0.0] for _ in range(1 + max(edge.row for edge in panel.edges))]
        for edge in panel.edges:
            labels[edge.row].append(_BOLD * _width(edge.gradient or "", _GRADIENT))
        columns = [12.0] * (1 + max(column for column, _ in panel.places.values()))
        rows = [12.0] * len(labels)
        for node, (column, row) in panel.places.items():
            columns[column] = max(columns[column], sizes[node][0])
            rows[row] = max(rows[row], sizes[node][1])
        # What hangs below each row, or beside each line: its gradients' labels.
        hanging = [max(widths) if down else _GRADIENT for widths in labels]
        gap = _GAP if down else _gap(columns, max(map(max, labels)))
        self._columns = _laid(columns, [gap] * len(columns))
        self._rows = _laid(rows, [below + 18 for below in hanging])
        self._boxes: dict[Node, _Box] = {
            node: (sum(self._columns[column]) / 2, sum(self._rows[row]) / 2, *sizes[node])
            for node, (column, row) in panel.places.items()
        }
        beyond = max(0.0, sum(self._rows[-1]) / 2 + _APART + 8 + hanging[-1] - self._rows[-1][1])
        # The middle of a single line stays in the middle.
        self._margin = beyond if down and len(rows) == 1 else 0.0
        self.width, self.height = self._turned(
            self._columns[-1][1] + 4, self._rows[-1][1] + beyond + self._margin + 4
        )

    def svg(self, kind: str) -> str:
        """Write the drawing; the class says on which screens it is shown."""
        x, y = self._turned(-2.0, -2.0 - self._margin)
        width, height = math.ceil(self.width), math.ceil(self.height)
        back = {edge.start for edge in self.panel.edges if _flows(edge)}
        reached = back | {edge.end for edge in self.panel.edges if _flows(edge)}
        parts = [self._edge(edge, stops=edge.end in reached) for edge in self.panel.edges]
        parts += [self._node(node, reached=node in reached) for node in self.panel.places]
        box = " ".join(map(_number, (x, y, width, height)))
        return (
            f'<svg class="{kind}" viewBox="{box}" width="{width}" height="{height}" aria-hidden="true">'
            f"{''.join(parts)}</svg>"
        )

    def _turned(self, along: float, across: float) -> tuple[float, float]:
        return (across, along) if self.down else (along, across)

    def _written(self, *points: complex) -> str:
        places = (self._turned(point.real, point.imag) for point in points)
        return " ".join(f"{_number(x)},{_number(y)}" for x, y in places)

    def _node(self, node: Node, *, reached: bool) -> str:
        along, across, *size = self._boxes[node]
        (x, y), (width, height) = self._turned(along, across), self._turned(*size)
        kind = ("operation" if node.box else "value") + (" reached" if reached else "")
        radius = 5 if node.box else height / 2
        place = f'x="{_number(x - width / 2)}" y="{_number(y - height / 2)}"'
        size_ = f'width="{_number(width)}" height="{_number(height)}" rx="{_number(radius)}"'
        return f'<rect class="{kind}" {place} {size_}/>{_text(node.label, kind.split()[0], x, y)}'

    def _edge(self, edge: Edge, *, stops: bool) -> str:
        written = self._arrow("forward", self._path(edge, -_APART), _HEAD, "")
        if edge.gradient is not None:
            return written + self._back(edge)
        if stops:  # what comes back to the end of this arrow goes no further
            before, end = self._path(edge, _APART)[-2:]
            stub = _towards(end, before, 8)
            sides = [stub + way * 6 * _side(before, end) for way in (-1, 1)]
            written += f'<path class="stop" d="M{self._written(end)}L{self._written(stub)}'
            written += f'M{self._written(sides[0])}L{self._written(sides[1])}"/>'
        return written

    def _back(self, edge: Edge) -> str:
        points = self._path(edge, _APART)
        strength = edge.strength
        width = 2.5 if strength is None else min(max(2.5 * math.sqrt(strength), 1.2), 7.0)
        kind = "back none" if strength == 0 else "back"
        kind += " broken" if (edge.gradient or "").strip("+-−").lower() in ("nan", "∞", "inf") else ""
        # An attribute, not a style: a rule of the style sheet goes before it.
        written = self._arrow(kind, points[::-1], _HEAD + width / 2, f' stroke-width="{_number(width)}"')
        # The part of the way along the arrows is the second one, unless the way begins with it.
        left, right = next((a, b) for a, b in pairwise(points) if a.imag == b.imag)
        middle, beside = (left.real + right.real) / 2, left.imag + width / 2
        x, y, anchor = (beside + 6, middle, "start") if self.down else (middle, beside + 9, "middle")
        return written + _text(edge.gradient or "", "gradient", x, y, anchor)

    def _path(self, edge: Edge, offset: float) -> list[complex]:
        """Lead along the arrow's row, and straight across the rows to a node in another one."""
        start, end = self._boxes[edge.start], self._boxes[edge.end]
        row = sum(self._rows[edge.row]) / 2
        points = []
        for (along, across, length, size), way in ((start, 1), (end, -1)):
            level = row + offset
            if across == row:
                port = [complex(along + way * (length / 2 + _CLEAR), level)]
            else:
                turn = math.copysign(1, row - across)
                place = along - way * turn * offset
                port = [complex(place, across + turn * (size / 2 + _CLEAR)), complex(place, level)]
            points += port[::way]
        return points

    def _arrow(self, kind: str, points: Sequence[complex], head: float, style: str) -> str:
        """Write a line and its head, a path too: markers would need names that are unique in the book."""
        before, tip = points[-2:]
        neck, back = _towards(tip, before, head * 0.7), _towards(tip, before, head)
        beside = _side(before, tip) * head / 2
        line = [*points[:-1], neck]
        way = [f"M{self._written(line[0])}"]
        for previous, corner, after in zip(line, line[1:], line[2:]):
            radius = min(_ROUND, abs(corner - previous) / 2, abs(after - corner) / 2)
            way.append(f"L{self._written(_towards(corner, previous, radius))}")
            way.append(f"Q{self._written(corner, _towards(corner, after, radius))}")
        way.append(f"L{self._written(line[-1])}")
        shape = self._written(back + beside, tip, back - beside, neck)
        return (
            f'<path class="{kind}" d="{"".join(way)}"{style}/>'
            f'<path class="{kind.split()[0]} head" d="M{shape}Z"/>'
        )


def _check_room(drawing: _Drawing, room: int) -> None:
    most = room * _GRADIENT // _SMALLEST
    if drawing.width > most:
        way = "downwards, on a phone" if drawing.down else "from left to right"
        raise GraphError(
            drawing.panel.edges[0].line,
            f"expected a panel that is at most {most} px wide {way}, so that its labels can be read; got "
            f"{drawing.width:.0f}; remedy: shorter labels, fewer nodes, or two panels",
        )


def _gap(columns: Sequence[float], label: float) -> float:
    """Find the length of arrows that are as long as they are meant to be, or as there is room in the text."""
    room = (_COLUMN - sum(columns)) / max(1, len(columns) - 1)
    return max(_TIGHT, label + 12, min(room, max(_GAP, label + 18)))


def _laid(sizes: Sequence[float], gaps: Sequence[float]) -> list[tuple[float, float]]:
    """Lay columns or rows one behind the other: where each begins and ends."""
    starts = [sum(sizes[:place]) + sum(gaps[:place]) for place in range(len(sizes))]
    return [(start, start + size) for start, size in zip(starts, sizes)]


def _flows(edge: Edge) -> bool:
    return edge.gradient is not None and edge.strength != 0


def _towards(start: complex, end: complex, length: float) -> complex:
    return start + (end - start) * length / abs(end - start)


def _side(start: complex, end: complex) -> complex:
    """The unit vector across a line."""
    return (end - start) * 1j / abs(end - start)


def _text(label: str, kind: str, x: float, y: float, anchor: str = "middle") -> str:
    """Write a label around the point; subscripts such as ``₁`` are drawn, since few fonts have them all."""
    parts, lowered = [], False
    for low, signs in groupby(label, key=_is_subscript):
        text = escape("".join(signs), quote=False)
        step = ' dy="0.22em"' if low else ' dy="-0.16em"' if lowered else ""
        text = unicodedata.normalize("NFKC", text) if low else text
        kind_ = ' class="low"' if low else ""
        parts.append(f"<tspan{kind_}{step}>{text}</tspan>" if low or lowered else text)
        lowered = low
    letters = label.rstrip("".join(sign for sign in label if _is_subscript(sign)) + "′'")
    letter = " letter" if kind == "value" and len(letters) == 1 and letters.isalpha() else ""
    place = f'x="{_number(x)}" y="{_number(y)}" dy="0.34em" text-anchor="{anchor}"'
    return f'<text class="{kind}{letter}" {place}>{"".join(parts)}</text>'


def _is_subscript(sign: str) -> bool:
    return unicodedata.decomposition(sign).startswith("<sub>")


def _node_width(node: Node) -> float:
    if node.box:
        return max(_HEIGHT, _width(node.label, _OPERATION) + 22)
    width = _width(node.label, _VALUE)
    return max(_HEIGHT, width + 22 if width > _HEIGHT - 8 else 0)


def _width(text: str, size: float) -> float:
    """Estimate how wide a text is, a little too wide rather than too narrow."""

    def share(sign: str) -> float:
        if unicodedata.combining(sign):
            return 0.0
        narrow = 0.34 if sign in "iljtf.,:;'|!()[] ·′" or _is_subscript(sign) else 0.58
        return 0.88 if sign in "mwMW∞" else 0.7 if sign.isupper() or sign in "∂∇Σ−+=×" else narrow

    return size * sum(map(share, text))


def _number(value: float) -> str:
    return f"{round(value, 1) + 0.0:g}"  # without the sign of a zero


def setup(app: Sphinx) -> None:
    """Register the directive. Every page gets its style, because the PDF has the first page's head."""
    app.add_directive("graph", Graph)
    app.add_css_file("graph.css")
