"""Published sweeps: run on request, kept with the sources, and shown by the book without being run."""

import contextlib
import hashlib
import io
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import Mock

import duckdb
import nbformat
import pandas
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

pytest.importorskip("sphinx")


from gradtricks.book.building import build_book
from gradtricks.book.quotes import published_record
from gradtricks.cli import app
from gradtricks.lab.commands.publishing import publish
from gradtricks.lab.notebooks.schema import ParameterError
from gradtricks.lab.results.quoting import result_from
from gradtricks.lab.runs.execution import RunError
from gradtricks.lab.runs.reproduction import reproduce
from gradtricks.lab.storage.published import Published, published_at
from gradtricks.lab.storage.records import StoredRun
from gradtricks.lab.storage.store import Store, StoreError
from gradtricks.lab.sweeps.publication import FOLDER, keep
from gradtricks.lab.sweeps.reading import find_run, table
from gradtricks.lab.sweeps.sweep import read_sweep
from notebooks import write_notebook
from synthetic import make_run, make_sweep

pytestmark = pytest.mark.usefixtures("warm")
ROOT = Path(__file__).parents[2]
PARAMETERS = """\
seed: int = 0  # of nothing
rate: float = 0.1  # per step
broken: str = ""  # file that makes it fail
fate: str = "well"  # how it ends
"""
BODY = """\
from pathlib import Path
from tempfile import TemporaryDirectory
from gradtricks.lab import record, record_file
with TemporaryDirectory() as folder:
    policy = Path(folder, "policy.bin")
    policy.write_bytes(bytes([seed] * 10))
    record_file(policy)
record(loss=rate + seed, curve=[rate, 1.0])
if broken and Path(broken).exists():
    raise RuntimeError("as asked")
"""
RATES = "notebook: game.ipynb\npublished: true\ntitle: Rates\nshown: [results.loss]\n"
RATES += "grid: {rate: [0.1, 0.2]}\nseeds: 2\n"
STEPS = "notebook: game.ipynb\npublished: true\nshown: [results.curve]\nseeds: 3\n"


def write_project(folder):
    """Write a project with two published sweeps of one notebook, none of them run."""
    write_notebook(folder / "experiments" / "game.ipynb", PARAMETERS, BODY)
    (folder / "experiments" / "game.sweep.yaml").write_text(RATES)
    (folder / "experiments" / "game_steps.sweep.yaml").write_text(STEPS)


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Return the folder of such a project, in which one works."""
    write_project(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def lay_out(monkeypatch):
    """Return a function that lays out the book of the project without building it."""
    monkeypatch.setattr("gradtricks.book.building.build", lambda *folders: None)
    return build_book


def invoke(*arguments, exits=0):
    """Do what a command does, see how it exits, and return what it said: all of it, errors last."""
    runner = CliRunner(env={"COLUMNS": "200"})
    answer = runner.invoke(app, arguments, catch_exceptions=False)
    assert answer.exit_code == exits, answer.output
    return answer.stdout + answer.stderr


def tree(folder):
    """Return the files of a folder that git would keep, and what they hold."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(p.relative_to(folder)): p.read_bytes() for p in files}


