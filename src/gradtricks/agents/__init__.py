"""Agents for the reinforcement-learning experiments, built on the tricks: REINFORCE, PPO and MuZero.

``gradtricks.agents.load("torch")`` and ``gradtricks.agents.load("tensorflow")`` have the same
public names. Games, search, memory and training loops need neither and are shared by both.
"""

from types import ModuleType

from gradtricks._load import load_backend

__all__ = ["load"]


def load(backend: str) -> ModuleType:
    """Return the agents of ``"torch"`` or ``"tensorflow"``; the other framework is never imported.

    Raises:
        ValueError: ``backend`` is another name.
        ImportError: The framework isn't installed.
    """
    return load_backend("gradtricks.agents", backend)
