"""Norms of a symmetric matrix that is known by its products with vectors only."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradtricks._core.checks import check_choice, check_integer

_ROUNDING = {2: 2.0**-7, 4: 2.0**-23, 8: 2.0**-52}  # by bytes; of 16 bits, bfloat16's


class HessianNorm(NamedTuple):
    """A norm of a Hessian, and how far to trust it.

    Attributes:
        value: The estimate.
        standard_error: For the Frobenius norm, the standard deviation of the estimate; NaN after one sample.
            For the spectral norm, the residual: up to the errors of the products, a singular value lies
            within this distance of ``value``. 0 where every column of the Hessian was computed.
    """

    value: float
    standard_error: float


def norm_of_products(
    product: Callable[[NDArray], NDArray],
    size: int,
    *,
    ord: str | int,  # noqa: A002 (NumPy's own name for it)
    samples: int,
    seed: int,
) -> HessianNorm:
    """Estimate a norm of a symmetric matrix from its products with vectors, both ``[size]``.

    With ``samples >= size`` the vectors are the columns of the identity and the norm is exact. Otherwise the
    Frobenius norm is the root of the mean of ``|Hz|**2`` over vectors z of random signs (M. F. Hutchinson,
    https://doi.org/10.1080/03610919008812866), and the spectral norm is the largest Ritz value, in magnitude,
    of as many Lanczos steps from a Gaussian vector (C. Lanczos, https://doi.org/10.6028/jres.045.026).
    """
    random = np.random.default_rng(seed)
    # What isn't finite shows in the result.
    with np.errstate(invalid="ignore", over="ignore"):
        if samples >= size:
            return _dense_norm(product, size, ord)
        if ord == "fro":
            return _mean_norm([product(random.integers(0, 2, size) * 2.0 - 1.0) for _ in range(samples)])
        # Not from signs, which are often orthogonal to an eigenvector such as (1, -1, 0, ...).
        return _lanczos(product, random.normal(size=size), samples)


def difference(
    gradient: Callable[[NDArray], NDArray], x: NDArray, itemsize: int
) -> Callable[[NDArray], NDArray]:
    """Return approximate products with a Hessian: central differences of gradients, all ``[size]``.

    Numbers have ``itemsize`` bytes in the arithmetic of the gradient.
    """
    # The cube root of the rounding error balances rounding against truncation.
    distance = _ROUNDING[itemsize] ** (1 / 3) * max(1.0, float(np.linalg.norm(x)))

    def product(z: NDArray) -> NDArray:
        step = distance / (float(np.linalg.norm(z)) or 1.0)
        return (gradient(x + step * z) - gradient(x - step * z)) / (2 * step)

    return product


def check_norm(ord: object, method: object, samples: object, seed: object) -> None:  # noqa: A002 (as above)
    """Raise a TypeError or a ValueError unless the options of ``hessian_norm`` are valid."""
    check_choice("ord", ord, ("fro", 2))
    check_choice("method", method, ("exact", "finite_difference"))
    check_integer("samples", samples, low=1)
    check_integer("seed", seed, low=0)


def _length(values: NDArray) -> float:
    # The squares of large numbers overflow, those of small ones vanish.
    largest = float(np.abs(values).max(initial=0.0))
    return largest * float(np.linalg.norm(values / largest)) if 0 < largest < np.inf else largest


def _dense_norm(product: Callable[[NDArray], NDArray], size: int, order: str | int) -> HessianNorm:
    columns = np.array([product(unit) for unit in np.eye(size)]).reshape(size, size)
    if not np.isfinite(columns).all():
        return HessianNorm(float("nan"), float("nan"))
    norm = _length(columns) if order == "fro" or not size else float(np.linalg.norm(columns, 2))
    return HessianNorm(norm, 0.0)


def _mean_norm(products: list[NDArray]) -> HessianNorm:
    lengths = np.array([_length(product) for product in products])
    value = _length(lengths) / float(np.sqrt(len(lengths)))
    if len(lengths) == 1:
        return HessianNorm(value, float("nan"))
    # The root's slope carries the error of the mean square over to the norm.
    squares = np.square(lengths / (value or 1.0))
    return HessianNorm(value, value * float(squares.std(ddof=1) / np.sqrt(len(squares))) / 2)


def _lanczos(product: Callable[[NDArray], NDArray], start: NDArray, steps: int) -> HessianNorm:
    basis, diagonal, off = [start / np.linalg.norm(start)], [], []
    while True:
        image = product(basis[-1])
        diagonal.append(float(basis[-1] @ image))
        # Twice, because one pass leaves rounding errors that bring found eigenvalues back.
        for _ in range(2):
            image = image - np.array(basis).T @ (np.array(basis) @ image)
        off.append(_length(image))
        if not np.isfinite(off[-1]):
            return HessianNorm(float("nan"), float("nan"))
        size = max(map(abs, diagonal + off))
        if len(basis) == steps or off[-1] <= 1e-12 * size:
            break
        basis.append(image / off[-1])
    tridiagonal = np.diag(diagonal) + np.diag(off[:-1], 1) + np.diag(off[:-1], -1)
    values, vectors = np.linalg.eigh(tridiagonal)
    largest = int(np.argmax(np.abs(values)))
    value, residual = float(abs(values[largest])), float(off[-1] * abs(vectors[-1, largest]))
    return HessianNorm(value, max(residual, float(np.finfo(np.float64).eps) * value))