def test_sweeps_are_published_shown_and_repeated(project, lay_out):
    pages, published = project / "book" / "experiments", project / "experiments" / FOLDER
    lay_out()
    page = (pages / "game-sweep.md").read_text()
    assert "4 runs of `experiments/game.ipynb` with different rate (2 values) and seed (2 values): " in page
    assert "0 finished, 4 not run yet." in page
    assert "want a machine to themselves. They haven't been published yet." in page
    shutil.rmtree(project / "_build")

    said = invoke("publish", "--dry-run")
    assert said.count("0 of them done") == 2
    assert re.findall(r"^(\w+):$", said, re.MULTILINE) == ["game", "game_steps"]
    assert not published.exists()

    said = invoke("publish", "--workers", "1")
    records = re.findall(r"^Published: experiments/published/(\S+)$", said, re.MULTILINE)
    assert records == ["game.jsonl.gz", "game_steps.jsonl.gz"]
    files = tree(published)
    # Seeds 0 and 1 with the default rate belong to both sweeps.
    policies = {f"game/{rate}-{seed}.bin": bytes([seed] * 10) for rate in (0.1, 0.2) for seed in (0, 1)}
    policies |= {f"game_steps/{seed}.bin": bytes([seed] * 10) for seed in range(3)}
    assert {name: data for name, data in files.items() if name.endswith(".bin")} == policies
    besides = {f"{sweep}.{ending}" for sweep in ("game", "game_steps") for ending in ("json", "jsonl.gz")}
    assert files.keys() - policies == besides | {".lock"}
    store = Published(published)
    assert store.plans() == ["game", "game_steps"]
    assert len(list(store.runs())) == 5
    assert store.lookup("game-seed=2").read_file("policy.bin") == bytes([2] * 10)
    invoke("publish")
    assert tree(published) == files  # nothing was run, and nothing differs

    lay_out()
    names = {path.name for path in pages.iterdir()}
    assert {"game.ipynb", "game-sweep.md", "game_steps-sweep.md", "game_steps-sweep.json"} <= names
    page = (pages / "game-sweep.md").read_text()
    assert page.startswith("# Rates\n\n4 runs of `experiments/game.ipynb` with different rate (2 values) and")
    assert "or want a machine to themselves. They were started 20" in page
    assert " UTC. In the notebook's quick run, today's code gives the same numbers, bit for bit." in page
    assert page.endswith("```{run-card} game/sweep\n```\n")
    assert "```{run-figure} game/sweep/loss" in page
    assert "```{run-figure} game_steps/sweep/curve" in (pages / "game_steps-sweep.md").read_text()
    record = published_record(pages / "game-sweep.json")
    assert record["command"] == "gradtricks publish experiments/game.sweep.yaml"
    assert "medians of a run" in str(record["origin"])
    results = record["results"]
    assert result_from(results, "loss.rate=0.1.mean") == pytest.approx(0.6)
    assert result_from(results, "runs.median_wall_s") > 0
    assert result_from(results, "runs.median_cpu_s") > 0


def test_names_of_configurations_stand_in_pages_figures_and_tables(project, lay_out):
    (project / "experiments" / "game_steps.sweep.yaml").write_text(
        "notebook: game.ipynb\npublished: true\nshown: [results.loss]\nseeds: 2\n"
        "list: {as it is: {}, faster: {rate: 0.5}}\n"
        "grid: {broken: ['', no-such-file]}\n"
    )
    list(publish(["experiments/game_steps.sweep.yaml"], workers=1))
    (project / "experiments" / "game.sweep.yaml").unlink()
    lay_out()
    pages = project / "book" / "experiments"
    page = (pages / "game_steps-sweep.md").read_text()
    assert "with different case (2 values), broken (2 values) and seed (2 values): 8 finished.\n" in page
    assert "| case | what is different |\n| --- | --- |\n| as it is |  |\n| faster | rate 0.5 |" in page
    results = published_record(pages / "game_steps-sweep.json")["results"]
    assert result_from(results, "loss.case=faster,broken=.mean") == pytest.approx(1.0)
    cases = table("game_steps", store="experiments/published")["case"]
    assert list(cases) == ["as it is"] * 4 + ["faster"] * 4
    assert "loss.svg" in invoke("plot", "game_steps", "--store", "experiments/published")


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    """Return the folder of the published runs of one sweep, to be copied."""
    folder = tmp_path_factory.mktemp("published")
    write_project(folder)
    with contextlib.chdir(folder):
        (result,) = publish(["experiments/game.sweep.yaml"], workers=1)
    assert result.published == str(Path("experiments", FOLDER, "game.jsonl.gz"))
    return folder / "experiments" / FOLDER


@pytest.fixture
def published(project, once):
    """Return the folder of the published runs of one sweep, in a project like a fresh clone."""
    (project / "experiments" / "game_steps.sweep.yaml").unlink()
    return shutil.copytree(once, project / "experiments" / FOLDER)


