"""Runs of the store, logged to MLflow: parameters, results, notebooks and figures."""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import nbformat

from gradtricks.lab.notebooks.schema import ParameterError
from gradtricks.lab.recording import decode
from gradtricks.lab.runs.execution import RunError
from gradtricks.lab.runs.outputs import collect_figures
from gradtricks.lab.storage.troubles import StoreError, public

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from gradtricks.lab.storage.store import StoredRun

EXPERIMENT = "gradtricks"

# What a server takes at most: names and values of parameters and tags, and metrics in one request.
_LONGEST_NAME = 250
_LONGEST_PARAMETER = 6000
_LONGEST_TAG = 5000
_PARAMETERS_A_REQUEST = 100
_METRICS_A_REQUEST = 1000

_FORBIDDEN = re.compile(r"[^\w.\- ]")


def log_to_mlflow(uri: str, stored_runs: Iterable["StoredRun"], experiment: str = EXPERIMENT) -> int:
    """Log runs to MLflow, each of them once, however often this is called.

    Parameters keep their names. Numbers among the results become metrics, lists of numbers metrics with
    steps, nested ones get dotted names; results that vary by nature have ``varying.`` before theirs. The
    record, the executed notebook and its figures become artifacts, so that values which MLflow has no place
    for are there too. The tag ``gradtricks.record`` says which record it was; a run whose logging was cut
    short is deleted there and logged anew.

    Args:
        uri: Of the tracking server or database, such as ``http://127.0.0.1:5000`` or ``sqlite:///mlflow.db``.
        stored_runs: Finished or failed; none at all checks the connection and makes the experiment.
        experiment: Its name in MLflow; made where it doesn't exist.

    Returns:
        How many runs were new to MLflow.

    Raises:
        ParameterError: MLflow isn't installed, or the address can't be one.
        RunError: It can't be reached, or refuses.
    """
    client, error_type = _connect(uri)
    try:
        experiment_id = _experiment(client, experiment)
        logged = _logged(client, experiment_id)
        new = 0
        for stored in stored_runs:
            digest = _digest(stored.record)
            mlflow_run, status = logged.get(digest, (None, None))
            if status in ("FINISHED", "FAILED"):
                continue
            if mlflow_run is not None:
                client.delete_run(mlflow_run)
            _log(client, experiment_id, stored, digest)
            logged[digest] = ("", "FINISHED")
            new += 1
    except error_type as error:
        raise RunError(
            f"expected MLflow at {public(uri)} to take the runs; got {_without(uri, error)}; "
            "remedy: start its server there, "
            "then log them again: what is there already isn't logged twice"
        ) from error
    return new


def _connect(uri: str) -> tuple["MlflowClient", type[Exception]]:
    # Nobody asked MLflow to report its use to its makers, nor to print an address for each run.
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    # Its own seven would keep people waiting for minutes before they hear that no server is there.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")
    try:
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException
    except ImportError as error:
        raise ParameterError(
            "expected MLflow, which logs runs; got none; remedy: pip install 'gradtricks[mlflow]'"
        ) from error
    try:
        return MlflowClient(tracking_uri=uri), MlflowException
    except MlflowException as error:
        raise ParameterError(
            f"expected the address of an MLflow server or database; got {public(uri)!r} "
            f"({_without(uri, error)}); "
            "remedy: for instance http://127.0.0.1:5000 or sqlite:///mlflow.db"
        ) from error


def _without(uri: str, error: Exception) -> str:
    """Take the password out of what MLflow says."""
    return str(error).replace(uri, public(uri))


def _experiment(client: "MlflowClient", name: str) -> str:
    found = client.get_experiment_by_name(name)
    return str(found.experiment_id if found else client.create_experiment(name))


def _logged(client: "MlflowClient", experiment_id: str) -> dict[str, tuple[str | None, str]]:
    """Read which records are there: MLflow's name of the run, and how it ended."""
    logged: dict[str, tuple[str | None, str]] = {}
    token = None
    while True:
        page = client.search_runs([experiment_id], max_results=1000, page_token=token)
        for run in page:
            if "gradtricks.record" in run.data.tags:
                logged[run.data.tags["gradtricks.record"]] = (run.info.run_id, run.info.status)
        token = page.token
        if not token:
            return logged


