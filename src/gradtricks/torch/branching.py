"""Choosing between a function and a fallback, element by element.

Where ``c`` holds ``y = function(x)`` and ``dL/dx = function'(x) * dL/dy``; elsewhere ``y = fallback`` and
``dL/dx = 0``. That takes two: ``where(c, function(where(c, x, safe_value)), fallback)``.
"""

import math
from collections.abc import Callable
from numbers import Real

import torch

from gradtricks._core.branching import WhereGradients
from gradtricks._core.checks import check_broadcast, check_number, check_shape
from gradtricks.torch._modes import stopped
from gradtricks.torch._tensors import as_floating, as_tensor, beside, filled
from gradtricks.torch._vjp import vjp


def safe_where(
    condition: torch.Tensor,
    x: torch.Tensor,
    function: Callable[[torch.Tensor], torch.Tensor],
    fallback: float | torch.Tensor,
    *,
    safe_value: float | None = None,
) -> torch.Tensor:
    """Return ``function(x)`` where the condition holds, and the fallback elsewhere.

    Backward, ``x`` gets the function's gradient where the condition holds and exactly 0 elsewhere, whatever
    the function's derivative is there; the fallback gets the rest.

    Where the condition fails, the function is handed a stand-in: the largest element of ``x`` for which it
    holds, or 1 if it holds for none. So tensors that the function closes over stay free of NaN too.

    Args:
        condition: Bool; broadcasts to the shape of ``x``. It gets no gradient.
        x: Floating-point, any shape.
        function: Works element by element; returns a floating-point tensor of the shape that it is given.
        fallback: A number, infinite or NaN as you like, or a floating-point tensor that broadcasts to the
            shape of ``x``. If it is computed from ``x``, that has to be safe by itself.
        safe_value: The stand-in, a finite number. Give one if the condition may hold for no element and the
            function isn't finite at 1.

    Returns:
        Shape of ``x``, dtype of what ``function`` returns.

    References:
        The double ``where``,
        https://github.com/tensorflow/probability/blob/main/discussion/where-nan.pdf.

    Example:
        >>> x = torch.tensor([0.0, 4.0], requires_grad=True)
        >>> y = safe_where(x > 0, x, torch.sqrt, 0.0)
        >>> y.detach(), torch.autograd.grad(y.sum(), x)[0]
        (tensor([0., 2.]), tensor([0.0000, 0.2500]))
    """
    condition, x = _checked(condition, x, function)
    inside = torch.where(condition, x, _stand_in(condition, x, safe_value))
    result = _apply(function, inside)
    return torch.where(condition, result, _as_fallback(fallback, result))


def where_gradients(
    condition: torch.Tensor,
    x: torch.Tensor,
    function: Callable[[torch.Tensor], torch.Tensor],
    fallback: float | torch.Tensor,
    *,
    safe_value: float | None = None,
) -> WhereGradients:
    """Say which gradient reaches which branch of ``where(condition, function(x), fallback)``, and ``x``.

    Takes the arguments of `safe_where`, to be put in its place when a gradient is NaN. What the fields hold
    is measured by differentiating: it is what happens where it is called, eager or compiled.

    Example:
        >>> x = torch.tensor([0.0, 4.0])
        >>> flow = where_gradients(x > 0, x, torch.sqrt, 0.0)
        >>> flow.to_function, flow.derivative
        (tensor([0., 1.]), tensor([   inf, 0.2500]))
        >>> flow.gradient, flow.safe_gradient
        (tensor([   nan, 0.2500]), tensor([0.0000, 0.2500]))
    """
    condition, x = _checked(condition, x, function)

    def plain(x: torch.Tensor) -> torch.Tensor:
        result = _apply(function, x)
        return torch.where(condition, result, _as_fallback(fallback, result))

    def safe(x: torch.Tensor) -> torch.Tensor:
        return safe_where(condition, x, function, fallback, safe_value=safe_value)

    to_function, to_fallback = _gradients(lambda y, z: torch.where(condition, y, z), x, torch.zeros_like(x))
    (derivative,) = _gradients(lambda x: _apply(function, x), x)
    (gradient,), (safe_gradient,) = _gradients(plain, x), _gradients(safe, x)
    poisoned = ~gradient.isfinite() & safe_gradient.isfinite()
    return WhereGradients(to_function, to_fallback, derivative, gradient, safe_gradient, poisoned)


def _gradients(function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    value, pull = vjp(function, *inputs)
    found = zip(pull(torch.ones_like(value)), inputs)
    return tuple(torch.zeros_like(x) if gradient is None else gradient for gradient, x in found)


def _apply(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    result = as_floating("function(x)", function(x))
    check_shape("function(x)", result.shape, x.shape, "x")
    return result


def _stand_in(condition: torch.Tensor, x: torch.Tensor, safe_value: float | None) -> float | torch.Tensor:
    if safe_value is not None:
        limit = torch.finfo(x.dtype).max
        return filled(check_number("safe_value", safe_value, low=-limit, high=limit), x.dtype, x.device)
    if x.numel() == 0:  # has no largest element
        return 1.0
    largest = torch.where(condition, stopped(x), -math.inf).amax()
    return torch.where(largest == -math.inf, 1, largest)


def _checked(
    condition: torch.Tensor, x: torch.Tensor, function: Callable[[torch.Tensor], torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    condition, x = as_tensor("condition", condition), as_floating("x", x)
    if condition.dtype != torch.bool:
        raise TypeError(f"condition must be bool; got {condition.dtype}; remedy: a comparison, such as x > 0")
    check_broadcast("condition", condition.shape, x.shape, "x")
    if not callable(function):
        got = type(function).__name__
        raise TypeError(f"function must be callable; got {got}; remedy: hand over sqrt, not sqrt(x)")
    return condition, x


def _as_fallback(fallback: float | torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    if isinstance(fallback, Real) and not isinstance(fallback, bool):
        return filled(float(fallback), torch.float64, result.device).to(result.dtype)  # may become infinite
    fallback = as_floating("fallback", fallback)
    check_broadcast("fallback", fallback.shape, result.shape, "x")
    return beside("fallback", fallback.to(result.dtype), result)
