"""A step of Adam under a mask, in place: in one pass on a CPU, compiled on a GPU, by tensors elsewhere."""

import warnings
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch

from gradtricks._core import kernels
from gradtricks.torch._tensors import at_least_float32

_LARGE = 2**16  # elements from which on a GPU a compiled step is worth its compilation

Adam = Callable[..., Any]


def step_in_place(
    adam: Adam,
    parameter: torch.Tensor,
    gradient: torch.Tensor,
    state: dict[str, Any],
    group: dict[str, Any],
) -> None:
    """Take the step of a parameter as ``adam`` takes it, which is `masked_adam_step`."""
    moments = state["exp_avg"], state["exp_avg_sq"], state["max_exp_avg_sq"] if group["amsgrad"] else None
    tensors = [parameter, gradient, *moments, state.get("own_steps"), state["trainable_mask"]]
    # NumPy's numbers would stay as narrow as they are, so that 1 - lr * weight_decay may be 1.
    beta_1, beta_2, epsilon, weight_decay = map(float, (*group["betas"], group["eps"], group["weight_decay"]))
    # What is added to the gradient, and what shrinks the parameter by itself; one of them is 0.
    l2, decay = (0.0, weight_decay) if group["decoupled_weight_decay"] else (weight_decay, 0.0)
    options = {"beta_1": beta_1, "beta_2": beta_2, "epsilon": epsilon, "l2": l2, "weight_decay": decay}
    options["maximize"] = group["maximize"]
    rate = group["lr"].reshape(()) if isinstance(group["lr"], torch.Tensor) else group["lr"]
    _way_of(tensors)(adam, tensors, state["step"], rate, options)


def _way_of(tensors: list[Any]) -> Callable[..., None]:
    parameter, _, m, *_ = known = [t for t in tensors if t is not None]
    plain = all(type(t) in (torch.Tensor, torch.nn.Parameter) for t in known)
    gaps = not all(t.is_contiguous() for t in known if t is not tensors[1])
    if torch.compiler.is_compiling() or gaps or not plain:
        return _by_tensors
    if parameter.is_cuda:
        return _compiled if parameter.numel() >= _LARGE and _can_compile() else _by_tensors
    # The loop can't in half precision.
    wide = m.dtype == parameter.dtype and parameter.dtype in (torch.float32, torch.float64)
    return _in_one_pass if wide and parameter.device.type == "cpu" else _by_tensors


def _in_one_pass(
    adam: Adam, tensors: list[Any], step: torch.Tensor, rate: float | torch.Tensor, options: dict[str, Any]
) -> None:
    parameter, gradient, *others = tensors
    gradient = gradient.to(parameter.dtype).resolve_neg().contiguous()
    arrays = [None if t is None else t.detach().numpy().reshape(-1) for t in (parameter, gradient, *others)]
    numbers = {"step": int(step) + 1, "learning_rate": float(rate), "threads": torch.get_num_threads()}
    kernels.masking.masked_adam_step(arrays, **numbers, **options)
    # Autograd must notice that the parameter was edited.
    torch.autograd.graph.increment_version(parameter)


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
