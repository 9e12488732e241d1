"""Figures whose sliders choose among recorded curves; a figure of the run stands in where no script runs."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.directives.patches import Figure
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

from gradtricks.lab.notebooks.schema import shown
from gradtricks.lab.pages.targets import CURVES, figure_of, record_of
from gradtricks.lab.pages.valuetables import number_text
from gradtricks.lab.results.quoting import RecordError, result_from

__all__ = ["Explorable", "payload", "setup"]

logger = logging.getLogger(__name__)

# In book/_assets. Pages that have such a figure fetch them when the first one is about to be seen, as they do
# images, so that a long page is there no later.
_SCRIPT, _STYLE = "_static/explorable.js", "_static/explorable.css"
_LOADER = """
document.addEventListener("DOMContentLoaded", () => {{
  const near = new IntersectionObserver((entries) => {{
    if (!entries.some((entry) => entry.isIntersecting)) return;
    near.disconnect();
    const style = document.createElement("link"), script = document.createElement("script");
    style.rel = "stylesheet";
    style.href = {style};
    script.src = {script};
    style.onload = () => document.head.append(script);
    document.head.append(style);
  }}, {{ rootMargin: "1200px" }});
  document.querySelectorAll("figure.explorable").forEach((figure) => near.observe(figure));
}});
"""
_PARTS = ("sliders", "x", "curves")
_MOST_SLIDERS = 2
_MOST_CURVES = 4  # that can be told apart by colour and dashes
_LARGEST = 1e300  # number that can be drawn; integers of any size can be recorded
_OPTIONS = ("fallback", "x", "y", "log", "start")


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
    sliders, places, curves = _parts(value)
    grid = {slider["name"]: _texts(slider["name"], slider["values"]) for slider in sliders}
    lengths = [len(texts) for texts in grid.values()]
    drawn = [
        {"name": name, "y": _curves(nested, _lengths(nested, lengths), len(places), name, log="y" in log)}
        for name, nested in ((curve["name"], curve["y"]) for curve in curves)
    ]
    drawn_places = [_rounded(place, log="x" in log) for place in places]
    if len({place for place in drawn_places if place is not None}) < 2:
        raise RecordError(f"expected x to have two places that can be told apart; got {shown(places)}")
    if all(number is None for curve in drawn for number in _numbers(curve["y"])):
        raise RecordError("expected numbers that can be drawn; got none")
    return {
        "sliders": [
            {"name": name, "values": texts, "start": begin}
            for (name, texts), begin in zip(grid.items(), _starts(grid, start), strict=True)
        ],
        "x": drawn_places,
        "curves": drawn,
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
        try:
            missing = [option for option in ("fallback", "x", "y") if not given[option]]
            if missing:
                raise RecordError(f"expected the options fallback, x and y; got no {', '.join(missing)}")
            if given["log"] not in ("", "x", "y", "xy"):
                raise RecordError(f"expected the option log to be x, y or xy; got {given['log']!r}")
            data = self._data(name, given)
            self.arguments[0], self.options["alt"] = figure_of(self.env, given.pop("fallback"))
        except RecordError as error:
            logger.warning("explorable %r: %s", name, error, location=self.get_location(), type="result")
            return [nodes.problematic(name, name)]
        self.options["figclass"] = ["explorable"]
        figure, *rest = super().run()
        # Also where it is the page's first image: where scripts run, it isn't shown.
        figure[0]["loading"] = "lazy"
        # "</script>" within a text would end the element, and "<!--" hide its end.
        text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
        figure.insert(1, nodes.raw("", f'<script type="application/json">{text}</script>', format="html"))
        return [figure, *rest]

    def _data(self, name: str, given: Mapping[str, str]) -> dict[str, Any]:
        target = CURVES.fullmatch(name)
        if target is None:
            raise RecordError("expected stem/backend/name; remedy: unrolling/torch/arriving")
        value = result_from(record_of(self.env, target)["results"], target["name"])
        return payload(value, **{option: given[option] for option in ("x", "y", "log", "start")})


def _parts(value: Any) -> tuple[Any, Any, Any]:
    if not isinstance(value, Mapping) or set(value) != set(_PARTS):
        got = ", ".join(map(str, value)) if isinstance(value, Mapping) else type(value).__name__
        raise RecordError(f"expected a result with sliders, x and curves; got {got}")
    sliders, places, curves = (value[part] for part in _PARTS)
    if not _is_list_of(sliders, "name", "values") or len(sliders) > _MOST_SLIDERS:
        raise RecordError(f"expected one or two sliders, each with name and values; got {shown(sliders)}")
    _check_names("sliders", sliders)
    for name, values in ((slider["name"], slider["values"]) for slider in sliders):
        if not isinstance(values, list) or len(values) < 2:
            raise RecordError(f"expected at least two values of the slider {name!r}; got {shown(values)}")
    if not isinstance(places, list) or len(places) < 2 or not all(map(_is_number, places)):
        raise RecordError(f"expected x to be at least two numbers; got {shown(places)}")
    if not _is_list_of(curves, "name", "y") or len(curves) > _MOST_CURVES:
        raise RecordError(f"expected one to four curves, each with name and y; got {shown(curves)}")
    _check_names("curves", curves)
    return sliders, places, curves


def _check_names(part: str, named: Sequence[Mapping[str, Any]]) -> None:
    names = [item["name"] for item in named]
    if not all(isinstance(name, str) and name.strip() for name in names) or len(set(names)) < len(names):
        raise RecordError(f"expected {part} with different texts for names; got {shown(names)}")


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


def _lengths(value: Any, lengths: list[int]) -> list[int]:
    """Leave out the sliders where a curve doesn't depend on them."""
    flat = isinstance(value, list) and not any(isinstance(item, list) for item in value)
    return [] if flat else lengths


def _numbers(nested: Any) -> Iterator[float | None]:
    if isinstance(nested, list):
        for item in nested:
            yield from _numbers(item)
    else:
        yield nested


def _starts(grid: Mapping[str, Sequence[str]], start: str) -> list[int]:
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
    return number and not _LARGEST < abs(value) < math.inf


def _texts(name: str, values: Sequence[Any]) -> list[str]:
    texts = [number_text(setting) if _is_number(setting) else str(setting) for setting in values]
    if len(set(texts)) < len(texts):
        raise RecordError(f"expected values of the slider {name!r} that look different; got {texts}")
    return texts


def _is_list_of(value: Any, *keys: str) -> bool:
    return (
        isinstance(value, list)
        and value != []
        and all(isinstance(item, Mapping) and set(item) == set(keys) for item in value)
    )


def _add_script(
    app: Sphinx, name: str, template: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    if doctree and any("explorable" in figure["classes"] for figure in doctree.findall(nodes.figure)):
        style, script = (json.dumps(context["pathto"](path, resource=True)) for path in (_STYLE, _SCRIPT))
        app.add_js_file(None, body=_LOADER.format(style=style, script=script))


def setup(app: Sphinx) -> None:
    """Register the directive, and give the pages that use it their script."""
    app.add_directive("explorable", Explorable)
    app.connect("html-page-context", _add_script)
