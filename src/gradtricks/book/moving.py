"""Figures that a script draws and a reader moves; a still picture stands in where no script runs."""

import json
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.directives.patches import Figure

from gradtricks.book.quotes import Showing, figure_of, result_of
from gradtricks.lab.results.quoting import RecordError

__all__ = ["Drawn", "Moving", "setup"]

_SCRIPTS = "_assets/moving"
_CLASS = "moving-"


class Drawn(Showing, Figure):
    """A figure with what its script reads, after the picture that stands in for it."""

    def given(self) -> dict[str, str]:
        """Take the options; one that isn't given is empty."""
        return {option: self.options.pop(option, "") for option in self.option_spec}

    def draw(self, picture: str, alt: str, data: dict[str, Any], *classes: str) -> list[nodes.Node]:
        """Build the figure."""
        self.arguments[0], self.options["alt"] = picture, alt
        self.options["figclass"] = ["explorable", *classes]
        figure, *rest = Figure.run(self)
        # Also where it is the page's first image: where scripts run, it isn't shown.
        figure[0]["loading"] = "lazy"
        # "</script>" within a text would end the element, and "<!--" hide its end.
        text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
        figure.insert(1, nodes.raw("", f'<script type="application/json">{text}</script>', format="html"))
        return [figure, *rest]


class Moving(Drawn):
    """``{moving} name``: what ``_assets/moving/name.js`` draws, perhaps from a result of a run."""

    option_spec: ClassVar = dict.fromkeys(
        ("alt", "prompt", "data", "fallback"), directives.unchanged_required
    )

    def show(self, name: str) -> list[nodes.Node]:
        """Build the figure; one that isn't there, or without its options, is refused."""
        given = self.given()
        known = sorted(path.stem for path in Path(self.env.srcdir, _SCRIPTS).glob("*.js"))
        if name not in known:
            raise RecordError(f"expected one of: {', '.join(known)}; got {name!r}")
        if not (given["alt"] and given["prompt"]):
            raise RecordError(f"expected the options alt and prompt; got {given}")
        data = {"data": self._result(given["data"])} if given["data"] else {}
        still = given["fallback"] and figure_of(self.env, given["fallback"])[1]
        told = {"alt": given["alt"], "prompt": given["prompt"], **data}
        return self.draw(still or f"/{_SCRIPTS}/{name}.svg", given["alt"], told, "moving", _CLASS + name)

    def _result(self, name: str) -> Any:
        result, _ = result_of(self.env, name)
        try:
            json.dumps(result, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise RecordError(
                "expected a result that JSON can say; got NaN, infinity or a date; remedy: record None"
            ) from error
        return result


def _add_scripts(
    app: Sphinx, name: str, template: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    figures = [f for f in doctree.findall(nodes.figure) if "explorable" in f["classes"]] if doctree else []
    if not figures:
        return
    app.add_css_file("explorable.css")
    app.add_js_file("figures.js", loading_method="defer")
    if any("moving" not in figure["classes"] for figure in figures):
        app.add_js_file("explorable.js", loading_method="defer")
    names = {c.removeprefix(_CLASS) for f in figures for c in f["classes"] if c.startswith(_CLASS)}
    for moving in sorted(names):
        app.add_js_file(f"moving/{moving}.js", loading_method="defer")


def setup(app: Sphinx) -> None:
    """Register the directive, and give the pages with figures that move their scripts."""
    app.add_directive("moving", Moving)
    app.connect("html-page-context", _add_scripts)
