"""Published sweeps: run on request, kept with the sources, and shown by the book without being run."""

import io
import json
import re
import shutil
import subprocess
from pathlib import Path

import nbformat
import pytest
from rich.console import Console
from typer.testing import CliRunner

pytest.importorskip("sphinx")

from gradtricks.book.building import build_book
from gradtricks.book.records import published_record
from gradtricks.cli import app
from gradtricks.lab.commands.publishing import publish
from gradtricks.lab.commands.views import table
from gradtricks.lab.notebooks.schema import ParameterError
from gradtricks.lab.results.quoting import result_from
from gradtricks.lab.results.tables import planned_runs
from gradtricks.lab.storage.store import Store, StoreError
from gradtricks.lab.sweeps.planning import read_search, read_sweep
from gradtricks.lab.sweeps.publication import FOLDER, as_published
from notebooks import write_notebook
from synthetic import make_run, put

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


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Return the folder of a project with two published sweeps of one notebook, none of them run."""
    write_notebook(tmp_path / "experiments" / "game.ipynb", PARAMETERS, BODY)
    (tmp_path / "experiments" / "game.sweep.yaml").write_text(RATES)
    (tmp_path / "experiments" / "game_steps.sweep.yaml").write_text(STEPS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def lay_out(monkeypatch):
    """Return a function that lays out the book of the project without building it."""
    monkeypatch.setattr("gradtricks.book.building.build", lambda *folders: None)
    return build_book


def invoke(*arguments):
    """Do what a command does; return how it exited and what it said."""
    answer = CliRunner(env={"COLUMNS": "200", "BROWSER": "true"}).invoke(app, list(arguments))
    if answer.exception is not None and not isinstance(answer.exception, SystemExit):
        raise answer.exception
    return answer.exit_code, answer.stdout, answer.stderr


def tree(folder):
    """Return the files of a folder and what they hold."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_sweeps_are_published_shown_and_repeated(project, lay_out):
    pages, published = project / "book" / "experiments", project / "experiments" / FOLDER
    lay_out()
    page = (pages / "game-sweep.md").read_text()
    assert "4 runs of `experiments/game.ipynb` with different rate (2 values) and seed (2 values): " in page
    assert "0 finished, 4 not run yet." in page
    assert "want a machine to themselves. They haven't been published yet." in page
    shutil.rmtree(project / "_build")

    code, said, _ = invoke("publish", "--dry-run")
    assert (code, said.count("0 of them done")) == (0, 2)
    assert re.findall(r"^(\w+):$", said, re.MULTILINE) == ["game", "game_steps"]
    assert not published.exists()

    code, said, _ = invoke("publish", "--workers", "1")
    assert (code, said.count("Published: experiments/published\n")) == (0, 2)
    files = tree(published)
    # Seeds 0 and 1 with the default rate belong to both sweeps.
    assert sum(name.endswith("/record.json") for name in files) == 5
    assert sum(name.endswith("/files/policy.bin") for name in files) == 5
    assert len(files) == 5 + 5 + 2
    store = Store(published)
    assert sorted(store.plans()) == ["game", "game_steps"]
    assert store.lookup("game-seed=2").read_file("policy.bin") == bytes([2] * 10)
    assert invoke("publish")[0] == 0
    assert tree(published) == files  # nothing was run, and nothing differs

    lay_out()
    names = {path.name for path in pages.iterdir()}
    assert {"game.ipynb", "game-sweep.md", "game_steps-sweep.md", "game_steps-sweep.json"} <= names
    page = (pages / "game-sweep.md").read_text()
    assert page.startswith("# Rates\n\n4 runs of `experiments/game.ipynb` with different rate (2 values) and")
    assert "or want a machine to themselves. They were started 20" in page
    assert ", with the notebook, the package and the libraries that are here now." in page
    assert "gradtricks publish experiments/game.sweep.yaml\n" in page
    assert "medians of a run" in page
    assert "```{run-figure} game/sweep/loss" in page
    assert "```{run-figure} game_steps/sweep/curve" in (pages / "game_steps-sweep.md").read_text()
    results = published_record(pages / "game-sweep.json")["results"]
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
    code, said, _ = invoke("plot", "game_steps", "--store", "experiments/published")
    assert (code, "loss.svg" in said) == (0, True)