def test_the_other_commands_take_the_published_store(published, project):
    where = ("--store", "experiments/published")
    row = ["game", "4", "4", "0", "0", "0"]
    assert invoke("status", *where).splitlines()[1].split() == row
    assert invoke("table", "game", "--all", *where).count("finished") == 4
    invoke("plot", "game", *where)
    assert (project / "_build" / "sweeps" / "game" / "loss.svg").exists()
    assert not (project / "experiments" / "sweeps").exists()
    said = invoke("show", "game-rate=0.2", *where)
    assert ("file policy.bin" in said, "Notebook" in said) == (True, False)
    said = invoke("reproduce", "game-rate=0.2", *where)
    assert said == "game-rate=0.2: identical (4 values compared)\n"
    before = tree(published)
    write_notebook(project / "experiments" / "game.ipynb", PARAMETERS, BODY.replace("rate + seed", "rate"))
    said = invoke("reproduce", "game-seed=1,rate=0.2", *where, exits=1)
    assert "game-seed=1,rate=0.2: different (4 values compared)" in said
    assert tree(published) == before
    assert invoke("status", *where).splitlines()[1].split() == row


@pytest.mark.parametrize(
    ("folder", "run"),
    [
        (".", "experiments/published/game/0.2-0"),
        ("experiments/published", "./game/../game/0.2-0.bin"),
        ("experiments/published/game", "0.2-0.bin"),
        ("book", "../experiments/published/game/0.2-0"),
    ],
)
def test_a_path_means_a_published_run_wherever_one_stands(published, project, monkeypatch, folder, run):
    (project / "book").mkdir(exist_ok=True)
    monkeypatch.chdir(project / folder)
    said = invoke("show", run)
    assert ["game-rate=0.2" in said, "file policy.bin" in said, "Notebook" in said] == [True, True, False]
    stored = find_run(Store("nowhere"), run)
    assert stored.read_file("policy.bin") == bytes(10)
    assert BODY in [cell.source for cell in stored.read_notebook().cells]


def test_a_published_run_that_fails_now_names_its_code(published):
    run = published_at("experiments/published/game/0.2-0")
    kernels = Mock(**{"run.side_effect": OSError("?")})
    with pytest.raises(
        RunError, match=r"as it did before; got OSError: .*; remedy: check out the code of then$"
    ):
        reproduce(run, kernels)


@pytest.mark.parametrize("text", ["/", "/game", "game/0.2-0"])
def test_other_paths_mean_no_published_run(published, text):
    assert published_at(text) is None


def test_a_published_run_that_reads_files_is_repeated_with_them(project):
    notebook, data = project / "experiments" / "game.ipynb", project / "experiments" / "data.csv"
    node = nbformat.read(notebook, 4)
    node.metadata["gradtricks"] = {"reads": ["*.csv"]}
    nbformat.write(node, notebook)
    data.write_text("1")
    (project / "experiments" / "game_steps.sweep.yaml").write_text(STEPS.replace("seeds: 3", "seeds: 1"))
    invoke("publish", "experiments/game_steps.sweep.yaml")
    (run,) = (str(path) for path in (project / "experiments" / FOLDER / "game_steps").iterdir())
    assert invoke("reproduce", run) == "game: identical (4 values compared)\n"
    data.write_text("2")
    assert "game: identical (4 values compared)" in invoke("reproduce", run)


@pytest.mark.parametrize(
    "words",
    [
        ["clean", "--stale", "--failed", "--dry-run"],
        ["clean"],
        ["run", "../../game.ipynb"],
        ["sweep", "../../game.sweep.yaml"],
        ["sweep", "../../game.sweep.yaml", "--dry-run"],
    ],
)
def test_nothing_but_publish_changes_published_runs(published, words, monkeypatch):
    before = tree(published)
    monkeypatch.chdir(published / "game")
    for path in ("..", published, published / "game", "."):
        said = invoke(*words, "--store", str(path), exits=1)
        assert "expected a store of runs; got published ones in" in said
    assert tree(published) == before


