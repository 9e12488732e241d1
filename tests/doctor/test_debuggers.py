"""The comparison of debuggers: its cases, its rules, and its errors."""

import importlib
import subprocess
from types import SimpleNamespace

import pytest

import comparing
import environments
import judging
import reports
import sighting

CASE = reports.Case("one", "handed", "torch", "https://x.org", "a cause", (3, "sqrt("), "faulty.py", (), ())
PLACE = {"file": "faulty.py", "line": 3, "code": "loss = model(x)"}


def said(rule="A", words="layer 1 of 2", *places):
    return {"rule": rule, "words": words, "lines": [*places]}


@pytest.mark.parametrize("framework", reports.FRAMEWORKS)
def test_cases_have_threads_scripts_and_lines_that_exist(framework):
    cases = reports.read_cases(framework)
    assert len({case.name for case in cases}) == len(cases) >= 25
    for case in cases:
        assert case.url.startswith("https://")
        script = reports.Path(case.faulty[0])
        assert case.healthy is None or reports.Path(case.healthy[0]).is_file()
        source = (script.parent if case.file == "faulty.py" else reports.TESTS) / case.file
        text = source.read_text()
        for line in case.lines:
            assert line in text if isinstance(line, str) else text.splitlines()[line - 1].strip(), case.name


def test_sixty_healthy_trainings_are_of_one_framework_each():
    healthy = {framework: reports.read_healthy(framework) for framework in reports.FRAMEWORKS}
    assert sum(map(len, healthy.values())) >= 60
    assert "script maml" in healthy["torch"]
    assert "script gan_fit" in healthy["tensorflow"]
    assert all("test mlp_adam" in each for each in healthy.values())


def test_a_finding_counts_unless_the_twin_has_it():
    twin = [said("A", "layer 3 of 40 in 1e-5 s"), said("B")]
    assert comparing.new_findings([said("A", "layer 1 of 2 in 0.3 s"), said("B"), said("C")], twin) == [
        said("C")
    ]


@pytest.mark.parametrize(
    ("change", "right"),
    [({}, True), ({"line": 4}, False), ({"line": 4, "code": "y.sqrt()"}, True), ({"file": "b.py"}, False)],
)
def test_a_line_may_be_blamed_by_number_or_code(change, right):
    finding = said("A", "x", PLACE | change)
    assert comparing.right_lines(CASE, [finding]) == ([finding] if right else [])


@pytest.mark.parametrize(
    ("findings", "judged", "reached"),
    [
        ([said("A", "x", PLACE)], ("A", "yes"), "cause and line"),
        ([said("A")], ("A", "yes"), "cause"),
        ([said("A"), said("B", "y", PLACE)], ("A B", "half"), "half"),
        ([said("A")], ("A", "no"), "something else"),
        ([said("A")], ("B", "yes"), "not judged yet"),
        ([], ("A", "yes"), "nothing"),
    ],
)
def test_a_verdict_counts_while_the_same_rules_speak(findings, judged, reached):
    verdicts = {("tool", "torch", "one"): judged}
    assert judging.level(CASE, "tool", {"faulty one": findings}, verdicts) == reached


def test_a_case_without_a_line_needs_the_cause_only():
    case = reports.Case(**vars(CASE) | {"lines": ()})
    verdicts = {("tool", "torch", "one"): ("A", "yes")}
    assert judging.level(case, "tool", {"faulty one": [said("A")]}, verdicts) == "cause and line"
    assert case.round == 0


def test_verdicts_are_of_cases_and_tools_that_exist(tmp_path):
    names = {(each, case.name) for each in reports.FRAMEWORKS for case in reports.read_cases(each)}
    for tool, framework, case in judging.read_verdicts():
        assert tool in environments.CLAIMED[framework]
        assert (framework, case) in names
    path = tmp_path / "judged.csv"
    path.write_text("tool,framework,case,rules,verdict,words,by\nours,torch,one,A,maybe,x,us\n")
    with pytest.raises(ValueError, match="one of yes, half, no; got maybe for ours on one in judged"):
        judging.read_verdicts(path)


def runs_with(name, *findings):
    told = [
        {"tool": "gradtricks", "training": f"faulty {name}", "findings": [*findings]},
        {"tool": "gradtricks", "training": "faulty double_softmax", "findings": [said()]},
    ]
    return [{"parameters.backend": "torch", "provenance.commit": "abc", "results.reports": told}]


