"""The doctor: says what is wrong with the gradients of a training, on which line, and what to do.

``gradtricks.doctor.load("torch")`` and ``gradtricks.doctor.load("tensorflow")`` have the same public names.
The frameworks' recorders only note what happens; the rules that judge it know neither framework.
"""

from functools import partial
from types import ModuleType
from typing import Any

from gradtricks._load import load_backend

__all__ = ["load", "load_ipython_extension"]


def load_ipython_extension(shell: Any) -> None:
    """Let a notebook run cells under ``%%doctor``, after ``%load_ext gradtricks.doctor``."""
    from gradtricks.doctor.magic import doctor

    shell.register_magic_function(partial(doctor, shell), "cell", "doctor")


def load(backend: str) -> ModuleType:
    """Return the doctor of ``"torch"`` or ``"tensorflow"``; the other framework is never imported.

    Raises:
        ValueError: ``backend`` is another name.
        ImportError: The framework isn't installed.
    """
    return load_backend("gradtricks.doctor", backend)
