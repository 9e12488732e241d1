"""The two edits of a gradient, declared to TensorFlow; and compiled loops, whose slope is written by hand.

*Substitute*: the value of one tensor, the slope of another. *Intercept*: the value as it is, and what flows
back goes through a rule. Every trick that edits a gradient is one of the two, and only this module declares
gradients, also those that take the place of an operator's own.

In eager mode tapes and accumulators are told of an edit directly. In a graph it is a `tf.custom_gradient`.
That is right under tapes, but an accumulator ignores it without a word, and so does a tape around a
`tf.vectorized_map`. There, operations stand in that TensorFlow differentiates by itself, or an error.
"""

import threading
from collections.abc import Callable
from typing import Any, NoReturn

import tensorflow as tf
from numpy.typing import NDArray
from tensorflow.python.eager import forwardprop_util, record
from tensorflow.python.ops import control_flow_util

from gradtricks.tensorflow._tensors import as_edited

Rule = Callable[..., tf.Tensor]


def substitute(value: tf.Tensor, slope: tf.Tensor) -> tf.Tensor:
    """The value of ``value``, bit for bit; all of the incoming gradient to ``slope``.

    Both are floating-point and of one shape; the values of ``slope`` aren't used. A tape around a
    `tf.vectorized_map` that meets a `tf.function` within it raises LookupError.
    """
    value = shaped(tf.stop_gradient(value), slope)
    if can_declare(slope):
        if not tf.executing_eagerly():
            # An integer value has no gradient path, so PreventGradient needs a dead branch through the slope.
            value = tf.where(True, value, _raising(tf.cast(slope, value.dtype)))
        return _with_gradient(value, lambda gradient: tf.cast(gradient, slope.dtype), slope)
    # Stitched to the same place, the later one wins, and the gradient goes to both.
    place = tf.range(tf.size(value))
    flat = [tf.reshape(tf.cast(slope, value.dtype), [-1]), tf.reshape(value, [-1])]
    return shaped(tf.reshape(tf.dynamic_stitch([place, place], flat), tf.shape(value)), value)


def intercept(
    x: tf.Tensor, rule: Rule, *tensors: tf.Tensor, linear: bool = False, value: tf.Tensor | None = None
) -> tf.Tensor:
    """The value of ``x``, bit for bit; ``rule(gradient, *tensors)`` to ``x``.

    Args:
        x: Floating-point, any shape.
        rule: Returns what becomes of a gradient, in its shape. It has to be differentiable where the gradient
            is differentiated again.
        *tensors: What the rule needs besides; they get no gradient.
        linear: The rule is a symmetric matrix, such as a product with each element. Then it holds for
            tangents too, and for a tape around a `tf.vectorized_map`; any other rule raises there.
        value: Stands instead of ``x``, in its shape and dtype, where the rule is linear.
    """
    tensors = tuple(tf.stop_gradient(t) if t.dtype.is_floating else t for t in tensors)
    shown = x if value is None else shaped(value, x)
    if linear and not can_declare(x):
        return substitute(shown, rule(x, *tensors))
    if linear:
        return _with_gradient(shown, lambda gradient: rule(gradient, *tensors), x)
    if has_tangent(x):
        _refuse_tangent()
    return _with_gradient(x, lambda gradient: rule(reverse_only(gradient), *tensors), x)


