"""The folded card that says what produced the results of a run or a sweep, and what runs it again."""

import json
import math
import shlex
from collections.abc import Mapping
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from gradtricks.book.origins import SHOWN_LIBRARIES, commit_of
from gradtricks.book.records import RUN, problem, record_of
from gradtricks.lab.results.quoting import RecordError

__all__ = ["RunCard", "command_of", "setup"]

_LONG = 2000  # bits: Python writes only so many decimal digits


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
            return problem(self, name, error)
        if "sweep" in record:
            changed = ", ".join(record["changed"])
            badge = ' <span class="changed">changed since</span>' if changed else ""
            title, command = f"How the sweep {target['stem']} ran{badge}", record["command"]
            rows = record["origin"] | {"changed since": changed}
        else:
            with_backend = f" with {target['backend']}" if target["backend"] else ""
            title, command = f"How {target['stem']} ran{with_backend}", command_of(target["stem"], record)
            rows = _origin(record)
        return [
            # No name in a title holds a sign that would have to be escaped: see RUN.
            nodes.raw("", f'<details class="run-card"><summary>{title}</summary>', format="html"),
            _table({name: text for name, value in rows.items() if (text := _plain(value))}),
            nodes.paragraph("", "This command runs it again:"),
            nodes.literal_block("", command, language="console"),
            nodes.raw("", "</details>", format="html"),
        ]


def command_of(stem: str, record: Mapping[str, Any]) -> str:
    """Write the line for a shell that does a run again, with all that its results depend on.

    It is a command of the lab, not papermill's: the lab pins the threads of each library.
    """
    threads = record.get("provenance", {}).get("threads")
    options = [] if threads is None else [f"--threads {threads}"]
    parameters = record.get("parameters", {})
    options += [f"-p {shlex.quote(f'{name}={_typed(value)}')}" for name, value in parameters.items()]
    return " ".join([f"gradtricks run experiments/{stem}.ipynb", *options])


def _typed(value: Any) -> str:
    """Write a parameter as ``gradtricks run`` reads it, by the type that the notebook declares."""
    if isinstance(value, list | Mapping):
        return json.dumps(value, default=str, ensure_ascii=False)
    return hex(value) if isinstance(value, int) and value.bit_length() > _LONG else str(value)


def _origin(record: Mapping[str, Any]) -> dict[str, Any]:
    """Collect what a reader wants to know of a run."""
    source, versions = record.get("provenance", {}), record.get("inputs", {}).get("versions", {})
    return {
        "parameters": record.get("parameters"),
        "started": record.get("started"),
        "took": f"{record.get('duration_s', math.nan):.0f} s",
        "commit": commit_of(source),
        "processor": source.get("processor"),
        "threads": source.get("threads"),
        "Python": source.get("python"),
        "libraries": {name: versions[name] for name in SHOWN_LIBRARIES if name in versions},
    }


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_plain(item)}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(map(_plain, value))
    return "" if value is None else str(value)


def _table(rows: Mapping[str, str]) -> nodes.table:
    body = nodes.tbody("", *(_row(key, value) for key, value in rows.items()))
    columns = (nodes.colspec(colwidth=width) for width in (1, 3))
    return nodes.table("", nodes.tgroup("", *columns, body, cols=2))


def _row(*cells: str) -> nodes.row:
    return nodes.row("", *(nodes.entry("", nodes.paragraph("", cell)) for cell in cells))


def setup(app: Sphinx) -> None:
    """Register the directive."""
    app.add_directive("run-card", RunCard)
