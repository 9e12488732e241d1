"""Gradients clipped together by operations on many tensors at once, where nobody differentiates that."""

from collections.abc import Sequence

import torch

from gradtricks.torch._tensors import are_ordinary, at_least_float32, is_readable, on_cpu

_LARGEST = torch.finfo(torch.float32).max
SMALL = _LARGEST / 2  # an infinity counts as the largest number, and would fit there and have to stay
_Clipped = tuple[Sequence[torch.Tensor], torch.Tensor]


def clip_at_once(tensors: list[torch.Tensor], max_norm: torch.Tensor, small: bool) -> _Clipped | None:
    """Return tensors with a common norm of at most ``max_norm``, and their norm before.

    ``small`` says that ``max_norm`` is known to be below `SMALL`. None where each tensor needs operations of
    its own: in transforms, tracers and compilers, where the result is differentiated, of unusual size, or
    lies on several devices.
    """
    if not tensors or (torch.is_grad_enabled() and any(x.requires_grad for x in tensors)):
        return None
    if is_readable(max_norm, *tensors):
        return _clip_what_is_readable(tensors, max_norm)
    # Some devices have no float64.
    alike = {(x.device, x.dtype.itemsize < 8) for x in tensors} == {(max_norm.device, True)}
    if not alike or on_cpu(max_norm) or max_norm.device.type == "mps" or not are_ordinary(*tensors):
        return None
    return _clip_on_a_device(tensors, max_norm) if small else None


def fit(
    dtype: torch.dtype, length: torch.Tensor, scale: torch.Tensor | int, max_norm: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Say whether a norm of ``length * scale`` fits, and what the length is to be multiplied by otherwise."""
    # The norm may overflow, which only says that it doesn't fit.
    tolerance = torch.finfo(dtype).eps + 8 * torch.finfo(length.dtype).eps
    fits = length * scale / (1 + tolerance) <= max_norm
    return fits, max_norm / torch.where(fits, 1, length)


def _clip_what_is_readable(tensors: list[torch.Tensor], max_norm: torch.Tensor) -> _Clipped | None:
    wide = [x.to(max_norm.dtype) for x in tensors]
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(wide, 2)))
    if not 1e-15 < float(norm) < 1e15:  # squares may have overflown or vanished
        return None
    factors = {dtype: float(factor) for dtype, factor in _factors(tensors, norm, max_norm).items()}
    return torch._foreach_mul(tensors, [factors[x.dtype] for x in tensors]), norm


def _clip_on_a_device(tensors: list[torch.Tensor], max_norm: torch.Tensor) -> _Clipped:
    # An infinity counts as the largest number. In float64 no square overflows or vanishes.
    clipped = [at_least_float32(x) for x in tensors]
    if len(clipped) == 1:
        clipped = [clipped[0].clamp(-_LARGEST, _LARGEST)]
    else:
        clipped = list(torch._foreach_clamp_max(clipped, _LARGEST))
        torch._foreach_clamp_min_(clipped, -_LARGEST)
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(clipped, 2, dtype=torch.float64)))
    for dtype, factor in _factors(tensors, norm, max_norm).items():
        torch._foreach_mul_([c for c, x in zip(clipped, tensors) if x.dtype == dtype], factor.float())
    infinite = torch.where(norm < _LARGEST, norm, norm * torch.inf)
    return [c.to(x.dtype) for c, x in zip(clipped, tensors)], infinite.float()


def _factors(
    tensors: list[torch.Tensor], norm: torch.Tensor, max_norm: torch.Tensor
) -> dict[torch.dtype, torch.Tensor]:
    found = {dtype: fit(dtype, norm, 1, max_norm) for dtype in dict.fromkeys(x.dtype for x in tensors)}
    return {dtype: torch.where(fits, 1, factor) for dtype, (fits, factor) in found.items()}
