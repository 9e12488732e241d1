"""Gradients through a choice between two branches."""

from typing import Any, NamedTuple


class WhereGradients(NamedTuple):
    """Gradients through each branch of ``where(condition, function(x), fallback)``.

    A named tuple, so that it passes through every transform. Each field has the shape of ``x``.

    Attributes:
        to_function: What arrives at ``function(x)`` for each 1 at the result: 1 where the condition holds.
        to_fallback: What arrives at the fallback: the other ones.
        derivative: Of ``function``, at every ``x``, chosen or not.
        gradient: What reaches ``x`` through the plain ``where``. By the chain rule ``to_function *
            derivative``, and 0 times an infinity is NaN.
        safe_gradient: What reaches ``x`` through ``safe_where``.
        poisoned: True where ``gradient`` isn't finite and ``safe_gradient`` is.
    """

    to_function: Any
    to_fallback: Any
    derivative: Any
    gradient: Any
    safe_gradient: Any
    poisoned: Any