def with_slope(
    value: Callable[..., Any],
    cotangents: Callable[..., tuple[tf.Tensor | None, ...]],
    by_operations: Callable[..., tf.Tensor],
) -> Callable[..., tf.Tensor]:
    """Give a compiled loop its slope, in every mode and situation.

    Args:
        value: ``value(*arrays, *options)`` returns an array.
        cotangents: ``cotangents(gradient, output, *tensors, *options)`` returns the gradient of each tensor,
            or None, by operations that can be differentiated in their turn. What it returns for options is
            dropped.
        by_operations: ``by_operations(*tensors, *options)`` computes the same of tensors, for graphs, forward
            mode and other devices than a CPU.

    Returns:
        A function of the arguments of ``by_operations``.
    """

    def loop(*args: Any) -> tf.Tensor:
        tensors = [arg for arg in args if isinstance(arg, tf.Tensor)]  # tf.is_tensor takes 20 times as long
        readable = all(is_readable(t) for t in tensors)
        if readable and not record.could_possibly_record():
            return evaluated(*args)
        if not all(can_declare(t) for t in tensors):
            return by_operations(*args)
        if not tf.executing_eagerly():
            # A gradient's gradient looks for them in the graph of the gradient, not in the graph before.
            args = tuple(tf.identity(arg) if isinstance(arg, tf.Tensor) else arg for arg in args)

        def backward(gradient: tf.Tensor) -> Any:
            # Again, where a second derivative asks for it.
            known = output if readable and not record.could_possibly_record() else loop(*args)
            return cotangents(tf.convert_to_tensor(gradient), known, *args)[: len(tensors)]

        output = (evaluated if readable else by_operations)(*args)
        return _declare(output, backward, *tensors)

    def evaluated(*args: Any) -> tf.Tensor:
        arrays = [arg.numpy() if isinstance(arg, tf.Tensor) else arg for arg in args]
        return as_constant(value(*arrays), args[0].dtype)

    return loop


def declared(
    value: Callable[..., tf.Tensor], slope: Callable[..., tf.Tensor], x: tf.Tensor, *tensors: tf.Tensor
) -> tf.Tensor:
    """Return ``value(x, *tensors)``; ``slope(gradient, x, *tensors)`` goes to ``x``. Nothing else is kept.

    To be called where `can_declare` says so. The slope is that of the value, by operations that can be
    differentiated.
    """
    given: tuple[tf.Tensor, ...] = (x, *tensors)
    if not tf.executing_eagerly():
        # A gradient's gradient looks for them in the graph of the gradient, not in the graph before.
        given = tuple(map(tf.identity, given))
    with record.stop_recording():
        output = value(*given)
    return _declare(output, lambda gradient: [slope(tf.convert_to_tensor(gradient), *given)], given[0])


def registered(operator: str, rule: Rule) -> str:
    """Register ``rule(gradient, output, x)``; return a name for it, which operators of a graph may bear."""
    # Graphs refer to gradients by name for as long as they live. A bound method is a new object each time.
    with _REGISTERING:
        for known, function in _RULES.items():
            if function == rule and known.startswith(f"{_PREFIX}{operator}:"):
                return known
        new = f"{_PREFIX}{operator}:{len(_RULES)}"
        _RULES[new] = rule
    tf.RegisterGradient(new)(lambda op, gradient: _ruled(new, gradient, op.outputs[0], op.inputs[0]))
    return new


def record_rule(name: str, x: tf.Tensor, output: tf.Tensor) -> None:
    """Tell tapes to apply a registered rule in place of the gradient of what made ``output``."""
    if has_tangent(x):
        raise NotImplementedError(
            "gradient_override_map has no rule for forward-mode differentiation; remedy: tf.GradientTape"
        )
    # A tape knows how an output came about by the record that came last.
    record.record_operation(name, [output], [x], lambda gradient: [_ruled(name, gradient, output, x)])


def can_declare(x: tf.Tensor) -> bool:
    """Say whether all that may differentiate ``x`` follows a declared gradient."""
    if tf.executing_eagerly():
        return True
    # What becomes of the body of a tf.vectorized_map has lost its custom gradients. Its name scope tells.
    return not has_tangent(x) and "loop_body" not in tf.get_current_name_scope().split("/")


def in_xla() -> bool:
    """Say whether a function is being traced for XLA."""
    return bool(control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()))


