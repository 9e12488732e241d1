"""Results and figures of runs on a page: a role for numbers in running text, directives for the rest."""

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.directives.patches import Figure
from sphinx.util.docutils import SphinxRole

from gradtricks.book.margins import provenance
from gradtricks.book.numbers import format_result, markdown_table, result_text
from gradtricks.book.quotes import Showing, figure_of, problem, result_of
from gradtricks.lab.notebooks.schema import excerpt
from gradtricks.lab.results.quoting import RecordError

__all__ = ["ResultRole", "ResultTable", "RunFigure", "setup"]


class ResultRole(SphinxRole):
    """``{result}`stem/backend/name:format```: one number of a run, in running text."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """Replace the role by the formatted result; an unknown one is a warning."""
        try:
            value, spec = result_of(self.env, self.text)
            text, exponent = format_result(value, spec)
        except RecordError as error:
            return problem(self, self.text, error), []
        # A number stays in one line; a text may be long.
        node = nodes.inline(self.rawtext, text, classes=[] if isinstance(value, str) else ["result"])
        if exponent is not None:
            node += nodes.superscript("", exponent)
        return [node], []


class ResultTable(Showing):
    """``{result-table} stem/backend/name:format``: a recorded list of rows, the heads first.

    Texts are Markdown; the format is that of the numbers.
    """

    final_argument_whitespace = True

    def show(self, name: str) -> list[nodes.Node]:
        """Build the table; what isn't a table is refused."""
        rows, spec = result_of(self.env, name)
        is_table = isinstance(rows, list) and rows and all(isinstance(row, list) for row in rows)
        if not is_table or len({len(row) for row in rows}) > 1:
            raise RecordError(
                f"expected rows of one length, heads first; got {excerpt(rows)}; remedy: record some, as in "
                'record(table=[["what", "seconds"], ["norm", 0.1]])'
            )
        cells = [[cell if isinstance(cell, str) else result_text(cell, spec) for cell in row] for row in rows]
        return self.parse_text_to_nodes(markdown_table(cells))


class RunFigure(Showing, Figure):
    """``{run-figure} stem/backend/name``: a figure of a run, with the text for those who can't see it."""

    def show(self, name: str) -> list[nodes.Node]:
        """Build the figure, and say whose it is."""
        target, self.arguments[0], self.options["alt"] = figure_of(self.env, name)
        figure, *rest = Figure.run(self)
        ending = "-sweep" if target["backend"] == "sweep" else ""
        page = f"experiments/{target['stem']}{ending}"
        # The run's own page needs no link to itself.
        if page in self.env.found_docs and not self.env.docname.startswith("experiments/"):
            figure += provenance(target["stem"], target["backend"], f"/{page}")
        return [figure, *rest]


def setup(app: Sphinx) -> None:
    """Register the role and the directives."""
    app.add_role("result", ResultRole())
    app.add_directive("run-figure", RunFigure)
    app.add_directive("result-table", ResultTable)
