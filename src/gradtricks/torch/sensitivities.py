"""Derivatives of each sample's output with respect to its own input, for a whole batch at once."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from gradtricks._core.checks import check_integer
from gradtricks.reference.sensitivities import CallLog
from gradtricks.torch._tensors import as_floating, in_plain_reverse

_GOLDEN = 0.6180339887498949  # its multiples modulo 1 are spread evenly and repeat nowhere
_ROUNDING = 64  # a difference below this many units in the last place is rounding, not coupling


def input_gradients(
    function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, *, check_every: int = 64
) -> torch.Tensor:
    """Differentiate each sample's number with respect to its own input: ``d function(x)_i / d x_i``.

    One forward and one backward pass of the sum. That is right only if no sample has a part in another's
    output, so it is checked: a second backward pass, of every other output alone, must leave the other
    samples without a gradient. ``function`` itself runs once, and the check changes no state; no ``.grad``
    changes either.

    While gradients are enabled the result can be differentiated again, by ``x`` and by weights, as a gradient
    penalty has to be; under ``torch.no_grad()`` it is a constant and needs less memory.

    Args:
        function: Maps ``[B, ...]`` to ``[B]`` or ``[B, 1]``, row by row.
        x: ``[B, ...]``, floating-point.
        check_every: Check the first call of a function, and after that each call of this number; 1 is all
            calls, 0 none. Another layer, training mode of a layer or value of a flag that the function
            refers to begins a new count. Compiled or under a transform every call is checked, unless it is 0.

    Returns:
        Shape and dtype of ``x``. Where nothing can be raised, compiled or under a transform, coupled samples
        make it NaN.

    Raises:
        TypeError: ``x`` or what ``function`` returns isn't a floating-point tensor, or ``check_every`` isn't
            an integer.
        ValueError: The samples are coupled, as by batch normalization in training mode; ``x`` has no batch
            axis; ``function`` doesn't return one number for each sample, or nothing that depends on ``x``.

    References:
        The sum trick: https://pytorch.org/docs/stable/autograd.html says that ``grad`` returns sums.

    Example:
        >>> x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        >>> input_gradients(lambda x: (x**2).sum(-1), x)
        tensor([[2., 4.],
                [6., 8.]])
    """
    check_every = check_integer("check_every", check_every, low=0)
    value, pull = _vjp(function, x)
    if value.numel() != len(value) or value.ndim > 2:
        raise ValueError(
            f"function must return one number for each sample, [B] or [B, 1]; got {tuple(value.shape)}; "
            "remedy: input_jacobians, or select one output"
        )
    ones = torch.ones_like(value)
    gradients = pull(ones, torch.is_grad_enabled())
    if _is_due(function, x, check_every):
        return _unless_coupled(function, gradients, ones, pull)
    return gradients


def input_jacobians(
    function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, *, check_every: int = 64
) -> torch.Tensor:
    """Differentiate each sample's outputs with respect to its own input: ``d function(x)_i / d x_i``.

    One forward pass, and one vectorised backward pass for each output of a sample, all samples together.
    Coupled samples are refused as by `input_gradients`.

    Args:
        function: Maps ``[B, I...]`` to ``[B, O...]``, row by row.
        x: ``[B, I...]``, floating-point.
        check_every: As for `input_gradients`.

    Returns:
        ``[B, O..., I...]`` in the dtype of ``x``; NaN as by `input_gradients`.

    Raises:
        TypeError: ``x`` or what ``function`` returns isn't a floating-point tensor, or ``check_every`` isn't
            an integer.
        ValueError: The samples are coupled; ``x`` has no batch axis; what ``function`` returns has another
            batch axis, or doesn't depend on ``x``.

    Example:
        >>> x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        >>> input_jacobians(lambda x: torch.stack([x.sum(-1), x.prod(-1)], -1), x)
        tensor([[[1., 1.],
                 [2., 1.]],
        <BLANKLINE>
                [[1., 1.],
                 [4., 3.]]])
    """
    check_every = check_integer("check_every", check_every, low=0)
    value, pull = _vjp(function, x)
    if value.numel() == 0:
        return x.new_zeros(*value.shape, *x.shape[1:])
    count = value.shape[1:].numel()
    units = torch.eye(count, dtype=value.dtype, device=value.device).reshape(count, 1, *value.shape[1:])
    units = units.expand(count, *value.shape)
    jacobians = pull(units, torch.is_grad_enabled(), batched=True)
    if _is_due(function, x, check_every):
        jacobians = _unless_coupled(function, jacobians, units, partial(pull, batched=True), axis=1)
    return jacobians.movedim(0, 1).reshape(*value.shape, *x.shape[1:])


def _vjp(
    function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor
) -> tuple[torch.Tensor, Callable[..., torch.Tensor]]:
    x = _as_batch(x)
    if not in_plain_reverse(x):
        return _vjp_under_transform(function, x)
    with torch.enable_grad():
        # An alias, so that what the function knows of x by other ways than its argument stays constant.
        inner = x.view_as(x) if x.requires_grad else x.detach().requires_grad_()
        value = _as_value(function(inner), x)

    def pull(cotangent: torch.Tensor, create_graph: bool = False, batched: bool = False) -> torch.Tensor:
        create_graph = create_graph and (x.requires_grad or _depends_on_more(value, inner))
        options = {"create_graph": create_graph, "is_grads_batched": batched, "allow_unused": True}
        connected = value.requires_grad
        found = torch.autograd.grad(value, inner, cotangent, True, **options)[0] if connected else None
        if found is None:
            raise ValueError(
                "function must return what depends on x; got a result that gradients can't trace back to x; "
                "remedy: explain_gradient names the cut, torch.no_grad instead of torch.inference_mode"
            )
        return found

    return value, pull


def _vjp_under_transform(
    function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor
) -> tuple[torch.Tensor, Callable[..., torch.Tensor]]:
    value, pull_back, *_ = torch.func.vjp(lambda x: _as_value(function(x), x), x)

    def pull(cotangent: torch.Tensor, create_graph: bool = False, batched: bool = False) -> torch.Tensor:
        return (torch.func.vmap(pull_back) if batched else pull_back)(cotangent)[0]

    return value, pull


def _depends_on_more(value: torch.Tensor, inner: torch.Tensor) -> bool:
    # Without other leaves nobody could ask for a second derivative, and the graph would be kept in vain.
    nodes, seen = [value.grad_fn], set[Any]()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        if getattr(node, "variable", inner) is not inner:
            return True
        seen.add(node)
        nodes.extend(following for following, _ in node.next_functions)
    return False


def _unless_coupled(
    function: Callable[..., Any],
    derivatives: torch.Tensor,
    cotangents: torch.Tensor,
    pull: Callable[..., torch.Tensor],
    axis: int = 0,
) -> torch.Tensor:
    found = derivatives.detach()
    lit = torch.arange(found.shape[axis], device=found.device) * _GOLDEN % 1 < 0.5
    alone = pull(torch.where(_along(lit, cotangents, axis), cotangents, 0)).detach()
    difference = (alone - torch.where(_along(lit, found, axis), found, 0)).abs()
    # Where a slope is infinite, 0 times it says nothing.
    largest = torch.where(found.isfinite(), found.abs(), 0).amax()
    rounding = _ROUNDING * torch.finfo(found.dtype).eps * largest
    coupled = (difference.isfinite() & (difference > rounding)).any()
    if not in_plain_reverse(derivatives):
        return torch.where(coupled, math.nan, derivatives)
    if coupled:
        _log.forget(function)
        raise ValueError(
            "function must treat each sample by itself; got samples with a part in each other's outputs, as "
            "in batch normalization while training; remedy: model.eval(), or check_every=0 for the "
            "derivatives of sums over the samples"
        )
    return derivatives


def _along(lit: torch.Tensor, like: torch.Tensor, axis: int) -> torch.Tensor:
    return lit.reshape(-1, *[1] * (like.ndim - axis - 1))


def _is_due(function: Callable[..., Any], x: torch.Tensor, check_every: int) -> bool:
    if x.numel() == 0 or len(x) == 1 or check_every == 0:
        return False
    return not in_plain_reverse(x) or _log.is_due(function, check_every)


def _mode_of(part: object) -> object:
    if not isinstance(part, torch.nn.Module):
        return None
    layers: list[torch.nn.Module] = [part]
    for layer in layers:  # part.modules() takes longer than a small network can spare
        layers.extend(inner for inner in layer._modules.values() if inner is not None)
    return tuple([layer.training for layer in layers])


_log = CallLog(_mode_of)


def _as_batch(x: torch.Tensor) -> torch.Tensor:
    x = as_floating("x", x)
    if x.ndim == 0:
        raise ValueError("x must have shape [B, ...], samples first; got a scalar")
    return x


def _as_value(value: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    value = as_floating("function(x)", value)
    if value.ndim == 0 or len(value) != len(x):
        raise ValueError(
            f"function must return a row for each of the {len(x)} samples; got shape {tuple(value.shape)}; "
            "remedy: no reduction over the samples"
        )
    return value
