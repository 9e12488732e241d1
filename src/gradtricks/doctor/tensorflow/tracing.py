"""Naming the operation that cut the path of a gradient.

Along a path ``x -> u -> ... -> y`` the gradient is ``dL/dy * ... * du/dx``, and several paths add up. Where
an operation hands on no slope, the path is cut; named too is the factor that makes 0, infinity or NaN of it.
"""

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from gradtricks.doctor import tracing
from gradtricks.doctor.inputs import bind, named_leaves
from gradtricks.doctor.reports import GradientReport
from gradtricks.doctor.tensorflow._listening import Recorder
from gradtricks.tensorflow._tensors import TENSORS, as_tensor

_REMEDIES = tracing.remedies("tensorflow") | {
    "detached": "leave out tf.stop_gradient where a gradient has to pass",
    "not recorded": "compute it outside of tape.stop_recording()",
    "gradient rule": "return a gradient instead of None from the function under tf.custom_gradient",
    "made outside": "if this tensor was computed from the input, compute it inside of the function, with "
    "TensorFlow and while the tape is recording; if not, the output doesn't depend on the input",
    "not watched": "tape.watch(variable), or make it with trainable=True",
    "integer": "only floating-point tensors have gradients: tf.cast(tensor, tf.float32)",
    "not traced": "the path ends where nothing was recorded; give explain_gradient the Python function, "
    "not a concrete or loaded one",
    "zero everywhere": "the slope is 0 at every element: relu of negatives, clip beyond its range, sign, "
    "or a factor of 0",
}
explained = partial(tracing.explained, remedies=_REMEDIES)
# What is replaced while the function runs is replaced for every thread.
_ONE_AT_A_TIME = threading.RLock()


def explain_gradient(function: Callable[..., Any], inputs: Any) -> GradientReport:
    """Run ``function`` once; say of each input whether a gradient reaches it, and if not, what cut the path.

    A tensor doesn't know what went unrecorded, so this watches the function run: eagerly, compiled or not,
    with all its side effects. A tape of our own watches the tensors and the trainable variables among the
    inputs. Where the output isn't a number, its sum is differentiated. Calls from several threads wait for
    each other; what else another thread runs meanwhile isn't recorded.

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
    if not tf.executing_eagerly():
        raise RuntimeError(
            "explain_gradient must be called eagerly; got a call within tf.function; "
            "remedy: call it outside, on the function inside"
        )
    call, named = bind(getattr(function, "python_function", function), inputs, _parts)
    for name, leaf in named:
        as_tensor(name, leaf)
    recorder = Recorder([leaf for _, leaf in named])
    with _ONE_AT_A_TIME, eagerly(), recorder:
        leaves = [leaf for _, leaf in named_leaves("output", call(), _parts)]
        leaves = [tf.convert_to_tensor(leaf) if isinstance(leaf, TENSORS) else leaf for leaf in leaves]
    return explained(recorder, [name for name, _ in named], leaves)


def _parts(value: Any) -> list[tuple[str, Any]] | None:
    if isinstance(value, keras.Layer):
        return [(variable.path, variable) for variable in value.trainable_variables]
    return [("", value)] if isinstance(value, TENSORS) else None


@contextmanager
def eagerly() -> Iterator[None]:
    """Run functions eagerly, for a while, but for those of tf.data, which warns of that."""
    before = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(True)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Even though the `tf.config", UserWarning)
            yield
    finally:
        tf.config.run_functions_eagerly(before)
