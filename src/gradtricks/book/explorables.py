"""Figures whose sliders choose among recorded curves; a figure of the run stands in where no script runs."""

import math
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from sphinx.application import Sphinx

from gradtricks.book.moving import Drawn
from gradtricks.book.numbers import number_text
from gradtricks.book.quotes import figure_of, result_of
from gradtricks.lab.notebooks.schema import excerpt
from gradtricks.lab.results.quoting import RecordError

__all__ = ["Explorable", "payload", "setup"]


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


def payload(value: Any, *, x: str, y: str, log: str = "", start: str = "") -> dict[str, Any]:
    """Make of a recorded result what the script draws: lists and texts, numbers with four digits.

    The result has ``sliders``, one or two, each with a ``name`` and its ``values``; ``x``, numbers in order;
    and ``curves``, each with a ``name`` and ``y``: lists for each value of the first slider, in which
    are lists for the second one if there is one, in which are as many numbers as ``x`` has, or fewer.
    NaN and None are gaps, numbers alone a curve that stays. ``low`` and ``high``, both as ``y``, are a band.
    The arguments ``x`` and ``y`` are labels, ``log`` names the logarithmic axes, ``start`` the first values.

    A RecordError says that the result has another form, or that ``start`` isn't on the grid.
    """
    try:
        found = _Explored.model_validate(value)
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, p['loc'])) or 'it'}: {p['msg']}" for p in error.errors()]
        raise RecordError(
            f"expected a result with sliders, x and curves; {'; '.join(problems)}; got {excerpt(value)}"
        ) from error
    texts = [[_text(value) for value in slider.values] for slider in found.sliders]
    wanted = [text.strip() for text in start.split(",")] if start else [each[0] for each in texts]
    if len(wanted) != len(texts) or not all(text in each for text, each in zip(wanted, texts)):
        raise RecordError(f"expected start to have one value of each slider, of {texts}; got {start!r}")
    places = [_rounded(place, log="x" in log) for place in found.x]
    lengths = [*map(len, texts)]
    return {
        "sliders": [
            {"name": slider.name, "values": each, "start": each.index(text)}
            for slider, each, text in zip(found.sliders, texts, wanted)
        ],
        "x": places,
        "curves": [_drawn(curve, lengths, len(places), log) for curve in found.curves],
        "labels": [x, y],
        "log": log,
    }


class Explorable(Drawn):
    """``{explorable} stem/backend/name``: a figure of a run's curves, with sliders that choose among them."""

    option_spec: ClassVar = dict.fromkeys(
        ("fallback", "prompt", "x", "y", "log", "start"), directives.unchanged_required
    )

    def show(self, name: str) -> list[nodes.Node]:
        """Build the figure; a result of another form is refused."""
        given = self.given()
        fallback, prompt = given.pop("fallback"), given.pop("prompt")
        if not (fallback and prompt and given["x"] and given["y"]):
            raise RecordError(f"expected the options fallback, prompt, x and y; got {given}")
        if given["log"] not in ("", "x", "y", "xy"):
            raise RecordError(f"expected the option log to be x, y or xy; got {given['log']!r}")
        data = payload(result_of(self.env, name)[0], **given)
        _, picture, alt = figure_of(self.env, fallback)
        return self.draw(picture, alt, {"prompt": prompt, **data})


def _drawn(curve: _Curve, lengths: Sequence[int], most: int, log: str) -> dict[str, Any]:
    """Shorten the numbers of a curve; one of numbers alone stays whatever the sliders say."""

    def shorten(value: Any, lengths: Sequence[int]) -> Any:
        fits = isinstance(value, list) and (len(value) == lengths[0] if lengths else 1 <= len(value) <= most)
        if fits and lengths:
            return [shorten(item, lengths[1:]) for item in value]
        if fits and all(item is None or _is_number(item) for item in value):
            return [_rounded(item, log="y" in log) for item in value]
        what = f"{lengths[0]} lists, one for each value of a slider" if lengths else f"1 to {most} numbers"
        raise RecordError(f"expected {what} in the curve {curve.name!r}; got {excerpt(value)}")

    lists = {"y": curve.y, "low": curve.low, "high": curve.high}
    drawn = {
        key: shorten(value, lengths if any(isinstance(item, list) for item in value) else [])
        for key, value in lists.items()
        if value is not None
    }
    if len(drawn) == 2:
        raise RecordError(f"expected both low and high in the curve {curve.name!r}, or none; got one")
    return {"name": curve.name, **drawn}


def _rounded(value: float | None, *, log: bool) -> float | int | None:
    if value is None or not math.isfinite(value) or (log and value <= 0):
        return None
    short = float(f"{value:.4g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(value: Any) -> str:
    return number_text(value) if _is_number(value) else str(value)


def setup(app: Sphinx) -> None:
    """Register the directive."""
    app.add_directive("explorable", Explorable)
