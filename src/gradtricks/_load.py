"""Choosing a framework by name, without importing the other one."""

import importlib
import re
from types import ModuleType

BACKENDS = ("torch", "tensorflow")
# The oldest versions that the tests are run with, as pyproject.toml asks for them.
OLDEST = {"torch": {"torch": "2.13"}, "tensorflow": {"tensorflow": "2.21", "keras": "3.15"}}

_OF_THE_DOCTOR = ("diagnose", "explain_gradient")  # which scripts import from the tricks, where they were


def load_moved(backend: str, name: str) -> object:
    """Return what has moved from a framework's tricks to its doctor, or None."""
    return getattr(load_backend("gradtricks.doctor", backend), name) if name in _OF_THE_DOCTOR else None


def load_backend(package: str, backend: str) -> ModuleType:
    """Import ``package.backend`` and say what to do when that framework isn't there.

    Args:
        package: Dotted name of a package with one folder per framework.
        backend: ``"torch"`` or ``"tensorflow"``.

    Returns:
        The imported module.

    Raises:
        ValueError: ``backend`` is another name.
        ImportError: The framework isn't installed.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(map(repr, BACKENDS))}; got {backend!r}")
    try:
        return importlib.import_module(f"{package}.{backend}")
    except ModuleNotFoundError as error:
        if error.name not in (*BACKENDS, "keras"):
            raise
        raise ImportError(
            f"{package}.{backend} needs {error.name}, which isn't installed; "
            f"remedy: install gradtricks with its extra [{backend}]"
        ) from error


def expect_framework(backend: str) -> None:
    """Import a framework; an ImportError says that one of its packages is too old."""
    for name, oldest in OLDEST[backend].items():
        version = importlib.import_module(name).__version__
        if _numbers(version) < _numbers(oldest):
            raise ImportError(
                f"gradtricks.{backend} needs {name} {oldest} or later; got {version}; "
                f"remedy: pip install --upgrade '{name}>={oldest}'"
            )


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)[:2]]
