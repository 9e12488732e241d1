"""One run: a notebook and its parameters, executed by papermill and recorded."""

import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode
from papermill.exceptions import PapermillExecutionError

from gradtricks.lab.kernels import LOG, Kernels
from gradtricks.lab.provenance import describe
from gradtricks.lab.recording import REPORT_MIME, RESULTS_MIME, encode, package_digests
from gradtricks.lab.schema import ParameterError, check_parameters, read_notebook, read_parameters
from gradtricks.lab.store import SCHEMA_VERSION, Store, request_digest, write_record


class RunError(RuntimeError):
    """A run that failed; the message says which, where, with which parameters, and where it is kept."""


@dataclass(frozen=True)
class Run:
    """What is to be run.

    Attributes:
        notebook: Path of the source notebook.
        source: The notebook as it was when the run was planned.
        parameters: A value for every declared parameter.
        threads: That the kernel may use; pinned, since results depend on it.
        request: Digest of all that.
        expected_s: Seconds that the notebook's author expects it to take; None where nothing is said.
    """

    notebook: Path
    source: NotebookNode
    parameters: dict[str, Any]
    threads: int
    request: str
    expected_s: float | None

    @property
    def stem(self) -> str:
        """Name of the notebook without its ending."""
        return self.notebook.stem

    @property
    def name(self) -> str:
        """Stem and backend, such as ``masking-torch``: what pages and folders are called."""
        return "-".join([self.stem, *([self.parameters["backend"]] if "backend" in self.parameters else [])])


def plan_run(notebook: Path, given: Mapping[str, Any], *, threads: int = 2) -> Run:
    """Check a notebook and the parameters for it, before anything starts.

    Args:
        notebook: Path of the source notebook.
        given: Parameters by name; the others keep their defaults.
        threads: That the kernel may use.

    Returns:
        The run.

    Raises:
        FileNotFoundError: There is no such notebook.
        ParameterError: A parameter is unknown or of the wrong type.
    """
    node = read_notebook(notebook)
    try:
        parameters = check_parameters(read_parameters(node, str(notebook)), given)
    except ParameterError as error:
        raise ParameterError(f"{notebook}: nothing was run.\n{error}") from None
    text = "\n".join(f"{c.cell_type} {c.metadata.get('tags', [])}\n{c.source}" for c in node.cells)
    expected_s = node.metadata.get("gradtricks", {}).get("expected_s")
    return Run(notebook, node, parameters, threads, request_digest(text, parameters, threads), expected_s)


def execute(run: Run, store: Store, failures: Path, kernels: Kernels | None = None) -> Path:
    """Execute a run unless it is finished already.

    Args:
        run: From `plan_run`.
        store: Where finished runs are.
        failures: Folder that keeps the notebooks of failed runs.
        kernels: Where the cells run; None makes one for this run only.

    Returns:
        The folder of the finished run.

    Raises:
        RunError: A cell failed, or the kernel died.
    """
    with store.claim(run.request) as folder:
        finished = store.find(run.stem, run.request)
        if finished:
            return finished
        started, clock = datetime.now(UTC), time.monotonic()
        before, source = package_digests(), describe(run.notebook, run.threads)
        output = folder / "notebook.ipynb"
        try:
            with nullcontext(kernels) if kernels else closing(Kernels(run.threads)) as running:
                running.run(run.source, run.parameters, output)
            record = _record(run, output, before)
            record["provenance"] = source | record["provenance"]
        except (PapermillExecutionError, RuntimeError, ValueError, KeyError, OSError) as error:
            raise _keep_failure(run, error, output, failures) from error
        record["started"] = started.isoformat(timespec="seconds")
        record["duration_s"] = round(time.monotonic() - clock, 3)
        return store.commit(folder, record)


def collect_figures(node: NotebookNode) -> dict[str, str]:
    """Take the figures that a notebook recorded.

    Args:
        node: An executed notebook.

    Returns:
        SVG by name.
    """
    return {
        output.metadata.gradtricks.figure: output.data["image/svg+xml"]
        for output in _outputs(node)
        if "figure" in output.get("metadata", {}).get("gradtricks", {})
    }


