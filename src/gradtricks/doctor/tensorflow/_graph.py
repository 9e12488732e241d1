"""Questions to a tensor: its handle, its memory, the state of its values."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.eager import backprop_util
from tensorflow.python.framework import ops


def tensor_of(leaf: Any) -> tf.Tensor:
    """Return a tensor itself, or the handle of a variable."""
    return leaf if isinstance(leaf, ops.EagerTensor) else leaf.handle


def is_watched(leaf: Any) -> bool:
    if isinstance(leaf, tf.Tensor):
        return backprop_util.IsTrainable(leaf)
    return unwrapped(leaf).trainable


def unwrapped(leaf: Any) -> Any:
    """Return the framework's variable in that of Keras."""
    return leaf.value if isinstance(leaf, keras.Variable) else leaf


def array_of(tensor: tf.Tensor) -> Any:
    """Read a tensor without being noticed."""
    return tensor._numpy_internal()


def is_a_reading(tensor: tf.Tensor, value: tf.Tensor) -> bool:
    """Say whether a tensor is what a variable held."""
    a, b = (np.asarray(memoryview(t)) if t.shape.rank == 0 else array_of(t) for t in (tensor, value))
    # A reading shares the variable's memory, unless that is on another device or is edited row by row.
    return a.ctypes.data == b.ctypes.data or (a.size > 1 and a.tobytes() == b.tobytes())


def status_of(values: Any) -> str:
    """Return "none", "fine", "zero everywhere", "nan" or "inf"."""
    if values is None:
        return "none"
    values = values.values if isinstance(values, tf.IndexedSlices) else values
    if not (values.dtype.is_floating or values.dtype.is_complex):
        return "fine"
    values = array_of(values)
    if np.isnan(values).any():
        return "nan"
    if np.isinf(values).any():
        return "inf"
    return "fine" if np.size(values) == 0 or np.any(values) else "zero everywhere"
