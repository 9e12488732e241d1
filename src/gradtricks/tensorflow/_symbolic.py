"""Functional Keras models: given a KerasTensor, a trick becomes an operation of the model.

A KerasTensor has a shape and no values, and fits no function of TensorFlow. Whatever converts an argument
raises on one, and what is exported catches that, so that calls with tensors pay nothing for it.
"""

import functools
import sys
from typing import Any

import keras
import tensorflow as tf

from gradtricks.tensorflow._tensors import SymbolicTensorError

# They look at values, at variables or at calls; the last two return no tensor.
_NO_OPERATIONS = {"accumulate_gradients", "check_gradient", "hessian_norm"}
_NO_OPERATIONS |= {"gradient_override_map", "override_gradient"}


def symbolic(exported: Any) -> Any:
    """Let a function of tensors be called with KerasTensors too; leave classes as they are."""
    if isinstance(exported, type) or exported.__name__ in _NO_OPERATIONS:
        return exported

    @functools.wraps(exported)
    def trick(*args: Any, **kwargs: Any) -> Any:
        try:
            return exported(*args, **kwargs)
        except SymbolicTensorError:
            if not any(keras.backend.is_keras_tensor(leaf) for leaf in tf.nest.flatten((args, kwargs))):
                raise  # a function among the arguments made one
        operation = Trick(exported.__name__)
        # Not by calling it, which would put other words around our errors.
        made = iter(operation.symbolic_call(*args, **kwargs))
        return tf.nest.map_structure(lambda leaf: leaf if leaf is None else next(made), operation.structure)

    trick.__module__ = __package__  # where a pickle finds it
    return trick


@keras.saving.register_keras_serializable("gradtricks")
class Trick(keras.Operation):
    """A function of this package as an operation of a Keras model, saved by its name; it returns a flat list.

    What it is called with belongs to the call, so Keras saves it as it saves all arguments: a function must
    be registered with Keras, a lambda is loaded with ``safe_mode=False``.
    """

    def __init__(self, function: str, name: str | None = None) -> None:
        package = sys.modules[__package__]
        if function not in package.__all__:
            raise ValueError(
                f"function must be a name of gradtricks.tensorflow; got {function!r}; "
                "remedy: the version of gradtricks that the model was saved with"
            )
        if name is None:
            number = keras.backend.get_uid(function) - 1  # as Keras numbers what has no name
            name = f"{function}_{number}" if number else function
        super().__init__(name)
        self.function = function
        self.structure: Any = None
        self._exported = getattr(package, function)

    def call(self, *args: Any, **kwargs: Any) -> list[tf.Tensor]:
        """Call the function; hand the Keras mask of the first argument on to what has its shape."""
        made = tf.nest.flatten(self._exported(*args, **kwargs))
        for x, y in zip(tf.nest.flatten(next(iter((*args, *kwargs.values())))), made):
            mask = getattr(x, "_keras_mask", None)
            if mask is not None and y.shape.is_compatible_with(x.shape):
                y._keras_mask = mask
        return [leaf for leaf in made if leaf is not None]

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> list[keras.KerasTensor]:
        """Trace the function for shapes and dtypes; refuse variables, of which the model wouldn't know."""
        given = tf.nest.flatten((args, kwargs))
        places = [place for place, leaf in enumerate(given) if keras.backend.is_keras_tensor(leaf)]

        def traced(*tensors: tf.Tensor) -> Any:
            leaves = list(given)
            for place, tensor in zip(places, tensors):
                leaves[place] = tensor
            args_of_tensors, options = tf.nest.pack_sequence_as((args, kwargs), leaves)
            return self._exported(*args_of_tensors, **options)

        specs = [tf.TensorSpec(given[place].shape, given[place].dtype) for place in places]
        graph = tf.function(traced, autograph=False).get_concrete_function(*specs)
        if any(tensor.dtype == tf.resource for tensor in graph.captured_inputs):
            raise ValueError(
                f"{self.function} must not read variables as an operation of a Keras model, which would "
                "neither train nor save them; got some; "
                "remedy: call it in the call method of a keras.layers.Layer that has them"
            )
        self.structure = graph.structured_outputs
        made = [leaf for leaf in tf.nest.flatten(self.structure) if leaf is not None]
        return [keras.KerasTensor(leaf.shape, leaf.dtype.name) for leaf in made]

    def get_config(self) -> dict[str, Any]:
        """Return what `from_config` needs to make an equal operation."""
        return {"name": self.name, "function": self.function}
