"""From finished runs and sweeps to sources of pages, which Sphinx then builds."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import nbformat
from nbformat import NotebookNode

from gradtricks.book.site import BuildError, tools
from gradtricks.book.sweeppages import sweep_files
from gradtricks.book.tabs import FRAMEWORKS, merge
from gradtricks.lab.notebooks.injection import INJECTED
from gradtricks.lab.recording import FILES_MIME, RESULTS_MIME, VARYING_MIME
from gradtricks.lab.results.grouping import PlotError
from gradtricks.lab.runs.many import Run
from gradtricks.lab.runs.outputs import collect_figures
from gradtricks.lab.storage.records import StoredRun
from gradtricks.lab.sweeps.files import ENDING
from gradtricks.lab.sweeps.sweep import Sweep

__all__ = ["lay_out"]

_EXPLAINING = 30  # lines: a longer cell sets up, helps or plots


def lay_out(
    runs: Mapping[str, StoredRun],
    pages: Path,
    *,
    sources: Mapping[str, NotebookNode] = MappingProxyType({}),
    failed: Iterable[Run] = (),
    sweeps: Iterable[tuple[Sweep, Sequence[StoredRun]]] = (),
) -> None:
    """Lay out finished runs, by name, as sources: records, figures, films, and a page for each notebook.

    Its text and tags are those of the notebook as it is now, where ``sources`` has it, since no run depends
    on them. Of a run that failed, its notebook's page has the error, and pages that quote it say that it
    failed.

    Files that would stay the same aren't touched, so that an incremental build stays small. Sweeps, each with
    its runs, get a page of their own; it is drawn anew only where its runs, the package or what is installed
    have changed. Whatever else the folder holds is deleted.
    """
    files: dict[Path, bytes] = {}
    executed: dict[str, dict[str, NotebookNode]] = {}
    for name, stored in runs.items():
        node = stored.read_notebook()
        if name in sources:
            node = _with_outputs(sources[name], node)
        for figure, data in collect_figures(node).items():
            files[pages / name / figure] = data
        record = json.dumps(stored.record, indent=1, ensure_ascii=False)
        files[pages / f"{name}.json"] = f"{record}\n".encode()
        stem, backend = stored.record["stem"], stored.record["parameters"].get("backend", "")
        executed.setdefault(stem, {})[backend] = _readable(node, "/".join(filter(None, (stem, backend))))
    notes: dict[str, list[NotebookNode]] = {}
    for run in failed:
        files[pages / f"{run.spec.name}.json"] = json.dumps({"status": "failed", "error": run.error}).encode()
        notes.setdefault(run.spec.stem, []).append(_failure(run))
        if run.spec.stem not in executed:
            executed[run.spec.stem] = {"": deepcopy(run.spec.source)}
            executed[run.spec.stem][""].metadata.language_info = {"name": "python"}
    for stem, nodes in executed.items():
        page = merge(nodes)
        page.cells[1:1] = notes.get(stem, [])  # behind the title
        files[pages / f"{stem}.ipynb"] = f"{nbformat.writes(page)}\n".encode()
    made_with = tools()
    for sweep, found in sweeps:
        files |= _sweep_files(sweep, found, pages, made_with)
    _write_changed(files)
    _delete_others(pages, files)


def _failure(run: Run) -> NotebookNode:
    backend = run.spec.parameters.get("backend", "")
    with_backend = f" with {FRAMEWORKS.get(backend, backend)}" if backend else ""
    said = f"The run{with_backend} failed, so its outputs are missing here and where they are quoted."
    text = f"``````{{error}}\n{said}\n\n`````text\n{run.error}\n`````\n``````"
    return nbformat.v4.new_markdown_cell(text, id=f"failed-{backend}"[:64])


def _sweep_files(sweep: Sweep, runs: Sequence[StoredRun], pages: Path, made_with: str) -> dict[Path, bytes]:
    """Make a sweep's page, or take it from what was kept when it was made from the same."""
    planned = [run.request for run in sweep.specs]
    made_from = [made_with, repr(replace(sweep, specs=())), planned, [stored.record for stored in runs]]
    summed = hashlib.sha256(json.dumps(made_from, sort_keys=True).encode()).hexdigest()
    path = pages / f"{sweep.name}-sweep" / ".made"
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        kept = {}
    if kept.get("from") != summed:
        try:
            made = sweep_files(sweep, runs, pages)
        except PlotError as error:
            raise BuildError(f"{sweep.name}{ENDING}: shown: {error}") from error
        kept = {"from": summed, "files": {str(file.relative_to(pages)): text for file, text in made.items()}}
    files = {pages / name: text.encode() for name, text in kept["files"].items()}
    return {**files, path: json.dumps(kept).encode()}


