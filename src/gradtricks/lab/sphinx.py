"""Sphinx extension of the book: results and run cards from records, mathematics rendered while building."""

import ast
import inspect
import json
import math
import re
import shlex
import textwrap
from collections.abc import Mapping
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.directives.patches import Figure
from sphinx.environment import BuildEnvironment
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective, SphinxRole

from gradtricks.lab import katex
from gradtricks.lab.recording import decode

__all__ = ["RecordError", "format_result", "read_record", "result_from", "setup"]

logger = logging.getLogger(__name__)

_RUN = r"(?P<stem>[a-z][a-z0-9_]*)/(?P<backend>[a-z]+)"
_RUN_TARGET = re.compile(_RUN)
_FIGURE_TARGET = re.compile(_RUN + r"/(?P<name>[a-z][a-z0-9_]*)")
_RESULT_TARGET = re.compile(_RUN + r"/(?P<name>[^:]+)(?::(?P<spec>.*))?")
_SCIENTIFIC = re.compile(r"(?P<mantissa>.*\d)e(?P<exponent>[+-]\d+)")
_MINUS = "\N{MINUS SIGN}"
_SHOWN_LIBRARIES = ("torch", "tensorflow", "keras", "numpy", "envpool", "gymnasium", "scikit-learn")


class RecordError(ValueError):
    """A record or one of its results isn't there, or can't be shown as asked."""


@lru_cache(maxsize=64)
def _parse_record(path: Path, modified_ns: int) -> dict[str, Any]:
    record = decode(json.loads(path.read_text(encoding="utf-8")))
    if not isinstance(record, dict) or not isinstance(record.get("results"), dict):
        raise RecordError(f"{path} must be a record with results; got {type(record).__name__}")
    return record


def read_record(path: Path) -> dict[str, Any]:
    """Read the record of one run.

    Args:
        path: The record, ``<stem>-<backend>.json``.

    Returns:
        The record, with non-finite numbers as floats.

    Raises:
        RecordError: There is no such file, or it isn't a record.
    """
    try:
        return _parse_record(path, path.stat().st_mtime_ns)
    except FileNotFoundError as error:
        there = ", ".join(sorted(p.stem for p in path.parent.glob("*.json"))) or "none"
        raise RecordError(
            f"expected the record {path.name}; got the records: {there}; remedy: run `make book`, "
            "which runs the notebooks, or mend the name"
        ) from error
    except json.JSONDecodeError as error:
        raise RecordError(f"{path.name} must be JSON; got {error}; remedy: run `make book` again") from error


def result_from(results: Any, name: str) -> Any:
    """Look up one result by its dotted name.

    Args:
        results: What a run recorded: a mapping of names to values.
        name: Names of mappings and positions in lists, joined by dots: ``curve.0``, ``norms.hidden``. A key
            that itself holds a dot, as in ``share.0.1``, is found too.

    Returns:
        The value.

    Raises:
        RecordError: There is no such result; the message lists those that there are.
    """
    return _descend(results, name.split("."))


def _descend(value: Any, parts: list[str]) -> Any:
    if not parts:
        return value
    if isinstance(value, Mapping):
        for count in range(len(parts), 0, -1):
            key = ".".join(parts[:count])
            if key in value:
                return _descend(value[key], parts[count:])
        there = ", ".join(map(str, value)) or "nothing"
        raise RecordError(f"expected one of: {there}; got {'.'.join(parts)!r}")
    if isinstance(value, list):
        try:
            return _descend(value[int(parts[0])], parts[1:])
        except (IndexError, ValueError) as error:
            if isinstance(error, RecordError):
                raise
            raise RecordError(f"expected a position below {len(value)}; got {parts[0]!r}") from error
    raise RecordError(f"expected the name to end before {'.'.join(parts)!r}; got the value {value!r}")


def format_result(value: Any, spec: str = "") -> tuple[str, str | None]:
    """Format one result for running text.

    Args:
        value: A number, string, bool or None.
        spec: Python's format specification; without one, floats have four significant digits.

    Returns:
        The text, and the power of ten to set as a superscript or None.

    Raises:
        RecordError: The value is a list or a mapping, or ``spec`` doesn't fit it.
    """
    if isinstance(value, list | Mapping):
        raise RecordError(
            f"expected one value; got a {type(value).__name__} of {len(value)}; remedy: name a part of it"
        )
    if isinstance(value, float) and not math.isfinite(value):
        return {"nan": "NaN", "inf": "∞", "-inf": _MINUS + "∞"}[str(value)], None
    if value is None or isinstance(value, bool | str):
        return _apply(str(value), spec), None
    return _typographic(_apply(value, spec or (".4g" if isinstance(value, float) else "")))


def _apply(value: str | float, spec: str) -> str:
    try:
        return format(value, spec)
    except ValueError as error:
        raise RecordError(
            f"expected a format that fits {value!r}; got {spec!r} ({error}); remedy: for instance ':.3f'"
        ) from error


