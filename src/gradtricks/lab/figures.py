"""How the book's figures are drawn: its style, its width, and names beside lines instead of legends.

figure, axes = new_figure(height=2.9)
axes.plot(steps, losses, label="Adam")
axes.axhline(best, color=GREY, linestyle="--", label="the best constant")
axes.set(xlabel="step", ylabel="loss")
label_lines(axes)  # last, when all that a name must not cover is drawn
record_figure("losses", figure, alt="...")
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from matplotlib import font_manager, pyplot, rcParams, style
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.container import BarContainer, ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import ArrayLike

GREY = "#68717d"  # of what is only context; the style's colour of text and axes
_HERE = Path(__file__).parent
_SIZE = 11  # points of a name's letters: the smallest that are read on a phone
_GAP = 4.0  # points between a line and its name
_MARGIN = 2.0  # points that a name keeps from what isn't its own
_NEAR = 40.0  # points beyond which another line is no rival for a name
_STEP = 3.0  # points between two samples of a line
_SPOTS = 80  # of a line that are tried
_TO_END = 8.0  # points that another line may be nearer for a name to stand at its line's end
_Named = tuple[str, Any, np.ndarray]  # name, colour, points [N, 2]
# Where a name stands, seen from a point of its line: the share of its own width and height to shift it by.
_SIDES = np.array([(-0.5, 0), (-0.5, -1), (0, 0), (-1, 0), (0, -1), (-1, -1), (0, -0.5), (-1, -0.5)])
_NOTHING = np.empty((0, 2))


def use_style() -> None:
    """Draw every figure from here on in the book's style: readable on light and on dark pages."""
    known = {font.fname for font in font_manager.fontManager.ttflist}
    for path in sorted((_HERE / "fonts").glob("*.ttf")):
        if str(path) not in known:
            font_manager.fontManager.addfont(path)
    style.use(_HERE / "figures.mplstyle")


def new_figure(rows: int = 1, columns: int = 1, *, height: float = 2.9, **options: Any) -> tuple[Figure, Any]:
    """Begin a figure in the book's style that fits on a phone.

    Args:
        rows: Of panels.
        columns: Of panels.
        height: In inches; the width is the page's, 5.4 inches.
        **options: For `matplotlib.pyplot.subplots`, such as ``sharey=True``.

    Returns:
        The figure, and its axes as `matplotlib.pyplot.subplots` returns them.
    """
    use_style()
    return pyplot.subplots(rows, columns, figsize=(rcParams["figure.figsize"][0], height), **options)


def draw_band(axes: Axes, x: ArrayLike, low: ArrayLike, high: ArrayLike, color: str) -> None:
    """Shade an interval around a line, from ``low`` to ``high`` at each ``x``."""
    axes.fill_between(x, low, high, color=color, alpha=0.2, linewidth=0)


def shade(axes: Axes, begin: float, end: float) -> None:
    """Mark a part of the x axis as another phase."""
    axes.axvspan(begin, end, color=GREY, alpha=0.12, linewidth=0)


