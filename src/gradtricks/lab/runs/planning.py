"""Plan runs: check notebooks and parameters, all together, before anything starts."""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

from nbformat import NotebookNode

from gradtricks.lab.notebooks.injection import INJECTED
from gradtricks.lab.notebooks.schema import (
    Parameter,
    ParameterError,
    Settings,
    check_parameters,
    excerpt,
    read_notebook,
    read_parameters,
    read_settings,
)
from gradtricks.lab.notebooks.texts import Problems, literal
from gradtricks.lab.runs.provenance import describe_source
from gradtricks.lab.storage.records import LONGEST_TITLE, STEM, request_digest
from gradtricks.lab.storage.store import Requested

_UNSAFE = re.compile(r"[^A-Za-z0-9_.=,+-]+")
_NO_NAME = re.compile(r"[\x00-\x1f/\\]+")
_TAGS = {INJECTED, "papermill-error-cell-tag"}  # of cells that an earlier run of papermill put in


class Notebook(NamedTuple):
    """A notebook, read and parsed once for all that is planned with it."""

    path: Path
    node: NotebookNode
    parameters: dict[str, Parameter]


def parse_notebook(path: Path) -> Notebook:
    """Read a notebook and its parameters, as `read_notebook` and `read_parameters`."""
    node = read_notebook(path)
    return Notebook(path, node, read_parameters(node, str(path)))


@dataclass(frozen=True)
class Spec(Requested):
    """One planned run.

    Attributes:
        notebook: Path of the source notebook.
        source: The notebook as it was when the run was planned; runs that are planned together share it.
        parameters: A value for every parameter, but for defaults that only running the notebook tells.
        threads: That the kernel may use; pinned, since results depend on it.
        alone: Whether nothing else may run meanwhile, as when it measures time.
        request: Digest of the notebook's code, of parameters and threads.
        title: Stem, backend, and the parameters that aren't at their default.
        expected_s: Seconds that the notebook's author expects it to take; None where nothing is said.
        provenance: Commit of the source, and whether there were uncommitted changes.
        anew: Whether it is done even if it is finished; it then takes the place of the finished one.
    """

    notebook: Path
    source: NotebookNode
    parameters: dict[str, Any]
    threads: int
    alone: bool
    expected_s: float | None
    provenance: dict[str, Any]
    anew: bool = False

    @property
    def stem(self) -> str:
        """Name of the notebook without its ending."""
        return self.notebook.stem

    @property
    def name(self) -> str:
        """Stem and backend, ``masking-torch``, after which the book names what it shows of a run."""
        return _NO_NAME.sub("_", _name(self.stem, self.parameters))


def plan_run(notebook: Path, given: Mapping[str, Any] | Iterable[str], *, threads: int | None = None) -> Spec:
    """Check a notebook and the parameters for one run of it, as `plan_runs` does for many."""
    return plan_runs(notebook, [given], threads=threads)[0]


