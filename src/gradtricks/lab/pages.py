"""From finished runs to pages: what the book is built from, and the build itself."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args

import nbformat
from nbformat import NotebookNode

from gradtricks.lab.recording import RESULTS_MIME
from gradtricks.lab.runs import Run, collect_figures, plan_run
from gradtricks.lab.schema import ParameterError, read_notebook, read_parameters
from gradtricks.lab.store import read_record

_FRAMEWORKS = {"torch": "PyTorch", "tensorflow": "TensorFlow"}


class BuildError(RuntimeError):
    """A page can't be built, or Sphinx found something to complain of; the old book is untouched."""


def plan_book(experiments: Path) -> list[Run]:
    """List the runs that the book shows: every experiment, once for each of its backends.

    Args:
        experiments: Folder of the source notebooks.

    Returns:
        The runs, by stem and backend.

    Raises:
        FileNotFoundError: The folder holds no notebook.
    """
    notebooks = sorted(experiments.glob("*.ipynb"))
    if not notebooks:
        raise FileNotFoundError(
            f"expected notebooks in {experiments}; got none; remedy: run in the project's root"
        )
    return [plan_run(path, {"backend": name}) for path in notebooks for name in _backends(path)]


def publish(runs: Mapping[str, Path], pages: Path) -> None:
    """Lay out finished runs as sources of the book: a notebook, its record and its figures each.

    Files that would stay the same aren't touched, so that an incremental build stays small.

    Args:
        runs: Folder of the finished run by page name, such as ``masking-torch``.
        pages: Folder of the generated sources; whatever else it holds is deleted.

    Raises:
        BuildError: A run's record can't be read.
    """
    files: dict[Path, str] = {}
    for name, folder in runs.items():
        record = read_record(folder)
        if record is None:
            raise BuildError(
                f"expected a record in {folder}; got none that can be read; remedy: delete the folder"
            )
        node = nbformat.read(folder / "notebook.ipynb", as_version=4)
        for figure, svg in collect_figures(node).items():
            files[pages / name / f"{figure}.svg"] = svg
        files[pages / f"{name}.ipynb"] = nbformat.writes(_page(node, record)) + "\n"
        files[pages / f"{name}.json"] = json.dumps(record, indent=1, ensure_ascii=False) + "\n"
    _write_changed(files)
    _delete_others(pages, files)


def build(book: Path, site: Path) -> None:
    """Build the book beside the one that is there, and replace that only when nothing is wrong.

    Args:
        book: Folder of the sources.
        site: Folder of the finished pages.

    Raises:
        BuildError: A warning or an error of Sphinx; its output has been shown.
    """
    fresh, old = site.with_name(f"{site.name}.new"), site.with_name(f"{site.name}.old")
    if old.exists() and not site.exists():  # killed between the two renames below
        old.rename(site)
    shutil.rmtree(fresh, ignore_errors=True)
    options = ["-W", "--keep-going", "-n", "--all", "--quiet", "--path-output", str(fresh)]
    command = [str(Path(sys.executable).with_name("jupyter-book")), "build", str(book), *options]
    finished = subprocess.run(command, check=False, capture_output=True, text=True)
    if finished.returncode:
        raise BuildError(
            f"{finished.stdout}{finished.stderr}\nThe book wasn't replaced: Sphinx found the above."
        )
    shutil.rmtree(old, ignore_errors=True)
    if site.exists():
        site.rename(old)
    (fresh / "_build" / "html").rename(site)
    shutil.rmtree(old, ignore_errors=True)
    shutil.rmtree(fresh)


def _backends(path: Path) -> tuple[str, ...]:
    declared = read_parameters(read_notebook(path), str(path))
    if "backend" not in declared or not get_args(declared["backend"].type):
        raise ParameterError(
            f'{path}: expected a parameter backend: Literal["torch", "tensorflow"]; got none'
        )
    return get_args(declared["backend"].type)


def _page(node: NotebookNode, record: Mapping[str, Any]) -> NotebookNode:
    """Drop what is about the other backends, give figures their texts, and add where it all came from."""
    backend = record["parameters"]["backend"]
    others = set(_FRAMEWORKS) - {backend}
    node.cells = [cell for cell in node.cells if not others & set(cell.metadata.get("tags", []))]
    title = node.cells[0]
    title.source = title.source.replace("\n", f" ({_FRAMEWORKS[backend]})\n", 1)
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
            output.get("data", {}).pop(RESULTS_MIME, None)
    node.metadata.pop("papermill", None)
    card = f"## Where this came from\n\n```{{run-card}} {record['stem']}/{backend}\n```"
    node.cells.append(nbformat.v4.new_markdown_cell(card, id="where-this-came-from"))
    return node


def _write_changed(files: Mapping[Path, str]) -> None:
    for path, text in files.items():
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f".{path.name}.new")
        unfinished.write_text(text, encoding="utf-8")
        os.replace(unfinished, path)


def _delete_others(pages: Path, keep: Iterable[Path]) -> None:
    kept = set(keep)
    for path in sorted(pages.rglob("*"), reverse=True):
        if path.is_file() and path not in kept:
            path.unlink()
        elif path.is_dir() and not any(path.iterdir()):
            path.rmdir()