def test_a_first_sight_is_of_a_round_and_kept_once():
    verdicts = {("gradtricks", "torch", "forum_84911"): ("A", "yes")}
    rows = sighting.first_sights(runs_with("forum_84911", said("A", "its words")), verdicts, ())
    key = ("gradtricks", "torch", "forum_84911")
    assert rows == [(*key, "1", "abc", "cause", "A", "its words")]
    assert sighting.first_sights(runs_with("forum_84911", said("B")), verdicts, {key: {}}) == []
    ((*_, level, rules, words),) = sighting.first_sights(runs_with("forum_84911"), {}, ())
    assert (level, rules, words) == ("nothing", "", "")


def test_a_first_sight_without_a_verdict_says_what_to_append():
    row = 'gradtricks,torch,forum_84911,A,,"no, and why",'
    with pytest.raises(ValueError, match="got none on 1; remedy: append these rows to judged") as told:
        sighting.first_sights(runs_with("forum_84911", said("A", "no, and why")), {}, ())
    assert str(told.value).splitlines()[1:] == [row]


def test_rows_of_first_sight_are_added_behind_the_others(tmp_path, monkeypatch, capsys):
    path = tmp_path / "first_sight.csv"
    path.write_text(sighting.PATH.read_text().splitlines(keepends=True)[0])
    monkeypatch.setattr(sighting, "PATH", path)
    monkeypatch.setattr(sighting, "read_runs", lambda _: runs_with("forum_84911"))
    monkeypatch.setattr(sighting, "read_first_sight", dict)
    sighting.main()
    assert capsys.readouterr().out == "1 rows added to first_sight.csv\n"
    monkeypatch.undo()
    assert [*sighting.read_first_sight(path)] == [("gradtricks", "torch", "forum_84911")]


def test_first_sights_are_of_tools_and_cases_that_exist():
    rounds = {
        (each, case.name): case.round for each in reports.FRAMEWORKS for case in reports.read_cases(each)
    }
    for (tool, framework, case), row in sighting.read_first_sight().items():
        assert tool in environments.CLAIMED[framework]
        assert int(row["round"]) == rounds[framework, case] > 0
        assert row["level"] in judging.LEVELS[:-1]


def test_records_of_all_published_sweeps_are_read(tmp_path):
    assert judging.read_runs(tmp_path) == []
    runs = judging.read_runs(reports.HERE.parent / "published")
    assert {"torch", "tensorflow"} == {run["parameters.backend"] for run in runs}


def test_a_share_has_an_interval():
    assert judging.share(5, 10) == pytest.approx([0.5, 0.2366, 0.7634], abs=1e-4)
    assert [each != each for each in judging.share(0, 0)] == [True] * 3


def test_a_tool_s_findings_come_back_by_name(backend, tmp_path):
    names = {"torch": "double_softmax", "tensorflow": "layers_in_lambda"}
    name = names[backend.name]
    told = comparing.run_tool("gradtricks", backend.name, [name], tmp_path)
    assert [*told] == [f"faulty {name}", f"healthy {name}, cured"]
    (case,) = [each for each in reports.read_cases(backend.name) if each.name == name]
    assert comparing.right_lines(case, told[f"faulty {name}"]["findings"])
    assert told[f"healthy {name}, cured"]["findings"] == []
    assert all(each["seconds"] > 0 for each in told.values())


def test_anomaly_mode_shows_the_training_s_own_lines(tmp_path):
    told = comparing.run_tool("detect_anomaly", "torch", ["hidden_kept"], tmp_path)
    (finding,) = told["faulty hidden_kept"]["findings"]
    assert {place["file"] for place in finding["lines"]} == {"faulty.py"}
    assert "a second time" in told["faulty hidden_kept"]["ended"]


def test_torch_models_are_handed_over_once_with_optimizer_and_inputs(monkeypatch):
    torch, attaching = importlib.import_module("torch"), importlib.import_module("adapters.attaching")
    monkeypatch.setattr(torch.nn.Module, "__call__", torch.nn.Module.__call__)
    monkeypatch.setattr(torch.optim.Optimizer, "__init__", torch.optim.Optimizer.__init__)
    handed, x = [], torch.ones(4, 2)
    attaching.on_first_forward(lambda *given: handed.append(given))
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
    with torch.no_grad():
        model(x)
    assert handed == []
    for _ in range(2):
        model[0](x)
        model(x)
    ((outermost, trained_by, inputs),) = handed
    assert (outermost is model, trained_by is optimizer, inputs) == (True, True, ())


