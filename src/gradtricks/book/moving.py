"""Figures that a script draws and a reader moves; a still picture stands in where no script runs."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from sphinx.application import Sphinx
from sphinx.directives.patches import Figure

from gradtricks.book.numbers import number_text
from gradtricks.book.quotes import Showing, figure_of, result_of
from gradtricks.lab.notebooks.schema import excerpt
from gradtricks.lab.results.quoting import RecordError

__all__ = ["Moving", "curves", "drawable", "setup"]

_SCRIPTS = "_assets/moving"
_CLASS = "moving-"
_AXES = ("x", "y", "log", "start")  # options of curves alone


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Slider(_Part):
    name: str
    values: Annotated[list[Any], Field(min_length=2)]


class _Curve(_Part):
    name: str
    y: list[Any]
    low: list[Any] | None = None
    high: list[Any] | None = None


class _Explored(_Part):
    sliders: Annotated[list[_Slider], Field(min_length=1, max_length=2)]
    x: Annotated[list[float], Field(min_length=2)]
    # So many can be told apart by colour and dashes.
    curves: Annotated[list[_Curve], Field(min_length=1, max_length=4)]


class Moving(Showing, Figure):
    """``{moving} name``: what ``_assets/moving/name.js`` draws, perhaps from a result of a run."""

    option_spec: ClassVar = dict.fromkeys(
        ("alt", "prompt", "data", "fallback", *_AXES), directives.unchanged_required
    )

    def show(self, name: str) -> list[nodes.Node]:
        """Build the figure, with what its script reads after the picture that stands in for it."""
        given = {option: self.options.pop(option, "") for option in self.option_spec}
        known = sorted(path.stem for path in Path(self.env.srcdir, _SCRIPTS).glob("*.js"))
        if name not in known:
            raise RecordError(f"expected one of: {', '.join(known)}; got {name!r}")
        picture, alt = f"/{_SCRIPTS}/{name}.svg", given["alt"]
        if given["fallback"]:
            _, picture, of_run = figure_of(self.env, given["fallback"])
            alt = alt or of_run
        if not (alt and given["prompt"]):
            raise RecordError(f"expected the options prompt, and alt or fallback; got {given}")
        told: dict[str, Any] = {"alt": alt, "prompt": given["prompt"]}
        data = drawable(result_of(self.env, given["data"])[0]) if given["data"] else None
        if name == "curves":
            told |= curves(data, **{option: given[option] for option in _AXES})
        elif data is not None:
            told["data"] = data
        self.arguments[0], self.options["alt"] = picture, alt
        self.options["figclass"] = ["moving", _CLASS + name]
        figure, *rest = Figure.run(self)
        # Also where it is the page's first image: where scripts run, it isn't shown.
        figure[0]["loading"] = "lazy"
        # "</script>" within a text would end the element, and "<!--" hide its end.
        text = json.dumps(told, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
        figure.insert(1, nodes.raw("", f'<script type="application/json">{text}</script>', format="html"))
        return [figure, *rest]


def drawable(value: Any) -> Any:
    """Write a result as JSON can say it: numbers with four digits, None for those that aren't finite."""
    if isinstance(value, Mapping):
        return {key: drawable(part) for key, part in value.items()}
    if isinstance(value, list):
        return [drawable(part) for part in value]
    if isinstance(value, float):
        short = float(f"{value:.4g}")
        return None if not math.isfinite(short) else int(short) if short.is_integer() else short
    if value is None or isinstance(value, bool | int | str):
        return value
    raise RecordError(f"expected a result that JSON can say; got {excerpt(value)}; remedy: record a text")


def curves(value: Any, *, x: str, y: str, log: str = "", start: str = "") -> dict[str, Any]:
    """Make of a result what ``curves.js`` draws: curves that sliders choose.

    The result has ``sliders``, one or two, each with a ``name`` and its ``values``; ``x``, numbers in order;
    and ``curves``, each with a ``name`` and ``y``: lists for each value of the first slider, in which
    are lists for the second one if there is one, in which are as many numbers as ``x`` has, or fewer.
    None is a gap, numbers alone a curve that stays. ``low`` and ``high``, both as ``y``, are a band.
    The arguments ``x`` and ``y`` are labels, ``log`` names the logarithmic axes, ``start`` the first values.

    A RecordError says that the result has another form, or which option is wrong.
    """
    if not (x and y) or log not in ("", "x", "y", "xy"):
        raise RecordError(f"expected the options x, y, and log as x, y or xy; got {x!r}, {y!r}, {log!r}")
    try:
        found = _Explored.model_validate(value)
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, p['loc'])) or 'it'}: {p['msg']}" for p in error.errors()]
        raise RecordError(
            f"expected a result with sliders, x and curves; {'; '.join(problems)}; got {excerpt(value)}"
        ) from error
    texts = [[number_text(v) if type(v) in (int, float) else str(v) for v in s.values] for s in found.sliders]
    wanted = [text.strip() for text in start.split(",")] if start else [each[0] for each in texts]
    if len(wanted) != len(texts) or not all(text in each for text, each in zip(wanted, texts)):
        raise RecordError(f"expected start to have one value of each slider, of {texts}; got {start!r}")
    lengths = [*map(len, texts)]
    for curve in found.curves:
        bands = [values for values in (curve.low, curve.high) if values is not None]
        if len(bands) == 1 or not all(_fits(each, lengths, len(found.x)) for each in (curve.y, *bands)):
            raise RecordError(
                f"expected the curve {curve.name!r} to have y, or y, low and high, each with 1 to "
                f"{len(found.x)} numbers, or {lengths} lists of them, as sliders have values; got "
                f"{excerpt(curve.model_dump(exclude_none=True))}"
            )
    sliders = [
        {"name": slider.name, "values": each, "start": each.index(text)}
        for slider, each, text in zip(found.sliders, texts, wanted)
    ]
    return {**value, "sliders": sliders, "labels": [x, y], "log": log}


def _fits(values: Any, lengths: Sequence[int], most: int) -> bool:
    if not isinstance(values, list):
        return False
    if any(isinstance(item, list) for item in values):
        return [len(values)] == lengths[:1] and all(_fits(item, lengths[1:], most) for item in values)
    numbers = all(type(item) in (int, float, type(None)) for item in values)
    return numbers and 1 <= len(values) <= most


def _add_scripts(
    app: Sphinx, name: str, template: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    figures = [f for f in doctree.findall(nodes.figure) if "moving" in f["classes"]] if doctree else []
    if figures:
        app.add_css_file("moving.css")
        app.add_js_file("figures.js", loading_method="defer")
    for script in sorted({c.removeprefix(_CLASS) for f in figures for c in f["classes"] if _CLASS in c}):
        app.add_js_file(f"moving/{script}.js", loading_method="defer")


def setup(app: Sphinx) -> None:
    """Register the directive, and give the pages with figures that move their scripts."""
    app.add_directive("moving", Moving)
    app.connect("html-page-context", _add_scripts)
