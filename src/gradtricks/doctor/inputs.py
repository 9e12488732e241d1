"""How a function is given its inputs, and what they are called."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from gradtricks._core.structures import pairs

Parts = Callable[[Any], list[tuple[str, Any]] | None]
Named = list[tuple[str, Any]]


def bind(function: Callable[..., Any], inputs: Any, parts: Parts) -> tuple[Callable[[], Any], Named]:
    """Decide how a function is given its inputs; return what runs it, and the tensors with their names.

    A function that needs no argument is called without any: it is a closure over the inputs. Otherwise a dict
    is given by keyword, a list or a tuple item by item, and anything else as the only argument.
    """
    if not callable(function):
        raise TypeError(
            f"function must be callable; got {type(function).__name__}; "
            "remedy: explain_gradient(lambda: ..., inputs), a tensor doesn't know what went unrecorded"
        )
    inputs = list(inputs) if isinstance(inputs, Iterator) else inputs
    names = _argument_names(function)
    several = isinstance(inputs, list | tuple)
    if isinstance(inputs, dict):
        named = [(str(key), value) for key, value in inputs.items()]
    elif several:
        known = names or []
        numbered = [f"inputs[{index}]" for index in range(len(known), len(inputs))]
        named = list(zip([*known, *numbered], inputs))
    else:
        named = [((names or ["inputs"])[0], inputs)]
    leaves = [leaf for name, value in named for leaf in named_leaves(name, value, parts)]
    if not leaves:
        raise ValueError("inputs must hold a tensor; got none; remedy: name what the gradient is wanted for")
    if names is not None and not names:
        return function, leaves
    if isinstance(inputs, dict):
        return lambda: function(**inputs), leaves
    return (lambda: function(*inputs)) if several else (lambda: function(inputs)), leaves


def _argument_names(function: Callable[..., Any]) -> list[str] | None:
    """Return the names of the positional arguments, [] where none is needed, None where nobody knows."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # built into the framework
        return None
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return None
    required = [p for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    return [p.name for p in parameters if p.kind is not p.VAR_KEYWORD] if required else []


def named_leaves(name: str, value: Any, parts: Parts) -> Iterator[tuple[str, Any]]:
    """Yield the tensors of a structure with their names; what is none is yielded too, to be refused.

    ``parts`` returns ``[("", tensor)]`` for a tensor, the named parameters of a model, None for the rest.
    """
    for place, leaf, _ in pairs(name, value, name, value):
        whole, found = f"{name}{place}", parts(leaf)
        prefix = "" if whole == "inputs" else f"{whole}."
        for part, tensor in [("", leaf)] if found is None else found:
            yield f"{prefix}{part}" if part else whole, tensor
