"""The run store: what was put in is found, what can't be believed isn't, and nothing leaves it."""

import json
import os
import re
import subprocess
import sys
import warnings
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradtricks.lab.storage.records import inputs_digest, read_record, write_record
from gradtricks.lab.storage.store import RecordWarning, Store, StoredRun, StoreError
from stored import INPUTS, PROVENANCE, asked, put, put_failure, record_of, small_disk


def overwrite(location, text, name="record.json"):
    """Write a file behind the store's back."""
    path = Path(location, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())


def test_what_is_put_in_is_found(store):
    run, other = asked(0), asked(1)
    assert store.find(run) is None
    assert store.find_all([run, other]) == {}
    assert list(store.runs()) == []
    stored = put(store, run)
    assert store.find(run) == stored
    assert store.find(other) is None
    assert stored.title == run.title
    assert stored.parameters == {"seed": 0}
    assert stored.results["nothing"] != stored.results["nothing"]
    assert stored.varying == {"seconds": 1.5}
    assert stored.valid()
    assert stored.read_notebook().cells == []
    assert store.find_all([run, other]) == {run.request: stored}
    assert list(store.runs()) == list(store.runs("small")) == [stored]
    assert list(store.runs("smal")) == []
    assert store.failure(run) is None
    assert store.claimed() == set()


def test_the_first_to_commit_stays(store):
    run = asked()
    put(store, run)
    assert put(store, run, results={"loss": 0.25}).results["loss"] == 0.5
    assert store.find(run).results["loss"] == 0.5


def test_a_failure_is_kept_until_a_success(store):
    run = asked()
    put_failure(store, run, "first")
    stored = put_failure(store, run, "second")
    assert stored.record["error"] == "second"
    assert store.failure(run) == stored
    assert store.find_all([run, asked(1)], "failed") == {run.request: stored}
    assert [found.status for found in store.runs()] == ["failed"]
    assert store.find(run) is None
    put(store, run)
    assert store.failure(run) is None
    assert store.find_all([run, asked(1)], "failed") == {}
    assert [found.status for found in store.runs()] == ["finished"]


def test_inputs_that_changed_make_a_run_stale(store):
    changed = INPUTS | {"modules": {"gradtricks/lab/recording.py": "0" * 64}}
    upgraded = INPUTS | {"versions": {"numpy": "0.1", "never-installed": "1"}}
    for number, inputs in enumerate((changed, upgraded, INPUTS | {"python": "3.0"})):
        run = asked(number)
        assert not put(store, run, inputs=inputs).valid()
        assert store.find(run) is None
        assert store.lookup(run.title).title == run.title
    run = asked(0)
    fresh = put(store, run)
    assert store.find(run) == fresh == store.lookup(run.title)
    assert len(list(store.runs())) == 4
    put_failure(store, asked(5))
    expected = {f"seed={number}": 1 for number in range(3)}
    assert len(store.clean()) == 0
    for really in (False, True):
        gone = store.clean(stale=True, dry_run=not really)
        assert {re.search(r"seed=\d", path)[0]: 1 for path in gone} == expected
        assert len(gone) == 3
    assert store.clean(failed=True)[0].endswith("/failed")
    assert list(store.runs()) == [fresh]


def test_a_torn_record_is_not_believed(store):
    run = asked()
    stored = put(store, run)
    overwrite(stored.location, "{")
    assert store.find(run) is None
    with pytest.warns(RecordWarning, match=r"got 1 torn, edited or of .*seed=0.*; remedy: gradtricks clean"):
        assert list(store.runs()) == []
    assert store.clean(dry_run=True) == [stored.location]
    assert put(store, run) == store.find(run)


def test_folders_without_or_in_place_of_records_are_ignored(store):
    run, other = asked(0), asked(1)
    stored, kept = put(store, run), put(store, other)
    path = Path(stored.location, "record.json")
    path.unlink()
    for make in (lambda: None, path.mkdir):
        make()
        assert store.find(run) is None
        assert store.find_all([run, other]) == {other.request: kept}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RecordWarning)
            assert list(store.runs()) == [kept]
    path.rmdir()
    assert store.clean() == [stored.location]
    assert store.clean() == []


