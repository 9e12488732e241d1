"""The inputs of a run, and whether they are the same now: a key that saves runs, and judges none.

It is made of the notebook's code cells, Python's minor version, the sources that the run read of modules that
aren't installed, by their meaning, and the versions of the libraries that all this code imports.
"""

import ast
import hashlib
import os
import re
import site
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import metadata
from importlib.util import source_from_cache
from pathlib import Path
from typing import Any

from gradtricks.warm.imports import parse

PACKAGE = Path(__file__).resolve().parents[1]
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"

_OURS = f"{PACKAGE}{os.sep}"
_TOOLS = tuple(str(PACKAGE / name) for name in ("lab/", "warm/", "book/", "cli.py"))  # compute no result
_PATHS = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
_PATHS += [*site.getsitepackages(), site.getusersitepackages()]
_PATHS += [sys.prefix] if sys.prefix != sys.base_prefix else []
_INSTALLED = tuple(f"{path}{os.sep}" for path in dict.fromkeys(_PATHS) if path)
_WRITES = os.O_WRONLY | os.O_RDWR
_AS = re.compile(r"\s+as\s+\w+|[;#].*")
_IMPORT = re.compile(r"^[ \t]*(?:from[ \t]+(\w+)|import[ \t]+(.+))", re.MULTILINE)


@dataclass
class Sources:
    """Watches which sources this process reads, by import or by name, and what they were at that moment."""

    folder: str = ""  # of the run, from which its files are named
    read: dict[str, str] = field(default_factory=dict)  # SHA-256 of what was read first, by path
    _written: set[str] = field(default_factory=set)  # by this process: what comes of that is the cells'

    def watch(self) -> None:
        """Begin, in the run's folder; it ends with the process."""
        self.folder = str(Path.cwd())
        sys.addaudithook(self._hear)

    def named(self) -> dict[str, str]:
        """Return the digests by path, seen from the package's parent or the run's folder."""
        return {_name_of(path, self.folder): digest for path, digest in sorted(self.read.items())}

    def _hear(self, event: str, details: tuple[Any, ...]) -> None:
        if event not in ("open", "os.rename"):  # of which there may be millions
            return
        with suppress(Exception):  # whatever goes wrong here would go wrong in the notebook's own line
            if event == "os.rename":
                self._written.add(_absolute(os.fsdecode(details[1])))
            elif isinstance(details[0], str) and details[0].endswith((".py", ".pyc")):
                self._note(_absolute(details[0]), writes=bool(details[2] & _WRITES))

    def _note(self, path: str, *, writes: bool) -> None:
        if writes:
            self._written.add(path)
            return
        path = source_from_cache(path) if path.endswith(".pyc") else path
        if path not in self.read and path not in self._written and self._counts(path):
            self.read[path] = ""  # reading it is heard too
            try:
                self.read[path] = hashlib.sha256(Path(path).read_bytes()).hexdigest()
            except OSError:
                del self.read[path]

    def _counts(self, path: str) -> bool:
        if path.startswith(_OURS):
            return not path.startswith(_TOOLS)
        if path.startswith(_INSTALLED):
            return False
        mine = tuple(f"{folder}{os.sep}" for folder in (self.folder, *map(_absolute, sys.path)))
        # Compilers keep there what they have made.
        return not path.startswith(f"{tempfile.gettempdir()}{os.sep}") or path.startswith(mine)


SOURCES = Sources()


@dataclass(frozen=True)
class Meaning:
    """A source without what changes no result: comments, docstrings, annotations, and how it is set."""

    digest: str
    imports: frozenset[str]  # first names of the modules that it imports, wherever it does


@lru_cache(maxsize=4096)
def meaning_of(source: bytes) -> Meaning:
    """Digest the syntax tree of a source; what isn't Python means its bytes."""
    try:
        tree = parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return Meaning(hashlib.sha256(source).hexdigest(), frozenset())
    imports = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                imports |= {each.name.partition(".")[0] for each in names}
            case ast.ImportFrom(module=str(module), level=0):
                imports.add(module.partition(".")[0])
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                node.returns = None
            case ast.arg():
                node.annotation = None
            case ast.AnnAssign():
                node.annotation = ast.Constant(None)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            has_docstring = ast.get_docstring(node, clean=False) is not None
            node.body = node.body[has_docstring:]
    return Meaning(hashlib.sha256(ast.dump(tree).encode()).hexdigest(), frozenset(imports))


