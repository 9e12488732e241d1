"""The house rules: one contract for both frameworks, no leaks between them, one stem everywhere."""

import ast
import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from functools import cache
from graphlib import TopologicalSorter
from itertools import product
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import gradtricks.doctor
from gradtricks._core import kernels
from gradtricks._load import BACKENDS, OLDEST, expect_framework

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "gradtricks"
DOCTOR = PACKAGE / "doctor"
STEMS = sorted(path.stem for path in (PACKAGE / "reference").glob("[a-z]*.py"))
# Where the modules of each stem stand, and the folder of its tests.
HOMES = dict.fromkeys(STEMS, (PACKAGE, "tricks"))
HOMES |= {path.stem: (DOCTOR, "doctor") for path in (DOCTOR / "reference").glob("[a-z]*.py")}
NOTEBOOKS = sorted((ROOT / "experiments").glob("*.ipynb"))
IMPORTS = {"torch": {"torch"}, "tensorflow": {"tensorflow", "keras"}}


@cache
def stub(folder):
    """Return the module of each name that a package exports, read from its stub without importing it."""
    body = ast.parse((folder / "__init__.pyi").read_text()).body
    nodes = [node for node in body if isinstance(node, ast.ImportFrom)]
    return {alias.name: node.module for node in nodes for alias in node.names}


@cache
def signatures(folder, stem):
    """Return the arguments of a module's public functions."""
    body = ast.parse((folder / f"{stem}.py").read_text()).body
    functions = [node for node in body if isinstance(node, ast.FunctionDef)]
    return {node.name: arguments(node.args) for node in functions if not node.name.startswith("_")}


def arguments(args):
    """Return names, kinds and defaults of a function's arguments."""
    defaults = [None] * (len(args.args) - len(args.defaults)) + [ast.unparse(d) for d in args.defaults]
    keyword = {
        arg.arg: default and ast.unparse(default)
        for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True)
    }
    positional = [(arg.arg, default) for arg, default in zip(args.args, defaults, strict=True)]
    return {"positional": positional, "keyword": keyword}


# The contract: the names, arguments and defaults of the oracle, and what has none.
CLASSES = {"MaskedAdam", "MaskedOptimizer", "ScaleGradient"}  # they follow their own framework's conventions
WITHOUT_ORACLE = {"gradient_override_map": {"positional": [("gradients", None)], "keyword": {}}}
OF_THE_DOCTOR = {
    "diagnose": {
        "positional": [("step", None), ("model", None), ("optimizer", None)],
        "keyword": {"num_steps": "3"},
    },
    "explain_gradient": {"positional": [("function", None), ("inputs", None)], "keyword": {}},
}
# The oracle doesn't differentiate functions: it is handed what a framework finds out.
HANDED = {
    "accumulate_gradients": {"gradient": "function"},
    "check_gradient": {"vjp": None},
    "hessian_norm": {"gradient": "function"},
    "hessian_vector_product": {"gradient": "function"},
    "where_gradients": {"derivative": "function"},
}
# What only a vector-Jacobian product by hand needs.
NEEDED_BY_HAND = {"unroll": {"predictions_cotangent", "prediction_vjp"}}
# Whether a gradient is stopped is no matter of the oracle, which returns each.
OF_FRAMEWORKS = {
    "clipped_surrogate_pg_loss": {"use_stop_gradient": "True"},
    "discounted_returns": {"stop_target_gradients": "False"},
    "policy_gradient_loss": {"use_stop_gradient": "True"},
    "truncated_generalized_advantage_estimation": {"stop_target_gradients": "False"},
}


