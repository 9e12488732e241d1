"""The inputs of a run: which sources it read, what they mean, and whether it has to be done again."""

import json
import subprocess
import sys
from textwrap import dedent

import pytest

from gradtricks.lab.identity import PACKAGE, PYTHON, Installed, anything_near, inputs_of, meaning_of
from gradtricks.lab.runs.execution import RunError, execute_run
from gradtricks.lab.runs.planning import plan_run
from notebooks import write_notebook
from sweeping import with_path

SOURCE = b'''\
"""A module."""
import numpy as np
from scipy import stats as other

def double(x: int) -> int:
    """Twice as much."""
    return 2 * x

class Settings:
    """The options."""
    rate: float = 0.1
'''


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        (b'"""A module."""\n', b"", True),
        (b"return 2 * x", b"# twice\n    return (2   *   x)", True),
        (b"x: int) -> int", b"x: float)", True),
        (b'    """Twice as much."""\n', b'    """Doubled."""\n', True),
        (b"rate: float", b"rate: int", True),
        (b"2 * x", b"3 * x", False),
        (b"2 * x", b"2.0 * x", False),
        (b"rate: float = 0.1", b"rate: float = 0.2", False),
        (b"rate: float = 0.1", b"rate: float", False),
        (b"def double", b"def twice", False),
        (b"import numpy as np", b"import jax.numpy as np", False),
    ],
)
def test_only_what_may_change_a_result_changes_the_meaning(old, new, same):
    assert old in SOURCE
    assert (meaning_of(SOURCE.replace(old, new)).digest == meaning_of(SOURCE).digest) == same


def test_a_function_of_a_docstring_only_keeps_its_meaning():
    assert meaning_of(b'def f():\n    """A."""') == meaning_of(b'def f():\n    """B."""')


def test_sources_that_are_no_python_mean_their_bytes():
    assert meaning_of(b"a = (").digest != meaning_of(b"a = ( ").digest