def test_a_name_that_is_no_case_s_is_refused(tmp_path):
    with pytest.raises(ValueError, match="only must have names of cases or healthy trainings; got nowhere"):
        comparing.run_tool("gradtricks", "torch", ["nowhere"], tmp_path)


def test_a_tool_whose_process_ends_early_is_an_error(tmp_path, monkeypatch):
    ended = SimpleNamespace(stdout="", stderr="ImportError: torch")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: ended)
    with pytest.raises(RuntimeError, match="expected 2 reports of gradtricks; got 0 and ImportError"):
        comparing.run_tool("gradtricks", "torch", ["hidden_kept"], tmp_path)


def test_a_tool_that_fails_in_all_trainings_is_an_error(tmp_path, monkeypatch):
    failed = reports.json.dumps(
        {"findings": [], "ended": "the tool failed: no traincheck-collect", "seconds": 0}
    )
    monkeypatch.setattr(comparing, "make_environment", lambda *_: "python")
    monkeypatch.setattr(
        subprocess, "run", lambda *_, **__: SimpleNamespace(stdout=f"{failed}\n" * 2, stderr="")
    )
    with pytest.raises(
        RuntimeError, match="traincheck to examine a training; got the tool failed: no trainch"
    ):
        comparing.run_tool("traincheck", "torch", ["forum_84911"], tmp_path)


def test_a_tool_that_nobody_compares_is_refused(tmp_path):
    with pytest.raises(ValueError, match="tool must be one of gradtricks, detect_anomaly, torch_audit"):
        environments.make_environment("nothing", tmp_path)


def test_a_tool_that_learns_gets_cases_with_twins(tmp_path, monkeypatch):
    def run(command, **options):
        names = [reports.Path(line[0]).name for line in reports.json.loads(options["input"])]
        assert set(names) == {"faulty.py", "healthy.py"}
        return SimpleNamespace(stdout='{"ended": ""}\n' * len(names), stderr="")

    monkeypatch.setattr(comparing, "make_environment", lambda *_: "python")
    monkeypatch.setattr(subprocess, "run", run)
    told = comparing.run_tool("traincheck", "torch", [], tmp_path)
    assert {"faulty forum_84911", "healthy hidden_kept, cured"} <= told.keys()


def test_traincheck_learns_from_the_twin_with_the_next_seed(tmp_path, monkeypatch):
    commands = []

    def run(command, **_):
        commands.append([reports.Path(command[0]).name, *command[1:]])
        (tmp_path / "checked" / "target").mkdir(parents=True, exist_ok=True)
        violated = {"relation_type": "Lead", "display_name": "step() leads zero_grad()"}
        told = reports.json.dumps({"violations": [violated, violated]})
        (tmp_path / "checked" / "target" / "violations_summary.json").write_text(told)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "run", run)
    (case,) = [each for each in reports.read_cases("torch") if each.name == "forum_84911"]
    findings, ended = importlib.import_module("adapters.traincheck").examine(*case.faulty)
    assert (findings, ended) == ([said("Lead", "step() leads zero_grad()")], "")
    assert (tmp_path / "target.py").read_text() == reports.Path(case.faulty[0]).read_text()
    assert "manual_seed(787)" in (tmp_path / "reference.py").read_text()
    ran = [name for name, *_ in commands]
    assert ran == ["traincheck-collect", "traincheck-infer", "traincheck-collect", "traincheck-check"]
    assert all(each[3:5] == ["--models-to-track", "model_transfer"] for each in commands[::2])


def test_an_environment_is_made_once(tmp_path, monkeypatch):
    asked = []

    def run(command, **_):
        asked.append(command[1:3])
        (tmp_path / "guardtower").mkdir(exist_ok=True)
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(subprocess, "run", run)
    python = environments.make_environment("guardtower", tmp_path)
    assert python == environments.make_environment("guardtower", tmp_path)
    assert asked == [["-m", "venv"], ["-m", "pip"]]


def test_a_tool_that_pip_cannot_install_is_an_error(tmp_path, monkeypatch):
    failed = SimpleNamespace(returncode=1, stderr="no index")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(RuntimeError, match=r"to install guardtower==0\.1\.0; got no index"):
        environments.make_environment("guardtower", tmp_path)
