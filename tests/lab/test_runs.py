"""Runs with real kernels: what is asked is checked, what comes out is kept, and can be had again."""

import errno
import hashlib
import json
import os
import pickle
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from datetime import UTC, datetime, timedelta, timezone
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from unittest.mock import Mock
from zoneinfo import ZoneInfo

import matplotlib
import nbformat
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from nbclient.exceptions import DeadKernelError
from packaging.utils import canonicalize_name

from gradtricks.lab.encoding import decode, encode
from gradtricks.lab.notebooks.injection import inject
from gradtricks.lab.notebooks.schema import Parameter, ParameterError
from gradtricks.lab.recording import record, record_figure, record_varying
from gradtricks.lab.runs.execution import RunError, execute_run
from gradtricks.lab.runs.outputs import collect_figures
from gradtricks.lab.runs.planning import make_title, plan_run, plan_runs
from gradtricks.lab.runs.provenance import describe_libraries, describe_machine, describe_source
from gradtricks.lab.runs.reproduction import ABSENT, compare, reproduce
from gradtricks.lab.storage.records import read_record, write_record
from gradtricks.lab.storage.store import Store, StoredRun, StoreError
from gradtricks.lab.sweeps.overviews import describe, list_experiments
from gradtricks.lab.sweeps.reading import show
from notebooks import BODY, write_notebook
from stored import asked, record_of, small_disk

ROOT = Path(__file__).resolve().parents[2]
# Without a framework, whose import isn't what is tested here.
PARAMETERS = """\
seed: int = 0  # seeds nothing
rate: float = 0.1  # per step
label: str = "a"  # any text
sizes: list[int] = [1, 2]  # of the layers
fate: Literal["well", "raise", "exit", "sleep", "twice"] = "well"  # how it ends
"""


@pytest.fixture
def notebook(tmp_path):
    """Return the path of a small experiment in a project of its own."""
    return write_notebook(tmp_path / "experiments" / "small.ipynb", PARAMETERS)