def _record(run: Run, output: Path, before: Mapping[str, str | None]) -> dict[str, Any]:
    """Read what came out, and take the lab's own last cell off the notebook."""
    node = nbformat.read(output, as_version=4)
    report = _take_report(node)
    results, figures = _collect(node)
    nbformat.write(node, output)
    inputs = {name: report.pop(name) for name in ("files", "versions")}
    changed = [name for name, digest in inputs["files"].items() if before.get(name) != digest]
    if changed:
        raise ValueError(f"edited while the notebook ran: {', '.join(changed)}; remedy: run it again")
    return {
        "schema_version": SCHEMA_VERSION,
        "stem": run.stem,
        "name": run.name,
        "status": "finished",
        "parameters": _encoded(run),
        "results": results,
        "figures": figures,
        "request": run.request,
        "inputs": inputs,
        "provenance": report,
    }


def _encoded(run: Run) -> dict[str, Any]:
    return {name: encode(value, name) for name, value in run.parameters.items()}


def _take_report(node: NotebookNode) -> dict[str, Any]:
    report = next(
        (o.data[REPORT_MIME] for o in node.cells.pop().outputs if REPORT_MIME in o.get("data", {})), None
    )
    if report is None:
        raise ValueError("the kernel ended before it could say what it ran on")
    return dict(report)


def _collect(node: NotebookNode) -> tuple[dict[str, Any], dict[str, str]]:
    results: dict[str, Any] = {}
    figures: dict[str, str] = {}
    for output in _outputs(node):
        new = output.get("data", {}).get(RESULTS_MIME, {})
        tag = output.get("metadata", {}).get("gradtricks", {})
        twice = (results.keys() & new.keys()) | ({tag.get("figure")} & figures.keys())
        if twice:
            raise ValueError(
                f"recorded twice: {', '.join(sorted(twice))}; remedy: give each result its own name"
            )
        results.update(new)
        if "figure" in tag:
            figures[tag["figure"]] = tag["alt"]
    return results, figures


def _outputs(node: NotebookNode) -> Iterator[NotebookNode]:
    for cell in node.cells:
        yield from cell.get("outputs", [])


def _keep_failure(run: Run, error: Exception, output: Path, failures: Path) -> RunError:
    folder = failures / f"{run.name}-{run.request[:12]}"
    shutil.rmtree(folder, ignore_errors=True)  # an older failure of the same run
    folder.mkdir(parents=True)
    for path in (output, output.with_name(LOG)):
        if path.exists():
            shutil.copy(path, folder)
    failure = {"status": "failed", "error": f"{type(error).__name__}: {error}", "parameters": _encoded(run)}
    write_record(folder, {"schema_version": SCHEMA_VERSION, "stem": run.stem, **failure})
    given = "\n".join(f"    {name} = {value!r}" for name, value in run.parameters.items())
    return RunError(
        f"{run.notebook} failed {_where(error, output)}\n  {_reason(error)}\n"
        f"  with parameters\n{given}\n  The notebook as far as it came: {folder / 'notebook.ipynb'}"
    )


def _where(error: Exception, output: Path) -> str:
    if not output.exists():
        return "before its first cell"
    if isinstance(error, ValueError):  # the lab's own complaint
        return "after its last cell"
    if isinstance(error, PapermillExecutionError):
        first_line = next(iter(error.source.strip().splitlines()), "")
        return f"in cell {error.exec_count} ({first_line})"
    started = [
        cell
        for cell in nbformat.read(output, as_version=4).cells
        if cell.cell_type == "code" and cell.metadata.get("papermill", {}).get("start_time")
    ]
    first_line = next(iter(started[-1].source.strip().splitlines()), "") if started else ""
    return f"in cell {len(started)} ({first_line})"


def _reason(error: Exception) -> str:
    if isinstance(error, PapermillExecutionError):
        return f"{error.ename}: {error.evalue}"
    return f"{type(error).__name__}: {error}"
