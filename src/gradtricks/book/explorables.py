"""Figures whose sliders choose among recorded curves; a figure of the run stands in where no script runs."""

import json
import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from sphinx.application import Sphinx
from sphinx.directives.patches import Figure
from sphinx.util.docutils import SphinxDirective

from gradtricks.book.numbers import number_text
from gradtricks.book.records import NAMED, figure_of, problem, record_of
from gradtricks.lab.notebooks.schema import shown
from gradtricks.lab.results.quoting import RecordError, result_from

__all__ = ["Explorable", "payload", "setup"]

_OPTIONS = ("fallback", "x", "y", "log", "start")
_Name = Annotated[str, Field(min_length=1)]
# Integers of any size can be recorded; these can be drawn.
_Number = Annotated[float, Field(ge=-1e300, le=1e300)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Slider(_Part):
    name: _Name
    values: Annotated[list[Any], Field(min_length=2)]


class _Curve(_Part):
    name: _Name
    y: list[Any]


class _Explored(_Part):
    sliders: Annotated[list[_Slider], Field(min_length=1, max_length=2)]
    x: Annotated[list[_Number], Field(min_length=2)]
    # So many can be told apart by colour and dashes.
    curves: Annotated[list[_Curve], Field(min_length=1, max_length=4)]


def payload(value: Any, *, x: str, y: str, log: str = "", start: str = "") -> dict[str, Any]:
    """Make of a recorded result what the script draws.

    Args:
        value: The result, with three parts. ``sliders``: one or two, each with a ``name`` and its ``values``.
            ``x``: numbers in order. ``curves``: each with a ``name`` and ``y``, a list for each value of
            the first slider, in which are lists for the second one if there is one, in which are numbers: as
            many as ``x`` has, or fewer. NaN and None are gaps. Numbers alone are a curve that stays.
        x: Label of the horizontal axis, and what its numbers are called in words.
        y: The same of the vertical axis.
        log: The axes that are logarithmic: ``x``, ``y`` or ``xy``.
        start: Value of each slider to start with, separated by commas; without it, the first ones.

    Returns:
        Lists and texts, numbers with four digits.

    Raises:
        RecordError: The result has another form, or ``start`` isn't on the grid.
    """
    try:
        found = _Explored.model_validate(value)
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, p['loc'])) or 'it'}: {p['msg']}" for p in error.errors()]
        raise RecordError(
            f"expected a result with sliders, x and curves; {'; '.join(problems)}; got {shown(value)}"
        ) from error
    for part in (found.sliders, found.curves):
        names = [item.name for item in part]
        if len(set(names)) < len(names):
            raise RecordError(f"expected different names; got {names}")
    grid = {slider.name: _texts(slider) for slider in found.sliders}
    lengths = [*map(len, grid.values())]
    curves = {curve.name: _drawn(curve, lengths, len(found.x), log) for curve in found.curves}
    places = [_rounded(place, log="x" in log) for place in found.x]
    if len({place for place in places if place is not None}) < 2:
        raise RecordError(f"expected x to have two places that can be told apart; got {shown(found.x)}")
    if all(number is None for curve in curves.values() for number in _numbers(curve)):
        raise RecordError("expected numbers that can be drawn; got none")
    return {
        "sliders": [
            {"name": name, "values": texts, "start": begin}
            for (name, texts), begin in zip(grid.items(), _starts(grid, start), strict=True)
        ],
        "x": places,
        "curves": [{"name": name, "y": curve} for name, curve in curves.items()],
        "labels": [x, y],
        "log": log,
    }