def inputs_of(cells: Iterable[str], read: Mapping[str, str], versions: Mapping[str, Any]) -> dict[str, Any]:
    """Say what a run computed with.

    Args:
        cells: Sources of the notebook's code cells.
        read: What `Sources.named` returned in its process.
        versions: Of the distributions of each module that it imported, by the module's first name.

    Returns:
        ``modules``, the digest of each source's meaning by its name; ``versions`` of the distributions that
        this code imports itself; and ``python``. A source that was edited since it was read has the digest of
        its bytes, which no source will mean again.
    """
    imports = {name for cell in cells for name in _imported(cell)}
    modules = {}
    for name, digest in read.items():
        source = _read(name)
        modules[name] = digest
        if source is not None and hashlib.sha256(source).hexdigest() == digest:
            meaning = meaning_of(source)
            modules[name] = meaning.digest
            imports |= meaning.imports
    used = {name: version for top in imports for name, version in versions.get(top, {}).items()}
    used.pop("gradtricks", None)  # whose sources are among the modules
    return {"modules": modules, "versions": dict(sorted(used.items())), "python": PYTHON}


def digests(names: Iterable[str]) -> dict[str, str | None]:
    """Digest the meaning of sources as they are now, by their names; None for what is gone."""
    sources = {name: _read(name) for name in names}
    return {name: None if data is None else meaning_of(data).digest for name, data in sources.items()}


def anything_near(notebook: Path) -> dict[str, str]:
    """Digest what a run may have failed of: the package's sources, and those beside the notebook and here."""
    ours = [path for path in PACKAGE.rglob("*.py") if not str(path).startswith(_TOOLS)]
    near = [path for folder in (notebook.parent, Path()) for path in folder.glob("*.py")]
    names = (_name_of(_absolute(path), str(Path.cwd())) for path in (*ours, *near))
    return {name: digest for name, digest in digests(sorted(names)).items() if digest}


def bytes_below(folder: Path) -> str:
    """Digest all sources and style sheets below a folder, to the byte."""
    found = hashlib.sha256()
    for path in sorted(path for ending in ("py", "mplstyle") for path in folder.rglob(f"*.{ending}")):
        found.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes() + b"\0")
    return found.hexdigest()


@dataclass
class Installed:
    """Sources and libraries' versions as they are now, each looked up once."""

    _digests: dict[str, str | None] = field(default_factory=dict)
    _versions: dict[str, str | None] = field(default_factory=dict)

    def matches(self, inputs: Mapping[str, Any]) -> bool:
        """Say whether a run's inputs are what is there now."""
        modules, versions = inputs["modules"], inputs["versions"]
        self._digests |= digests(modules.keys() - self._digests.keys())
        self._versions |= {name: installed_version(name) for name in versions.keys() - self._versions.keys()}
        same = modules.items() <= self._digests.items() and versions.items() <= self._versions.items()
        return same and inputs["python"] == PYTHON


def installed_version(distribution: str) -> str | None:
    """Look up the version of a library; None where it isn't installed."""
    try:
        return metadata.version(distribution)
    except (metadata.PackageNotFoundError, ValueError):
        return None


def _imported(cell: str) -> set[str]:
    """Name the modules that a cell imports; cells aren't always Python, so their lines are read."""
    found = set()
    for module, names in _IMPORT.findall(cell):
        named = [module] if module else _AS.sub("", names).split(",")
        found |= {name.strip().partition(".")[0] for name in named}
    return found


def _absolute(path: str | Path) -> str:
    return os.path.normpath(Path.cwd() / path)


def _name_of(path: str, folder: str) -> str:
    return Path(os.path.relpath(path, PACKAGE.parent if path.startswith(_OURS) else folder)).as_posix()


def _read(name: str) -> bytes | None:
    path = PACKAGE.parent / name if name.startswith(f"{PACKAGE.name}/") else Path(name)
    try:
        return path.read_bytes() if path.is_file() else None
    except (OSError, ValueError):
        return None
