"""Vector-Jacobian products: by plain autograd, or by `torch.func` where a transform is at work.

Plain autograd knows what `torch.func` refuses: activation checkpoints and other hooks on saved tensors,
layers that update their statistics, functions that `torch.compile` has made.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from gradtricks.torch._modes import in_plain_reverse, in_transform

Pull = Callable[..., Sequence[torch.Tensor | None]]


def vjp(function: Callable[..., Any], *inputs: torch.Tensor) -> tuple[Any, Pull]:
    """Evaluate a function of tensors, and prepare to pull cotangents back to its inputs.

    What it knows of them by other ways stays constant.

    Returns:
        The value, a tensor or a list, and ``pull(cotangent, batched=False)``, to be called often. That
        returns a gradient for each input, or None where there is no path. It can be differentiated again
        while gradients are enabled. Batched, the cotangent and the gradients have one more axis in front.
    """
    if torch.compiler.is_exporting() and not in_transform():
        return _exported(function, inputs)
    if not all(in_plain_reverse(x) for x in inputs):
        value, back, *_ = torch.func.vjp(function, *inputs)
        return value, lambda cotangent, batched=False: (torch.func.vmap(back) if batched else back)(cotangent)
    with torch.inference_mode(False), torch.enable_grad():
        points = [_alias(x) for x in inputs]
        value = function(*points)
    values = [value] if isinstance(value, torch.Tensor) else list(value)

    def pull(cotangent: Any, batched: bool = False) -> Sequence[torch.Tensor | None]:
        given = [cotangent] if isinstance(cotangent, torch.Tensor) else cotangent
        ends = [(end, weights) for end, weights in zip(values, given) if end.requires_grad]
        if not ends:
            return [None for _ in points]
        again = torch.is_grad_enabled() and (
            any(t.requires_grad for t in (*inputs, *given)) or _depend_on_more(values, points)
        )
        return torch.autograd.grad(
            [end for end, _ in ends],
            points,
            [weights for _, weights in ends],
            retain_graph=True,
            create_graph=again,
            is_grads_batched=batched,
            allow_unused=True,
        )

    return value, pull


def _exported(function: Callable[..., Any], inputs: tuple[torch.Tensor, ...]) -> tuple[Any, Pull]:
    """Do the same for `torch.export`, which loses track of tensors in a transform or in autograd.

    So the backward pass becomes operations first.
    """
    if torch.compiler.is_dynamo_compiling():
        raise RuntimeError(
            "what differentiates a function must be exported operation by operation; got strict=True; "
            "remedy: torch.export.export(..., strict=False)"
        )
    # Here, because only exports need it.
    from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing, make_fx

    def pull(cotangent: Any, batched: bool = False) -> Sequence[torch.Tensor | None]:
        def gradients(cotangent: Any, *inputs: torch.Tensor) -> Sequence[torch.Tensor]:
            back = torch.func.vjp(function, *inputs)[1]
            return (torch.func.vmap(back) if batched else back)(cotangent)

        # The export would record the transform too.
        with disable_proxy_modes_tracing(), torch._C.DisableTorchFunction():
            operations = make_fx(gradients)(cotangent, *inputs)
        return operations(cotangent, *inputs)

    return function(*inputs), pull


def _alias(x: torch.Tensor) -> torch.Tensor:
    if x.requires_grad:
        return x.view_as(x)
    return (x.clone() if x.is_inference() else x.detach()).requires_grad_()


def _depend_on_more(values: list[torch.Tensor], points: list[torch.Tensor]) -> bool:
    # Without other leaves nobody could ask for a second derivative, and the graph would be kept in vain.
    nodes: list[Any] = [value.grad_fn for value in values]
    seen = set[Any]()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        leaf = getattr(node, "variable", None)
        if leaf is not None and all(leaf is not point for point in points):
            return True
        seen.add(node)
        nodes.extend(following for following, _ in node.next_functions)
    return False