def name_rows(axes: Axes, names: Sequence[str]) -> None:
    """Name what is drawn at y = 0, 1, ..., from above downwards."""
    axes.set_yticks(range(len(names)), [name.replace("-", "\N{MINUS SIGN}") for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)


def draw_bars(axes: Axes, bars: Mapping[str, float], *, form: str = "{:.3g}", color: str = "C0") -> None:
    """Draw a horizontal bar for each name, with its value at its end, written as ``form`` says."""
    name_rows(axes, list(bars))
    drawn = axes.barh(range(len(bars)), list(bars.values()), 0.6, color=color)
    said = [form.format(value).replace("-", "\N{MINUS SIGN}") for value in bars.values()]
    axes.bar_label(drawn, said, padding=4, color=color, fontsize=_SIZE)
    axes.margins(x=0.15)


def draw_ranges(
    axes: Axes, ranges: Mapping[str, Sequence[float]], *, color: str = "C0", marker: str = "o"
) -> None:
    """Draw a dot for each name with its interval: ``(middle, low, high)``, or the lone ``(middle,)``."""
    name_rows(axes, list(ranges))
    for row, (middle, *ends) in enumerate(ranges.values()):
        if ends:
            axes.plot(ends, [row, row], color=color)
        axes.plot([middle], [row], marker, color=color)


def set_ticks(axes: Axes, **values: Sequence[float]) -> None:
    """Put ticks at these numbers and nowhere else, written out, on ``x`` and ``y`` of linear and log axes."""
    for side, ticks in values.items():
        axis = getattr(axes, f"{side}axis")
        axis.set_ticks(list(ticks), [f"{tick:,.6g}".replace("-", "\N{MINUS SIGN}") for tick in ticks])
        axis.set_ticks([], minor=True)


def show_picture(axes: Axes, picture: np.ndarray, title: str = "", **options: Any) -> None:
    """Show an array [H, W] without axes; ``options`` are those of `matplotlib.axes.Axes.imshow`."""
    axes.imshow(picture, **options)
    axes.set(title=title, xticks=[], yticks=[])
    axes.grid(visible=False)


def label_lines(*panels: Axes, at_end: bool = False) -> None:
    """Write the label of each line beside it in its colour, where it covers nothing; no legend is needed.

    Lines, error bars and scattered points that were drawn with ``label=`` are named. Call it when all is
    drawn and the limits are set. A name stands where its own line is near and others are far. Where there
    is no such place for one of a panel's names, all of them stand behind the lines' ends, right of the panel.

    Args:
        *panels: Axes of one figure.
        at_end: Put the names behind the ends in any case.
    """
    ends, beside = (list(panels), []) if at_end else ([], list(panels))
    while True:
        for axes in ends:
            _label_ends(axes)
        _whole(panels[0]).draw_without_rendering()  # which arranges the panels anew
        places = [_places_beside(axes) for axes in beside]
        ends = [axes for axes, found in zip(beside, places, strict=True) if found is None]
        beside = [axes for axes in beside if axes not in ends]
        if not ends:
            break
    for axes, found in zip(beside, places, strict=True):
        for name, color, (x, y) in found or []:
            _write(axes, name, color, (0, 0), (x, y), va="bottom")


def _write(axes: Axes, name: str, color: Any, at: tuple[int, int], shift: Sequence[float], va: str) -> None:
    """Write a name so many points from a corner of the axes."""
    x, y = (round(float(part), 1) for part in shift)
    beside = {"xycoords": "axes fraction", "textcoords": "offset points", "va": va}
    axes.annotate(name, at, (x, y), color=color, fontsize=_SIZE, **beside)  # type: ignore[arg-type]


def _named(axes: Axes) -> list[_Named]:
    """Return names with their colours and the points of what they name, in points from the lower left."""
    found: list[_Named] = []
    for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
        artist = handle[0] if isinstance(handle, ErrorbarContainer) else handle
        if isinstance(artist, Line2D):
            found.append((name, artist.get_color(), _points_of(artist)))
        elif isinstance(artist, PathCollection):
            places = artist.get_offset_transform().transform(artist.get_offsets())
            found.append((name, artist.get_facecolor()[0], places / _scale(axes)))
    return [(name, color, points) for name, color, points in found if len(points)]


def _whole(axes: Axes) -> Figure:
    return cast(Figure, axes.get_figure(root=True))


def _scale(axes: Axes) -> float:
    """Return pixels per point."""
    return _whole(axes).dpi / 72


def _points_of(line: Line2D) -> np.ndarray:
    """Return a line's points [N, 2], so dense that nothing fits between them."""
    corners = line.get_transform().transform(line.get_xydata()) / _scale(line.axes)  # type: ignore[arg-type]
    corners = corners[np.isfinite(corners).all(axis=1)]
    if line.get_linestyle() == "None" or len(corners) < 2:
        return corners
    lengths = np.linalg.norm(np.diff(corners, axis=0), axis=1)
    parts = [
        np.linspace(begin, end, min(2000, int(length / _STEP) + 1), endpoint=False)
        for begin, end, length in zip(corners[:-1], corners[1:], lengths, strict=True)
    ]
    return np.concatenate([*parts, corners[-1:]])


def _size_of(axes: Axes, name: str) -> np.ndarray:
    """Return width and height of a text, in points."""
    text = axes.text(0, 0, name, fontsize=_SIZE)
    box = text.get_window_extent()
    text.remove()
    return np.array([box.width, box.height]) / _scale(axes)


def _drawn(axes: Axes) -> np.ndarray:
    """Return points [N, 2] of all that a name must not cover: lines, dots, bars and texts."""
    lines = [_points_of(line) for line in axes.get_lines()]
    dots = [
        collection.get_offset_transform().transform(collection.get_offsets()) / _scale(axes)
        for collection in axes.collections
        if isinstance(collection, PathCollection)
    ]
    bars = [bar for container in axes.containers if isinstance(container, BarContainer) for bar in container]
    boxes = [_filled(np.array(part.get_window_extent()) / _scale(axes)) for part in [*bars, *axes.texts]]
    return _thinned(np.concatenate([_NOTHING, *lines, *dots, *boxes]))


def _thinned(points: np.ndarray) -> np.ndarray:
    """Move points to a grid, on which many are one."""
    return np.unique(np.round(points / _STEP), axis=0) * _STEP


def _filled(box: np.ndarray) -> np.ndarray:
    """Return points [N, 2] all over a box, given by its lower left and upper right corner."""
    sides = [np.append(np.arange(low, high, _STEP), high) for low, high in box.T]
    return np.stack(np.meshgrid(*sides), axis=-1).reshape(-1, 2)


def _places_beside(axes: Axes) -> list[_Named] | None:
    """Return for each name where its lower left corner stands in the axes; None if one has no place."""
    named, drawn, room = _named(axes), _drawn(axes), np.array(axes.get_window_extent()) / _scale(axes)
    choices = []
    for name, color, points in named:
        size = _size_of(axes, name)
        rivals = _thinned(np.concatenate([_NOTHING, *(other for key, _, other in named if key != name)]))
        spots = points[(points >= room[0] - 1).all(axis=1) & (points <= room[1] + 1).all(axis=1)]
        spots = spots[:: max(1, len(spots) // _SPOTS)]
        apart = np.where(_SIDES == 0, _GAP, np.where(_SIDES == -1, -_GAP, 0))
        low = (spots[:, None] + _SIDES * size + apart).reshape(-1, 2)
        place = np.repeat(np.linspace(0, 1, len(spots)), len(_SIDES))
        cost = _rivalry(low, size, rivals) - _TO_END * place  # points away from where it would be best
        free = ((low >= room[0]) & (low + size <= room[1])).all(axis=1) & ~_covers(low, size, drawn)
        choices.append((name, color, size, low[free], cost[free]))
    found: list[_Named] = []
    taken = _NOTHING
    for name, color, size, low, cost in sorted(choices, key=lambda choice: len(choice[3])):
        free = ~_covers(low, size, taken)
        if not free.any():
            return None
        best = low[free][np.argmin(cost[free])]
        taken = np.concatenate([taken, _filled(np.array([best, best + size]))])
        found.append((name, color, best - room[0]))
    return found


def _covers(low: np.ndarray, size: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Say for each box [K] whether a point lies in it or too near."""
    if not len(points):
        return np.zeros(len(low), dtype=bool)
    away = (points >= low[:, None] - _MARGIN) & (points <= low[:, None] + size + _MARGIN)
    return away.all(axis=2).any(axis=1)


def _rivalry(low: np.ndarray, size: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return how near another line is to each box [K], 0 where none is within `_NEAR`."""
    if not len(others):
        return np.zeros(len(low))
    away = np.maximum(np.abs(others - (low + size / 2)[:, None]) - size / 2, 0)
    return np.maximum(_NEAR - np.linalg.norm(away, axis=2).min(axis=1), 0)


def _label_ends(axes: Axes) -> None:
    """Place names right of the axes, level with the lines' ends or as near as they don't overlap."""
    low, high = np.array(axes.get_window_extent()) / _scale(axes)
    ends = sorted(
        (float(points[np.argmax(points[:, 0]), 1]), name, color) for name, color, points in _named(axes)
    )
    heights = [_size_of(axes, name)[1] + 1 for _, name, _ in ends]
    places = _spread([end for end, _, _ in ends], heights, low[1], high[1])
    for (_, name, color), y in zip(ends, places, strict=True):
        _write(axes, name, color, (1, 0), (_GAP, y - low[1]), va="center")


def _spread(wanted: Sequence[float], heights: Sequence[float], lowest: float, highest: float) -> list[float]:
    """Move sorted middles as little as keeps neighbours apart, and where there is room within bounds."""
    groups: list[tuple[list[float], list[float]]] = []  # middles and heights of those that touch

    def bounds(middles: list[float], sizes: list[float]) -> tuple[float, float]:
        half = sum(sizes) / 2
        middle = max(min(float(np.mean(middles)), highest - half), lowest + half)
        return middle - half, middle + half

    for middle, height in zip(wanted, heights, strict=True):
        groups.append(([middle], [height]))
        while len(groups) > 1 and bounds(*groups[-2])[1] > bounds(*groups[-1])[0]:
            middles, sizes = groups.pop()
            groups[-1] = groups[-1][0] + middles, groups[-1][1] + sizes
    return [y for group in groups for y in bounds(*group)[0] + np.cumsum(group[1]) - np.array(group[1]) / 2]
