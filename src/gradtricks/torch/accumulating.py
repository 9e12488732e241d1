"""The gradient of a batch that comes in parts.

Of the loss ``sum(totals) / sum(weights)`` it is ``sum(gradients of the totals) / sum(weights)``, however the
batch was cut. The mean of the parts' means is another loss, unless all parts weigh the same.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from gradtricks._core.checks import check_callable, check_number, check_shape
from gradtricks._core.structures import leaves, rebuilt
from gradtricks.torch._modes import stopped
from gradtricks.torch._tensors import as_floating, as_tensor, at_least_float32, is_readable


def accumulate_gradients(
    function: Callable[[Any], tuple[torch.Tensor, float | torch.Tensor]],
    parameters: Any,
    parts: Iterable[Any],
) -> tuple[torch.Tensor, Any]:
    """Return the mean loss of all parts together and its gradients, whatever the parts weigh.

    The gradients are those of one large batch, up to rounding, added up in float32 at least; clip them once
    and give them to the optimizer once. Layers that couple samples (batch normalization in training mode)
    see one part at a time all the same.

    Args:
        function: ``function(part)`` returns the *sum* of the part's losses, a scalar, and the sum of their
            weights, a number or a scalar tensor: how many tokens or samples count. Of a mean take
            ``mean * weight``, but beware of the mean of nothing. A sum that was multiplied, as by
            `GradScaler.scale`, gives loss and gradients multiplied by as much.
        parameters: Floating-point tensors in a list, tuple or dict, nested as you like; or
            ``model.parameters()``.
        parts: Anything that can be iterated over, once.

    Returns:
        The loss, ``[]``, in float32 at least; and the gradients in the structure and dtypes of
        ``parameters``, None for a parameter that no part uses or that requires none. Weights that add up to
        0 raise; tensors of them on a GPU give NaN or infinity.

    References:
        https://github.com/huggingface/transformers/pull/34191. What hooks ``backward``, such as
        DistributedDataParallel, doesn't notice: reduce the gradients and the weights of all processes.

    Example:
        >>> weight = torch.tensor(2.0, requires_grad=True)
        >>> parts = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([6.0])
        >>> loss, gradients = accumulate_gradients(lambda x: ((weight * x).sum(), len(x)), [weight], parts)
        >>> loss, gradients  # 12 / 4; the mean of the two means, 2 and 6, is 4
        (tensor(6.), [tensor(3.)])
    """
    check_callable("function", function)
    parameters = list(parameters) if isinstance(parameters, Iterator) else parameters
    watched = [as_floating("parameters", p) for p in leaves(parameters)]
    wanted = [p for p in watched if p.requires_grad]
    sums: list[torch.Tensor | None] = [None for _ in wanted]
    loss: Any = None
    weights: Any = 0
    for part in parts:
        total, weight = _as_pair(function(part))
        # A part in which nothing counts may be a constant.
        asked = wanted if total.requires_grad else []
        gradients = torch.autograd.grad(total, asked, allow_unused=True) if asked else ()
        for place, gradient in enumerate(gradients):
            sums[place] = _added(sums[place], gradient, wanted[place])
        loss = stopped(total) + (0 if loss is None else loss)
        weights = weights + weight
    _check(loss, weights, sums)
    # The sums are our own, so that no second copy of the model is needed.
    means = iter([g if g is None else g.div_(weights).to(p.dtype) for g, p in zip(sums, wanted)])
    return loss / weights, rebuilt(parameters, (next(means) if p.requires_grad else None for p in watched))


def _as_pair(found: object) -> tuple[torch.Tensor, float | torch.Tensor]:
    if not isinstance(found, tuple | list) or len(found) != 2:
        raise TypeError(f"function must return a sum of losses and its weight; got {type(found).__name__}")
    total = at_least_float32(as_floating("the sum of losses", found[0]))
    check_shape("the sum of losses", total.shape, (), "a scalar")
    if not isinstance(found[1], torch.Tensor):
        return total, check_number("the weight", found[1])
    weight = stopped(as_tensor("the weight", found[1]))
    check_shape("the weight", weight.shape, (), "a scalar")
    return total, weight.to(total.dtype)


def _added(
    total: torch.Tensor | None, gradient: torch.Tensor | None, parameter: torch.Tensor
) -> torch.Tensor | None:
    if gradient is None:
        return total
    wide = at_least_float32(gradient.to_dense() if gradient.is_sparse else gradient)
    if total is not None:
        return total.add_(wide)
    # A copy, because a framework may hand out one tensor as the gradient of two. It lies in memory as the
    # parameter does, as backward has it: Adam(fused=True) on the CPU takes both in the order of memory.
    return torch.empty_like(parameter, dtype=wide.dtype).copy_(wide)


def _check(loss: torch.Tensor | None, weights: float | torch.Tensor, sums: list[torch.Tensor | None]) -> None:
    if loss is None:
        raise ValueError("parts must not be empty; got none")
    if all(total is None for total in sums):
        raise ValueError("a sum of losses must depend on the parameters; got none that does")
    if (not isinstance(weights, torch.Tensor) or is_readable(weights)) and weights == 0:
        raise ValueError("the weights must not add up to 0, since a loss is an average; got 0")
