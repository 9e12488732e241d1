"""Checks that every framework shares: numbers and shapes, with errors that say expected, got, remedy."""

import math
import sys
from collections.abc import Iterator, Sequence
from numbers import Integral, Real

_LARGEST = sys.float_info.max


def check_number(name: str, value: object, *, low: float = -math.inf, high: float = math.inf) -> float:
    """Return a finite real number within ``[low, high]`` as a float; refuse all else, bools too."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a real number; got {type(value).__name__}")
    try:
        number = float(value)  # NumPy would make what it is compared with as narrow as it is
    except OverflowError:
        raise ValueError(f"{name} must be finite; got a number beyond float64") from None
    # torch.compile traces comparisons of a number that changes, but not math.isfinite.
    if not -_LARGEST <= number <= _LARGEST:
        raise ValueError(f"{name} must be finite; got {number}")
    if not low <= number <= high:
        raise ValueError(f"{name} must lie in {_interval(low, high)}; got {number}")
    return number


def check_interval(name: str, value: object, *, low: float = -math.inf) -> tuple[float, float]:
    """Return a pair of numbers, the lower one first; None has no bound above."""
    if value is None:
        return low, math.inf
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise ValueError(f"{name} must be a pair of numbers; got {value!r}")
    lowest, highest = (check_number(name, bound, low=low) for bound in value)
    if lowest > highest:
        raise ValueError(f"{name} must be a pair (low, high) with low <= high; got {value!r}")
    return lowest, highest


def check_integer(name: str, value: object, *, low: int, high: int | None = None) -> int:
    """Return an integer within bounds, of which ``high`` may be missing; refuse all else, bools too."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be an integer; got {type(value).__name__}")
    number = int(value)
    if high is not None and not low <= number <= high:
        raise ValueError(f"{name} must lie in [{low}, {high}]; got {number}")
    if number < low:
        raise ValueError(f"{name} must be at least {low}; got {number}")
    return number


def check_shape(name: str, shape: Sequence[int | None], expected: Sequence[int | None], like: str) -> None:
    """Raise unless two shapes are equal; a dimension of None (unknown until run) fits any.

    ``like`` says where the expected shape comes from.
    """
    if any(getattr(known, "rank", 0) is None for known in (shape, expected)):
        return  # of a graph's tensor not even the rank may be known until run
    same_rank = len(shape) == len(expected)
    if not same_rank or any(a is not None and b is not None and a != b for a, b in zip(shape, expected)):
        raise ValueError(f"{name} must have the shape of {like}, {tuple(expected)}; got {tuple(shape)}")


def check_broadcast(name: str, shape: Sequence[int | None], target: Sequence[int | None], like: str) -> None:
    """Raise unless ``shape`` broadcasts to ``target``, the shape of ``like``, without enlarging it."""
    if unranked := [of for of, known in ((name, shape), (like, target)) if getattr(known, "rank", 0) is None]:
        raise ValueError(f"{unranked[0]} must have a known rank; got none; remedy: tf.ensure_shape")
    fits = len(shape) <= len(target) and all(
        a == 1 or a is None or b is None or a == b for a, b in zip(reversed(shape), reversed(target))
    )
    if not fits:
        raise ValueError(f"{name} must broadcast to the shape of {like}, {tuple(target)}; got {tuple(shape)}")


def check_axis(name: str, value: object, rank: int) -> tuple[int, ...]:
    """Return axes as increasing numbers from 0 on; None is all, negative ones count from the end."""
    axes = tuple(value) if isinstance(value, tuple | list) else (value,)
    if value is None:
        return tuple(range(rank))
    if not all(isinstance(axis, Integral) and not isinstance(axis, bool) for axis in axes):
        raise TypeError(f"{name} must be an integer or a sequence of them; got {value!r}")
    found = {axis % rank for axis in axes if -rank <= axis < rank}
    if not axes or len(found) < len(axes):
        raise ValueError(f"{name} must name different axes of {rank}; got {value!r}")
    return tuple(sorted(found))


def remedy_of(name: str, value: object, conversion: str) -> str:
    """Say what makes a tensor of ``value``: the framework's conversion, or what an iterator or Keras asks."""
    if type(value).__name__ == "KerasTensor":  # under Keras on PyTorch; nobody else has imported Keras
        return "keras.layers.Lambda around the function, or the call method of a keras.layers.Layer"
    return f"list({name})" if isinstance(value, Iterator) else conversion


def check_log_probability(name: str, highest: float, eps: float) -> None:
    """Raise if the highest log-probability is above 0 by more than a dtype of this ``eps`` rounds."""
    if highest > max(1e-3, 16 * eps):
        remedy = "log_softmax of the logits, and of that the entry of each token"
        raise ValueError(f"{name} must be at most 0, as logarithms are; got {highest:.4g}; remedy: {remedy}")


def check_callable(name: str, value: object) -> None:
    """Raise unless ``value`` can be called."""
    if not callable(value):
        raise TypeError(f"{name} must be callable; got {type(value).__name__}")


def check_flag(name: str, value: object) -> None:
    """Raise unless ``value`` is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False; got {type(value).__name__}")


def check_choice(name: str, value: object, choices: Sequence[object]) -> None:
    """Raise unless ``value`` is one of ``choices``."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}; got {value!r}")


def _interval(low: float, high: float) -> str:
    left = "(-inf" if low == -math.inf else f"[{low:g}"
    return f"{left}, inf)" if high == math.inf else f"{left}, {high:g}]"