def contract():
    """Return the arguments of every public function, by name."""
    found = {}
    for stem in STEMS:
        found.update(signatures(PACKAGE / "reference", stem))
    declared = dict(WITHOUT_ORACLE)
    for name in {*stub(PACKAGE / "reference")} - {f"{name}_vjp" for name in WITHOUT_ORACLE}:
        if name.endswith("_vjp"):
            continue
        # Options that change nothing but the gradient are the vector-Jacobian product's.
        of_gradient = found.get(f"{name}_vjp", {"keyword": {}})["keyword"]
        own, helpers = found[name], NEEDED_BY_HAND.get(name, set())
        renamed = HANDED.get(name, {})
        positional = [(renamed.get(arg, arg), default) for arg, default in own["positional"]]
        declared[name] = {
            "positional": [pair for pair in positional if pair[0]],
            "keyword": {n: v for n, v in of_gradient.items() if n not in helpers}
            | own["keyword"]
            | OF_FRAMEWORKS.get(name, {}),
        }
    return declared


@pytest.mark.parametrize("framework", BACKENDS)
def test_each_framework_has_the_names_and_arguments_of_the_contract(framework):
    for room, expected, classes in (
        (PACKAGE, contract(), CLASSES),
        (DOCTOR, OF_THE_DOCTOR, {"FlightRecorder"}),
    ):
        modules = stub(room / framework)
        assert {*modules} == {*expected, *classes}
        assert {name: signatures(room / framework, modules[name])[name] for name in expected} == expected


def test_both_frameworks_agents_export_the_same_names():
    assert stub(PACKAGE / "agents" / "torch") == stub(PACKAGE / "agents" / "tensorflow")


@pytest.mark.parametrize("module", ["learners", "muzero", "ppo", "reinforce"])
def test_both_frameworks_agents_have_the_same_signatures(module):
    agents = PACKAGE / "agents"
    assert signatures(agents / "torch", module) == signatures(agents / "tensorflow", module)


def imported(*statements):
    """Run statements in a fresh Python and return the frameworks that were imported after each of them."""
    names = "('torch', 'tensorflow', 'keras', 'jax')"
    said = f"print(*[name for name in {names} if name in sys.modules])"
    code = "import sys, gradtricks\n" + "".join(f"{statement}\n{said}\n" for statement in statements)
    finished = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return [set(line.split()) for line in finished.stdout.splitlines()]


LIGHT = "import gradtricks.lab, gradtricks.reference, gradtricks.agents, gradtricks.doctor.examining"
ROOMS_WITH_FRAMEWORKS = "gradtricks", "gradtricks.agents", "gradtricks.doctor"


@pytest.mark.parametrize("framework", IMPORTS)
def test_one_framework_never_imports_the_other(framework):
    pytest.importorskip(framework)
    # The others stand on the tricks, so the tricks come first: each sees what it adds itself.
    statements = [f"{room}.load({framework!r})" for room in ROOMS_WITH_FRAMEWORKS]
    assert imported(LIGHT, *statements) == [set(), *[IMPORTS[framework]] * len(statements)]


def test_the_isolation_test_can_fail():
    assert imported("", "sys.modules['jax'] = sys") == [set(), {"jax"}]


@pytest.mark.parametrize("stem", HOMES)
def test_every_stem_is_everywhere(stem):
    room, tests = HOMES[stem]
    places = [
        room / "torch" / f"{stem}.py",
        room / "tensorflow" / f"{stem}.py",
        ROOT / "tests" / tests / f"test_{stem}.py",
        ROOT / "experiments" / f"{stem}.ipynb",
        ROOT / "book" / f"{stem}.md",
        ROOT / "book" / "api" / f"{stem}.md",
    ]
    assert [str(path) for path in places if not path.is_file()] == []


AGENTS = {"pong", "pong_sign", "pong_won", "muzero", "muzero_trained", "tictactoe", "tokens_learning"}
AGENTS |= {"few_simulations", "cartpole_ppo", "pong_pictures"}
COMPARED = {"benchmarks", "benchmarks_judged", "benchmarks_models", "lab_benchmarks"}
COMPARED |= {"debuggers", "debuggers_judged"}
SCALES = {"scales_with_adam", "scales_with_momentum", "scales_on_boards"}