def _typographic(text: str) -> tuple[str, str | None]:
    scientific = _SCIENTIFIC.fullmatch(text)
    if scientific is None:
        return text.replace("-", _MINUS), None
    mantissa = scientific["mantissa"].replace("-", _MINUS)
    return f"{mantissa} × 10", str(int(scientific["exponent"])).replace("-", _MINUS)


def _record_of(env: BuildEnvironment, target: re.Match[str]) -> dict[str, Any]:
    path = Path(env.srcdir, "experiments", f"{target['stem']}-{target['backend']}.json")
    # Noted before it is read: a page that quotes a missing record is built again once the record is there.
    env.note_dependency(str(path))
    return read_record(path)


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
        target = _RESULT_TARGET.fullmatch(self.text)
        if target is None:
            raise RecordError(
                "expected stem/backend/name[.part][:format]; remedy: masking/torch/accuracy:.1%"
            )
        value = result_from(_record_of(self.env, target)["results"], target["name"])
        text, exponent = format_result(value, target["spec"] or "")
        shown = nodes.inline(self.rawtext, text, classes=["result"])
        if exponent is not None:
            shown += nodes.superscript("", exponent)
        return shown


class RunFigure(Figure, SphinxDirective):
    """``{run-figure} stem/backend/name``: a figure of a run, with the text for those who can't see it."""

    def run(self) -> list[nodes.Node]:
        """Build the figure; an unknown one is a warning."""
        name = self.arguments[0]
        try:
            target = _FIGURE_TARGET.fullmatch(name)
            if target is None:
                raise RecordError("expected stem/backend/figure; remedy: masking/torch/learning_curve")
            self.options["alt"] = result_from(_record_of(self.env, target).get("figures", {}), target["name"])
        except RecordError as error:
            logger.warning("run-figure %r: %s", name, error, location=self.get_location(), type="result")
            return [nodes.problematic(name, name)]
        self.arguments[0] = f"/experiments/{target['stem']}-{target['backend']}/{target['name']}.svg"
        return super().run()


class RunCard(SphinxDirective):
    """``{run-card} stem/backend``: what produced a run's results, and the command that runs it again."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Build the folded card; an unknown run is a warning."""
        name = self.arguments[0]
        try:
            target = _RUN_TARGET.fullmatch(name)
            if target is None:
                raise RecordError("expected stem/backend; remedy: masking/torch")
            record = _record_of(self.env, target)
        except RecordError as error:
            logger.warning("run-card %r: %s", name, error, location=self.get_location(), type="result")
            return [nodes.problematic(name, name)]
        return _card(target, record)


def _card(target: re.Match[str], record: Mapping[str, Any]) -> list[nodes.Node]:
    command = nodes.literal_block("", _command(target, record), language="console")
    return [
        # Both names match [a-z0-9_]+, so there is nothing in them to escape.
        _html(
            f'<details class="run-card"><summary>How {target["stem"]} ran with {target["backend"]}</summary>'
        ),
        _table(_rows(record)),
        nodes.paragraph("", "This command runs it again:"),
        command,
        _html("</details>"),
    ]


def _html(text: str) -> nodes.raw:
    return nodes.raw("", text, format="html")


def _command(target: re.Match[str], record: Mapping[str, Any]) -> str:
    parameters = {"backend": target["backend"], **record.get("parameters", {})}
    options = (_option(key, value) for key, value in parameters.items())
    return " ".join(["papermill", f"experiments/{target['stem']}.ipynb", "out.ipynb", *options])


def _option(key: str, value: Any) -> str:
    if isinstance(value, float) and math.isfinite(value):
        # papermill reads 1e-05 as a string, so every digit is written out.
        return f"-p {key} {Decimal(repr(value)):f}"
    if isinstance(value, bool | int | str):
        return f"-p {key} {shlex.quote(str(value))}"
    return f"-y {shlex.quote(json.dumps({key: value}))}"


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
        "libraries": {name: versions[name] for name in _SHOWN_LIBRARIES if name in versions},
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


def _written_signature(
    app: Sphinx, what: str, name: str, item: Any, options: Any, signature: str | None, returned: str | None
) -> tuple[str, str | None] | None:
    """Show a signature as it is written: ``ArrayLike``, not the union of eight types behind it."""
    try:
        source = textwrap.dedent(inspect.getsource(item.__init__ if what == "class" else item))
    except (AttributeError, OSError, TypeError):
        return None
    function = next((n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef)), None)
    if function is None:
        return None
    arguments = function.args
    if what in ("class", "method"):
        (arguments.posonlyargs or arguments.args).pop(0)
    written = None if what == "class" or function.returns is None else ast.unparse(function.returns)
    return f"({ast.unparse(arguments)})", written


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the role, the directive and the renderer of mathematics."""
    katex.setup(app)
    app.add_role("result", ResultRole())
    app.setup_extension("sphinx.ext.autodoc")
    app.connect("autodoc-process-signature", _written_signature)
    app.add_directive("run-card", RunCard)
    app.add_directive("run-figure", RunFigure)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