@pytest.fixture
def run_it(notebook, store, kernels):
    """Return a function that plans and executes a run."""
    return lambda **given: execute_run(plan_run(notebook, given), store, kernels)


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a notebook of one cell."""
    return lambda body: write_notebook(tmp_path / "experiments" / "own.ipynb", PARAMETERS, body)


# Plans


def test_many_configurations_are_checked_together(notebook):
    givens = [{"seed": 0}, {"seed": "1"}, {"sead": 1}, {"seed": "1", "rate": 1}, {"rate": 0.1}]
    with pytest.raises(ParameterError) as caught:
        plan_runs(notebook, givens)
    first, *problems = str(caught.value).splitlines()
    assert first == f"{notebook}: nothing was run."
    assert problems[0] == "seed: expected int (seeds nothing); got '1'"
    assert problems[1].startswith("sead: unknown")
    assert len(problems) == 2


def test_runs_that_are_planned_together_share_the_notebook(notebook):
    planned = plan_runs(notebook, ({"seed": seed} for seed in range(1000)))
    assert len({run.request for run in planned}) == len({run.title for run in planned}) == 1000
    assert len({id(run.source) for run in planned}) == 1
    assert plan_runs(notebook, []) == []
    alone = plan_run(notebook, {"seed": 7})
    assert pickle.loads(pickle.dumps(alone)) == alone == planned[7]  # noqa: S301
    assert (alone.stem, alone.name, alone.title) == ("small", "small", "small-seed=7")


def test_a_run_is_requested_by_all_it_needs(notebook):
    request = plan_run(notebook, {"seed": 3}).request
    assert plan_run(notebook, {"seed": 3, "rate": 0.1}).request == request
    assert plan_run(notebook, {"seed": 4}).request != request
    assert plan_run(notebook, {"seed": 3}, threads=2).request != request
    write_notebook(notebook, PARAMETERS, body=BODY + "# another comment\n")
    assert plan_run(notebook, {"seed": 3}).request != request


def with_metadata(notebook, said):
    """Give a notebook metadata of ours."""
    node = nbformat.read(notebook, as_version=4)
    node.metadata.gradtricks = said
    nbformat.write(node, notebook)


def test_what_papermill_put_in_before_changes_nothing(notebook):
    request = plan_run(notebook, {}).request
    node = inject(nbformat.read(notebook, as_version=4), {"seed": 3})
    told = nbformat.v4.new_markdown_cell("An error", metadata={"tags": ["papermill-error-cell-tag"]})
    node.cells.insert(0, told)
    nbformat.write(node, notebook)
    assert plan_run(notebook, {}).request == request


def test_a_notebook_says_how_it_is_to_be_run(notebook):
    run = plan_run(notebook, {})
    assert (run.threads, run.alone, run.expected_s) == (1, False, None)
    with_metadata(notebook, {"threads": 2, "alone": True, "expected_s": 1.5})
    run = plan_run(notebook, {})
    assert (run.threads, run.alone, run.expected_s) == (2, True, 1.5)
    assert plan_run(notebook, {}, threads=3).threads == 3
    with pytest.raises(ParameterError, match="threads: expected greater than or equal to 1; got 0"):
        plan_run(notebook, {}, threads=0)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("fast", "expected metadata named gradtricks to hold settings by name; got 'fast'"),
        ({"read": ["data/*.json"]}, "read: expected a valid dictionary; got"),
        (
            {"theads": 2},
            r"theads: unknown \(did you mean threads\?\); expected threads, alone, expected_s, fr",
        ),
        (
            {"frozen": True},
            "frozen: unknown; expected threads, alone, expected_s, fresh_kernel, reads, quick$",
        ),
        ({"quick": [1]}, r"quick: expected a valid dictionary; got \[1\]"),
        ({"expected_s": "1"}, "expected_s: expected a valid number; got '1'"),
        ({"expected_s": -1}, "expected_s: expected greater than or equal to 0; got -1"),
        ({"threads": "2"}, "threads: expected a valid integer; got '2'"),
        ({"fresh_kernel": 1}, "fresh_kernel: expected a valid boolean; got 1"),
        ({"reads": "data/*.json"}, "reads: expected a valid list; got 'data"),
        *(
            ({"reads": ["*.csv", reads]}, "reads.1: expected a pattern such as data/.*.csv, of files beside")
            for reads in ("", "/etc/passwd", "../a.json", "data/**.json")
        ),
    ],
)
def test_metadata_that_mean_nothing_are_refused_by_name(notebook, said, message):
    with_metadata(notebook, said)
    for use in (lambda: plan_run(notebook, {}), lambda: describe(notebook)):
        with pytest.raises(ParameterError, match=message):
            use()
    (listed,) = list_experiments(notebook.parent, store=notebook.parent / "runs")
    assert re.search(message, listed.question), "the others of the folder are listed all the same"


def test_metadata_and_parameters_that_are_wrong_are_said_together(notebook):
    with_metadata(notebook, {"theads": 2, "alone": 3})
    with pytest.raises(ParameterError) as caught:
        plan_runs(notebook, [{"seed": "1"}, {"sead": 2}])
    lines = [line.removeprefix(f"{notebook}: ").split()[0] for line in str(caught.value).splitlines()]
    assert lines == ["nothing", "alone:", "theads:", "seed:", "sead:"]


def test_files_that_a_notebook_reads_are_part_of_it(notebook, store, kernels):
    with_metadata(notebook, {"reads": ["data/*.json"]})
    data = notebook.parent / "data" / "a.json"
    requests = [plan_run(notebook, {}).request]
    data.parent.mkdir()
    for text in ("1", "2", "1"):
        data.write_text(text)
        data.with_suffix(".txt").write_text(text)
        requests.append(plan_run(notebook, {}).request)
    assert len(set(requests)) == 3
    assert requests[1] == requests[3]
    stored = execute_run(plan_run(notebook, {}), store, kernels)
    said = reproduce(stored, kernels)
    assert (said.verdict, said.environment) == ("identical", ())
    data.write_text("3")
    data.with_name("b.json").write_text("new")
    found = {each.name: (each.recorded, each.now) for each in reproduce(stored, kernels).environment}
    digests = {text: hashlib.sha256(text.encode()).hexdigest() for text in ("1", "3", "new")}
    assert found == {
        "reads.data/a.json": (digests["1"], digests["3"]),
        "reads.data/b.json": (ABSENT, digests["new"]),
    }
    data.with_name("b.json").unlink()
    data.write_text("1")
    with_metadata(notebook, {"reads": ["**/a.json", "nothing/like/it.csv"]})
    assert plan_run(notebook, {}).request == requests[3], "the same file, and no other"


def commit_all(folder):
    """Make a checkout of a folder."""
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    for command in (["init"], ["add", "."], [*who, "commit", "-m", "first"]):
        subprocess.run(["git", "-C", str(folder), *command], check=True, capture_output=True)


def test_a_plan_says_which_commit_it_comes_from(notebook, monkeypatch):
    assert plan_run(notebook, {}).provenance == {"commit": None, "dirty": None}
    commit_all(notebook.parent)
    clean = plan_run(notebook, {}).provenance
    assert re.fullmatch("[0-9a-f]{40}", clean["commit"])
    assert clean["dirty"] is False
    (notebook.parent / "more").touch()
    assert plan_run(notebook, {}).provenance == clean | {"dirty": True}
    monkeypatch.setenv("PATH", "/nowhere")
    assert describe_source(notebook.parent) == {"commit": None, "dirty": None}


def test_what_the_readme_says_makes_no_checkout_dirty(notebook):
    command = re.search(r"^papermill .*", (ROOT / "README.md").read_text(), re.MULTILINE)[0]
    (output,) = (word for word in command.split() if word.endswith(".ipynb") and "/" not in word)
    folder = notebook.parent
    shutil.copy(ROOT / ".gitignore", folder)
    commit_all(folder)
    shutil.copy(notebook, folder / output)
    assert plan_run(notebook, {}).provenance["dirty"] is False


def test_a_machine_without_cpuinfo_is_described_all_the_same(monkeypatch):
    assert describe_machine() is describe_machine()
    monkeypatch.setattr(Path, "exists", lambda path: False)
    assert describe_machine.__wrapped__()["processor"]


PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=150)


@given(st.text(min_size=1), st.dictionaries(st.text(min_size=1, max_size=20), PLAIN | st.lists(PLAIN)))
@example("..", {})
@example("a/../b", {"backend": "../x"})
@example("", {"a": "\n"})
def test_a_title_is_safe_in_file_names(stem, parameters):
    declared = {name: Parameter(name, "Any", object) for name in parameters}
    assert re.fullmatch(r"[A-Za-z0-9_=,+-][A-Za-z0-9_.=,+-]{0,99}", make_title(stem, parameters, declared))


def test_a_title_says_what_is_not_at_its_default(tmp_path):
    notebook = write_notebook(tmp_path / "experiments" / "small.ipynb")
    given = {"seed": 3, "rate": 1e-5, "sizes": [4, 5], "label": "x y/z", "share": 0.5, "fate": "well"}
    run = plan_run(notebook, given | {"backend": "tensorflow"})
    assert run.title == "small-tensorflow-seed=3,rate=1e-05,label=x_y_z,share=0.5,sizes=4,_5"
    assert run.name == "small-tensorflow"


def test_a_name_says_no_path(tmp_path):
    notebook = write_notebook(tmp_path / "experiments" / "small.ipynb", parameters="backend = 'qiskit'")
    run = plan_run(notebook, {"backend": "ibm/lagos\\1"})
    assert (run.name, run.title) == ("small-ibm_lagos_1", "small-ibm_lagos_1")


@pytest.mark.parametrize("name", ["a\\b.ipynb", "a\nb.ipynb", os.fsdecode(b"\xff.ipynb")])
def test_a_notebook_s_name_that_no_record_takes_is_refused(tmp_path, name):
    notebook = write_notebook(tmp_path / "experiments" / "small.ipynb").rename(tmp_path / name)
    with pytest.raises(ParameterError, match="name of valid Unicode"):
        plan_run(notebook, {})


# Values

DATES = (
    st.dates()
    | st.datetimes()
    | st.datetimes(timezones=st.just(UTC))
    | st.datetimes(timezones=st.integers(-82_800, 82_800).map(lambda s: timezone(timedelta(seconds=s))))
)
VALUES = st.recursive(
    PLAIN | DATES | st.integers(min_value=10**4990, max_value=10**5000),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text() | st.sampled_from(["$float", "$int", "$date", "$dict"]), inner, max_size=3
        )
    ),
)


@given(VALUES)
@example({"$float": "nan"})
@example({"$dict": {"$date": 3}})
@example(-0.0)
@example(2**63)
def test_values_survive_a_record_exactly(value):
    text = write_record(record_of(asked(), results={"value": encode(value, "value")}))
    again = decode(read_record(text)["results"])["value"]
    assert list(compare(value, again, "value")) == []
    assert decode(json.loads(text)["results"]).keys() == {"value"}


def test_numpy_results_become_plain_ones():
    encoded = encode({"a": np.float32(0.5), "b": np.arange(2), "c": (np.True_, np.inf)}, "x")
    assert encoded == {"a": 0.5, "b": [0, 1], "c": [True, {"$float": "inf"}]}


@pytest.mark.parametrize(
    "value",
    [
        *({1}, b"a", 1j, {1: 2}, "\ud800", {"\ud800": 1}, [object()]),
        *(np.datetime64("2026-01-31"), datetime(2026, 1, 31, tzinfo=ZoneInfo("Europe/Berlin"))),
        datetime(2026, 1, 1, tzinfo=timezone(timedelta(microseconds=1))),  # Python doesn't read it back
    ],
)
def test_what_a_record_cannot_keep_exactly_is_refused(value):
    with pytest.raises(TypeError, match=r"x must be numbers, strings \(of valid Unicode\), .*; got \w+"):
        encode(value, "x")


def test_a_figure_s_name_cannot_leave_its_folder():
    about = {"gradtricks": {"figure": "../a", "alt": ""}}
    output = nbformat.v4.new_output("display_data", data={"image/svg+xml": "<svg/>"}, metadata=about)
    node = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("", outputs=[output])])
    assert collect_figures(node) == {}


def test_recording_by_hand_prints(capsys):
    record(a=1)
    record_varying(seconds=0.123456, big=10**5000)
    assert capsys.readouterr().out == "a = 1\nseconds = 0.1235\nbig = an integer of 16,610 bits\n"
    with pytest.raises(ValueError, match="name must be lower-case letters"):
        record_figure("../a", None, alt="x")
    with pytest.raises(ValueError, match="alt must say what the figure 'a' shows"):
        record_figure("a", None, alt=" ")


# Runs


def test_a_run_is_recorded_and_not_done_again(run_it, notebook, store):
    label = "quotes \" and ' and \\ and\nlines; 雪"
    assert run_it(rate=float("inf")).parameters["rate"] == np.inf
    stored = run_it(seed=3, label=label)
    assert stored.status == "finished"
    assert stored.parameters | {"seed": 3, "label": label} == stored.parameters
    assert stored.results["third"] == 1 / 3
    assert stored.results["label"] == label
    assert np.isnan(stored.results["nothing"])
    assert stored.record["figures"] == {"sizes": "the sizes"}
    assert b"<svg" in collect_figures(stored.read_notebook())["sizes.svg"]
    inputs, origin = stored.record["inputs"], stored.record["provenance"]
    assert set(inputs["versions"]) == {"matplotlib"}, "what the cells import, and nothing of the lab's own"
    assert not any(name.startswith("gradtricks/lab/") for name in inputs["modules"])
    assert origin["threads"] == 1
    assert origin["cpu_s"] > 0
    assert origin["peak_memory_mib"] > 10
    assert "recording.report()" not in "".join(cell.source for cell in stored.read_notebook().cells)
    assert "output_path" not in stored.read_notebook().metadata.papermill
    written = Path(stored.location, "record.json").stat().st_mtime_ns
    assert run_it(seed=3, label=label) == stored
    assert Path(stored.location, "record.json").stat().st_mtime_ns == written
    assert Path(stored.location, "kernel.log").exists()


# As the library scrapbook shows what a notebook records with it.
GLUE = """\
from IPython.display import display
def glue(name, data, encoder="json"):
    scrap = {"name": name, "data": data, "encoder": encoder, "version": 1}
    about = {"scrapbook": {"name": name, "data": True, "display": False}}
    display({f"application/scrapbook.scrap.{encoder}+json": scrap}, metadata=about, raw=True)
