"""Figures of a sweep: what each result came to for each value that was tried."""

import io
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from gradtricks.lab.results.captions import alt_of
from gradtricks.lab.results.grouping import Curve, Found, Group

# What draws is imported when something is drawn, since matplotlib takes its time.
if TYPE_CHECKING:
    from matplotlib.figure import Figure

_UNNAMED = re.compile(r"[^a-z0-9]+")
_PNG_DPI = 200


@dataclass(frozen=True)
class PlotResult:
    """A figure of what was found."""

    found: Found
    figure: "Figure"
    alt: str  # what it shows, for those who can't see it
    caption: str  # how to read it, and how many runs are behind it

    def svg(self) -> str:
        """Return the figure as SVG; equal figures are equal texts."""
        buffer = io.StringIO()
        self._write(buffer, format="svg", metadata={"Date": None})
        return buffer.getvalue()

    def save(self, path: Path) -> None:
        """Write the figure, in one step: as SVG without a background, or as PNG on white."""
        unfinished = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
        if path.suffix == ".svg":
            unfinished.write_text(self.svg(), encoding="utf-8")
        else:
            self._write(unfinished, dpi=_PNG_DPI, transparent=False, facecolor="white")
        os.replace(unfinished, path)

    def _write(self, target: Any, **options: Any) -> None:
        from gradtricks.lab.results.drawing import book_style

        with book_style():
            self.figure.savefig(target, **options)


def plot_results(found: Iterable[Found]) -> dict[str, PlotResult]:
    """Draw what a sweep found, a figure for each result.

    No parameter besides the seed, or one: each run is a point, with interquartile means and their bootstrap
    intervals. Two: a heat map. More, or pairs at random: a panel for each. Lists are drawn as curves with
    bands, one for each value of the first parameter; the others are pooled. Figures come by name, such as
    ``growth_end``.
    """
    drawn: dict[str, PlotResult] = {}
    for each in found:
        name = _UNNAMED.sub("_", each.label.lower()).strip("_")
        name = name if name[:1].isalpha() else f"result_{name}"
        while name in drawn:
            name += "_"
        drawn[name] = _plot(each)
    return drawn


def _plot(found: Found) -> PlotResult:
    from gradtricks.lab.results.charts import draw, draw_curves
    from gradtricks.lab.results.drawing import book_style

    with book_style():
        if isinstance(found.parts[0], Curve):
            curves = cast(Sequence[Curve], found.parts)
            figure, caption = draw_curves(found.title, found.axes, curves)
        else:
            figure, caption = draw(found.title, found.axes, cast(Sequence[Group], found.parts))
        # Laid out once: each further time would move it by a millionth of a point.
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
    return PlotResult(found, figure, alt_of(found), caption)
