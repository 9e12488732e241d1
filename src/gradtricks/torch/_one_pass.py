"""The step of `MaskedAdam` in one pass over memory, where an ordinary tensor lies in a CPU's memory."""

from typing import Any

import torch


def step_in_one_pass(
    parameter: torch.Tensor, gradient: torch.Tensor, state: dict[str, Any], group: dict[str, Any]
) -> None:
    """Take one step in place, for a parameter and state for which `can_take_one_pass` holds."""
    from gradtricks._core.kernels import masking  # a compiler is dear to import

    gradient = gradient.to(parameter.dtype).resolve_neg().contiguous()
    moments = state["exp_avg"], state["exp_avg_sq"], state["max_exp_avg_sq"] if group["amsgrad"] else None
    tensors = (parameter, gradient, *moments, state.get("own_steps"), state["trainable_mask"])
    arrays: list[Any] = [None if t is None else t.detach().view(-1).numpy() for t in tensors]
    l2, decay = l2_and_decay(group)
    masking.masked_adam_step(
        *arrays,
        step=int(state["step"]) + 1,
        learning_rate=float(group["lr"]),
        betas=group["betas"],
        epsilon=group["eps"],
        l2=l2,
        decay=decay,
        maximize=group["maximize"],
        threads=torch.get_num_threads(),
    )
    # Autograd must notice that the parameter was edited.
    torch.autograd.graph.increment_version(parameter)


def can_take_one_pass(parameter: torch.Tensor, state: dict[str, Any]) -> bool:
    """Say whether a compiled loop can read and write a parameter and its state.

    Not in a compiler, on other devices, in half precision, nor for tensors with gaps.
    """
    if torch.compiler.is_compiling() or parameter.dtype not in (torch.float32, torch.float64):
        return False
    tensors = [parameter, *(tensor for name, tensor in state.items() if name != "step")]
    return state["exp_avg"].dtype == parameter.dtype and all(
        type(t) in (torch.Tensor, torch.nn.Parameter) and t.device.type == "cpu" and t.is_contiguous()
        for t in tensors
    )


def l2_and_decay(group: dict[str, Any]) -> tuple[float, float]:
    """Return the weight decay that is added to the gradient, and the decoupled one; one of them is 0."""
    weight_decay = group["weight_decay"]
    return (0.0, weight_decay) if group["decoupled_weight_decay"] else (weight_decay, 0.0)