"""


def test_what_scrapbook_records_is_a_result(write, store, kernels):
    values = {"loss": 0.5, "worst": float("nan"), "curve": [{"a": -float("inf")}], "a name": None}
    lines = "from math import inf, nan\nglue('loss', 1.0)\nglue('label', 'nan', 'text')\n"
    lines += "display('', metadata={'gradtricks': 3})\n"  # which isn't ours
    lines += "\n".join(f"glue({name!r}, {value!r})" for name, value in values.items())
    stored = execute_run(plan_run(write(f"{GLUE}{lines}"), {}), store, kernels)
    assert repr(stored.results) == repr({"loss": 0.5, "label": "nan"} | values)
    assert reproduce(stored, kernels).verdict == "identical"


@pytest.mark.parametrize(
    ("fate", "reason"),
    [("raise", "RuntimeError: as asked"), ("exit", "DeadKernelError"), ("twice", "recorded twice: seed")],
)
def test_a_failure_says_where_and_keeps_the_notebook(run_it, notebook, store, fate, reason):
    with pytest.raises(RunError) as caught:
        run_it(fate=fate)
    message, stored = str(caught.value), caught.value.stored
    assert reason in message
    assert f"fate = '{fate}'" in message
    assert str(notebook) in message
    where = {
        "raise": "in cell 7, line 2: raise RuntimeError",
        "exit": "in cell 7 (if fate ==",
        "twice": "after its last cell",
    }[fate]
    assert f"failed {where}" in message
    assert store.failure(plan_run(notebook, {"fate": fate})) == stored
    assert stored.status == "failed"
    assert reason in stored.record["error"]
    cells = stored.read_notebook().cells
    assert len(cells) > 7
    assert "recording.report()" not in cells[-1].source
    assert list(store.runs()) == [stored]
    assert list(Path(store.location, ".unfinished").iterdir()) == []
    again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301
    assert (str(again), again.stored) == (message, stored)
    with pytest.raises(StoreError, match=r"expected a finished run; got small-fate=.*, which failed"):
        reproduce(stored, None)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("raise ValueError('x' * 100_000)", "ValueError: x+…"),
        ("raise ValueError('\\ud800')", r"UnicodeEncodeError: 'utf-8' codec can't encode character '.ud800'"),
        ("record(a=1); record_varying(a=2)", "twice: a"),
        ("record(a={1, 2})", "TypeError: a must be numbers, .*; got set"),
        ("display({RESULTS_MIME: {'a': {'$float': 'x'}}}, raw=True)", "as record"),
        ("recording.report = lambda: None", "what the run used; got nothing"),
        (f"{GLUE}record(a=1)\nglue('a', 1)", "recorded twice: a"),
        (f"{GLUE}glue(['a'], 1)", r"expected a scrap's name and data; got {'data': 1, .*; remedy: call"),
        ("display({'application/scrapbook.scrap.json+json': {'name': 'a'}}, raw=True)", "got {'name': 'a'}"),
        ("display({'application/scrapbook.scrap.json+json': ['a', 1]}, raw=True)", r"got \['a', 1\]"),
        (
            "about = {'gradtricks': {'figure': '../a', 'alt': ''}}\n"
            "display({'image/svg+xml': ''}, metadata=about, raw=True)",
            "expected results and figures as record and record_figure write them",
        ),
        (
            "about = {'gradtricks': {'figure': 'a', 'alt': ''}}\n"
            "display({'image/png': 'x'}, metadata=about, raw=True)",
            "expected figure a as SVG or PNG; got none; remedy: call record_figure",
        ),
    ],
)
def test_what_a_notebook_does_wrong_is_its_own_failure(write, store, kernels, body, reason):
    imports = "from IPython.display import display\nfrom gradtricks.lab import recording\n"
    imports += "from gradtricks.lab.recording import RESULTS_MIME, record, record_varying\n"
    with pytest.raises(RunError, match=reason) as caught:
        execute_run(plan_run(write(imports + body), {}), store, kernels)
    assert len(str(caught.value)) < 5000
    assert list(store.runs()) == [caught.value.stored]


def broken(error):
    """Return kernels that can't even start."""
    return Mock(**{"run.side_effect": error})