@pytest.fixture
def published(project):
    """Return the folder of the published runs of one sweep, in a project."""
    (project / "experiments" / "game_steps.sweep.yaml").unlink()
    (result,) = publish(["experiments/game.sweep.yaml"], workers=1)
    assert result.published == str(Path("experiments", FOLDER))
    shutil.rmtree(project / "_build")  # a fresh clone has none
    return project / "experiments" / FOLDER


def test_the_other_commands_take_the_published_store(published, project):
    where = ("--store", "experiments/published")
    code, said, _ = invoke("status", *where)
    assert (code, said.splitlines()[1].split()) == (0, ["game", "4", "4", "0", "0", "0"])
    code, said, _ = invoke("table", "game", *where)
    assert (code, said.count("finished")) == (0, 4)
    code, said, _ = invoke("plot", "game", *where)
    assert code == 0
    assert (project / "_build" / "sweeps" / "game" / "loss.svg").exists()
    assert not (project / "experiments" / "sweeps").exists()
    code, said, _ = invoke("show", "game-rate=0.2", *where)
    assert (code, "file policy.bin" in said, "Notebook" in said) == (0, True, False)
    code, said, _ = invoke("reproduce", "game-rate=0.2", *where)
    assert (code, said) == (0, "game-rate=0.2: identical (4 values compared)\n")
    (folder,) = published.glob("game-rate=0.2-*/*")
    code, said, _ = invoke("reproduce", str(folder))
    assert (code, said) == (0, "game-rate=0.2: identical (4 values compared)\n")
    before = tree(published)
    write_notebook(project / "experiments" / "game.ipynb", PARAMETERS, f"{BODY}# edited")
    code, _, errors = invoke("reproduce", "game-rate=0.2", *where)
    assert (code, "got one that was edited since" in errors) == (1, True)
    assert "or check out the code of then" in errors
    assert tree(published) == before
    assert invoke("status", *where)[1].splitlines()[1].split() == ["game", "4", "4", "0", "0", "0"]


def test_what_changed_since_is_said(published, project, lay_out):
    page = project / "book" / "experiments" / "game-sweep.md"
    record = next(published.glob("*/*/record.json"))
    plan = published / ".sweeps" / "game.json"
    before = record.read_text(), plan.read_text()

    (project / "experiments" / "game.sweep.yaml").write_text(RATES.replace("0.2]", "0.2, 0.4]"))
    lay_out()
    assert "Since then `game.sweep.yaml` changed; what is shown is what came out then." in page.read_text()
    assert "\n\n4 runs of `experiments/game.ipynb`" in page.read_text()
    write_notebook(project / "experiments" / "game.ipynb", PARAMETERS, f"{BODY}# edited")
    lay_out()
    assert "Since then `game.ipynb` changed;" in page.read_text()

    told = json.loads(before[0])
    old = Store(published).read_all([str(record.parent.relative_to(published))])[0]
    told["inputs"]["files"]["lab/recording.py"] = "0" * 64
    told["inputs"]["versions"] |= {f"gone{n}": "1.0" for n in range(5)}
    store = Store(published)
    with store.claim(old) as folder:
        moved = store.commit(folder, told)
    edited = json.loads(before[1])
    (own,) = [run for run in edited["runs"] if run["request"] == old.request]
    own["inputs"] = moved.location.rpartition("/")[2]
    plan.write_text(json.dumps(edited))
    (sweep, runs) = as_published(read_sweep(project / "experiments" / "game.sweep.yaml"))
    assert len(runs) == 4
    assert sweep.changed == ("game.ipynb", "lab/recording.py", *(f"gone{n}" for n in range(5)))
    lay_out()
    said = "Since then `game.ipynb`, `lab/recording.py`, `gone0`, `gone1`, `gone2` and 2 more changed;"
    assert said in page.read_text()


def test_former_runs_are_replaced_when_all_new_ones_are_there(published, project):
    former = tree(published)
    (project / "experiments" / "game.sweep.yaml").write_text(
        RATES.replace("0.2]", "0.4]") + f"fixed: {{broken: {project / 'broken'}}}\n"
    )
    (project / "broken").touch()
    code, said, _ = invoke("publish")
    assert (code, "Published" in said) == (1, False)
    assert "0 done, 4 failed" in said
    assert tree(published) == former
    (project / "broken").unlink()
    put(published, [make_run({"seed": 9})])  # as if killed before the plan was written
    assert invoke("publish")[0] == 1
    code, said, _ = invoke("publish", "--retry", "failed")
    assert (code, "4 done, 0 failed" in said) == (0, True)
    store = Store(published)
    assert {run.parameters["rate"] for run in store.runs()} == {0.1, 0.4}
    assert len(list(store.runs())) == 4
    assert {run.request for run in store.runs()} == {
        run.request for run in planned_runs(store.plans()["game"])
    }


