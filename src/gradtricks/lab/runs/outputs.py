"""Reading an executed notebook: results, figures, and what it ran on."""

import binascii
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from gradtricks.lab.encoding import encode
from gradtricks.lab.identity import Installed, inputs_of
from gradtricks.lab.recording import FIGURE_NAME, FILES_MIME, REPORT_MIME, RESULTS_MIME, VARYING_MIME

# What scrapbook's ``glue`` shows of a value, as papermill's users record results.
_SCRAPS = tuple(f"application/scrapbook.scrap.{encoder}+json" for encoder in ("json", "text"))
_SVG = "image/svg+xml"
_PNG = "image/png"


class OutputError(ValueError):
    """A result that a notebook recorded can't be kept."""


def finish(output: Path) -> dict[str, dict[str, Any]]:
    """Read what came out of a run, and take the lab's own last cell off its notebook.

    Returns parts of a record, by their names: ``results``, ``varying``, ``figures`` (what each shows),
    ``files``, ``inputs`` (what the run computed with), and ``provenance``: processor time and memory, and
    ``dirty`` where a source was edited while it ran. An OutputError says what was recorded twice, or can't be
    kept, or that what the run used isn't said.
    """
    node = nbformat.read(output, as_version=4)
    outputs = node.cells.pop().get("outputs", []) if node.cells else []
    report = next((dict(o.data[REPORT_MIME]) for o in outputs if REPORT_MIME in o.get("data", {})), None)
    if report is None:
        raise OutputError(
            "expected gradtricks.lab.recording.report() to say at the end what the run used; got nothing; "
            "remedy: leave the lab's modules and IPython's display as they are"
        )
    parts = _collect(node)
    node.metadata.get("papermill", {}).pop("output_path", None)  # it won't stay there
    nbformat.write(node, output)
    cells = [cell.source for cell in node.cells if cell.cell_type == "code"]
    inputs = inputs_of(cells, report.pop("read"), report.pop("versions"))
    edited = report.pop("edited") or not Installed().matches(inputs)
    return parts | {"inputs": inputs, "provenance": report | ({"dirty": True} if edited else {})}


def collect_figures(node: NotebookNode) -> dict[str, bytes]:
    """Take the figures and films that an executed notebook recorded, by the names of their files.

    Figures end in ``.svg``, films in ``.png``. What is named otherwise than
    `gradtricks.lab.recording.record_figure` names it is left out.
    """
    figures: dict[str, bytes] = {}
    for output in _outputs(node):
        name = str(_tag(output).get("figure", ""))
        if FIGURE_NAME.fullmatch(name):
            figures |= _figure_file(name, output.data)
    return figures


def _collect(node: NotebookNode) -> dict[str, dict[str, Any]]:
    results: dict[str, Any] = {}
    varying: dict[str, Any] = {}
    scraps: dict[str, Any] = {}
    figures: dict[str, str] = {}
    files: dict[str, Any] = {}
    for output in _outputs(node):
        data, tag = output.get("data", {}), _tag(output)
        for mime, kept in ((RESULTS_MIME, results), (VARYING_MIME, varying)):
            new = data.get(mime, {})
            _refuse_twice(new.keys() & {*results, *varying})
            kept.update(new)
        for mime, scrap in ((mime, data[mime]) for mime in _SCRAPS if mime in data):
            match scrap:
                case {"name": str(name), "data": value}:
                    # Of the same name the last one counts.
                    scraps[name] = _with_floats(value) if mime == _SCRAPS[0] else value
                case _:
                    raise OutputError(
                        f"expected a scrap's name and data; got {scrap!r:.80}; remedy: call scrapbook's glue"
                    )
        files.update(data.get(FILES_MIME, {}))
        if "figure" in tag:
            _refuse_twice({tag["figure"]} & figures.keys())
            if not _figure_file(tag["figure"], data):
                raise OutputError(
                    f"expected figure {tag['figure']} as SVG or PNG; got none; remedy: call record_figure"
                )
            figures[tag["figure"]] = tag["alt"]
    _refuse_twice(scraps.keys() & {*results, *varying})
    results |= {name: encode(data, name) for name, data in scraps.items()}
    return {"results": results, "varying": varying, "figures": figures, "files": files}


def _figure_file(name: str, data: NotebookNode) -> dict[str, bytes]:
    """Take the file of a figure, by its name; nothing where there is none, or nothing to be made out."""
    if _SVG in data:
        return {f"{name}.svg": data[_SVG].encode()}
    try:
        return {f"{name}.png": b64decode(data[_PNG])} if _PNG in data else {}
    except binascii.Error:
        return {}


def _with_floats(value: Any) -> Any:
    """Read what JSON has no number for, of which Jupyter's kernel makes texts."""
    match value:
        case "nan" | "inf" | "-inf":
            return float(value)
        case list():
            return [_with_floats(each) for each in value]
        case dict():
            return {name: _with_floats(each) for name, each in value.items()}
        case _:
            return value


def _refuse_twice(names: set[str]) -> None:
    if names:
        raise OutputError(
            f"recorded twice: {', '.join(sorted(names))}; remedy: give each result and figure its own name"
        )


def _tag(output: NotebookNode) -> dict[str, Any]:
    """Return what the lab says of an output; anything else under this name isn't the lab's."""
    tag = output.get("metadata", {}).get("gradtricks")
    return tag if isinstance(tag, dict) else {}


def _outputs(node: NotebookNode) -> Iterator[NotebookNode]:
    for cell in node.cells:
        yield from cell.get("outputs", [])
