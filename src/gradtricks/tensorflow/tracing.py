"""Naming the operation that cut the path of a gradient."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from gradtricks._core.inputs import bind, named_leaves
from gradtricks._core.recorded import merged
from gradtricks._core.reports import GradientReport
from gradtricks._core.tracing import explain
from gradtricks.tensorflow._graph import status_of
from gradtricks.tensorflow._listening import Recorder
from gradtricks.tensorflow._tensors import TENSORS, as_tensor

_REMEDIES = {
    "detached": "leave out tf.stop_gradient where a gradient has to pass",
    "not recorded": "compute it outside of tape.stop_recording()",
    "integer cast": "stay in floating point, or gradtricks.tensorflow.straight_through(hard, soft)",
    "not differentiable": "use a differentiable stand-in (softmax for argmax, sigmoid for a comparison), or "
    "gradtricks.tensorflow.straight_through(hard, soft); for floor and round floor_straight_through and "
    "round_straight_through",
    "assigned": "use the new tensor itself; an assignment stores values, not where they came from",
    "copied": "use the tensor itself; a new variable doesn't know where its values came from",
    "numpy": "compute it with TensorFlow; .numpy(), float(), np.* and tf.numpy_function keep values only",
    "gradient rule": "return a gradient instead of None from the function under tf.custom_gradient",
    "replaced": "the output never reads the input, but another tensor of its shape. If the input was made "
    "from that one, compute the output from the input: z = x + delta; y = f(z); tape.gradient(y, z)",
    "made outside": "if this tensor was computed from the input, compute it inside of the function, with "
    "TensorFlow and while the tape is recording; if not, the output doesn't depend on the input",
    "unused": "let the output depend on it; nothing that was recorded leads from the input to the output",
    "not watched": "tape.watch(variable), or make it with trainable=True",
    "integer": "only floating-point tensors have gradients: tf.cast(tensor, tf.float32)",
    "not traced": "the path ends where nothing was recorded; give explain_gradient the Python function, not "
    "a concrete or loaded one",
    "zero everywhere": "the slope is 0 at every element: relu of negatives, clip beyond its range, sign, or "
    "a factor of 0",
    "nan": "keep its argument off the point where the slope is infinite, before and not after the operation: "
    "gradtricks.tensorflow.safe_where(condition, x, function, fallback)",
    "inf": "keep its argument off the point where the slope is infinite: clip it, or add an epsilon to it",
    "sum": "no single operation is to blame: the contributions of several paths cancel or overflow in sum",
    "overflow": "look at the values that go in here: the logarithm of 0, a division by 0, an exponential",
}
# What is replaced while the function runs is replaced for every thread.
_ONE_AT_A_TIME = threading.RLock()


def explain_gradient(function: Callable[..., Any], inputs: Any) -> GradientReport:
    """Run ``function`` once; say of each input whether a gradient reaches it, and if not, what cut the path.

    A tensor doesn't know which operations failed to record themselves. So this takes the function that
    computes the output, and watches it run. The function runs eagerly, compiled or not, with all its side
    effects; a tape of our own watches the tensors and the trainable variables among the inputs. Where the
    output isn't a number, its sum is differentiated. Calls from several threads wait for each other, and
    what else another thread runs meanwhile isn't recorded.

    Args:
        function: Returns a tensor or a structure of tensors. Called without arguments where it needs none, as
            a closure over the inputs; otherwise ``function(*inputs)``, or ``function(**inputs)`` for a dict.
        inputs: Tensors or variables: one, or nested lists, tuples and dicts of them, or a Keras model or
            layer, which stands for its trainable variables.

    Returns:
        One verdict for each input, with the operation, the line of code, the reason and the remedy; print it.
        An input is also judged by its gradient: zero everywhere, NaN or infinite, and where that began.

    Raises:
        RuntimeError: Called within a `tf.function`.
        LookupError: TensorFlow has no gradient for an operation on the path, and says so itself.

    References:
        "Show responsible nodes", https://github.com/tensorflow/tensorflow/issues/1768.

    Example:
        >>> x = tf.constant([1.0, 2.0])
        >>> report = explain_gradient(lambda x: tf.reduce_sum(tf.stop_gradient(x) ** 2), x)
        >>> report["x"].connected, report["x"].operation, report["x"].reason
        (False, 'StopGradient', 'detached')
    """
    call, named = _checked(function, inputs)
    recorder = Recorder([leaf for _, leaf in named])
    with _ONE_AT_A_TIME, eagerly(), recorder:
        leaves = [leaf for _, leaf in named_leaves("output", call(), _parts)]
        leaves = [tf.convert_to_tensor(leaf) if isinstance(leaf, TENSORS) else leaf for leaf in leaves]
    return explained(recorder, [name for name, _ in named], leaves)


def explained(recorder: Recorder, names: Sequence[str], leaves: Sequence[Any]) -> GradientReport:
    """Differentiate what was recorded, and say what became of the gradient of each of the named inputs.

    A number among the leaves counts as one that was read out.
    """
    outputs = [recorder.read_output(leaf) for leaf in leaves]
    tensors = [leaf for leaf in leaves if isinstance(leaf, tf.Tensor)]
    gradients = recorder.differentiate(tensors)
    given = [recorder.described(name, i, g) for i, (name, g) in enumerate(zip(names, gradients))]
    value = merged(map(status_of, tensors))
    return explain(recorder.operations, given, outputs, recorder.outside, _REMEDIES, output=value)


def _checked(function: Callable[..., Any], inputs: Any) -> tuple[Callable[[], Any], list[tuple[str, Any]]]:
    if not callable(function):
        raise TypeError(
            f"function must be callable; got {type(function).__name__}; "
            "remedy: explain_gradient(lambda: ..., inputs), a tensor doesn't know what went unrecorded"
        )
    if not tf.executing_eagerly():
        raise RuntimeError(
            "explain_gradient must be called eagerly; got a call within tf.function; "
            "remedy: call it outside, on the function inside"
        )
    call, structures = bind(getattr(function, "python_function", function), inputs)
    named = [leaf for name, value in structures for leaf in named_leaves(name, value, _parts)]
    if not named:
        raise ValueError("inputs must hold a tensor; got none; remedy: name what the gradient is wanted for")
    for name, leaf in named:
        as_tensor(name, leaf)
    return call, named


def _parts(value: Any) -> list[tuple[str, Any]] | None:
    if isinstance(value, keras.Layer):
        return [(variable.path, variable) for variable in value.trainable_variables]
    return [("", value)] if isinstance(value, TENSORS) else None


@contextmanager
def eagerly() -> Iterator[None]:
    """Run functions eagerly, for a while."""
    before = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(before)
