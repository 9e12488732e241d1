"""One function's value with another's gradient.

Forward ``y = forward(x)``; backward ``dL/dx = dL/dy * d gradient_of(x) / dx``, or the rule of an operator.
"""

import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import keras
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2
from tensorflow.python.eager import context, execute
from tensorflow.python.eager.polymorphic_function import function_context

from gradtricks._core.checks import check_callable
from gradtricks._core.overriding import OPERATORS, by_operator
from gradtricks.tensorflow._edits import record_rule, registered
from gradtricks.tensorflow.discretizing import paired

Gradient = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]


def override_gradient(forward: Callable[..., Any], gradient_of: Callable[..., Any]) -> Callable[..., Any]:
    """The value of ``forward``; the gradient of ``gradient_of``.

    Both are called once in each forward pass, with the same arguments. Whatever ``gradient_of`` depends on
    gets its gradient: tensors among the arguments, and variables that it closes over. What only ``forward``
    depends on gets none. Where both draw random numbers, they draw different ones.

    Args:
        forward: Takes anything, returns a tensor or a structure (tuple, list, dict) of tensors.
        gradient_of: Takes the same and returns floating-point tensors of the same shapes in the same
            structure. It has to be differentiable.

    Returns:
        A function of the same arguments. Its values and their dtypes are those of ``forward``, bit for bit;
        integers and booleans are converted to the dtype of ``gradient_of``.

    Example:
        >>> sign = override_gradient(tf.sign, tf.tanh)
        >>> x = tf.constant([0.0, 3.0])
        >>> with tf.GradientTape() as tape:
        ...     tape.watch(x)
        ...     y = sign(x)
        >>> y.numpy().tolist(), [round(float(g), 2) for g in tape.gradient(y, x)]
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

    What counts is where the operator is called, not where backpropagation happens; in a functional Keras
    model, where the model is called, not where it is built. The map follows the calls of its own thread; a
    `tf.function` is traced anew for each map it is called under. Rules are kept for the life of the process,
    so make a map once. Of nested maps the innermost that names an operator wins. Don't
    `yield` or `await` in a block.

    Unseen is what runs in threads of its own: a `tf.py_function` in a graph, replicas of a distribution
    strategy. Functions that declare their own gradients, such as `tf.nn.silu`, keep them. So does a function
    whose activations are recomputed (`tf.recompute_grad`), when it is called again during the backward pass.
    Enter the map inside that function.

    Args:
        gradients: From an operator, given as the framework's function (`tf.nn.relu`), to
            ``gradient(cotangent, output, x)``, which returns the gradient of ``x``. All spellings count as
            one: `keras.ops`, layers, activations by name. Operators are abs, ceil, cos, elu, exp, floor,
            leaky_relu, log, relu, relu6, round, selu, sigmoid, sign, sin, softplus, sqrt, tanh; for any other
            function use `override_gradient`. A concrete function traced outside the map is refused.

    Returns:
        A context manager, to be entered as often as you like.

    Raises:
        NotImplementedError: Within the block, in forward mode.

    References:
        ``tf.Graph.gradient_override_map``; guided backpropagation, https://arxiv.org/abs/1412.6806.

    Example:
        >>> def guided(cotangent, output, x):
        ...     return tf.where(output > 0, tf.maximum(cotangent, 0.0), 0.0)
        >>> x = tf.constant([-1.0, 2.0, 3.0])
        >>> with gradient_override_map({tf.nn.relu: guided}), tf.GradientTape() as tape:
        ...     tape.watch(x)
        ...     y = tf.nn.relu(x) * tf.constant([1.0, 1.0, -1.0])
        >>> tape.gradient(y, x).numpy().tolist()
        [0.0, 1.0, 0.0]
    """
    return _OverrideMap(by_operator(gradients, _NAMES, "TensorFlow"))


