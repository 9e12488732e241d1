"""Operators of one tensor that both frameworks have under the same names; their options get no gradient."""

from collections.abc import Callable, Mapping
from typing import Any

from gradtricks._core.checks import check_callable

_LISTED = (
    "abs, ceil, cos, elu, exp, floor, leaky_relu, log, relu, relu6, round, selu, sigmoid, sign, sin, "
    "softplus, sqrt, tanh"
)
OPERATORS = tuple(_LISTED.split(", "))


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
                f"gradients must map operators of {framework} ({_LISTED}); got {op!r}; "
                "remedy: override_gradient"
            )
        if names[op] in found:
            raise ValueError(f"gradients must map each operator once; got {names[op]}, {names[op]}")
        check_callable(f"the gradient of {names[op]}", gradient)
        found[names[op]] = gradient
    return found