def test_json_of_others_is_no_published_run(project):
    (project / "notes.json").write_text('{"title": "Notes", "records": ""}')
    (project / "notes.jsonl.gz").touch()
    (project / "odd.json").mkdir()
    invoke("run", "experiments/game.ipynb", "--store", "runs")
    assert "game" in invoke("show", "game", "--store", "runs")
    assert "0 deleted." in invoke("clean", "--store", ".")
    assert invoke("status", "--store", ".").split()[0] == "sweep"


NUMBERS = "record(loss=rate + seed, curve=[rate, 1.0])"


@pytest.mark.parametrize(
    ("now", "said", "standing"),
    [
        (f"{NUMBERS}  # edited", "gives the same numbers, bit for bit.", "the same numbers"),
        (f"{NUMBERS}\nrecord(more=1)", "gives the same numbers, bit for bit.", "the same numbers"),
        (
            "record(loss=rate + seed + 1e-9, curve=[rate, 1.0])",
            "gives the same numbers up to one part in 100,000.",
            "the same within tolerance",
        ),
        (
            "record(loss=rate + seed + 1, curve=[rate, 1.0])",
            "gives other numbers. These runs are of commit unknown.",
            "other numbers",
        ),
        ("record(curve=[rate, 1.0])", "gives other numbers. These runs are of commit", "other numbers"),
    ],
)
def test_a_page_says_whether_today_s_numbers_are_published(published, project, lay_out, now, said, standing):
    page = project / "book" / "experiments" / "game-sweep.md"
    before = tree(published)
    write_notebook(project / "experiments" / "game.ipynb", PARAMETERS, BODY.replace(NUMBERS, now))
    lay_out()
    assert f"In the notebook's quick run, today's code {said}" in page.read_text()
    assert published_record(page.with_suffix(".json"))["standing"] == standing
    assert tree(published) == before


def test_other_numbers_on_another_processor_say_nothing(published, project, lay_out):
    page, manifest = project / "book" / "experiments" / "game-sweep.md", published / "game.json"
    told = json.loads(manifest.read_text())
    told["witnesses"][""]["processor"] = "another"
    manifest.write_text(json.dumps(told))
    lay_out()
    assert "gives the same numbers, bit for bit." in page.read_text()
    told["witnesses"][""]["results"] = '{"loss": 17.0}'
    manifest.write_text(json.dumps(told))
    lay_out()
    assert "gives other numbers on another processor" in page.read_text()


def test_what_has_no_witness_is_not_judged(published, project, lay_out):
    page, manifest = project / "book" / "experiments" / "game-sweep.md", published / "game.json"
    told = json.loads(manifest.read_text())
    (witness,) = told["witnesses"].values()
    others = {"parameters": witness["parameters"] | {"rate": 0.3}, "results": '{"loss": 17.0}'}
    untold = ({}, {"": witness | {"results": "{}"}}, {"": witness | others})
    for witnesses in (*untold, told["witnesses"] | {"torch": witness}):  # whose run has failed
        manifest.write_text(json.dumps(told | {"witnesses": witnesses}))
        lay_out()
        assert "The notebook's quick runs can't judge today's code" in page.read_text()


def test_a_sweep_file_asking_for_other_runs_is_said(published, project, lay_out):
    page = project / "book" / "experiments" / "game-sweep.md"
    (project / "experiments" / "game.sweep.yaml").write_text(RATES.replace("0.2]", "0.2, 0.4]"))
    lay_out()
    assert "The sweep's file asks for other runs by now." in page.read_text()
    assert "\n\n4 runs of `experiments/game.ipynb`" in page.read_text()
    (project / "experiments" / "game.sweep.yaml").write_text(RATES)
    write_notebook(project / "experiments" / "game.ipynb", f"{PARAMETERS}more: int = 3  # of it", BODY)
    lay_out()
    assert "asks for other runs" not in page.read_text()
    assert "gives the same numbers, bit for bit." in page.read_text()


