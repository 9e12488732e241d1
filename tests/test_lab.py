"""The lab, with real kernels: what is asked is checked, what is finished is kept, what fails says so."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import nbformat
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradtricks.lab.kernels import LOG, Kernels
from gradtricks.lab.pages import BuildError, build, plan_book, publish
from gradtricks.lab.recording import decode, encode, record, record_figure
from gradtricks.lab.runs import RunError, execute, plan_run
from gradtricks.lab.schema import ParameterError, check_parameters, parse_values, read_parameters
from gradtricks.lab.store import Store, read_record
from notebooks import BODY, write_notebook

GRADTRICKS = [sys.executable, "-m", "gradtricks.lab.cli"]


@pytest.fixture
def notebook(tmp_path):
    """Return the path of a small experiment in a project of its own."""
    return write_notebook(tmp_path / "experiments" / "small.ipynb")


@pytest.fixture(scope="module")
def kernels():
    """Keep warm processes from test to test."""
    with closing(Kernels(threads=2)) as kernels:
        yield kernels


@pytest.fixture
def run_it(notebook, tmp_path, kernels):
    """Return a function that plans and executes a run."""
    store, failures = Store(tmp_path / "runs"), tmp_path / "failed"
    return lambda **given: execute(plan_run(notebook, given), store, failures, kernels)


def test_parameters_are_read_with_type_default_and_meaning(notebook):
    declared = read_parameters(nbformat.read(notebook, as_version=4), "small.ipynb")
    assert list(declared) == ["backend", "seed", "rate", "label", "share", "sizes", "fate"]
    assert (declared["rate"].annotation, declared["rate"].default) == ("float", 0.1)
    assert declared["share"].meaning == "None takes all"


def test_all_that_is_wrong_is_said_at_once(notebook):
    wrong = {
        "sead": 1,
        "seed": "1",
        "rate": "fast",
        "backend": "jax",
        "label": 3,
        "sizes": [1, "2"],
        "share": True,
    }
    with pytest.raises(ParameterError) as caught:
        plan_run(notebook, wrong)
    lines = str(caught.value).splitlines()
    assert lines[0] == f"{notebook}: nothing was run."
    assert {line.partition(":")[0] for line in lines[1:]} == set(wrong)
    assert "seed: expected int (seeds nothing); got '1'" in lines
    assert "sead: unknown; the notebook takes backend, seed," in str(caught.value)


def test_values_from_the_command_line_are_read_by_their_type(notebook):
    texts = ["seed=3", "rate=1e-3", "label=1e-3", "share=null", "sizes=[4, 5]", "backend=tensorflow"]
    assert parse_values(notebook, texts) == {
        "seed": 3,
        "rate": 0.001,
        "label": "1e-3",
        "share": None,
        "sizes": [4, 5],
        "backend": "tensorflow",
    }
    with pytest.raises(ParameterError, match="expected name=value; got 'seed'"):
        parse_values(notebook, ["seed"])
    with pytest.raises(ParameterError, match="seed: given twice"):
        parse_values(notebook, ["seed=1", "seed=2"])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("seed = 0", "may hold only lines such as"),
        ("seed: int", "may hold only lines such as"),
        ("seed: Path = 0", "parameter seed: expected bool, int, float"),
        ("seed: int = 'a'", "parameter seed: its default doesn't fit its type"),
        ("seed: int = f()", "parameter seed: malformed node"),
        ("seed: int = (0", "the parameters cell can't be read"),
        ("seed: dict[str] = {}", "parameter seed: "),
    ],
)
def test_a_parameters_cell_that_cannot_be_read_says_why(tmp_path, source, message):
    with pytest.raises(ParameterError, match=message):
        plan_run(write_notebook(tmp_path / "experiments" / "odd.ipynb", parameters=source), {})


def test_a_notebook_without_parameters_cell_is_refused(tmp_path):
    path = tmp_path / "bare.ipynb"
    nbformat.write(nbformat.v4.new_notebook(), path)
    with pytest.raises(ParameterError, match="expected one cell tagged 'parameters'; got 0"):
        plan_run(path, {})


def test_what_is_no_notebook_is_refused_by_name(tmp_path):
    path = tmp_path / "torn.ipynb"
    path.write_text("{")
    with pytest.raises(
        ParameterError, match=r"expected a notebook at .*torn.ipynb; got a file that isn't one"
    ):
        plan_run(path, {})
    with pytest.raises(FileNotFoundError, match=r"expected a notebook at .*; got nothing there"):
        plan_run(tmp_path, {})


def test_null_is_none_where_none_is_allowed(tmp_path):
    path = write_notebook(
        tmp_path / "experiments" / "n.ipynb", parameters="a: str | None = 'x'\nb: str = 'x'"
    )
    assert parse_values(path, ["a=null", "b=null"]) == {"a": None, "b": "null"}


def test_an_int_is_a_float_and_a_bool_is_no_int(notebook):
    declared = read_parameters(nbformat.read(notebook, as_version=4), "small.ipynb")
    assert check_parameters(declared, {"rate": 1})["rate"] == 1.0
    with pytest.raises(ParameterError):
        check_parameters(declared, {"seed": True})


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(VALUES.filter(lambda value: not isinstance(value, dict) or "$float" not in value))
def test_results_survive_json_exactly(value):
    again = decode(json.loads(json.dumps(encode(value, "value"), allow_nan=False)))
    assert repr(again) == repr(value)


def test_numpy_results_become_plain_ones():
    encoded = encode({"a": np.float32(0.5), "b": np.arange(2), "c": (np.True_, np.inf)}, "x")
    assert encoded == {"a": 0.5, "b": [0, 1], "c": [True, {"$float": "inf"}]}
    with pytest.raises(TypeError, match=r"x must be numbers, strings, .*; got set"):
        encode({1}, "x")


def test_recording_by_hand_prints(capsys):
    record(a=1)
    assert "a = 1" in capsys.readouterr().out
    with pytest.raises(ValueError, match="name must be lower-case letters"):
        record_figure("../a", None, alt="x")
    with pytest.raises(ValueError, match="alt must say what the figure 'a' shows"):
        record_figure("a", None, alt=" ")


def test_a_run_is_recorded_and_not_done_again(run_it, notebook, tmp_path):
    assert decode(read_record(run_it(rate=float("inf")))["parameters"])["rate"] == np.inf
    label = "quotes \" and ' and \\ and\nlines; 雪"
    folder = run_it(seed=3, label=label)
    found = read_record(folder)
    assert found["status"] == "finished"
    assert found["parameters"] | {"seed": 3, "label": label} == found["parameters"]
    results = decode(found["results"])
    assert results["third"] == 1 / 3
    assert results["label"] == label
    assert np.isnan(results["nothing"])
    assert found["figures"] == {"sizes": "the sizes"}
    assert "lab/recording.py" in found["inputs"]["files"]
    assert found["inputs"]["versions"]["numpy"] == np.__version__
    assert found["provenance"]["threads"] == 2
    assert found["provenance"]["cpu_s"] > 0
    assert found["provenance"]["peak_memory_mib"] > 10
    written = (folder / "record.json").stat().st_mtime_ns
    assert run_it(seed=3, label=label) == folder
    assert (folder / "record.json").stat().st_mtime_ns == written

    # Another parameter, another text of the notebook, another file of the package: each is another run.
    store = Store(tmp_path / "runs")
    assert store.find("small", plan_run(notebook, {"seed": 4}).request) is None
    request = plan_run(notebook, {"seed": 3, "label": label}).request
    assert store.find("small", request) == folder
    found["inputs"]["files"]["lab/recording.py"] = "0" * 64
    (folder / "record.json").write_text(json.dumps(found))
    assert store.find("small", request) is None
    write_notebook(notebook, body=BODY + "# another comment\n")
    assert plan_run(notebook, {"seed": 3, "label": label}).request != request


@pytest.mark.parametrize("torn", ["", "{", "[]", '{"schema_version": 99}'])
def test_a_torn_record_is_not_believed(run_it, torn):
    folder = run_it()
    (folder / "record.json").write_text(torn)
    assert read_record(folder) is None
    assert run_it() == folder
    assert read_record(folder)["status"] == "finished"


@pytest.mark.parametrize(
    ("fate", "reason"),
    [("raise", "RuntimeError: as asked"), ("exit", "DeadKernelError"), ("twice", "recorded twice: seed")],
)
def test_a_failure_says_where_and_keeps_the_notebook(run_it, notebook, tmp_path, fate, reason):
    with pytest.raises(RunError) as caught:
        run_it(fate=fate)
    message = str(caught.value)
    assert reason in message
    assert f"fate = '{fate}'" in message
    assert str(notebook) in message
    where = "after its last cell" if fate == "twice" else "in cell 7 (if fate =="
    assert f"failed {where}" in message
    (kept,) = (tmp_path / "failed").glob("small-torch-*")
    assert len(nbformat.read(kept / "notebook.ipynb", as_version=4).cells) > 7
    assert json.loads((kept / "record.json").read_text())["status"] == "failed"
    assert list((tmp_path / "runs").glob("small-*")) == []
    assert list((tmp_path / "runs" / ".unfinished").glob("*/")) == []


def test_a_package_that_is_edited_meanwhile_spoils_the_run(run_it, monkeypatch):
    monkeypatch.setattr("gradtricks.lab.runs.package_digests", lambda: {"lab/recording.py": "0" * 64})
    with pytest.raises(
        RunError, match=r"edited while the notebook ran: .*lab/recording.py.*; remedy: run it again"
    ):
        run_it()


def command(*arguments, cwd):
    """Start the command line."""
    return subprocess.Popen(
        [*GRADTRICKS, *arguments], cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_the_command_line_refuses_before_it_starts(notebook, tmp_path):
    process = command("run", str(notebook), "-p", "sead=1", "-p", "rate=fast", cwd=tmp_path)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "sead: unknown" in errors
    assert "rate: expected float (per step); got 'fast'" in errors
    assert not (tmp_path / "_build").exists()
    process = command("run", "none.ipynb", cwd=tmp_path)
    assert "none.ipynb" in process.communicate(timeout=60)[1]
    assert process.returncode == 2
    process = command("book", cwd=tmp_path / "experiments")
    assert "remedy: run in the project's root" in process.communicate(timeout=60)[1]
    assert process.returncode == 2


def test_a_failure_on_the_command_line(notebook, tmp_path):
    process = command("run", str(notebook), "-p", "fate=raise", cwd=tmp_path)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "RuntimeError: as asked" in errors
    assert "Traceback" not in errors


def test_two_at_once_end_as_one(notebook, tmp_path):
    notebook = write_notebook(
        notebook, body=BODY + "from pathlib import Path\nPath('count').open('a').write('.')\n"
    )
    both = [command("run", str(notebook), cwd=tmp_path) for _ in range(2)]
    for process in both:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    assert len(list((tmp_path / "_build" / "runs").glob("small-*"))) == 1
    assert (tmp_path / "count").read_text() == "."


def test_a_driver_that_is_killed_leaves_nothing_that_could_be_believed(notebook, tmp_path):
    process = command("run", str(notebook), "-p", "fate=sleep", cwd=tmp_path)
    saved = tmp_path / "_build" / "runs" / ".unfinished"
    deadline = time.monotonic() + 60
    while not (saved.exists() and list(saved.glob("*/notebook.ipynb"))):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    store = Store(tmp_path / "_build" / "runs")
    assert store.find("small", plan_run(notebook, {"fate": "sleep"}).request) is None
    after = command("run", str(notebook), cwd=tmp_path)
    _, errors = after.communicate(timeout=120)
    assert after.returncode == 0, errors
    assert list(saved.glob("*/")) == []
    assert store.find("small", plan_run(notebook, {}).request) is not None


def test_pages_show_one_framework_and_where_it_came_from(run_it, tmp_path):
    pages = tmp_path / "book" / "experiments"
    folder = run_it()
    publish({"small-torch": folder}, pages)
    node = nbformat.read(pages / "small-torch.ipynb", as_version=4)
    sources = [cell.source for cell in node.cells]
    assert sources[0].startswith("# A small experiment (PyTorch)\n")
    assert "mine = 'torch'" in sources
    assert "mine = 'tensorflow'" not in sources
    assert sources[-1].endswith("```{run-card} small/torch\n```")
    assert "gradtricks.lab.recording.report()" not in "".join(sources)
    assert (pages / "small-torch" / "sizes.svg").read_text().count("<svg") == 1
    assert json.loads((pages / "small-torch.json").read_text()) == read_record(folder)

    written = {path: path.stat().st_mtime_ns for path in pages.rglob("*") if path.is_file()}
    (pages / "stale-torch.ipynb").write_text("{}")
    publish({"small-torch": folder}, pages)
    assert {path: path.stat().st_mtime_ns for path in pages.rglob("*") if path.is_file()} == written


def test_the_book_is_planned_once_for_each_backend(notebook):
    assert [run.name for run in plan_book(notebook.parent)] == ["small-torch", "small-tensorflow"]


def test_a_build_with_a_warning_leaves_the_old_book_whole(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "_config.yml").write_text("title: small\nauthor: nobody\nonly_build_toc_files: true\n")
    book, site = Path("book"), Path("_build/html")
    book.mkdir()
    (book / "_toc.yml").write_text("format: jb-book\nroot: index\n")
    (book / "index.md").write_text("# First\n")
    build(book, site)
    assert "First" in (site / "index.html").read_text()
    (book / "index.md").write_text("# Second\n\n[nowhere](nowhere.md)\n")
    with pytest.raises(BuildError, match=r"(?s)nowhere.*The book wasn't replaced"):
        build(book, site)
    assert "First" in (site / "index.html").read_text()
    site.rename(site.with_name("html.old"))  # as if killed between the renames
    with pytest.raises(BuildError):
        build(book, site)
    assert "First" in (site / "index.html").read_text()
    (book / "index.md").write_text("# Third\n")
    build(book, site)
    assert "Third" in (site / "index.html").read_text()
    assert sorted(path.name for path in site.parent.iterdir()) == ["html"]


# Warm kernels


def warm_and_fresh(tmp_path, kernels, *sources):
    """Run cells in a fork and in a fresh kernel, and return both notebooks."""
    for name, fresh in (("warm", False), ("fresh", True)):
        cells = [nbformat.v4.new_code_cell(source) for source in sources]
        metadata = {
            "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
            "gradtricks": {"fresh_kernel": fresh},
        }
        source = nbformat.v4.new_notebook(cells=cells, metadata=metadata)
        kernels.run(source, {}, tmp_path / f"{name}.ipynb")
        yield nbformat.read(tmp_path / f"{name}.ipynb", as_version=4)


def shown(node):
    """Return what the cells show, without what differs by design: the lab's report and places in memory."""
    return [
        [{k: v for k, v in output.items() if k != "traceback"} for output in cell.get("outputs", [])]
        for cell in node.cells[:-1]
    ]


