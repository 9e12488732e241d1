"""The house rules: one contract for both frameworks, no leaks between them, one stem everywhere."""

import ast
import importlib.util
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "gradtricks"
STEMS = sorted(path.stem for path in (PACKAGE / "reference").glob("[a-z]*.py"))
IMPORTS = {"torch": {"torch"}, "tensorflow": {"tensorflow", "keras"}}


def exported(folder):
    """Return the names in the __all__ of a package's stub, read without importing it."""
    for node in ast.parse((folder / "__init__.pyi").read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return ast.literal_eval(node.value)
    raise AssertionError(f"{folder} has no __all__")


def signatures(folder, stem):
    """Return what callers see of a module: functions, classes and methods, and their arguments."""
    found = {}
    for node in ast.parse((folder / f"{stem}.py").read_text()).body:
        members = node.body if isinstance(node, ast.ClassDef) else []
        for item in [node, *members]:
            if isinstance(item, ast.FunctionDef):
                owner = f"{node.name}." if item is not node else ""
                found[f"{owner}{item.name}"] = arguments(item.args)
            elif isinstance(item, ast.ClassDef):
                found[item.name] = "class"
    private = [
        name for name in found if any(part.startswith("_") and part != "__init__" for part in name.split("."))
    ]
    return {name: value for name, value in found.items() if name not in private}


def arguments(args):
    """Return names, kinds and defaults of a function's arguments."""
    defaults = [None] * (len(args.args) - len(args.defaults)) + [ast.unparse(d) for d in args.defaults]
    positional = [(arg.arg, default) for arg, default in zip(args.args, defaults, strict=True)]
    keyword = [
        (arg.arg, default and ast.unparse(default))
        for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True)
    ]
    return {"positional": positional, "keyword": keyword}


# What each framework's own protocol for optimizers and layers adds to the shared names.
OF_THE_FRAMEWORK = {
    "torch": {
        *(f"MaskedAdam.{name}" for name in ("add_param_group", "load_state_dict", "step")),
        *(f"ScaleGradient.{name}" for name in ("extra_repr", "forward")),
    },
    "tensorflow": {
        *(f"MaskedAdam.{name}" for name in ("apply", "build", "get_config", "update_step")),
        *(f"ScaleGradient.{name}" for name in ("call", "get_config")),
    },
}


def test_both_frameworks_export_the_same_names():
    assert exported(PACKAGE / "torch") == exported(PACKAGE / "tensorflow")
    assert exported(PACKAGE / "agents" / "torch") == exported(PACKAGE / "agents" / "tensorflow")


@pytest.mark.parametrize("stem", STEMS)
def test_both_frameworks_have_the_same_signatures(stem):
    one, other = (
        {n: v for n, v in signatures(PACKAGE / name, stem).items() if n not in OF_THE_FRAMEWORK[name]}
        for name in ("torch", "tensorflow")
    )
    one.get("MaskedAdam.__init__", {"positional": []})["positional"] = [
        argument
        for argument in one.get("MaskedAdam.__init__", {"positional": []})["positional"]
        if argument[0] != "params"  # Keras learns of the parameters later
    ]
    assert one == other
    assert one


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


AGENTS = {"pong", "pong_won", "muzero", "muzero_judged", "tictactoe"}


def test_no_stem_is_missing_a_reference():
    for name in ("torch", "tensorflow"):
        assert sorted(path.stem for path in (PACKAGE / name).glob("[a-z]*.py")) == STEMS
    notebooks = {path.stem for path in (ROOT / "experiments").glob("*.ipynb")}
    assert notebooks == {*STEMS, *AGENTS, "benchmarks", "benchmarks_judged", "lab_benchmarks"}


# What isn't a function of tensors: it looks at functions or models, and has tests of its own.
OF_FUNCTIONS = {"check_gradient", "explain_gradient", "gradient_override_map", "hessian_norm"}
OF_MODELS = {"MaskedAdam", "ScaleGradient"}


