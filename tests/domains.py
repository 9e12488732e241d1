"""Domains of arguments. Each names the wrong values next to it, the error and the words of the message.

A domain is a function of an argument's name that yields ``value, error, message``.
"""

import math

import numpy as np

ARRAY = np.ones(2)  # stays one in what is refused
LONG = np.ones(7)  # has no shape that another argument of a row has


def floating(like=None):
    """Take floating-point tensors; in the shape of what is called ``like``, where that is given."""
    return _tensors("be floating-point", np.ones(2, int), LONG, like and f"have the shape of {like}")


def integers(shape):
    """Take tensors of integers, whose ``shape`` is said in the error's words."""
    return _tensors("hold integers", np.ones(2), LONG.astype(int), shape)


def bools(words, shape):
    """Take tensors of bools, likewise."""
    return _tensors(words, np.ones(2), LONG > 0, shape)


def mask(name):
    """Take bool or floating-point tensors in the shape of the tokens."""
    words = "be bool or floating-point; got .*int64; remedy"
    return _tensors(words, np.ones(2, int), LONG, "have the shape of the tokens")(name)


def _tensors(words, of_another_dtype, long, shape):
    def wrong(name):
        yield ARRAY, TypeError, f"{name} must be a .*Tensor; got ndarray; remedy"
        yield of_another_dtype, TypeError, f"{name} must {words}"
        if shape:
            yield long, ValueError, rf"{name} must {shape}.*; got \(7,\)"

    return wrong


def number(low=-math.inf, high=math.inf, *, tensor=None):
    """Take numbers within bounds; and floating-point tensors, if ``tensor`` says of which shape."""

    def wrong(name):
        for value in ("1.0", True):
            yield value, TypeError, f"{name} must be a real number; got {type(value).__name__}"
        yield np.nan, ValueError, f"{name} must be finite; got nan"
        yield -math.inf, ValueError, f"{name} must be finite; got -inf"
        yield 10**400, ValueError, f"{name} must be finite; got a number beyond float64"
        for beyond in ([low - 1] if low > -math.inf else []) + ([high + 1] if high < math.inf else []):
            yield beyond, ValueError, rf"{name} must lie in .*; got {beyond}"
        if tensor:
            yield np.array(1), TypeError, f"{name} must be floating-point; got .*int64"
            yield LONG, ValueError, rf"{name} must {tensor}.*; got \(7,\)"

    return wrong


SCALAR, BROADCAST = r"have the shape of a scalar, \(\)", "broadcast to the shape of "


def integer(low):
    """Take integers from ``low`` on."""

    def wrong(name):
        for value in (2.0, True, "2"):
            yield value, TypeError, f"{name} must be an integer; got {type(value).__name__}"
        yield low - 1, ValueError, f"{name} must be at least {low}; got {low - 1}"

    return wrong


def choice(*names):
    """Take one of some values."""

    def wrong(name):
        for value in ("none of them", 3):
            yield value, ValueError, f"{name} must be one of {', '.join(map(repr, names))}; got {value!r}"

    return wrong


def axes(rank, *, several=True):
    """Take an axis of ``rank``, or several of them."""

    def wrong(name):
        for value in (rank, -rank - 1, *([(), (0, -rank)] if several else [])):
            yield value, ValueError, rf"{name} must name different axes of {rank}; got "
        for value in (0.5, True, "0"):
            yield value, TypeError, f"{name} must be an integer or a sequence of them; got "

    return wrong


def flag(name):
    """Take True or False."""
    yield "yes", TypeError, f"{name} must be True or False; got str"


def function(name):
    """Take what can be called."""
    yield 0.5, TypeError, f"{name} must be callable; got float"
