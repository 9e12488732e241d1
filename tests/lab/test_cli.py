"""The commands, each as a process of its own: what they show, what they refuse, and how they exit."""

import ast
import csv
import io
import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import nbformat
import pytest
import typer.main
from rich.console import Console
from typer.testing import CliRunner

import gradtricks.lab
from gradtricks.book.building import build_book
from gradtricks.cli import app  # all commands, those that play too
from gradtricks.lab.commands.terminal import table
from gradtricks.lab.commands.views import summary_of, write
from gradtricks.lab.results.grouping import summarize_results
from gradtricks.lab.results.tables import tabulate
from gradtricks.lab.runs.execution import RunError
from gradtricks.lab.runs.planning import plan_run
from gradtricks.lab.storage.store import Store
from gradtricks.lab.sweeps.sweep import freeze, read_sweep
from notebooks import write_notebook
from sweeping import execute_all, wait_for
from synthetic import make_run

pytestmark = pytest.mark.usefixtures("warm")
ROOT = Path(__file__).resolve().parents[2]
GRADTRICKS = [sys.executable, "-m", "gradtricks.cli"]
COMMANDS = sorted(typer.main.get_command(app).commands)

PARAMETERS = """\
seed: int = 0  # seeds nothing
rate: float = 0.1  # per step
label: str = "[red]a[/red] :smile:"  # any text
fate: Literal["well", "raise"] = "well"  # how it ends
"""
BODY = """\
import time
from pathlib import Path
from gradtricks.lab import record, record_varying
while Path("hold").exists():
    time.sleep(0.01)
record(loss=rate + seed, label=label)
record_varying(seconds=time.time())
if fate == "raise":
    raise RuntimeError("as asked")
"""
SWEEP = """\
notebook: small.ipynb
title: A small sweep
shown: [results.loss]
grid: {rate: [0.1, 0.2]}
seeds: 2
"""


