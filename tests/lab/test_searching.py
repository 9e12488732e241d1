"""The page's recipe for searches: Optuna proposes, `run` does it, and a kill costs the run that went on."""

import re
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep

import pytest

from gradtricks.lab import run
from gradtricks.lab.storage.store import Store
from notebooks import write_notebook

CHAPTER = Path(__file__).parents[2] / "book" / "sweeps.md"
NOTEBOOK = """\
import math, time
from gradtricks.lab import record
time.sleep(0.2)
record(loss_after=(math.log10(learning_rate) + 1) ** 2 + batch_size / 512 + seed / 100)
"""


@pytest.fixture
def search(tmp_path):
    """Return a function that starts the recipe's lines, with eight trials, in a folder with a notebook."""
    parameters = "learning_rate: float = 0.1\nbatch_size: int = 256\nseed: int = 0\nfate: str = 'well'\n"
    write_notebook(tmp_path / "unrolling.ipynb", parameters, NOTEBOOK)
    (lines,) = re.findall(r"(?s)```python\n(import optuna\n.*?)```", CHAPTER.read_text())
    assert lines.count("40") == 1
    command = [sys.executable, "-c", lines.replace("40", "8")]

    def start():
        return subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)

    return start


def records(folder):
    return [run.record for run in Store(folder / "_build" / "runs").runs()]


def test_the_recipe_goes_on_after_a_kill(search, tmp_path):
    optuna = pytest.importorskip("optuna")
    killed, deadline = search(), monotonic() + 120
    while not (tmp_path / "_build" / "runs").is_dir() or len(records(tmp_path)) < 5:  # in the second trial
        assert killed.poll() is None
        assert monotonic() < deadline
        sleep(0.05)
    killed.kill()
    killed.communicate()
    kept = {record["request"]: record["started"] for record in records(tmp_path)}
    said, _ = search().communicate(timeout=300)

    after = {record["request"]: record["started"] for record in records(tmp_path)}
    assert {request: after[request] for request in kept} == kept
    study = optuna.load_study(study_name="unroll", storage=f"sqlite:///{tmp_path / 'search.db'}")
    done = [trial for trial in study.trials if trial.state.name == "COMPLETE"]
    assert len(done) == 8
    assert len(after) == 3 * len({tuple(trial.params.values()) for trial in done})
    best = min(done, key=lambda trial: trial.value)
    assert said == f"{best.params} {best.value}\n"
    seeds = [
        run(tmp_path / "unrolling.ipynb", best.params | {"seed": s}, store=tmp_path / "_build" / "runs")
        for s in range(3)
    ]
    assert best.value == sum(each.results["loss_after"] for each in seeds) / 3
    assert len(records(tmp_path)) == len(after)