def test_no_stem_is_missing_a_reference():
    for room, name in product((PACKAGE, DOCTOR), BACKENDS):
        stems = {path.stem for path in (room / name).glob("[a-z]*.py")}
        assert stems == {stem for stem, (home, _) in HOMES.items() if home == room}
    notebooks = {path.stem for path in (ROOT / "experiments").glob("*.ipynb")}
    assert notebooks == {*HOMES, *AGENTS, *SCALES, *COMPARED}


def cells(notebook):
    """Return the cells of a notebook."""
    return json.loads(notebook.read_text())["cells"]


def names_in(code):
    """Return the identifiers of some code, and its strings, by which tests fetch functions."""
    nodes = list(ast.walk(ast.parse(code)))
    found = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    found |= {node.id for node in nodes if isinstance(node, ast.Name)}
    found |= {alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}
    return found | {
        node.value for node in nodes if isinstance(node, ast.Constant) and type(node.value) is str
    }


@pytest.mark.parametrize("stem", HOMES)
def test_a_stem_s_notebook_and_tests_call_every_name(stem):
    room, tests = HOMES[stem]
    modules = [item for framework in BACKENDS for item in stub(room / framework).items()]
    names = {name for name, module in modules if module == stem}
    notebook = cells(ROOT / "experiments" / f"{stem}.ipynb")
    code = "\n".join("".join(cell["source"]) for cell in notebook if cell["cell_type"] == "code")
    called = {node.attr for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Attribute)}
    # The learner that unrolling's notebook trains calls muzero_loss for it.
    assert names - called == ({"muzero_loss"} if stem == "unrolling" else set())
    assert names - names_in((ROOT / "tests" / tests / f"test_{stem}.py").read_text()) == set()


def test_a_longer_name_is_no_use_of_a_name():
    assert "scale_gradient" not in names_in("tricks.scale_gradient_vjp(x)")
    assert {"load", "scale_gradient"} <= names_in("load(backend).scale_gradient(x)")


@pytest.mark.parametrize("stem", HOMES)
def test_a_module_begins_with_its_formula(stem):
    paths = [HOMES[stem][0] / name / f"{stem}.py" for name in BACKENDS]
    said = {ast.get_docstring(ast.parse(path.read_text())) for path in paths}
    assert len(said) == 1
    assert re.search("``|::", said.pop())


@pytest.mark.parametrize("framework", BACKENDS)
def test_only_one_module_declares_gradients(framework):
    ways = r"\(torch\.autograd\.Function\)|@tf\.custom_gradient|RegisterGradient|\.record_operation\("
    declared = re.compile(ways)
    declaring = {p.stem for p in (PACKAGE / framework).glob("*.py") if declared.search(p.read_text())}
    assert declaring == {"_edits"}


