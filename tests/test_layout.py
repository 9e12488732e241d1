"""The house rules: one contract for both frameworks, no leaks between them, one stem everywhere."""

import ast
import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from gradtricks._core import kernels
from gradtricks._load import BACKENDS

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "gradtricks"
STEMS = sorted(path.stem for path in (PACKAGE / "reference").glob("[a-z]*.py"))
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
WITHOUT_ORACLE = {
    "diagnose": {
        "positional": [("step", None), ("model", None), ("optimizer", None)],
        "keyword": {"num_steps": "3"},
    },
    "explain_gradient": {"positional": [("function", None), ("inputs", None)], "keyword": {}},
    "gradient_override_map": {"positional": [("gradients", None)], "keyword": {}},
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
    modules, expected = stub(PACKAGE / framework), contract()
    assert {*modules} == {*expected, *CLASSES}
    assert {name: signatures(PACKAGE / framework, modules[name])[name] for name in expected} == expected


def test_both_frameworks_agents_export_the_same_names():
    assert stub(PACKAGE / "agents" / "torch") == stub(PACKAGE / "agents" / "tensorflow")


@pytest.mark.parametrize("module", ["devices", "muzero", "pong", "ppo"])
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


LIGHT = "import gradtricks.lab, gradtricks.reference, gradtricks.agents"


@pytest.mark.parametrize("framework", IMPORTS)
def test_one_framework_never_imports_the_other(framework):
    pytest.importorskip(framework)
    # The agents stand on the tricks, so the tricks come first: each sees what it adds itself.
    statements = LIGHT, f"gradtricks.load({framework!r})", f"gradtricks.agents.load({framework!r})"
    assert imported(*statements) == [set(), IMPORTS[framework], IMPORTS[framework]]


def test_the_isolation_test_can_fail():
    assert imported("", "sys.modules['jax'] = sys") == [set(), {"jax"}]


@pytest.mark.parametrize("stem", STEMS)
def test_every_stem_is_everywhere(stem):
    places = [
        PACKAGE / "torch" / f"{stem}.py",
        PACKAGE / "tensorflow" / f"{stem}.py",
        ROOT / "tests" / "tricks" / f"test_{stem}.py",
        ROOT / "experiments" / f"{stem}.ipynb",
        ROOT / "book" / f"{stem}.md",
        ROOT / "book" / "api" / f"{stem}.md",
    ]
    assert [str(path) for path in places if not path.is_file()] == []


AGENTS = {"pong", "pong_sign", "pong_won", "muzero", "muzero_trained", "tictactoe", "tokens_learning"}
SCALES = {"scales_with_adam", "scales_with_momentum", "scales_on_boards"}


def test_no_stem_is_missing_a_reference():
    for name in ("torch", "tensorflow"):
        assert sorted(path.stem for path in (PACKAGE / name).glob("[a-z]*.py")) == STEMS
    notebooks = {path.stem for path in (ROOT / "experiments").glob("*.ipynb")}
    assert notebooks == {*STEMS, *AGENTS, *SCALES, "benchmarks", "benchmarks_judged", "lab_benchmarks"}


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


@pytest.mark.parametrize("stem", STEMS)
def test_every_name_of_a_stem_is_called_in_its_notebook_and_used_in_its_tests(stem):
    modules = [item for framework in BACKENDS for item in stub(PACKAGE / framework).items()]
    names = {name for name, module in modules if module == stem}
    notebook = cells(ROOT / "experiments" / f"{stem}.ipynb")
    code = "\n".join("".join(cell["source"]) for cell in notebook if cell["cell_type"] == "code")
    called = {node.attr for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Attribute)}
    # The learner that unrolling's notebook trains calls muzero_loss for it.
    assert names - called == ({"muzero_loss"} if stem == "unrolling" else set())
    assert names - names_in((ROOT / "tests" / "tricks" / f"test_{stem}.py").read_text()) == set()


def test_a_longer_name_is_no_use_of_a_name():
    assert "scale_gradient" not in names_in("tricks.scale_gradient_vjp(x)")
    assert {"load", "scale_gradient"} <= names_in("load(backend).scale_gradient(x)")


