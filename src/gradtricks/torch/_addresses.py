"""Which tensors compiled loops may edit by their addresses, and in whose threads."""

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import torch

_PLAIN = torch.Tensor, torch.nn.Parameter


def is_plain(tensor: torch.Tensor) -> bool:
    """Say whether this is an ordinary tensor, which no other library computes with."""
    return type(tensor) in _PLAIN


def has_address(tensor: torch.Tensor) -> bool:
    """Say whether elements lie one behind the other in the memory of the CPU."""
    return is_plain(tensor) and tensor.is_cpu and tensor.is_contiguous() and not tensor.is_neg()


def addresses_of(tensors: Sequence[torch.Tensor | None], shape: torch.Size) -> list[int] | None:
    """Return where tensors begin, 0 for None; or None unless all have an address and this shape."""
    addresses = []
    for tensor in tensors:
        if tensor is None:
            addresses.append(0)
        elif tensor.shape == shape and has_address(tensor):
            addresses.append(tensor.data_ptr())
        else:
            return None
    return addresses


@cache
def parallel_region() -> Callable[[int, int, int, int], None] | None:
    """Return what runs a C function in PyTorch's own threads, or None where they aren't OpenMP's.

    After a backward pass they spin for a while, and others would wait for a core.
    """
    try:
        region = ctypes.CDLL(str(Path(torch.__file__).parent / "lib/libtorch_cpu.so")).GOMP_parallel
    except (OSError, AttributeError):  # another system, or PyTorch without OpenMP
        return None
    region.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    region.restype = None
    return region
