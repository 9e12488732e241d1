"""Checkpoints for the next attempt, and files that stay with the run: both outlive its process."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from gradtricks.lab.commands import views
from gradtricks.lab.recording import checkpoint_folder, record_file
from gradtricks.lab.runs.execution import RunError, execute_run
from gradtricks.lab.runs.planning import plan_run
from gradtricks.lab.runs.reproduction import reproduce
from gradtricks.lab.storage.places import Place
from gradtricks.lab.storage.store import Store, StoreError
from notebooks import write_notebook
from stored import asked, put, record_of
from sweeping import end, execute_all, plan, start_driver, wait_for

PARAMETERS = """\
seed: int = 0  # of the numbers
steps: int = 30  # that it counts
log: str = ""  # file that gets a line for each step, and lies beside one that holds it up
fate: str = "well"  # how it ends
"""
# A training in small: its numbers depend on every step before.
TRAINING = """\
import json, os, time
import numpy as np
from pathlib import Path
from gradtricks.lab import checkpoint_folder, record
folder = checkpoint_folder()
assert checkpoint_folder() == folder
saved = folder / "state.json"
state = json.loads(saved.read_text()) if saved.exists() else {"step": 0, "curve": []}
while state["step"] < steps:
    draw = np.random.default_rng([seed, state["step"]]).normal()
    state["curve"].append(draw + 0.5 * (state["curve"] or [0.0])[-1])
    state["step"] += 1
    if log:
        with open(log, "a") as lines:
            print(seed, state["step"], file=lines)
    beside = folder / "state.json.new"
    beside.write_text(json.dumps(state))
    os.replace(beside, saved)
    while state["step"] == 10 and Path(f"{log}.hold").exists():
        time.sleep(0.01)
record(curve=state["curve"])
"""
FAILING = """\
from gradtricks.lab import checkpoint_folder, record
attempts = checkpoint_folder() / "attempts"
attempts.write_text(attempts.read_text() + "." if attempts.exists() else ".")
record(attempts=len(attempts.read_text()))
"""


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a notebook of one cell."""
    return lambda body: write_notebook(tmp_path / "experiments" / "own.ipynb", PARAMETERS, body)


def left(store):
    """Return the folders of checkpoints."""
    return sorted(Path(store.location, ".checkpoints").glob("*/state"))


# Checkpoints


def curve(seed):
    """Return what a run records that nobody disturbs."""
    values = [0.0]
    for step in range(30):
        values.append(np.random.default_rng([seed, step]).normal() + 0.5 * values[-1])
    return values[1:]


def curves(store):
    """Return what each run recorded, by its seed."""
    return {run.parameters["seed"]: run.results["curve"] for run in store.runs()}


def test_a_sweep_that_is_killed_goes_on_from_its_checkpoints(write, tmp_path, warm):
    notebook, killed, log = write(TRAINING), Store(tmp_path / "killed"), tmp_path / "log"
    hold = tmp_path / "log.hold"
    for path in (log, hold):
        path.touch()

    def steps():
        return [tuple(map(int, line.split())) for line in log.read_text().splitlines()]

    driver = start_driver(notebook, killed.location, 2, given={"log": str(log)}, workers=2)
    try:
        wait_for(lambda: len(steps()) == 20, 300)
    finally:
        end(driver)
    assert curves(killed) == {}
    assert len(left(killed)) == 2
    hold.unlink()
    execute_all(plan(notebook, 2, log=str(log)), killed)
    assert curves(killed) == {seed: curve(seed) for seed in range(2)}
    done = [(seed, step) for seed in range(2) for step in range(1, 31)]
    assert sorted(set(steps())) == done
    # A step between whose line and checkpoint its process was killed has two lines; no other has.
    assert len(steps()) <= len(done) + 2
    assert killed.clean() == []
    for folder in (".checkpoints", ".unfinished"):
        assert list(Path(killed.location, folder).iterdir()) == []


@pytest.mark.parametrize("fresh", [False, True])
def test_a_failed_attempt_is_resumed_until_cleaned(write, store, kernels, fresh):
    notebook = write(FAILING + "if len(attempts.read_text()) < 2: raise RuntimeError('as asked')")
    node = json.loads(notebook.read_text())
    node["metadata"]["gradtricks"] = {"fresh_kernel": fresh}
    notebook.write_text(json.dumps(node))
    run = plan_run(notebook, {})
    with pytest.raises(RunError, match=r"left checkpoints, .*\n  .*gradtricks clean"):
        execute_run(run, store, kernels)
    checkpoints = f"{store.location}/.checkpoints/{run.request}"
    assert store.clean(dry_run=True) == [checkpoints]
    assert store.clean() == [checkpoints]
    with pytest.raises(RunError, match="as asked"):
        execute_run(run, store, kernels)
    assert execute_run(run, store, kernels).results == {"attempts": 2}
    assert store.failure(run) is None
    assert left(store) == []


def test_checkpoints_of_another_request_are_not_used(write, store, kernels):
    failing = FAILING + "raise RuntimeError('as asked')\n"
    for body, given in ((failing, {}), (failing, {"seed": 1}), (f"{failing}# edited", {})):
        with pytest.raises(RunError):
            execute_run(plan_run(write(body), given), store, kernels)
    assert [(folder / "attempts").read_text() for folder in left(store)] == ["."] * 3