@pytest.mark.parametrize("stem", STEMS)
def test_a_module_begins_with_its_formula(stem):
    said = {ast.get_docstring(ast.parse((PACKAGE / name / f"{stem}.py").read_text())) for name in BACKENDS}
    assert len(said) == 1
    assert re.search("``|::", said.pop())


@pytest.mark.parametrize("framework", BACKENDS)
def test_only_one_module_declares_gradients(framework):
    ways = r"\(torch\.autograd\.Function\)|@tf\.custom_gradient|RegisterGradient|\.record_operation\("
    declared = re.compile(ways)
    declaring = {p.stem for p in (PACKAGE / framework).glob("*.py") if declared.search(p.read_text())}
    assert declaring == {"_edits"}


def test_compiled_loops_are_asked_for_by_the_names_of_their_files(monkeypatch):
    for path in Path(kernels.__file__).parent.glob("[a-z]*.py"):
        monkeypatch.delattr(kernels, path.stem, raising=False)  # as before anybody has asked
        assert Path(getattr(kernels, path.stem).__file__) == path
    assert not hasattr(kernels, "gone")


def test_no_two_modules_of_the_lab_and_the_book_share_a_name():
    stems = [path.stem for room in ("lab", "book") for path in (PACKAGE / room).rglob("[a-z]*.py")]
    assert sorted(stem for stem in set(stems) if stems.count(stem) > 1) == []


# A room may shrink. If one has to grow, say in the commit what it can do now that is worth so much.
MOST_LINES = {
    "src/gradtricks/torch": 5_050,
    "src/gradtricks/tensorflow": 4_900,
    "src/gradtricks/reference": 1_459,
    "src/gradtricks/_core": 2_926,
    "src/gradtricks/agents": 3_996,
    "src/gradtricks/lab": 9_072,
    "src/gradtricks/book": 2_636,
    "tests": 25_284,
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
    "notebooks",
    "storage",
    "kernels",
    "runs",
    "results",
    "sweeps",
    "commands",
    "cli",
    "__init__",
]


def room_of(module):
    """Return the room that a module of the lab stands in; None for what isn't of the lab."""
    names = module.split(".")
    return names[2] if names[:2] == ["gradtricks", "lab"] and len(names) > 2 else None


def imports_of(path):
    """Return the full names that a file imports from modules."""
    froms = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
    return [f"{node.module}.{alias.name}" for node in froms for alias in node.names]


def test_the_rooms_of_the_lab_use_one_another_in_one_direction():
    wrong = []
    for path in (PACKAGE / "lab").rglob("*.py"):
        room = room_of(".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts))
        allowed = {None, *ROOMS[: ROOMS.index(room) + 1]}
        wrong += [(path.name, name) for name in imports_of(path) if room_of(name) not in allowed]
    assert wrong == []


def test_only_the_command_and_the_book_itself_use_the_book():
    paths = [path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE / "book"]
    using = [path for path in paths if any(name.startswith("gradtricks.book") for name in imports_of(path))]
    assert using == [PACKAGE / "cli.py"]


def test_loading_says_what_is_expected():
    import gradtricks

    with pytest.raises(ValueError, match="backend must be one of 'torch', 'tensorflow'; got 'jax'"):
        gradtricks.load("jax")


def test_a_missing_framework_is_named_with_the_remedy():
    code = "import sys; sys.modules['torch'] = None; import gradtricks; gradtricks.load('torch')"
    finished = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert "remedy: install gradtricks with its extra [torch]" in finished.stderr


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
def test_no_notebook_says_that_the_rest_is_the_same_for_both_frameworks_when_it_is_not(path):
    sentence, said, of_one = "everything after this section is the same", [], []
    for place, cell in enumerate(cells(path)):
        said += [place] * (sentence in " ".join("".join(cell["source"]).lower().split()))
        of_one += [place] * bool({*cell["metadata"].get("tags", [])} & {*BACKENDS})
    # The section's own cells, one for each framework, follow the sentence.
    assert not said or of_one[-1] <= said[-1] + 2


def test_the_version_is_the_same_everywhere():
    import gradtricks

    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == gradtricks.__version__
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