def _with_outputs(source: NotebookNode, executed: NotebookNode) -> NotebookNode:
    """Put what came of a notebook's cells into it; the cell that sets its parameters stays where it was."""
    node, done = deepcopy(source), iter(cell for cell in executed.cells if cell.cell_type == "code")
    cells = []
    for cell in node.cells:
        if cell.cell_type == "code" and INJECTED not in cell.metadata.get("tags", []):
            ran = next(done)
            if INJECTED in ran.metadata.get("tags", []):
                cells.append(ran)
                ran = next(done)
            cell.outputs, cell.execution_count = ran.outputs, ran.execution_count
        if INJECTED not in cell.metadata.get("tags", []):
            cells.append(cell)
    node.cells = cells
    return node


def _readable(node: NotebookNode, target: str) -> NotebookNode:
    """Fold what isn't explanation, give figures their texts, and add where it all came from."""
    node.cells = [part for cell in node.cells for part in _fold_films(cell, target)]
    for cell in node.cells:
        cell.metadata.pop("papermill", None)
        tags = cell.metadata.setdefault("tags", [])
        long = cell.cell_type == "code" and cell.source.count("\n") >= _EXPLAINING
        if long or "injected-parameters" in tags:  # the cell before that one says the same in words
            cell.metadata.tags = sorted({*tags, "hide-input"})
        outputs = cell.get("outputs", [])
        alts = [o.metadata.gradtricks.alt for o in outputs if "gradtricks" in o.get("metadata", {})]
        if alts:
            cell.metadata["mystnb"] = {"image": {"alt": " ".join(alts)}}
        for output in outputs:
            for mime in (RESULTS_MIME, VARYING_MIME, FILES_MIME):
                output.get("data", {}).pop(mime, None)
    node.metadata.pop("papermill", None)
    texts = {"where": "## Where this came from", "card": f"```{{run-card}} {target}\n```"}
    node.cells += [nbformat.v4.new_markdown_cell(text, id=name) for name, text in texts.items()]
    return node


def _fold_films(cell: NotebookNode, target: str) -> Iterator[NotebookNode]:
    """Put a cell's films below it, each closed: nothing moves on a page unless its reader opens it."""
    outputs = cell.get("outputs", [])
    films = [o for o in outputs if "gradtricks" in o.get("metadata", {}) and "image/png" in o.data]
    if films:
        cell.outputs = [output for output in outputs if output not in films]
    yield cell
    for film in films:
        name = film.metadata.gradtricks.figure
        title = f"Film: {name.replace('_', ' ')}"
        text = f":::{{dropdown}} {title}\n```{{run-figure}} {target}/{name}\n```\n:::"
        yield nbformat.v4.new_markdown_cell(text, id=f"film-{name}")


def _write_changed(files: Mapping[Path, bytes]) -> None:
    for path, data in files.items():
        if path.is_file() and path.read_bytes() == data:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)  # half of it isn't the same either, and is written again


def _delete_others(pages: Path, keep: Iterable[Path]) -> None:
    kept = set(keep)
    for path in sorted(pages.rglob("*"), reverse=True):
        if path.is_file() and path not in kept:
            path.unlink()
        elif path.is_dir() and not any(path.iterdir()):
            path.rmdir()
