"""Adam's options and its bias correction, for both frameworks."""

from functools import cache

import numpy as np

from gradtricks._core.checks import check_number


def check_options(
    learning_rate: object, beta_1: object, beta_2: object, epsilon: object, weight_decay: object
) -> list[float]:
    """Return every option as a float; raise a TypeError or a ValueError unless it is one in its range."""
    options = {"learning_rate": learning_rate, "beta_1": beta_1, "beta_2": beta_2, "epsilon": epsilon}
    options["weight_decay"] = weight_decay
    numbers = {name: check_number(name, value, low=0) for name, value in options.items()}
    for name in ("beta_1", "beta_2"):
        if numbers[name] >= 1:
            raise ValueError(f"{name} must lie in [0, 1); got {numbers[name]}")
    return [*numbers.values()]


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
