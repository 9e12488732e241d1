"""State of MaskedAdam: what it keeps for each parameter, made and loaded."""

from typing import Any

import torch

from gradtricks.torch._addresses import is_plain
from gradtricks.torch._masked_optimizer import check_state
from gradtricks.torch._tensors import as_floating

SHAPED = "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "own_steps", "compensation", "trainable_mask"


def complete(state: dict[str, Any], parameter: torch.Tensor, place: torch.device) -> dict[str, Any]:
    """Put into a state what every one has, unless it is there, and its count of steps onto ``place``."""
    if "exp_avg" not in state:
        as_floating("every parameter", parameter)
        state["step"] = torch.zeros((), dtype=torch.float32, device=place)
        state["exp_avg"] = torch.zeros_like(parameter, dtype=_wide_dtype(parameter), requires_grad=False)
        state["exp_avg_sq"] = torch.zeros_like(state["exp_avg"])
    if "trainable_mask" not in state:  # nor has the state of torch.optim.Adam
        state["trainable_mask"] = torch.ones_like(state["exp_avg"], dtype=torch.bool)
    if state["step"].device != place:  # since the groups have become capturable, or no longer are
        state["step"] = state["step"].to(place)
    return state


def complete_for(group: dict[str, Any], state: dict[str, Any], parameter: torch.Tensor) -> None:
    """Put into a state what the options of its group need, unless it is there."""
    if group["amsgrad"] and "max_exp_avg_sq" not in state:
        state["max_exp_avg_sq"] = torch.zeros_like(state["exp_avg_sq"])
    if group["rounding"] == "compensated" and "compensation" not in state:
        # What float16 rounds away may be below float16's smallest number, but not below bfloat16's.
        state["compensation"] = torch.zeros_like(parameter, dtype=torch.bfloat16, requires_grad=False)
    check_state(("compensation",), state, parameter)


def loaded(name: str, value: object, parameter: torch.Tensor, place: torch.device) -> torch.Tensor:
    """Return a copy of what was saved under a name, in its own dtype, where it belongs."""
    saved = torch.as_tensor(value)
    if name == "step":
        return saved.detach().to(place, torch.float32, copy=True)
    dtype = saved.dtype
    if dtype.is_floating_point and name != "compensation":
        dtype = _wide_dtype(parameter)
    return saved.detach().to(parameter.device, dtype, copy=True)


def may_differ(old: torch.Tensor, new: torch.Tensor, step: torch.Tensor) -> bool:
    """Say whether a mask may be another one than the one that was trained with until now."""
    if not old.is_cpu or not is_plain(old):
        return True  # to know would wait for the device
    return bool(step) and not torch.equal(old, new.expand_as(old))


def _wide_dtype(parameter: torch.Tensor) -> torch.dtype:
    return torch.promote_types(parameter.dtype, torch.float32)
