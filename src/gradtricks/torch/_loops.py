"""Compiled loops over arrays, as operations that PyTorch knows."""

from collections.abc import Callable
from typing import Any

import torch
from numpy.typing import NDArray

from gradtricks.torch._tensors import at_least_float32, is_readable, on_cpu


def as_operation(
    name: str,
    schema: str,
    loop: Callable[..., Any],
    shapes: Callable[..., Any],
    *,
    elsewhere: Callable[..., Any],
    batch_axis: int = 0,
) -> Callable[..., Any]:
    """Make an operation of a compiled loop, for every device, tracer and batch.

    Args:
        name: What PyTorch calls it.
        schema: What it takes, tensors first, and returns, as `torch.library.custom_op` writes it.
        loop: Takes arrays, float32 at least, and options; returns an array or a tuple of them, none of which
            is one of those that came in.
        shapes: Takes tensors without values and options, and returns such tensors.
        elsewhere: The same in PyTorch's operations, for tensors that aren't on the CPU.
        batch_axis: Where the loop takes a batch, 0 or -1. A scalar that isn't batched stays one.

    Returns:
        A function of tensors and options. What it returns is in the dtype of the first tensor, unless it
        holds integers, and has no gradient.
    """

    def run(*args: Any) -> Any:
        arrays = (at_least_float32(a).numpy(force=True) if isinstance(a, torch.Tensor) else a for a in args)
        return _each(lambda array: _as_tensor(array, args[0]), loop(*arrays))

    operation = torch.library.custom_op(f"gradtricks::{name}", run, mutates_args=(), schema=schema)
    operation.register_fake(shapes)

    @operation.register_vmap
    def batched(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> Any:
        def first_or_last(arg: Any, dim: int | None) -> Any:
            if dim is not None:
                return arg.movedim(dim, batch_axis)
            if not isinstance(arg, torch.Tensor) or arg.ndim == 0:
                return arg
            return arg.unsqueeze(batch_axis).expand(
                [info.batch_size, *arg.shape] if batch_axis == 0 else [*arg.shape, info.batch_size]
            )

        results = operation(*map(first_or_last, args, in_dims))
        return results, _each(lambda result: batch_axis % result.ndim, results)

    def called(*args: Any) -> Any:
        if not on_cpu(args[0]):
            return elsewhere(*args)
        # PyTorch's dispatcher takes longer than a short loop.
        readable = is_readable(*[arg for arg in args if isinstance(arg, torch.Tensor)])
        return (run if readable else operation)(*args)

    vars(called)["register_autograd"] = operation.register_autograd
    return called


def _each(function: Callable[[Any], Any], results: Any) -> Any:
    return tuple(map(function, results)) if isinstance(results, tuple) else function(results)


def _as_tensor(array: NDArray[Any], like: torch.Tensor) -> torch.Tensor:
    tensor = torch.from_numpy(array)
    return tensor.to(like.device, like.dtype if tensor.is_floating_point() else tensor.dtype)
