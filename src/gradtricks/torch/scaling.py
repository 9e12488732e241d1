"""Scaling a gradient without touching the value.

Forward ``y = x``; backward ``dL/dx = scale * dL/dy``.
"""

from typing import Any

import torch

from gradtricks._core.checks import check_number
from gradtricks._core.structures import map_structure
from gradtricks.torch._edits import intercept
from gradtricks.torch._tensors import as_coefficient, as_floating, at_least_float32


def scale_gradient(x: Any, scale: float | torch.Tensor) -> Any:
    """Identity forward; multiplies the incoming gradient by ``scale``.

    The forward pass returns the bits of ``x``. A scale of 0 stops the gradient even where it is infinite or
    NaN.

    Args:
        x: Floating-point, any shape; or a tuple, list or dict of such tensors, nested as you like.
        scale: A finite number, or a floating-point tensor that broadcasts to the shape of every ``x``, whose
            elements aren't checked and get no gradient; negative reverses.

    Returns:
        Shape and dtype of ``x``. A view of ``x`` in plain eager mode: clone it before editing in place.

    Raises:
        RuntimeError: A function compiled with ``fullgraph=True`` is called on dual numbers. Without that,
            `torch.compile` drops tangents by itself, those of ``x * 2`` too.

    References:
        ``scale_gradient`` in the pseudocode of MuZero, https://arxiv.org/abs/1911.08265.

    Example:
        >>> x = torch.tensor(3.0, requires_grad=True)
        >>> y = scale_gradient(x, 0.5)
        >>> y.item(), torch.autograd.grad(y, x)[0].item()
        (3.0, 0.5)
    """
    return map_structure(lambda leaf: _scale_tensor(leaf, scale), x)


def reverse_gradient(x: Any) -> Any:
    """Identity forward; reverses the sign of the incoming gradient.

    What comes before ``x`` then climbs a loss that what comes after ``x`` descends. A reversal of strength
    lambda is ``scale_gradient(x, -lambda)``, which takes the same ``x`` and raises the same errors.

    References:
        The gradient reversal layer of Ganin and Lempitsky, https://arxiv.org/abs/1409.7495.

    Example:
        >>> x = torch.tensor(3.0, requires_grad=True)
        >>> y = reverse_gradient(x)
        >>> y.item(), torch.autograd.grad(y, x)[0].item()
        (3.0, -1.0)
    """
    return scale_gradient(x, -1.0)


def _scale_tensor(x: object, scale: float | torch.Tensor) -> torch.Tensor:
    x = as_floating("x", x)
    factor = as_coefficient("scale", scale, x)
    may_be_zero = isinstance(scale, torch.Tensor) or abs(scale) < 1e-30  # in float32 it may be
    return intercept(x, _times_or_stopped if may_be_zero else _times, factor, linear=True)


def _times(gradient: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    return (at_least_float32(gradient) * factor).to(gradient.dtype)


def _times_or_stopped(gradient: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    # Infinity times 0 would be NaN.
    return torch.where(factor == 0, 0, _times(gradient, factor))


class ScaleGradient(torch.nn.Module):
    """Identity forward; multiplies the incoming gradient by ``scale``. The layer of `scale_gradient`.

    Args:
        scale: A finite number, which may be set anew at any time: ``layer.scale = 0.1``.

    Example:
        >>> reverse = ScaleGradient(-1.0)
        >>> x = torch.tensor(3.0, requires_grad=True)
        >>> torch.autograd.grad(reverse(x), x)[0].item()
        -1.0
    """

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    @property
    def scale(self) -> float:
        """The number that multiplies the incoming gradient."""
        return float(self._scale)

    @scale.setter
    def scale(self, scale: float) -> None:
        # A compiler bakes a number in, but not a tensor; no buffer, because half() would round that.
        with torch.inference_mode(False):  # what is made in that mode can't be saved for a backward pass
            self._scale = torch.tensor(check_number("scale", scale), dtype=torch.float64, device="cpu")

    def forward(self, x: Any) -> Any:
        """Return ``x``, edited as by `scale_gradient`."""
        return scale_gradient(x, self._scale)

    def extra_repr(self) -> str:
        """Show the scale in the layer's description."""
        return f"scale={self.scale:g}"
