"""Curvature: products with a Hessian, and its norm, without the matrix.

With the gradient ``g(x)`` and the Hessian ``H`` of a scalar function, and vectors ``z`` of random signs::

    H v = d (g(x) . v) / d x        |H|_fro^2 = mean of |H z|^2
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from gradtricks._core.checks import check_shape
from gradtricks._core.curvature import HessianNorm, check_norm, difference, norm_of_products
from gradtricks._core.structures import leaves, pairs, rebuilt
from gradtricks.tensorflow._tensors import as_floating
from gradtricks.tensorflow._vjp import gradients


def hessian_vector_product(function: Callable[[Any], tf.Tensor], x: Any, vector: Any) -> Any:
    """Return the Hessian of ``function`` at ``x`` times ``vector``; differentiable again in both.

    The gradient is differentiated once more along ``vector``, backward over backward. It costs a few
    gradients, whatever the size of ``x``. An edit inside ``function``, such as `scale_gradient`,
    counts twice: in the gradient, and again where that is differentiated; the matrix needn't be symmetric.

    Args:
        function: Maps ``x`` to a scalar tensor; what doesn't come in through ``x`` is a constant, variables
            too. For a network, take its parameters as a list to `keras.Model.stateless_call`.
        x: A floating-point tensor of any shape, or lists, tuples and dicts of such; variables are read.
        vector: The same structure and shapes; dicts go by key.

    Returns:
        The structure, shapes and dtypes of ``x``.

    Raises:
        NotImplementedError: Called inside a function that `tf.recompute_grad` runs.

    References:
        B. A. Pearlmutter, "Fast exact multiplication by the Hessian",
        https://doi.org/10.1162/neco.1994.6.1.147.

    Example:
        >>> x = tf.constant([1.0, 2.0])
        >>> hessian_vector_product(lambda x: tf.reduce_sum(x**3), x, tf.constant([1.0, -1.0])).numpy()
        array([  6., -12.], dtype=float32)
    """
    points = _as_points(x)
    directions = _as_directions(vector, x, points)
    with tf.GradientTape() as tape:
        tape.watch(points)
        gradient = _gradient(function, x, points)
    products = tape.gradient(gradient, points, directions, unconnected_gradients="zero")
    return rebuilt(x, iter([tf.convert_to_tensor(product) for product in products]))


def hessian_norm(
    function: Callable[[Any], tf.Tensor],
    x: Any,
    *,
    ord: str | int = "fro",  # noqa: A002 (NumPy's own name for it)
    method: str = "exact",
    samples: int = 32,
    seed: int = 0,
) -> HessianNorm:
    """Return a norm of the Hessian of ``function`` at ``x``, with its standard error; no gradient.

    The Frobenius norm is the root of the mean of ``|Hz|**2`` over vectors z of random signs. The spectral
    norm comes from Lanczos steps. With as many samples as ``x`` has elements, either is as exact as the
    products. For a norm that can be trained on, average the squares of `hessian_vector_product` instead.

    Args:
        function: Maps ``x`` to a scalar tensor; the same value each time. A `tf.function` is quicker.
            What doesn't come in through ``x`` is a constant, variables too.
        x: A floating-point tensor of any shape, or lists, tuples and dicts of such; variables are read.
        ord: ``"fro"``, or 2 for the spectral norm: the largest singular value.
        method: ``"exact"`` products, or a ``"finite_difference"`` of two gradients for each, which does
            without second derivatives but is wrong across kinks such as ReLU's. It counts edits once.
        samples: Number of products.
        seed: Of the random numbers, which are the same in both frameworks.

    Returns:
        A named tuple ``(value, standard_error)`` of floats. For ``ord=2`` the error is the residual.

    Raises:
        RuntimeError: Called inside a `tf.function`.

    References:
        Hutchinson, 1990, https://doi.org/10.1080/03610919008812866.

    Example:
        >>> x = tf.constant([1.0, 2.0])
        >>> hessian_norm(lambda x: tf.reduce_sum(x**2), x, ord=2)
        HessianNorm(value=2.0, standard_error=0.0)
    """
    check_norm(ord, method, samples, seed)
    points = _as_points(x)
    if not tf.executing_eagerly():
        raise RuntimeError(
            "hessian_norm must run eagerly; got a call inside tf.function or a transform; "
            "remedy: hessian_vector_product"
        )
    points = [tf.stop_gradient(point) for point in points]

    def along(points: list[tf.Tensor]) -> tf.Tensor:
        return _scalar(function, x, points)

    def product(z: NDArray) -> NDArray:
        return _flat(hessian_vector_product(along, points, _split(z, points)))

    def gradient(flat: NDArray) -> NDArray:
        return _flat(_gradient(function, x, _split(flat, points)))

    itemsize = min(point.dtype.size for point in points)
    flat = _flat(points)
    chosen = product if method == "exact" else difference(gradient, flat, itemsize)
    return norm_of_products(chosen, flat.size, ord=ord, samples=samples, seed=seed)


def _gradient(function: Callable[[Any], tf.Tensor], x: Any, points: list[tf.Tensor]) -> list[tf.Tensor]:
    return gradients(lambda *points: _scalar(function, x, list(points)), points)


def _scalar(function: Callable[[Any], tf.Tensor], x: Any, points: list[tf.Tensor]) -> tf.Tensor:
    value = as_floating("function's result", function(rebuilt(x, iter(points))))
    if value.shape.rank:
        raise ValueError(f"function must return a scalar; got shape {tuple(value.shape)}; remedy: sum it")
    return value


def _as_points(x: Any) -> list[tf.Tensor]:
    # A tape takes a tensor that comes twice for one.
    points = [tf.identity(as_floating("x", leaf)) for leaf in leaves(x)]
    if not points:
        raise ValueError("x must hold at least one tensor; got none")
    return points


def _as_directions(vector: Any, x: Any, points: list[tf.Tensor]) -> list[tf.Tensor]:
    directions = [as_floating("vector", leaf) for _, _, leaf in pairs("x", x, "vector", vector)]
    for direction, point in zip(directions, points):
        check_shape("vector", direction.shape, point.shape, "x")
    return [tf.cast(direction, point.dtype) for direction, point in zip(directions, points)]


def _split(z: NDArray, points: list[tf.Tensor]) -> list[tf.Tensor]:
    ends = np.cumsum([int(tf.size(point)) for point in points])[:-1]
    return [
        tf.cast(tf.reshape(part, point.shape), point.dtype) for part, point in zip(np.split(z, ends), points)
    ]


def _flat(tensors: list[tf.Tensor]) -> NDArray:
    return np.concatenate([tf.cast(t, tf.float64).numpy().reshape(-1) for t in tensors])
