"""The folded card that says what produced the results of a run or a sweep, and what runs it again."""

import json
import shlex
from collections.abc import Mapping
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

from gradtricks.book.origins import origin_of
from gradtricks.book.quotes import Showing, record_of
from gradtricks.book.tabs import FRAMEWORKS

__all__ = ["RunCard", "command_of", "setup"]

_LINE = 76  # letters of code that a page's column holds


class RunCard(Showing):
    """``{run-card} stem/backend``: what produced the results of a run or a sweep, and what runs it again."""

    def show(self, name: str) -> list[nodes.Node]:
        """Build the folded card."""
        target, record = record_of(self.env, name)
        again = "runs it again"
        if "sweep" in record:
            other = record["standing"] == "other numbers"
            badge = ' <span class="changed">other numbers since</span>' if other else ""
            title, command = f"How the sweep {target['stem']} ran{badge}", record["command"]
            rows = record["origin"] | {"today's code": record["standing"]}
            if other:
                again = "runs it with what is here now, and finds something else"
        else:
            backend = target["backend"]
            with_backend = f" with {FRAMEWORKS.get(backend, backend)}" if backend else ""
            title, command = f"How {target['stem']} ran{with_backend}", command_of(target["stem"], record)
            parameters = (f"{key} {_plain(value)}" for key, value in record["parameters"].items())
            rows = {"parameters": ", ".join(parameters)} | origin_of([record])
        body = nodes.tbody("", *(_row(*row) for row in rows.items() if row[1]))
        columns = (nodes.colspec(colwidth=width) for width in (1, 3))
        return [
            # No name in a title holds a sign that would have to be escaped: see records.py.
            nodes.raw("", f'<details class="run-card"><summary>{title}</summary>', format="html"),
            nodes.table("", nodes.tgroup("", *columns, body, cols=2)),
            nodes.paragraph("", f"This command {again}:"),
            nodes.literal_block("", command, language="console"),
            nodes.raw("", "</details>", format="html"),
        ]


def command_of(stem: str, record: Mapping[str, Any]) -> str:
    """Write the command for a shell that does a run again, with all that its results depend on.

    It is a command of the lab, not papermill's: the lab pins the threads of each library. Where it is longer
    than a page has room for, the shell's backslash breaks it into lines.
    """
    given = [f"-p {shlex.quote(f'{name}={_typed(value)}')}" for name, value in record["parameters"].items()]
    threads = record["provenance"]["threads"]
    lines = [f"gradtricks run experiments/{stem}.ipynb --threads {threads}"]
    for each in given:
        if len(lines[-1]) + len(f" {each} \\") > _LINE:
            lines.append(f"  {each}")
        else:
            lines[-1] += f" {each}"
    return " \\\n".join(lines)


def _typed(value: Any) -> str:
    """Write a parameter as ``gradtricks run`` reads it, by the type that the notebook declares."""
    if isinstance(value, list | Mapping):
        return json.dumps(value, default=str, ensure_ascii=False)
    return str(value)


def _plain(value: Any) -> str:
    return ", ".join(map(_plain, value)) if isinstance(value, list) else str(value)


def _row(*cells: str) -> nodes.row:
    return nodes.row("", *(nodes.entry("", nodes.paragraph("", cell)) for cell in cells))


def setup(app: Sphinx) -> None:
    """Register the directive."""
    app.add_directive("run-card", RunCard)