def start(*arguments, cwd, **environment):
    """Start a command."""
    return subprocess.Popen(
        [*GRADTRICKS, *arguments],
        cwd=cwd,
        env={**os.environ, "COLUMNS": "200", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def command(*arguments, cwd, **environment):
    """Run a command; return how it exited and what it said."""
    process = start(*arguments, cwd=cwd, **environment)
    said, errors = process.communicate(timeout=120)
    assert "Traceback" not in errors
    return process.returncode, said, errors


@pytest.fixture
def invoke(monkeypatch):
    """Return a function that runs a command in this process, sees how it exits, and returns what it said."""

    def invoke(*arguments, cwd, exits=0):
        monkeypatch.chdir(cwd)
        runner = CliRunner(env={"COLUMNS": "200"})
        answer = runner.invoke(app, list(arguments), catch_exceptions=False)
        assert answer.exit_code == exits, answer.output
        return answer.stdout, answer.stderr

    return invoke


def write_project(folder, sweep=SWEEP):
    """Write a project with one small experiment and a sweep of it."""
    write_notebook(folder / "experiments" / "small.ipynb", parameters=PARAMETERS, body=BODY)
    (folder / "experiments" / "small.sweep.yaml").write_text(sweep)
    return folder


@pytest.fixture
def project(tmp_path):
    """Return the folder of a project in which nothing has been run."""
    return write_project(tmp_path)


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """Return the folder of a project whose sweep has been run, and what the command said."""
    folder = write_project(tmp_path_factory.mktemp("swept"))
    imports = {"PYTHONPROFILEIMPORTTIME": "1"}  # which it names on standard error
    return folder, command("sweep", "experiments/small.sweep.yaml", cwd=folder, **imports)


# Help


def test_the_help_names_every_command_and_every_exit_code(tmp_path, invoke):
    said, _ = invoke("--help", cwd=tmp_path)
    assert [name for name in COMMANDS if f"│ {name} " not in said] == []
    assert re.findall(r"^   (\d+)  ", said, re.MULTILINE) == ["0", "1", "2", "130"]


def test_the_help_of_each_command_shows_examples_that_parse(tmp_path, invoke):
    for name in COMMANDS:
        _, _, manual = invoke(name, "--help", cwd=tmp_path)[0].partition("Examples")
        shown = [line.strip() for line in manual.splitlines() if line.strip().startswith("gradtricks ")]
        assert shown
        for line in shown:
            parse(shlex.split(line))


def test_the_help_waits_for_nothing_heavy():
    heavy = "('IPython', 'distributed', 'nbformat', 'pandas', 'papermill', 'pydantic', 'sphinx')"
    code = f"""
import sys
from gradtricks.cli import app
try:
    app(["--help"])
except SystemExit:
    print([name for name in {heavy} if name in sys.modules])
"""
    shown = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert "Usage: " in shown
    assert shown.splitlines()[-1] == "[]"


def parse(words):
    """Parse a command line as the program would, and stop before anything is done."""
    group = typer.main.get_command(app)
    context = group.make_context("gradtricks", words[1:])
    name, found, rest = group.resolve_command(context, context._protected_args + context.args)
    return found.make_context(name, rest, parent=context)


def typed(text):
    """Return the commands of a text: lines of its shell blocks, and what stands between backquotes."""
    for block in re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        line = ""
        for part in block.replace("\\\n", " ").splitlines():
            line = f"{line} {part}".strip()
            try:
                words = shlex.split(line, comments=True)
            except ValueError:  # a quotation that goes on in the next line
                continue
            line = ""
            if words[:1] == ["gradtricks"]:
                yield words
    yield from (shlex.split(line) for line in re.findall(r"(?<!`)`(gradtricks [^`]+)`", text))


@pytest.mark.parametrize("path", ["README.md", "CONTRIBUTING.md", "book/sweeps.md"])
def test_commands_that_are_written_down_exist(path):
    lines = list(typed((ROOT / path).read_text()))
    assert lines
    for words in lines:
        try:
            parse(words)
        except Exception as error:  # typer keeps its own copy of click's exceptions
            assert type(error).__name__ == "MissingParameter", (words, error)  # noqa: PT017


def test_the_check_of_commands_can_fail():
    with pytest.raises(Exception, match="--sead"):
        parse(shlex.split("gradtricks run a.ipynb --sead 3"))
    with pytest.raises(Exception, match="swep"):
        parse(shlex.split("gradtricks swep a.ipynb"))


def test_the_sweeps_of_the_chapter_are_read(tmp_path):
    shutil.copy(ROOT / "experiments" / "unrolling.ipynb", tmp_path)
    chapter, planned = (ROOT / "book" / "sweeps.md").read_text(), []
    path = tmp_path / "chapter.sweep.yaml"
    for block in re.findall(r"(?s)(?<=\n```yaml\n).*?(?=\n```)", chapter):
        path.write_text(block)
        planned.append(gradtricks.lab.read_sweep(path))
    assert [len(each.specs) for each in planned] == [50, 15]


# The package


def test_a_notebook_that_records_imports_nothing_else_of_the_lab():
    code = (
        "import sys\n"
        "from gradtricks.lab import checkpoint_folder, record, record_figure, record_file, record_varying\n"
        "from gradtricks.lab import use_style\n"
        "print(sorted(name for name in sys.modules if name.startswith('gradtricks.lab')))"
    )
    said = subprocess.check_output([sys.executable, "-c", code], text=True)
    modules = ("encoding", "figures", "identity", "labels", "recording")
    assert ast.literal_eval(said) == ["gradtricks.lab", *(f"gradtricks.lab.{name}" for name in modules)]


def test_every_exported_name_is_there():
    assert [name for name in gradtricks.lab.__all__ if not callable(getattr(gradtricks.lab, name))] == []


# Look


def test_list_shows_experiments_runs_and_sweeps(swept, invoke):
    said, _ = invoke("list", cwd=swept[0])
    _, row, sweep = said.splitlines()
    assert row.split() == ["experiments/small.ipynb", "A", "small", "experiment", "4"]
    assert sweep.split() == ["experiments/small.sweep.yaml"]


def test_what_cannot_be_read_hides_nothing_of_the_list(project, invoke):
    folder = project / "experiments"
    (folder / "broken.ipynb").write_text("{}")
    (folder / "broken.sweep.yaml").write_text("seeds: [")
    for name in ("folder.ipynb", "folder.sweep.yaml"):
        (folder / name).mkdir()
    _, *rows = invoke("list", cwd=project)[0].splitlines()
    begin = ["broken.ipynb expected a notebook", "small.ipynb A small", "broken.sweep.yaml while parsing"]
    said = [" ".join(row.split()[:3]) for row in rows if row.startswith("experiments/")]
    assert said == [f"experiments/{words}"[: len(line)] for words, line in zip(begin, said, strict=True)]


def test_describe_shows_type_default_and_meaning_as_they_are(project, invoke):
    path = project / "experiments" / "small.ipynb"
    node = nbformat.read(path, 4)
    node.metadata["gradtricks"] = {"expected_s": 7, "threads": 2, "alone": True}
    nbformat.write(node, path)
    said, _ = invoke("describe", "experiments/small.ipynb", cwd=project)
    assert "about 7 s a run, 2 threads a run, nothing else runs meanwhile" in said
    assert "'[red]a[/red] :smile:'  any text" in said
    assert "Literal['well', 'raise']" in said


# Notebooks that know nothing of the lab: those that papermill has for its own tests

PAPERMILLS = Path(find_spec("papermill").origin).parent / "tests" / "notebooks"
WHOLE = {"blank-vscode", "nb_version_4.4", "no_parameters", "read_check", "report_mode_test"}
WHOLE |= {"result_no_exec", "s3-simple_notebook", "simple_execute", "sysexit", "sysexit0", "systemexit"}
WHOLE |= {"test_notebooknode_io"}
FAILING = {  # as they are meant to
    "broken": "SyntaxError",
    "broken1": "AssertionError",
    "broken2": "ImportError",  # of a name that IPython has no more
    "line_magic_error": "UsageError",
    "sysexit1": "SystemExit",
}
REFUSED = {  # of which papermill warns, or which it takes without a value
    "complex_parameters": "the parameters cell can't be read: line 14",  # whose last line is ``= 2``
    "notimplemented_translator": "expected a notebook for this Python's kernel; got one for 'r'",
}
ELSEWHERE = {
    "binder",  # calls papermill in the folder of its sources
    "gcs-simple_notebook",  # sleeps for 14 seconds
    "keyboard_interrupt",  # sleeps until somebody interrupts it
    "test_autosave",  # sleeps for 2.5 seconds
    "test_logging",  # draws with ggplot, which today's pandas can't
}


@pytest.fixture(scope="module")
def foreign(tmp_path_factory):
    """Return a folder of papermill's notebooks, one also with a space in its name."""
    folder = tmp_path_factory.mktemp("foreign")
    for path in PAPERMILLS.rglob("*.ipynb"):
        shutil.copy(path, folder)
    shutil.copy(folder / "report_mode_test.ipynb", folder / "a report.ipynb")
    (folder / "check.txt").touch()  # that one of them looks for where it runs
    return folder


def test_no_notebook_of_papermill_is_forgotten():
    assert {path.stem for path in PAPERMILLS.rglob("*.ipynb")} == {*WHOLE, *FAILING, *REFUSED, *ELSEWHERE}


def test_papermill_s_notebooks_finish_or_fail_as_with_papermill(foreign, monkeypatch):
    monkeypatch.chdir(foreign)
    specs = [plan_run(Path(f"{name}.ipynb"), {}) for name in (*WHOLE, *FAILING)]
    runs = execute_all(specs, Store("ended"))
    assert {run.spec.stem for run in runs if run.stored} == WHOLE
    errors = {run.spec.stem: run.error.splitlines()[1].split()[0] for run in runs if run.error}
    assert errors == {name: f"{kind}:" for name, kind in FAILING.items()}


def test_a_notebook_of_an_old_version_runs(tmp_path, invoke):
    cell = {"cell_type": "code", "language": "python", "metadata": {}, "outputs": [], "collapsed": False}
    sheet = {"cells": [cell | {"input": "print(6 * 7)", "prompt_number": 1}], "metadata": {}}
    old = {"metadata": {"name": ""}, "nbformat": 3, "nbformat_minor": 0, "worksheets": [sheet]}
    (tmp_path / "old.ipynb").write_text(json.dumps(old))
    invoke("run", "old.ipynb", cwd=tmp_path)
    run = Store(str(tmp_path / "_build" / "runs")).lookup("old")
    assert run.read_notebook().cells[0].outputs[0].text == "42\n"


@pytest.mark.parametrize(("name", "message"), REFUSED.items())
def test_what_is_not_python_is_refused(foreign, invoke, name, message):
    _, errors = invoke("run", f"{name}.ipynb", "--store", "none", cwd=foreign, exits=2)
    assert message in errors
    assert not (foreign / "none").exists()


def test_a_notebook_that_records_nothing_has_rows_all_the_same(foreign, invoke):
    store = ("--store", "swept")
    invoke("describe", "a report.ipynb", cwd=foreign)
    line = ("sweep", "a report.ipynb", "--grid", "a=5,7", "--grid", "b=2", "--workers", "1")
    assert invoke(*line, *store, cwd=foreign)[1] == ""
    named = list(csv.DictReader(invoke("table", "--to", "csv", *store, cwd=foreign)[0].splitlines()))
    seen = sorted([row["stem"], row["status"], row["parameters.a"], row["parameters.b"]] for row in named)
    assert seen == [["a report", "finished", "5", "2"], ["a report", "finished", "7", "2"]]
    assert all(float(row["duration_s"]) > 0 for row in named)
    run = Store(str(foreign / "swept")).lookup("a_report-a=5,b=2")
    assert run.read_notebook().cells[-1].outputs[0].text == "7\n"
    proven, _ = invoke("reproduce", run.location, cwd=foreign)
    nothing = (
        "nothing to compare (it ran again, but neither then nor now did it record a result or keep a file"
    )
    assert proven == f"a_report-a=5,b=2: {nothing}; remedy: from gradtricks.lab import record)\n"
    name = invoke("status", *store, cwd=foreign)[0].splitlines()[1].split()[0]
    assert name.startswith("a_report-")
    title, header, *rows = invoke("table", name, *store, cwd=foreign)[0].splitlines()
    assert (title, header.split()[0]) == ("duration_s", "a")
    assert [row.split()[0] for row in rows[:2]] == ["5", "7"]


# Run


def test_a_run_is_kept_and_not_done_again(project, invoke):
    said, _ = invoke("run", "experiments/small.ipynb", "-p", "rate=1e-3", cwd=project)
    (location,) = re.findall(r"^Finished: (.*)$", said, re.MULTILINE)
    record = json.loads((project / location / "record.json").read_text())
    assert (record["results"]["loss"], record["provenance"]["threads"]) == (0.001, 1)
    assert [sorted(record[part]) for part in ("results", "varying")] == [["label", "loss"], ["seconds"]]
    again, _ = invoke("run", "experiments/small.ipynb", "-p", "rate=0.001", cwd=project)
    kept = f"Kept from {record['started']}, nothing was run (--again does): {location}\n"
    assert again == f"{kept}Notebook: {location}/notebook.ipynb\n"
    as_in_papermill, _ = invoke("run", "-p", "rate", "0.001", "experiments/small.ipynb", cwd=project)
    assert as_in_papermill == again
    before = (project / location / "record.json").stat().st_mtime_ns
    said, _ = invoke("run", "-p", "rate", "0.001", "experiments/small.ipynb", "--again", cwd=project)
    assert f"Finished: {location}\n" in said
    assert (project / location / "record.json").stat().st_mtime_ns > before
    whole = (project / location / "record.json").read_bytes()
    short = ("-p", "rate", "0.001", "--again", "--timeout", "0.001")
    invoke("run", "experiments/small.ipynb", *short, cwd=project, exits=1)
    assert (project / location / "record.json").read_bytes() == whole, "it outlives a new one that fails"
    assert invoke("run", "experiments/small.ipynb", *short[:3], cwd=project)[0].startswith("Kept from ")
    _, refused = invoke("run", "experiments/small.ipynb", "-p", "rate", "--retry", cwd=project, exits=2)
    assert "No such option: --retry" in refused


def test_a_run_that_fails_says_where_it_is_kept(project, invoke):
    said, errors = invoke("run", "experiments/small.ipynb", "-p", "fate=raise", cwd=project, exits=1)
    assert (said + errors).count("RuntimeError: as asked") == 1
    (kept,) = (project / "_build" / "runs").glob("small-*/failed/notebook.ipynb")
    assert str(kept.relative_to(project)) in errors
    assert 'small.ipynb failed in cell 4, line 9: raise RuntimeError("as asked")\n' in errors


def test_a_failure_without_a_traceback_says_how_its_cell_begins(tmp_path, invoke):
    write_notebook(tmp_path / "killed.ipynb", "alpha = 1", "import os\nos._exit(3)")
    _, errors = invoke("run", "killed.ipynb", cwd=tmp_path, exits=1)
    assert "killed.ipynb failed in cell 4 (import os)\n" in errors


WITHOUT = "import sys; sys.modules[sys.argv.pop(1)] = None; from gradtricks.cli import app; app()"


@pytest.mark.parametrize(
    ("missing", "line", "message"),
    [
        ("typer", "list", "expected typer, which gradtricks' commands need; got none installed; remedy: "),
        (
            "papermill",
            "run experiments/small.ipynb",
            "expected papermill, which this command needs; got none",
        ),
    ],
)
def test_a_package_that_is_missing_is_named_in_a_sentence(project, missing, line, message):
    command = [sys.executable, "-c", WITHOUT, missing, *line.split()]
    said = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert said.returncode == 2
    assert message in said.stderr
    assert "Traceback" not in said.stderr


LAB = ("nbformat", "numba", "pandas", "papermill", "psutil", "yaml")
WITHOUT_LAB = f"import sys; sys.modules |= dict.fromkeys({LAB}); from gradtricks.cli import app; app()"


@pytest.mark.parametrize(
    ("line", "exits", "message"),
    [
        ("--help", 0, ""),
        ("doctor none.py", 2, "script must be a file; got none.py, which isn't there\n"),
        ("list", 2, "expected nbformat, which this command needs; got none installed; remedy: install "),
        ("book", 2, "expected a checkout of gradtricks, with book/_toc.yml; got none in "),
    ],
)
def test_without_the_lab_there_is_the_doctor(project, line, exits, message):
    command = [sys.executable, "-c", WITHOUT_LAB, *line.split()]
    said = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert (said.returncode, said.stderr[: len(message)]) == (exits, message)


@pytest.mark.parametrize("name", ["book", "pdf"])
def test_the_book_is_made_in_a_checkout(project, invoke, name):
    _, errors = invoke(name, cwd=project, exits=2)
    assert errors.startswith("expected a checkout of gradtricks, with book/_toc.yml; got none in ")
    assert [path.name for path in project.iterdir()] == ["experiments"]


@pytest.mark.parametrize(
    ("line", "messages"),
    [
        ("run none.ipynb", ["expected a notebook at none.ipynb; got nothing there"]),
        ("run BOOK -p sead=1 -p rate=fast", [" run.\nsead: unknown (did you mean seed?)", "rate: expected"]),
        ("run BOOK -p rate=fast -p fate", ["got 'fate'", "rate: expected float (per step); got 'fast'"]),
        ("run BOOK -p rate -1 -p fate", ["expected name=value; got 'fate'"]),
        ("run BOOK -p rate -p fate=well", ["expected name=value; got 'rate'"]),
        ("run BOOK --threads 0", ["--threads"]),
        ("list --experiments none", ["expected notebooks in none; got none; remedy: name their"]),
        (
            "sweep BOOK --grid rate=1,x --zip a=1,2 -p fate",
            ["(per step); got 'x'", "a: unknown", "got 'fate'"],
        ),
        (
            "sweep BOOK --grid rate --grid seed=x --scheduler tcp://10.0.0.1:1",
            ["got 'rate'", "grid: seed:", "--plain"],
        ),
        ("sweep none.sweep.yaml", ["expected a sweep file at none.sweep.yaml; got nothing there"]),
        ("sweep SWEEP --grid rate=1 --seeds 3", ["got --grid, --seeds too; remedy:"]),
        ("sweep SWEEP --scheduler tls://a:1 --tls-ca x", ["needs ca_file, cert and key"]),
        ("sweep SWEEP --tls-ca x", ["expected --scheduler too"]),
        ("sweep SWEEP --retry all", ["'all'", "failed"]),
        ("table none", ["expected one of the sweeps: none yet; got 'none'"]),
        ("table --to parquet", ["expected --output FILE too, since parquet isn't text"]),
        ("table --output a.txt", ["expected --to or an ending: one of parquet, csv"]),
        ("table --output none/a.parquet", ["expected a folder none to write a.parquet in; got none"]),
        ("plot", ["expected one of the sweeps: none yet; got 'no name'"]),
        ("show none", ["expected a run in _build/runs; got none called 'none'"]),
        ("reproduce", ["expected either a run or --book"]),
        ("reproduce a --book", ["expected either a run or --book"]),
        ("reproduce --book", ["expected all runs of the book in _build/runs; got none of small, small-"]),
    ],
)
def test_a_wrong_request_is_refused_and_nothing_is_started(project, invoke, line, messages):
    line = line.replace("BOOK", "experiments/small.ipynb").replace("SWEEP", "experiments/small.sweep.yaml")
    _, errors = invoke(*shlex.split(line), cwd=project, exits=2)
    assert [message for message in messages if message not in errors] == []
    assert [path.name for path in project.iterdir()] == ["experiments"]


# Sweep


def test_a_sweep_ends_with_its_outcome_and_a_plot(swept):
    folder, (code, said, errors) = swept
    assert code == 0
    imported = dict.fromkeys(line.split()[-1] for line in errors.splitlines())
    assert {"papermill", "dask", "distributed"} & imported.keys() == {"papermill"}
    packages = {name.rpartition(".")[0] for name in imported}
    modules = [name for name in imported if name.startswith("gradtricks.lab.") and name not in packages]
    assert modules.index("gradtricks.lab.results.statistics") <= 31, "until the plots, which begin with this"
    assert said.endswith("small: 4 done, 0 failed.\nRuns: _build/runs\nPlot: _build/sweeps/small/loss.svg\n")
    assert "<svg" in (folder / "_build" / "sweeps" / "small" / "loss.svg").read_text()


def test_a_dry_run_shows_what_would_be_done(swept, project, invoke):
    said, _ = invoke("sweep", "experiments/small.sweep.yaml", "--dry-run", cwd=project)
    rows = [line.split() for line in said.splitlines()[1:5]]
    assert rows == [["1", "0.1", "0"], ["2", "0.1", "1"], ["3", "0.2", "0"], ["4", "0.2", "1"]]
    assert "4 runs, 0 of them done." in said
    assert not (project / "_build").exists()
    grid = ("sweep", "experiments/small.ipynb", "--grid", "rate=0.1,0.3", "--seeds", "30", "--workers", "3")
    said, _ = invoke(*grid, "--dry-run", cwd=swept[0])
    assert "… 40 more" in said
    apart = " ".join(grid).replace("=", " ").split()
    assert invoke(*apart, "--dry-run", cwd=swept[0])[0] == said
    assert re.search(r"60 runs, 2 of them done\. The others take about \d+ (?:s|min), 3 at once\.", said)


def test_what_is_varied_may_have_a_computed_default(tmp_path, invoke):
    write_notebook(tmp_path / "half.ipynb", "alpha: float = 1.0\nhalf = alpha / 2", "x = half")
    (tmp_path / "half.sweep.yaml").write_text("notebook: half.ipynb\nlist: [{half: 3}, {}]\n")
    said, _ = invoke("sweep", "half.sweep.yaml", "--dry-run", cwd=tmp_path)
    assert [line.split()[:2] for line in said.splitlines()[1:3]] == [["1", "3"], ["2", "None"]]


def test_a_failed_run_stops_no_other_and_reruns_on_request(project, invoke):
    (project / "experiments" / "small.sweep.yaml").write_text(
        "notebook: small.ipynb\nlist: [{rate: 1}, {rate: 2, fate: raise}, {rate: 3}]"
    )
    sweep = ("sweep", "experiments/small.sweep.yaml")
    said, _ = invoke(*sweep, cwd=project, exits=1)
    assert "small: 2 done, 1 failed." in said
    assert re.search(r"^[123]/3 small-rate=1.0: \d+ s", said, re.MULTILINE)
    assert re.search(
        r"^[123]/3 small-rate=2.0,fate=raise: failed\nexperiments/small.ipynb failed in", said, re.MULTILINE
    )
    assert re.search(r"^small-rate=2.0,fate=raise +RuntimeError: as asked$", said, re.MULTILINE)
    assert "Plot: _build/sweeps/small/loss.svg" in said  # nothing is said of what is to be shown
    (failed,) = (project / "_build" / "runs").glob("*/failed/record.json")
    before = failed.stat().st_mtime_ns
    said, _ = invoke(*sweep, cwd=project, exits=1)
    assert said.startswith("2 of 3 runs are finished already.\n1 have failed before; --retry failed tries")
    assert failed.stat().st_mtime_ns == before
    invoke(*sweep, "--retry", "failed", cwd=project, exits=1)
    assert failed.stat().st_mtime_ns > before
    assert invoke("clean", "--failed", cwd=project)[0].endswith("\n1 deleted.\n")
    assert not failed.exists()


def test_where_no_plot_can_be_written_a_sweep_ends_well(project, invoke):
    (project / "experiments" / "small.sweep.yaml").write_text("notebook: small.ipynb\nseeds: 1")
    (project / "_build").mkdir()
    (project / "_build" / "sweeps").touch()  # where their folder would be
    said, _ = invoke("sweep", "experiments/small.sweep.yaml", cwd=project)
    assert re.search(r"^small: 1 done, 0 failed\.\nRuns: _build/runs\nNo plot: .*sweeps", said, re.MULTILINE)
    said, _ = invoke("sweep", "experiments/small.sweep.yaml", cwd=project)
    assert said.startswith("small: 1 done (1 of them kept from before), 0 failed.\n")
    said, _ = invoke("sweep", "experiments/small.sweep.yaml", "--again", cwd=project)
    assert "\nsmall: 1 done, 0 failed.\n" in said


def test_ctrl_c_keeps_running_work_and_the_sweep_resumes_later(project, invoke):
    sweep = ("sweep", "experiments/small.sweep.yaml", "--workers", "1")
    (project / "hold").touch()
    process = start(*sweep, cwd=project)
    wait_for(lambda: list((project / "_build").glob("runs/.unfinished/*/notebook.ipynb")))
    (seen,) = gradtricks.lab.status(store=project / "_build" / "runs")
    assert seen == ("small", 4, 0, 0, 1, 3)
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline().startswith("Stopping: what is going on is finished and kept.")
    (project / "hold").unlink()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors == "interrupted: 3 of 4 runs are left; the same command does them\n"
    assert invoke(*sweep, cwd=project)[0].startswith("1 of 4 runs are finished already.\n1/3 ")


def test_status_says_how_many_are_done_and_left(swept, invoke):
    header, row = (line.split() for line in invoke("status", cwd=swept[0])[0].splitlines())
    assert header == ["sweep", "runs", "done", "failed", "running", "left"]
    assert row == ["small", "4", "4", "0", "0", "0"]


@pytest.mark.parametrize("line", ["table", "status", "plot", "show small", "reproduce small"])
def test_a_store_that_is_not_there_is_refused(project, invoke, line):
    _, errors = invoke(*line.split(), "--store", "_build/rnus", cwd=project, exits=2)
    assert errors.startswith("expected a store in _build/rnus; got no folder there; remedy: see how")


def test_the_book_is_laid_out_from_runs_and_sweeps(project, monkeypatch):
    built = []
    monkeypatch.chdir(project)
    monkeypatch.setattr("gradtricks.book.building.build", lambda *folders: built.append(folders))
    site = build_book()
    assert built == [(Path("book"), site)]
    pages = project / "book" / "experiments"
    assert {"small.ipynb", "small.json", "small-sweep.md"} <= {path.name for path in pages.iterdir()}
    assert [status.done for status in gradtricks.lab.status()] == [4]
    write_notebook(project / "experiments" / "bad.ipynb", parameters=PARAMETERS, body="1 / 0")
    with pytest.raises(RunError, match=r"(?s)The book is built, without .*\nbad\n.*ZeroDivisionError"):
        build_book()
    assert len(built) == 2, "a run that failed doesn't keep the other pages from being built"
    page = "".join(cell.source for cell in nbformat.read(pages / "bad.ipynb", as_version=4).cells)
    assert "The run failed" in page
    assert "ZeroDivisionError" in page
    assert json.loads((pages / "bad.json").read_text())["status"] == "failed"


# What came out


def test_a_table_shows_what_came_out_and_exports_all(swept, invoke):
    folder, _ = swept
    said, _ = invoke("table", "small", cwd=folder)
    title, header, *rows, last = said.splitlines()
    assert (title, header.split()) == ("loss", ["rate", "mean", "runs"])
    assert [row.split() for row in rows if row] == [["0.1", "0.6", "2"], ["0.2", "0.7", "2"]]
    assert last == "4 runs. --all shows each of them."
    said, _ = invoke("table", cwd=folder)
    header, first, *_ = (line.split() for line in said.splitlines())
    assert (header, first[1]) == (["run", "status", "took"], "finished")
    said, _ = invoke("table", "small", "--all", cwd=folder)
    assert "[red]a[/red] :smile:" in said
    assert said.split()[:2] == ["run", "status"]
    said, _ = invoke("table", "--to", "csv", cwd=folder)
    assert said.count("\n") == 5
    assert "parameters.rate" in said.splitlines()[0]
    invoke("table", "--output", "runs.parquet", cwd=folder)
    assert (folder / "runs.parquet").stat().st_size > 0


@pytest.mark.parametrize("width", [40, 80])
def test_a_table_fits_the_terminal_whatever_was_recorded(tmp_path, width):
    results = {"loss": {f"part_{n}": math.pi * 10.0**n for n in range(60)}}
    runs = [
        make_run({"rate": rate, "seed": seed}, results)
        for rate in (0.1, 0.2)
        for seed in range(5 + 5 * (rate > 0.1))
    ]
    frame = tabulate(runs)
    console = Console(width=width, file=io.StringIO(), force_terminal=True, color_system=None)
    console.print(summary_of(frame, summarize_results(frame, ["rate", "seed"], ["loss.part_3"])))
    said = console.file.getvalue()
    assert max(map(len, said.splitlines())) <= width
    assert ("3.14e3" in said, "runs. --all" in said, "bootstrap" in said) == (True, True, True)


def test_a_table_of_all_runs_fits_the_terminal(monkeypatch):
    results = {f"part_{n}": math.pi * 10.0**n for n in range(60)}
    frame = tabulate([make_run({"rate": rate}, results) for rate in (0.1, 0.2)])
    whole = next(write(frame, None, None)).splitlines()
    assert len(whole) == 3, "in a file or another program's hands a run has one line"
    monkeypatch.setattr("gradtricks.lab.commands.views.output", Console(width=80))
    blocks = [block.splitlines() for block in next(write(frame, None, None)).split("\n\n")]
    assert max(len(line) for block in blocks for line in block) <= 80
    assert {tuple(line.split()[0] for line in block) for block in blocks} == {("run", *frame["run"])}
    names = [name for block in blocks for name in block[0].split()[1:]]
    assert ["run", *names] == [*frame.columns] == whole[0].split()
    assert next(write(frame[[]], None, None)) == ""


def test_paths_are_not_broken_where_a_terminal_is_narrow():
    path = "experiments/a_notebook_with_a_long_name.ipynb"
    console = Console(width=70, file=io.StringIO())
    console.print(table(("notebook", "question"), [(path, "Why is it so? " * 9)], unbroken={0}))
    lines = console.file.getvalue().splitlines()
    assert lines[1].startswith(f"{path} ")
    assert max(map(len, lines)) <= 70


def test_a_plot_is_drawn_on_request(swept, invoke):
    drawn = "_build/sweeps/small/loss"
    for name in ("loss", "results.loss"):
        said, _ = invoke("plot", "--show", name, cwd=swept[0])
        assert said == f"{drawn}.svg\n"
    assert (swept[0] / f"{drawn}.svg").read_text().startswith("<?xml")
    _, errors = invoke("plot", "--show", "results.gain", cwd=swept[0], exits=2)
    assert "results.loss" in errors


def test_show_prints_the_record_and_where_the_notebook_is(swept, invoke):
    said, _ = invoke("show", "small-seed=1,rate", cwd=swept[0])
    assert re.search(r"^results\.label +\[red\]a\[/red\] :smile: *$", said, re.MULTILINE)
    (path,) = re.findall(r"^Notebook: (.*/notebook.ipynb)$", said, re.MULTILINE)
    assert "A small experiment" in (swept[0] / path).read_text()


def test_reproduce_says_identical_or_what_differs(swept, tmp_path, invoke):
    folder, _ = swept
    said, _ = invoke("reproduce", "small-seed=1,rate", cwd=folder)
    assert said == "small-seed=1,rate=0.2: identical (2 values compared)\n"
    store = tmp_path / "edited"
    (original,) = (folder / "_build" / "runs").glob("small-seed=1-*/*")
    edited = store / original.parent.name / original.name
    edited.mkdir(parents=True)
    (edited / "notebook.ipynb").write_bytes((original / "notebook.ipynb").read_bytes())
    record = json.loads((original / "record.json").read_text())
    record["results"]["loss"] = 2.5
    (edited / "record.json").write_text(json.dumps(record))
    said, _ = invoke("reproduce", "small", "--store", str(store), cwd=folder, exits=1)
    assert said.splitlines()[0] == "small-seed=1: different (2 values compared)"
    assert re.search(r"^results.loss +2.5 +1.1 +0.6", said, re.MULTILINE)


def test_all_that_the_book_shows_is_reproduced(project, invoke):
    (project / "experiments" / "small.sweep.yaml").write_text(SWEEP.replace("seeds: 2", "seeds: 1"))
    (project / "experiments" / "far.sweep.yaml").write_text(f"published: true\n{SWEEP}")
    flag = project / "flag"
    once = f"from pathlib import Path\nPath({str(flag)!r}).touch(exist_ok=False)"
    write_notebook(project / "experiments" / "once.ipynb", parameters=PARAMETERS, body=once)
    invoke("run", "experiments/small.ipynb", cwd=project)
    _, errors = invoke("reproduce", "--book", cwd=project, exits=2)
    assert "in _build/runs; got none of once, small-rate=0.2; remedy: gradtricks book" in errors
    invoke("run", "experiments/once.ipynb", cwd=project)
    invoke("sweep", "experiments/small.sweep.yaml", cwd=project)
    said, _ = invoke("reproduce", "--book", cwd=project, exits=1)
    assert re.findall(r"^(\S+): (\w+)", said, re.MULTILINE) == [
        ("once", "different"),
        ("small", "identical"),
        ("small-rate=0.2", "identical"),
    ]
    assert "FileExistsError" in said, "what fails this time counts as different"


def test_a_file_means_its_own_sweep_not_a_namesake(project, invoke):
    for folder, text in {"x": "grid: {rate: [0.1, 0.2]}", "y": "seeds: 3"}.items():
        (project / folder).mkdir()
        file = project / folder / "same.sweep.yaml"
        file.write_text(f"notebook: ../experiments/small.ipynb\n{text}\n")
        freeze(read_sweep(file), Store(project / "_build" / "runs"))
    for name in ("x/same.sweep.yaml", "nowhere/same.sweep.yaml"):
        _, errors = invoke("table", name, cwd=project, exits=2)
        assert "got one of the same name, whose file is" in " ".join(errors.split())
    for name in ("y/same.sweep.yaml", "same"):
        invoke("table", name, cwd=project)
    (project / "y" / "same.sweep.yaml").rename(project / "same.sweep.yaml")
    invoke("table", "same.sweep.yaml", cwd=project)  # it was moved


def test_a_plan_that_was_edited_says_so(project, invoke):
    plans = project / "_build" / "runs" / ".sweeps"
    plans.mkdir(parents=True)
    (plans / "small.json").write_text('{"runs": [1]}')
    _, errors = invoke("status", cwd=project, exits=1)
    assert "remedy: sweep again, which writes it anew" in errors


def test_clean_says_what_it_would_delete(swept, invoke):
    store = swept[0] / "_build" / "runs"
    (store / "small-torn-000000000000" / "aaaaaaaaaaaa").mkdir(parents=True)
    (store / "small-torn-000000000000" / "aaaaaaaaaaaa" / "record.json").write_text("{")
    code, _, errors = command("table", cwd=swept[0])
    assert code == 0
    assert "small-torn-000000000000" in errors
    gone = "_build/runs/small-torn-000000000000/aaaaaaaaaaaa\n1"
    assert invoke("clean", "--dry-run", cwd=swept[0])[0] == f"{gone} would be deleted.\n"
    assert invoke("clean", cwd=swept[0])[0] == f"{gone} deleted.\n"
    assert len(list(store.glob("*/*/record.json"))) == 4


def test_the_functions_need_no_terminal(project, monkeypatch):
    monkeypatch.chdir(project)
    notebook = project / "experiments" / "small.ipynb"
    planned = gradtricks.lab.plan_sweep(notebook, grid={"rate": [1.0, 2.0]}, shown=["loss"])
    found = gradtricks.lab.sweep(planned)
    assert [run.results["loss"] for run in found.finished] == [1.0, 2.0]
    assert gradtricks.lab.table(planned.name)["results.loss"].tolist() == [1.0, 2.0]
    assert [path.name for path in found.plots] == ["loss.svg"]
    assert gradtricks.lab.run("experiments/small.ipynb", {"rate": 2.0}).record == found.finished[1].record
    assert gradtricks.lab.status()[0].done == 2
