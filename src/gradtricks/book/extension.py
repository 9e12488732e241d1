"""Sphinx extension of the book: results and run cards from records, mathematics rendered while building."""

import json
import math
import pickle
import re
import shlex
from collections.abc import Mapping
from datetime import date, datetime
from pathlib import Path
from typing import Any

import yaml
from docutils import nodes
from sphinx.application import ENV_PICKLE_FILENAME, Sphinx
from sphinx.directives.patches import Figure
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective, SphinxRole

from gradtricks.lab.pages import (
    citing,
    entries,
    explorables,
    feed,
    images,
    katex,
    launching,
    listing,
    signatures,
    trimming,
)
from gradtricks.lab.pages.targets import RESULT, RUN, figure_of, record_of
from gradtricks.lab.results.quoting import (
    SHOWN_LIBRARIES,
    RecordError,
    format_result,
    result_from,
)

__all__ = ["ResultRole", "RunCard", "RunFigure", "setup"]

logger = logging.getLogger(__name__)

_LONG = 2000  # bits


class ResultRole(SphinxRole):
    """``{result}`stem/backend/name:format```: one number of a run, in running text."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """Replace the role by the formatted result; an unknown one is a warning."""
        try:
            return [self._shown()], []
        except RecordError as error:
            logger.warning("result %r: %s", self.text, error, location=self.get_location(), type="result")
            return [nodes.problematic(self.rawtext, self.rawtext)], []

    def _shown(self) -> nodes.inline:
        target = RESULT.fullmatch(self.text)
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
        try:
            self.arguments[0], self.options["alt"] = figure_of(self.env, name)
        except RecordError as error:
            logger.warning("run-figure %r: %s", name, error, location=self.get_location(), type="result")
            return [nodes.problematic(name, name)]
        return super().run()


class RunCard(SphinxDirective):
    """``{run-card} stem/backend``: what produced the results of a run or a sweep, and what runs it again."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Build the folded card; an unknown run is a warning."""
        name = self.arguments[0]
        try:
            target = RUN.fullmatch(name)
            if target is None:
                raise RecordError("expected stem/backend; remedy: masking/torch")
            record = record_of(self.env, target)
        except RecordError as error:
            logger.warning("run-card %r: %s", name, error, location=self.get_location(), type="result")
            return [nodes.problematic(name, name)]
        return _sweep_card(target, record) if "sweep" in record else _run_card(target, record)


def _run_card(target: re.Match[str], record: Mapping[str, Any]) -> list[nodes.Node]:
    with_backend = f" with {target['backend']}" if target["backend"] else ""
    title = f"How {target['stem']} ran{with_backend}"
    return _card(title, _rows(record), _command(target, record))


def _sweep_card(target: re.Match[str], record: Mapping[str, Any]) -> list[nodes.Node]:
    changed = ", ".join(record["changed"])
    badge = ' <span class="changed">changed since</span>' if changed else ""
    rows = {name: text for name, text in (record["origin"] | {"changed since": changed}).items() if text}
    return _card(f"How the sweep {target['stem']} ran{badge}", rows, record["command"])


def _card(title: str, rows: Mapping[str, str], command: str) -> list[nodes.Node]:
    return [
        # No name in a title holds a sign that would have to be escaped: see RUN.
        _html(f'<details class="run-card"><summary>{title}</summary>'),
        _table(rows),
        nodes.paragraph("", "This command runs it again:"),
        nodes.literal_block("", command, language="console"),
        _html("</details>"),
    ]


def _html(text: str) -> nodes.raw:
    return nodes.raw("", text, format="html")


def _command(target: re.Match[str], record: Mapping[str, Any]) -> str:
    parameters = record.get("parameters", {})
    notebook = f"experiments/{target['stem']}.ipynb"
    try:
        options = [_option(key, value) for key, value in parameters.items()]
    except (ValueError, yaml.representer.RepresenterError):  # thousands of digits; papermill knows no dates
        options = [f"-p {shlex.quote(f'{key}={_typed(value)}')}" for key, value in parameters.items()]
        return " ".join(["gradtricks run", notebook, *options])
    return " ".join(["papermill", notebook, "out.ipynb", *options])


def _option(key: str, value: Any) -> str:
    """Write a parameter so that papermill reads it exactly."""
    if isinstance(value, str):  # with -p, "3" would become a number
        return f"-r {key} {shlex.quote(value)}"
    if value is None or isinstance(value, bool | int | float):
        return f"-p {key} {value}"
    # Not JSON: in YAML its 1e-05 and Infinity are texts.
    text = yaml.dump({key: value}, Dumper=_Dumper, default_flow_style=True, width=math.inf)
    return f"-y {shlex.quote(text.strip())}"


class _Dumper(yaml.SafeDumper):
    """Writes what papermill reads: no dates, and values out in full where they come twice."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Dumper.yaml_representers = {
    kind: write for kind, write in yaml.SafeDumper.yaml_representers.items() if kind not in (date, datetime)
}


def _typed(value: Any) -> str:
    """Write a parameter as ``gradtricks run`` reads it, by the type that the notebook declares."""
    if isinstance(value, list | Mapping):
        return json.dumps(value, default=str, ensure_ascii=False)
    # Python writes only so many decimal digits.
    return hex(value) if isinstance(value, int) and value.bit_length() > _LONG else str(value)


def _rows(record: Mapping[str, Any]) -> dict[str, str]:
    """What a reader wants to know of a run; what an older record lacks is left out."""
    source, versions = record.get("provenance", {}), record.get("inputs", {}).get("versions", {})
    commit = source.get("commit") or "unknown"
    rows = {
        "parameters": record.get("parameters"),
        "started": record.get("started"),
        "took": f"{record.get('duration_s', math.nan):.0f} s",
        "commit": f"{commit[:12]}{' with uncommitted changes' if source.get('dirty') else ''}",
        "processor": source.get("processor"),
        "threads": source.get("threads"),
        "Python": source.get("python"),
        "libraries": {name: versions[name] for name in SHOWN_LIBRARIES if name in versions},
    }
    return {key: text for key, value in rows.items() if (text := _plain(value))}


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_plain(item)}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(map(_plain, value))
    return "" if value is None else str(value)


def _table(rows: Mapping[str, str]) -> nodes.table:
    body = nodes.tbody("", *(_table_row(key, value) for key, value in rows.items()))
    columns = (nodes.colspec(colwidth=width) for width in (1, 3))
    return nodes.table("", nodes.tgroup("", *columns, body, cols=2))


def _table_row(*cells: str) -> nodes.row:
    return nodes.row("", *(nodes.entry("", nodes.paragraph("", cell)) for cell in cells))


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the role, the directives, the renderers, and what finishes the pages."""
    for part in (citing, entries, explorables, feed, images, katex, launching, listing, signatures, trimming):
        part.setup(app)
    app.connect("build-finished", _keep_index_entries)
    app.add_role("result", ResultRole())
    app.add_directive("run-card", RunCard)
    app.add_directive("run-figure", RunFigure)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": False}


def _keep_index_entries(app: Sphinx, exception: Exception | None) -> None:
    """Save what Sphinx read once more when its pages are written, since the search's entries came last."""
    if exception is None and app.builder.name == "html":
        with Path(app.doctreedir, ENV_PICKLE_FILENAME).open("wb") as file:
            pickle.dump(app.env, file, pickle.HIGHEST_PROTOCOL)