SHOWS = """\
import sys
from IPython.display import HTML, clear_output, display
print("one", flush=True); print("two", file=sys.stderr, flush=True); print("three", end="")
display(HTML("<b>four</b>"), metadata={"five": 6})
7
"""
UPDATES = """\
from IPython.display import clear_output
handle = display("old", display_id=True)
handle.update("new")
print("gone")
clear_output()
print("stays")
"""
DRAWS = "import matplotlib.pyplot as plt\nplt.plot([0, 1])\nplt.gca().get_title()"


@pytest.mark.parametrize("source", [SHOWS, UPDATES, DRAWS, "print('x' * 200_000)", "%pwd", "_ = 3"])
def test_a_fork_shows_what_a_fresh_kernel_shows(tmp_path, kernels, source):
    warm, fresh = warm_and_fresh(tmp_path, kernels, source, "_")
    assert shown(warm) == shown(fresh)
    assert [cell.execution_count for cell in warm.cells] == [cell.execution_count for cell in fresh.cells]


def test_a_fork_computes_what_a_fresh_kernel_computes(tmp_path, kernels):
    source = (
        "import numpy as np\nx = np.random.default_rng(0).normal(size=(300, 300))\n"
        "for _ in range(20):\n    x = np.tanh(x @ x / 300)\nx.sum().hex()"
    )
    warm, fresh = warm_and_fresh(tmp_path, kernels, source)
    assert shown(warm) == shown(fresh)


