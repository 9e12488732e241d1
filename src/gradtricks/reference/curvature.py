"""Curvature: products with a Hessian, and its norm, without the matrix."""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.floating]
_STEP = 1e-30  # of a complex step, which subtracts nothing and so rounds nothing


def hessian_vector_product(gradient: Callable[[NDArray], NDArray], x: ArrayLike, vector: ArrayLike) -> Array:
    """Return the Hessian times ``vector``, from a gradient that accepts complex numbers.

    The imaginary part of the gradient at ``x + i t vector`` is ``t`` times the product. Nothing is
    subtracted, so ``t`` may be so small that the result is exact to rounding.

    Args:
        gradient: Maps an array of the shape of ``x`` to its gradient; analytic, in NumPy.
        x: Any shape.
        vector: Shape of ``x``, as all else that is given or returned.
    """
    return np.imag(gradient(np.asarray(x) + 1j * _STEP * np.asarray(vector))) / _STEP


def hessian_vector_product_vjp(
    cotangent: ArrayLike,
    gradient: Callable[[NDArray], NDArray],
    x: ArrayLike,
    vector: ArrayLike,
    step: float = 1e-3,
) -> tuple[Array, Array]:
    """Return the gradients that reach ``x`` and ``vector``.

    With the third derivative T, that of ``x`` is T applied to ``cotangent`` and ``vector``: the change of the
    product along ``cotangent``, by differences of fourth order over ``step``. That of ``vector`` is the
    product with ``cotangent``, because a Hessian is symmetric.
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

    Nothing is random or estimated, so the error is 0.
    """
    del method, samples, seed
    x = np.asarray(x, np.float64)
    units = np.eye(x.size).reshape(x.size, *x.shape)
    columns = [hessian_vector_product(gradient, x, unit).reshape(-1) for unit in units]
    return float(np.linalg.norm(np.array(columns), 2 if ord == 2 else "fro")), 0.0