@pytest.mark.parametrize(
    "error",
    [DeadKernelError("no process"), PermissionError(errno.EACCES, "denied", "/usr/bin/python"), OSError("?")],
)
def test_a_kernel_that_does_not_start_is_a_failure(notebook, store, error):
    run = plan_run(notebook, {})
    with pytest.raises(RunError, match="failed before its first cell") as caught:
        execute_run(run, store, broken(error))
    stored = store.failure(run)
    assert str(caught.value).endswith(f"  Kept in {stored.location}")
    with pytest.raises(StoreError, match="got none that can be read"):
        stored.read_notebook()
    assert (show(stored.location), stored.executed) == (stored, False)
    with pytest.raises(StoreError, match=r"expected a store .*; got: full; remedy: free some space"):
        execute_run(run, store, broken(OSError(errno.ENOSPC, "full")))


def test_a_run_fails_normally_without_an_installed_package(notebook, store, monkeypatch):
    installed, absent = describe_libraries(), Mock(side_effect=PackageNotFoundError("gradtricks"))
    monkeypatch.setattr("gradtricks.lab.runs.provenance.metadata.requires", absent)
    with pytest.raises(RunError) as caught:
        execute_run(plan_run(notebook, {}), store, broken(OSError("?")))
    versions = caught.value.stored.record["inputs"]["versions"]
    assert (
        installed.items() <= {canonicalize_name(name): version for name, version in versions.items()}.items()
    )


