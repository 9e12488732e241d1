"""The two edits of a gradient, declared to PyTorch; and compiled loops, whose slope is written by hand.

*Substitute*: the value of one tensor, the slope of another. *Intercept*: the value as it is, and what flows
back goes through a rule. Every trick that edits a gradient is one of the two, and only this module declares
gradients.

An `autograd.Function` is fast and right in plain reverse mode, and is silently ignored elsewhere. So there
are three ways. Plain reverse mode applies the Function. A compiler that would look into the Function and
forget its rule gets the application unopened. Forward mode and transforms get operations that they
differentiate by themselves.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import get_proxy_mode

Rule = Callable[..., torch.Tensor]


def substitute(value: torch.Tensor, slope: torch.Tensor) -> torch.Tensor:
    """The value of ``value``, bit for bit; all of the incoming gradient to ``slope``.

    Both are floating-point and of one shape; the values of ``slope`` aren't used. Raises NotImplementedError
    where a functionalized function is differentiated, RuntimeError where a compiled one meets dual numbers.
    """
    value = value.detach()
    if in_plain_reverse(slope):
        return _Plain.apply(slope, value, lambda gradient: gradient.to(slope.dtype))
    refuse_compiled_duals()
    _refuse_functionalized(slope)
    # Overwritten through an alias that no transform follows, so the slope doesn't notice. A sum is in every
    # batch that one of the two is in.
    y = slope.to(value.dtype) + torch.zeros_like(value)
    y.detach().copy_(value)
    return y


def intercept(
    x: torch.Tensor,
    rule: Rule,
    *tensors: torch.Tensor,
    linear: bool = False,
    tracked: bool = False,
    value: torch.Tensor | None = None,
) -> torch.Tensor:
    """The value of ``x``, bit for bit; ``rule(gradient, *tensors)`` to ``x``. A view in plain reverse mode.

    Args:
        x: Floating-point, any shape.
        rule: Returns what becomes of a gradient, in its shape. It has to be differentiable where the gradient
            is differentiated again. Under a compiled transform it can't close over tensors.
        *tensors: What the rule needs besides; they get no gradient. An edit in place before the backward
            pass raises there.
        linear: The rule is a symmetric matrix, such as a product with each element. Then it holds for
            tangents too, and can be exported; any other rule raises there.
        tracked: The gradient of the gradient reaches ``*tensors`` too.
        value: Stands instead of ``x``, in its shape and dtype, where the rule is linear.
    """
    tensors = tensors if tracked else tuple(tensor.detach() for tensor in tensors)
    if in_plain_reverse(x):
        return _Plain.apply(x, value, rule, *tensors)
    if linear:
        return substitute(x if value is None else value, rule(x, *tensors))
    # Whoever traces a step takes the gradient within it, of a tensor that requires one by now.
    stepless = is_traced() and not (in_transform() or x.requires_grad)
    if (stepless or torch.compiler.is_exporting()) and torch.is_grad_enabled():
        raise NotImplementedError(
            "a rule for gradients can't be exported, an exported program derives gradients from its values; "
            "remedy: torch.no_grad() around torch.export or make_fx, if no gradient is wanted of it"
        )
    if not torch.compiler.is_compiling():
        return _Intercept.apply(x, rule, *tensors)
    refuse_compiled_duals()
    if in_transform():
        return _unopened_intercept(x, _key(rule), *tensors)
    if not (x.requires_grad and torch.is_grad_enabled()):
        return x.view_as(x)  # the compiler can't trace a Function that gets no gradient
    return _CompiledIntercept.apply(x, rule, *tensors)


def with_slope(
    value: Callable[..., torch.Tensor],
    cotangents: Callable[..., tuple[torch.Tensor | None, ...]],
    tangent: Callable[..., torch.Tensor],
) -> Callable[..., torch.Tensor]:
    """Give a compiled loop its slope, in every mode and situation but forward mode within forward mode.

    Args:
        value: ``value(*tensors, *options)``, as `as_operation` makes it.
        cotangents: ``cotangents(gradient, output, *tensors, *options)`` returns the gradient of each tensor,
            or None, by operations that can be differentiated in their turn.
        tangent: ``tangent(tangents, output, *tensors, *options)`` returns the tangent of the output; a tensor
            without a tangent has zeros.

    Returns:
        A function of the same arguments.
    """

    class Loop(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(*args: Any) -> torch.Tensor:
            return value(*args)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
            tensors = [arg for arg in inputs if isinstance(arg, torch.Tensor)]
            ctx.options = inputs[len(tensors) :]
            ctx.save_for_backward(output, *tensors)
            ctx.save_for_forward(output, *tensors)

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
            return *cotangents(_dense(gradient), *ctx.saved_tensors, *ctx.options), *(
                None for _ in ctx.options
            )

        @staticmethod
        def jvp(ctx: Any, *tangents: torch.Tensor | None) -> torch.Tensor:
            _, *tensors = ctx.saved_tensors
            # The output that was saved has no tangent of an outer level.
            output = loop(*tensors, *ctx.options)
            return tangent(tangents[: len(tensors)], output, *tensors, *ctx.options)

    vars(value)["register_autograd"](Loop.backward, setup_context=Loop.setup_context)  # for what is exported
    unopened = known_to_the_compiler(lambda *args: Loop.apply(*args))

    def loop(*args: Any) -> torch.Tensor:
        if torch.compiler.is_compiling():
            refuse_compiled_duals()
            _refuse_nested_tangents()
            return unopened(*args)
        followed = torch.is_grad_enabled() and any(getattr(arg, "requires_grad", False) for arg in args)
        if not followed and forward_ad._current_level < 0 and not in_transform():
            # Most backward passes aren't differentiated again, and can do without the detour.
            return value(*args)
        _refuse_nested_tangents()
        return Loop.apply(*args)

    return loop


def in_plain_reverse(x: torch.Tensor) -> bool:
    """Say whether ``x`` is neither being compiled or traced nor under a functorch transform nor a dual."""
    if torch.compiler.is_compiling() or in_transform() or is_traced():
        return False
    return forward_ad._current_level < 0 or forward_ad.unpack_dual(x).tangent is None


def in_transform() -> bool:
    """Say whether a functorch transform is at work."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def is_traced() -> bool:
    """Say whether ``make_fx`` writes down the operations, of which a Function leaves the values only."""
    return not torch.compiler.is_compiling() and get_proxy_mode() is not None


