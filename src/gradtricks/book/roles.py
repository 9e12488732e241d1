"""Results and figures of runs on a page: a role for numbers in running text, a directive for figures."""

from pathlib import PurePosixPath

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.directives.patches import Figure
from sphinx.util.docutils import SphinxDirective, SphinxRole

from gradtricks.book.margins import provenance
from gradtricks.book.numbers import format_result
from gradtricks.book.records import NAMED, figure_of, problem, record_of
from gradtricks.lab.results.quoting import RecordError, result_from

__all__ = ["ResultRole", "RunFigure", "setup"]


class ResultRole(SphinxRole):
    """``{result}`stem/backend/name:format```: one number of a run, in running text."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """Replace the role by the formatted result; an unknown one is a warning."""
        try:
            return [self._shown()], []
        except RecordError as error:
            return problem(self, self.text, error), []

    def _shown(self) -> nodes.inline:
        target = NAMED.fullmatch(self.text)
        if target is None:
            raise RecordError(
                "expected stem/backend/name[.part][:format]; remedy: masking/torch/accuracy:.1%"
            )
        record = record_of(self.env, target)
        value = result_from(record["results"] | record.get("varying", {}), target["name"])
        text, exponent = format_result(value, target["spec"] or "")
        # A number stays in one line; a text may be long.
        shown = nodes.inline(self.rawtext, text, classes=[] if isinstance(value, str) else ["result"])
        if exponent is not None:
            shown += nodes.superscript("", exponent)
        return shown


class RunFigure(Figure, SphinxDirective):
    """``{run-figure} stem/backend/name``: a figure of a run, with the text for those who can't see it."""

    def run(self) -> list[nodes.Node]:
        """Build the figure; an unknown one is a warning."""
        name = self.arguments[0]
        target = NAMED.fullmatch(name)
        try:
            self.arguments[0], self.options["alt"] = figure_of(self.env, name)
        except RecordError as error:
            return problem(self, name, error)
        figure, *rest = super().run()
        page = str(PurePosixPath(self.arguments[0]).parent)
        # The run's own page needs no link to itself.
        if target and page[1:] in self.env.found_docs and not self.env.docname.startswith("experiments/"):
            figure += provenance(target["stem"], target["backend"], page)
        return [figure, *rest]


def setup(app: Sphinx) -> None:
    """Register the role and the directive."""
    app.add_role("result", ResultRole())
    app.add_directive("run-figure", RunFigure)