def _log(client: "MlflowClient", experiment_id: str, stored: "StoredRun", digest: str) -> None:
    from mlflow.entities import Metric, Param

    record = stored.record
    begin = int(datetime.fromisoformat(record["started"]).timestamp() * 1000)
    run_id = client.create_run(
        experiment_id, start_time=begin, tags=_tags(record, digest), run_name=record["title"]
    ).info.run_id
    parameters = [
        Param(name, (value if isinstance(value, str) else repr(value))[:_LONGEST_PARAMETER])
        for name, value in _named(decode(record["parameters"])).items()
    ]
    for some in _batches(parameters, _PARAMETERS_A_REQUEST):
        client.log_batch(run_id, params=some)
    metrics = (Metric(name, value, begin, step) for name, value, step in _metrics(record))
    for several in _batches(metrics, _METRICS_A_REQUEST):
        client.log_batch(run_id, metrics=several)
    with TemporaryDirectory(prefix="gradtricks-") as folder:
        _write_artifacts(stored, Path(folder))
        client.log_artifacts(run_id, folder)
    # Last: what has ended is complete.
    client.set_terminated(
        run_id, record["status"].upper(), end_time=begin + int(1000 * (record.get("duration_s") or 0))
    )


def _batches(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    left = iter(items)
    while batch := list(islice(left, size)):
        yield batch


def _tags(record: Mapping[str, Any], digest: str) -> dict[str, str]:
    tags = {
        "gradtricks.record": digest,
        "gradtricks.request": record["request"],
        "gradtricks.status": record["status"],
        "gradtricks.notebook": record["stem"],
        "gradtricks.commit": record.get("provenance", {}).get("commit"),
        "gradtricks.error": record.get("error"),
    }
    tags["mlflow.source.git.commit"] = tags["gradtricks.commit"]
    return {name: str(value)[:_LONGEST_TAG] for name, value in tags.items() if value is not None}


def _metrics(record: Mapping[str, Any]) -> Iterator[tuple[str, float, int]]:
    """Yield the numbers among the results: name, value and step."""
    values = {
        **decode(record.get("results", {})),
        **{f"varying.{name}": value for name, value in decode(record.get("varying", {})).items()},
    }
    for name, value in _named(_flat(values)).items():
        steps = value if isinstance(value, list) else [value]
        if all(_is_number(step) for step in steps):
            yield from ((name, float(number), step) for step, number in enumerate(steps))


def _flat(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flat(value, f"{before}{name}.") if isinstance(value, dict) else {f"{before}{name}": value}
    return flat


def _named(values: Mapping[str, Any]) -> dict[str, Any]:
    """Give names that MLflow takes; those that become equal are numbered."""
    named: dict[str, Any] = {}
    for name, value in values.items():
        plain = _FORBIDDEN.sub("_", name).strip(". ")[: _LONGEST_NAME - 8] or "_"
        unique, count = plain, 1
        while unique in named:
            count += 1
            unique = f"{plain} {count}"
        named[unique] = value
    return named


def _is_number(value: Any) -> bool:
    if isinstance(value, int):  # a bool too; beyond a float's range no metric can hold it
        return abs(value) < 2**1023
    return isinstance(value, float)


def _write_artifacts(stored: "StoredRun", folder: Path) -> None:
    text = json.dumps(stored.record, indent=1, ensure_ascii=False, allow_nan=False)
    (folder / "record.json").write_text(text + "\n", encoding="utf-8")
    try:
        node = stored.read_notebook()
    except StoreError:
        if stored.status == "failed":  # perhaps before its first cell
            return
        raise
    nbformat.write(node, folder / "notebook.ipynb")
    (folder / "files").mkdir()
    for name in stored.files:
        (folder / "files" / name).write_bytes(stored.read_file(name))
    (folder / "figures").mkdir()
    for name, data in collect_figures(node).items():
        (folder / "figures" / name).write_bytes(data)


def _digest(record: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