def test_records_that_are_gone_stop_the_build(published, lay_out):
    shutil.rmtree(next(published.glob("game-*")))
    with pytest.raises(StoreError, match=r"got 3 of 4; remedy: gradtricks publish experiments/game\.sweep"):
        lay_out()


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
    optuna = "objective: results.loss, direction: minimize, trials: 1, parameters: {rate: {low: 0, high: 1}}"
    path.write_text(f"notebook: game.ipynb\npublished: true\noptuna: {{{optuna}}}\n")
    with pytest.raises(ParameterError, match="published: not for a search"):
        read_search(path)


def test_a_build_says_what_is_to_come_before_the_first_run_ends(published, project, lay_out):
    screen = Console(file=io.StringIO(), width=200)
    lay_out(workers=1, console=screen)
    first, run, last = screen.file.getvalue().splitlines()
    assert first == "1 run to do; then the pages."
    assert run.startswith("1/1 game: ")
    assert last.startswith("Building the pages")
    lay_out(workers=1, console=screen)
    assert screen.file.getvalue().count("to do") == 1
    node = nbformat.read(project / "experiments" / "game.ipynb", as_version=4)
    node.cells.append(nbformat.v4.new_code_cell("'edited'"))
    node.metadata["gradtricks"] = {"expected_s": 0.2}
    nbformat.write(node, project / "experiments" / "game.ipynb")
    lay_out(workers=1, console=screen)
    assert re.search(r"1 run to do, about \d+ s; then the pages\.", screen.file.getvalue())


def test_all_that_the_build_runs_is_reproduced_without_published_sweeps(published, project, lay_out):
    lay_out()
    code, said, _ = invoke("reproduce", "--published")
    assert (code, said) == (0, "game: identical (4 values compared)\n")


def test_published_runs_are_small_and_survive_git(published, project):
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-C", str(project)]
    for words in (["init", "-q"], ["add", "experiments"], ["commit", "-q", "-m", "runs"]):
        subprocess.run([*git, *words], check=True)
    files = tree(published)
    shutil.rmtree(published)
    subprocess.run([*git, "restore", "experiments"], check=True)
    assert tree(published) == files
    sweep, runs = as_published(read_sweep(project / "experiments" / "game.sweep.yaml"))
    assert (len(runs), sweep.changed) == (4, ())
    text = (published / ".sweeps" / "game.json").read_text()
    assert json.loads(text)["notebook"] == "../game.ipynb"
    assert text.count("\n") > 20


def test_a_plan_that_was_edited_is_not_believed(published, lay_out):
    plan = published / ".sweeps" / "game.json"
    whole = json.loads(plan.read_text())
    for wrong in ({**whole, "runs": ["a"]}, {**whole, "varied": 1}, {**whole, "runs": []}):
        plan.write_text(json.dumps(wrong))
        with pytest.raises(StoreError, match=r"expected (a plan|the published runs)"):
            lay_out()
    whole["runs"][0]["title"] = "../outside"
    plan.write_text(json.dumps(whole))
    with pytest.raises(StoreError, match="made by plan_run"):
        lay_out()


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda text: f"<<<<<<< HEAD\n{text}", "got none that can be read; remedy: git restore"),
        (
            lambda text: text.replace('"inputs"', '"other"'),
            "expected plans of published sweeps.*got one of an ordinary sweep",
        ),
    ],
)
def test_a_plan_that_was_edited_costs_no_other_sweep_its_runs(published, project, edit, message):
    plan = published / ".sweeps" / "game.json"
    plan.write_text(edit(plan.read_text()))
    before = tree(published)
    (project / "experiments" / "game_steps.sweep.yaml").write_text(STEPS)
    with pytest.raises(StoreError, match=message):
        list(publish(["experiments/game_steps.sweep.yaml"], workers=1))
    assert tree(published) == before