def test_a_failed_quick_run_is_said_before_long_ones(project):
    (project / "broken").touch()
    write_notebook(
        project / "experiments" / "game.ipynb",
        PARAMETERS.replace('broken: str = ""', f'broken: str = "{project / "broken"}"'),
        BODY,
    )
    said = invoke("publish", exits=1)
    assert "Nothing was published, because of quick runs that failed:" in said
    assert "4 runs" not in said
    assert not (project / "experiments" / FOLDER).exists()


def test_a_sweep_that_needs_a_gpu_is_left_out_without_one(project, monkeypatch):
    tools = project / "tools"
    monkeypatch.setenv("PATH", str(tools), prepend=":")
    tools.mkdir()
    listing = tools / "nvidia-smi"
    (project / "experiments" / "game.sweep.yaml").write_text(f"gpu: true\n{RATES}")
    for answer in ("exit 9", "exit 0"):  # of a driver that doesn't work, and of one that sees no card
        listing.write_text(f"#!/bin/sh\n{answer}\n")
        listing.chmod(0o755)
        said = invoke("publish", "experiments/game.sweep.yaml")
        assert said == "game: left out. Its runs need a GPU, and nvidia-smi lists none here.\n"
    assert not (project / "_build").exists()
    said = invoke("publish")
    assert "game: left out." in said
    assert "game_steps: 3 done" in said
    listing.write_text("#!/bin/sh\necho Card A\necho Card B\n")
    assert "\nGPU: Card A, Card B\n" in invoke("publish", "experiments/game.sweep.yaml")
    assert Published(project / "experiments" / FOLDER).plans() == ["game", "game_steps"]


def test_former_runs_are_replaced_when_all_new_ones_are_there(published, project):
    former = tree(published)
    (project / "experiments" / "game.sweep.yaml").write_text(
        RATES.replace("0.2]", "0.4]") + f"fixed: {{broken: {project / 'broken'}}}\n"
    )
    (project / "broken").touch()
    said = invoke("publish", exits=1)
    assert ("Published" in said, "0 done, 4 failed" in said) == (False, True)
    assert tree(published) == former
    (project / "broken").unlink()
    invoke("publish", exits=1)
    assert "4 done, 0 failed" in invoke("publish", "--retry", "failed")
    found = {"{rate}-{seed}.bin".format(**run.parameters) for run in Published(published).runs()}
    assert found == {"0.1-0.bin", "0.1-1.bin", "0.4-0.bin", "0.4-1.bin"}
    assert {path.name for path in (published / "game").iterdir()} == found


def test_a_grid_that_grew_costs_what_is_new(published, project):
    before, sweep = Published(published).sweep("game")[1], project / "experiments" / "game.sweep.yaml"
    sweep.write_text(RATES.replace("[0.1, 0.2]", "[0.2, 0.3]"))
    shutil.rmtree(project / "_build", ignore_errors=True)  # the store needs to hold none of them
    said = invoke("publish", str(sweep), "--missing")
    assert ("2 done, 0 failed" in said, "(2 of its runs from before)" in said) == (True, True)
    runs = {run.label: run for run in Published(published).sweep("game")[1]}
    assert list(runs) == ["0.2-0", "0.2-1", "0.3-0", "0.3-1"]
    assert [runs[run.label].record for run in before[2:]] == [run.record for run in before[2:]]
    assert [runs[f"0.3-{seed}"].read_file("policy.bin") for seed in (0, 1)] == [bytes(10), b"\1" * 10]
    assert "4 of its runs" in invoke("publish", str(sweep), "--missing")  # nothing is left to do


@pytest.mark.parametrize("change", [("rate + seed", "rate + seed + 1"), ("0.1  # per", "0.15  # per")])
def test_code_that_gives_other_numbers_leaves_nothing_as_it_was(published, project, change):
    notebook, sweep = project / "experiments" / "game.ipynb", project / "experiments" / "game.sweep.yaml"
    notebook.write_text(notebook.read_text().replace(*change))
    sweep.write_text(RATES.replace("[0.1, 0.2]", "[0.2, 0.3]"))
    assert "4 done" in invoke("publish", str(sweep), "--missing")


