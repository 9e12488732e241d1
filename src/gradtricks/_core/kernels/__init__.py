"""Loops that only compiled code does fast; each file is imported when `kernels.file` is first asked for."""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    return import_module(f"{__name__}.{name}")  # with its compiler, which is dear