def test_a_process_that_forks_and_dies_fails_outside_cells(notebook, store, kernels, monkeypatch):
    monkeypatch.setattr("gradtricks.warm.servers._Server.fork", lambda *_: None)
    with pytest.raises(RunError, match=r"failed before its first cell\n  KernelLostError: ") as caught:
        execute_run(plan_run(notebook, {}), store, kernels)
    assert caught.value.stored.executed


@pytest.mark.parametrize("mistake", [TypeError("ours"), UnicodeDecodeError("utf-8", b"", 0, 1, "")])
def test_the_lab_s_own_mistake_fails_no_notebook(notebook, store, mistake):
    run = plan_run(notebook, {})
    checkpoints = Path(store.location, ".checkpoints", run.request)
    checkpoints.mkdir(parents=True)
    with pytest.raises(type(mistake)):
        execute_run(run, store, broken(mistake))
    assert list(store.runs()) == []
    assert list(Path(store.location, ".unfinished").iterdir()) == []
    assert checkpoints.exists(), "the next attempt goes on from there"


def test_a_notebook_that_is_edited_meanwhile_changes_nothing(write, store, kernels):
    run = plan_run(write("from gradtricks.lab import record\nrecord(a=1)"), {})
    edited = plan_run(write("from gradtricks.lab import record\nrecord(a=2)"), {})
    assert execute_run(run, store, kernels).results == {"a": 1}
    assert store.find(edited) is None
    assert execute_run(edited, store, kernels).results == {"a": 2}
    with pytest.raises(StoreError, match="got 2 called 'own'"):
        store.lookup("own")