def known_to_the_compiler(function: Callable[..., Any]) -> Callable[..., Any]:
    """Put calls of ``function`` into a compiler's graph unopened.

    The compiler looks into a Function, and under a transform forgets its rule. Unopened, it is
    differentiated by whichever transform is at work.
    """

    def unopened(*args: Any) -> Any:
        _allow()
        return function(*args)

    def _allow() -> None:
        # Here, because the import is dear and only compilers need it.
        from torch._dynamo import allow_in_graph

        allow_in_graph(function)

    _constant(_allow)
    return unopened


def _constant(function: Callable[..., Any]) -> None:
    # The compiler calls it rather than trace it. This is all that torch.compiler.assume_constant_result does,
    # but that one imports the whole compiler.
    vars(function)["_dynamo_marked_constant"] = True


_constant(in_transform)


def _refuse_nested_tangents() -> None:
    # A second forward mode around it doesn't differentiate the jvp of a Function, and says nothing.
    stack = torch._C._functorch.get_interpreter_stack() or []
    if sum(level.key() == torch._C._functorch.TransformType.Jvp for level in stack) > 1:
        raise NotImplementedError(
            "a compiled loop must not meet forward mode within forward mode; got two levels; "
            "remedy: torch.func.jacrev or hessian"
        )


_constant(_refuse_nested_tangents)


def _refuse_functionalized(slope: torch.Tensor) -> None:
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


class _Plain(torch.autograd.Function):
    # In the form that no transform understands, and that costs half as much.
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, value: torch.Tensor | None, rule: Rule, *tensors: torch.Tensor
    ) -> torch.Tensor:
        ctx.rule = rule
        ctx.save_for_backward(*tensors)
        return x.view_as(x) if value is None else value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        tensors = ctx.saved_tensors
        return ctx.rule(_dense(gradient), *tensors), None, None, *(None for _ in tensors)


class _CompiledIntercept(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor, rule: Rule | int, *tensors: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        _, ctx.rule, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        tensors = ctx.saved_tensors
        rule = _RULES[ctx.rule] if isinstance(ctx.rule, int) else ctx.rule
        return rule(_dense(gradient), *tensors), None, *(None for _ in tensors)


class _Intercept(_CompiledIntercept):
    # A Function that has a jvp can't be looked into by the compiler.
    @staticmethod
    def jvp(ctx: Any, *tangents: torch.Tensor | None) -> torch.Tensor:
        raise RuntimeError(
            "a rule for gradients must be used in reverse mode, since tangents have no rule; got a tangent; "
            "remedy: torch.func.vjp, grad or jacrev"
        )


def _dense(gradient: torch.Tensor) -> torch.Tensor:
    # An embedding with sparse=True sends back a sparse one.
    return gradient.to_dense() if gradient.is_sparse else gradient


# Graphs take numbers, not functions, and refer to a rule for as long as they live.
_RULES: list[Rule] = []


def _key(rule: Rule) -> int:
    if rule not in _RULES:
        _RULES.append(rule)
    return _RULES.index(rule)


_constant(_key)
_unopened_intercept = known_to_the_compiler(lambda x, key, *tensors: _Intercept.apply(x, key, *tensors))


def refuse_compiled_duals() -> None:
    """Raise where a compiled function is called on dual numbers."""
    # What was traced has no tangents, so it would ignore the rule for them without a word. torch.func.jvp
    # within the compiled function is traced rightly.
    if torch.compiler.is_compiling() and forward_ad._current_level >= 0 and not in_transform():
        raise RuntimeError(
            "a compiled function that edits gradients must not meet dual numbers; got an open dual level; "
            "remedy: torch.func.jvp inside of the compiled function"
        )
