"""Questions to a tensor: its place in the graph, its memory, the state of its values."""

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, Node

FREED = "gradtricks.freed"  # marks nodes that a pass would have freed, had nobody watched
_NOTHING = torch.zeros(2, dtype=torch.float64, device="cpu")


def leaves_of(value: Any) -> Iterator[Any]:
    """Yield what stands in nested lists, tuples, dicts and slices."""
    if isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from leaves_of(item)
    elif isinstance(value, slice):
        yield from (value.start, value.stop, value.step)
    else:
        yield value


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in leaves_of(value) if isinstance(leaf, torch.Tensor))


def is_floating(tensor: torch.Tensor) -> bool:
    return tensor.dtype.is_floating_point or tensor.dtype.is_complex


def edge_of(tensor: torch.Tensor) -> GradientEdge | None:
    """Return where the gradient of a tensor arrives; None where it has none."""
    if not tensor.requires_grad:
        return None
    try:
        if tensor.grad_fn is not None:
            return GradientEdge(tensor.grad_fn, tensor.output_nr)
    except RuntimeError:  # a view that was made in no_grad, and edited since: nobody may differentiate it
        return None
    with torch.inference_mode(False), torch.enable_grad():
        following = tensor.view_as(tensor).grad_fn
    # torch.func.jvp hides the node of a leaf; a view of a view, made in no_grad, only says that it has one.
    node, output_nr = following.next_functions[0] if following else (None, 0)
    return GradientEdge(node, output_nr) if node else None


def name_of(edge: GradientEdge) -> str:
    return edge.node.name().rstrip("0123456789").removesuffix("Backward")


def saving_nodes(outputs: Sequence[torch.Tensor]) -> list[Any]:
    """Return the nodes behind some tensors that need what they saved, which one pass frees."""
    pending, seen = [tensor.grad_fn for tensor in outputs], set[Node]()
    while pending:
        node = pending.pop()
        if node is not None and node not in seen:
            seen.add(node)
            pending += [following for following, _ in node.next_functions]
    return [node for node in seen if _saves(node)]


def is_freed(outputs: Sequence[torch.Tensor]) -> bool:
    """Say whether a backward pass went through a part of the graph behind some tensors."""
    return any(FREED in node.metadata for node in saving_nodes(outputs))


def _saves(node: Node) -> bool:
    if hasattr(node, "_raw_saved_tensors"):
        return bool(node._raw_saved_tensors)
    # A sum with a product saves the factors only where they want gradients.
    return _names_saved(type(node)) and not node.name().startswith(("Add", "Baddbmm"))


@lru_cache
def _names_saved(kind: type[Node]) -> bool:
    return any(name.startswith("_raw_saved_") for name in dir(kind))


def version_of(tensor: torch.Tensor) -> int:
    """Return a number that grows when a tensor is edited in place."""
    return 0 if tensor.is_inference() else tensor._version


def memory_of(tensor: torch.Tensor) -> int:
    """Return what tells the memory of a tensor from that of others."""
    # A wrapper of torch.func or a tensor without elements has no memory that another could share.
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    shared = tensor.layout == torch.strided and not wrapped and tensor.untyped_storage().data_ptr()
    return shared or -id(tensor)


def part_of_memory(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return what tells the part of the memory that a tensor takes up."""
    memory = memory_of(tensor)
    return (memory, int(tensor.storage_offset()), tensor.numel()) if memory > 0 else (memory,)


def status_of(values: torch.Tensor | None) -> str:
    """Return "none", "fine", "zero everywhere", "nan" or "inf"."""
    return statuses_of([values])[0][0]


def statuses_of(tensors: Sequence[torch.Tensor | None]) -> list[tuple[str, float]]:
    """Return the status and the largest magnitude of each tensor, in one reading."""
    bounds = list(map(bounds_of, tensors))
    # Read together, since of a GPU each reading waits for all that it was told to do.
    place = next((each.device for each in bounds if each.numel()), _NOTHING.device)
    nothing = torch.zeros_like(_NOTHING, device=place)
    read = torch.stack([nothing, *(each.to(nothing) if each.numel() else nothing for each in bounds)])
    found = []
    for tensor, each, (low, high) in zip(tensors, bounds, read.tolist()[1:]):
        size = max(abs(low), abs(high))
        status = "nan" if math.isnan(size) else "inf" if math.isinf(size) else "fine"
        status = "zero everywhere" if size == 0 and each.numel() else status
        found.append(("none" if tensor is None else status, size))
    return found


def bounds_of(tensor: torch.Tensor | None) -> torch.Tensor:
    """Return the least and the greatest value, without a wait; nothing where there are none to look at."""
    values = _readable(tensor)
    return torch.stack(torch.aminmax(values)) if values.numel() else _NOTHING[:0]


def same_draws() -> AbstractContextManager[None]:
    """Differentiate once more, and leave the random numbers as they were."""
    return torch.random.fork_rng(range(torch.cuda.device_count()))


def _readable(tensor: torch.Tensor | None) -> torch.Tensor:
    """Return the values of a tensor as real numbers, none where it has none that can be looked at."""
    if tensor is None or tensor.is_meta or not is_floating(tensor):
        return _NOTHING[:0]
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return _NOTHING[:0]
    values = tensor.detach()
    values = values.coalesce().values() if values.is_sparse else values
    values = torch.view_as_real(values) if values.is_complex() else values
    return values.float() if values.dtype.itemsize == 1 else values
