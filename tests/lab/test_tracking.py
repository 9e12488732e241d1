"""MLflow gets what the store has: each run once, whole, and under its own names."""

import json
import os
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from gradtricks.lab.notebooks.schema import ParameterError
from gradtricks.lab.runs.execution import RunError, execute
from gradtricks.lab.runs.planning import plan_runs
from gradtricks.lab.runs.tracking import log_to_mlflow
from gradtricks.lab.storage.store import Store
from notebooks import write_notebook

PARAMETERS = """\
seed: int = 0  # is recorded
label: str = "a"  # any text
fate: Literal["well", "raise"] = "well"  # how it ends
"""
BODY = """\
from pathlib import Path
from gradtricks.lab import record, record_file, record_varying
record(seed=seed, right=True, text="no number", none=None, vast=10**400, curve=[0.5, float("nan"), 2])
record(norms={"hidden, 10 %": 1 / 3, "inner": {"deep": [1, 2]}}, mixed=[1, "a"])
record(many=list(range(1500)))
record_varying(seconds=0.25)
Path("weights").write_bytes(b"1234")
record_file("weights")
"""


@pytest.fixture(scope="module")
def stored(tmp_path_factory, kernels):
    """Run a notebook twice, once well and once not."""
    folder = tmp_path_factory.mktemp("tracking")
    notebook = write_notebook(folder / "experiments" / "small.ipynb", PARAMETERS, BODY)
    store = Store(folder / "runs")
    well, broken = plan_runs(notebook, [{"seed": 3, "label": "x" * 7000}, {"fate": "raise"}])
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        finished = execute(well, store, kernels)
        with pytest.raises(RunError):
            execute(broken, store, kernels)
    return [finished, store.failure(broken)]


@pytest.fixture(scope="module")
def tracking(tmp_path_factory):
    """Return a client and the address of a database, or of the server that GRADTRICKS_MLFLOW names."""
    mlflow = pytest.importorskip("mlflow")
    folder = tmp_path_factory.mktemp("mlflow")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)  # a database without a server keeps artifacts in the working directory
        uri = os.environ.get("GRADTRICKS_MLFLOW", f"sqlite:///{folder}/mlflow.db")
        yield mlflow.MlflowClient(tracking_uri=uri), uri


# MLflow's own use of SQLAlchemy
pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")


def logged_runs(client, name):
    """Return the runs of an experiment by the request that they were logged for."""
    experiment = client.get_experiment_by_name(name)
    found = client.search_runs([experiment.experiment_id])
    assert len({run.data.tags["gradtricks.request"] for run in found}) == len(found)
    return {run.data.tags["gradtricks.request"]: run for run in found}


def test_runs_are_logged_once_and_whole(stored, tracking, tmp_path):
    client, uri = tracking
    name = f"test {uuid4()}"
    assert log_to_mlflow(uri, [], name) == 0  # makes the experiment
    assert log_to_mlflow(uri, stored, name) == 2
    assert log_to_mlflow(uri, [*stored, *stored], name) == 0
    runs = logged_runs(client, name)
    assert len(runs) == 2

    finished = runs[stored[0].request]
    assert finished.info.status == "FINISHED"
    assert finished.info.run_name == stored[0].title
    assert finished.data.params == {"seed": "3", "label": "x" * 5000, "fate": "well"}
    assert finished.data.tags["gradtricks.stem"] == "small"
    expected = {"seed": 3, "right": 1, "varying.seconds": 0.25, "norms.hidden_ 10 _": 1 / 3}
    expected |= {"curve": 2, "norms.inner.deep": 2, "many": 1499}
    assert finished.data.metrics == expected
    curve = sorted(client.get_metric_history(finished.info.run_id, "curve"), key=lambda each: each.step)
    assert [(each.step, repr(each.value)) for each in curve] == [(0, "0.5"), (1, "nan"), (2, "2.0")]
    assert len(client.get_metric_history(finished.info.run_id, "many")) == 1500
    assert finished.info.end_time - finished.info.start_time == round(1000 * stored[0].record["duration_s"])

    files = Path(client.download_artifacts(finished.info.run_id, "", str(tmp_path)))
    assert json.loads((files / "record.json").read_text()) == stored[0].record
    assert (files / "files" / "weights").read_bytes() == b"1234"
    assert "record_file" in (files / "notebook.ipynb").read_text()

    failed = runs[stored[1].request]
    assert failed.info.status == "FAILED"
    assert "as asked" in failed.data.tags["gradtricks.error"]
    assert "notebook.ipynb" in [file.path for file in client.list_artifacts(failed.info.run_id)]


def test_what_was_cut_short_is_logged_anew(stored, tracking, monkeypatch):
    client, uri = tracking
    name = f"test {uuid4()}"
    with monkeypatch.context() as patched:
        patched.setattr("gradtricks.lab.runs.tracking._write_artifacts", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            log_to_mlflow(uri, stored, name)
    assert log_to_mlflow(uri, stored, name) == 2
    assert {run.info.status for run in logged_runs(client, name).values()} == {"FINISHED", "FAILED"}


@pytest.mark.parametrize("uri", ["http://127.0.0.1:1", "http://me:secret@127.0.0.1:1", "no://w"])
def test_a_server_that_is_not_there(stored, tracking, monkeypatch, uri):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    shown = uri.replace("me:secret@", "")
    with pytest.raises(RunError, match=f"expected MLflow at {shown} .*; remedy: start its server") as caught:
        log_to_mlflow(uri, stored)
    assert "secret" not in str(caught.value)


def test_without_mlflow_the_remedy_is_said(stored, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(ParameterError, match=r"got none; remedy: pip install 'gradtricks\[mlflow\]'"):
        log_to_mlflow("sqlite:///mlflow.db", stored)
