"""One framework a process: what keeps pytest to it, and that it can fail."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gradtricks.lab.commands.publishing import plan_book
from gradtricks.lab.notebooks.injection import inject
from gradtricks.lab.runs.kernels import _modules_of

FRAMEWORKS = {"torch", "tensorflow"}
ROOT = Path(__file__).resolve().parents[1]
CONFTEST = ROOT / "conftest.py"

IMPORTS_BOTH = """
import sys

def test_with_both_frameworks():
    sys.modules["torch"] = sys.modules["tensorflow"] = sys

def test_after_it():
    pass
"""
COLLECTS_BOTH = f"""{IMPORTS_BOTH}
test_with_both_frameworks()
"""
ONE_EACH = """
import os
import sys
from pathlib import Path

import pytest

def note(name):
    Path(__file__).with_name(name).write_text(str(os.getpid()))

@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_what_has_one_even_if_its_name_says_torch(framework):
    sys.modules[framework] = sys
    note(framework)

def test_what_has_none():
    note("none")

@pytest.mark.skip(reason="nothing to see; come back later")
def test_what_is_skipped_in_torch():
    pass
"""


@pytest.fixture
def run(tmp_path):
    """Return what runs pytest on some code, as it runs here, in processes of their own."""

    shutil.copy(CONFTEST, tmp_path)
    (tmp_path / "pytest.ini").touch()

    def run(code, *arguments):
        (tmp_path / "test_code.py").write_text(code)
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
        return subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path)

    return run


@pytest.mark.parametrize("chosen", ["--framework=torch", "--framework=tensorflow"])
def test_a_test_that_imports_the_other_framework_fails(run, chosen):
    ended = run(IMPORTS_BOTH.replace("both_frameworks", chosen.partition("=")[2]), chosen)
    other = "torch" if chosen.endswith("tensorflow") else "tensorflow"
    assert ended.returncode == 1, ended.stdout
    assert f"this test imported {other}; remedy: have one of them in its name" in ended.stdout


def test_collecting_both_frameworks_fails(run):
    ended = run(COLLECTS_BOTH, "--framework=torch")
    assert ended.returncode == pytest.ExitCode.USAGE_ERROR
    assert "collecting the tests imported tensorflow too; remedy: import it in a test" in ended.stderr


@pytest.mark.parametrize("workers", [0, 1])
def test_each_framework_has_a_process_and_skips_come_last(run, tmp_path, workers):
    ended = run(ONE_EACH, f"--numprocesses={workers}")
    assert ended.returncode == 0, ended.stdout
    torch, tensorflow, none = ((tmp_path / name).read_text() for name in ("torch", "tensorflow", "none"))
    assert torch != tensorflow == none
    assert ended.stdout.splitlines()[-1] == "1 skipped: nothing to see; come back later"


@pytest.mark.parametrize(("failing", "status"), [("assert False", 1), ("os.abort()", -signal.SIGABRT % 256)])
def test_what_fails_with_either_framework_fails(run, failing, status):
    for name in FRAMEWORKS:
        assert run(f"import os\ndef test_of_{name}():\n    {failing}").returncode == status


# Runs of notebooks


def test_no_process_that_forks_for_the_book_has_both_frameworks():
    specs = plan_book(ROOT / "experiments")
    preloaded = {
        spec.title: FRAMEWORKS & {*_modules_of(inject(spec.source, spec.parameters))} for spec in specs
    }
    assert len(preloaded) > 50
    assert set().union(*preloaded.values()) == FRAMEWORKS
    assert [title for title, found in preloaded.items() if len(found) > 1] == []


def with_both(records):
    """Return the names of the runs that had both frameworks, by what they say they used."""
    return [record["name"] for record in records if {*record["inputs"]["versions"]} >= FRAMEWORKS]


def test_no_run_of_the_book_has_had_both_frameworks():
    laid_out = (json.loads(path.read_text()) for path in (ROOT / "book" / "experiments").glob("*.json"))
    records = [record for record in laid_out if record.get("status") == "finished"]
    if not records:
        pytest.skip("the book hasn't been built; `make book` builds it")
    assert with_both(records) == []


def test_a_run_that_has_had_both_is_found():
    records = [
        {"name": name, "inputs": {"versions": {**dict.fromkeys(found, "1")}}}
        for name, found in (("one", ["torch"]), ("both", FRAMEWORKS))
    ]
    assert with_both(records) == ["both"]
