"""Agents for the two reinforcement-learning experiments, built on the tricks.

``gradtricks.agents.load("torch")`` and ``gradtricks.agents.load("tensorflow")`` have the same
public names. The environments are NumPy only and are shared by both.
"""

from types import ModuleType

from gradtricks._load import load_backend

__all__ = ["load"]


def load(backend: str) -> ModuleType:
    """Return the agents of one framework; the other framework is never imported.

    Args:
        backend: ``"torch"`` or ``"tensorflow"``.

    Returns:
        The module ``gradtricks.agents.torch`` or ``gradtricks.agents.tensorflow``.

    Raises:
        ValueError: ``backend`` is another name.
        ImportError: The framework isn't installed.
    """
    return load_backend("gradtricks.agents", backend)
