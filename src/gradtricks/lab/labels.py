"""Names beside what they name: placed by computation, where they cover nothing."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.container import BarContainer, ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

SMALLEST = 11  # points of letters that are read on a phone
_GAPS = 4.0, 8.0, 14.0  # points between a line and its name
_FAR = 8.0  # points that another line must be further away for a name to stand further from its own
_MARGIN = 2.0  # points that a name keeps from what isn't its own
_NEAR = 40.0  # points beyond which another line is no rival for a name
_STEP = 3.0  # points between two samples of a line
_SPOTS = 80  # of a line that are tried
_TO_END = 8.0  # points that another line may be nearer for a name to stand at its line's end
_Named = tuple[str, Any, np.ndarray]  # name, colour, points [N, 2]
# Where a name stands, seen from a point of its line: the share of its own width and height to shift it by.
_SIDES = np.array([(-0.5, 0), (-0.5, -1), (0, 0), (-1, 0), (0, -1), (-1, -1), (0, -0.5), (-1, -0.5)])
_NOTHING = np.empty((0, 2))


def label_lines(*panels: Axes, at_end: bool = False) -> None:
    """Write the label of each line beside it in its colour, where it covers nothing; no legend is needed.

    Lines, error bars, scattered points and bars that were drawn with ``label=`` are named. Call it when all
    is drawn and the limits are set. A name stands where its own line is near and others are far. Where there
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
    beside: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "va": va}
    axes.annotate(name, at, (x, y), color=color, fontsize=SMALLEST, **beside)


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
        elif isinstance(artist, BarContainer):
            boxes = [np.array(bar.get_window_extent()) / _scale(axes) for bar in artist]
            found.append((name, artist[0].get_facecolor(), np.concatenate([*map(_filled, boxes)])))
    return [(name, color, points) for name, color, points in found if len(points)]


def _whole(axes: Axes) -> Figure:
    return cast(Figure, axes.get_figure(root=True))


def _scale(axes: Any) -> float:
    """Return pixels per point."""
    return _whole(axes).dpi / 72


def _points_of(line: Line2D) -> np.ndarray:
    """Return a line's points [N, 2], so dense that nothing fits between them."""
    corners = line.get_transform().transform(line.get_xydata()) / _scale(line.axes)
    corners = corners[np.isfinite(corners).all(axis=1)]
    if line.get_linestyle() == "None" or len(corners) < 2:
        return corners
    lengths = np.linalg.norm(np.diff(corners, axis=0), axis=1)
    parts = [
        np.linspace(begin, end, min(2000, int(length / _STEP) + 1), endpoint=False)
        for begin, end, length in zip(corners[:-1], corners[1:], lengths, strict=True)
    ]
    return np.concatenate([*parts, corners[-1:]])


def _markers_of(line: Line2D) -> np.ndarray:
    """Return the upper, lower, left and right ends of a line's markers."""
    if line.get_marker() in ("None", None, "", " "):
        return _NOTHING
    centres = line.get_transform().transform(line.get_xydata()) / _scale(line.axes)
    ends = line.get_markersize() / 2 * np.array([[[0, 1], [0, -1], [1, 0], [-1, 0]]])
    return (centres[np.isfinite(centres).all(axis=1), None] + ends).reshape(-1, 2)


def _size_of(axes: Axes, name: str) -> np.ndarray:
    """Return width and height of a text, in points."""
    text = axes.text(0, 0, name, fontsize=SMALLEST)
    box = text.get_window_extent()
    text.remove()
    return np.array([box.width, box.height]) / _scale(axes)


def _drawn(axes: Axes) -> np.ndarray:
    """Return points [N, 2] of all that a name must not cover: lines, dots, bars and texts."""
    lines = [points for line in axes.get_lines() for points in (_points_of(line), _markers_of(line))]
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
        away = np.where(_SIDES == 0, 1, np.where(_SIDES == -1, -1, 0)) * np.reshape(_GAPS, (-1, 1, 1))
        low = (spots[:, None, None] + _SIDES * size + away).reshape(-1, 2)
        place, far = np.indices((len(spots), len(_GAPS), len(_SIDES)))[:2].reshape(2, -1)
        cost = _rivalry(low, size, rivals) - _TO_END * place / len(spots) + _FAR * far
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
        _write(axes, name, color, (1, 0), (_GAPS[0], y - low[1]), va="center")


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
