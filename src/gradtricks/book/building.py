"""From finished runs to pages: what the book is built from."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import nbformat
from nbformat import NotebookNode

from gradtricks.lab.notebooks.schema import read_notebook, read_parameters
from gradtricks.lab.pages.reuse import made_once
from gradtricks.lab.pages.sweeppages import sweep_files
from gradtricks.lab.recording import (
    FILES_MIME,
    RESULTS_MIME,
    VARYING_MIME,
    installed_versions,
    package_digests,
)
from gradtricks.lab.results.plots import PlotError
from gradtricks.lab.results.tables import runs_of
from gradtricks.lab.runs.outcomes import collect_figures
from gradtricks.lab.runs.planning import Run, plan_runs
from gradtricks.lab.runs.provenance import describe_source
from gradtricks.lab.storage.records import StoredRun
from gradtricks.lab.storage.store import Store, StoreError
from gradtricks.lab.sweeps.files import ENDING, read_file
from gradtricks.lab.sweeps.planning import Sweep, read_sweep
from gradtricks.lab.sweeps.publication import as_published

_FRAMEWORKS = {"torch": "PyTorch", "tensorflow": "TensorFlow"}


class BuildError(RuntimeError):
    """A page can't be built, or Sphinx found something to complain of; the old book is untouched."""


def plan_book(experiments: Path) -> list[Run]:
    """List the runs that the book shows: every experiment, once for each of its backends.

    Args:
        experiments: Folder of the source notebooks.

    Returns:
        The runs, by stem and backend. A notebook without a parameter ``backend`` runs once.

    Raises:
        FileNotFoundError: The folder holds no notebook.
        ParameterError: A notebook's parameters can't be read.
    """
    notebooks = sorted(experiments.glob("*.ipynb"))
    if not notebooks:
        raise FileNotFoundError(
            f"expected notebooks in {experiments}; got none; remedy: run in the project's root"
        )
    source = describe_source(experiments)
    return [run for path in notebooks for run in plan_runs(path, _shown_with(path), source=source)]


def plan_sweeps(experiments: Path) -> list[Sweep]:
    """List the sweeps that have a page in the book: every sweep file beside the experiments.

    Args:
        experiments: Folder of the source notebooks.

    Returns:
        The sweeps, by name. Searches have no page.

    Raises:
        ParameterError: A file is wrong.
    """
    paths = sorted(experiments.glob(f"*{ENDING}"))
    source = describe_source(experiments)
    return [read_sweep(path, source=source) for path in paths if not _is_search(path)]


def published_sweep(sweep: Sweep) -> tuple[Sweep, list[StoredRun]]:
    """Look up a sweep whose runs the build leaves alone.

    Args:
        sweep: As its file is now.

    Returns:
        The sweep as it was run, and its runs.

    Raises:
        BuildError: They aren't there.
    """
    try:
        return as_published(sweep)
    except StoreError as error:
        raise BuildError(str(error)) from error


def sweep_runs(sweep: Sweep, store: Store) -> list[StoredRun]:
    """Look up the runs of a sweep.

    Args:
        sweep: The sweep.
        store: Of its runs.

    Returns:
        Those that finished and, where they didn't, those that failed.
    """
    return runs_of(store, sweep.runs)


def publish(
    runs: Mapping[str, StoredRun],
    pages: Path,
    *,
    sweeps: Iterable[tuple[Sweep, Sequence[StoredRun]]] = (),
) -> None:
    """Lay out finished runs as sources of the book: a notebook, its record, its figures and its films each.

    Files that would stay the same aren't touched, so that an incremental build stays small. The page of a
    sweep is drawn anew only where its runs, the package or what is installed have changed.

    Args:
        runs: Finished runs by page name, such as ``masking-torch``.
        pages: Folder of the generated sources; whatever else it holds is deleted.
        sweeps: Sweeps and their runs; each gets a page of its own.

    Raises:
        BuildError: A sweep's result that is to be shown isn't there.
        StoreError: A run's notebook can't be read.
    """
    files: dict[Path, bytes] = {}
    for name, stored in runs.items():
        node = stored.read_notebook()
        for figure, data in collect_figures(node).items():
            files[pages / name / figure] = data
        page = nbformat.writes(_page(node, stored.record))
        files[pages / f"{name}.ipynb"] = f"{page}\n".encode()
        record = json.dumps(stored.record, indent=1, ensure_ascii=False)
        files[pages / f"{name}.json"] = f"{record}\n".encode()
    made_with = [package_digests(), installed_versions()]
    for sweep, found in sweeps:
        planned = [run.request for run in sweep.runs]
        made_from = [made_with, repr(replace(sweep, runs=())), planned, [stored.record for stored in found]]
        marker = pages / f"{sweep.name}-sweep" / ".made-from"
        files |= made_once(marker, made_from, partial(_sweep_files, sweep, found, pages))
    _write_changed(files)
    _delete_others(pages, files)


def _shown_with(path: Path) -> list[dict[str, Any]]:
    backend = read_parameters(read_notebook(path), str(path)).get("backend")
    names = get_args(backend.type) if backend else ()
    return [{"backend": name} for name in names] or [{}]


def _is_search(path: Path) -> bool:
    _, file, _ = read_file(path)
    return file is not None and file.optuna is not None


def _sweep_files(sweep: Sweep, runs: Sequence[StoredRun], pages: Path) -> dict[Path, bytes]:
    try:
        return {path: text.encode() for path, text in sweep_files(sweep, runs, pages).items()}
    except PlotError as error:
        raise BuildError(f"{sweep.name}{ENDING}: shown: {error}") from error


def _page(node: NotebookNode, record: Mapping[str, Any]) -> NotebookNode:
    """Drop what is about the other backends, give figures their texts, and add where it all came from."""
    backend = record["parameters"].get("backend")
    if backend in _FRAMEWORKS:
        others = set(_FRAMEWORKS) - {backend}
        node.cells = [cell for cell in node.cells if not others & set(cell.metadata.get("tags", []))]
        title, *rest = node.cells[0].source.split("\n", 1)
        node.cells[0].source = "\n".join([f"{title} ({_FRAMEWORKS[backend]})", *rest])
    target = "/".join(filter(None, (record["stem"], backend)))
    node.cells = [part for cell in node.cells for part in _fold_films(cell, target)]
    for cell in node.cells:
        cell.metadata.pop("papermill", None)
        alts = [
            o.metadata.gradtricks.alt
            for o in cell.get("outputs", [])
            if "gradtricks" in o.get("metadata", {})
        ]
        if alts:
            cell.metadata["mystnb"] = {"image": {"alt": " ".join(alts)}}
        for output in cell.get("outputs", []):
            for mime in (RESULTS_MIME, VARYING_MIME, FILES_MIME):
                output.get("data", {}).pop(mime, None)
    node.metadata.pop("papermill", None)
    card = f"## Where this came from\n\n```{{run-card}} {target}\n```"
    node.cells.append(nbformat.v4.new_markdown_cell(card, id="where-this-came-from"))
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
        unfinished = path.with_name(f".{path.name}.new")
        unfinished.write_bytes(data)
        os.replace(unfinished, path)


def _delete_others(pages: Path, keep: Iterable[Path]) -> None:
    kept = set(keep)
    for path in sorted(pages.rglob("*"), reverse=True):
        if path.is_file() and path not in kept:
            path.unlink()
        elif path.is_dir() and not any(path.iterdir()):
            path.rmdir()
