"""Derivatives of each sample's output with respect to its own input, for a whole batch at once."""

from collections.abc import Callable, Iterator
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary, ref

import numpy as np
from numpy.typing import ArrayLike, NDArray

_STEP = 1e-30  # of a complex step, which subtracts nothing and so rounds nothing
_HALF_STEP = 1e-4  # of central differences of that
_DEPTH = 3  # functions within functions within a function
_HASH_OF_IDENTITY: Any = object.__hash__


def input_gradients(function: Callable[[Any], Any], x: ArrayLike) -> NDArray[np.floating]:
    """Differentiate each sample's number with respect to its own input: ``d function(x)_i / d x_i``.

    Args:
        function: Maps ``[B, ...]`` to ``[B]`` or ``[B, 1]``; analytic, since it is called on complex arrays.
        x: ``[B, ...]``.

    Returns:
        Shape of ``x``.
    """
    jacobians = input_jacobians(function, x)
    return jacobians.reshape(np.shape(x))


def input_gradients_vjp(
    cotangent: ArrayLike, function: Callable[[Any], Any], x: ArrayLike
) -> NDArray[np.floating]:
    """Return what reaches ``x`` through its input gradients: each sample's Hessian times ``cotangent``.

    Args:
        cotangent: Shape of ``x``.
        function: As for ``input_gradients``.
        x: ``[B, ...]``.

    Returns:
        Shape of ``x``, by central differences: exact but for rounding where third derivatives are constant.
    """
    return _vjp(cotangent, lambda x: input_gradients(function, x), x)


def input_jacobians(function: Callable[[Any], Any], x: ArrayLike) -> NDArray[np.floating]:
    """Differentiate each sample's outputs with respect to its own input, one element of ``x`` at a time.

    Args:
        function: Maps ``[B, ...]`` to ``[B, O...]``; analytic, since it is called on complex arrays.
        x: ``[B, I...]``.

    Returns:
        ``[B, O..., I...]``.
    """
    x = np.asarray(x, complex)
    jacobians = np.zeros((*np.shape(function(x)), *x.shape[1:]))
    for sample, *element in np.ndindex(x.shape):
        moved = x.copy()
        moved[sample, *element] += 1j * _STEP
        jacobians[(sample, ..., *element)] = function(moved)[sample].imag / _STEP
    return jacobians


def input_jacobians_vjp(
    cotangent: ArrayLike, function: Callable[[Any], Any], x: ArrayLike
) -> NDArray[np.floating]:
    """Return the gradient that reaches ``x`` through its Jacobians.

    Args:
        cotangent: ``[B, O..., I...]``.
        function: As for ``input_jacobians``.
        x: ``[B, I...]``.

    Returns:
        Shape of ``x``, by central differences.
    """
    return _vjp(cotangent, lambda x: input_jacobians(function, x), x)


def _vjp(
    cotangent: ArrayLike, derivative: Callable[[Any], NDArray[np.floating]], x: ArrayLike
) -> NDArray[np.floating]:
    x = np.asarray(x, float)
    gradient = np.zeros(x.shape)
    for element in np.ndindex(x.shape):
        step = np.zeros(x.shape)
        step[element] = _HALF_STEP
        difference = derivative(x + step) - derivative(x - step)
        gradient[element] = np.sum(cotangent * difference) / (2 * _HALF_STEP)
    return gradient


class CallLog:
    """Counts the calls of functions, so that a check can be made at the first and at every n-th.

    A function is known by its code and by the state of what it refers to: the layers' modes, flags, other
    functions, and those among the attributes of objects. A new state begins a new count.

    Args:
        mode_of: Returns what says how a layer behaves, such as its training flags; None for anything else.
    """

    def __init__(self, mode_of: Callable[[object], object]) -> None:
        self._mode_of = mode_of
        self._seen: WeakKeyDictionary[Any, list[Any]] = WeakKeyDictionary()

    def is_due(self, function: Callable[..., Any], every: int) -> bool:
        """Count one call, and say whether it is the first in this state or an ``every``-th after it.

        Args:
            function: What is called.
            every: 1 is always, 0 never.

        Returns:
            Whether to check.
        """
        if every < 2:
            return every == 1
        state = tuple(self._state(function, _DEPTH))
        entry = self._seen.setdefault(_key(function), [(), 0])
        entry[1] = entry[1] + 1 if _equal(entry[0], state) else 0
        entry[0] = state
        return entry[1] % every == 0

    def forget(self, function: Callable[..., Any]) -> None:
        """Make the next call of a function count as its first.

        Args:
            function: What failed its check.
        """
        self._seen.pop(_key(function), None)

    def _state(self, part: Any, depth: int) -> Iterator[object]:
        mode = self._mode_of(part)
        if mode is not None:
            yield from (_identity(part), mode)
            return
        if isinstance(part, bool | int | float | str):
            yield part
        elif callable(part):
            yield _identity(_code(part))
        for inner in _references(part) if depth else ():
            yield from self._state(inner, depth - 1)


def _equal(one: tuple[object, ...], other: tuple[object, ...]) -> bool:
    # References to objects that are equal, but aren't the same, would be equal.
    same = (a is b or (not isinstance(a, ref) and a == b) for a, b in zip(one, other))
    return len(one) == len(other) and all(same)


def _identity(part: object) -> object:
    # Not the address alone: the next object may get it.
    return ref(part) if type(part).__weakrefoffset__ else id(part)


def _key(function: Callable[..., Any]) -> Any:
    key = _code(function)
    by_identity = isinstance(key, CodeType) or type(key).__hash__ is _HASH_OF_IDENTITY
    return key if by_identity and type(key).__weakrefoffset__ else type(key)


def _code(function: Any) -> Any:
    function = function.__func__ if isinstance(function, MethodType) else function
    return function.__code__ if isinstance(function, FunctionType) else function


def _references(part: Any) -> Iterator[object]:
    if isinstance(part, MethodType):
        yield part.__self__
        part = part.__func__
    if isinstance(part, partial):
        yield from (part.func, *part.args, *part.keywords.values())
    if isinstance(part, FunctionType):
        yield from _references_of_code(part)
    attributes = getattr(part, "__dict__", None)
    if isinstance(attributes, dict) and not isinstance(part, ModuleType):
        # Numbers are passed over: a counter would make every call the first of its state.
        yield from [a for a in attributes.values() if isinstance(a, bool) or not isinstance(a, int | float)]


def _references_of_code(function: FunctionType) -> Iterator[object]:
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    names = function.__code__.co_names
    yield from (function.__globals__[name] for name in names if name in function.__globals__)
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not filled yet
            continue