def shaped(x: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """Tell ``x`` the shape of ``like``, which a graph may know of one and not of the other."""
    # Accumulators in functions can't differentiate the operation, so it stands only where it is needed.
    return tf.ensure_shape(x, like.shape) if x.shape != like.shape else x


def as_constant(array: NDArray[Any], dtype: tf.DType) -> tf.Tensor:
    """Make a tensor of an array, in half the time of `tf.cast`."""
    x = tf.constant(array)
    return x if x.dtype == dtype else tf.cast(x, dtype)


def _with_gradient(value: tf.Tensor, rule: Rule, target: tf.Tensor) -> tf.Tensor:
    if not tf.executing_eagerly():
        value = _raising(value)
    # What a tf.gather sends back is sparse until it is converted.
    return _declare(value, lambda gradient: [rule(tf.convert_to_tensor(gradient))], target)


def _raising(x: tf.Tensor) -> tf.Tensor:
    # An identity whose own gradient raises, in case that a transform loses the declared one.
    return tf.raw_ops.PreventGradient(input=x, message=_LOST)


def _declare(output: tf.Tensor, backward: Callable[..., Any], *tensors: tf.Tensor) -> tf.Tensor:
    # ``backward(gradient)`` returns a sequence as long as ``tensors``.
    if not tf.executing_eagerly():
        return tf.custom_gradient(lambda *tensors: (output, backward))(*tensors)
    with record.stop_recording():  # an accumulator would follow the identity
        output = tf.identity(output)
    record.record_operation("gradtricks", [output], tensors, backward)
    return output


_PREFIX = "gradtricks:"
_RULES: dict[str, Rule] = {}
_REGISTERING = threading.Lock()


def _ruled(name: str, gradient: tf.Tensor, output: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    # What a tf.gather sends back is sparse until it is converted.
    found = _RULES[name](reverse_only(tf.convert_to_tensor(gradient)), output, x)
    return as_edited("the gradient's result", found, x)


_LOST = (
    "gradtricks edits a gradient in a tf.function in a tf.vectorized_map, or by a rule in a tf.vectorized_map"
    " around which a tape is; remedy: the tape in the mapped function, the Python function, or tf.map_fn"
)


def has_tangent(x: tf.Tensor) -> bool:
    """Say whether an accumulator watches ``x``."""
    return bool(forwardprop_util.pack_tangents([x]).tangents)


def is_readable(x: tf.Tensor) -> bool:
    """Say whether ``x`` has values now, in the memory of a CPU."""
    return hasattr(x, "numpy") and "GPU" not in x.device


def reverse_only(gradient: tf.Tensor) -> tf.Tensor:
    """The gradient itself; raise where an accumulator around a `tf.function` would differentiate its rule."""
    if tf.executing_eagerly():
        return gradient  # there, tangents are known when the rule is declared

    @tf.custom_gradient
    def declared(gradient: tf.Tensor) -> tuple[tf.Tensor, Rule]:
        def backward(again: tf.Tensor) -> tf.Tensor:
            if _transposed_to_forward_mode():
                _refuse_tangent()
            return again

        return tf.identity(gradient), backward

    return declared(gradient)


def _transposed_to_forward_mode() -> bool:
    # An accumulator around a tf.function makes its tangents by differentiating its gradient, which is right
    # for linear rules only. It does so in the graph of the gradient's gradient within that of the gradient; a
    # tape around both builds its graph outside, but for a tf.cond or tf.while_loop in its own function.
    names, graph = [], tf.compat.v1.get_default_graph()
    while graph is not None:
        names.append(getattr(graph, "name", ""))
        graph = getattr(graph, "outer_graph", None)
    return sum(name.startswith("__backward_") and "cflow_gradient_wrapper" not in name for name in names) > 1


def _refuse_tangent() -> NoReturn:
    raise RuntimeError(
        "a rule for gradients must be used in reverse mode, since tangents have no rule; got a tangent, or "
        "the gradient of a gradient through a tf.function in a tf.function, which looks like one in a graph; "
        "remedy: tf.GradientTape, and of the inner function its python_function"
    )