class Explorable(Figure, SphinxDirective):
    """``{explorable} stem/backend/name``: a figure of a run's curves, with sliders that choose among them."""

    option_spec: ClassVar = dict.fromkeys(_OPTIONS, directives.unchanged_required)

    def run(self) -> list[nodes.Node]:
        """Build the figure; an unknown result, or one of another form, is a warning."""
        name = self.arguments[0]
        given = {option: self.options.pop(option, "") for option in _OPTIONS}
        fallback = given.pop("fallback")
        try:
            if not (fallback and given["x"] and given["y"]):
                raise RecordError(f"expected the options fallback, x and y; got {given}")
            if given["log"] not in ("", "x", "y", "xy"):
                raise RecordError(f"expected the option log to be x, y or xy; got {given['log']!r}")
            target = NAMED.fullmatch(name)
            if target is None:
                raise RecordError("expected stem/backend/name; remedy: unrolling/torch/arriving")
            data = payload(result_from(record_of(self.env, target)["results"], target["name"]), **given)
            self.arguments[0], self.options["alt"] = figure_of(self.env, fallback)
        except RecordError as error:
            return problem(self, name, error)
        self.options["figclass"] = ["explorable"]
        figure, *rest = super().run()
        # Also where it is the page's first image: where scripts run, it isn't shown.
        figure[0]["loading"] = "lazy"
        # "</script>" within a text would end the element, and "<!--" hide its end.
        text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
        figure.insert(1, nodes.raw("", f'<script type="application/json">{text}</script>', format="html"))
        return [figure, *rest]


def _drawn(curve: _Curve, lengths: list[int], most: int, log: str) -> list[Any]:
    flat = not any(isinstance(item, list) for item in curve.y)
    return _curves(curve.y, [] if flat else lengths, most, curve.name, log="y" in log)


def _curves(value: Any, lengths: Sequence[int], most: int, name: str, *, log: bool) -> list[Any]:
    if not isinstance(value, list):
        raise RecordError(f"expected lists of numbers in the curve {name!r}; got {shown(value)}")
    if lengths:
        if len(value) != lengths[0]:
            raise RecordError(
                f"expected {lengths[0]} lists in the curve {name!r}, one for each value of the slider; "
                f"got {len(value)}"
            )
        return [_curves(item, lengths[1:], most, name, log=log) for item in value]
    if not 1 <= len(value) <= most or not all(item is None or _is_number(item) for item in value):
        raise RecordError(
            f"expected 1 to {most} numbers in each list of the curve {name!r}; got {shown(value)}"
        )
    return [_rounded(item, log=log) for item in value]


def _numbers(nested: Any) -> Iterator[float | None]:
    if isinstance(nested, list):
        for item in nested:
            yield from _numbers(item)
    else:
        yield nested


def _starts(grid: dict[str, list[str]], start: str) -> list[int]:
    wanted = [text.strip() for text in start.split(",")] if start else [texts[0] for texts in grid.values()]
    if len(wanted) != len(grid):
        raise RecordError(f"expected start to have a value for each slider, {', '.join(grid)}; got {start!r}")
    for text, (name, texts) in zip(wanted, grid.items(), strict=True):
        if text not in texts:
            raise RecordError(f"expected start to have one of the values of {name!r}, {texts}; got {text!r}")
    return [texts.index(text) for text, texts in zip(wanted, grid.values(), strict=True)]


def _rounded(value: float | None, *, log: bool) -> float | int | None:
    if value is None or not math.isfinite(value) or (log and value <= 0):
        return None
    short = float(f"{value:.4g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def _is_number(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and not 1e300 < abs(value) < math.inf


def _texts(slider: _Slider) -> list[str]:
    texts = [number_text(value) if _is_number(value) else str(value) for value in slider.values]
    if len(set(texts)) < len(texts):
        raise RecordError(f"expected values of the slider {slider.name!r} that look different; got {texts}")
    return texts


def _add_script(
    app: Sphinx, name: str, template: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    if doctree and any("explorable" in figure["classes"] for figure in doctree.findall(nodes.figure)):
        app.add_css_file("explorable.css")
        app.add_js_file("explorable.js", loading_method="defer")


def setup(app: Sphinx) -> None:
    """Register the directive, and give the pages that use it their script."""
    app.add_directive("explorable", Explorable)
    app.connect("html-page-context", _add_script)
