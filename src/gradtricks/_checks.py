"""Checks that every framework shares: numbers and shapes, with errors that say expected, got, remedy."""

import math
from collections.abc import Sequence
from numbers import Real


def check_number(name: str, value: object, *, low: float = -math.inf, high: float = math.inf) -> float:
    """Return ``value`` as a float, or say what it should have been.

    Args:
        name: What the caller calls the value.
        value: Anything; only a finite real number within ``[low, high]`` passes.
        low: Smallest value allowed.
        high: Largest value allowed.

    Returns:
        The number as a Python float.

    Raises:
        TypeError: ``value`` isn't a real number; a bool isn't one here.
        ValueError: ``value`` is NaN, infinite or outside ``[low, high]``.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a real number; got {type(value).__name__}")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{name} must be finite; got {number}")
    if not low <= number <= high:
        raise ValueError(f"{name} must lie in {_interval(low, high)}; got {number}")
    return number


def check_shape(name: str, shape: Sequence[int | None], expected: Sequence[int | None], like: str) -> None:
    """Raise unless two shapes are equal; a dimension of None (unknown until run) fits any.

    Args:
        name: What the caller calls the tensor.
        shape: Its shape.
        expected: The shape that it should have.
        like: Where the expected shape comes from, for the message.

    Raises:
        ValueError: The shapes differ.
    """
    same_rank = len(shape) == len(expected)
    if not same_rank or any(a is not None and b is not None and a != b for a, b in zip(shape, expected)):
        raise ValueError(f"{name} must have the shape of {like}, {tuple(expected)}; got {tuple(shape)}")


def check_broadcast(name: str, shape: Sequence[int | None], target: Sequence[int | None], like: str) -> None:
    """Raise unless ``shape`` broadcasts to ``target`` without enlarging it.

    Args:
        name: What the caller calls the tensor.
        shape: Its shape.
        target: The shape to broadcast to.
        like: Where the target shape comes from, for the message.

    Raises:
        ValueError: Broadcasting would fail or enlarge the target.
    """
    fits = len(shape) <= len(target) and all(
        a == 1 or a is None or b is None or a == b for a, b in zip(reversed(shape), reversed(target))
    )
    if not fits:
        raise ValueError(f"{name} must broadcast to the shape of {like}, {tuple(target)}; got {tuple(shape)}")


def _interval(low: float, high: float) -> str:
    left = "(-inf" if low == -math.inf else f"[{low:g}"
    right = "inf)" if high == math.inf else f"{high:g}]"
    return f"{left}, {right}"
