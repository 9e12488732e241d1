"""What a notebook imports in any case, so that it can be imported once for many runs."""

import ast
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nbformat import NotebookNode

from gradtricks.lab.identity import parse
from gradtricks.lab.kernels import RECORDING
from gradtricks.lab.notebooks.schema import read_settings

# What a library imports when it is first used, and takes long.
_LATE = {
    "torch": ("torch._dynamo",),
    "matplotlib": ("matplotlib.backends.backend_agg", "matplotlib.backends.backend_svg"),
}
# What a notebook's ``backend`` stands for.
_FRAMEWORKS = {"torch": ("numba", "torch"), "tensorflow": ("keras", "numba", "tensorflow")}


def modules_of(node: NotebookNode) -> tuple[str, ...]:
    """List the modules that a parameterized notebook imports at the top level of its cells, sorted.

    Modules that aren't installed stay out: they may be edited from run to run, or be others in another
    folder. With this package, a ``backend`` means the framework and figures, but nothing else: so all
    notebooks of a backend fork from one process.
    """
    if sys.platform != "linux" or read_settings(node, "the notebook").fresh_kernel:
        return ()
    values: dict[str, Any] = {}
    cells = [cell.source for cell in node.cells if cell.cell_type == "code"]
    names = {name for source in cells for name in _imports(_statements(source), values)}
    found = {name for name in names if name == RECORDING or _is_installed(name.partition(".")[0])}
    tops = {name.partition(".")[0] for name in found}
    has_ours = any(name.partition(".")[0] == "gradtricks" for name in names)
    framework = {name for name in _FRAMEWORKS.get(str(values.get("backend")), ()) if _is_installed(name)}
    if has_ours and framework:
        tops = framework | (tops & {"matplotlib"})
        found = framework | (found & {"matplotlib.pyplot", RECORDING})
    return tuple(sorted({*found, *(late for top in tops for late in _LATE.get(top, ()))}))


@lru_cache(maxsize=1000)  # the runs of a sweep have their cells in common
def _statements(source: str) -> list[ast.stmt]:
    if source.lstrip().startswith("%%"):
        return []
    plain = (line for line in source.splitlines() if not line.lstrip().startswith(("%", "!")))
    try:
        return parse("\n".join(plain)).body
    except (SyntaxError, ValueError, RecursionError):
        return []


def _imports(statements: Iterable[ast.stmt], values: dict[str, Any]) -> Iterator[str]:
    """Follow the branches that parameters decide, such as ``if backend == "torch"``."""
    for statement in statements:
        match statement:
            case ast.Import(names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield module
            case ast.Try(body):
                yield from _imports(body, values)
            case ast.Assign([ast.Name(name)], value) | ast.AnnAssign(ast.Name(name), _, value):
                values[name] = value.value if isinstance(value, ast.Constant) else None
            case ast.If(ast.Compare(ast.Name(name), [ast.Eq()], [ast.Constant(wanted)]), body, other):
                if values.get(name) is not None:
                    yield from _imports(body if values[name] == wanted else other, values)


@cache
def _is_installed(name: str) -> bool:
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):
        return False
    if spec is None or name == "gradtricks":
        return False
    places = [spec.origin] if spec.has_location else list(spec.submodule_search_locations or ())
    installed = [sysconfig.get_path(kind) for kind in ("purelib", "platlib")]
    return any(Path(str(place)).is_relative_to(folder) for place in places for folder in installed)
