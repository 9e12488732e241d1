"""Spaces and sweep files: what they hold, in which order, and what is said when something is wrong."""

import math
from itertools import product
from unittest.mock import Mock

import pytest

from gradtricks.lab.commands.publishing import plan_book
from gradtricks.lab.notebooks import schema
from gradtricks.lab.notebooks.schema import ParameterError, read_notebook, read_parameters
from gradtricks.lab.storage.store import Store
from gradtricks.lab.sweeps.files import SweepFile
from gradtricks.lab.sweeps.overviews import describe
from gradtricks.lab.sweeps.sweep import expand, freeze, plan_sweep, read_sweep
from notebooks import write_notebook

PARAMETERS = """\
backend: Literal["torch", "tensorflow"] = "torch"
seed: NonNegativeInt = 0
optimizer: Literal["sgd", "adam"] = "sgd"
rate: PositiveFloat = 0.1  # per step
momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
nesterov: bool = False
label: str = "a"
sizes: list[int] = [1, 2]
width: int = 8
share: float | None = None
either: int | float = 1
"""


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    """Return the path of a notebook; sweep files lie beside it."""
    return write_notebook(tmp_path_factory.mktemp("p") / "experiments" / "small.ipynb", parameters=PARAMETERS)


@pytest.fixture
def sweep(notebook):
    """Return a function that reads a sweep file of the given text."""
    return lambda text, name="all.sweep.yaml": read_sweep(write(notebook.with_name(name), text))


def write(path, text):
    """Write a file that needn't say which notebook."""
    path.write_text(text if "notebook" in text else f"notebook: small.ipynb\n{text}", encoding="utf-8")
    return path


def varied(sweep):
    """Return what varies, run by run."""
    return [tuple(run.parameters[name] for name in sweep.varied) for run in sweep.specs]


def problems(call, *arguments, **options):
    """Return the lines of what is wrong, behind the one that says that nothing was run."""
    with pytest.raises(ParameterError) as caught:
        call(*arguments, **options)
    first, *lines = str(caught.value).splitlines()
    assert first.endswith(": nothing was run.")
    return lines


def test_a_grid_with_seeds_in_the_order_of_the_file(sweep):
    found = sweep("grid: {rate: [1, 1e-3], label: [b, c]}\nseeds: 2\nfixed: {width: 9}")
    assert found.varied == ("rate", "label", "seed")
    assert varied(found) == list(product([1.0, 0.001], ["b", "c"], [0, 1]))
    assert {run.parameters["width"] for run in found.specs} == {9}
    assert (found.name, found.title, found.question, found.shown) == ("all", "all", "", ())


def test_what_a_file_says_beside_its_space(sweep):
    text = "title: T\nquestion: Q?\nshown: [results.a.b, varying.s]\nthreads: 2\n"
    found = sweep(f"{text}seeds: [7, 5]", "wide-1.sweep.yaml")
    assert (found.name, found.title, found.question) == ("wide-1", "T", "Q?")
    assert found.shown == ("results.a.b", "varying.s")
    assert [(run.threads, run.parameters["seed"]) for run in found.specs] == [(2, 7), (2, 5)]
    wider = read_sweep(found.notebook.with_name("wide-1.sweep.yaml"), threads=3)
    assert {run.threads for run in wider.specs} == {3}


def test_a_result_to_show_may_say_what_it_means(sweep):
    found = sweep("shown: {results.loss: What it costs, varying.s: How long}\nseeds: 2")
    assert found.shown == ("results.loss", "varying.s")
    assert found.meanings == {"results.loss": "What it costs", "varying.s": "How long"}
    assert sweep("shown: [results.loss]\nseeds: 2").meanings == {}
    assert "shown: expected the name of a result, such as results.loss; got 'loss'" in problems(
        sweep, "shown: {loss: a}\nseeds: 2"
    )
    assert "shown: expected a valid tuple; got 'loss'" in problems(sweep, "shown: loss\nseeds: 2")


def test_words_stand_for_parameters_and_results_that_there_are(sweep):
    found = sweep("shown: [results.loss]\nlabels: {results.loss: Loss, case: as, seed=0: one}\nseeds: 2")
    assert found.labels == {"results.loss": "Loss", "case": "as", "seed=0": "one"}
    wrong = "shown: [results.loss]\nlabels: {results.los: Loss, sed=0: the first}\nseeds: 2"
    assert problems(sweep, wrong) == [
        "labels: expected a parameter or a result that is shown; got results.los",
        "labels: expected a parameter or a result that is shown; got sed=0",
    ]


