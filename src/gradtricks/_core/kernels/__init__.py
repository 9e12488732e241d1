"""Loops that only compiled code does fast; each file is imported when `kernels.file` is first asked for."""

from importlib import import_module
from typing import Any

_FILES = ("freezing", "launches", "masking", "policy_gradients", "ranking", "turns")


def __getattr__(name: str) -> Any:
    if name not in _FILES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")  # with its compiler, which is dear
