"""What every stem asks of its tensors."""

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad

from gradtricks._core.checks import check_broadcast, check_number
from gradtricks.torch._edits import in_plain_reverse, in_transform

_ORDINARY = (torch.Tensor, torch.nn.Parameter)


def as_tensor(name: str, value: object) -> torch.Tensor:
    """Return ``value`` if it is a tensor of this framework.

    Args:
        name: What the caller calls the value.
        value: Anything.

    Returns:
        ``value`` itself.

    Raises:
        TypeError: It isn't a ``torch.Tensor``.
    """
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{name} must be a torch.Tensor; got {type(value).__name__}; remedy: torch.as_tensor")
    return value


def as_floating(name: str, value: object) -> torch.Tensor:
    """Return ``value`` if it is a floating-point tensor of this framework.

    Args:
        name: What the caller calls the value.
        value: Anything.

    Returns:
        ``value`` itself.

    Raises:
        TypeError: It isn't a tensor, or its dtype isn't floating-point.
    """
    tensor = as_tensor(name, value)
    if not tensor.dtype.is_floating_point:
        raise TypeError(f"{name} must be floating-point; got {tensor.dtype}; remedy: {name}.float()")
    return tensor


def as_mask(trainable_mask: object, parameter: torch.Tensor) -> torch.Tensor:
    """Return ``trainable_mask`` if it is a mask for ``parameter``.

    Args:
        trainable_mask: Bool, broadcasts to the shape of ``parameter``; True = trainable.
        parameter: Floating-point, any shape.

    Returns:
        ``trainable_mask`` itself.

    Raises:
        TypeError: It isn't a bool tensor, or ``parameter`` isn't a floating-point one.
        ValueError: It doesn't broadcast.
    """
    parameter, mask = as_floating("parameter", parameter), as_tensor("trainable_mask", trainable_mask)
    if mask.dtype != torch.bool:
        raise TypeError(f"trainable_mask must be bool (True = trainable); got {mask.dtype}")
    check_broadcast("trainable_mask", mask.shape, parameter.shape, "parameter")
    return mask


def as_counts(step: object, parameter: torch.Tensor) -> torch.Tensor:
    """Return ``step`` if it counts the steps of ``parameter``.

    Args:
        step: Integer, broadcasts to the shape of ``parameter``.
        parameter: Any shape.

    Returns:
        ``step`` itself.

    Raises:
        TypeError: It isn't an integer tensor.
        ValueError: It doesn't broadcast.
    """
    counts = as_tensor("step", step)
    if counts.dtype.is_floating_point or counts.dtype.is_complex or counts.dtype == torch.bool:
        raise TypeError(f"step must hold integers; got {counts.dtype}; remedy: step.int()")
    check_broadcast("step", counts.shape, parameter.shape, "parameter")
    return counts


def as_coefficient(
    name: str, value: object, x: torch.Tensor, *, low: float = -math.inf, high: float = math.inf
) -> torch.Tensor:
    """Return a number or a tensor as a tensor without a gradient, for use with ``x``.

    A compiler takes a number so without compiling for each value.

    Args:
        name: What the caller calls the value.
        value: A finite number, or a floating-point tensor that broadcasts to the shape of ``x``, whose
            elements aren't checked. A number beyond the dtype becomes the largest there is.
        x: Floating-point, any shape.
        low: Smallest number allowed.
        high: Largest number allowed.

    Returns:
        In the dtype of ``x``, float32 at least.

    Raises:
        TypeError: ``value`` isn't a number or a floating-point tensor.
        ValueError: A number isn't within ``[low, high]``, or a tensor doesn't broadcast.
    """
    dtype = torch.promote_types(x.dtype, torch.float32)
    if not isinstance(value, torch.Tensor):
        largest = torch.finfo(dtype).max
        number = min(max(check_number(name, value, low=low, high=high), -largest), largest)
        # A compiler would compile torch.full anew for each number, but not a product.
        return number * torch.ones((), dtype=dtype, device=x.device)
    value = as_floating(name, value)
    check_broadcast(name, value.shape, x.shape, "x")
    return value.detach().to(dtype)


def at_least_float32(x: torch.Tensor) -> torch.Tensor:
    """Widen bfloat16 and float16, in which sums and squares overflow or stall.

    Args:
        x: Floating-point, any shape.

    Returns:
        ``x`` itself, or a float32 copy.
    """
    return x.float() if x.dtype.itemsize < 4 else x


def is_readable(*tensors: torch.Tensor) -> bool:
    """Say whether values can be looked at, for what is faster with ordinary ones.

    Args:
        *tensors: Any.

    Returns:
        False on other devices than a CPU; and where another input would have other values: in a compiler, a
        transform or another tracer, and in a batch of gradients.
    """
    if torch.compiler.is_compiling() or in_transform() or torch._C._len_torch_dispatch_stack():
        return False
    for x in tensors:
        if not x.is_cpu or type(x) not in _ORDINARY or torch._C._functorch.is_legacy_batchedtensor(x):
            return False
    return forward_ad._current_level < 0 or all(map(in_plain_reverse, tensors))


def in_gradient_batch(x: torch.Tensor) -> bool:
    """Say whether ``x`` is one of a batch of gradients, as `is_grads_batched` makes them.

    Args:
        x: Any tensor.

    Returns:
        True where neither `detach` nor a look at the values is possible.
    """
    return not torch.compiler.is_compiling() and torch._C._functorch.is_legacy_batchedtensor(x)


def map_structure(function: Callable[..., Any], *structures: Any) -> Any:
    """Apply ``function`` to the tensors that stand at the same place of equal structures.

    Args:
        function: Takes one tensor of each structure.
        *structures: Tensors, or tuples, lists and dicts of structures.

    Returns:
        A structure of the results.
    """
    first = structures[0]
    if isinstance(first, dict):
        mapped = {key: map_structure(function, *(s[key] for s in structures)) for key in first}
        if type(first) is dict:
            return mapped
        same_kind = copy.copy(first)  # a defaultdict can't be made from its items
        same_kind.update(mapped)
        return same_kind
    if isinstance(first, tuple | list):
        items = [map_structure(function, *group) for group in zip(*structures, strict=True)]
        return type(first)(*items) if hasattr(first, "_fields") else type(first)(items)
    return function(*structures)