def test_imports_are_those_of_cells_and_sources(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_bytes(SOURCE)
    versions = {
        name: {name: "1.0"} for name in ("numpy", "scipy", "torch", "jax", "yaml", "rich", "gradtricks")
    }
    cells = [
        "%matplotlib inline\nimport yaml as y, torch.nn  # and jax",
        "  from rich.table import Table\n!ls",
    ]
    read = named(tmp_path, "import mine")
    found = inputs_of([*cells, "from gradtricks.torch import scale_gradient"], read, versions)
    assert found["versions"] == dict.fromkeys(["numpy", "rich", "scipy", "torch", "yaml"], "1.0")
    assert found["modules"] == {"mine.py": meaning_of(SOURCE).digest}
    assert found["python"] == PYTHON


def named(folder, program):
    """Run a program in a folder, in a process that watches its sources; return what it read."""
    start = (
        "import sys\nsys.path.insert(0, '')\nfrom gradtricks.lab.identity import SOURCES\nSOURCES.watch()\n"
    )
    end = "\nimport json\nsys.stdout.write(json.dumps(SOURCES.named()))"
    done = subprocess.run(
        [sys.executable, "-c", start + dedent(program) + end],
        cwd=folder,
        env=with_path(),
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("program", "read"),
    [
        ("import one", {"one.py"}),
        ("import one\nimport one", {"one.py"}),
        ("import importlib\nimportlib.import_module('o' + 'ne')", {"one.py"}),
        (
            """
            from importlib.util import module_from_spec, spec_from_file_location
            spec = spec_from_file_location("any", "sub/one.py")
            spec.loader.exec_module(module_from_spec(spec))
            import one
            """,
            {"one.py", "sub/one.py"},
        ),
        ("exec(open('one.py').read())", {"one.py"}),
        ("import runpy\nrunpy.run_path('one.py')", {"one.py"}),
        ("import space.inner", {"space/inner.py"}),
        ("if False:\n    import one", set()),
        ("try:\n    import nowhere\nexcept ImportError:\n    import one", {"one.py"}),
        ("open('new.py', 'w').write('a = 1')\nimport new", set()),
        ("sys.path.append('sub')\nimport deep", {"sub/deep.py"}),
        ("import json.tool, numpy, yaml", set()),
        (
            "import gradtricks.reference.scaling",
            {"gradtricks/reference/__init__.py", "gradtricks/reference/scaling.py"},
        ),
        ("import gradtricks.lab.encoding", set()),
    ],
)
def test_every_way_to_read_a_source_is_seen(tmp_path, program, read):
    for name in ("one.py", "sub/one.py", "sub/deep.py", "space/inner.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"name = {name!r}")
    found = named(tmp_path, program)
    assert read <= found.keys()
    assert all(name.startswith("gradtricks/") for name in found.keys() - read)
    assert not any(name.startswith("gradtricks/lab/") for name in found)


def test_a_source_edited_after_import_never_matches_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.py").write_text("a = 1")
    read = named(tmp_path, "import one\nopen('one.py', 'w').write('a = 2')")
    inputs = inputs_of([], read, {})
    assert not Installed().matches(inputs)
    assert inputs["modules"]["one.py"] not in {meaning_of(b"a = 1").digest, meaning_of(b"a = 2").digest}


def test_python_and_versions_count():
    inputs = inputs_of(["import numpy"], {}, {"numpy": {"numpy": "0.1"}})
    assert not Installed().matches(inputs)
    assert Installed().matches(inputs | {"versions": {}})
    assert not Installed().matches(inputs | {"versions": {}, "python": "3.0"})


def test_anything_near_a_notebook_may_be_why_it_fails(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "books").mkdir()
    for name in ("here.py", "books/beside.py"):
        (tmp_path / name).write_text("a = 1")
    found = anything_near(tmp_path / "books" / "small.ipynb")
    assert {"here.py", "books/beside.py", "gradtricks/torch/scaling.py"} <= found.keys()
    assert not any(name.startswith("gradtricks/lab/") for name in found)
    assert PACKAGE.name == "gradtricks"


PARAMETERS = 'rate: float = 0.1  # per step\nfate: str = "well"  # how it ends'
BODY = """\
from gradtricks.lab import record
import helper
record(loss=helper.loss(rate))
"""
HELPER = '''\
def loss(rate):
    """Return it."""
    return 2 * rate
'''


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Return the folder of somebody's project, in which one works."""
    monkeypatch.chdir(tmp_path)
    write_notebook(tmp_path / "small.ipynb", PARAMETERS, BODY)
    (tmp_path / "helper.py").write_text(HELPER)
    return tmp_path


def test_a_run_is_repeated_after_a_module_means_otherwise(project, store, kernels):
    def run():
        return execute_run(plan_run(project / "small.ipynb", {}), store, kernels)

    first = run()
    assert first.record["inputs"]["modules"] == {"helper.py": meaning_of(HELPER.encode()).digest}
    (project / "helper.py").write_text(HELPER.replace("Return it.", "Return the loss."))
    assert run().record == first.record
    (project / "helper.py").write_text(HELPER.replace("2 *", "3 *"))
    second = run()
    assert (first.results["loss"], second.results["loss"]) == (0.2, 0.1 * 3)


def test_a_run_with_a_module_edited_meanwhile_is_dirty(project, store, kernels):
    edit = "\nfrom pathlib import Path\nPath('helper.py').write_text('def loss(rate): return 0.0')"
    write_notebook(project / "small.ipynb", PARAMETERS, BODY + edit)
    stored = execute_run(plan_run(project / "small.ipynb", {}), store, kernels)
    assert (stored.results["loss"], stored.record["provenance"]["dirty"]) == (0.2, True)
    assert store.find(plan_run(project / "small.ipynb", {})) is None


def test_a_failure_is_retried_once_its_module_is_mended(project, store, kernels):
    (project / "helper.py").write_text("def loss(rate):\n    raise ValueError('as asked')")
    planned = plan_run(project / "small.ipynb", {})
    with pytest.raises(RunError):
        execute_run(planned, store, kernels)
    assert store.failure(planned)
    (project / "helper.py").write_text(HELPER)
    assert store.failure(planned) is None


def test_text_and_tags_are_no_part_of_a_request(project):
    import nbformat  # as the lab does

    before = plan_run(project / "small.ipynb", {}).request
    node = nbformat.read(project / "small.ipynb", as_version=4)
    node.cells[0].source = "# Another text"
    node.cells[3].metadata["tags"] = ["hide-input"]
    nbformat.write(node, project / "small.ipynb")
    assert plan_run(project / "small.ipynb", {}).request == before
    node.cells[3].source += "\n1"
    nbformat.write(node, project / "small.ipynb")
    assert plan_run(project / "small.ipynb", {}).request != before
