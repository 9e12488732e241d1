"""Norms of a symmetric matrix that is known by its products with vectors only."""

from collections.abc import Callable
from typing import Any, NamedTuple

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
    product: Callable[[Any], Any],
    size: int,
    *,
    ord: str | int,  # noqa: A002 (NumPy's own name for it)
    samples: int,
    seed: int,
    arrays: Any = np,
    given: Callable[[NDArray], Any] = np.asarray,
    host: Callable[[Any], NDArray] = np.asarray,
    looks: bool = True,
) -> HessianNorm:
    """Estimate a norm of a symmetric matrix from its products with vectors, both ``[size]``, in float64.

    With ``samples >= size`` the vectors are the columns of the identity and the norm is exact. Otherwise the
    Frobenius norm is the root of the mean of ``|Hz|**2`` over vectors z of random signs (M. F. Hutchinson,
    https://doi.org/10.1080/03610919008812866), and the spectral norm is the largest Ritz value, in magnitude,
    of as many Lanczos steps from a Gaussian vector (C. Lanczos, https://doi.org/10.6028/jres.045.026).

    The products may be another library's: ``arrays`` has NumPy's functions for them, ``given`` makes one of
    an array of NumPy's, and ``host`` the other way round, once and at the end, unless it ``looks`` after each
    Lanczos step whether there can be another.
    """
    random = np.random.default_rng(seed)
    # What isn't finite shows in the result.
    with np.errstate(invalid="ignore", over="ignore"):
        if samples >= size:
            columns = [product(given(unit)) for unit in np.eye(size)]
            return _dense_norm(host(arrays.stack(columns)) if columns else np.zeros((0, 0)), ord)
        if ord == "fro":
            signs = (given(random.integers(0, 2, size) * 2.0 - 1.0) for _ in range(samples))
            return _mean_norm(host(arrays.stack([_length(arrays, product(z)) for z in signs])))
        # Not from signs, which are often orthogonal to an eigenvector such as (1, -1, 0, ...).
        start = random.normal(size=size)
        basis, tridiagonal = [given(start / np.linalg.norm(start))], list[Any]()
        while len(tridiagonal) < samples:
            tridiagonal.append(_lanczos_step(arrays, product, basis))
            if looks and _exhausted(host(arrays.stack(tridiagonal)))[-1]:
                break
        return _largest_ritz_value(host(arrays.stack(tridiagonal)))


def difference(
    gradient: Callable[[Any], Any], x: Any, itemsize: int, arrays: Any = np
) -> Callable[[Any], Any]:
    """Return approximate products with a Hessian: central differences of gradients, all ``[size]``.

    Numbers have ``itemsize`` bytes in the arithmetic of the gradient; ``arrays`` is as in `norm_of_products`.
    """
    # The cube root of the rounding error balances rounding against truncation.
    length = arrays.linalg.norm(x)
    distance = _ROUNDING[itemsize] ** (1 / 3) * arrays.where(length > 1, length, 1.0)

    def product(z: Any) -> Any:
        length = arrays.linalg.norm(z)
        step = distance / arrays.where(length == 0, 1.0, length)
        return (gradient(x + step * z) - gradient(x - step * z)) / (2 * step)

    return product


def check_norm(ord: object, method: object, samples: object, seed: object) -> None:  # noqa: A002 (as above)
    """Raise a TypeError or a ValueError unless the options of ``hessian_norm`` are valid."""
    check_choice("ord", ord, ("fro", 2))
    check_choice("method", method, ("exact", "finite_difference"))
    check_integer("samples", samples, low=1)
    check_integer("seed", seed, low=0)


def _length(arrays: Any, values: Any) -> Any:
    # The squares of large numbers overflow, those of small ones vanish.
    largest = arrays.abs(values).max()
    scale = arrays.where((largest > 0) & (largest < np.inf), largest, 1.0)
    return scale * arrays.linalg.norm(values / scale)


def _dense_norm(columns: NDArray, order: str | int) -> HessianNorm:
    if not np.isfinite(columns).all():
        return HessianNorm(float("nan"), float("nan"))
    if not columns.size:
        return HessianNorm(0.0, 0.0)
    return HessianNorm(float(_length(np, columns) if order == "fro" else np.linalg.norm(columns, 2)), 0.0)


def _mean_norm(lengths: NDArray) -> HessianNorm:
    value = float(_length(np, lengths)) / float(np.sqrt(len(lengths)))
    if len(lengths) == 1:
        return HessianNorm(value, float("nan"))
    # The root's slope carries the error of the mean square over to the norm.
    squares = np.square(lengths / (value or 1.0))
    return HessianNorm(value, value * float(squares.std(ddof=1) / np.sqrt(len(squares))) / 2)


def _lanczos_step(arrays: Any, product: Callable[[Any], Any], basis: list[Any]) -> Any:
    # Adds a vector to the basis; returns the entries on and beside the diagonal.
    image = product(basis[-1])
    diagonal, rows = basis[-1] @ image, arrays.stack(basis)
    # Twice, because one pass leaves rounding errors that bring found eigenvalues back.
    for _ in range(2):
        image = image - rows.T @ (rows @ image)
    off = _length(arrays, image)
    basis.append(image / arrays.where(off == 0, 1.0, off))
    return arrays.stack([diagonal, off])


def _exhausted(tridiagonal: NDArray) -> NDArray[np.bool_]:
    # Whether nothing is left for another step after each, or it isn't finite.
    size = np.maximum.accumulate(np.abs(tridiagonal).max(1))
    return ~((tridiagonal[:, 1] > 1e-12 * size) & np.isfinite(tridiagonal[:, 1]))


def _largest_ritz_value(tridiagonal: NDArray) -> HessianNorm:
    ended = _exhausted(tridiagonal)
    diagonal, off = tridiagonal[: int(ended.argmax()) + 1 if ended.any() else None].T
    if not np.isfinite(off[-1]):
        return HessianNorm(float("nan"), float("nan"))
    matrix = np.diag(diagonal) + np.diag(off[:-1], 1) + np.diag(off[:-1], -1)
    values, vectors = np.linalg.eigh(matrix)
    largest = int(np.argmax(np.abs(values)))
    value, residual = float(abs(values[largest])), float(off[-1] * abs(vectors[-1, largest]))
    return HessianNorm(value, max(residual, float(np.finfo(np.float64).eps) * value))