AGENTS_ROOMS = {"", "muzero", "pong", "ppo", "reinforce", "evaluation"}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_import_agents_from_facades_only(path):
    code = [ast.parse("".join(cell["source"])) for cell in cells(path) if cell["cell_type"] == "code"]
    froms = [node for tree in code for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    used = [node.module for node in froms if node.module.startswith("gradtricks.agents")]
    assert {module.removeprefix("gradtricks.agents").removeprefix(".") for module in used} <= AGENTS_ROOMS


def test_compiled_loops_are_named_by_their_files(monkeypatch):
    for path in Path(kernels.__file__).parent.glob("[a-z]*.py"):
        if path.stem == "launches" and not importlib.util.find_spec("triton"):
            continue
        monkeypatch.delattr(kernels, path.stem, raising=False)  # as before anybody has asked
        assert Path(getattr(kernels, path.stem).__file__) == path
    assert not hasattr(kernels, "gone")


def test_modules_of_lab_engine_and_book_have_distinct_names():
    stems = [path.stem for room in ("lab", "warm", "book") for path in (PACKAGE / room).rglob("[a-z]*.py")]
    assert sorted(stem for stem in set(stems) if stems.count(stem) > 1) == []


# A room may shrink. If one has to grow, say in the commit what it can do now that is worth so much.
MOST_LINES = {
    "src/gradtricks/torch": 5_468,
    "src/gradtricks/tensorflow": 4_759,
    "src/gradtricks/reference": 1_636,
    "src/gradtricks/_core": 1_788,
    "src/gradtricks/doctor": 5_972,
    "src/gradtricks/agents": 4_758,
    "src/gradtricks/warm": 1_525,
    "src/gradtricks/lab": 7_680,
    "src/gradtricks/book": 2_692,
    "tests": 30_814,
}


@pytest.mark.parametrize("room", MOST_LINES)
def test_no_room_grows_and_no_module_is_long(room):
    lines = {path: len(path.read_text().splitlines()) for path in (ROOT / room).rglob("*.py")}
    assert sum(lines.values()) <= MOST_LINES[room]
    assert room == "tests" or max(lines.values()) <= 300


# The lab's rooms, each of which may use those before it.
ROOMS = [
    "encoding",
    "identity",
    "recording",
    "films",
    "labels",
    "figures",
    "notebooks",
    "storage",
    "runs",
    "results",
    "sweeps",
    "commands",
    "__init__",
]


# The rooms of which each may use itself and these: the doctor uses the tricks, and none of them the doctor;
# the engine knows nothing of the lab, which uses it.
BELOW = {
    "_core": set(),
    "reference": {"_core"},
    "torch": {"_core", "_load"},
    "tensorflow": {"_core", "_load"},
    "doctor": {"_core", "_load", "torch", "tensorflow"},
    "warm": set(),
    "lab": {"warm"},
    "book": {"lab", "doctor"},  # of the doctor the pages of its findings
}


@pytest.mark.parametrize("room", BELOW)
def test_a_room_uses_only_what_is_below_it(room):
    names = [name.split(".") for path in (PACKAGE / room).rglob("*.py") for name in imports_of(path)]
    used = {second for first, second, *_ in names if first == "gradtricks"}
    assert used <= {room, *BELOW[room]}


def room_of(module):
    """Return the room that a module of the lab stands in; None for what isn't of the lab."""
    names = module.split(".")
    return names[2] if names[:2] == ["gradtricks", "lab"] and len(names) > 2 else None


def imports_of(path):
    """Return the full names that a file imports from modules."""
    froms = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
    return [f"{node.module}.{alias.name}" for node in froms for alias in node.names]


def test_the_lab_s_rooms_import_in_one_direction():
    wrong = []
    for path in (PACKAGE / "lab").rglob("*.py"):
        room = room_of(".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts))
        allowed = {None, *ROOMS[: ROOMS.index(room) + 1]}
        wrong += [(path.name, name) for name in imports_of(path) if room_of(name) not in allowed]
    assert wrong == []


def test_no_modules_import_one_another_in_a_circle():
    modules = {
        ".".join(p.relative_to(PACKAGE.parent).with_suffix("").parts): p for p in PACKAGE.rglob("*.py")
    }
    uses = {
        module: {name if name in modules else name.rpartition(".")[0] for name in imports_of(path)} - {module}
        for module, path in modules.items()
    }
    # A CycleError names the circle. A package's face, which only hands names on, is in none.
    assert {*TopologicalSorter(uses).static_order()} >= modules.keys()


def test_only_the_command_and_the_book_itself_use_the_book():
    paths = [path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE / "book"]
    using = [path for path in paths if any(name.startswith("gradtricks.book") for name in imports_of(path))]
    assert using == [PACKAGE / "cli.py"]


def test_loading_says_what_is_expected():

    with pytest.raises(ValueError, match="backend must be one of 'torch', 'tensorflow'; got 'jax'"):
        gradtricks.load("jax")


def test_a_missing_framework_is_named_with_the_remedy():
    code = "import sys; sys.modules['torch'] = None; import gradtricks; gradtricks.load('torch')"
    finished = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert "remedy: install gradtricks with its extra [torch]" in finished.stderr


@pytest.mark.parametrize(
    ("backend", "name"), [(backend, name) for backend, names in OLDEST.items() for name in names]
)
def test_a_version_below_the_range_is_refused(backend, name, monkeypatch):
    monkeypatch.setattr(pytest.importorskip(name), "__version__", "1.99.3+cu130")
    with pytest.raises(ImportError, match=rf"needs {name} .* or later; got 1\.99\.3.*; remedy: pip install"):
        expect_framework(backend)


def test_the_oldest_versions_are_those_that_pip_asks_for():
    oldest = {name: version for names in OLDEST.values() for name, version in names.items()}
    assert {name: str(declared()[name].specifier) for name in oldest} == {
        name: f">={version}" for name, version in oldest.items()
    }


def test_the_lab_needs_all_that_the_engine_needs():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {*extras["warm"]} < {*extras["lab"]}


def pinned():
    """Return the versions in constraints.txt by name."""
    lines = (ROOT / "constraints.txt").read_text().split()
    return {canonicalize_name(line.partition("==")[0]): line.partition("==")[2] for line in lines}


def declared():
    """Return the requirements of pyproject.toml, all extras included."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    return {
        canonicalize_name((r := Requirement(text)).name): r for requirements in lists for text in requirements
    }


def test_every_requirement_is_pinned_within_its_range():
    versions = pinned()
    for name, requirement in declared().items():
        assert requirement.specifier.contains(versions[name]), requirement


def test_the_conda_environment_is_the_same():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    *conda, pip = environment["dependencies"]
    *requirements, constraint, editable = pip["pip"]
    assert environment["name"] == "gradtricks"
    assert [text.partition("=")[0] for text in conda] == ["python", "pip"]
    required = {canonicalize_name(text.partition("==")[0]): text.partition("==")[2] for text in requirements}
    assert (constraint, editable) == ("--constraint constraints.txt", "--editable .")
    assert required == {name: pinned()[name] for name in declared()}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_hold_no_outputs(path):
    assert [cell["id"] for cell in cells(path) if cell.get("outputs") or cell.get("execution_count")] == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_cells_folded_on_a_page_are_folded_in_jupyter_too(path):
    for cell in cells(path):
        tagged = "hide-input" in cell["metadata"].get("tags", [])
        assert cell["metadata"].get("jupyter", {}).get("source_hidden", False) == tagged, cell["id"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_no_notebook_calls_unequal_frameworks_equal(path):
    sentence, said, of_one = "everything after this section is the same", [], []
    for place, cell in enumerate(cells(path)):
        said += [place] * (sentence in " ".join("".join(cell["source"]).lower().split()))
        of_one += [place] * bool({*cell["metadata"].get("tags", [])} & {*BACKENDS})
    # The section's own cells, one for each framework, follow the sentence.
    assert not said or of_one[-1] <= said[-1] + 2


def test_the_version_is_the_same_everywhere():

    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == gradtricks.__version__
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"].get("urls", {})
    for key, name in (("url", "Documentation"), ("repository-code", "Repository")):
        assert citation.get(key) == urls.get(name), "CITATION.cff says where [project.urls] says it is"
    cited = " ".join((ROOT / "book" / "citing.md").read_text().split())
    assert cited.count(citation["title"]) == 2
    for said in ("(version {version})", "version = {{{version}}}", "date = {{{date-released}}}"):
        assert said.format(**citation) in cited
    assert f"## [{gradtricks.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_keras_on_another_framework_than_tensorflow_is_refused(monkeypatch):
    keras = pytest.importorskip("keras")
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    path = PACKAGE / "tensorflow" / "_tensors.py"
    spec = importlib.util.spec_from_file_location("another", path)
    with pytest.raises(ImportError, match="Keras runs on jax; remedy: set KERAS_BACKEND=tensorflow"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
