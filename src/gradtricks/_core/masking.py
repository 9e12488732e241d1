"""What both frameworks need for Adam."""

from functools import cache

import numpy as np

from gradtricks._core.checks import check_number


def check_options(
    learning_rate: object, beta_1: object, beta_2: object, epsilon: object, weight_decay: object
) -> None:
    """Raise a TypeError or a ValueError unless every option is a number in its range."""
    for name, beta in {"beta_1": beta_1, "beta_2": beta_2}.items():
        if check_number(name, beta, low=0) >= 1:
            raise ValueError(f"{name} must lie in [0, 1); got {beta}")
    others = {"learning_rate": learning_rate, "epsilon": epsilon, "weight_decay": weight_decay}
    for name, value in others.items():
        check_number(name, value, low=0)


@cache
def one_minus_exp(dtype: str) -> tuple[tuple[float, ...], int, float]:
    """Say how to compute ``1 - exp(-x)`` by a few products, which vectorize where library functions don't.

    Returns:
        ``c``, ``doublings`` and ``most``. Where ``z = min(x / 2**doublings, most)``, beyond which the result
        rounds to 1, ``y = (c[0] z**n + ... + c[n]) z``; and so often ``y <- y (2 - y)``, since
        ``1 - exp(-2 x) = y (2 - y)`` where ``y = 1 - exp(-x)``.
    """
    degree, doublings = {"float32": (7, 3), "float64": (11, 5)}[dtype]
    most = float(-np.log(np.finfo(dtype).eps / 4) / 2**doublings)
    fit = np.polynomial.Chebyshev.interpolate(lambda z: -np.expm1(-z) / z, degree, [0, most])
    return tuple(fit.convert(kind=np.polynomial.Polynomial).coef[::-1].tolist()), doublings, most