LEAKS = """\
import builtins, os, sys, numpy as np
import matplotlib.pyplot as plt
before = [os.environ.get("LEAK"), hasattr(builtins, "leak"), "leak" in sys.modules, "/leak" in sys.path]
before += [plt.rcParams["lines.linewidth"], os.getcwd() == "/", np.geterr()["over"]]
drawn = np.random.random()
os.environ["LEAK"] = "1"; builtins.leak = 1; sys.modules["leak"] = os; sys.path.append("/leak")
plt.rcParams["lines.linewidth"] = 99; np.seterr(over="raise"); os.chdir("/")
before
"""


def test_nothing_leaks_from_run_to_run(tmp_path, kernels):
    first, second = (next(warm_and_fresh(tmp_path, kernels, LEAKS, "drawn")) for _ in range(2))
    assert shown(first)[0] == shown(second)[0]
    assert shown(first)[1] != shown(second)[1], "two runs drew the same unseeded number"


def test_what_a_run_started_ends_with_it(tmp_path, kernels):
    source = "import subprocess\nchild = subprocess.Popen(['sleep', '1000'])\nchild.pid"
    warm = next(warm_and_fresh(tmp_path, kernels, source))
    child = int(warm.cells[0].outputs[0].data["text/plain"])
    deadline = time.monotonic() + 10
    while Path(f"/proc/{child}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{child}").exists()


def test_a_fork_that_dies_leaves_the_next_one_alone(tmp_path, kernels):
    dying = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("import os; os.abort()")])
    with pytest.raises(RuntimeError, match="Kernel died"):
        kernels.run(dying, {}, tmp_path / "dying.ipynb")
    statuses = [c.metadata.papermill.status for c in nbformat.read(tmp_path / "dying.ipynb", 4).cells]
    assert statuses[0] == "failed"
    warm = next(warm_and_fresh(tmp_path, kernels, "1 + 1"))
    assert warm.cells[0].outputs[0].data["text/plain"] == "2"


def test_what_libraries_print_goes_to_the_log(tmp_path, kernels):
    next(warm_and_fresh(tmp_path, kernels, "import os; os.write(2, b'a library speaks')"))
    assert "a library speaks" in (tmp_path / LOG).read_text()
