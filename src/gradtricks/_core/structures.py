"""Nested lists, tuples and dicts of tensors: walked in the order of one, and built anew."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

Pair = tuple[str, Any, Any]


def leaves(structure: Any) -> list[Any]:
    """List what stands in nested lists, tuples and dicts, in their order.

    Args:
        structure: Leaves, or lists, tuples and dicts of structures.

    Returns:
        The leaves.
    """
    return [leaf for _, leaf, _ in pairs("structure", structure, "structure", structure)]


def pairs(name: str, structure: Any, other_name: str, other: Any) -> list[Pair]:
    """List what stands at the same places of two structures; dicts go by key, a list may meet a tuple.

    Args:
        name: What the caller calls ``structure``.
        structure: Leaves, or lists, tuples and dicts of structures.
        other_name: What the caller calls ``other``.
        other: The same structure; where ``structure`` has a leaf, anything.

    Returns:
        For each leaf its place, such as ``['dense'][0]``, and what stands there in each.

    Raises:
        TypeError: ``structure`` is an iterator, which can't be built anew.
        ValueError: The structures differ.
    """
    if isinstance(structure, Iterator):
        got = type(structure).__name__
        raise TypeError(f"{name} must be a list rather than an iterator; got {got}; remedy: list({name})")
    return _pairs("", name, structure, other_name, other)


def rebuilt(structure: Any, values: Iterator[Any]) -> Any:
    """Put other values in the places of the leaves.

    Args:
        structure: As for ``leaves``.
        values: As many as there are leaves.

    Returns:
        A structure like ``structure``.
    """
    entries = _entries(structure)
    if entries is None:
        return next(values)
    items = [rebuilt(structure[key], values) for key in entries]
    if isinstance(structure, defaultdict):
        return defaultdict(structure.default_factory, zip(entries, items))
    if isinstance(structure, dict):
        return type(structure)(zip(entries, items))
    return type(structure)(*items) if hasattr(structure, "_fields") else type(structure)(items)


def _pairs(place: str, name: str, structure: Any, other_name: str, other: Any) -> list[Pair]:
    entries = _entries(structure)
    if entries is None:
        return [(place, structure, other)]
    got = _entries(other)
    if got is None or set(got) != set(entries):
        found = type(other).__name__ if got is None else f"the entries {got}"
        raise ValueError(
            f"{other_name}{place} must hold the entries of {name}{place}, {entries}; got {found}"
        )
    inner = [_pairs(f"{place}[{key!r}]", name, structure[key], other_name, other[key]) for key in entries]
    return [pair for part in inner for pair in part]


def _entries(structure: Any) -> list[Any] | None:
    if isinstance(structure, dict):
        return list(structure)
    return list(range(len(structure))) if isinstance(structure, tuple | list) else None
