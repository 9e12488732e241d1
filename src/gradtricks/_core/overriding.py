"""What both frameworks ask of operators and of results: which there are, and equal structures."""

from collections.abc import Callable, Mapping
from typing import Any

from gradtricks._core.checks import check_callable

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


def by_operator(
    gradients: Mapping[Callable[..., Any], Any], names: Mapping[Any, str], framework: str
) -> dict[str, Any]:
    """Return the gradients by the names of their operators; ``names`` are of the framework's functions."""
    if not isinstance(gradients, Mapping):
        raise TypeError(f"gradients must be a mapping; got {type(gradients).__name__}")
    found: dict[str, Any] = {}
    for op, gradient in gradients.items():
        if op not in names:
            raise ValueError(
                f"gradients must map operators of {framework} ({', '.join(OPERATORS)}); got {op!r}; "
                "remedy: override_gradient"
            )
        if names[op] in found:
            raise ValueError(f"gradients must map each operator once; got {names[op]}, {names[op]}")
        check_callable(f"the gradient of {names[op]}", gradient)
        found[names[op]] = gradient
    return found


def check_same_structure(hard: Any, soft: Any) -> None:
    """Raise unless two nested tuples, lists and dicts differ in their leaves only."""
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
