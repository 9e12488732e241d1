"""Adaptive search: what was told stays told, whoever is killed."""

import math
import os
import signal
import subprocess
import sys
import time
from functools import partial

import nbformat
import pytest

from gradtricks.lab.notebooks.schema import ParameterError
from gradtricks.lab.results.tables import read_plan
from gradtricks.lab.runs.execution import RunError
from gradtricks.lab.runs.many import Interrupted
from gradtricks.lab.storage.store import Store, StoreError
from gradtricks.lab.sweeps.searching import Trials, search
from gradtricks.lab.sweeps.sweep import read_sweep
from notebooks import write_notebook
from stored import put
from sweeping import wait_for

pytestmark = pytest.mark.usefixtures("warm")

pytest.importorskip("optuna")

PARAMETERS = """\
seed: int = 0  # shifts the loss
rate: float = 0.1  # is searched
layers: int = 1  # is searched
kind: Literal["a", "b"] = "a"  # is searched
pause_s: float = 0.0  # how long it takes
fate: Literal["well", "raise"] = "well"  # how it ends
"""
BODY = """\
import os, time
from gradtricks.lab import record
if kind == "b" and layers == 3:
    raise RuntimeError("this configuration fails")
time.sleep(pause_s)
record(loss=(rate - 0.3) ** 2 + layers / 100 + seed, curve=[1, 2], nothing=float("nan"))
with open(os.environ.get("GRADTRICKS_TEST_LOG", os.devnull), "a") as log:
    log.write(f"{rate} {layers} {kind} {seed}\\n")
"""
SEARCH = """\
notebook: small.ipynb
optuna:
  objective: results.loss
  direction: minimize
  trials: 6
  seed: 1
  parameters:
    rate: {low: 0.001, high: 1.0, log: true}
    layers: {low: 1, high: 3}
    kind: {choices: [a]}
"""


def write_search(folder, *changes, trials=6, more="", name="small"):
    """Write a search beside its notebook, with changes, and read it."""
    text = SEARCH + more
    for old, new in (("trials: 6", f"trials: {trials}"), *changes):
        assert old in text
        text = text.replace(old, new)
    path = folder / "experiments" / f"{name}.sweep.yaml"
    if not path.parent.exists():
        write_notebook(path.with_name("small.ipynb"), PARAMETERS, BODY)
    path.write_text(text)
    return read_sweep(path)


@pytest.fixture
def written(tmp_path):
    """Return a function that writes a search, with changes, and reads it."""
    return partial(write_search, tmp_path)


def compute(run, store, *_, **__):
    """Put in the store at once what the notebook of a run would compute."""
    given = run.parameters
    loss = (given["rate"] - 0.3) ** 2 + given["layers"] / 100 + given["seed"]
    results = {"curve": [1, 2], "loss": loss, "nothing": {"$float": "nan"}}
    return put(store, run, parameters=given, results=results)


