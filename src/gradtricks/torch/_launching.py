"""Masked steps of Adam in one launch on a GPU, where Triton is there and agrees with PyTorch's operations."""

import math
import warnings
from collections.abc import Callable
from functools import cache, reduce
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from gradtricks._core import kernels
from gradtricks._core.masking import one_minus_exp
from gradtricks.torch._addresses import is_plain

Adam = Callable[..., Any]

_WIDE = torch.float32, torch.float64
_FLOATING = *_WIDE, torch.float16, torch.bfloat16


def fits_a_launch(tensors: list[Any], step: torch.Tensor) -> bool:
    """Say whether one launch can take a step of these, which are a row of `launch`."""
    parameter, gradient, m, v, _, own_steps, _ = tensors
    if torch.compiler.is_compiling() or not all(t is None or is_plain(t) for t in tensors):
        return False
    # What is captured in a CUDA graph would find other addresses in the table.
    if not (parameter.is_cuda and _has_triton()) or torch.cuda.is_current_stream_capturing():
        return False
    dtypes_fit = {parameter.dtype, gradient.dtype} <= {*_FLOATING} and m.dtype == v.dtype in _WIDE
    counts_fit = step.dtype == torch.float32 and (own_steps is None or own_steps.dtype == torch.int32)
    # A gradient with gaps is copied.
    known = [t for t in tensors if t is not None and t is not gradient]
    in_place = all(t.is_contiguous() and not t.is_neg() and t.device == gradient.device for t in known)
    return dtypes_fit and counts_fit and in_place


def can_launch(
    plain: Callable[..., None], adam: Adam, rows: list[list[Any]], is_finite: torch.Tensor | None
) -> bool:
    """Say whether a launch has done what ``plain`` does with ``adam`` to arrays such as these.

    This is tried once in a process for each device and each set of dtypes, and then waits for the device. A
    launch that raised or gave other numbers has warned, and isn't tried again.
    """
    *tensors, step = rows[0]
    dtypes = tuple(None if t is None else t.dtype for t in tensors)
    return _agrees(plain, adam, tensors[0].device, dtypes, not step.is_cpu, is_finite is not None)


def launch(
    rows: list[list[Any]],
    rate: float | torch.Tensor,
    options: dict[str, Any],
    is_finite: torch.Tensor | None,
) -> None:
    """Take a step of Adam in place, in one launch.

    Each row: parameter, gradient, both moments, the largest second moment or None, steps of each element or
    None, mask, and the steps of the parameter, which are left to be counted. All rows have the same dtypes.
    """
    parameter, gradient, m, _, largest, own_steps, _, step = rows[0]
    wide = reduce(torch.promote_types, [parameter.dtype, gradient.dtype, m.dtype])
    names = [str(dtype).removeprefix("torch.") for dtype in (parameter.dtype, gradient.dtype, m.dtype, wide)]
    _, doublings, most = one_minus_exp(names[-1])
    betas = options["beta_1"], options["beta_2"]
    numbers = [most, *(-math.log(beta) / 2**doublings if beta else most for beta in betas)]
    numbers += [x for beta in betas for x in (beta, 1 - beta)]
    numbers += [-1 if options["maximize"] else 1, options["l2"], options["weight_decay"], options["epsilon"]]
    there = rate.double() if isinstance(rate, torch.Tensor) and not rate.is_cpu else None
    numbers.append(float(rate) if there is None else 0.0)

    gradients = [row[1].resolve_neg().contiguous() for row in rows]  # kept until the launch
    table, blocks = np.array(numbers, np.float64).view(np.int64).tolist(), 0
    for row, dense in zip(rows, gradients):
        tensors = [row[0], dense, *row[2:-1]]
        addresses = [0 if t is None else t.data_ptr() for t in tensors]
        table += [blocks, dense.numel(), *addresses, int(row[-1]) if step.is_cpu else row[-1].data_ptr()]
        blocks += -(-dense.numel() // kernels.launches.BLOCK)
    # From pinned memory, since any other copy would wait.
    pinned = torch.tensor(table, device="cpu", pin_memory=parameter.device.type == "cuda")
    memory = pinned.to(parameter.device, non_blocking=True)
    given = memory[: len(numbers)].view(torch.float64)
    with torch.cuda.device_of(parameter):
        kernels.launches.masked_adam_steps(
            memory[len(numbers) :],
            given,
            given[-1:] if there is None else there,
            None if is_finite is None else is_finite.view(torch.int8),
            blocks=blocks,
            num_rows=len(rows),
            dtypes=names,
            largest=largest is not None,
            own=own_steps is not None,
            counted=not step.is_cpu,
        )
    # Autograd must notice that the parameters were edited.
    torch.autograd.graph.increment_version([row[0] for row in rows])


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


@cache
def _agrees(
    plain: Callable[..., None],
    adam: Adam,
    device: torch.device,
    dtypes: tuple[torch.dtype | None, ...],
    counted: bool,
    skips: bool,
) -> bool:
    options = {"beta_1": 0.9, "beta_2": 0.99, "epsilon": 1e-8, "l2": 0.1, "weight_decay": 0.1}
    is_finite = torch.ones((), dtype=torch.bool, device=device) if skips else None
    arguments = 0.1, options | {"maximize": True}, is_finite
    one, other = ([_trial(size, device, dtypes, counted) for size in (5, 1500)] for _ in range(2))
    plain(adam, one, *arguments)
    try:
        launch(other, *arguments)
        pairs = [pair for rows in zip(one, other) for pair in zip(*rows) if pair[0] is not None]
        agrees = all(torch.allclose(*pair, rtol=_tolerance(pair[0]), atol=1e-6) for pair in pairs)
        fault = "its numbers are others"
    except Exception as error:  # of a compiler or a driver, whatever they raise
        agrees, fault = False, f"it raises {type(error).__name__}: {error}"
    if not agrees:
        said = "MaskedAdam doesn't take its steps in one launch of Triton here, which would be faster"
        warnings.warn(f"{said}, since in a trial on {device} {fault}", stacklevel=2)
    return agrees


def _trial(
    size: int, device: torch.device, dtypes: tuple[torch.dtype | None, ...], counted: bool
) -> list[Any]:
    x = torch.arange(size, device=device) / size
    values = [x + 1, x - 0.5, 1 - x, x + 0.1, 1.1 - x, 100 * x, (7 * x) % 1 < 0.5]
    row: list[Any] = [None if dtype is None else value.to(dtype) for value, dtype in zip(values, dtypes)]
    return [*row, torch.full((), 3.0, device=device if counted else "cpu")]


def _tolerance(tensor: torch.Tensor) -> float:
    return max(1e-5, 2 * torch.finfo(tensor.dtype).eps) if tensor.is_floating_point() else 0.0
