"""Checks and conversions of tensors, for every stem."""

import math

import torch
from torch.autograd import forward_ad

from gradtricks._core.checks import check_broadcast, check_number, check_shape, remedy_of
from gradtricks.torch._modes import in_plain_reverse, in_transform, is_traced, stopped

_ORDINARY = (torch.Tensor, torch.nn.Parameter)


def as_tensor(name: str, value: object) -> torch.Tensor:
    """Return ``value`` if it is a tensor of this framework."""
    if not isinstance(value, torch.Tensor):
        remedy = remedy_of(name, value, "torch.as_tensor")
        raise TypeError(f"{name} must be a torch.Tensor; got {type(value).__name__}; remedy: {remedy}")
    return value


def as_floating(name: str, value: object) -> torch.Tensor:
    """Return ``value`` if it is a floating-point tensor of this framework."""
    tensor = as_tensor(name, value)
    if not tensor.dtype.is_floating_point:
        raise TypeError(f"{name} must be floating-point; got {tensor.dtype}; remedy: {name}.float()")
    return tensor


def as_integers(name: str, value: object) -> torch.Tensor:
    """Return ``value`` if it is a tensor of integers of this framework."""
    tensor = as_tensor(name, value)
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex or tensor.dtype == torch.bool:
        raise TypeError(f"{name} must hold integers; got {tensor.dtype}; remedy: {name}.long()")
    return tensor


def as_mask(trainable_mask: object, parameter: torch.Tensor) -> torch.Tensor:
    """Return a bool tensor that broadcasts to the shape of ``parameter``."""
    parameter, mask = as_floating("parameter", parameter), as_tensor("trainable_mask", trainable_mask)
    if mask.dtype != torch.bool:
        raise TypeError(f"trainable_mask must be bool (True = trainable); got {mask.dtype}")
    check_broadcast("trainable_mask", mask.shape, parameter.shape, "parameter")
    return mask


def as_moments(name: str, value: object) -> torch.Tensor:
    """Return a floating-point tensor that is wide enough for squares of gradients."""
    moments = as_floating(name, value)
    if moments.dtype.itemsize < 4:
        raise TypeError(
            f"{name} must be float32 or wider, since half precision loses squares; got {moments.dtype}; "
            f"remedy: {name}.float()"
        )
    return moments


def as_coefficient(
    name: str, value: object, x: torch.Tensor, *, low: float = -math.inf, high: float = math.inf
) -> torch.Tensor:
    """Return a finite number or a floating-point tensor as a tensor without a gradient, for use with ``x``.

    A compiler takes a number so without compiling for each value. A number within ``[low, high]`` but beyond
    the dtype becomes the largest there is; the elements of a tensor, which broadcasts to the shape of ``x``,
    aren't checked. In the dtype of ``x``, float32 at least, and on its device.
    """
    dtype = torch.promote_types(x.dtype, torch.float32)
    if not isinstance(value, torch.Tensor):
        largest = torch.finfo(dtype).max
        number = min(max(check_number(name, value, low=low, high=high), -largest), largest)
        return filled(number, dtype, x.device)
    value = as_floating(name, value)
    check_broadcast(name, value.shape, x.shape, "x")
    return beside(name, stopped(value).to(dtype), x)


def beside(name: str, value: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return ``value``, on the device of ``x``; of tensors elsewhere only a scalar on the CPU is taken."""
    if value.device == x.device:
        return value
    if value.ndim or not value.is_cpu:
        raise ValueError(
            f"{name} must be on the device of the data, {x.device}; got {value.device}; "
            f"remedy: {name}.to({str(x.device)!r})"
        )
    # A kernel takes a number on the CPU as its argument, which doesn't wait for the device as a copy would.
    return value + torch.full((), -0.0, dtype=value.dtype, device=x.device)


def filled(number: float, dtype: torch.dtype, device: torch.device | str = "cpu") -> torch.Tensor:
    """Make a tensor of shape ``[]`` of a number; a compiler doesn't compile it anew for each number."""
    if torch.compiler.is_compiling():
        return number * torch.ones((), dtype=dtype, device=device)
    return torch.full((), number, dtype=dtype, device=device)  # half as dear as a product


def as_scalar(name: str, value: object, x: torch.Tensor, *, low: float = -math.inf) -> torch.Tensor:
    """Return a number, or a tensor of shape ``[]``, as `as_coefficient` does."""
    if isinstance(value, torch.Tensor):
        check_shape(name, value.shape, (), "a scalar")
    return as_coefficient(name, value, x, low=low)


def as_edited(name: str, value: object, x: torch.Tensor) -> torch.Tensor:
    """Return what a rule made of the gradient of ``x``, in the dtype of ``x``, if it has its shape."""
    edited = as_tensor(name, value)
    check_shape(name, edited.shape, x.shape, "x")
    return edited.to(x.dtype)


def at_least_float32(x: torch.Tensor) -> torch.Tensor:
    """Widen bfloat16 and float16, in which sums and squares overflow or stall."""
    return x.float() if x.dtype.itemsize < 4 else x


def as_wide(x: torch.Tensor) -> torch.Tensor:
    """Widen to float64, in which squares of float32 neither overflow nor vanish, if the device has that."""
    return x.float() if x.device.type == "mps" else x.double()


def product(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Multiply, so that what weighs nothing adds nothing: 0 times an infinity is 0, forward and backward."""
    return weight * torch.where((weight == 0) & x.isinf(), 0, x)


def nonzero(x: torch.Tensor) -> torch.Tensor:
    """Put 1 for 0, where ``x`` divides zeros."""
    return torch.where(x == 0, 1, x)


def clamped(x: torch.Tensor, low: float | torch.Tensor, high: float | torch.Tensor) -> torch.Tensor:
    """Clamp, with slope 1 at the bounds too; `torch.clamp` has 1 there before PyTorch 2.14, and 0 since."""
    if in_plain_reverse(x) and not (x.requires_grad and torch.is_grad_enabled()):
        # Nobody asks for a slope, and this is quicker; it takes numbers and tensors together too.
        return x.clamp(low, high)  # type: ignore[arg-type]
    return torch.where(x < low, low, torch.where(x > high, high, x))


def is_readable(*tensors: torch.Tensor) -> bool:
    """Say whether values can be looked at, for what is faster with ordinary ones.

    They can't on other devices than a CPU; nor where another input would have other values: in a compiler, a
    transform or another tracer, and in a batch of gradients.
    """
    return are_ordinary(*tensors) and not torch._C._len_torch_dispatch_stack() and all(map(on_cpu, tensors))


def on_cpu(x: torch.Tensor) -> bool:
    """Say whether a compiled loop can reach ``x`` without a copy."""
    return x.is_cpu


def are_ordinary(*tensors: torch.Tensor) -> bool:
    """Say whether tensors are PyTorch's own, in no compiler, transform, tracer or batch of gradients."""
    if torch.compiler.is_compiling() or in_transform() or torch._C._is_tracing() or is_traced():
        return False
    for x in tensors:
        if type(x) not in _ORDINARY or torch._C._functorch.is_legacy_batchedtensor(x):
            return False
    return forward_ad._current_level < 0 or all(map(in_plain_reverse, tensors))
