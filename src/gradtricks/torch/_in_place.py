"""Steps of Adam under masks, in place: all in one pass on a CPU, compiled on a GPU, by tensors elsewhere."""

import warnings
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch

from gradtricks._core import kernels
from gradtricks.torch._addresses import has_address, is_plain, parallel_region
from gradtricks.torch._tensors import at_least_float32

_LARGE = 2**16  # elements from which on a GPU a compiled step is worth its compilation

_LOOPED = torch.float32, torch.float64

Adam = Callable[..., Any]


def step_in_place(
    adam: Adam, given: list[tuple[torch.Tensor, torch.Tensor, dict[str, Any]]], group: dict[str, Any]
) -> None:
    """Take a group's step as ``adam``, which is `masked_adam_step`, takes that of each parameter.

    ``given``: each parameter with its gradient and state.
    """
    # NumPy's numbers would stay as narrow as they are, so that 1 - lr * weight_decay may be 1.
    beta_1, beta_2, epsilon, weight_decay = map(float, (*group["betas"], group["eps"], group["weight_decay"]))
    # What is added to the gradient, and what shrinks the parameter by itself; one of them is 0.
    l2, decay = (0.0, weight_decay) if group["decoupled_weight_decay"] else (weight_decay, 0.0)
    options = {"beta_1": beta_1, "beta_2": beta_2, "epsilon": epsilon, "l2": l2, "weight_decay": decay}
    options["maximize"] = group["maximize"]
    rate = group["lr"].reshape(()) if isinstance(group["lr"], torch.Tensor) else group["lr"]
    loops: dict[torch.dtype, list[list[Any]]] = {}
    for parameter, gradient, state in given:
        largest = state["max_exp_avg_sq"] if group["amsgrad"] else None
        tensors = [parameter, gradient, state["exp_avg"], state["exp_avg_sq"], largest]
        tensors += [state.get("own_steps"), state["trainable_mask"]]
        if _fits_the_loop(tensors, state["step"]):
            loops.setdefault(parameter.dtype, []).append([*tensors, state["step"]])
        else:
            _way_of(tensors)(adam, tensors, state["step"], rate, options)
            state["step"] += 1
    for dtype, rows in loops.items():
        _in_one_pass(dtype, rows, rate, options)


def _fits_the_loop(tensors: list[Any], step: torch.Tensor) -> bool:
    if torch.compiler.is_compiling() or step.dtype != torch.float32 or not step.is_cpu:
        return False
    dtype = tensors[0].dtype  # the loop can't in half precision
    if dtype not in _LOOPED or tensors[2].dtype != dtype:
        return False
    # A gradient with gaps, or of another dtype, is copied.
    gradient = tensors[1]
    whole = all(has_address(t) for t in tensors if t is not None and t is not gradient)
    return whole and is_plain(gradient) and gradient.is_cpu


def _in_one_pass(
    dtype: torch.dtype,
    rows: list[list[Any]],
    rate: float | torch.Tensor,
    options: dict[str, Any],
) -> None:
    addresses = []
    for row in rows:
        gradient = row[1] = row[1].to(dtype).resolve_neg().contiguous()  # kept until the loop has ended
        addresses.append([gradient.numel(), *(0 if t is None else t.data_ptr() for t in row)])
    kernels.masking.masked_adam_steps(
        addresses,
        str(dtype).removeprefix("torch."),
        learning_rate=float(rate),
        threads=torch.get_num_threads(),
        parallel=parallel_region(),
        **options,
    )
    # Autograd must notice that the parameters were edited.
    torch.autograd.graph.increment_version([row[0] for row in rows])


def _way_of(tensors: list[Any]) -> Callable[..., None]:
    parameter, *_ = known = [t for t in tensors if t is not None]
    plain = all(map(is_plain, known))
    gaps = not all(t.is_contiguous() for t in known if t is not tensors[1])
    if torch.compiler.is_compiling() or gaps or not plain or not parameter.is_cuda:
        return _by_tensors
    return _compiled if parameter.numel() >= _LARGE and _can_compile() else _by_tensors


def _compiled(
    adam: Adam, tensors: list[Any], step: torch.Tensor, rate: float | torch.Tensor, options: dict[str, Any]
) -> None:
    # Numbers that change would be compiled anew.
    device = tensors[0].device
    count = torch.full((), int(step), device=device)
    if not isinstance(rate, torch.Tensor):
        rate = torch.full((), rate, dtype=torch.float64, device=device)
    _program(adam, **options)(_flat(tensors), count, rate)


@cache
def _program(adam: Adam, **options: Any) -> Callable[..., None]:
    # Isolated, since PyTorch compiles a function for eight situations, and all options share this one.
    return torch.compile(  # type: ignore[call-overload]
        partial(_replace, adam, **options), dynamic=True, isolate_recompiles=True
    )


@cache
def _can_compile() -> bool:
    try:
        torch.compile(torch.neg)(torch.ones(2, device="cuda"))
    except RuntimeError as error:  # no Triton, no C compiler, no headers of Python
        said = f"MaskedAdam is slow here, since PyTorch can't compile for the GPU: {error}"
        warnings.warn(said, stacklevel=2)
        return False
    return True


def _by_tensors(
    adam: Adam, tensors: list[Any], step: torch.Tensor, rate: float | torch.Tensor, options: dict[str, Any]
) -> None:
    _replace(adam, tensors, step.int(), rate, **options)


def _replace(
    adam: Adam,
    tensors: list[Any],
    step: torch.Tensor,
    rate: Any,
    *,
    l2: float,
    maximize: bool,
    **options: Any,
) -> None:
    parameter, gradient, m, v, v_max, own_steps, trainable_mask = tensors
    gradient = -gradient if maximize else gradient
    if l2:
        gradient = at_least_float32(gradient) + l2 * at_least_float32(parameter)
    arguments = parameter, gradient, m, v, step if own_steps is None else own_steps, trainable_mask
    new = adam(*arguments, v_max=v_max, learning_rate=rate, **options)
    for old, value in zip((parameter, m, v, own_steps, v_max), new):
        if old is not None:
            old.copy_(value)


def _flat(tensors: list[Any]) -> list[Any]:
    return [None if t is None else t.detach().resolve_neg().contiguous().view(-1) for t in tensors]