def test_a_grid_that_grew_on_another_processor_keeps_its_runs_and_what_witnesses_for_them(published, project):
    manifest, sweep = published / "game.json", project / "experiments" / "game.sweep.yaml"
    told = json.loads(manifest.read_text())
    told["witnesses"][""] |= {"processor": "another", "results": '{"loss": 17.0}'}
    manifest.write_text(json.dumps(told))
    sweep.write_text(RATES.replace("[0.1, 0.2]", "[0.2, 0.3]"))
    assert "(2 of its runs from before)" in invoke("publish", str(sweep), "--missing")
    assert json.loads(manifest.read_text())["witnesses"] == told["witnesses"]
    assert "4 of its runs" in invoke("publish", str(sweep), "--missing")


@pytest.mark.parametrize("edit", [Path.unlink, lambda path: path.write_bytes(path.read_bytes() + b"a")])
def test_records_that_are_gone_or_others_stop_the_build(published, lay_out, edit):
    edit(published / "game.jsonl.gz")
    with pytest.raises(
        StoreError, match=r"published/game.jsonl.gz as .*got none, or another file; remedy: git"
    ):
        lay_out()


@pytest.mark.parametrize("edit", [Path.unlink, lambda path: path.write_bytes(b"another")])
def test_a_kept_file_that_was_edited_is_not_believed(published, edit):
    edit(published / "game" / "0.2-1.bin")
    run = Published(published).lookup("game-seed=1,rate=0.2")
    with pytest.raises(
        StoreError,
        match=r"published/game/0.2-1.bin as they .*; remedy: git restore .*, or gradtricks publish",
    ):
        run.read_file("policy.bin")


def test_every_kept_file_has_its_own_name(tmp_path):
    class Run(StoredRun):
        def read_file(self, name):
            return f"{name} of {self.parameters['who']}".encode()

    def run(who, *names):
        made = make_run({"who": who}, {})
        files = {name: Run("", made.record).read_file(name) for name in names}
        about = {n: {"bytes": len(d), "sha256": hashlib.sha256(d).hexdigest()} for n, d in files.items()}
        return Run("nowhere", made.record | {"files": about})

    kept = {"a": ["b-x", "y"], "a-b": ["x", "v"], "c": ["w.bin"], "c.bin": ["z"]}
    runs = [run(who, *names) for who, names in kept.items()]
    keep(make_sweep(runs, ["who"], [], path=tmp_path / "small.sweep.yaml"), runs)
    found = Published(tmp_path / FOLDER)
    paths = [path.lower() for each in found.runs() for path in each.paths.values()]
    assert len(set(paths)) == len(paths) == 6
    assert paths[0] == "small/a-b-x"
    for each in found.runs():
        assert list(each.files) == kept[each.parameters["who"]]
        assert published_at(each.location).parameters == each.parameters
        for name in each.files:
            assert each.read_file(name) == f"{name} of {each.parameters['who']}".encode()
            assert published_at(str(tmp_path / FOLDER / each.paths[name])).parameters == each.parameters


def test_only_published_sweeps_are_published(project):
    path = project / "experiments" / "plain.sweep.yaml"
    path.write_text(RATES.replace("published: true\n", ""))
    assert not read_sweep(path).published
    with pytest.raises(ParameterError, match=r"with 'published: true'; got .*plain.sweep.yaml; remedy"):
        list(publish([path]))
    for file in project.glob("experiments/game*.yaml"):
        file.unlink()
    with pytest.raises(ParameterError, match=r"with 'published: true'; got none"):
        list(publish())
    with pytest.raises(FileNotFoundError):
        list(publish(["experiments/game.sweep.yaml"]))
    path.write_text(RATES.replace("true", "maybe"))
    with pytest.raises(ParameterError, match="published: expected a valid boolean"):
        read_sweep(path)


