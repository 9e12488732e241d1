"""Any optimizer, with elements that can be frozen."""

import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch

from gradtricks._core.checks import check_shape
from gradtricks.torch._freezing import Masked, frozen
from gradtricks.torch._tensors import as_mask


class MaskedOptimizer(torch.optim.Optimizer):
    """Any optimizer, in which elements can be frozen and thawed at every step.

    The optimizer sees 0 for a frozen element and for its gradient. After its step the element, and all
    that state tensors of the parameter's shape hold of it, are as they were. So parameters with a mask
    and their state are copied and put back at each step, on a CPU only the frozen rows where a mask is one
    of rows. The memory of the copies is kept on a CPU; `MaskedAdam` needs none.

    What elements share can't be frozen: a step count, by which bias corrections and decaying rates go on
    (under `MaskedAdam` each element has its own); state of another shape, such as factored moments;
    norms over parameters, which see the zeros. Sparse gradients of what has a mask are refused, and
    optimizers that want several evaluations of the model in a step, such as LBFGS, raise their own error.

    Args:
        optimizer: Has the parameters, the options and the state. Schedulers and scalers take the masked one.

    Example:
        >>> weight = torch.nn.Parameter(torch.zeros(2))
        >>> optimizer = MaskedOptimizer(torch.optim.SGD([weight], lr=0.1, momentum=0.9))
        >>> optimizer.set_trainable_mask(weight, torch.tensor([True, False]))
        >>> weight.grad = torch.ones(2)
        >>> optimizer.step()
        >>> weight.data
        tensor([-0.1000,  0.0000])
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(f"optimizer must be a torch.optim.Optimizer; got {type(optimizer).__name__}")
        self._masks: dict[torch.Tensor, torch.Tensor] = {}
        self._memory: dict[torch.dtype, torch.Tensor] = {}
        super().__init__([dict(group) for group in optimizer.param_groups], optimizer.defaults)
        self._share(optimizer)

    def set_trainable_mask(self, parameter: torch.Tensor, trainable_mask: torch.Tensor | None) -> None:
        """Say which elements of a parameter may move, as `MaskedAdam.set_trainable_mask` does."""
        check_given(self, parameter)
        self._masks.pop(parameter, None)
        if trainable_mask is not None:
            mask = mask_for(parameter, trainable_mask)
            self._masks[parameter] = _by_runs(mask, parameter).clone(memory_format=torch.contiguous_format)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step with the gradients that the parameters hold, and return what ``closure`` returned."""
        loss = loss_of(closure)
        pairs = [(p, dense(p.grad), mask) for p, mask in self._masks.items() if p.grad is not None]
        masked = [Masked(p, gradient, mask, self._shaped_state_of(p)) for p, gradient, mask in pairs]
        with frozen(masked, self.state, self._memory):
            self.optimizer.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Return that of the optimizer; a parameter's state has its ``trainable_mask`` besides.

        ``torch.distributed.checkpoint`` can't load a mask from a state dict that it has flattened.
        """
        given = self.optimizer.state_dict()
        state = dict(given["state"])
        for index, parameter in enumerate(self._parameters()):
            if parameter in self._masks:
                mask = self._masks[parameter].expand_as(parameter).clone()
                state[index] = {**state.get(index, {}), "trainable_mask": mask}
        return {**given, "state": state}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what ``state_dict()`` returned, or that of the optimizer alone, which leaves all trainable."""
        indices = [index for group in state_dict["param_groups"] for index in group["params"]]
        state, masks = dict(state_dict["state"]), {}
        for index, parameter in zip(indices, self._parameters()):
            if "trainable_mask" in state.get(index, {}):
                check_state(("trainable_mask",), state[index], parameter)
                masks[parameter] = state[index]["trainable_mask"].bool().to(parameter.device, copy=True)
                state[index] = {n: t for n, t in state[index].items() if n != "trainable_mask"}
                if not state[index]:
                    del state[index]  # optimizers take a state that isn't missing for one of theirs
        self.optimizer.load_state_dict({**state_dict, "state": state})
        self._share(self.optimizer)
        self._masks = masks

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy needs."""
        return {"optimizer": self.optimizer, "masks": self._masks}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Become the copy."""
        super().__setstate__(
            {"defaults": state["optimizer"].defaults, "_masks": state["masks"], "_memory": {}}
        )
        self._share(state["optimizer"])

    def _share(self, optimizer: torch.optim.Optimizer) -> None:
        # Schedulers and scalers change groups in place, so there must be only one of each.
        self.optimizer = optimizer
        self.defaults, self.state = optimizer.defaults, optimizer.state
        self.param_groups = optimizer.param_groups
        for name, hooks in vars(optimizer).items():
            if name.endswith(("state_dict_pre_hooks", "state_dict_post_hooks")):
                setattr(self, name, hooks)

    def _parameters(self) -> list[torch.Tensor]:
        return [parameter for group in self.param_groups for parameter in group["params"]]

    def _shaped_state_of(self, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        state, shape = self.state.get(parameter, {}).items(), parameter.shape
        return {name: t for name, t in state if isinstance(t, torch.Tensor) and t.shape == shape}


def _by_runs(mask: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    # Where one element of the mask stands for a run of elements, such as a row, there is no need of more.
    sizes = [*zip((1,) * (parameter.ndim - mask.ndim) + mask.shape, parameter.shape)]
    own = next((axis for axis, (size, whole) in enumerate(sizes) if size != whole), len(sizes))
    return mask if all(size == 1 for size, _ in sizes[own:]) else mask.expand_as(parameter)


def check_rate(rate: object) -> None:
    """Raise where a learning rate is a tensor of several elements."""
    if isinstance(rate, torch.Tensor) and rate.numel() != 1:
        raise ValueError(f"learning_rate must be a number or have one element; got shape {tuple(rate.shape)}")


def check_given(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> None:
    """Raise unless ``parameter`` is one of an optimizer's parameters."""
    known = isinstance(parameter, torch.Tensor) and parameter in optimizer.state  # without a long search
    if not known and not any(parameter is p for group in optimizer.param_groups for p in group["params"]):
        other = "another tensor" if isinstance(parameter, torch.Tensor) else type(parameter).__name__
        remedy = "; remedy: its tensor, such as the value of a Keras variable" * (other != "another tensor")
        raise ValueError(f"parameter must be one that the optimizer was given; got {other}{remedy}")


def mask_for(parameter: torch.Tensor, trainable_mask: torch.Tensor) -> torch.Tensor:
    """Return a mask on the device of ``parameter``, and as a DTensor where that is one.

    Each process has the mask of the whole parameter, and keeps its shard of it.
    """
    mask = as_mask(trainable_mask, parameter).detach().to(parameter.device)
    distributed = sys.modules.get("torch.distributed.tensor")  # imported where such tensors exist
    if distributed is None or not isinstance(parameter, distributed.DTensor):
        return mask
    if isinstance(mask, distributed.DTensor):
        return mask
    mask = mask.expand(parameter.shape).contiguous()
    place = parameter.device_mesh, parameter.placements
    return distributed.distribute_tensor(mask, *place, src_data_rank=None)


def loss_of(closure: Callable[[], Any] | None) -> Any:
    """Return what ``closure`` returns, which may differentiate."""
    with torch.enable_grad():
        return None if closure is None else closure()


def dense(gradient: torch.Tensor) -> torch.Tensor:
    """Return ``gradient`` unless it is sparse."""
    if gradient.layout != torch.strided:
        raise TypeError(f"gradients must be dense; got layout {gradient.layout}; remedy: sparse=False")
    return gradient


def check_state(names: Iterable[str], state: dict[str, Any], parameter: torch.Tensor) -> None:
    """Raise unless what stands in a state under these names has the shape of its parameter."""
    for name in names:
        if name in state:
            value = state[name]
            shape = value.shape if isinstance(value, torch.Tensor) else torch.as_tensor(value).shape
            if shape != parameter.shape:
                check_shape(name, shape, parameter.shape, "its parameter")