def test_values_are_read_as_the_notebook_declares_them(sweep):
    text = """
list:
- {label: no, share: null, rate: 1e-3}
- {label: '12:30', nesterov: yes, sizes: [3]}
- label: 012
"""
    first, second, third = (run.parameters for run in sweep(text).specs)
    assert (first["label"], first["share"], first["rate"]) == ("no", None, 0.001)
    assert (second["label"], second["nesterov"], second["sizes"]) == ("12:30", True, [3])
    assert (third["label"], third["sizes"]) == ("012", [1, 2])


def test_zip_and_list_multiply_with_the_rest(sweep):
    found = sweep("zip: {rate: [1, 2], width: [3, 4]}\nlist: [{label: b}, {label: c, momentum: 0}]\nseeds: 2")
    assert found.varied == ("label", "momentum", "rate", "width", "seed")
    assert varied(found) == [
        (*case, *pair, seed)
        for case, pair, seed in product([("b", 0.9), ("c", 0.0)], [(1.0, 3), (2.0, 4)], [0, 1])
    ]


def test_configurations_may_have_names(sweep, tmp_path):
    text = "list: {plain: {}, wide: {width: 16}, still: {momentum: 0.0, label: '0'}}\n"
    found = sweep(text + "grid: {rate: [1, 2]}\nseeds: 2")
    assert found.varied == ("width", "momentum", "label", "rate", "seed")
    assert [found.cases[run.request] for run in found.specs] == [
        name for name in ("plain", "wide", "still") for _ in range(4)
    ]
    store = Store(tmp_path / "runs")
    freeze(found, store)
    assert [run["case"] for run in store.plan(found.name)["runs"]] == list(found.cases.values())
    unnamed = sweep("list: [{}, {width: 16}]")
    assert unnamed.cases == {}
    freeze(unnamed, store)
    assert store.plan(unnamed.name)["runs"][0]["case"] == ""


@pytest.mark.parametrize("stem", ["a" * 150, "=a", "-", ".a", "日本"])
def test_notebooks_of_any_name_have_a_plan(notebook, tmp_path, stem):
    path = tmp_path / f"{stem}.ipynb"
    path.write_bytes(notebook.read_bytes())
    found = plan_sweep(path, seeds=2)
    store = Store(tmp_path / "runs")
    freeze(found, store)
    assert store.plans() == [found.name]


def test_a_list_is_several_values_of_an_untyped_parameter(tmp_path):
    write_notebook(tmp_path / "plain.ipynb", parameters="optimizer = None\nmomentum = 0.0")
    text = "grid: {optimizer: [sgd, rms, adam], momentum: [0, 0.9]}\n"
    rule = "exclude: [{momentum: 0.9, optimizer: [rms, adam]}]"
    found = read_sweep(write(tmp_path / "a.sweep.yaml", f"notebook: plain.ipynb\n{text}{rule}"))
    assert varied(found) == [("sgd", 0.0), ("sgd", 0.9), ("rms", 0.0), ("adam", 0.0)]


def test_what_is_excluded_does_not_run(sweep):
    text = "grid: {optimizer: [sgd, adam], sizes: [[1], [2, 3]], rate: [1, 2]}\n"
    found = sweep(
        text + "exclude: [{optimizer: adam, rate: [1, 2]}, {sizes: [2, 3], rate: 2}, {sizes: [[1]], rate: 1}]"
    )
    assert varied(found) == [([1], 2.0), ([2, 3], 1.0)]
    assert {run.parameters["optimizer"] for run in found.specs} == {"sgd"}