def test_a_build_says_early_what_it_will_run(published, project, lay_out):
    screen = Console(file=io.StringIO(), width=200)
    lay_out(workers=1, console=screen)
    first, run, last = screen.file.getvalue().splitlines()
    assert first == "1 run to do; then the pages."
    assert run.startswith("1/1 game: ")
    assert last.startswith("Building the pages")
    lay_out(workers=1, console=screen)
    assert screen.file.getvalue().count("to do") == 1
    said = invoke("reproduce", "--book")
    assert said == "game: identical (4 values compared)\n", "without what is published"
    node = nbformat.read(project / "experiments" / "game.ipynb", as_version=4)
    node.cells.append(nbformat.v4.new_code_cell("'edited'"))
    node.metadata["gradtricks"] = {"expected_s": 0.2}
    nbformat.write(node, project / "experiments" / "game.ipynb")
    lay_out(workers=1, console=screen)
    assert re.search(r"1 run to do, about \d+ s; then the pages\.", screen.file.getvalue())


@pytest.mark.parametrize(
    "edit",
    [
        lambda text: f"<<<<<<< HEAD\n{text}",
        lambda text: text.replace('"varied"', '"other"'),
        lambda text: text.replace('"records": "', '"records": "no digest '),
        lambda text: "{}",
    ],
)
def test_an_edited_manifest_is_refused_and_costs_no_other(published, project, lay_out, edit):
    manifest, runs = published / "game.json", list(Published(published).runs())
    sweep, whole = read_sweep(project / "experiments" / "game.sweep.yaml"), manifest.read_text()
    manifest.write_text(edit(whole))
    before = tree(published)
    with pytest.raises(StoreError, match=r"expected the manifest of published runs in .*game.json; got"):
        lay_out()
    keep(replace(sweep, name="game_steps"), runs)
    assert before.items() <= tree(published).items()
    manifest.write_text(whole)
    again = Published(published)
    assert [len(again.plan(name)["runs"]) for name in again.plans()] == [4, 4]


KILLED = """
import itertools, os, shutil, signal, sys
from hashlib import sha256
from pathlib import Path
import duckdb  # once, before the forks
from gradtricks.lab.sweeps.publication import keep
from gradtricks.lab.storage.published import Published
from gradtricks.lab.storage.records import StoredRun, StoreError
from synthetic import make_run, make_sweep

class Run(StoredRun):
    def read_file(self, name):
        return bytes([self.parameters["seed"], self.results["loss"]])

def make(seed, loss):
    about = {"bytes": 2, "sha256": sha256(bytes([seed, loss])).hexdigest()}
    run = make_run({"seed": seed}, {"loss": loss})
    return Run("nowhere", run.record | {"files": {"agent.bin": about}})

def publish(root, loss):
    found = [make(seed, loss) for seed in range(loss)]
    keep(make_sweep(found, ["seed"], [], path=root / "small.sweep.yaml"), found)

def publish_until_killed(root, loss, steps):
    left = itertools.count(steps, -1)
    def mortal(function):
        def call(*arguments):
            return function(*arguments) if next(left) else os.kill(os.getpid(), signal.SIGKILL)
        return call
    os.replace = mortal(os.replace)
    os.unlink = mortal(os.unlink)
    publish(root, loss)

def in_a_child(function, *arguments):
    child = os.fork()
    if not child:
        try:
            os._exit(function(*arguments) or 0)
        finally:
            os._exit(9)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def state(root):
    root /= "published"
    try:
        found = list(Published(root).runs())
        files = [run.read_file("agent.bin") for run in found]
    except StoreError as error:
        return 0 if "remedy: git restore" in str(error) else 9
    (loss,) = {run.results["loss"] for run in found}
    assert len(found) == loss
    assert files == [bytes([run.parameters["seed"], loss]) for run in found]
    return loss

def whole(root):
    root /= "published"
    names = {str(path.relative_to(root)) for path in root.rglob("*.*") if path.is_file()}
    assert names == {".lock", "small.json", "small.jsonl.gz", "small/0.bin", "small/1.bin"}

before = Path(sys.argv[1], "before")
in_a_child(publish, before, 1)
for steps in range(100):
    root = shutil.copytree(before, Path(sys.argv[1], str(steps)))
    ended = in_a_child(publish_until_killed, root, 2, steps)
    then = in_a_child(state, root)
    again = in_a_child(publish, root, 2), in_a_child(state, root), in_a_child(whole, root)
    print(steps, ended, then, *again, flush=True)
    if ended >= 0:
        break
"""


