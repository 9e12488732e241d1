"""Adam for a changing set of trainable elements."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch

from gradtricks._core.checks import check_broadcast, check_number, check_shape
from gradtricks._core.kernels.bias_corrections import table_length
from gradtricks.torch._tensors import as_floating, as_tensor, at_least_float32

_LONGEST_TABLE = 2**22  # a decay nearer to 1 would need a longer one


def masked_adam_step(
    parameter: torch.Tensor,
    gradient: torch.Tensor,
    m: torch.Tensor,
    v: torch.Tensor,
    step: torch.Tensor,
    trainable_mask: torch.Tensor,
    *,
    v_max: torch.Tensor | None = None,
    learning_rate: float | torch.Tensor = 1e-3,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-8,
    weight_decay: float = 0.0,
    maximize: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Take one Adam step on the trainable elements; leave everything of the frozen ones as it was.

    A frozen element keeps its parameter, moments and own step count, whatever its gradient (NaN too), and
    thaws as if nothing had happened. A pure function: nothing is edited in place.

    Args:
        parameter: Any shape, floating-point.
        gradient: Shape of ``parameter``.
        m: First moments, shape of ``parameter``, float32 or wider.
        v: Second moments, likewise.
        step: Steps that each element has taken so far, shape of ``parameter``, int32.
        trainable_mask: True where an element may move; bool, broadcasts to the shape of ``parameter``.
        v_max: Largest second moments so far; given, it selects AMSGrad.
        learning_rate: Size of a step.
        beta_1: Decay of the first moment, within [0, 1).
        beta_2: Decay of the second moment, within [0, 1).
        epsilon: Added to the root of the second moment, after its bias correction.
        weight_decay: Decoupled (AdamW).
        maximize: Climb instead of descend.

    Returns:
        ``parameter, m, v, step, v_max`` after the step; ``v_max`` is None where it was None.

    Raises:
        TypeError: A tensor is of the wrong dtype, or isn't one; an option isn't a number.
        ValueError: A shape isn't that of ``parameter``, ``trainable_mask`` doesn't broadcast to it, or an
            option is out of range.

    References:
        Adam, https://arxiv.org/abs/1412.6980; AdamW, https://arxiv.org/abs/1711.05101;
        AMSGrad, https://openreview.net/forum?id=ryQu7f-RZ.
    """
    parameter, gradient = as_floating("parameter", parameter), as_floating("gradient", gradient)
    m, v, step = as_floating("m", m), as_floating("v", v), _as_counts(step)
    largest = v if v_max is None else as_floating("v_max", v_max)
    for name, tensor in {"gradient": gradient, "m": m, "v": v, "step": step, "v_max": largest}.items():
        check_shape(name, tensor.shape, parameter.shape, "parameter")
    _check_options(learning_rate, beta_1, beta_2, epsilon, weight_decay)
    trainable_mask = _as_mask(trainable_mask, parameter)
    # What a frozen element's gradient holds must not reach anything, the backward pass included.
    gradient = at_least_float32(torch.where(trainable_mask, -gradient if maximize else gradient, 0))
    new_m = beta_1 * m + (1 - beta_1) * gradient
    new_v = beta_2 * v + (1 - beta_2) * gradient.square()
    new_v_max = None if v_max is None else torch.maximum(v_max, new_v)
    new_step = step + 1
    second = (new_v if new_v_max is None else new_v_max) / _bias_correction(beta_2, new_step, m)
    moving = second > 0  # at 0 the root has no slope; there it counts as 0
    root = torch.where(moving, torch.where(moving, second, 1).sqrt(), 0)
    update = learning_rate * new_m / _bias_correction(beta_1, new_step, m) / (root + epsilon)
    moved = at_least_float32(parameter) * (1 - learning_rate * weight_decay) - update
    return (
        torch.where(trainable_mask, moved.to(parameter.dtype), parameter),
        torch.where(trainable_mask, new_m, m),
        torch.where(trainable_mask, new_v, v),
        torch.where(trainable_mask, new_step, step),
        None if v_max is None or new_v_max is None else torch.where(trainable_mask, new_v_max, v_max),
    )


