"""Runs of the store, logged to MLflow: one call, once they are there."""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import nbformat

from gradtricks.lab.notebooks.schema import ParameterError
from gradtricks.lab.runs.execution import RunError
from gradtricks.lab.storage.places import StoreError, public
from gradtricks.lab.storage.records import StoredRun
from gradtricks.lab.storage.rows import flattened

if TYPE_CHECKING:
    from mlflow import MlflowClient

_LONGEST = 5000  # characters of a value that a server takes
_METRICS = 1000  # that it takes at once


def log_to_mlflow(uri: str, stored_runs: Iterable[StoredRun], experiment: str = "gradtricks") -> int:
    """Log runs to an MLflow server or database, each of them once, and return how many were new to it.

    Numbers among the results become metrics, lists of them with steps, nested ones with dotted names; results
    that vary have ``varying.`` before theirs. The record, the executed notebook and its files become
    artifacts. No runs at all check the connection and make the experiment. A ParameterError says that MLflow
    isn't installed; a RunError that it can't be reached, or refuses.
    """
    # Nobody asked MLflow to report its use to its makers, nor to print an address for each run; and seven
    # retries, as it has them, would keep people waiting for minutes before they hear that no server is there.
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")
    try:
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException
    except ImportError as error:
        raise ParameterError(
            "expected MLflow, which logs runs; got none; remedy: pip install 'gradtricks[mlflow]'"
        ) from error
    try:
        client = MlflowClient(tracking_uri=uri)
        found = client.get_experiment_by_name(experiment)
        place = str(found.experiment_id if found else client.create_experiment(experiment))
        return sum(_log(client, place, stored) for stored in stored_runs)
    except MlflowException as error:
        raise RunError(
            f"expected MLflow at {public(uri)} to take the runs; got {str(error).replace(uri, public(uri))}; "
            "remedy: start its server there, or give another address, such as http://127.0.0.1:5000 or "
            "sqlite:///mlflow.db; then log them again: what is there already isn't logged twice"
        ) from error


def _log(client: "MlflowClient", place: str, stored: StoredRun) -> bool:
    from mlflow.entities import Metric

    record = stored.record
    digest = hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
    for known in client.search_runs([place], f"tags.`gradtricks.record` = '{digest}'"):
        if known.info.status != "RUNNING":
            return False
        client.delete_run(known.info.run_id)  # logging it was cut short
    tags = {"gradtricks.record": digest, "gradtricks.request": stored.request}
    tags |= {f"gradtricks.{name}": record[name][:_LONGEST] for name in ("stem", "error") if name in record}
    begin = int(datetime.fromisoformat(record["started"]).timestamp() * 1000)
    run_id = client.create_run(place, begin, tags, record["title"]).info.run_id
    for name, value in _flat(stored.parameters):
        client.log_param(run_id, name, str(value)[:_LONGEST])
    metrics = [
        Metric(name, float(number), begin, step)
        for name, value in _flat(stored.results | {"varying": stored.varying})
        for numbers in [value if isinstance(value, list) else [value]]
        if all(map(_is_number, numbers))
        for step, number in enumerate(numbers)
    ]
    for first in range(0, len(metrics), _METRICS):
        client.log_batch(run_id, metrics[first : first + _METRICS])
    with TemporaryDirectory(prefix="gradtricks-") as folder:
        _write_artifacts(stored, Path(folder))
        client.log_artifacts(run_id, folder)
    end = begin + round(1000 * record["duration_s"])
    client.set_terminated(run_id, record["status"].upper(), end)  # last: what has ended is complete
    return True


def _flat(values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Give dotted names to what is nested, of the letters that MLflow takes."""
    for path, value in flattened(values):
        yield re.sub(r"[^\w.\- ]", "_", ".".join(path))[:250].strip(". ") or "_", value


def _is_number(value: Any) -> bool:
    """Say whether a metric can hold a value; integers beyond a float's range it can't."""
    return isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**1023)


def _write_artifacts(stored: StoredRun, folder: Path) -> None:
    (folder / "record.json").write_text(json.dumps(stored.record, indent=1), encoding="utf-8")
    try:
        nbformat.write(stored.read_notebook(), folder / "notebook.ipynb")
    except StoreError:
        if stored.status == "finished":  # one that failed may have done so before its first cell
            raise
    (folder / "files").mkdir()
    for name in stored.files:
        (folder / "files" / name).write_bytes(stored.read_file(name))