def plan_runs(
    notebook: Path | Notebook,
    givens: Iterable[Mapping[str, Any] | Iterable[str]],
    *,
    threads: int | None = None,
    source: Mapping[str, Any] | None = None,
) -> list[Spec]:
    """Check a notebook and many configurations for it, before anything starts.

    Args:
        notebook: Path of the source notebook, or what `parse_notebook` made of it; it is read once.
        givens: Of each run, parameters by name, or texts such as ``scale=0.5``; others keep their defaults.
        threads: That a run may use; None leaves it to the notebook's metadata, or else it is 1.
        source: Commit and state of the notebook's folder, from `describe_source`; None asks git.

    Returns:
        The planned runs, in the same order.

    Raises:
        FileNotFoundError: There is no such notebook.
        ParameterError: Anything is wrong with any of them; the message lists everything once.
    """
    path, node, declared = notebook if isinstance(notebook, Notebook) else parse_notebook(notebook)
    settings, problems = Settings.model_validate({}), Problems()
    with problems.noted():
        settings = read_settings(node, str(path), **({} if threads is None else {"threads": threads}))
    if not STEM.fullmatch(path.stem) or path.stem.encode(errors="replace").decode() != path.stem:
        problems.append(
            "expected a notebook's name of valid Unicode, without backslashes and control characters; "
            f"got {path.name!r}; remedy: rename it"
        )
    if not _has_own_kernel(node):
        problems.append(
            f"expected a notebook for this Python's kernel; got one for {node.metadata.kernelspec.name!r}; "
            "remedy: choose python3 in Jupyter, or install gradtricks there and run it from there"
        )
    how = settings.model_dump(include={"threads", "alone", "expected_s"})
    how["provenance"] = source or describe_source(path.resolve().parent)
    note_reads(node, path, settings)
    for cell in node.cells:
        if cell.cell_type == "code":
            cell.outputs = []  # a cluster is sent the notebook with each run
    digest = source_digest(node)
    specs: list[Spec] = []
    for given in givens:
        try:
            parameters = check_parameters(declared, given)
            request = request_digest(digest, parameters, settings.threads)
        except (ParameterError, TypeError) as error:
            problems += str(error).splitlines()
            continue
        title = make_title(path.stem, parameters, declared)
        specs.append(Spec(path, node, parameters, request=request, title=title, **how))
    if problems:
        raise problems.error(f"{path}: nothing was run.")
    return specs


def source_digest(node: NotebookNode) -> str:
    """Digest a notebook's behaviour: its code cells in order, and the files that it reads."""
    code = [cell for cell in node.cells if cell.cell_type == "code"]
    kept = [cell.source for cell in code if _TAGS.isdisjoint(cell.metadata.get("tags", []))]
    text = json.dumps(kept)  # the others aren't executed
    said = node.metadata.get("gradtricks")
    if isinstance(said, dict) and "read" in said:
        text += json.dumps(said["read"], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def make_title(stem: str, parameters: Mapping[str, Any], declared: Mapping[str, Parameter]) -> str:
    """Name a run, and its folder, by its notebook and the parameters that aren't at their default.

    Such as ``unrolling-torch-scale=0.5,seed=3``: safe in file names, of at most 100 characters.
    """
    set_here = [
        f"{name}={_spoken(value)}"
        for name, value in parameters.items()
        if name != "backend" and literal(value) != literal(declared[name].default)
    ]
    title = "-".join([_name(stem, parameters), *filter(None, [",".join(set_here)])])
    return _UNSAFE.sub("_", title)[:LONGEST_TITLE].lstrip(".") or "run"


def note_reads(node: NotebookNode, notebook: Path, settings: Settings) -> None:
    """Write digests of the files that it reads into a notebook, for repeats of the run."""
    if settings.reads:
        folder = os.path.relpath(notebook.parent)
        node.metadata["gradtricks"] |= {"read": digests(Path(folder), settings.reads), "folder": folder}


def digests(folder: Path, patterns: Iterable[str]) -> dict[str, str]:
    """Digest the files that match a notebook's patterns, by their paths relative to its folder."""
    files = {path for pattern in patterns for path in folder.glob(pattern) if path.is_file()}
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(files)
    }


def _has_own_kernel(node: NotebookNode) -> bool:
    """Say whether a notebook is for this Python, whose kernel Jupyter calls python3 wherever it is."""
    about = node.metadata.get("kernelspec")
    name = about.get("name") if isinstance(about, dict) else None
    if not isinstance(name, str) or name in ("python3", "python"):
        return True
    from gradtricks.warm.specs import is_own_kernel  # with Jupyter's client, which takes its time

    return is_own_kernel(name)


def _name(stem: str, parameters: Mapping[str, Any]) -> str:
    return f"{stem}-{parameters['backend']}" if isinstance(parameters.get("backend"), str) else stem


def _spoken(value: Any) -> str:
    text = str(value) if isinstance(value, str | date) else excerpt(value)
    return _UNSAFE.sub("_", text)[:LONGEST_TITLE].strip("_")
