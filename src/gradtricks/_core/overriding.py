"""What both frameworks ask of operators and of results: which there are, and equal structures."""

from typing import Any

# Operators of one tensor that both frameworks have under these names; their options get no gradient.
OPERATORS = (
    "abs",
    "ceil",
    "cos",
    "elu",
    "exp",
    "floor",
    "leaky_relu",
    "log",
    "relu",
    "relu6",
    "round",
    "selu",
    "sigmoid",
    "sign",
    "sin",
    "softplus",
    "sqrt",
    "tanh",
)


def check_same_structure(hard: Any, soft: Any) -> None:
    """Raise unless two nested tuples, lists and dicts differ in their leaves only.

    Args:
        hard: What ``forward`` returned.
        soft: What ``gradient_of`` returned.

    Raises:
        ValueError: The structures differ.
    """
    if _described(hard) != _described(soft):
        raise ValueError(
            f"gradient_of must return the structure that forward returns, {_described(hard)}; "
            f"got {_described(soft)}"
        )
    if isinstance(hard, dict | tuple | list):
        for place in _places(hard):
            check_same_structure(hard[place], soft[place])


def _described(structure: object) -> str:
    if isinstance(structure, dict | tuple | list):
        return f"a {type(structure).__name__} with {_places(structure)}"
    return "one tensor"


def _places(structure: dict | tuple | list) -> list:
    return sorted(structure, key=repr) if isinstance(structure, dict) else list(range(len(structure)))