@pytest.fixture
def at_once(monkeypatch):
    """Start no process for a run."""
    monkeypatch.setattr("gradtricks.lab.runs.execution.execute_run", compute)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Return what a search proposes that nobody disturbs."""
    folder = tmp_path_factory.mktemp("undisturbed")
    spec, store = write_search(folder), Store(folder / "runs")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("gradtricks.lab.runs.execution.execute_run", compute)
        search(spec, store, workers=1)
    return proposals(spec, store)


def proposals(spec, store):
    """Return what each trial was, and what was told of it."""
    trials = Trials(spec, store)
    return [
        (told.value, *(runs[0].spec.parameters[name] for name in spec.optuna.parameters))
        for told, runs in zip(trials._study.get_trials(), trials._trials, strict=True)
    ]


def test_a_search_finds_the_best_and_goes_on_later(written, tmp_path, undisturbed):
    store, events = Store(tmp_path / "runs"), []
    spec = written()
    runs, best = search(spec, store, workers=1, on_change=lambda run: events.append(run.state))
    told, plan = proposals(spec, store), read_plan(store.plan(spec.name))
    assert len(told) == len(runs) == len(plan.runs) == 6
    assert [run.results["loss"] for run in best] == [min(value for value, *_ in told)]
    assert [run.spec.request for run in runs] == [run.request for run in plan.runs]
    assert plan.varied == ("rate", "layers", "kind")
    assert plan.shown == ("results.loss",)
    assert set(events) <= {"going", "finished"}
    assert told == undisturbed, "the same seed proposes the same"

    longer = written(trials=8)
    events.clear()
    again = search(longer, store, workers=2, on_change=lambda run: events.append(run.state))
    assert proposals(longer, store)[:6] == told
    assert len(again[0]) == 8
    assert events.count("going") == 2
    events.clear()
    last = search(longer, store, on_change=lambda run: events.append(run.state))
    assert last[1] == again[1]
    assert [run.spec.request for run in last[0]] == [run.spec.request for run in again[0]]
    assert events == []


def test_trials_whose_runs_are_done_already_enter_the_plan(written, tmp_path, at_once):
    store = Store(tmp_path / "runs")
    search(written(trials=2), store, workers=1)
    runs, _ = search(written(trials=2, name="twin"), store, workers=1)
    planned = read_plan(store.plan("twin")).runs
    assert [each.request for each in planned] == [run.spec.request for run in runs]
    assert len(runs) == 2


def test_failed_runs_are_failed_trials(written, tmp_path):
    store = Store(tmp_path / "runs")
    spec = written(("choices: [a]", "choices: [b]"), ("low: 1, high: 3", "low: 2, high: 3"))
    runs, _ = search(spec, store, workers=2)
    for value, _, layers, _ in proposals(spec, store):
        assert (value is None) == (layers == 3)
    errors = [run.error for run in runs if run.error]
    assert errors
    assert all("this configuration fails" in error for error in errors)


def test_the_objective_is_the_mean_over_seeds(written, tmp_path, at_once):
    spec = written(trials=2, more="seeds: [1, 4]\n")
    store = Store(tmp_path / "runs")
    _, best = search(spec, store, workers=2)
    assert [run.parameters["seed"] for run in best] == [1, 4]
    assert min(value for value, *_ in proposals(spec, store)) == sum(r.results["loss"] for r in best) / 2
    assert spec.varied[-1] == "seed"


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        ("results.lost", r"expected results.lost among what small-.* recorded: expected one of: curve, loss"),
        ("results.curve", r"expected results.curve to be a number; small-.* recorded \[1, 2\]"),
    ],
)
def test_an_objective_that_no_run_records_ends_the_search(written, tmp_path, at_once, objective, message):
    with pytest.raises(RunError, match=message):
        search(written(("results.loss", objective)), Store(tmp_path / "runs"), workers=1)


def test_nan_is_no_value(written, tmp_path, at_once):
    store = Store(tmp_path / "runs")
    spec = written(("results.loss", "results.nothing"), trials=1)
    assert search(spec, store, workers=1)[1] == []
    assert [value for value, *_ in proposals(spec, store)] == [None]


@pytest.mark.parametrize("sampler", ["random", "qmc"])
def test_draws_are_the_same_wherever_a_kill_came(written, tmp_path, sampler):
    both = ("choices: [a]", "choices: [a, b]")
    spec = written(("seed: 1", f"seed: 1\n  sampler: {sampler}"), both, trials=8)
    once, killed, other = (Store(tmp_path / name) for name in ("once", "killed", "other"))
    Trials(spec, once).more(8)
    for asked in (0, 3, 5, 8):
        Trials(spec, killed).more(asked)
    drawn = [proposal[1:] for proposal in proposals(spec, once)]
    assert [proposal[1:] for proposal in proposals(spec, killed)] == drawn
    rates, layers, kinds = zip(*drawn, strict=True)
    assert {type(each) for each in layers} == {int}
    assert all(0.001 <= rate <= 1 and float(f"{rate:.6g}") == rate for rate in rates)
    assert len(set(drawn)) == 8
    if sampler == "qmc":  # of eight points of a Sobol sequence, one is in each eighth
        assert sorted(int(math.log(1000 * rate, 1000) * 8) for rate in rates) == [*range(8)]
        assert (kinds.count("a"), kinds.count("b")) == (4, 4)
    (run,) = Trials(written(("seed: 1", f"seed: 2\n  sampler: {sampler}")), other).more(1)
    assert run.spec.parameters["rate"] != rates[0]


def test_what_resembles_the_best_is_the_same_after_a_kill(written, tmp_path, at_once):
    once, killed = Store(tmp_path / "once"), Store(tmp_path / "killed")
    for trials in (11, 13):  # more than Optuna draws at random in the beginning
        search(written(trials=trials), killed, workers=1)
    search(spec := written(trials=13), once, workers=1)
    assert proposals(spec, killed) == proposals(spec, once)


def test_trials_of_another_search_are_not_believed(written, tmp_path, at_once):
    store = Store(tmp_path / "runs")
    spec = written(trials=1)
    search(spec, store, workers=1)
    changed = written(("high: 1.0", "high: 2.0"), trials=1)
    assert len(search(changed, store)[0]) == len(proposals(changed, store)) == 1


@pytest.mark.parametrize(
    "edit",
    [
        lambda plan: [],
        lambda plan: plan | {"search": {"digest": 3}},
        lambda plan: plan | {"search": plan["search"] | {"proposed": [{"rate": "fast"}]}},
    ],
)
def test_a_plan_that_somebody_edited_begins_anew(written, tmp_path, undisturbed, at_once, edit):
    spec, store = written(trials=2), Store(tmp_path / "runs")
    search(spec, store, workers=1)
    store.write_plan(spec.name, edit(store.plan(spec.name)))
    search(spec, store, workers=1)
    assert proposals(spec, store) == undisturbed[:2]


def test_runs_that_are_gone_are_done_again(written, tmp_path, undisturbed, at_once):
    spec, store = written(trials=3), Store(tmp_path / "runs")
    search(spec, store, workers=1)
    for folder in [*(tmp_path / "runs").glob("small*")][:2]:
        folder.rename(tmp_path / folder.name)
    assert len(search(spec, store, workers=1)[0]) == 3
    assert proposals(spec, store) == undisturbed[:3]


def test_a_notebook_may_read_files_while_it_is_searched(written, tmp_path, at_once):
    spec = written(trials=2)
    node = nbformat.read(spec.notebook, as_version=4)
    node.metadata["gradtricks"] = {"reads": ["*.csv"]}
    nbformat.write(node, spec.notebook)
    assert len(search(spec, Store(tmp_path / "runs"), workers=1)[0]) == 2


def test_two_drivers_at_once_do_each_run_once(written, tmp_path, undisturbed):
    spec = written(more="fixed: {pause_s: 0.3}\n")
    store, log = Store(tmp_path / "runs"), tmp_path / "log"
    processes = [start(spec, store, 1, log) for _ in range(2)]
    for process in processes:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors.decode()
    assert proposals(spec, store) == undisturbed
    done = log.read_text().splitlines()
    assert len(done) == len(set(done)) == 6


def test_a_notebook_that_is_edited_meanwhile_ends_the_search(written, tmp_path, at_once):
    spec = written()

    def edit(_):
        write_notebook(spec.notebook, PARAMETERS, BODY + "# edited\n")

    with pytest.raises(RunError, match=r"expected .*small.ipynb to stay as it was"):
        search(spec, Store(tmp_path / "runs"), workers=1, on_change=edit)


def test_a_folder_that_cannot_be_had(written, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"expected a store .*/file; got: Not a directory; remedy: "):
        search(written(), Store(tmp_path / "file"))


def test_without_optuna_the_remedy_is_said(written, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ParameterError, match=r"got none; remedy: pip install 'gradtricks\[optuna\]'"):
        search(written(), Store(tmp_path / "runs"))


def start(spec, store, workers, log):
    """Give the command that searches."""
    command = [sys.executable, "-m", "gradtricks.cli", "sweep", f"experiments/{spec.name}.sweep.yaml"]
    return subprocess.Popen(
        [*command, "--store", store.location, "--workers", str(workers)],
        cwd=spec.notebook.parents[1],
        env={**os.environ, "GRADTRICKS_TEST_LOG": str(log)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def wait_for_lines(log, count):
    """Wait until so many runs have written that they were done."""
    wait_for(lambda: log.exists() and len(log.read_text().splitlines()) >= count, 90)


def test_a_driver_that_is_killed_loses_nothing_that_was_told(written, tmp_path, undisturbed):
    spec = written(more="fixed: {pause_s: 0.3}\n")
    store, log = Store(tmp_path / "runs"), tmp_path / "log"
    for count in (2, 4):
        process = start(spec, store, 1, log)
        wait_for_lines(log, count)
        time.sleep(0.15)  # into the run that comes next
        process.kill()
        process.communicate()
    process = start(spec, store, 1, log)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors.decode()
    assert proposals(spec, store) == undisturbed
    done = log.read_text().splitlines()
    assert len(set(done)) == 6
    # Only what was going on when it was killed may have been done twice.
    assert len(done) <= 6 + 2


def test_a_search_is_interrupted_only_if_trials_are_left(written, tmp_path, undisturbed, monkeypatch):
    spec, begun = written(trials=3), []

    def interrupted(run, *arguments, **options):
        begun.append(run)
        if len(begun) > 1:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.3)
        return compute(run, *arguments, **options)

    monkeypatch.setattr("gradtricks.lab.runs.execution.execute_run", interrupted)
    store = Store(tmp_path / "runs")
    with pytest.raises(Interrupted, match="1 of 3 runs are left"):
        search(spec, store, workers=1)
    runs, best = search(spec, store, workers=1)
    assert [len(begun), len(runs), len(best)] == [3, 3, 1]
    assert proposals(spec, store) == undisturbed[:3]


def test_an_interrupted_search_keeps_what_goes_on_and_continues(written, tmp_path):
    store, log = Store(tmp_path / "runs"), tmp_path / "log"
    spec = written(more="fixed: {pause_s: 0.5}\n")
    process = start(spec, store, 2, log)
    wait_for_lines(log, 1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors.decode()
    before = log.read_text().splitlines()
    assert len(before) < 6
    assert len(list(store.runs())) == len(before)
    search(spec, store, workers=2)
    assert sum(value is not None for value, *_ in proposals(spec, store)) == 6