def test_what_a_killed_publisher_left_is_refused_or_whole(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])},
        check=True,
    )
    found = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    steps = [number for number, *_ in found]
    assert (steps, len(steps) > 4) == (list(range(len(steps))), True)
    assert [ended for _, ended, *_ in found] == [-signal.SIGKILL] * (len(found) - 1) + [0]
    assert {state for _, _, state, *_ in found} == {0, 1, 2}, "refused, the former runs, or the new ones"
    assert {tuple(again) for _, _, _, *again in found} == {(0, 2, 0)}


NAMES = ["a", "A", "b", "", "x.y", 'q"', "$float", "$dict"]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.dates() | st.datetimes(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
    max_leaves=6,
)


def publish_results(folder, results):
    """Publish a run for each of some results, without running anything; return the runs."""
    runs = [make_run({"seed": seed}, each) for seed, each in enumerate(results)]
    keep(make_sweep(runs, ["seed"], [], path=Path(folder, "small.sweep.yaml")), runs)
    return runs


@settings(max_examples=30)
@given(st.lists(st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=3), min_size=1, max_size=4))
def test_every_value_is_read_as_it_was_recorded(results):
    with TemporaryDirectory() as folder:
        runs = publish_results(folder, results)
        _, found = Published(Path(folder, FOLDER)).sweep("small")
    assert [json.dumps(run.record) for run in found] == [json.dumps(run.record) for run in runs]


@settings(max_examples=30)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=4))
@example([5e-324])
@example([1.7976931348623157e308, -0.0, 0.1 + 0.2])
def test_duckdb_and_pandas_read_every_double(numbers):
    with TemporaryDirectory() as folder:
        publish_results(folder, [{"x": number} for number in numbers])
        path = str(Path(folder, FOLDER, "small.jsonl.gz"))
        found = [x for (x,) in duckdb.read_json(path).select("results.x").fetchall()]
        assert [repr(float(x)) for x in found] == [*map(repr, numbers)]
        if all(not x or abs(x) >= sys.float_info.min for x in numbers):  # pandas refuses smaller ones
            frame = pandas.read_json(path, lines=True, dtype=False, precise_float=True)
            assert [repr(float(each["x"])) for each in frame["results"]] == [*map(repr, numbers)]


def test_nan_is_json_in_duckdb_and_a_number_here(tmp_path):
    publish_results(tmp_path, [{"x": math.nan}, {"x": 1.5}])
    found = duckdb.read_json(str(tmp_path / FOLDER / "small.jsonl.gz")).select("results.x")
    assert [str(kind) for kind in found.types] == ["JSON"]
    assert found.fetchall() == [('{"$float":"nan"}',), ("1.5",)]
    assert repr(table("small", store=tmp_path / FOLDER)["results.x"].tolist()) == "[nan, 1.5]"


def test_published_runs_are_read_as_the_chapter_has_it(monkeypatch):
    monkeypatch.chdir(ROOT)
    blocks = re.findall(r"(?s)\n```python\n(.*?)\n```", Path("book", "sweeps.md").read_text())
    (block,) = (block for block in blocks if "jsonl" in block)
    names = {}
    exec(block, names)  # noqa: S102
    _, runs = Published("experiments/published").sweep("pong")
    expected = {"run": [run.label for run in runs], "seed": [run.parameters["seed"] for run in runs]}
    expected["plain"] = [run.results["mean_return"]["plain"] for run in runs]
    assert names["returns"].to_dict("list") == expected
    assert names["agents"]["results"].tolist() == [run.record["results"] for run in runs]
