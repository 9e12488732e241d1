"""The doctor: says what is wrong with the gradients of a training, on which line, and what to do.

``gradtricks.doctor.load("torch")`` and ``gradtricks.doctor.load("tensorflow")`` have the same public names.
The frameworks' recorders only note what happens; the rules that judge it know neither framework.
"""

from types import ModuleType

from gradtricks._load import load_backend

__all__ = ["load"]


def load(backend: str) -> ModuleType:
    """Return the doctor of ``"torch"`` or ``"tensorflow"``; the other framework is never imported.

    Raises:
        ValueError: ``backend`` is another name.
        ImportError: The framework isn't installed.
    """
    return load_backend("gradtricks.doctor", backend)
