"""Any optimizer, with elements that can be frozen."""

from collections.abc import Callable, Iterable
from typing import Any

import torch

from gradtricks._core.checks import check_shape
from gradtricks.torch._tensors import as_mask


class MaskedOptimizer(torch.optim.Optimizer):
    """Any optimizer, in which elements can be frozen and thawed at every step.

    The optimizer sees 0 for a frozen element and for its gradient. After its step the element, and all
    that state tensors of the parameter's shape hold of it, are as they were. That is two copies of
    parameters and state at each step; `MaskedAdam` needs none.

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
        super().__init__([dict(group) for group in optimizer.param_groups], optimizer.defaults)
        self._share(optimizer)

    def set_trainable_mask(self, parameter: torch.Tensor, trainable_mask: torch.Tensor | None) -> None:
        """Say which elements of a parameter may move, as `MaskedAdam.set_trainable_mask` does."""
        check_given(self, parameter)
        self._masks.pop(parameter, None)
        if trainable_mask is not None:
            self._masks[parameter] = as_mask(trainable_mask, parameter).detach().clone().to(parameter.device)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step with the gradients that the parameters hold, and return what ``closure`` returned."""
        loss = loss_of(closure)
        masked = [(p, dense(p.grad), mask) for p, mask in self._masks.items() if p.grad is not None]
        before = [{n: t.clone() for n, t in self._tensors_of(p).items()} for p, _, _ in masked]
        for parameter, gradient, mask in masked:
            # State that is created at this step then knows nothing of frozen elements, their decay neither.
            parameter.masked_fill_(~mask, 0)
            parameter.grad = torch.where(mask, gradient, 0)
        try:
            self.optimizer.step()
        finally:
            for (parameter, gradient, mask), kept in zip(masked, before, strict=True):
                parameter.grad = gradient
                after = self._tensors_of(parameter)
                for name, tensor in kept.items():
                    after[name].copy_(torch.where(mask, after[name], tensor))
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
        super().__setstate__({"defaults": state["optimizer"].defaults, "_masks": state["masks"]})
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

    def _tensors_of(self, parameter: torch.Tensor) -> dict[str | None, torch.Tensor]:
        state = self.state.get(parameter, {}).items()
        shaped = {n: t for n, t in state if isinstance(t, torch.Tensor) and t.shape == parameter.shape}
        return {None: parameter, **shaped}


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