def test_all_mistakes_in_a_file_are_said_at_once(sweep):
    text = """
grid: {rate: [0, -1, fast], sead: [1], label: []}
zip: {width: [1, 2], share: [0.5], rate: [1]}
seeds: 0
sobol: {samples: 100, parameters: {momentum: {low: 0, high: 2}}}
fixed: {nesterov: maybe}
only_if: {label: {optimizer: sgd}}
exclude: [{backend: jax, rate: [0, -1]}, {optimiser: sgd}, {}]
shown: [loss]
threads: 0
gird: {}
title: [a]
"""
    lines = problems(sweep, text)
    for expected in [
        "gird: unknown (did you mean grid?); expected fixed, list, zip, grid, seeds, exclude,",
        "sobol: unknown; expected fixed, list, zip,",
        "threads: expected greater than or equal to 1; got '0'",
        "title: expected a valid string; got ['a']",
        "shown: expected the name of a result, such as results.loss; got 'loss'",
        "rate: expected in one part; got it in zip and grid",
        "grid label: expected values; got none",
        "zip: expected equally many values of each; got 2 of width, 1 of share, 1 of rate",
        "seeds: expected a number above 0, or a list of them; got '0'",
        "grid: rate: expected float above 0 (per step); got 0",
        "grid: rate: expected float above 0 (per step); got -1",
        "grid: rate: expected float above 0 (per step); got 'fast'",
        "grid: sead: unknown (did you mean seed?); the notebook takes backend, seed,",
        "fixed: nesterov: expected bool, written true, yes, on, false, no or off; got 'maybe'",
        "only_if: unknown; expected fixed, list, zip,",
        "exclude: optimiser: unknown (did you mean optimizer?)",
        "exclude: backend: expected Literal['torch', 'tensorflow']; got 'jax'",
        "exclude: rate: expected float above 0 (per step); got 0",
        "rate: expected float above 0 (per step); got -1",
        "exclude: expected some parameters in each rule; got none",
    ]:
        assert any(line.startswith(expected) for line in lines), (expected, lines)
    assert len(lines) == 20


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("title: a", "expected something that varies: list, zip, grid or seeds; got none"),
        ("grid: {}", "grid: expected at least 1 item after validation, not 0; got {}"),
        ("list: []", "list: expected some parameters; got none"),
        ("list: {}", "list: expected some parameters; got none"),
        ("list: {'': {}, b: {rate: 0.2}}", "list: expected a name for each configuration; got an empty one"),
        ("list: {same: {}, again: {rate: 0.1}}", "expected each configuration once; got twice: "),
        (
            "list: {a: {}, b: {rate: 0.2}}\ngrid: {case: [1, 100]}",
            "expected no case beside named configurations, whose names tables call so; got case; remedy: ",
        ),
        ("fixed: {rate: 1}", "expected something that varies"),
        ("grid: {rate: [1, 1.0]}", "expected each configuration once; got twice: rate = 1.0"),
        ("list: [{rate: 0.1}, {label: a}]", "expected each configuration once; got twice: "),
        ("grid: {rate: [1, 2]}\nexclude: [{rate: 3}]", "exclude: rule 1 matches no configuration"),
        ("grid: {rate: [1, 2]}\nexclude: [{rate: [1, 2]}]", "exclude: expected rules that leave something"),
        ("seeds: [0, 0]", "got twice: seed = 0"),
        ("seeds: [-1]", "seeds: seed: expected int at least 0; got -1"),
        ("seeds: 3\ngrid: {seed: [1]}", "seed: expected in one part; got it in grid and seeds"),
        ("seeds: &a 3", "line 2: anchors, aliases and tags aren't allowed"),
        ("notebook: nowhere.ipynb\nseeds: 3", "got nothing there"),
        ("notebook: [a]\nseeds: 3", "notebook: expected a valid string"),
        ("# notebook", "expected 'notebook: PATH' and what varies; got None"),
        ("{title: notebook}", "notebook: missing"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(sweep, text, message):
    assert any(message in line for line in problems(sweep, text))


def test_many_twins_are_counted(sweep):
    (line,) = problems(sweep, "grid: {rate: [1, 1]}\nseeds: 9")
    assert ": rate = 1.0, seed = 0, and 8 more; remedy: take out values that come twice" in line


def test_a_space_without_end_is_refused_before_it_is_made(sweep):
    big = "seeds: 1000000000"
    (line,) = problems(sweep, big)
    assert line == "expected at most 100000 runs; got 1000000000; remedy: vary less"
    thousand = "[" + ", ".join(str(n) for n in range(1, 1001)) + "]"
    (line,) = problems(sweep, f"grid: {{rate: {thousand}, width: {thousand}, sizes: [[1], [2]]}}\nseeds: 500")
    assert "got 1000000000" in line


@pytest.mark.parametrize("name", ["all.yaml", ".sweep.yaml", "a b.sweep.yaml", ".hidden.sweep.yaml"])
def test_a_file_has_a_name_that_can_be_one(sweep, name):
    assert any("expected a file named NAME.sweep.yaml" in line for line in problems(sweep, "seeds: 2", name))


def test_a_missing_or_binary_file_is_refused(notebook):
    with pytest.raises(FileNotFoundError, match="expected a sweep file at"):
        read_sweep(notebook.with_name("none.sweep.yaml"))
    path = notebook.with_name("torn.sweep.yaml")
    path.write_bytes(b"\xff")
    assert "can't decode" in problems(read_sweep, path)[0]


def test_the_command_line_plans_as_a_file_does(sweep, notebook):
    from_file = sweep(
        "grid: {rate: [1, 1e-3], sizes: [[1], [2, 3]], label: ['b, c', d]}\nseeds: 2\nfixed: {width: 9}"
    )
    lists = ["rate=1, 1e-3", "sizes=[1],[2, 3]", 'label="b, c",d']
    planned = plan_sweep(notebook, grid=lists, seeds=2, given={"width": 9})
    assert [run.request for run in planned.specs] == [run.request for run in from_file.specs]
    grid = {"rate": [1, 0.001], "sizes": [[1], [2, 3]], "label": ["b, c", "d"]}
    same = plan_sweep(notebook, grid=grid, seeds=range(2), given={"width": 9}, shown=["results.loss"])
    assert [run.request for run in same.specs] == [run.request for run in planned.specs]
    assert (same.name, same.varied) == (planned.name, ("rate", "sizes", "label", "seed"))
    assert (same.name[:6], same.shown) == ("small-", ("results.loss",))
    pairs = plan_sweep(notebook, zip=["rate=1,2", "width=3,4"], threads=3)
    assert varied(pairs) == [(1.0, 3), (2.0, 4)]
    assert {run.threads for run in pairs.specs} == {3}


MIXED = {"grid": ["rate=1,x", "rat=3"], "zip": ["width=1,2", "share=1"]}


@pytest.mark.parametrize(
    ("options", "begin"),
    [
        ({}, ["expected something that varies: list, zip, grid or seeds; got none of them"]),
        (MIXED, ["zip: expected equally many", "grid: rate: ", "grid: rat: "]),
        (MIXED | {"seeds": 10**9}, ["zip: expected equally many", "expected at most 100000 runs"]),
        ({"grid": ["width=x"], "shown": ["a loss", "loss"]}, ["shown: ", "grid: "]),
        ({"seeds": 2, "threads": 0}, ["threads: expected greater than or equal to 1; got 0"]),
        ({"seeds": True}, ["seeds: expected a number above 0, or a list of them; got T", "expected some"]),
        ({"grid": ["label"]}, ["expected name=value; got 'label'"]),
        (
            {"grid": ['label="b', "rate=a]"]},
            ["label: expected values such as 1,2 or a,b; got '\"b'; r", "rate: "],
        ),
    ],
)
def test_what_is_wrong_on_the_command_line_is_said(notebook, options, begin):
    lines = problems(plan_sweep, notebook, **options)
    assert [line[: len(start)] for line, start in zip(lines, begin, strict=True)] == begin


def test_values_of_any_size_are_planned(notebook):
    found = plan_sweep(notebook, grid={"width": [10**5000, -(10**5000)], "label": ["\u2028", "\0"]})
    assert found.varied == ("width", "label")
    assert len({run.request for run in found.specs}) == 4
    assert [run.parameters["width"] > 0 for run in found.specs] == [True, True, False, False]


def test_a_hundred_thousand_configurations_are_made(notebook):
    grid = {"rate": [n / 1000 for n in range(1, 1001)], "width": list(range(100))}
    file = SweepFile.model_validate({"notebook": "small.ipynb", "grid": grid})
    found = expand(file, read_parameters(read_notebook(notebook), "small.ipynb"))
    assert len(found) == file.count() == 100_000
    assert math.isclose(found[-1]["rate"], 1.0)


def test_a_notebook_is_read_and_parsed_once(sweep, notebook, monkeypatch):
    read, parsed = Mock(wraps=schema.nbformat.read), Mock(wraps=schema.parse_cell)
    monkeypatch.setattr(schema.nbformat, "read", read)
    monkeypatch.setattr(schema, "parse_cell", parsed)
    for call, given in ((sweep, "seeds: 3"), (plan_book, notebook.parent), (describe, notebook)):
        read.reset_mock()
        parsed.reset_mock()
        call(given)
        assert (read.call_count, parsed.call_count) == (1, 1)