class _OverrideMap(AbstractContextManager):
    def __init__(self, gradients: dict[str, Gradient]) -> None:
        self.names = {
            op: registered(name, rule) for name, rule in gradients.items() for op in _op_types(name)
        }

    def __enter__(self) -> None:
        if len(_ACTIVE.maps) == 1:
            context.context().add_op_callback(_after_op)
            _PATCHES.enter()
        _ACTIVE.maps.append(_ACTIVE.maps[-1] | self.names)

    def __exit__(self, *exception: object) -> None:
        _ACTIVE.maps.pop()
        if len(_ACTIVE.maps) == 1:
            context.context().remove_op_callback(_after_op)
            _PATCHES.exit()


class _Active(threading.local):
    def __init__(self) -> None:
        # Names of gradients, by types of operators: outside of all blocks, and in each block that is entered.
        self.maps: list[dict[str, str]] = [{}]


_ACTIVE = _Active()


def _after_op(
    op_type: Any, inputs: Any, attributes: Any, outputs: Any, op_name: Any = None, graph: Any = None
) -> None:
    op_type = tf.compat.as_str(op_type)  # bytes from some eager operators
    name = _ACTIVE.maps[-1].get(op_type)
    if name is None:
        if graph is None:
            _refuse_foreign_function(op_type)
        return
    if graph is not None:
        # What a graph's own differentiation reads, however the graph is copied.
        value = attr_value_pb2.AttrValue(s=name.encode())
        outputs[0].op._set_attr("_gradient_op_type", value)
    record_rule(name, inputs[0], outputs[0])


def _recording_gradients(record_gradient: Callable[..., None]) -> Callable[..., None]:
    def recording(op_type: Any, inputs: Any, attributes: Any, outputs: Any) -> None:
        name = _ACTIVE.maps[-1].get(tf.compat.as_str(op_type))
        if name is None:
            record_gradient(op_type, inputs, attributes, outputs)
        else:
            record_rule(name, inputs[0], outputs[0])

    return recording


def _keyed_by_maps(make_function_context: Callable[..., Any]) -> Callable[..., Any]:
    # A tf.function looks for an earlier trace under this key.
    def keyed(scope_type: Any = None) -> Any:
        made, names = make_function_context(scope_type), _ACTIVE.maps[-1]
        return made._replace(scope_type=(scope_type, *sorted(names.items()))) if names else made

    return keyed


class _Patches:
    # Three functions of the framework have to know of maps, as long as a thread is in one.
    def __init__(self) -> None:
        self.lock, self.threads = threading.Lock(), 0

    def enter(self) -> None:
        with self.lock:
            self.threads += 1
            if self.threads == 1:
                recorded, made = execute.record_gradient, function_context.make_function_context
                self.originals = execute.execute, recorded, made
                execute.execute = execute.execute_with_callbacks  # without, eager operators call nobody back
                execute.record_gradient = _recording_gradients(recorded)
                function_context.make_function_context = _keyed_by_maps(made)

    def exit(self) -> None:
        with self.lock:
            self.threads -= 1
            if not self.threads:
                execute.execute, execute.record_gradient, context_maker = self.originals
                function_context.make_function_context = context_maker


_PATCHES = _Patches()


def _refuse_foreign_function(name: str) -> None:
    if name.startswith("__backward") or not context.context().has_function(name):
        return
    kept = sorted(_operators_within(name) & _ACTIVE.maps[-1].keys())
    if kept:
        raise RuntimeError(
            f"gradient_override_map can't reach the {', '.join(kept)} of a function traced outside of it; "
            f"got {name}; remedy: call the tf.function itself, not a concrete function"
        )


@cache
def _operators_within(name: str) -> frozenset[str]:
    # Their types, in the functions that it calls too; the name of the gradient where a map has given one.
    found = set()
    for node in context.context().get_function_def(name).node_def:
        found.add(node.attr["_gradient_op_type"].s.decode() or node.op)
        for value in node.attr.values():
            for called in (value.func, *value.list.func):
                if called.name:
                    found |= _operators_within(called.name)
    return frozenset(found)


def _op_types(name: str) -> list[str]:
    op_type = "".join(part.capitalize() for part in name.split("_"))
    return [op_type, "ComplexAbs"] if name == "abs" else [op_type]


_OWNERS = (tf, tf.math, tf.nn, keras.ops, keras.activations)
_NAMES = {getattr(owner, name): name for name in OPERATORS for owner in _OWNERS if hasattr(owner, name)}