def test_plans_are_kept(store):
    assert store.plans() == []
    plan = {"runs": [{"request": "0" * 64, "title": "a"}]}
    store.write_plan("first-sweep", {"old": 1})
    store.write_plan("first-sweep", plan)
    store.write_plan("first", plan)
    overwrite(f"{store.location}/.sweeps", "{", "torn.json")
    overwrite(f"{store.location}/.sweeps", "[" * 100_000, "deep.json")
    overwrite(f"{store.location}/.sweeps", "{}", "notes.txt")
    assert store.plans() == ["deep", "first", "first-sweep", "torn"]
    assert [store.plan(name) for name in store.plans()] == [None, plan, plan, None]
    put(store, asked())
    assert len(list(store.runs())) == 1


@pytest.mark.parametrize("name", ["", "..", "../a", "a/b", ".hidden", "a" * 110, "a\n"])
def test_names_cannot_leave_the_store(store, name):
    with pytest.raises(StoreError, match=r"expected a sweep's name of letters, .*; got"):
        store.write_plan(name, {})
    for run in (SimpleNamespace(title=name, request="0" * 64), SimpleNamespace(title="a", request=name)):
        with pytest.raises(StoreError, match="expected a title and a digest of a planned run; got"):
            store.find(run)
        with pytest.raises(StoreError, match="expected a title and a digest"), store.claim(run):
            pass
    assert not Path(store.location).exists()


def test_a_run_is_looked_up_by_what_people_type(store):
    first, second = put(store, asked(1)), put(store, asked(10))
    failure = put_failure(store, asked(2))
    for text in (
        first.title,
        f"{first.title}-{first.request[:12]}",
        first.location,
        f"{first.location}/",
        f"{first.location}/notebook.ipynb",
    ):
        assert store.lookup(text).record == first.record
    assert store.lookup("small-torch-seed=10") == second
    assert store.lookup("small-torch-seed=2") == failure
    with pytest.raises(StoreError, match=r"(?s)expected one run in .*; got 3 called 'small':.*seed=1-"):
        store.lookup("small")
    for text in ("tiny", first.request, "/nowhere/at/all", "../.."):
        with pytest.raises(StoreError, match=r"got none called .*; remedy: gradtricks table lists them"):
            store.lookup(text)


def test_one_title_s_runs_are_listed_newest_first(store):
    old, new = (SimpleNamespace(title=asked().title, request=asked(number).request) for number in (1, 2))
    for second, run in enumerate((old, new)):
        put(store, run, started=f"2026-01-31T12:00:0{second}+00:00")
    lines = [
        f"  {run.title}-{run.request[:12]}, started 2026-01-31T12:00:0{second}"
        for run, second in ((new, 1), (old, 0))
    ]
    listed = rf"the newest first:\n{lines[0]}.*\n{lines[1]}.*\nremedy: give more of its name"
    with pytest.raises(StoreError, match=f"got 2 called '{old.title}', {listed}"):
        store.lookup(old.title)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=9), inner, max_size=2),
)
NONSENSE = JSON | st.sampled_from(
    [
        *("../../etc/passwd", "/etc/passwd", "..", "a\nb", "x" * 1000, 1e308, -1, 10**30, True),
        {"../a": "b"},
        {"a": {"$float": "x"}},
        {"a": {"$date": 3}},
        {"a": {"$int": "q"}},
        {"a": {"$dict": 3}},
        INPUTS | {"modules": {"/dev/zero": "0" * 64, "\0": "0" * 64, "": "0" * 64}},
        INPUTS | {"more": {}},
        INPUTS | {"versions": {"../x": "1", "": "2"}},
        PROVENANCE | {"commit": 3},
        PROVENANCE | {"threads": 0},
        PROVENANCE | {"cpu_s": "fast"},
    ]
)


