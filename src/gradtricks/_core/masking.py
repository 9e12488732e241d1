"""What both frameworks need for Adam."""

import math
from functools import cache

import numpy as np

from gradtricks._core.checks import check_number


def check_options(
    learning_rate: object, beta_1: object, beta_2: object, epsilon: object, weight_decay: object
) -> None:
    """Raise a TypeError or a ValueError unless every option is a number in its range."""
    check_number("learning_rate", learning_rate, low=0)
    check_number("beta_1", beta_1, low=0, high=math.nextafter(1, 0))
    check_number("beta_2", beta_2, low=0, high=math.nextafter(1, 0))
    check_number("epsilon", epsilon, low=0)
    check_number("weight_decay", weight_decay, low=0)


@cache
def one_minus_exp(dtype: str) -> tuple[tuple[float, ...], int, float]:
    """Say how to compute ``1 - exp(-x)`` by a few products, which vectorize where library functions don't.

    Where ``x = 2**doublings * z`` it is ``y = (c[0] z**n + ... + c[n]) z`` at ``min(z, most)``, then so often
    ``y (2 - y)``, since ``1 - exp(-2 x) = y (2 - y)`` where ``y = 1 - exp(-x)``.

    Args:
        dtype: float32 or float64.

    Returns:
        ``c``, ``doublings``, and ``most``, beyond which the result rounds to 1.
    """
    degree, doublings = {"float32": (7, 3), "float64": (11, 5)}[dtype]
    most = float(-np.log(np.finfo(dtype).eps / 4) / 2**doublings)
    fit = np.polynomial.Chebyshev.interpolate(lambda z: -np.expm1(-z) / z, degree, [0, most])
    return tuple(fit.convert(kind=np.polynomial.Polynomial).coef[::-1].tolist()), doublings, most
