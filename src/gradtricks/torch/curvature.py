"""Curvature: products with a Hessian, and its norm, without the matrix.

With the gradient ``g(x)`` and the Hessian ``H`` of a scalar function, and vectors ``z`` of random signs::

    H v = d (g(x) . v) / d x        |H|_fro^2 = mean of |H z|^2
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from gradtricks._core.checks import check_shape
from gradtricks._core.curvature import HessianNorm, check_norm, difference, norm_of_products
from gradtricks._core.structures import leaves, pairs, rebuilt
from gradtricks.torch._modes import in_plain_reverse
from gradtricks.torch._tensors import as_floating, on_cpu
from gradtricks.torch._vjp import vjp


def hessian_vector_product(function: Callable[[Any], torch.Tensor], x: Any, vector: Any) -> Any:
    """Return the Hessian of ``function`` at ``x`` times ``vector``; differentiable again in both.

    The gradient is differentiated once more along ``vector``, backward over backward. It costs a few
    gradients, whatever the size of ``x``. An edit inside ``function``, such as a hook or `scale_gradient`,
    counts twice: in the gradient, and again where that is differentiated; the matrix needn't be symmetric.

    Args:
        function: Maps ``x`` to a scalar tensor; what doesn't come in through ``x`` is a constant. For a
            network, take its parameters as a dict to `torch.func.functional_call`. PyTorch refuses one that
            `torch.compile` has made: compile around the product instead.
        x: A floating-point tensor of any shape, or lists, tuples and dicts of such.
        vector: The same structure and shapes; dicts go by key.

    Returns:
        The structure, shapes and dtypes of ``x``.

    References:
        B. A. Pearlmutter, "Fast exact multiplication by the Hessian",
        https://doi.org/10.1162/neco.1994.6.1.147.

    Example:
        >>> x = torch.tensor([1.0, 2.0])
        >>> hessian_vector_product(lambda x: (x**3).sum(), x, torch.tensor([1.0, -1.0]))
        tensor([  6., -12.])
    """
    points = _as_points(x)
    directions = _as_directions(vector, x, points)
    # What torch.compile has made forgets that its gradient depends on x, and says so only where the incoming
    # gradient is differentiated too.
    seed = points[0].new_ones(())
    _, pull = vjp(lambda seed, *points: _gradient(function, x, points, seed), seed, *points)
    return rebuilt(x, iter(_filled(pull(directions)[1:], points)))


def hessian_norm(
    function: Callable[[Any], torch.Tensor],
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
        function: Maps ``x`` to a scalar tensor; the same value each time. What doesn't come in through ``x``
            is a constant.
        x: A floating-point tensor of any shape, or lists, tuples and dicts of such.
        ord: ``"fro"``, or 2 for the spectral norm: the largest singular value.
        method: ``"exact"`` products, or a ``"finite_difference"`` of two gradients for each, which does
            without second derivatives but is wrong across kinks such as ReLU's. It counts edits once.
        samples: Number of products.
        seed: Of the random numbers, which are the same in both frameworks.

    Returns:
        A named tuple ``(value, standard_error)`` of floats. For ``ord=2`` the error is the residual.
        Waits for the device once, when all products are there.

    Raises:
        RuntimeError: Called inside `torch.compile` or a `torch.func` transform.

    References:
        Hutchinson, 1990, https://doi.org/10.1080/03610919008812866.

    Example:
        >>> x = torch.tensor([1.0, 2.0])
        >>> hessian_norm(lambda x: (x**2).sum(), x, ord=2)
        HessianNorm(value=2.0, standard_error=0.0)
    """
    check_norm(ord, method, samples, seed)
    points = _as_points(x)
    if not all(in_plain_reverse(point) for point in points):
        raise RuntimeError(
            "hessian_norm must run eagerly; got a call inside torch.compile or a transform; "
            "remedy: hessian_vector_product"
        )
    points = [point.detach() for point in points]
    one = points[0].new_ones(())

    def along(points: list[torch.Tensor]) -> torch.Tensor:
        return _scalar(function, x, points)

    def product(z: torch.Tensor) -> torch.Tensor:
        return _flat(hessian_vector_product(along, points, _split(z, points)))

    def gradient(flat: torch.Tensor) -> torch.Tensor:
        return _flat(_gradient(function, x, _split(flat, points), one))

    itemsize = min(point.dtype.itemsize for point in points)
    flat = _flat(points)
    return norm_of_products(
        product if method == "exact" else difference(gradient, flat, itemsize, torch),
        flat.numel(),
        ord=ord,
        samples=samples,
        seed=seed,
        arrays=torch,
        given=lambda z: torch.from_numpy(z).to(flat.device),
        host=lambda found: found.numpy(force=True),
        looks=on_cpu(flat),
    )


def _gradient(
    function: Callable[[Any], torch.Tensor], x: Any, points: Sequence[torch.Tensor], seed: torch.Tensor
) -> list[torch.Tensor]:
    value, pull = vjp(lambda *points: _scalar(function, x, points), *points)
    return _filled(pull(seed.to(value.dtype)), points)


def _filled(found: Sequence[torch.Tensor | None], points: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [torch.zeros_like(x) if part is None else part for part, x in zip(found, points)]


def _scalar(function: Callable[[Any], torch.Tensor], x: Any, points: Sequence[torch.Tensor]) -> torch.Tensor:
    value = as_floating("function's result", function(rebuilt(x, iter(points))))
    if value.shape != ():
        raise ValueError(f"function must return a scalar; got shape {tuple(value.shape)}; remedy: sum it")
    return value


def _as_points(x: Any) -> list[torch.Tensor]:
    points = [as_floating("x", leaf) for leaf in leaves(x)]
    if not points:
        raise ValueError("x must hold at least one tensor; got none")
    return points


def _as_directions(vector: Any, x: Any, points: list[torch.Tensor]) -> list[torch.Tensor]:
    directions = [as_floating("vector", leaf) for _, _, leaf in pairs("x", x, "vector", vector)]
    for direction, point in zip(directions, points):
        check_shape("vector", direction.shape, point.shape, "x")
    return [direction.to(point.dtype) for direction, point in zip(directions, points)]


def _split(z: torch.Tensor, points: list[torch.Tensor]) -> list[torch.Tensor]:
    parts = z.split([point.numel() for point in points])
    return [part.to(point).reshape(point.shape) for part, point in zip(parts, points)]


def _flat(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([t.detach().double().reshape(-1).to(tensors[0].device) for t in tensors])