@given(st.sampled_from(sorted(record_of(asked()))), NONSENSE)
def test_a_record_that_was_edited_into_nonsense_stops_nobody(tmp_path_factory, field, value):
    store = Store(tmp_path_factory.getbasetemp() / "edited")
    run = asked()
    stored = put(store, run)
    overwrite(stored.location, json.dumps(stored.record | {field: value}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecordWarning)
        found = [*store.runs(), *store.find_all([run]).values(), *filter(None, [store.find(run)])]
    for one in found:
        assert isinstance(one.parameters, dict)
        assert isinstance(one.results, dict)
        assert isinstance(one.varying, dict)
        assert one.valid() in (True, False)
        assert all(re.fullmatch("[a-z][a-z0-9_]*", name) for name in one.record["figures"])
        assert "/" not in one.title + one.record["stem"] + one.record["name"]
        assert one.title == run.title
        assert one.record["duration_s"] >= 0
        assert one.record["started"] > ""
        assert one.record["provenance"]["threads"] > 0
    store.clean(failed=True, stale=True)


@given(st.binary(max_size=200))
def test_no_bytes_stop_a_scan(text):
    assert read_record(text) is None


def test_a_torn_or_incomplete_record_is_ignored():
    whole = record_of(asked())
    assert read_record(write_record(whole)) == whole
    for field in whole:
        assert read_record(json.dumps({k: v for k, v in whole.items() if k != field}).encode()) is None
    text = write_record(whole)
    assert all(read_record(text[:length]) is None for length in range(len(text) - 1))
    for wrong in ({"duration_s": float("nan")}, {"status": "failed"}, {"inputs": None}):
        assert read_record(json.dumps(whole | wrong).encode()) is None
    for odd in ("null", "[]", '"\\ud800"', "\x00", '{"schema_version": 1}'):
        assert read_record(odd.encode()) is None
    escaped = json.dumps(whole | {"results": {"a": {"$float": "x"}}}).replace("$", "\\u0024")
    assert read_record(escaped.encode()) is None
    for wrong in ({"modules": {"a": 1}}, {"modules": {"a": None}}, {"modules": {"a": "0"}}, {"more": 1}):
        assert read_record(json.dumps(whole | {"inputs": INPUTS | wrong}).encode()) is None


def test_only_what_can_be_read_again_is_written():
    for results in ({"a": float("nan")}, {"a": "\ud800"}, {"a": {"$float": "x"}}, [1]):
        with pytest.raises(ValueError, match=r"."):
            write_record(record_of(asked(), results=results))


def test_odd_things_in_place_of_a_record_hold_nobody_up(store, tmp_path):
    run = asked()
    record = Path(put(store, run).location, "record.json")
    outside = tmp_path / "outside"
    outside.mkdir()
    for make in (
        lambda: os.mkfifo(record),
        record.mkdir,
        lambda: record.symlink_to("/dev/zero"),
        lambda: record.symlink_to(record),
    ):
        (record.rmdir if record.is_dir() else record.unlink)()
        make()
        assert store.find(run) is None
    (record.parent / "more").mkdir()
    assert store.clean() == [str(record.parent)]
    Path(store.location, "linked").symlink_to(outside)
    assert list(store.runs()) == []
    assert store.clean() == []
    assert outside.exists()


def test_what_is_not_of_the_store_is_left_alone(store):
    stored = put(store, asked())
    others = [f"{store.location}/src/package", f"{store.location}/notes-000000000000/mine"]
    for other in others:
        overwrite(other, "mine", "module.py")
    assert list(store.runs()) == [stored]
    assert store.clean(failed=True, stale=True) == []
    for other in others:
        assert Path(other, "module.py").read_text() == "mine"


def test_only_what_the_lab_left_behind_is_deleted(store):
    digest = "0" * 64
    left = [f".checkpoints/{digest}/a", f".unfinished/{digest}/a", f".unfinished/a-{'1' * 12}-failed/a"]
    mine = [".checkpoints/model/a", ".unfinished/draft.txt"]
    for path in (*left, *mine):
        overwrite(f"{store.location}/{Path(path).parent}", "a", Path(path).name)
    assert store.clean() == [f"{store.location}/{Path(path).parent}" for path in sorted(left)[1:] + left[:1]]
    assert all(Path(store.location, path).exists() for path in mine)


@pytest.mark.parametrize(
    ("location", "got"),
    [("", "nothing"), ("s3://me:secret@bucket", "a URL, s3://…"), ("file:///runs", "a URL")],
)
def test_what_is_no_folder_is_refused(location, got):
    with pytest.raises(StoreError, match=f"expected a store's folder; got {got}.*; remedy: ") as caught:
        Store(location)
    assert "secret" not in str(caught.value)


def test_a_record_in_another_run_s_place_is_not_believed(store):
    stored, other = put(store, asked(0)), put(store, asked(1))
    overwrite(stored.location, Path(other.location, "record.json").read_bytes())
    assert store.find(asked(0)) is None
    assert put(store, asked(0)) == store.find(asked(0)) == stored
    edited = record_of(asked(0), inputs=INPUTS | {"modules": {}})
    overwrite(stored.location, write_record(edited))
    assert store.find(asked(0)) is None
    overwrite(stored.location, write_record(record_of(asked(0), status="failed", error="x")))
    assert store.find(asked(0)) is store.failure(asked(0)) is None


def test_a_notebook_that_is_gone_or_torn_says_so(store):
    stored = put(store, asked())
    overwrite(stored.location, '{"nbformat": 4', "notebook.ipynb")
    with pytest.raises(StoreError, match=r"expected a notebook in .*; got none that can be read; remedy"):
        stored.read_notebook()
    with pytest.raises(StoreError, match="got none that can be read"):
        StoredRun(f"{store.location}/nowhere", {}).read_notebook()
    assert [stored.executed, StoredRun(f"{store.location}/nowhere", {}).executed] == [True, False]


def test_many_runs_share_what_is_equal(store):
    runs = [asked(number) for number in range(100)]
    for run in runs:
        record = record_of(run)
        folder = Path(store.location, f"{run.title}-{run.request[:12]}", inputs_digest(record["inputs"]))
        folder.mkdir(parents=True)
        (folder / "record.json").write_bytes(write_record(record))
    found = list(store.find_all(runs).values())
    assert len(found) == len(list(store.runs())) == len(runs)
    assert found[0].record["inputs"] is found[-1].record["inputs"]


# Processes

SCRIPT = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from gradtricks.lab.storage.store import Store
from stored import asked, put, put_failure
store, counter = Store(sys.argv[1] + "/runs"), Path(sys.argv[1], "counter")
"""
CLAIMING = """
for _ in range(25):
    with store.claim(asked()):
        count = int(counter.read_text())
        time.sleep(0.001)
        counter.write_text(str(count + 1))
"""
COMMITTING = """
print("ready", flush=True)
for number in range(40):
    if not store.find(asked(number)):
        put_failure(store, asked(number))
        put(store, asked(number))
"""
HOLDING = """
with store.claim(asked()) as folder:
    (folder / "notebook.ipynb").write_text("half of it")
    print("ready", flush=True)
    time.sleep(60)
"""


def process(script, folder):
    """Start a process that uses the store."""
    command = [sys.executable, "-c", SCRIPT + script, str(folder), str(Path(__file__).parents[1])]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_processes_take_turns(tmp_path):
    (tmp_path / "counter").write_text("0")
    running = [process(CLAIMING, tmp_path) for _ in range(2)]
    for one in running:
        one.communicate(timeout=60)
    assert [one.returncode for one in running] == [0, 0]
    assert (tmp_path / "counter").read_text() == "50"
    assert list((tmp_path / "runs" / ".unfinished").iterdir()) == []


def test_a_claim_ends_with_its_process(store, tmp_path):
    failure = put_failure(store, asked())
    with process(HOLDING, tmp_path) as holding:
        holding.stdout.readline()
        left = Path(store.location, ".unfinished", asked().request)
        assert store.claimed() == {asked().request}
        assert store.clean(failed=True, stale=True) == [], "nothing that is claimed is cleaned"
        assert (left / "notebook.ipynb").exists()
        with store.claim(asked(1)):
            assert store.claimed() == {asked(0).request, asked(1).request}
        holding.kill()
    dangling = left.with_name("dangling.lock")
    dangling.symlink_to("nowhere")  # as if it went while we looked
    assert store.claimed() == set()
    dangling.unlink()
    assert store.clean(dry_run=True) == [str(left)]
    assert left.exists()
    with store.claim(asked(1)):
        assert not left.exists(), "whoever comes next tidies up"
    assert store.clean(failed=True) == [failure.location]


def test_readers_see_whole_runs_while_writers_are_killed(store, tmp_path):
    for enough in (1, 20, 40):
        with process(COMMITTING, tmp_path) as writing:
            writing.stdout.readline()
            seen = [0]
            while writing.poll() is None and not 40 > seen[-1] >= enough:
                finished = [stored for stored in store.runs() if stored.status == "finished"]
                seen.append(len([stored.read_notebook() for stored in finished]))
            if enough < 40:
                writing.kill()
        assert seen == sorted(seen), "what is finished stays"
        # A torn record would warn, which is an error.
        assert [stored.status for stored in store.runs()].count("failed") <= 1
    assert writing.returncode == 0
    found = list(store.runs())
    assert [stored.status for stored in found] == ["finished"] * 40
    assert len({stored.request for stored in found}) == 40
    assert store.clean() == []


# Disks and connections


def test_a_full_disk_is_said_and_nothing_half_is_believed(tmp_path):
    with small_disk(tmp_path / "disk") as disk:
        store = Store(disk / "runs")
        put(store, asked(0))
        message = (
            rf"expected a store to read and write at {disk}/runs; got: No space left .*; remedy: free some"
        )
        with pytest.raises(StoreError, match=message):
            put(store, asked(1), results={"text": "x" * 500_000})
        assert store.find(asked(1)) is None
        assert [stored.title for stored in store.runs()] == [asked(0).title]
        filler = disk / "filler"
        with pytest.raises(OSError, match="No space left"):
            filler.write_bytes(b"x" * 500_000)
        with pytest.raises(StoreError, match="No space left"):
            store.write_plan("sweep", {"x": "x" * 5000})
        assert store.plans() == []
        filler.unlink()
        put(store, asked(1))
        assert len(list(store.runs())) == 2
        assert store.clean() == []


def test_a_read_only_store_is_read_and_says_so(tmp_path):
    with small_disk(tmp_path / "disk") as disk:
        store = Store(disk / "runs")
        stored, failure = put(store, asked(0)), put_failure(store, asked(2))
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        assert store.find(asked(0)) == stored
        assert list(store.runs()) == [stored, failure]
        assert store.claimed() == set()
        assert len(store.clean(failed=True, dry_run=True)) == 1
        for write in (
            lambda: put(store, asked(1)),
            lambda: store.write_plan("sweep", {}),
            lambda: store.clean(failed=True),
        ):
            with pytest.raises(StoreError, match=r"Read-only file system; remedy: free .*, make it writable"):
                write()
        assert store.failure(asked(2)) == failure


@contextmanager
def as_nobody(folder):
    """Be somebody whom permissions hold back."""
    if os.geteuid() != 0:
        yield
        return
    os.chown(folder, 65534, 65534)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_what_may_not_be_read_does_not_stop_a_scan():
    with TemporaryDirectory() as folder, as_nobody(folder):
        store = Store(f"{folder}/runs")
        stored, other = put(store, asked(0)), put(store, asked(1))
        closed = [Path(stored.location).parent, Path(other.location, "record.json"), Path(store.location)]
        for path in closed[:2]:
            path.chmod(0)
        with pytest.warns(RecordWarning, match="got 1 torn, edited or of another"):
            assert list(store.runs()) == []
        Path(store.location).chmod(0o500)
        with pytest.raises(StoreError, match="Permission denied; remedy: "):
            store.write_plan("sweep", {})
        Path(store.location).chmod(0)
        with pytest.raises(StoreError, match="Permission denied; remedy: "):
            list(store.runs())
        for path in reversed(closed):
            path.chmod(0o700)


def test_a_file_in_place_of_a_store_is_said(tmp_path):
    (tmp_path / "runs").write_text("mine")
    store = Store(tmp_path / "runs")
    assert list(store.runs()) == []
    with pytest.raises(StoreError, match=r"expected a store to read and write at .*/runs; got: .*; remedy: "):
        put(store, asked())
