"""The doctor for programs: ids and their pages, JSON, SARIF, choices, and how a script may end."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from gradtricks.cli import app
from gradtricks.doctor import rules
from gradtricks.doctor.examining import examine
from gradtricks.doctor.exporting import as_json, as_sarif, choose
from gradtricks.doctor.operations import SourceLine
from gradtricks.doctor.reports import Cause, Diagnosis

PAGES = {kind: rules.explain(name) for kind, name in rules.IDS.items()}


def scripts(framework):
    """Return the scripts of the pages that use a framework: kind, whether it is the right one, and code."""
    for kind, page in PAGES.items():
        for name, code in re.findall(r"## (Wrong|Right)\n\n```python\n(.*?)```", page, flags=re.DOTALL):
            if f"import {framework}" in code:
                yield pytest.param(kind, name == "Right", code, id=f"{rules.IDS[kind]}-{name}")


def check_script(tmp_path, kind, healthy, code):
    path = tmp_path / "train.py"
    path.write_text(code)
    found = examine(path, [], None)
    assert found.failure is None
    assert found.diagnosis.kinds == () if healthy else kind in found.diagnosis.kinds


@pytest.mark.parametrize(("kind", "healthy", "code"), [*scripts("torch")])
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate")
def test_the_scripts_of_a_page_are_judged_so_in_torch(in_torch, tmp_path, kind, healthy, code):
    check_script(tmp_path, kind, healthy, code)


@pytest.mark.parametrize(("kind", "healthy", "code"), [*scripts("tensorflow")])
def test_the_scripts_of_a_page_are_judged_so_in_tensorflow(in_tensorflow, tmp_path, kind, healthy, code):
    check_script(tmp_path, kind, healthy, code)


def test_every_kind_has_one_id_and_a_page():
    assert len(set(rules.IDS.values())) == len(rules.IDS)
    for kind, name in rules.IDS.items():
        head, *_, chapter = PAGES[kind].split("## Wrong")[0].strip().splitlines()
        assert head == f"# {name}: {kind}"
        assert (Path(__file__).parents[2] / "book" / f"{chapter.removeprefix('Chapter: ')}.md").is_file()
        assert rules.explain(name.lower()) == rules.explain(kind) == PAGES[kind]
    pages = Path(rules.__file__).with_name("pages").glob("*.md")
    assert {page.stem for page in pages} == set(rules.IDS.values())
    with pytest.raises(ValueError, match=r"expected one of: GT101 \(backward fails\), .*; got 'GT999'"):
        rules.explain("GT999")


LINE = SourceLine("train.py", 2, "<module>")
FOUND = Diagnosis(
    (
        Cause("never zeroed", ("a", "b"), "seen", LINE, "zero_grad"),
        Cause("never updated", (), "none", None, "step"),
    ),
    num_updates=3,
)


def test_json_has_all_that_is_printed():
    told = json.loads(as_json(FOUND, "boom"))
    assert (told["num_updates"], told["num_skipped"], told["failure"]) == (3, 0, "boom")
    zeroed, updated = told["causes"]
    assert zeroed["place"] == {"file": "train.py", "line": 2, "function": "<module>", "code": LINE.code}
    assert (zeroed["id"], zeroed["kind"], zeroed["subjects"]) == ("GT305", "never zeroed", ["a", "b"])
    assert (updated["id"], updated["place"], updated["remedy"]) == ("GT304", None, "step")
    assert "1. never zeroed [GT305]: a, b" in str(FOUND)
    assert "2. never updated [GT304]\n" in str(FOUND)


def test_sarif_names_lines_relative_to_the_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    inside, outside = (SourceLine(str(folder / "t.py"), 7, "f") for folder in (tmp_path, tmp_path.parent))
    causes = [Cause("cut", ("w",), "seen", place, "mend") for place in (inside, outside, LINE, None)]
    (run,) = json.loads(as_sarif(Diagnosis(tuple(causes), 1), "1.2"))["runs"]
    assert run["tool"]["driver"]["version"] == "1.2"
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["GT103"]
    assert {result["message"]["text"] for result in run["results"]} == {"cut (w): seen. Remedy: mend"}
    *placed, nowhere = [result["locations"] for result in run["results"]]
    addresses = [place["physicalLocation"]["artifactLocation"]["uri"] for (place,) in placed]
    assert addresses == ["t.py", (tmp_path.parent / "t.py").as_uri(), "train.py"]
    assert placed[0][0]["physicalLocation"]["region"] == {"startLine": 7}
    assert nowhere == []


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        ({}, ["GT305", "GT304"]),
        ({"select": "gt304, GT1"}, ["GT304"]),
        ({"select": "GT3", "ignore": "GT304"}, ["GT305"]),
        ({"ignore": "GT"}, []),
        ({"baseline": as_json(FOUND)}, []),
        ({"baseline": as_json(Diagnosis(FOUND.causes[1:], 1))}, ["GT305"]),
    ],
)
def test_causes_are_chosen_by_ids_and_by_a_baseline(options, ids):
    assert [cause.id for cause in choose(**options)(FOUND).causes] == ids


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"select": "GT9"}, "expected ids or beginnings of them, such as GT305 or GT3; got 'GT9'"),
        ({"ignore": "never zeroed"}, "expected ids or beginnings of them"),
        ({"baseline": "{}"}, "expected a baseline that gradtricks doctor --json has printed"),
        ({"baseline": "["}, "expected a baseline that gradtricks doctor --json has printed"),
    ],
)
def test_a_choice_that_means_nothing_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        choose(**options)


# The command.

TRAINING = """
import {framework}, os, sys, time
import issues_{framework} as issues
{before}
step, *_ = issues.CASES['clip_after_step'][-1]()
for _ in range(5):
    step()
    print("a step")