class MaskedAdam(torch.optim.Optimizer):
    """Adam in which elements can be frozen and thawed at every step.

    Zeroing a gradient doesn't freeze under Adam: the moments of earlier steps keep moving the element.
    Here a frozen element keeps everything, and thaws as if nothing had happened.

    On a CPU, contiguous float32 and float64 parameters are updated in one pass over memory, in place, and
    take the options' rounding from it. The count in the state, ``step``, was true when the mask was set;
    trainable elements have taken ``since`` more.

    Args:
        params: Parameters or groups, as for every optimizer of the framework. A group may override the
            options; its learning rate is called ``lr``, so that the framework's schedulers find it.
        learning_rate: Size of a step.
        beta_1: Decay of the first moment, within [0, 1).
        beta_2: Decay of the second moment, within [0, 1).
        epsilon: Added to the root of the second moment.
        weight_decay: Decoupled (AdamW); never moves a frozen element.
        amsgrad: Divide by the largest second moment so far.
        maximize: Climb instead of descend.

    Raises:
        TypeError: An option isn't a number.
        ValueError: An option is out of range.

    Example:
        >>> weight = torch.nn.Parameter(torch.zeros(2))
        >>> optimizer = MaskedAdam([weight], learning_rate=0.1)
        >>> optimizer.set_trainable_mask(weight, torch.tensor([True, False]))
        >>> weight.grad = torch.ones(2)
        >>> optimizer.step()
        >>> weight.data
        tensor([-0.1000,  0.0000])
    """

    def __init__(
        self,
        params: Iterable[Any],
        learning_rate: float = 1e-3,
        *,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        maximize: bool = False,
    ) -> None:
        options = {"lr": learning_rate, "beta_1": beta_1, "beta_2": beta_2, "epsilon": epsilon}
        options |= {"weight_decay": weight_decay, "amsgrad": bool(amsgrad), "maximize": bool(maximize)}
        _check_group(options)
        super().__init__(params, options)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, with options of their own.

        Args:
            param_group: ``params``, and options that differ from the optimizer's.

        Raises:
            TypeError: An option isn't a number.
            ValueError: An option is unknown or out of range.
        """
        unknown = sorted(param_group.keys() - {"params", "param_names", "initial_lr", *self.defaults})
        if unknown:
            raise ValueError(f"a group may hold params, {', '.join(self.defaults)}; got {', '.join(unknown)}")
        _check_group({**self.defaults, **param_group})
        super().add_param_group(param_group)

    def set_trainable_mask(self, parameter: torch.Tensor, trainable_mask: torch.Tensor | None) -> None:
        """Say which elements of a parameter may move, from the next step on.

        Args:
            parameter: One of the optimizer's parameters.
            trainable_mask: True where an element may move; bool, broadcasts to the shape of ``parameter``.
                None lets all of them move.

        Raises:
            TypeError: ``trainable_mask`` isn't a bool tensor.
            ValueError: ``parameter`` isn't the optimizer's, or the mask doesn't broadcast to its shape.
        """
        if not any(parameter is p for group in self.param_groups for p in group["params"]):
            raise ValueError("parameter must be one that the optimizer was given; got another tensor")
        if trainable_mask is None:
            trainable_mask = torch.tensor(True)
        trainable_mask = _as_mask(trainable_mask, parameter)
        state = self._state_of(parameter)
        _settle(state)
        state["trainable_mask"].copy_(trainable_mask)  # memory that is new costs more than the copy

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step with the gradients that the parameters hold.

        Args:
            closure: Evaluates the model and returns the loss, as for every optimizer of the framework.

        Returns:
            What ``closure`` returned, or None.

        Raises:
            TypeError: A gradient is sparse or complex.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what ``state_dict()`` returned.

        Args:
            state_dict: Of an optimizer with the same groups.
        """
        super().load_state_dict(state_dict)
        # The base class casts state to the parameter's dtype: fatal for masks, counts and wide moments.
        indices = (index for group in state_dict["param_groups"] for index in group["params"])
        parameters = (parameter for group in self.param_groups for parameter in group["params"])
        for index, parameter in zip(indices, parameters, strict=True):
            for name, saved in state_dict["state"].get(index, {}).items():
                if isinstance(saved, torch.Tensor):
                    self.state[parameter][name] = saved.detach().clone().to(parameter.device)

    def _update(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        gradient: torch.Tensor = parameter.grad  # type: ignore[assignment]  # step() asks before
        if gradient.layout != torch.strided:
            raise TypeError(f"gradients must be dense; got layout {gradient.layout}; remedy: sparse=False")
        state = self._state_of(parameter)
        if group["amsgrad"] and "v_max" not in state:
            state["v_max"] = torch.zeros_like(state["v"])
        options = {name: group[name] for name in ("beta_1", "beta_2", "epsilon", "weight_decay", "maximize")}
        options["learning_rate"] = group["lr"]
        v_max = state["v_max"] if group["amsgrad"] else None
        take_step = _step_in_one_pass if _can_take_one_pass(parameter, state, options) else _step_by_tensors
        take_step(parameter, gradient, state, v_max, options)

    def _state_of(self, parameter: torch.Tensor) -> dict[str, Any]:
        state = self.state[parameter]
        if not state:
            as_floating("every parameter", parameter)
            zeros = torch.zeros_like(at_least_float32(parameter), requires_grad=False)
            state["m"], state["v"] = zeros, zeros.clone()
            state["step"] = torch.zeros_like(parameter, dtype=torch.int32, requires_grad=False)
            state["trainable_mask"] = torch.ones_like(state["step"], dtype=torch.bool)
            state["since"], state["common"] = 0, 0
        return state


def _step_by_tensors(
    parameter: torch.Tensor,
    gradient: torch.Tensor,
    state: dict[str, Any],
    v_max: torch.Tensor | None,
    options: dict[str, Any],
) -> None:
    _settle(state)
    old = (parameter, state["m"], state["v"], state["step"], v_max)
    new = masked_adam_step(
        parameter,
        gradient,
        state["m"],
        state["v"],
        state["step"],
        state["trainable_mask"],
        v_max=v_max,
        **options,
    )
    for tensor, value in zip(old, new):
        if tensor is not None and value is not None:
            tensor.copy_(value)


def _step_in_one_pass(
    parameter: torch.Tensor,
    gradient: torch.Tensor,
    state: dict[str, Any],
    v_max: torch.Tensor | None,
    options: dict[str, Any],
) -> None:
    from gradtricks._core.kernels import masking  # a compiler is dear to import

    gradient = gradient.to(parameter.dtype).resolve_neg().contiguous()
    tensors = (parameter, gradient, state["m"], state["v"], v_max, state["step"], state["trainable_mask"])
    arrays: list[Any] = [None if t is None else t.detach().view(-1).numpy() for t in tensors]
    state["common"] = masking.masked_adam_step(
        *arrays,
        since=state["since"],
        common=state["common"],
        threads=torch.get_num_threads(),
        **options,
    )
    state["since"] += 1
    # Autograd must notice that the parameter was edited.
    torch.autograd.graph.increment_version(parameter)


def _can_take_one_pass(parameter: torch.Tensor, state: dict[str, Any], options: dict[str, Any]) -> bool:
    if torch.compiler.is_compiling() or parameter.dtype not in (torch.float32, torch.float64):
        return False
    tensors = [parameter, *(tensor for tensor in state.values() if isinstance(tensor, torch.Tensor))]
    if not all(
        type(t) in (torch.Tensor, torch.nn.Parameter) and t.device.type == "cpu" and t.is_contiguous()
        for t in tensors
    ):
        return False
    dtype = str(parameter.dtype).removeprefix("torch.")
    return all(table_length(options[beta], dtype) <= _LONGEST_TABLE for beta in ("beta_1", "beta_2"))


def _settle(state: dict[str, Any]) -> None:
    if state["since"]:
        state["step"].add_(state["trainable_mask"], alpha=state["since"])
    state["since"], state["common"] = 0, None


def _bias_correction(beta: float, step: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    # 1 - beta**t in float32 would lose four digits at t = 1; the steps differ between elements.
    return -torch.expm1(step.to(like.dtype) * (math.log(beta) if beta else -math.inf))


def _check_group(group: dict[str, Any]) -> None:
    _check_options(group["lr"], *(group[name] for name in ("beta_1", "beta_2", "epsilon", "weight_decay")))


def _check_options(
    learning_rate: float | torch.Tensor, beta_1: float, beta_2: float, epsilon: float, weight_decay: float
) -> None:
    if not isinstance(learning_rate, torch.Tensor):
        check_number("learning_rate", learning_rate, low=0)
    check_number("beta_1", beta_1, low=0, high=math.nextafter(1, 0))
    check_number("beta_2", beta_2, low=0, high=math.nextafter(1, 0))
    check_number("epsilon", epsilon, low=0)
    check_number("weight_decay", weight_decay, low=0)


def _as_counts(step: torch.Tensor) -> torch.Tensor:
    step = as_tensor("step", step)
    if step.dtype.is_floating_point or step.dtype.is_complex or step.dtype == torch.bool:
        raise TypeError(f"step must hold integers; got {step.dtype}; remedy: step.int()")
    return step


def _as_mask(trainable_mask: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    parameter = as_floating("parameter", parameter)
    trainable_mask = as_tensor("trainable_mask", trainable_mask)
    if trainable_mask.dtype != torch.bool:
        raise TypeError(f"trainable_mask must be bool (True = trainable); got {trainable_mask.dtype}")
    check_broadcast("trainable_mask", trainable_mask.shape, parameter.shape, "parameter")
    return trainable_mask
