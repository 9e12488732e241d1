"""The modes around a call: a compiler, a tracer, a transform, dual numbers; and what can't be there."""

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import get_proxy_mode


def in_plain_reverse(x: torch.Tensor) -> bool:
    """Say whether ``x`` is neither being compiled or traced nor under a functorch transform nor a dual."""
    if torch.compiler.is_compiling() or in_transform() or is_traced():
        return False
    return not is_dual(x)


def is_dual(x: torch.Tensor) -> bool:
    """Say whether ``x`` has a tangent at the level of dual numbers that is open."""
    return forward_ad._current_level >= 0 and forward_ad.unpack_dual(x).tangent is not None


def in_transform() -> bool:
    """Say whether a functorch transform is at work."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def is_traced() -> bool:
    """Say whether ``make_fx`` writes down the operations, of which a Function leaves the values only."""
    return not torch.compiler.is_compiling() and get_proxy_mode() is not None


def stopped(x: torch.Tensor) -> torch.Tensor:
    """Detach ``x``; also in what ``make_fx`` writes down, where since PyTorch 2.14 a detach is an alias."""
    return bits(x).view(x.dtype) if _loses_detach(x) else x.detach()


def overwrite(x: torch.Tensor, value: torch.Tensor) -> None:
    """Give ``x`` other values, so that who differentiates it doesn't notice."""
    if _loses_detach(x):
        bits(x).copy_(bits(value))
    else:
        x.detach().copy_(value)


def bits(x: torch.Tensor) -> torch.Tensor:
    """View a floating-point tensor as integers, which have no slope."""
    return x.view(_INTEGERS[x.dtype.itemsize])


_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _loses_detach(x: torch.Tensor) -> bool:
    return is_traced() and not torch.compiler.is_exporting() and x.is_floating_point()


def constant_to_the_compiler(function: Callable[..., Any]) -> None:
    """Let a compiler call ``function`` rather than trace it."""
    # This is all that torch.compiler.assume_constant_result does, but that one imports the whole compiler.
    vars(function)["_dynamo_marked_constant"] = True


constant_to_the_compiler(in_transform)


def refuse_compiled_duals() -> None:
    """Raise where a compiled function is called on dual numbers."""
    # What was traced has no tangents, so it would ignore the rule for them without a word. torch.func.jvp
    # within the compiled function is traced rightly.
    if torch.compiler.is_compiling() and forward_ad._current_level >= 0 and not in_transform():
        raise RuntimeError(
            "a compiled function that edits gradients must not meet dual numbers; got an open dual level; "
            "remedy: torch.func.jvp inside of the compiled function"
        )


def refuse_nested_tangents() -> None:
    """Raise in forward mode within forward mode."""
    # The second one doesn't differentiate the jvp of a Function, and says nothing.
    if _levels().count(torch._C._functorch.TransformType.Jvp) > 1:
        raise NotImplementedError(
            "a compiled loop must not meet forward mode within forward mode; got two levels; "
            "remedy: torch.func.jacrev or hessian"
        )


constant_to_the_compiler(refuse_nested_tangents)


def refuse_functionalized(slope: torch.Tensor) -> None:
    """Raise where an alias of ``slope`` is followed within what takes the gradient."""
    # Functionalization follows aliases, so that who differentiates around it would find no slope.
    if torch.compiler.is_compiling():
        return
    functorch, within = torch._C._functorch, False
    taken = not (is_traced() and torch.is_grad_enabled())  # now, and not later, of what is traced
    while functorch.is_functorch_wrapped_tensor(slope):
        within = within or functorch.is_functionaltensor(slope)
        taken = taken or functorch.is_gradtrackingtensor(slope)
        slope = functorch.get_unwrapped(slope)
        around = slope.requires_grad or forward_ad.unpack_dual(slope).tangent is not None
        if within and (around or not taken):
            raise NotImplementedError(
                "an edit of gradients must not be functionalized within what takes the gradient; got "
                "torch.func.functionalize inside; remedy: functionalize(grad(f)), not grad(functionalize(f))"
            )


def refuse_gradients_of_a_trace() -> None:
    """Raise where ``make_fx`` traces what is mapped, and the gradient is left for later."""
    only_mapped = set(_levels()) == {torch._C._functorch.TransformType.Vmap}
    if only_mapped and is_traced() and torch.is_grad_enabled():
        raise NotImplementedError(
            "a rule for gradients must be traced with its gradient where it is mapped; got torch.func.vmap "
            "and no gradient inside; remedy: vmap(grad(f)), or torch.no_grad() if none is wanted"
        )


def _levels() -> list[Any]:
    return [level.key() for level in torch._C._functorch.get_interpreter_stack() or []]
