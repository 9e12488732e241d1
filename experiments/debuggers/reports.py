"""The cases of the comparison: trainings with a fault that somebody reported, and healthy ones."""

import ast
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
TESTS = HERE.parents[1] / "tests" / "doctor"
# Of sets that were unseen until a tool was first run on them: in which round that was. The doctor was
# developed with all others, and after a round with that one too.
ROUNDS = {"traincheck": 1, "collected": 1, "collected2": 2}
FRAMEWORKS = ("torch", "tensorflow")


@dataclass(frozen=True)
class Case:
    """A training with a fault.

    Attributes:
        name: What it is called.
        origin: Its set: ``ours`` or ``handed``, which the doctor was developed with, or one of `ROUNDS`.
        framework: ``torch`` or ``tensorflow``.
        url: The thread.
        cause: The fault, in words.
        lines: Lines that may be blamed, by number or by a part of their code; none where no single line is at
            fault.
        file: Name of the file that these are in.
        faulty: The command line of the training, its script first.
        healthy: The same with the thread's remedy; none where the thread's replay has no twin.
    """

    name: str
    origin: str
    framework: str
    url: str
    cause: str
    lines: tuple[int | str, ...]
    file: str
    faulty: tuple[str, ...]
    healthy: tuple[str, ...] | None

    @property
    def round(self) -> int:
        """In which round it was unseen; 0 where the doctor was developed with it from the beginning."""
        return ROUNDS.get(self.origin, 0)


def read_cases(framework: str) -> list[Case]:
    """Return all cases of a framework, those first that the doctor was developed with."""
    return [case for case in (*_replays(framework), *_folders()) if case.framework == framework]


def read_healthy(framework: str) -> dict[str, tuple[str, ...]]:
    """Return command lines of healthy trainings by name: the cases' twins, the tests' own, and scripts."""
    twins = {f"{case.name}, cured": case.healthy for case in read_cases(framework) if case.healthy}
    module = f"trainings_{framework}"
    tests = {f"test {name}": (_replay(framework), module, name) for name in _trainings(framework)}
    scripts = {f"script {path.stem}": (str(path),) for path in sorted((HERE / "healthy").glob("*.py"))}
    return twins | tests | {name: line for name, line in scripts.items() if _framework(line[0]) == framework}


def _replays(framework: str) -> Iterator[Case]:
    """Yield the threads that the tests replay, read without importing the framework."""
    module = f"issues_{framework}"
    for node in _registered(TESTS / f"{module}.py"):
        call = node.decorator_list[0]
        if not isinstance(call, ast.Call) or getattr(call.func, "id", "") != "issue":
            continue
        url, cause, code = map(ast.literal_eval, call.args)
        faulty = (_replay(framework), module, node.name)
        cured = (*faulty, "--cured") if any(each.arg == "cure" for each in call.keywords) else None
        yield Case(
            node.name, "ours", framework, url, cause, (code,) if code else (), f"{module}.py", faulty, cured
        )


def _folders() -> Iterator[Case]:
    """Yield the cases that have a folder."""
    for path in sorted([*HERE.glob("handed/*/case.json"), *HERE.glob("cases/*/case.json")]):
        told, folder = json.loads(path.read_text()), path.parent
        lines = told["line"] if isinstance(told["line"], list) else [told["line"]]
        yield Case(
            folder.name,
            told["set"],
            "torch" if told["framework"].lower() in ("torch", "pytorch") else "tensorflow",
            told["url"],
            told["kind"],
            tuple(lines),
            "faulty.py",
            (str(folder / "faulty.py"),),
            (str(folder / "healthy.py"),),
        )


def _replay(framework: str) -> str:
    return str(HERE / f"replay_{framework}.py")


def _registered(path: Path) -> list[ast.FunctionDef]:
    body = ast.parse(path.read_text()).body
    return [node for node in body if isinstance(node, ast.FunctionDef) and node.decorator_list]


def _trainings(framework: str) -> list[str]:
    """Return the names of the tests' healthy trainings; some are made in a loop, so their test lists them."""
    named = [node.name for node in _registered(TESTS / f"trainings_{framework}.py")]
    listed = ast.parse((TESTS / "test_diagnosing.py").read_text()).body
    usual = [
        name
        for node in listed
        if isinstance(node, ast.Assign | ast.AugAssign)
        and ast.unparse(getattr(node, "target", None) or node.targets[0]) == "USUAL"
        for name in ast.literal_eval(node.value)
    ]
    return [*named, *usual]


def _framework(script: str) -> str:
    return "torch" if "import torch" in Path(script).read_text() else "tensorflow"