@pytest.mark.parametrize(("edited", "dirty"), [("a = 1  # comment", True), ("a = 1", False)])
def test_an_edit_throws_no_checkpoint_away_but_is_said(
    write, store, kernels, tmp_path, monkeypatch, edited, dirty
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("a = 1")
    run = plan_run(write(f"import mine\n{FAILING}if len(attempts.read_text()) < 2: raise RuntimeError"), {})
    with pytest.raises(RunError):
        execute_run(run, store, kernels)
    (tmp_path / "mine.py").write_text(edited)
    stored = execute_run(run, store, kernels)
    assert (stored.results["attempts"], bool(stored.record["provenance"]["dirty"])) == (2, dirty)
    assert stored.record["provenance"]["resumed"]


def test_a_rerun_begins_anew(write, store, kernels):
    stored = execute_run(plan_run(write(FAILING), {}), store, kernels)
    assert stored.results == {"attempts": 1}
    assert left(store) == []
    assert reproduce(stored, kernels).verdict == "identical"


def test_outside_of_the_lab_each_folder_is_a_new_one():
    one, other = checkpoint_folder(), checkpoint_folder()
    assert one != other
    assert list(one.iterdir()) == list(other.iterdir()) == []
    for folder in (one, other):
        folder.rmdir()


# Files

POLICY = """\
from pathlib import Path
from tempfile import TemporaryDirectory
from gradtricks.lab import record, record_file
with TemporaryDirectory() as folder:
    weights = Path(folder, "weights")
    weights.write_bytes(bytes(range(256)) * 1000)
    record_file(weights)
    weights.write_bytes(b"")
    record_file(str(weights), name="empty.safetensors")
record(loss=0.5)
"""
WEIGHTS = bytes(range(256)) * 1000


def test_a_file_is_kept_with_its_run(write, store, kernels):
    run = plan_run(write(POLICY), {})
    stored = execute_run(run, store, kernels)
    assert stored == store.find(run)
    assert stored.read_file("weights") == WEIGHTS
    assert stored.read_file("empty.safetensors") == b""
    assert stored.files["weights"] == {"bytes": 256_000, "sha256": hashlib.sha256(WEIGHTS).hexdigest()}
    assert Place(stored.location).names("files") == ["empty.safetensors", "weights"]
    assert stored.results == {"loss": 0.5}
    assert reproduce(stored, kernels).count == 3
    assert store.clean() == []
    with pytest.raises(StoreError, match=r"expected one of the files of own: weights, .*; got 'nothing'"):
        stored.read_file("nothing")
    Place(stored.location).write("files/weights", b"edited")
    with pytest.raises(StoreError, match="as it was recorded; got another one"):
        stored.read_file("weights")
    Place(store.location).remove(stored.location.removeprefix(f"{store.location}/"))
    with pytest.raises(StoreError, match="got none; remedy"):
        stored.read_file("weights")
    assert Place(stored.location).names("files") == []


def test_files_are_shown_and_compared(write, store, kernels, tmp_path):
    source = tmp_path / "policy"
    source.write_bytes(b"before")
    notebook = write(f"from gradtricks.lab import record_file\nrecord_file({str(source)!r})")
    stored = execute_run(plan_run(notebook, {}), store, kernels)
    shown = list(views.record_of(stored).renderables[1].columns[0].cells)
    assert "file policy" in map(str, shown)
    source.write_bytes(b"after")
    said = reproduce(stored, kernels)
    assert (said.verdict, said.count) == ("different", 1)
    assert [each.name for each in said.differences] == ["files.policy"]


@pytest.mark.parametrize(
    ("path", "name", "error", "reason"),
    [
        ("none", None, FileNotFoundError, "expected a file at none; got nothing"),
        (".", "here", FileNotFoundError, "expected a file at .; got a folder"),
        ("a", "../b", ValueError, "name must be letters, .*; got '../b'"),
        ("a", ".b", ValueError, "name must be letters"),
        ("c", None, ValueError, "expected a file of at most 33,554,432 bytes; got 33,554,433 in c"),
    ],
)
def test_what_is_no_file_to_be_kept_is_refused(tmp_path, monkeypatch, path, name, error, reason):
    monkeypatch.chdir(tmp_path)
    Path("a").touch()
    with Path("c").open("wb") as large:
        large.truncate((32 << 20) + 1)
    with pytest.raises(error, match=reason):
        record_file(path, name=name)


def test_a_run_that_fails_keeps_no_files(write, store, kernels, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in "ab":
        Path(name).write_text(name)
    notebook = write("from gradtricks.lab import record_file\nrecord_file('a')\nrecord_file('b', name='a')")
    with pytest.raises(RunError, match="ValueError: recorded twice: the file a") as caught:
        execute_run(plan_run(notebook, {}), store, kernels)
    failure = caught.value.stored
    assert failure.files == {}
    assert not Path(failure.location, "files").exists()


def test_a_file_by_hand_is_only_spoken_of(tmp_path, capsys):
    (tmp_path / "weights").write_bytes(b"1234")
    record_file(tmp_path / "weights")
    assert capsys.readouterr().out == "weights: 4 bytes\n"


def test_a_record_with_odd_files_is_not_believed(store):
    kept = {"bytes": 1, "sha256": "0" * 64}
    assert put(store, asked(1), files={"a": kept}).files == {"a": kept}
    for odd in ({"../a": kept}, {"a": {}}, {"a": kept | {"bytes": -1}}, {"a": kept | {"sha256": "0"}}, ["a"]):
        with pytest.raises(ValueError, match="can't be read again"):
            put(store, asked(2), files=odd)
    assert "files" not in record_of(asked(3)), "as before files could be kept"
    assert put(store, asked(3)).files == {}
