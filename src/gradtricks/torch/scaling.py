"""Scaling a gradient without touching the value."""

from typing import Any

import torch

from gradtricks._checks import check_broadcast, check_number
from gradtricks.torch._tensors import as_floating, in_plain_reverse


def scale_gradient(x: torch.Tensor, scale: float | torch.Tensor) -> torch.Tensor:
    """Identity forward; multiplies the incoming gradient by ``scale``.

    The forward pass returns the bits of ``x``. A scale of 0 stops the gradient even where it is
    infinite or NaN. ``scale`` itself gets no gradient. Compiled or under a `torch.func` transform,
    elements of ``x`` that are infinite pass no gradient.

    Args:
        x: Floating-point, any shape.
        scale: A finite number, or a floating-point tensor that broadcasts to the shape of ``x``; negative
            reverses. The elements of a tensor aren't checked.

    Returns:
        Shape and dtype of ``x``. A view of ``x`` in plain eager mode: clone it before editing in place.

    Raises:
        TypeError: ``x`` isn't a floating-point tensor, or ``scale`` isn't a number or a tensor.
        ValueError: ``scale`` is a number that isn't finite, or doesn't broadcast to the shape of ``x``.

    References:
        ``scale_gradient`` in the pseudocode of MuZero, https://arxiv.org/abs/1911.08265.

    Example:
        >>> x = torch.tensor(3.0, requires_grad=True)
        >>> y = scale_gradient(x, 0.5)
        >>> y.item(), torch.autograd.grad(y, x)[0].item()
        (3.0, 0.5)
    """
    x = as_floating("x", x)
    factor = _as_factor(scale, x)
    return _ScaleGradient.apply(x, factor) if in_plain_reverse(x) else _scale_by_arithmetic(x, factor)


class _ScaleGradient(torch.autograd.Function):
    @staticmethod
    def forward(x: torch.Tensor, factor: float | torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(
        ctx: Any, inputs: tuple[torch.Tensor, float | torch.Tensor], output: torch.Tensor
    ) -> None:
        ctx.factor = inputs[1]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _scaled(gradient, ctx.factor), None


def _scaled(gradient: torch.Tensor, factor: float | torch.Tensor) -> torch.Tensor:
    if isinstance(factor, float):
        return gradient * factor if factor else torch.zeros_like(gradient)
    return torch.where(factor == 0, 0, gradient * factor)


def _scale_by_arithmetic(x: torch.Tensor, factor: float | torch.Tensor) -> torch.Tensor:
    # Transforms differentiate this form by themselves. Subtracting +0 keeps every bit, the sign of zero
    # included; that is why the sign of the factor is moved into x.
    value = x.detach()
    factor = torch.as_tensor(factor, dtype=x.dtype, device=x.device)
    signed = torch.where(factor < 0, -x, x)
    scaled = value - (signed.detach() - signed) * factor.abs()
    return torch.where((factor == 0) | value.isinf(), value, scaled)


def _as_factor(scale: float | torch.Tensor, x: torch.Tensor) -> float | torch.Tensor:
    if not isinstance(scale, torch.Tensor):
        return check_number("scale", scale)
    scale = as_floating("scale", scale)
    check_broadcast("scale", scale.shape, x.shape, "x")
    return scale.detach().to(x.dtype)
