"""Choosing a framework by name, without importing the other one."""

import importlib
from types import ModuleType

BACKENDS = ("torch", "tensorflow")


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