def test_two_sweeps_do_not_meet_the_same_failure_twice(write, store, kernels, tmp_path):
    count = tmp_path / "count"
    run = plan_run(write(f"open({str(count)!r}, 'a').write('.')\nimport time; time.sleep(0.5); 1 / 0"), {})
    with ThreadPoolExecutor() as pool:
        both = [pool.submit(execute_run, run, store, kernels) for _ in range(2)]
    raised = [str(one.exception()) for one in both]
    assert count.read_text() == "."
    assert all("ZeroDivisionError" in message for message in raised)
    assert sum("failed in another process" in message for message in raised) == 1
    with pytest.raises(RunError, match="failed in cell 4"):
        execute_run(run, store, kernels)
    assert count.read_text() == ".."


def test_a_disk_that_fills_up_while_a_run_goes_on(write, kernels, tmp_path):
    with small_disk(tmp_path / "disk") as disk:
        store = Store(disk / "runs")
        run = plan_run(write("print('x' * 400_000)"), {})
        with pytest.raises(StoreError, match=f"expected a store .* at {disk}/runs; got: No space left"):
            execute_run(run, store, kernels)
        assert list(store.runs()) == []
        assert list(Path(store.location, ".unfinished").iterdir()) == []
        small = plan_run(write("print('x')"), {})
        assert execute_run(small, store, kernels) == store.find(small)


# Reruns