def stem_of(name):
    """Return the stem that a public name comes from, read from the stub."""
    for node in ast.parse((PACKAGE / "torch" / "__init__.pyi").read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.names[0].name == name:
            return node.module
    raise AssertionError(f"{name} comes from no stem")


@pytest.mark.parametrize("name", sorted({*exported(PACKAGE / "torch")} - OF_FUNCTIONS - OF_MODELS))
@pytest.mark.parametrize("fixture", ["way", "second"])
def test_every_function_of_tensors_goes_through_every_transform(name, fixture):
    body = ast.parse((ROOT / "tests" / "tricks" / f"test_{stem_of(name)}.py").read_text()).body
    functions = {node.name: node for node in body if isinstance(node, ast.FunctionDef)}
    reached, pending = (
        set(),
        [n for n, node in functions.items() if fixture in {a.arg for a in node.args.args}],
    )
    while pending:
        current = pending.pop()
        reached.add(current)
        mentioned = {node.id for node in ast.walk(functions[current]) if isinstance(node, ast.Name)}
        pending += (mentioned & functions.keys()) - reached
    text = "\n".join(ast.unparse(functions[function]) for function in sorted(reached))
    assert f".{name}" in text or f"'{name}'" in text


# The lab's rooms, each of which may use those before it.
ROOMS = [
    "recording",
    "films",
    "notebooks",
    "storage",
    "kernels",
    "runs",
    "engine",
    "results",
    "sweeps",
    "commands",
    "cli",
]


def room_of(module):
    """Return the room that a module of the lab stands in; None for what isn't of the lab."""
    names = module.split(".")
    return names[2] if names[:2] == ["gradtricks", "lab"] and len(names) > 2 else None


def imports_of(path):
    """Return the full names that a file imports from modules."""
    froms = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
    return [f"{node.module}.{alias.name}" for node in froms for alias in node.names]


@pytest.mark.parametrize(
    "path", sorted((ROOT / "src/gradtricks/lab").rglob("*.py")), ids=lambda path: path.stem
)
def test_the_rooms_of_the_lab_use_one_another_in_one_direction(path):
    room = room_of(".".join(path.relative_to(ROOT / "src").with_suffix("").parts))
    if room == "__init__":
        return
    used = {used for name in imports_of(path) if (used := room_of(name))}
    assert used <= set(ROOMS[: ROOMS.index(room) + 1])


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


@pytest.mark.parametrize("path", sorted((ROOT / "experiments").glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebooks_hold_no_outputs(path):
    cells = json.loads(path.read_text())["cells"]
    assert [c["id"] for c in cells if c.get("outputs") or c.get("execution_count")] == []


@pytest.mark.parametrize("path", sorted((ROOT / "experiments").glob("*.ipynb")), ids=lambda path: path.stem)
def test_no_notebook_says_that_the_rest_is_the_same_for_both_frameworks_when_it_is_not(path):
    cells = json.loads(path.read_text())["cells"]
    said = [
        place
        for place, cell in enumerate(cells)
        if "everything after this section is the same" in " ".join("".join(cell["source"]).lower().split())
    ]
    of_one = [
        place for place, cell in enumerate(cells) if set(cell["metadata"].get("tags", [])) & set(IMPORTS)
    ]
    # The section's own cells, one for each framework, follow the sentence.
    assert not said or of_one[-1] <= said[-1] + 2


def test_the_version_is_the_same_everywhere():
    import gradtricks

    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == gradtricks.__version__
    assert f"## [{gradtricks.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_keras_on_another_framework_is_refused(monkeypatch):
    keras = pytest.importorskip("keras")
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    path = PACKAGE / "tensorflow" / "_tensors.py"
    spec = importlib.util.spec_from_file_location("another", path)
    with pytest.raises(ImportError, match="Keras runs on jax; remedy: set KERAS_BACKEND=tensorflow"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_dual_numbers_around_compiled_code_are_refused(monkeypatch):
    torch = pytest.importorskip("torch")
    tensors = pytest.importorskip("gradtricks.torch._tensors")
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    with torch.autograd.forward_ad.dual_level(), pytest.raises(RuntimeError, match="clip must not meet dual"):
        tensors.refuse_compiled_duals("clip")
