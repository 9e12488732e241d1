"""Figures that a script draws and a reader moves; a still picture stands in where no script runs."""

import json
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.directives.patches import Figure
from sphinx.util.docutils import SphinxDirective

from gradtricks.book.records import NAMED, figure_of, problem, record_of
from gradtricks.lab.results.quoting import RecordError, result_from

__all__ = ["Moving", "lay_data", "setup"]

_SCRIPTS = "_assets/moving"
_CLASS = "moving-"
_OPTIONS = ("alt", "prompt", "data", "fallback")


class Moving(Figure, SphinxDirective):
    """``{moving} name``: what ``_assets/moving/name.js`` draws, perhaps from a result of a run."""

    option_spec: ClassVar = dict.fromkeys(_OPTIONS, directives.unchanged_required)

    def run(self) -> list[nodes.Node]:
        """Build the figure; one that isn't there, or without its options, is a warning."""
        name = self.arguments[0]
        given = {option: self.options.pop(option, "") for option in _OPTIONS}
        try:
            known = sorted(path.stem for path in Path(self.env.srcdir, _SCRIPTS).glob("*.js"))
            if name not in known:
                raise RecordError(f"expected one of: {', '.join(known)}")
            if not (given["alt"] and given["prompt"]):
                raise RecordError(f"expected the options alt and prompt; got {given}")
            told = {"alt": given["alt"], "prompt": given["prompt"]}
            if given["data"]:
                told["data"] = self._result(given["data"])
            still = figure_of(self.env, given["fallback"])[0] if given["fallback"] else ""
        except RecordError as error:
            return problem(self, name, error)
        self.arguments[0], self.options["alt"] = still or f"/{_SCRIPTS}/{name}.svg", given["alt"]
        self.options["figclass"] = ["explorable", "moving", f"{_CLASS}{name}"]
        figure, *rest = super().run()
        lay_data(figure, told)
        return [figure, *rest]

    def _result(self, name: str) -> Any:
        target = NAMED.fullmatch(name)
        if target is None:
            raise RecordError("expected data to be stem/backend/name; remedy: pong_sign/games")
        result = result_from(record_of(self.env, target)["results"], target["name"])
        try:
            json.dumps(result, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise RecordError(
                "expected a result that JSON can say; got NaN, infinity or a date; remedy: record None"
            ) from error
        return result


def lay_data(figure: nodes.Element, data: dict[str, Any]) -> None:
    """Put into a figure what its script reads, after the picture that stands in for it."""
    # Also where it is the page's first image: where scripts run, it isn't shown.
    figure[0]["loading"] = "lazy"
    # "</script>" within a text would end the element, and "<!--" hide its end.
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    figure.insert(1, nodes.raw("", f'<script type="application/json">{text}</script>', format="html"))


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
