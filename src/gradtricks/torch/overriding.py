"""One function's value with another's gradient.

Forward ``y = forward(x)``; backward ``dL/dx = dL/dy * d gradient_of(x) / dx``, or the rule of an operator.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from gradtricks._core.checks import check_callable
from gradtricks._core.overriding import OPERATORS, by_operator
from gradtricks.torch._edits import Rule, intercept, substitute
from gradtricks.torch._modes import stopped
from gradtricks.torch._tensors import as_edited
from gradtricks.torch.discretizing import paired

Gradient = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def override_gradient(forward: Callable[..., Any], gradient_of: Callable[..., Any]) -> Callable[..., Any]:
    """The value of ``forward``; the gradient of ``gradient_of``.

    Both are called once in each forward pass, with the same arguments. Whatever ``gradient_of`` depends on
    gets its gradient: tensors among the arguments, and parameters that it closes over. What only ``forward``
    depends on gets none. Where both draw random numbers, they draw different ones.

    Args:
        forward: Takes anything, returns a tensor or a structure (tuple, list, dict) of tensors.
        gradient_of: Takes the same and returns floating-point tensors of the same shapes in the same
            structure. It has to be differentiable.

    Returns:
        A function of the same arguments. Its values and their dtypes are those of ``forward``, bit for bit;
        integers and booleans are converted to the dtype of ``gradient_of``.

    Example:
        >>> sign = override_gradient(torch.sign, torch.tanh)
        >>> x = torch.tensor([0.0, 3.0], requires_grad=True)
        >>> y = sign(x)
        >>> y.tolist(), [round(g, 2) for g in torch.autograd.grad(y.sum(), x)[0].tolist()]
        ([0.0, 1.0], [1.0, 0.01])
    """
    check_callable("forward", forward)
    check_callable("gradient_of", gradient_of)

    def overridden(*args: Any, **kwargs: Any) -> Any:
        hard, soft = forward(*args, **kwargs), gradient_of(*args, **kwargs)
        return paired("what forward returns", hard, "what gradient_of returns", soft)

    return overridden


def gradient_override_map(
    gradients: Mapping[Callable[..., Any], Gradient],
) -> AbstractContextManager[None]:
    """Within the block, each operator in the map keeps its value and gets the given gradient.

    What counts is where the operator is called, not where backpropagation happens. The map follows the calls
    of its own thread; a compiled function is compiled anew for each map it is called under, and keeps the
    rules for the life of the process, so make a map once. Of nested maps the innermost that names an operator
    wins. Don't `yield` or `await` in a block.

    Unseen is what runs in C++: composites such as `silu`, and TorchScript, keep their own gradients. So is a
    function whose activations are recomputed (`torch.utils.checkpoint`), when it is called again during the
    backward pass: an error, or with ``use_reentrant=True`` silently the operator's own gradient. Enter the
    map inside that function.

    Args:
        gradients: From an operator, given as the framework's function (`torch.relu`), to
            ``gradient(cotangent, output, x)``, which returns the gradient of ``x``. All spellings count as
            one: methods, modules, in-place versions. Operators are abs, ceil, cos, elu, exp, floor,
            leaky_relu, log, relu, relu6, round, selu, sigmoid, sign, sin, softplus, sqrt, tanh; for any other
            function use `override_gradient`. Functions of the framework that hold one inside, such as an
            LSTM with its sigmoids, are refused where they are known.

    Returns:
        A context manager, to be entered as often as you like.

    Raises:
        NotImplementedError: Within the block, under `torch.export`; or the map is made while compiling,
            rather than before.
        RuntimeError: In forward mode.

    References:
        ``tf.Graph.gradient_override_map``; guided backpropagation, https://arxiv.org/abs/1412.6806.

    Example:
        >>> def guided(cotangent, output, x):
        ...     return torch.where(output > 0, cotangent.clamp(min=0), 0)
        >>> x = torch.tensor([-1.0, 2.0, 3.0], requires_grad=True)
        >>> with gradient_override_map({torch.relu: guided}):
        ...     y = torch.nn.functional.relu(x) * torch.tensor([1.0, 1.0, -1.0])
        >>> torch.autograd.grad(y.sum(), x)[0].tolist()
        [0.0, 1.0, 0.0]
    """
    named = by_operator(gradients, _NAMES, "PyTorch")
    if torch.compiler.is_compiling():
        raise NotImplementedError(
            "gradient_override_map can't be made while compiling; remedy: make it outside of the compiled "
            "function, and enter it outside or inside"
        )
    _prepare_compiler()
    return _OverrideMap(named)


class _OverrideMap(TorchFunctionMode):
    def __init__(self, gradients: dict[str, Gradient]) -> None:
        super().__init__()
        rules = {name: _rule(gradient) for name, gradient in gradients.items()}
        # By the functions by which each operator is called.
        self.rules = {spelling: rule for name, rule in rules.items() for spelling in _spellings(name)}
        self.fused = {fused: name for name in gradients for fused in _fused(name)}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in self.fused:
            raise NotImplementedError(
                f"gradient_override_map can't reach the {self.fused[func]} within {func.__name__}; "
                "remedy: build the layer from single operators"
            )
        if func not in self.rules:
            return func(*args, **kwargs)
        return _call(func, self.rules[func], *args, **kwargs)


def _call(func: Any, rule: Rule, *args: Any, **kwargs: Any) -> torch.Tensor:
    if torch.compiler.is_exporting():
        raise NotImplementedError(
            "gradient_override_map can't be exported, because an exported program keeps no gradients; "
            "remedy: export outside of the block"
        )
    x, *options = args if args else [kwargs.pop(name) for name in ("input", "self") if name in kwargs]
    if "out" in kwargs or not (x.dtype.is_floating_point or x.dtype.is_complex):
        return func(x, *options, **kwargs)
    in_place = func in _IN_PLACE or kwargs.get("inplace", False) or any(option is True for option in options)
    source = x.clone() if in_place else x
    output = func(stopped(source).clone() if in_place else stopped(source), *options, **kwargs)
    overridden = _overridden(source, output, rule)
    return x.copy_(overridden) if in_place else overridden


def _overridden(x: torch.Tensor, output: torch.Tensor, rule: Rule) -> torch.Tensor:
    # The compiler wants different tensors.
    return substitute(output, intercept(x, rule, x.view_as(x), output, tracked=True))


def _rule(gradient: Gradient) -> Rule:
    def rule(cotangent: torch.Tensor, x: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        # The output is a function of x too, whose gradient is overridden in its turn.
        y = _overridden(x, output, rule) if torch.is_grad_enabled() else output
        return as_edited("the gradient's result", gradient(cotangent, y, x), x)

    return rule


@cache
def _prepare_compiler() -> None:
    # The compiler hides in-place functions (torch.relu_) from a map unless they are listed, and takes seconds
    # to import.
    from torch._dynamo.variables.torch import get_overridable_functions

    get_overridable_functions().update(_IN_PLACE)


_OWNERS = (torch, torch.Tensor, functional, torch.special, torch._C._nn)
_OTHER_NAMES = {"abs": ["absolute", "__abs__"], "sigmoid": ["expit"]}
_POOLS = ["lp_pool1d", "lp_pool2d", "lp_pool3d"]
_GATED = ["gru", "gru_cell", "lstm", "lstm_cell"]
# A function of the framework that calls operators inside calls them unseen by the map that saw it.
_FUSED = {
    "abs": ["l1_loss", *_POOLS, "softsign"],
    "log": ["gaussian_nll_loss", "gumbel_softmax"],
    "relu": [*_POOLS, "rnn_relu", "rnn_relu_cell"],
    "sigmoid": _GATED,
    "sign": _POOLS,
    "tanh": [*_GATED, "rnn_tanh", "rnn_tanh_cell", "tanhshrink"],
}


def _spellings(name: str, *, suffixes: tuple[str, ...] = ("", "_")) -> Iterator[Any]:
    for spelled in [base + suffix for base in (name, *_OTHER_NAMES.get(name, [])) for suffix in suffixes]:
        yield from (getattr(owner, spelled) for owner in _OWNERS if hasattr(owner, spelled))
        packet = getattr(torch.ops.aten, spelled, None)
        if packet is not None:
            yield from (packet, *(getattr(packet, overload) for overload in packet.overloads()))


_NAMES = {spelling: name for name in OPERATORS for spelling in _spellings(name)}
_IN_PLACE = {spelling for name in OPERATORS for spelling in _spellings(name, suffixes=("_",))}


def _fused(name: str) -> list[Any]:
    return [getattr(torch, fused, None) or getattr(functional, fused) for fused in _FUSED.get(name, [])]
