"""Clipping a gradient, by value or by norm, and the projection that is often taken for it."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from gradtricks._core.checks import check_axis, check_number
from gradtricks.torch._tensors import (
    as_floating,
    at_least_float32,
    in_plain_reverse,
    map_structure,
    refuse_compiled_duals,
)


def clip_gradient(
    x: torch.Tensor, gradient_min: float | torch.Tensor, gradient_max: float | torch.Tensor
) -> torch.Tensor:
    """Identity forward; clips each element of the incoming gradient.

    An infinite element becomes the bound, a NaN stays NaN. Differentiated again, the gradient has slope 1
    where it was within the bounds, and 0 elsewhere.

    Args:
        x: Floating-point, any shape.
        gradient_min: A finite number, or a floating-point tensor of shape ``[]``, whose value isn't checked.
        gradient_max: The same, not below ``gradient_min``.

    Returns:
        Shape and dtype of ``x``. A view of ``x`` in eager mode: clone it before editing in place.

    Raises:
        TypeError: ``x`` isn't a floating-point tensor, or a bound isn't a number or a tensor.
        ValueError: ``gradient_min`` is above ``gradient_max``, or a bound isn't finite or a scalar.
        RuntimeError: In forward mode, in which a clipped gradient has no meaning.

    References:
        ``clip_gradient`` of Sonnet and RLax, https://github.com/google-deepmind/rlax.

    Example:
        >>> x = torch.zeros(3, requires_grad=True)
        >>> loss = (clip_gradient(x, -1.0, 1.0) * torch.tensor([0.5, 7.0, -7.0])).sum()
        >>> torch.autograd.grad(loss, x)[0]
        tensor([ 0.5000,  1.0000, -1.0000])
    """
    x = as_floating("x", x)
    low, high = _as_scalar("gradient_min", gradient_min, x), _as_scalar("gradient_max", gradient_max, x)
    numbers = not isinstance(gradient_min, torch.Tensor) and not isinstance(gradient_max, torch.Tensor)
    if numbers and gradient_min > gradient_max:
        raise ValueError(f"gradient_min must be <= gradient_max; got {gradient_min} and {gradient_max}")
    return _with_rule("clip_gradient", x, (), low, high)


def clip_gradient_norm(
    x: torch.Tensor, max_norm: float | torch.Tensor, *, axis: int | Sequence[int] | None = None
) -> torch.Tensor:
    """Identity forward; shrinks the incoming gradient to a norm of at most ``max_norm``.

    The direction stays. A gradient whose norm is at most ``max_norm``, up to rounding, passes bit for bit. An
    infinite element counts as the largest finite number. A NaN makes the norm NaN, and all that shares it.

    Args:
        x: Floating-point, any shape.
        max_norm: A number >= 0, or a floating-point tensor of shape ``[]``, whose value isn't checked.
        axis: Axes over which the norm is taken. None is all axes, so one norm for the whole tensor, batch
            included; for one norm per example, give all axes but the first.

    Returns:
        Shape and dtype of ``x``. A view of ``x`` in eager mode: clone it before editing in place.

    Raises:
        TypeError: ``x`` isn't a floating-point tensor, ``max_norm`` isn't a number or a tensor, or ``axis``
            isn't made of integers.
        ValueError: ``max_norm`` is negative, not finite or not a scalar, or ``axis`` doesn't name axes of
            ``x``.
        RuntimeError: In forward mode, in which a clipped gradient has no meaning.

    References:
        Pascanu, Mikolov and Bengio, https://arxiv.org/abs/1211.5063.

    Example:
        >>> x = torch.zeros(2, requires_grad=True)
        >>> loss = (clip_gradient_norm(x, 1.0) * torch.tensor([3.0, 4.0])).sum()
        >>> torch.autograd.grad(loss, x)[0]
        tensor([0.6000, 0.8000])
    """
    x = as_floating("x", x)
    max_norm = _as_scalar("max_norm", max_norm, x, low=0.0)
    return _with_rule("clip_gradient_norm", x, check_axis("axis", axis, x.ndim), max_norm)


def normalize_gradient(x: torch.Tensor, norm: float | torch.Tensor) -> torch.Tensor:
    """Identity forward; rescales the incoming gradient to the norm ``norm``.

    The direction stays; a gradient of zero stays zero. An infinite element counts as the largest finite
    number. A NaN makes the whole gradient NaN.

    Args:
        x: Floating-point, any shape.
        norm: A number >= 0, or a floating-point tensor of shape ``[]``, whose value isn't checked.

    Returns:
        Shape and dtype of ``x``. A view of ``x`` in eager mode: clone it before editing in place.

    Raises:
        TypeError: ``x`` isn't a floating-point tensor, or ``norm`` isn't a number or a tensor.
        ValueError: ``norm`` is negative, not finite or not a scalar.
        RuntimeError: In forward mode, in which a rescaled gradient has no meaning.

    Example:
        >>> x = torch.zeros(2, requires_grad=True)
        >>> loss = (normalize_gradient(x, 10.0) * torch.tensor([3.0, 4.0])).sum()
        >>> torch.autograd.grad(loss, x)[0]
        tensor([6., 8.])
    """
    x = as_floating("x", x)
    norm = _as_scalar("norm", norm, x, low=0.0)
    return _with_rule("normalize_gradient", x, check_axis("axis", None, x.ndim), norm)


def clip_by_global_norm(gradients: Any, max_norm: float | torch.Tensor) -> tuple[Any, torch.Tensor]:
    """Shrink tensors together, so that the norm of all their elements is at most ``max_norm``.

    Here the gradients are in hand, and go on to the optimizer. The rules for equal norms, infinities and NaN
    are those of `clip_gradient_norm`, over all tensors as one; the norm that is returned is infinite or NaN.

    Args:
        gradients: Floating-point tensors in a list, tuple or dict, nested as you like. None stays None: a
            parameter without a gradient.
        max_norm: A number >= 0, or a floating-point tensor of shape ``[]``, whose value isn't checked.

    Returns:
        The structure of ``gradients``, clipped, and the norm before clipping: ``[]``, in float32 or wider.

    Raises:
        TypeError: A gradient isn't a dense floating-point tensor, or ``max_norm`` isn't a number or a tensor.
        ValueError: ``max_norm`` is negative, not finite or not a scalar.

    References:
        Pascanu, Mikolov and Bengio, https://arxiv.org/abs/1211.5063.

    Example:
        >>> clipped, norm = clip_by_global_norm([torch.tensor([3.0]), None, torch.tensor([4.0])], 1.0)
        >>> clipped, norm
        ([tensor([0.6000]), None, tensor([0.8000])], tensor(5.))
    """
    leaves: list[torch.Tensor] = []
    map_structure(lambda g: g if g is None else leaves.append(_as_dense("gradients", g)), gradients)
    zero = _wide_zero(leaves)
    max_norm = _as_scalar("max_norm", max_norm, zero, low=0.0)
    wide = [leaf.to(zero.dtype).reshape(-1) for leaf in leaves if leaf.numel()]
    largest = torch.stack([zero, *(_largest(leaf, (0,))[0] for leaf in wide)]).amax()
    squares = [_unit(leaf, largest).square().sum() for leaf in wide]
    length = _root(torch.stack([zero, *squares]).sum())
    clipped = map_structure(
        lambda g: g if g is None else _fitted(g, _unit(g.to(zero.dtype), largest), length, largest, max_norm),
        gradients,
    )
    # An infinite factor would make NaN of a gradient of 0.
    infinite = largest.isinf()
    return clipped, torch.where(infinite, largest, length * torch.where(infinite, 0, largest))


def project_to_max_norm(
    x: torch.Tensor, max_norm: float | torch.Tensor, axis: int | Sequence[int] | None
) -> torch.Tensor:
    """Shrink ``x`` itself to a norm of at most ``max_norm``; backward, the derivative of that.

    This is the constraint that Keras calls MaxNorm. It is no way to clip a gradient: it changes the value,
    and of the gradient it takes away the part along ``x``. The rules for equal norms, infinities and NaN
    are those of `clip_gradient_norm`.

    Args:
        x: Floating-point, any shape.
        max_norm: A number >= 0, or a floating-point tensor of shape ``[]``, whose value isn't checked.
        axis: Axes over which the norm is taken; None is all.

    Returns:
        Shape and dtype of ``x``.

    Raises:
        TypeError: ``x`` isn't a floating-point tensor, ``max_norm`` isn't a number or a tensor, or ``axis``
            isn't made of integers.
        ValueError: ``max_norm`` is negative, not finite or not a scalar, or ``axis`` doesn't name axes of
            ``x``.

    References:
        Srebro and Shraibman, https://doi.org/10.1007/11503415_37.

    Example:
        >>> project_to_max_norm(torch.tensor([[3.0, 4.0], [0.3, 0.4]]), 1.0, 1)
        tensor([[0.6000, 0.8000],
                [0.3000, 0.4000]])
    """
    x = as_floating("x", x)
    max_norm = _as_scalar("max_norm", max_norm, x, low=0.0)
    return _shrink(x, check_axis("axis", axis, x.ndim), max_norm)


# Rules: what becomes of a gradient


def _clip_by_value(
    gradient: torch.Tensor, axes: tuple[int, ...], low: torch.Tensor, high: torch.Tensor
) -> torch.Tensor:
    return gradient.clamp(low.to(gradient.dtype), high.to(gradient.dtype))


def _shrink(gradient: torch.Tensor, axes: tuple[int, ...], max_norm: torch.Tensor) -> torch.Tensor:
    if not gradient.numel():
        return gradient
    norm = _plain_norm(gradient, axes)
    if norm is not None:
        fits = norm <= max_norm * (1 + 9 * torch.finfo(gradient.dtype).eps)
        return gradient * torch.where(fits, 1, max_norm / norm)
    unit, largest = _divided(gradient, axes)
    return _fitted(gradient, unit, _length(unit, axes), largest, max_norm)


def _rescale(gradient: torch.Tensor, axes: tuple[int, ...], norm: torch.Tensor) -> torch.Tensor:
    if not gradient.numel():
        return gradient
    plain_norm = _plain_norm(gradient, axes)
    if plain_norm is not None:
        return gradient * (norm / plain_norm)
    unit, largest = _divided(gradient, axes)
    rescaled = unit * (norm / _length(unit, axes))
    return torch.where(largest == 0, gradient, rescaled.to(gradient.dtype))


def _fitted(
    gradient: torch.Tensor,
    unit: torch.Tensor,
    length: torch.Tensor,
    largest: torch.Tensor,
    max_norm: torch.Tensor,
) -> torch.Tensor:
    # The norm is length * largest. That may overflow, which only says that it doesn't fit.
    tolerance = torch.finfo(gradient.dtype).eps + 8 * torch.finfo(unit.dtype).eps
    fits = length * largest <= max_norm * (1 + tolerance)
    return torch.where(fits, gradient, (unit * (max_norm / length)).to(gradient.dtype))


def _plain_norm(gradient: torch.Tensor, axes: tuple[int, ...]) -> torch.Tensor | None:
    # Ten times as fast, and right where squares neither overflow nor vanish. To look costs nothing on a CPU.
    if gradient.device.type != "cpu" or gradient.dtype.itemsize < 4 or not in_plain_reverse(gradient):
        return None
    norm = torch.linalg.vector_norm(gradient, 2, axes, keepdim=True)
    return norm if ((norm > 1e-15) & (norm < 1e15)).all() else None


def _divided(gradient: torch.Tensor, axes: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    # Divided by the largest magnitude, so that no square overflows.
    wide = at_least_float32(gradient)
    largest = _largest(wide, axes)
    return _unit(wide, largest), largest


def _largest(wide: torch.Tensor, axes: tuple[int, ...]) -> torch.Tensor:
    return torch.linalg.vector_norm(wide.detach(), torch.inf, axes, keepdim=True)


def _unit(wide: torch.Tensor, largest: torch.Tensor) -> torch.Tensor:
    # Infinity counts as the largest number that there is.
    finite = largest.clamp(max=torch.finfo(wide.dtype).max)
    return (wide / torch.where(largest == 0, 1, finite)).clamp(-1, 1)


def _length(unit: torch.Tensor, axes: tuple[int, ...]) -> torch.Tensor:
    return _root(unit.square().sum(axes, keepdim=True))


def _root(square: torch.Tensor) -> torch.Tensor:
    # Of 0 it is 1: it divides zeros, and the root of 0 has no slope.
    return torch.where(square == 0, 1, square).sqrt()


_RULES: dict[str, Callable[..., torch.Tensor]] = {
    "clip_gradient": _clip_by_value,
    "clip_gradient_norm": _shrink,
    "normalize_gradient": _rescale,
}


# How the framework learns of a rule


def _with_rule(name: str, x: torch.Tensor, axes: tuple[int, ...], *parameters: torch.Tensor) -> torch.Tensor:
    refuse_compiled_duals(name)
    unopened = torch.compiler.is_compiling() and _known_to_the_compiler()
    return (_apply_unopened if unopened else _GradientRule.apply)(x, name, axes, *parameters)


def _apply_unopened(
    x: torch.Tensor, name: str, axes: tuple[int, ...], *parameters: torch.Tensor
) -> torch.Tensor:
    return _GradientRule.apply(x, name, axes, *parameters)


def _known_to_the_compiler() -> bool:
    # The compiler looks into a Function, and under a transform forgets its rule. Put into the graph unopened,
    # it is differentiated by whichever transform is at work. The import is dear, and only compilers need it.
    from torch._dynamo import allow_in_graph

    allow_in_graph(_apply_unopened)
    return True


# The compiler calls a constant, rather than trace it.
vars(_known_to_the_compiler)["_dynamo_marked_constant"] = True


class _GradientRule(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor, name: str, axes: tuple[int, ...], *parameters: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        _, ctx.name, ctx.axes, *parameters = inputs
        ctx.save_for_backward(*parameters)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        parameters = ctx.saved_tensors
        # What an embedding with sparse=True sends back.
        gradient = gradient.to_dense() if gradient.is_sparse else gradient
        return _RULES[ctx.name](gradient, ctx.axes, *parameters), None, None, *(None for _ in parameters)

    @staticmethod
    def jvp(ctx: Any, *tangents: torch.Tensor | None) -> torch.Tensor:
        raise RuntimeError(
            f"{ctx.name} must be differentiated in reverse mode, its rule isn't linear; got a tangent; "
            "remedy: torch.func.vjp, grad or jacrev"
        )


def _as_dense(name: str, value: object) -> torch.Tensor:
    tensor = as_floating(name, value)
    if tensor.layout is not torch.strided:
        raise TypeError(f"{name} must be dense; got {tensor.layout}; remedy: {name}.to_dense()")
    return tensor


def _wide_zero(leaves: list[torch.Tensor]) -> torch.Tensor:
    wide = torch.float64 if any(leaf.dtype == torch.float64 for leaf in leaves) else torch.float32
    return torch.zeros((), dtype=wide, device=leaves[0].device if leaves else None)


def _as_scalar(
    name: str, value: float | torch.Tensor, x: torch.Tensor, *, low: float = -float("inf")
) -> torch.Tensor:
    dtype = torch.promote_types(x.dtype, torch.float32)
    if not isinstance(value, torch.Tensor):
        largest = torch.finfo(dtype).max
        number = min(max(check_number(name, value, low=low), -largest), largest)
        return torch.full((), number, dtype=dtype, device=x.device)
    value = as_floating(name, value)
    if value.ndim:
        raise ValueError(f"{name} must be a number or have shape (); got {tuple(value.shape)}")
    return value.detach().to(dtype)
