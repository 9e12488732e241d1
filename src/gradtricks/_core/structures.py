"""Nested lists, tuples and dicts of tensors: walked in the order of one, and built anew."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

Pair = tuple[str, Any, Any]


def leaves(structure: Any) -> list[Any]:
    """List what stands in nested lists, tuples and dicts, in their order."""
    return [leaf for _, leaf, _ in pairs("structure", structure, "structure", structure)]


def pairs(name: str, structure: Any, other_name: str, other: Any, place: str = "") -> list[Pair]:
    """List what stands at the same places of two structures; dicts go by key, a list may meet a tuple.

    Returns:
        For each leaf of ``structure`` its place, such as ``['dense'][0]`` after ``place``, and what stands
        there in each; that is anything in ``other``.

    Raises:
        ValueError: The structures differ.
    """
    entries = _entries(structure)
    if entries is None:
        return [(place, structure, other)]
    got = _entries(other)
    if got is None or set(got) != set(entries):
        found = type(other).__name__ if got is None else f"the entries {got}"
        raise ValueError(
            f"{other_name}{place} must hold the entries of {name}{place}, {entries}; got {found}"
        )
    inner = [pairs(name, structure[key], other_name, other[key], f"{place}[{key!r}]") for key in entries]
    return [pair for part in inner for pair in part]


def rebuilt(structure: Any, values: Iterator[Any]) -> Any:
    """Put other values, as many as there are leaves, in the places of the leaves."""
    return map_structure(lambda _: next(values), structure)


def map_structure(function: Callable[..., Any], *structures: Any) -> Any:
    """Apply ``function`` to the leaves that stand at the same place of equal structures."""
    first = structures[0]
    entries = _entries(first)
    if entries is None:
        return function(*structures)
    items = [map_structure(function, *(structure[key] for structure in structures)) for key in entries]
    kind = first.__class__  # of a proxy, such as TensorFlow's around a module's tuple, what it stands for
    if not isinstance(first, dict):
        return kind(*items) if hasattr(first, "_fields") else kind(items)
    if kind is dict:
        return dict(zip(entries, items))
    same_kind = copy.copy(first)  # a defaultdict can't be made from its items
    for key, item in zip(entries, items):
        same_kind[key] = item  # transformers' outputs refuse update
    return same_kind


def _entries(structure: Any) -> list[Any] | None:
    if isinstance(structure, dict):
        return list(structure)
    return list(range(len(structure))) if isinstance(structure, tuple | list) else None
