"""Gradient tricks with the same names and results in PyTorch and TensorFlow.

``gradtricks.load("torch")`` is the module ``gradtricks.torch`` and
``gradtricks.load("tensorflow")`` is ``gradtricks.tensorflow``. Importing
``gradtricks`` itself imports neither framework.
"""

from types import ModuleType

from gradtricks._load import load_backend

__all__ = ["__version__", "load"]

__version__ = "0.1.0"


def load(backend: str) -> ModuleType:
    """Return the tricks of one framework; the other framework is never imported.

    Args:
        backend: ``"torch"`` or ``"tensorflow"``.

    Returns:
        The module ``gradtricks.torch`` or ``gradtricks.tensorflow``. Both have the same public names.

    Raises:
        ValueError: ``backend`` is another name.
        ImportError: The framework isn't installed.
    """
    return load_backend("gradtricks", backend)