"""


def doctor(tmp_path, backend, *options, before="", text=TRAINING):
    path = tmp_path / "train.py"
    path.write_text(text.format(framework=backend.name, before=before))
    return CliRunner().invoke(app, ["doctor", *options, str(path)])


def test_the_command_prints_json_and_nothing_else(backend, tmp_path):
    result = doctor(tmp_path, backend, "--json", "--sarif", str(tmp_path / "found.sarif"))
    told = json.loads(result.stdout)
    assert (result.exit_code, [cause["id"] for cause in told["causes"]]) == (1, ["GT310"])
    assert "a step" in result.stderr
    (run,) = json.loads((tmp_path / "found.sarif").read_text())["runs"]
    assert [found["ruleId"] for found in run["results"]] == ["GT310"]
    (tmp_path / "before.json").write_text(result.stdout)
    again = doctor(
        tmp_path, backend, "--baseline", str(tmp_path / "before.json"), before="# a line further down"
    )
    assert again.exit_code == 0
    assert again.stdout.endswith("nothing found\n")


def test_what_a_script_does_besides_has_codes_of_its_own(backend, tmp_path):
    idle = doctor(tmp_path, backend, text="import {framework}{before}")
    assert (idle.exit_code, idle.stdout) == (4, "0 updates watched, nothing found\n")
    assert idle.stderr.startswith("expected a training; got a script without a backward pass")
    slow = doctor(tmp_path, backend, "--timeout", "0.3", before="time.sleep(60)")
    assert (slow.exit_code, slow.stdout) == (124, "0 updates watched, nothing found\n")
    assert slow.stderr == "the script was stopped after 0.3 s, before all updates were made\n"
    slower = doctor(tmp_path, backend, "--timeout", "10", "--updates", "3", before="")
    assert slower.exit_code == 1
    raw = doctor(tmp_path, backend, before="sys.stdout.buffer.write(bytes(range(256)))")
    assert raw.exit_code == 1


def test_a_child_of_the_script_reports_nothing(backend, tmp_path):
    path = tmp_path / "train.py"
    path.write_text(TRAINING.format(framework=backend.name, before="if os.fork():\n    os.wait()"))
    command = [Path(sys.executable).with_name("gradtricks"), "doctor", "--json", "--updates", "3", path]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert [cause["id"] for cause in json.loads(done.stdout)["causes"]] == ["GT310"]
    assert done.stderr.count("a step") == 4


def test_pages_are_printed_and_missing_scripts_asked_for():
    result = CliRunner().invoke(app, ["doctor", "--explain", "never zeroed"])
    assert (result.exit_code, result.stdout) == (0, rules.explain("GT305") + "\n")
    for options, message in (
        ((), "expected a training script; got none; remedy: gradtricks doctor train.py"),
        (("--explain", "GT9"), "expected one of: GT101"),
        (("--select", "GT9", "t.py"), "expected ids or beginnings of them"),
        (("--baseline", "nowhere.json", "t.py"), "No such file"),
    ):
        result = CliRunner().invoke(app, ["doctor", *options])
        assert result.exit_code == 2
        assert message in result.stderr


# In a notebook.

CELLS = {
    "torch": """
import torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(9):
    model(torch.ones(4, 2)).square().mean().backward()
    optimizer.step()
""",
    "tensorflow": """
import tensorflow as tf
x = tf.ones([4, 2])
model = tf.keras.Sequential([tf.keras.Input([2]), tf.keras.layers.Dense(1)])
optimizer = tf.keras.optimizers.SGD(0.1)
for _ in range(9):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.math.sqrt(-tf.abs(model(x))))
    optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
""",
}
SEEN = {"torch": ("never zeroed [GT305]", ".backward()"), "tensorflow": ("forward [GT201]", "tf.math.sqrt(")}


@pytest.fixture
def shell():
    from IPython.core.interactiveshell import InteractiveShell

    made = InteractiveShell()
    made.run_line_magic("load_ext", "gradtricks.doctor")
    yield made
    made.history_manager.end_session()
    made.restore_sys_module_state()


def test_a_cell_is_examined(backend, shell, capsys):
    kind, code = SEEN[backend.name]
    for line, updates in (("", 3), ("4", 4)):
        shell.run_cell_magic("doctor", line, CELLS[backend.name])
        said = capsys.readouterr().out
        assert said.startswith(f"{updates} updates watched, 1 found")
        assert kind in said
        assert code in said
    assert "optimizer" in shell.user_ns


def test_a_cell_that_fails_or_trains_nothing_says_so(backend, shell, capsys):
    shell.run_cell_magic("doctor", "", f"import {backend.name}")
    assert capsys.readouterr().out.startswith("expected a training; got ")
    with pytest.raises(ZeroDivisionError):
        shell.run_cell_magic("doctor", "", "1 / 0")  # the framework was imported before


def test_a_cell_magic_says_what_it_takes(shell, monkeypatch):
    with pytest.raises(ValueError, match="expected %%doctor, or a number of updates behind it; got 'two'"):
        shell.run_cell_magic("doctor", "two", "pass")
    with pytest.raises(ValueError, match=r"expected a notebook that imports .*; got both; remedy"):
        shell.run_cell_magic("doctor", "", "import torch, tensorflow")
    monkeypatch.setattr("gradtricks.doctor.magic.sys", SimpleNamespace(modules={}))
    with pytest.raises(ValueError, match=r"expected a notebook that imports .*; got neither; remedy"):
        shell.run_cell_magic("doctor", "", "pass")
