"""The imports that a notebook makes in any case: they are made once for many runs."""

import ast
import sysconfig
import threading
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gradtricks.warm.libraries import with_late

_PARSING = threading.Lock()


def parse(source: str | bytes) -> ast.Module:
    """Parse Python; Python 3.11 counts the depths of two threads' trees together, and refuses both."""
    with _PARSING:
        return ast.parse(source)


def modules_of(node: Any) -> tuple[str, ...]:
    """List the installed modules that a notebook imports at the top level of its cells, sorted."""
    return with_late(name for name in imports_of(node)[0] if is_installed(name.partition(".")[0]))


def imports_of(node: Any) -> tuple[set[str], dict[str, Any]]:
    """Return the modules that a notebook imports at the top level of its cells, and its constants.

    Branches that constants decide, such as ``if backend == "torch"``, are followed.
    """
    values: dict[str, Any] = {}
    cells = [cell.source for cell in node.cells if cell.cell_type == "code"]
    return {name for source in cells for name in _imports(_statements(source), values)}, values


@cache
def is_installed(name: str) -> bool:
    """Say whether a top module is installed; others may be edited from run to run, or be others elsewhere."""
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):
        return False
    if spec is None:
        return False
    places = [spec.origin] if spec.has_location else list(spec.submodule_search_locations or ())
    installed = [sysconfig.get_path(kind) for kind in ("purelib", "platlib")]
    return any(Path(str(place)).is_relative_to(folder) for place in places for folder in installed)


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
