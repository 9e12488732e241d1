"""Adam for a changing set of trainable elements.

Where an element is trainable, and t counts the steps that it has taken itself::

    m <- beta_1 m + (1 - beta_1) g        v <- beta_2 v + (1 - beta_2) g^2
    parameter <- parameter - learning_rate (m / (1 - beta_1^t)) / (sqrt(v / (1 - beta_2^t)) + epsilon)

Where it is frozen, nothing of it changes: parameter, m, v and t stay as they are.
"""

from collections.abc import Callable, Iterable
from functools import reduce
from typing import Any, Literal

import torch

from gradtricks._core.checks import check_broadcast, check_shape
from gradtricks._core.masking import check_options
from gradtricks.torch._adam_state import SHAPED, complete, complete_for, loaded, may_differ
from gradtricks.torch._in_place import step_in_place
from gradtricks.torch._masked_optimizer import MaskedOptimizer as MaskedOptimizer
from gradtricks.torch._masked_optimizer import check_given, check_rate, check_state, dense, loss_of, mask_for
from gradtricks.torch._rounded import check_rounding, step_rounded
from gradtricks.torch._tensors import (
    as_floating,
    as_integers,
    as_mask,
    as_moments,
    at_least_float32,
    filled,
)

_CPU = torch.device("cpu")


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
        v: Second moments, likewise. Moments keep their dtypes, and the widest is computed in.
        step: Steps that each element has taken so far, integer, broadcasts to the shape of ``parameter``.
        trainable_mask: True where an element may move; bool, broadcasts to the shape of ``parameter``.
        v_max: Largest second moments so far; given, it selects AMSGrad.
        learning_rate: Size of a step; a tensor broadcasts to the shape of ``parameter``, and its values
            aren't checked.
        beta_1: Decay of the first moment, within [0, 1).
        beta_2: Decay of the second moment, within [0, 1).
        epsilon: Added to the root of the second moment, after its bias correction.
        weight_decay: Decoupled (AdamW).
        maximize: Climb instead of descend.

    Returns:
        ``parameter, m, v, step, v_max`` after the step; ``v_max`` is None where it was None.

    References:
        Adam, https://arxiv.org/abs/1412.6980; AdamW, https://arxiv.org/abs/1711.05101;
        AMSGrad, https://openreview.net/forum?id=ryQu7f-RZ.
    """
    parameter, gradient = as_floating("parameter", parameter), as_floating("gradient", gradient)
    m, v, step = as_moments("m", m), as_moments("v", v), as_integers("step", step)
    check_broadcast("step", step.shape, parameter.shape, "parameter")
    largest = v if v_max is None else as_moments("v_max", v_max)
    for name, tensor in {"gradient": gradient, "m": m, "v": v, "v_max": largest}.items():
        check_shape(name, tensor.shape, parameter.shape, "parameter")
    options = _as_options(learning_rate, beta_1, beta_2, epsilon, weight_decay)
    learning_rate, beta_1, beta_2, epsilon, weight_decay = options
    if isinstance(learning_rate, torch.Tensor):
        check_broadcast("learning_rate", learning_rate.shape, parameter.shape, "parameter")
    trainable_mask = as_mask(trainable_mask, parameter)
    dtypes = m.dtype, v.dtype, largest.dtype
    wide = reduce(torch.promote_types, dtypes, torch.promote_types(parameter.dtype, gradient.dtype))
    m, v, largest = m.to(wide), v.to(wide), largest.to(wide)
    # What a frozen element's gradient holds must not reach anything, the backward pass included.
    gradient = torch.where(trainable_mask, -gradient if maximize else gradient, 0).to(wide)
    new_m = torch.where(trainable_mask, beta_1 * m + (1 - beta_1) * gradient, m)
    new_v = torch.where(trainable_mask, beta_2 * v + (1 - beta_2) * gradient.square(), v)
    largest = new_v if v_max is None else torch.where(trainable_mask, torch.maximum(largest, new_v), largest)
    new_step = step + 1
    correction_1, correction_2 = _bias_correction(beta_1, new_step, m), _bias_correction(beta_2, new_step, m)
    # Quotients are dear, so this has one: numerator and denominator are taken times correction_2.
    second = largest * correction_2
    moving = second > 0  # at 0 the root has no slope; there it counts as 0
    root = torch.where(moving, torch.where(moving, second, 1).sqrt(), 0)
    root = torch.where(trainable_mask, correction_1 * (root + epsilon * correction_2), 1)
    update = learning_rate * correction_2 * new_m / root
    moved = at_least_float32(parameter) * (1 - learning_rate * weight_decay) - update
    new_parameter = torch.where(trainable_mask, moved.to(parameter.dtype), parameter)
    new_m, new_v, largest = (x.to(dtype) for x, dtype in zip((new_m, new_v, largest), dtypes))
    new_step = torch.where(trainable_mask, new_step, step)
    return new_parameter, new_m, new_v, new_step, None if v_max is None else largest


class MaskedAdam(torch.optim.Optimizer):
    """Adam in which elements can be frozen and thawed at every step.

    Zeroing a gradient doesn't freeze under Adam: the moments of earlier steps keep moving the element.
    Here a frozen element keeps everything, and thaws as if nothing had happened.

    Arguments and state are those of ``torch.optim.Adam`` but for ``foreach``, ``fused`` and
    ``differentiable``; its ``state_dict`` can be loaded. ``step`` counts the parameter's steps. Besides, the
    state has ``trainable_mask`` and, once that has changed, ``own_steps``, the count of each element; until
    then all trainable ones have taken ``step``. Contiguous parameters are updated in one pass over memory,
    in place: float32 and float64 on a CPU, and all of a group in one launch on a GPU that Triton knows,
    where frozen rows aren't read. Before its first launch a process compares one with PyTorch's operations,
    which waits for the device. Elsewhere, and while a CUDA graph is captured, small parameters are laid end
    to end, so that they take no more operations than one.

    With ``rounding`` a step of parameters in bfloat16 or float16 is taken in float32, from copies that live
    as long as the step, and then rounded: ``"stochastic"`` by `round_stochastically`, with noise of the
    default generator, which replicas have to seed alike; ``"compensated"`` by `add_compensated`, which keeps
    ``compensation`` in the state, in bfloat16. ``None`` rounds to nearest, and loses small steps.

    With ``capturable=True`` counts lie on the device of their parameter, so that a CUDA graph may capture a
    step, and a GradScaler leaves it to the step to unscale gradients and to skip, without a wait. Tests
    have a device without values for that, and none has captured a step on a GPU.

    A plain mask of a DTensor is distributed as its parameter is. Off the CPU, and for a DTensor, any mask
    that follows the first step makes ``own_steps``, since to compare it with the one before would wait.

    Example:
        >>> weight = torch.nn.Parameter(torch.zeros(2))
        >>> optimizer = MaskedAdam([weight], lr=0.1)
        >>> optimizer.set_trainable_mask(weight, torch.tensor([True, False]))
        >>> weight.grad = torch.ones(2)
        >>> optimizer.step()
        >>> weight.data
        tensor([-0.1000,  0.0000])
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | torch.Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        capturable: bool = False,
        decoupled_weight_decay: bool = False,
        rounding: Literal["stochastic", "compensated"] | None = None,
    ) -> None:
        options: dict[str, Any] = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        options |= {"amsgrad": amsgrad, "maximize": maximize, "capturable": capturable, "rounding": rounding}
        super().__init__(params, options | {"decoupled_weight_decay": decoupled_weight_decay})

    @property
    def _step_supports_amp_scaling(self) -> bool:  # which a GradScaler asks
        return all(group["capturable"] for group in self.param_groups)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, with options of their own."""
        options = {**self.defaults, **param_group}
        check_rate(options["lr"])
        _as_options(options["lr"], *options["betas"], options["eps"], options["weight_decay"])
        super().add_param_group(param_group)
        for parameter in param_group["params"]:
            check_rounding(options["rounding"], parameter)

    def set_trainable_mask(self, parameter: torch.Tensor, trainable_mask: torch.Tensor | None) -> None:
        """Say which elements of a parameter may move, from the next step on.

        Args:
            parameter: One of the optimizer's parameters.
            trainable_mask: True where an element may move; bool, broadcasts to the shape of ``parameter``.
                None lets all of them move. One on another device is copied, which waits.
        """
        check_given(self, parameter)
        if trainable_mask is None:
            trainable_mask = torch.ones((), dtype=torch.bool, device=parameter.device)
        mask, state = mask_for(parameter, trainable_mask), self.state[parameter]
        if "exp_avg" not in state:  # before the first step
            state["trainable_mask"] = mask.expand_as(parameter).clone(memory_format=torch.contiguous_format)
            return
        self._state_of(parameter)
        old = state["trainable_mask"]
        # From the first change on, elements differ in how many steps they have taken.
        if "own_steps" not in state and may_differ(old, mask, state["step"]):
            state["own_steps"] = old.int() * state["step"].int()
        old.copy_(mask)  # memory that is new costs more than the copy

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step with the gradients that the parameters hold, and return what ``closure`` returned."""
        # What the host does, and the counts that it keeps, would be those of the capture.
        eager = not torch.compiler.is_compiling() and not self._step_supports_amp_scaling
        if eager and torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                "MaskedAdam.step() must run outside of a CUDA graph unless all groups are capturable; got a "
                "stream that is capturing; remedy: MaskedAdam(..., capturable=True), or capture the forward "
                "and the backward pass, and take the step after the replay"
            )
        loss = loss_of(closure)
        scale, found_inf = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        if found_inf is not None and found_inf.is_cpu:
            if found_inf:
                return loss
            found_inf = None
        for group in self.param_groups:
            check_rate(group["lr"])
            pairs = [(p, gradient) for p in group["params"] if (gradient := p.grad) is not None]
            given = [(p, dense(gradient), self._checked_state_of(p, group)) for p, gradient in pairs]
            if scale is not None and pairs:
                torch._foreach_div_([gradient for _, gradient in pairs], scale)
            take = step_rounded if group["rounding"] else step_in_place
            take(masked_adam_step, given, group, found_inf)
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what ``state_dict()`` of an optimizer with the same groups returned, that of Adam too."""

        def check(_: torch.optim.Optimizer, given: dict[str, Any]) -> None:
            nonlocal state_dict
            state_dict = given  # as other hooks have made it
            for group, saved_group in zip(self.param_groups, given["param_groups"]):
                for parameter, index in zip(group["params"], saved_group["params"]):
                    check_state(SHAPED, given["state"].get(index, {}), parameter)

        with self.register_load_state_dict_pre_hook(check):
            super().load_state_dict(state_dict)
        # The base class casts state to the parameter's dtype: fatal for masks, counts and wide moments.
        for group, saved_group in zip(self.param_groups, state_dict["param_groups"], strict=True):
            for name, default in self.defaults.items():
                group.setdefault(name, default)  # of an older Adam
            for parameter, index in zip(group["params"], saved_group["params"], strict=True):
                for name, value in state_dict["state"].get(index, {}).items():
                    place = self._place_of_steps(parameter)
                    self.state[parameter][name] = loaded(name, value, parameter, place)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Become the copy."""
        super().__setstate__(state)
        self.defaults.pop("differentiable", None)  # the base class adds it, for optimizers that have it

    def _checked_state_of(self, parameter: torch.Tensor, group: dict[str, Any]) -> dict[str, Any]:
        check_rounding(group["rounding"], parameter)
        state = self._state_of(parameter)
        complete_for(group, state, parameter)
        return state

    def _state_of(self, parameter: torch.Tensor) -> dict[str, Any]:
        return complete(self.state[parameter], parameter, self._place_of_steps(parameter))

    def _place_of_steps(self, parameter: torch.Tensor) -> torch.device:
        if parameter.is_cpu or not self._step_supports_amp_scaling:
            return _CPU
        return parameter.device


def _as_options(learning_rate: float | torch.Tensor, *others: float) -> list[Any]:
    if isinstance(learning_rate, torch.Tensor):
        return [learning_rate, *check_options(0.0, *others)[1:]]
    return check_options(learning_rate, *others)


def _bias_correction(beta: float, step: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    # 1 - beta**t in float32 would lose four digits at t = 1; the steps differ between elements.
    return -torch.expm1(step.to(like.dtype) * filled(beta - 1, like.dtype, like.device).log1p())
