"""Curvature: products with a Hessian, and its norm, without the matrix."""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

_STEP = 1e-30  # of a complex step, which subtracts nothing and so rounds nothing


def hessian_vector_product(
    gradient: Callable[[NDArray], NDArray], x: ArrayLike, vector: ArrayLike
) -> NDArray[np.floating]:
    """Return the Hessian times ``vector``, from a gradient that accepts complex numbers.

    The imaginary part of the gradient at ``x + i t vector`` is ``t`` times the product. Nothing is
    subtracted, so ``t`` may be so small that the result is exact to rounding.

    Args:
        gradient: Maps an array of the shape of ``x`` to its gradient; analytic, in NumPy.
        x: Any shape.
        vector: Shape of ``x``.

    Returns:
        Shape of ``x``.
    """
    return np.imag(gradient(np.asarray(x) + 1j * _STEP * np.asarray(vector))) / _STEP


def hessian_vector_product_vjp(
    cotangent: ArrayLike,
    gradient: Callable[[NDArray], NDArray],
    x: ArrayLike,
    vector: ArrayLike,
    step: float = 1e-3,
) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
    """Return the gradients that reach ``x`` and ``vector``.

    With the third derivative T, that of ``x`` is T applied to ``cotangent`` and ``vector``: the change of the
    product along ``cotangent``, taken by differences of fourth order. That of ``vector`` is the product with
    ``cotangent``, because a Hessian is symmetric.

    Args:
        cotangent: Shape of ``x``.
        step: Distance of the differences.

    Returns:
        Two arrays of the shape of ``x``.
    """
    x, cotangent = np.asarray(x), np.asarray(cotangent)
    far, near = (
        hessian_vector_product(gradient, x + length * cotangent, vector)
        - hessian_vector_product(gradient, x - length * cotangent, vector)
        for length in (2 * step, step)
    )
    return (8 * near - far) / (12 * step), hessian_vector_product(gradient, x, cotangent)


def hessian_norm(
    gradient: Callable[[NDArray], NDArray],
    x: ArrayLike,
    *,
    ord: str | int = "fro",  # noqa: A002 (NumPy's own name for it)
    method: str = "exact",
    samples: int = 32,
    seed: int = 0,
) -> tuple[float, float]:
    """Return a norm of the Hessian at ``x``: the matrix is built column by column, and NumPy takes its norm.

    Args:
        gradient: As for ``hessian_vector_product``.
        x: Any shape.
        ord: ``"fro"`` or 2.
        method: Ignored: complex steps are exact.
        samples: Ignored: every column is computed.
        seed: Ignored: nothing is random.

    Returns:
        The norm, and its error: 0.
    """
    del method, samples, seed
    x = np.asarray(x, np.float64)
    units = np.eye(x.size).reshape(x.size, *x.shape)
    columns = [hessian_vector_product(gradient, x, unit).reshape(-1) for unit in units]
    return float(np.linalg.norm(np.array(columns), 2 if ord == 2 else "fro")), 0.0
