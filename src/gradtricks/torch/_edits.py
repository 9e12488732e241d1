"""The two edits of a gradient, declared to PyTorch; and compiled loops, whose slope is written by hand.

*Substitute*: the value of one tensor, the slope of another. *Intercept*: the value as it is, and what flows
back goes through a rule. Every trick that edits a gradient is one of the two, and only this module declares
gradients.

An `autograd.Function` is fast and right in plain reverse mode, and is silently ignored elsewhere. So there
are other ways. A linear rule becomes operations, which everything can differentiate. Of any other rule a
transform gets a Function in the form that it knows; a compiler under a transform, which would look into that
and forget the rule, gets its application unopened; ``make_fx``, which writes down operations, gets one of
its own; and forward mode raises.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad

from gradtricks.torch._modes import (
    constant_to_the_compiler,
    in_plain_reverse,
    in_transform,
    is_dual,
    is_traced,
    overwrite,
    refuse_compiled_duals,
    refuse_functionalized,
    refuse_gradients_of_a_trace,
    refuse_nested_tangents,
    stopped,
)

Rule = Callable[..., torch.Tensor]


def substitute(value: torch.Tensor, slope: torch.Tensor) -> torch.Tensor:
    """The value of ``value``, bit for bit; all of the incoming gradient to ``slope``.

    Both are floating-point and of one shape; the values of ``slope`` aren't used. Raises NotImplementedError
    where a functionalized function is differentiated, RuntimeError where a compiled one meets dual numbers.
    """
    value, dtype = stopped(value), slope.dtype
    if in_plain_reverse(slope):
        return _Plain.apply(slope, value, lambda gradient: gradient.to(dtype))
    refuse_compiled_duals()
    refuse_functionalized(slope)
    if is_traced() and is_dual(slope) and not in_transform():
        # torch.func.linearize keeps what makes the tangent, and would drop what overwrites the value.
        tangent = forward_ad.unpack_dual(slope).tangent
        return forward_ad.make_dual(value.clone(), tangent.to(value.dtype))
    # Overwritten through an alias that no transform follows, so the slope doesn't notice. A sum is in every
    # batch that one of the two is in.
    y = slope.to(value.dtype) + torch.zeros_like(value)
    overwrite(y, value)
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

    Under `vmap` the gradient of each example is edited if ``x`` or a tensor is mapped, and else their sum.
    The first of these situations that holds decides how, so their order matters:

    - plain reverse mode: a Function that returns a view;
    - a linear rule: `substitute`, which everything can differentiate;
    - `torch.export` where gradients are on: raises;
    - `make_fx` outside of transforms: an operator of its own in what is written down;
    - eager, under a transform or with dual numbers: a Function in the form that transforms know;
    - compiled, under a transform: the rule's application, unopened;
    - compiled, where nobody asks for a gradient: a view;
    - compiled: a Function that the compiler traces.

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
    tensors = tensors if tracked else tuple(stopped(tensor) for tensor in tensors)
    if in_plain_reverse(x):
        return _Plain.apply(x, value, rule, *tensors)
    if linear:
        return substitute(x if value is None else value, rule(x, *tensors))
    if in_transform():
        # Adding -0.0 is exact, and batches x over every axis that a rule's tensor is batched over, so vmap
        # edits each example's gradient before it sums them.
        x = sum((-tensor.new_zeros((), dtype=x.dtype) for tensor in tensors), x)
    if torch.compiler.is_exporting() and torch.is_grad_enabled():
        raise NotImplementedError(
            "a rule for gradients can't be exported, an exported program derives gradients from its values; "
            "remedy: torch.no_grad() around torch.export, if no gradient is wanted of it"
        )
    if is_traced() and not in_transform() and not is_dual(x):
        return _traced_intercept(x, _key(rule), list(tensors))
    if not torch.compiler.is_compiling():
        refuse_gradients_of_a_trace()
        return _intercept(x, rule, *tensors)
    refuse_compiled_duals()
    if in_transform():
        with torch.no_grad():
            rule(torch.zeros_like(x), *tensors)  # for the compiler, to guard all that the rule reads
        return _unopened_intercept(x, _key(rule), *tensors)
    if not (x.requires_grad and torch.is_grad_enabled()):
        return x.view_as(x)  # the compiler can't trace a Function that gets no gradient
    return _Intercept.apply(x, rule, *tensors)


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
            refuse_nested_tangents()
            return unopened(*args)
        followed = torch.is_grad_enabled() and any(getattr(arg, "requires_grad", False) for arg in args)
        if not followed and forward_ad._current_level < 0 and not in_transform():
            # Most backward passes aren't differentiated again, and can do without the detour.
            return value(*args)
        refuse_nested_tangents()
        return Loop.apply(*args)

    return loop


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

    constant_to_the_compiler(_allow)
    return unopened


class _Plain(torch.autograd.Function):
    # In the form that no transform understands, and that costs half as much.
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, value: torch.Tensor | None, rule: Rule, *tensors: torch.Tensor
    ) -> torch.Tensor:
        ctx.rule = rule
        ctx.save_for_backward(*tensors)
        shown = x if value is None else value
        # A view of what was made in inference mode gets no gradient, without a word.
        return shown.clone() if shown.is_inference() else shown.view_as(shown)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        tensors = ctx.saved_tensors
        return ctx.rule(_dense(gradient), *tensors), None, None, *(None for _ in tensors)


class _Intercept(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor, rule: Rule, *tensors: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        _, ctx.rule, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        tensors = ctx.saved_tensors
        return ctx.rule(_dense(gradient), *tensors), None, *(None for _ in tensors)


def _intercept(x: torch.Tensor, rule: Rule, *tensors: torch.Tensor) -> torch.Tensor:
    try:
        return _Intercept.apply(x, rule, *tensors)
    except (NotImplementedError, AssertionError) as error:  # it has no jvp, and none under vmap
        raise RuntimeError(
            "a rule for gradients must be used in reverse mode, since tangents have no rule; got a tangent; "
            "remedy: torch.func.vjp, grad or jacrev"
        ) from error


def _dense(gradient: torch.Tensor) -> torch.Tensor:
    # An embedding with sparse=True sends back a sparse one.
    return gradient.to_dense() if gradient.is_sparse else gradient


# Graphs take numbers, not functions, and refer to a rule for as long as they live.
_RULES: list[Rule] = []


def _key(rule: Rule) -> int:
    if rule not in _RULES:
        _RULES.append(rule)
    return _RULES.index(rule)


constant_to_the_compiler(_key)
_unopened_intercept = known_to_the_compiler(lambda x, key, *tensors: _intercept(x, _RULES[key], *tensors))


def _save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    _, ctx.key, tensors = inputs
    ctx.save_for_backward(*tensors)


def _rule_of_the_trace(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
    tensors = ctx.saved_tensors
    return _RULES[ctx.key](_dense(gradient), *tensors), None, [None] * len(tensors)


_traced_intercept = torch.library.custom_op(
    "gradtricks::intercept",
    lambda x, key, tensors: x.clone(),
    mutates_args=(),
    schema="(Tensor x, int key, Tensor[] tensors) -> Tensor",
)
_traced_intercept.register_fake(lambda x, key, tensors: torch.empty_like(x))
_traced_intercept.register_autograd(_rule_of_the_trace, setup_context=_save)
