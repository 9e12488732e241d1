"""Quotes of runs on a page: a role for results in running text, directives for tables and figures."""

import json
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.directives.patches import Figure
from sphinx.environment import BuildEnvironment
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective, SphinxRole

from gradtricks.book.margins import provenance
from gradtricks.book.numbers import format_result, markdown_table, result_text
from gradtricks.lab.encoding import decode
from gradtricks.lab.notebooks.schema import excerpt
from gradtricks.lab.results.quoting import RecordError, result_from

__all__ = [
    "ResultRole",
    "ResultTable",
    "RunFigure",
    "Showing",
    "figure_of",
    "record_of",
    "result_of",
    "setup",
]

logger = logging.getLogger(__name__)

# A notebook without a backend has one run; the page of a sweep is quoted as if "sweep" were its backend.
_RUN = r"(?P<stem>[A-Za-z0-9][A-Za-z0-9_.-]*)(?:/(?P<backend>[a-z]+))?"
_NAMED = _RUN + r"/(?P<name>[^:]+)(?::(?P<spec>.*))?"


class _FailedRunError(RecordError):
    """The run that is quoted failed; the build has said so, and goes on."""


class Showing(SphinxDirective):
    """A directive that shows what runs recorded; what it can't show is a warning, which fails the build."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Build what the subclass shows."""
        try:
            return self.show(self.arguments[0])
        except RecordError as error:
            return _problem(self, self.arguments[0], error)

    def show(self, name: str) -> list[nodes.Node]:
        """Build what the argument names; a RecordError says why that can't be."""
        raise NotImplementedError  # each directive has its own way


class ResultRole(SphinxRole):
    """``{result}`stem/backend/name:format```: one number of a run, in running text."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """Replace the role by the formatted result; an unknown one is a warning."""
        try:
            value, spec = result_of(self.env, self.text)
            text, exponent = format_result(value, spec)
        except RecordError as error:
            return _problem(self, self.text, error), []
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


def published_record(path: Path) -> dict[str, Any]:
    """Read the record of one run, ``<stem>-<backend>.json``; a RecordError says that there is none."""
    try:
        return _parse_record(path, path.stat().st_mtime_ns)
    except FileNotFoundError as error:
        there = ", ".join(sorted(p.stem for p in path.parent.glob("*.json"))) or "none"
        raise RecordError(
            f"expected the record {path.name}; got the records: {there}; remedy: run `make book`, "
            "which runs the notebooks, or mend the name"
        ) from error


@lru_cache(maxsize=64)
def _parse_record(path: Path, modified_ns: int) -> dict[str, Any]:
    return decode(json.loads(path.read_text(encoding="utf-8")))


def record_of(env: BuildEnvironment, name: str) -> tuple[re.Match[str], dict[str, Any]]:
    """Take ``stem/backend`` apart, and read the record of that run."""
    return _read(env, name, _RUN, "stem/backend; remedy: masking/torch")


def result_of(env: BuildEnvironment, name: str) -> tuple[Any, str]:
    """Look up what ``stem/backend/name:format`` names, and the format."""
    form = "stem/backend/name[.part][:format]; remedy: masking/torch/accuracy:.1%"
    target, record = _read(env, name, _NAMED, form)
    return result_from(record["results"] | record.get("varying", {}), target["name"]), target["spec"] or ""


def figure_of(env: BuildEnvironment, name: str) -> tuple[re.Match[str], str, str]:
    """Look up a figure or a film such as ``masking/torch/learning_curve``: whose, its address, its text."""
    target, record = _read(env, name, _NAMED, "stem/backend/figure; remedy: masking/torch/learning_curve")
    alt = result_from(record.get("figures", {}), target["name"])
    address = f"/experiments/{_name_of(target)}/{target['name']}"
    film = Path(env.srcdir, f"{address[1:]}.png").is_file()
    return target, f"{address}.{'png' if film else 'svg'}", alt


def _read(env: BuildEnvironment, name: str, pattern: str, form: str) -> tuple[re.Match[str], dict[str, Any]]:
    target = re.fullmatch(pattern, name)
    if target is None:
        raise RecordError(f"expected {form}")
    path = Path(env.srcdir, "experiments", f"{_name_of(target)}.json")
    # Noted before it is read: a page that quotes a missing record is built again once the record is there.
    env.note_dependency(str(path))
    record = published_record(path)
    if record.get("status") == "failed":
        raise _FailedRunError(f"{_name_of(target)} failed")
    return target, record


def _problem(where: SphinxDirective | SphinxRole, text: str, error: RecordError) -> list[nodes.Node]:
    """Mark the place on the page, and warn, which fails the build, unless the run itself had failed."""
    if isinstance(error, _FailedRunError):
        mark = nodes.emphasis("", f"[{error}]")
        return [mark] if isinstance(where, SphinxRole) else [nodes.paragraph("", "", mark)]
    logger.warning("%s %r: %s", where.name, text, error, location=where.get_location(), type="result")
    return [nodes.problematic(text, text)]


def _name_of(target: re.Match[str]) -> str:
    """Name the files of a run or a sweep, such as ``masking-torch``."""
    return "-".join(filter(None, (target["stem"], target["backend"])))


def setup(app: Sphinx) -> None:
    """Register the role and the directives."""
    app.add_role("result", ResultRole())
    app.add_directive("run-figure", RunFigure)
    app.add_directive("result-table", ResultTable)