def experiment(write, tmp_path, recorded):
    """Write a notebook whose results come from a file, and return that file and the plan."""
    file = tmp_path / "results.json"
    file.write_text(json.dumps(recorded))
    body = f"import json\nfrom gradtricks.lab import record\nrecord(**json.load(open({str(file)!r})))"
    return file, plan_run(write(body), {"label": "it's", "rate": float("nan")})


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"a": 1.0, "b": [1, "x", None]}, {"a": 1.0, "b": [1, "x", None]}, ("identical", 4, [])),
        ({"a": []}, {"a": []}, ("identical", 1, [])),
        ({"a": 1.0}, {"a": 1.00001}, ("within tolerance", 1, ["results.a"])),
        ({"a": 1.0}, {"a": 1.000011}, ("different", 1, ["results.a"])),
        ({"n": {"b": [0, 0.5]}}, {"n": {"b": [0, 0.6]}}, ("different", 2, ["results.n.b.1"])),
        ({"a": 1, "b": 2}, {"a": 1}, ("different", 1, ["results.b"])),
        ({}, {}, ("nothing to compare", 0, [])),
    ],
)
def test_a_rerun_is_judged_value_by_value(write, store, kernels, tmp_path, before, after, expected):
    file, run = experiment(write, tmp_path, before)
    stored = execute_run(run, store, kernels)
    run.notebook.unlink()  # what was recorded is run again, whatever became of the notebook
    file.write_text(json.dumps(after))
    said = reproduce(stored, kernels)
    assert (said.verdict, said.count, [difference.name for difference in said.differences]) == expected
    assert (said.title, said.environment) == (stored.title, ())


def test_a_rerun_says_what_else_differs(run_it, kernels):
    stored = run_it()
    changed = deepcopy(stored.record)
    changed["inputs"]["versions"]["matplotlib"] = "0.1"
    changed["inputs"]["modules"]["gone.py"] = "0" * 64
    changed["provenance"]["processor"] = "another"
    said = reproduce(StoredRun(stored.location, changed), kernels)
    assert said.verdict == "identical"
    found = {each.name: (each.recorded, each.now) for each in said.environment}
    assert found == {
        "machine.processor": ("another", describe_machine()["processor"]),
        "versions.matplotlib": ("0.1", matplotlib.__version__),
        "modules.gone.py": ("0" * 64, ABSENT),
    }
    assert repr(ABSENT) == "nothing"


def test_a_rerun_needs_what_was_run(write, store, kernels):
    stored = execute_run(plan_run(write("1"), {}), store, kernels)
    path = Path(stored.location, "notebook.ipynb")
    node = nbformat.read(path, as_version=4)
    node.cells[-1].source = "# edited"
    nbformat.write(node, path)
    with pytest.raises(
        StoreError, match=r"expected the notebook that was run in .*; got one that was edited"
    ):
        reproduce(stored, kernels)


@given(VALUES, VALUES)
def test_a_value_equals_itself_and_differences_have_names(one, other):
    assert list(compare(one, one, "x")) == []
    for difference in compare(one, other, "x"):
        assert difference.name.startswith("x")
        assert difference.relative is None or difference.relative >= 0


@pytest.mark.parametrize(
    ("one", "other", "relative"),
    [
        (0.0, -0.0, 0.0),
        (1.0, 1, None),
        (1, True, None),
        (1.0, 1.5, 1 / 3),
        (-1e308, 1e308, 2.0),
        (1.0, float("nan"), float("inf")),
        (float("inf"), float("-inf"), float("inf")),
        ([1], (1,), None),
        ("a", None, None),
    ],
)
def test_what_differs_says_by_how_much(one, other, relative):
    (difference,) = compare(one, other, "x")
    assert difference.relative == pytest.approx(relative)


@pytest.mark.parametrize("fresh", [True, False])
def test_paths_that_a_notebook_adds_repeat_no_run(write, store, kernels, tmp_path, fresh):
    added = tmp_path / "added"
    (added / "peculiar-1.0.dist-info").mkdir(parents=True)
    (added / "peculiar.py").write_text("")
    (added / "peculiar-1.0.dist-info" / "METADATA").write_text("Name: peculiar\nVersion: 1.0\n")
    (added / "peculiar-1.0.dist-info" / "RECORD").write_text("peculiar.py,,\n")
    body = f"import sys\nfrom gradtricks.lab import record\nsys.path.append({str(added)!r})\nimport peculiar"
    notebook = write(body)
    with_metadata(notebook, {"fresh_kernel": fresh})
    run = plan_run(notebook, {})
    assert execute_run(run, store, kernels) == store.find(run)
