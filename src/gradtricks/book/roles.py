"""Results and figures of runs on a page: a role for numbers in running text, directives for the rest."""

from pathlib import PurePosixPath
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.directives.patches import Figure
from sphinx.environment import BuildEnvironment
from sphinx.util.docutils import SphinxDirective, SphinxRole

from gradtricks.book.margins import provenance
from gradtricks.book.numbers import format_result, superscript
from gradtricks.book.records import NAMED, figure_of, problem, record_of
from gradtricks.book.valuetables import markdown_table
from gradtricks.lab.notebooks.schema import shown
from gradtricks.lab.results.quoting import RecordError, result_from

__all__ = ["ResultRole", "ResultTable", "RunFigure", "setup"]


class ResultRole(SphinxRole):
    """``{result}`stem/backend/name:format```: one number of a run, in running text."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """Replace the role by the formatted result; an unknown one is a warning."""
        try:
            return [self._shown()], []
        except RecordError as error:
            return problem(self, self.text, error), []

    def _shown(self) -> nodes.inline:
        value, spec = _look_up(self.env, self.text)
        text, exponent = format_result(value, spec)
        # A number stays in one line; a text may be long.
        shown = nodes.inline(self.rawtext, text, classes=[] if isinstance(value, str) else ["result"])
        if exponent is not None:
            shown += nodes.superscript("", exponent)
        return shown


class ResultTable(SphinxDirective):
    """``{result-table} stem/backend/name:format``: a recorded list of rows, the heads first.

    Texts are Markdown; the format is that of the numbers.
    """

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        """Build the table; an unknown result, or one that isn't a table, is a warning."""
        try:
            return self.parse_text_to_nodes(self._table())
        except RecordError as error:
            return problem(self, self.arguments[0], error)

    def _table(self) -> str:
        rows, spec = _look_up(self.env, self.arguments[0])
        is_table = isinstance(rows, list) and rows and all(isinstance(row, list) for row in rows)
        if not is_table or len({len(row) for row in rows}) > 1:
            raise RecordError(
                f"expected rows of one length, heads first; got {shown(rows)}; remedy: record some, as in "
                'record(table=[["what", "seconds"], ["norm", 0.1]])'
            )
        return markdown_table([[_cell(value, spec) for value in row] for row in rows])


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


def _look_up(env: BuildEnvironment, text: str) -> tuple[Any, str]:
    """Find what ``stem/backend/name:format`` names, and the format."""
    target = NAMED.fullmatch(text)
    if target is None:
        raise RecordError("expected stem/backend/name[.part][:format]; remedy: masking/torch/accuracy:.1%")
    record = record_of(env, target)
    return result_from(record["results"] | record.get("varying", {}), target["name"]), target["spec"] or ""


def _cell(value: Any, spec: str) -> str:
    if isinstance(value, str):
        return value
    text, exponent = format_result(value, spec)
    return text if exponent is None else text + superscript(exponent)


def setup(app: Sphinx) -> None:
    """Register the role and the directive."""
    app.add_role("result", ResultRole())
    app.add_directive("run-figure", RunFigure)
    app.add_directive("result-table", ResultTable)
