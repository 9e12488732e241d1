"""Clipping a gradient, by value or by norm, and the projection that is often taken for it.

By value ``clip(g, low, high)``; by norm ``g * min(1, c / |g|)``; to a norm ``g * c / |g|``.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from gradtricks._core.checks import check_axis
from gradtricks._core.structures import leaves, map_structure
from gradtricks.torch._edits import intercept
from gradtricks.torch._modes import stopped
from gradtricks.torch._tensors import as_floating, as_scalar, at_least_float32, clamped, is_readable, nonzero
from gradtricks.torch._together import SMALL, clip_at_once, fit


def clip_gradient(x: Any, gradient_min: float | torch.Tensor, gradient_max: float | torch.Tensor) -> Any:
    """Identity forward; clips each element of the incoming gradient.

    An infinite element becomes the bound, a NaN stays NaN. Differentiated again, the gradient has slope 1
    where it was within the bounds, and 0 elsewhere.

    Args:
        x: Floating-point, any shape; or a tuple, list or dict of such tensors, each clipped by itself.
        gradient_min: A finite number, or a floating-point tensor of shape ``[]``, whose value isn't checked.
        gradient_max: The same, not below ``gradient_min``.

    Returns:
        Shape and dtype of ``x``. A view of ``x`` in eager mode: clone it before editing in place.

    Raises:
        RuntimeError: In forward mode, in which a clipped gradient has no meaning.

    References:
        ``clip_gradient`` of Sonnet and RLax, https://github.com/google-deepmind/rlax.

    Example:
        >>> x = torch.zeros(3, requires_grad=True)
        >>> loss = (clip_gradient(x, -1.0, 1.0) * torch.tensor([0.5, 7.0, -7.0])).sum()
        >>> torch.autograd.grad(loss, x)[0]
        tensor([ 0.5000,  1.0000, -1.0000])
    """

    def clip(leaf: object) -> torch.Tensor:
        leaf = as_floating("x", leaf)
        low = as_scalar("gradient_min", gradient_min, leaf)
        high = as_scalar("gradient_max", gradient_max, leaf)
        numbers = not isinstance(gradient_min, torch.Tensor) and not isinstance(gradient_max, torch.Tensor)
        if numbers and gradient_min > gradient_max:
            raise ValueError(f"gradient_min must be <= gradient_max; got {gradient_min} and {gradient_max}")
        return intercept(leaf, _clamp, low, high)

    return map_structure(clip, x)


def clip_gradient_norm(
    x: Any, max_norm: float | torch.Tensor, *, axis: int | Sequence[int] | None = None
) -> Any:
    """Identity forward; shrinks the incoming gradient to a norm of at most ``max_norm``.

    The direction stays. A gradient whose norm is at most ``max_norm``, up to rounding, passes bit for bit. An
    infinite element counts as the largest finite number. A NaN makes the norm NaN, and all that shares it.

    Args:
        x: As in `clip_gradient`.
        max_norm: A finite number >= 0, or a tensor of shape ``[]``, whose value isn't checked.
        axis: Axes over which the norm is taken. None is all, batch included; for one norm per example, give
            all axes but the first.

    Returns:
        As `clip_gradient`, which raises the same errors.

    References:
        Pascanu, Mikolov and Bengio, https://arxiv.org/abs/1211.5063.

    Example:
        >>> x = torch.zeros(2, requires_grad=True)
        >>> loss = (clip_gradient_norm(x, 1.0) * torch.tensor([3.0, 4.0])).sum()
        >>> torch.autograd.grad(loss, x)[0]
        tensor([0.6000, 0.8000])
    """
    return _by_norm(intercept, partial(_shrink, small=_is_small(max_norm)), x, "max_norm", max_norm, axis)


def normalize_gradient(x: Any, norm: float | torch.Tensor, *, axis: int | Sequence[int] | None = None) -> Any:
    """Identity forward; rescales the incoming gradient to the norm ``norm``.

    The direction stays; a gradient of zero stays zero. Infinities and NaN count as in `clip_gradient_norm`,
    which takes the same arguments and raises the same errors.

    Example:
        >>> x = torch.zeros(2, requires_grad=True)
        >>> loss = (normalize_gradient(x, 10.0) * torch.tensor([3.0, 4.0])).sum()
        >>> torch.autograd.grad(loss, x)[0]
        tensor([6., 8.])
    """
    return _by_norm(intercept, _rescale, x, "norm", norm, axis)


def clip_by_global_norm(gradients: Any, max_norm: float | torch.Tensor) -> tuple[Any, torch.Tensor]:
    """Shrink tensors together, so that the norm of all their elements is at most ``max_norm``.

    Here the gradients are in hand, and go on to the optimizer. The rules for equal norms, infinities and NaN
    are those of `clip_gradient_norm`, over all tensors as one; the norm that is returned is infinite or NaN.

    Args:
        gradients: Floating-point tensors in a list, tuple or dict, nested as you like. None stays None: a
            parameter without a gradient. Of a DTensor (FSDP2, tensor parallelism) all shards count; give the
            DTensor itself, since of a local shard nobody knows the rest. Devices may differ; the call waits
            for them where one is the CPU.
        max_norm: A finite number >= 0, or a tensor of shape ``[]``, whose value isn't checked.

    Returns:
        The structure of ``gradients``, clipped, and the norm before clipping: ``[]``, in float32 or wider.
        These are copies: `torch.nn.utils.clip_grad_norm_`, which edits ``.grad`` itself, needs neither their
        memory nor the time to write it.

    Example:
        >>> clipped, norm = clip_by_global_norm([torch.tensor([3.0]), None, torch.tensor([4.0])], 1.0)
        >>> clipped, norm
        ([tensor([0.6000]), None, tensor([0.8000])], tensor(5.))
    """
    tensors = [_as_dense("gradients", g) for g in leaves(gradients) if g is not None]
    widest = torch.float64 if any(leaf.dtype == torch.float64 for leaf in tensors) else torch.float32
    zero = torch.zeros((), dtype=widest, device=tensors[0].device if tensors else None)
    maximum = as_scalar("max_norm", max_norm, zero, low=0.0)
    together = clip_at_once(tensors, maximum, _is_small(max_norm))
    clipped, norm = together or _clip_one_by_one(tensors, maximum, zero)
    found = iter(clipped)
    return map_structure(lambda g: g if g is None else next(found), gradients), norm


def project_to_max_norm(
    x: Any, max_norm: float | torch.Tensor, *, axis: int | Sequence[int] | None = None
) -> Any:
    """Shrink ``x`` itself to a norm of at most ``max_norm``; backward, the derivative of that.

    This is the constraint that Keras calls MaxNorm. It is no way to clip a gradient: it changes the value,
    and of the gradient it takes away the part along ``x``. Arguments and the rules for equal norms,
    infinities and NaN are those of `clip_gradient_norm`; here every mode of differentiation will do.

    References:
        Srebro and Shraibman, https://doi.org/10.1007/11503415_37.

    Example:
        >>> project_to_max_norm(torch.tensor([[3.0, 4.0], [0.3, 0.4]]), 1.0, axis=1)
        tensor([[0.6000, 0.8000],
                [0.3000, 0.4000]])
    """
    rule = partial(_shrink, small=_is_small(max_norm))
    return _by_norm(lambda x, rule, norm: rule(x, norm), rule, x, "max_norm", max_norm, axis)


def _by_norm(
    edit: Callable[..., Any],
    rule: Callable[..., Any],
    x: Any,
    name: str,
    norm: object,
    axis: int | Sequence[int] | None,
) -> Any:
    def edited(leaf: object) -> torch.Tensor:
        leaf = as_floating("x", leaf)
        axes, scalar = check_axis("axis", axis, leaf.ndim), as_scalar(name, norm, leaf, low=0.0)
        # Of nothing there is no largest.
        return edit(leaf, partial(rule, axes=axes), scalar) if leaf.numel() else leaf

    return map_structure(edited, x)


def _clamp(gradient: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    return clamped(gradient, low.to(gradient.dtype), high.to(gradient.dtype))


def _is_small(max_norm: float | torch.Tensor) -> bool:
    return isinstance(max_norm, int | float) and max_norm < SMALL


def _shrink(
    gradient: torch.Tensor, max_norm: torch.Tensor, axes: tuple[int, ...], small: bool
) -> torch.Tensor:
    if len(axes) == gradient.ndim and (found := clip_at_once([gradient], max_norm, small)):
        return found[0][0]
    unit, length, largest = _polar(gradient, axes)
    fits, factor = fit(gradient.dtype, length, largest, max_norm)
    if unit is gradient:
        return gradient * torch.where(fits, 1, factor)
    return torch.where(fits, gradient, (unit * factor).to(gradient.dtype))


def _rescale(gradient: torch.Tensor, norm: torch.Tensor, axes: tuple[int, ...]) -> torch.Tensor:
    unit, length, _ = _polar(gradient, axes)
    return (unit * (norm / length)).to(gradient.dtype)


def _clip_one_by_one(
    tensors: list[torch.Tensor], max_norm: torch.Tensor, zero: torch.Tensor
) -> tuple[list[torch.Tensor], torch.Tensor]:
    wide = [leaf.to(zero.dtype) for leaf in tensors if leaf.numel()]
    largest = _together(zero, [_largest_of_all(leaf) for leaf in wide]).amax()
    finite = _finite(largest)
    divisor = nonzero(finite)
    squares = [clamped(leaf / divisor.to(leaf.device), -1, 1).square().sum() for leaf in wide]
    length = _root(_together(zero, squares).sum())
    fits = {dtype: fit(dtype, length, finite, max_norm) for dtype in {leaf.dtype for leaf in tensors}}

    def clip(g: torch.Tensor) -> torch.Tensor:
        far, fitting, factor = (scalar.to(g.device) for scalar in (divisor, *fits[g.dtype]))
        return torch.where(fitting, g, (clamped(g.to(zero.dtype) / far, -1, 1) * factor).to(g.dtype))

    # An infinite factor would make NaN of a gradient of 0.
    infinite = largest.isinf()
    return [clip(g) for g in tensors], torch.where(
        infinite, largest, length * torch.where(infinite, 0, largest)
    )


def _polar(gradient: torch.Tensor, axes: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor, Any]:
    # The gradient divided by its largest magnitude, so that no square overflows; the norm of that; and what
    # it was divided by: 1 where squares neither overflow nor vanish, which is five times as fast.
    if gradient.dtype.itemsize >= 4 and is_readable(gradient):
        length = torch.linalg.vector_norm(gradient, 2, axes, keepdim=True)
        if ((length > 1e-15) & (length < 1e15)).all():
            return gradient, length, 1
    wide = at_least_float32(gradient)
    largest = _finite(_largest(wide, axes))
    unit = clamped(wide / nonzero(largest), -1, 1)
    return unit, nonzero(torch.linalg.vector_norm(unit, 2, axes, keepdim=True)), largest


def _largest(wide: torch.Tensor, axes: tuple[int, ...] | None) -> torch.Tensor:
    # It cancels, so its slope is of no use. In a batch of gradients nothing can be detached.
    batched = not torch.compiler.is_compiling() and torch._C._functorch.is_legacy_batchedtensor(wide)
    constant = wide if batched else stopped(wide)
    return torch.linalg.vector_norm(constant, torch.inf, axes, keepdim=axes is not None)


def _largest_of_all(wide: Any) -> torch.Tensor:
    if not hasattr(wide, "full_tensor"):
        return _largest(wide, None)
    # A process may hold no element of a DTensor, and of nothing there is no largest.
    distributed = torch.distributed.tensor
    added = [distributed.Replicate() if place.is_partial() else place for place in wide.placements]
    shard = wide.detach().redistribute(placements=added).to_local()
    largest = _largest(shard, None) if shard.numel() else shard.new_zeros(())
    maximum = [distributed.Partial("max")] * wide.device_mesh.ndim
    return distributed.DTensor.from_local(largest, wide.device_mesh, maximum)


def _finite(largest: torch.Tensor) -> torch.Tensor:
    return largest.clamp(max=torch.finfo(largest.dtype).max)  # infinity counts as the largest number


def _root(square: torch.Tensor) -> torch.Tensor:
    return nonzero(square).sqrt()  # it divides zeros, and the root of 0 has no slope


def _together(zero: torch.Tensor, scalars: list[torch.Tensor]) -> torch.Tensor:
    # One device and one process hold each scalar; a DTensor's reduction is finished first.
    whole = [scalar.full_tensor() if hasattr(scalar, "full_tensor") else scalar for scalar in scalars]
    return torch.stack([zero, *(scalar.to(zero.device) for scalar in whole)])


def _as_dense(name: str, value: object) -> torch.Tensor:
    tensor = as_floating(name, value)
    if tensor.layout is not torch.strided:
        raise TypeError(f"{name} must be dense; got {tensor.layout}; remedy: {name}.to_dense()")
    return tensor
