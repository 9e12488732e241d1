"""Any rule for what flows back.

Forward ``y = x``; backward ``dL/dx = rule(dL/dy, *tensors)``.
"""

from collections.abc import Callable
from typing import Any

import torch

from gradtricks._core.checks import check_callable
from gradtricks._core.structures import map_structure
from gradtricks.torch._edits import intercept
from gradtricks.torch._tensors import as_edited, as_floating, as_tensor


def edit_gradient(x: Any, rule: Callable[..., torch.Tensor], *tensors: torch.Tensor) -> Any:
    """Identity forward; the incoming gradient goes through ``rule``.

    One of the two edits behind the tricks of this package, so that you can write your own in a line; the
    other one is `straight_through`.

    Args:
        x: Floating-point, any shape; or a tuple, list or dict of such tensors, each edited by itself.
        rule: ``rule(gradient, *tensors)`` returns what goes on to ``x``, in the shape of the gradient; for a
            second derivative it is differentiated.
        *tensors: What the rule needs besides; they get no gradient. Tensors that are arguments of a function
            which you compile under a transform of `torch.func`, or made in it, or that `vmap` maps, must come
            in this way. Where `vmap` maps neither these nor ``x``, the sum of the examples' gradients is
            edited.

    Returns:
        Shape and dtype of ``x``. A view of ``x`` in plain eager mode: clone it before editing in place.

    Raises:
        RuntimeError: In forward mode, in which a rule for gradients has no meaning. But
            `torch.autograd.functional.jvp` goes backward twice, and differentiates the rule.
        NotImplementedError: Where the rule would be lost, unless under `torch.no_grad`: exported, or mapped
            in what ``make_fx`` traces.

    Example:
        >>> x = torch.tensor([1.0, -2.0], requires_grad=True)
        >>> y = edit_gradient(x, lambda gradient: gradient.sign())
        >>> torch.autograd.grad((y**3).sum(), x)[0].tolist()
        [1.0, 1.0]
    """
    check_callable("rule", rule)
    tensors = tuple(as_tensor("a tensor of the rule", tensor) for tensor in tensors)

    def checked(gradient: torch.Tensor, *tensors: torch.Tensor) -> torch.Tensor:
        name = "what the rule returns"
        return as_edited(name, as_floating(name, rule(gradient, *tensors)), gradient)

    return map_structure(lambda leaf: intercept(as_floating("x", leaf), checked, *tensors), x)
