"""Any optimizer, with elements that can be frozen."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from gradtricks.tensorflow._tensors import as_mask


@keras.saving.register_keras_serializable(package="gradtricks")
class MaskedOptimizer(keras.optimizers.Optimizer):
    """Any optimizer, in which elements can be frozen and thawed at every step.

    The optimizer sees 0 for a frozen element's gradient. After its step the element, and all that state
    variables of the parameter's shape hold of it, are as they were. That is two copies of parameters and
    state at each step; `MaskedAdam` needs none.

    What elements share can't be frozen: a step count, by which bias corrections and decaying rates go on
    (under `MaskedAdam` each element has its own); state of another shape, such as the moments that Adafactor
    keeps of rows and columns, to which a frozen element gives 0; norms over parameters, and what Muon
    makes of a whole matrix.

    Args:
        inner_optimizer: Has the options and the state. It must not have been built, since the state of each
            variable is found out while it is.
        name: Of the optimizer.

    Example:
        >>> weight = tf.Variable(tf.zeros(2))
        >>> optimizer = MaskedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9))
        >>> optimizer.build([weight])
        >>> optimizer.set_trainable_mask(weight, tf.constant([True, False]))
        >>> optimizer.apply([tf.ones(2)])
        >>> weight.numpy()
        array([-0.1,  0. ], dtype=float32)
    """

    def __init__(self, inner_optimizer: keras.optimizers.Optimizer, name: str = "masked_optimizer") -> None:
        if not isinstance(inner_optimizer, keras.optimizers.Optimizer):
            raise TypeError(
                f"inner_optimizer must be a keras.optimizers.Optimizer; got {type(inner_optimizer).__name__}"
            )
        if inner_optimizer.built:
            raise ValueError("inner_optimizer must not be built; got one that is; remedy: wrap a new one")
        if _innermost(inner_optimizer).use_ema:
            raise ValueError("use_ema would move frozen elements; got True; remedy: leave it out")
        super().__init__(learning_rate=0.0, name=name)
        self.inner_optimizer = inner_optimizer

    def build(self, variables: Sequence[Any]) -> None:
        """Create the state of each variable."""
        if self.built:
            return
        inner, state = _innermost(self.inner_optimizer), []
        add_variable = inner.add_variable_from_reference

        def add_and_remember(reference_variable: Any, *args: Any, **kwargs: Any) -> Any:
            state.append((reference_variable, add_variable(reference_variable, *args, **kwargs)))
            return state[-1][1]

        inner.add_variable_from_reference = add_and_remember  # Keras doesn't say later what belongs to which
        try:
            self.inner_optimizer.build(variables)
        finally:
            del inner.add_variable_from_reference
        super().build(variables)
        self._trainable_mask = [
            self.add_variable(v.shape, "ones", "bool", name="trainable_mask") for v in variables
        ]
        self._frozen_with = [[v, *(s for r, s in state if r is v and s.shape == v.shape)] for v in variables]

    def exclude_from_weight_decay(self, var_list: Any = None, var_names: Any = None) -> None:
        """Exclude variables from the inner optimizer's weight decay, before it is built."""
        _innermost(self.inner_optimizer).exclude_from_weight_decay(var_list, var_names)

    def set_trainable_mask(self, parameter: Any, trainable_mask: tf.Tensor | None) -> None:
        """Say which elements of a parameter may move, as `MaskedAdam.set_trainable_mask` does."""
        index = index_of(self, parameter)
        mask = as_mask(tf.constant(True) if trainable_mask is None else trainable_mask, parameter)
        self._trainable_mask[index].assign(tf.broadcast_to(mask, parameter.shape))

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Take one step; Keras calls this, and everybody who has gradients at hand, one for each variable."""
        if trainable_variables is not None:
            self.build(list(trainable_variables))
        variables = self._trainable_variables if trainable_variables is None else trainable_variables
        indices = [self._get_variable_index(v) for v in variables]
        masks = [tf.convert_to_tensor(self._trainable_mask[index]) for index in indices]
        before = [[tf.identity(kept) for kept in self._frozen_with[index]] for index in indices]
        grads = [g if g is None else where_trainable(m, g) for m, g in zip(masks, grads, strict=True)]
        self.inner_optimizer.apply(grads, trainable_variables)
        for index, mask, values in zip(indices, masks, before, strict=True):
            for kept, value in zip(self._frozen_with[index], values, strict=True):
                kept.assign(tf.where(mask, tf.convert_to_tensor(kept), value))

    def scale_loss(self, loss: Any) -> Any:
        """Scale the loss as the inner optimizer wants it."""
        return self.inner_optimizer.scale_loss(loss)

    @property
    def variables(self) -> list[Any]:
        """All state, that of the inner optimizer too."""
        return [*self._variables, *self.inner_optimizer.variables]

    @property
    def iterations(self) -> Any:
        """Steps taken."""
        return self.inner_optimizer.iterations

    @property
    def learning_rate(self) -> Any:
        """That of the inner optimizer, so that schedules and callbacks find it."""
        return self.inner_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate: Any) -> None:
        self.inner_optimizer.learning_rate = learning_rate

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that make an equal optimizer."""
        inner = keras.saving.serialize_keras_object(self.inner_optimizer)
        return {"inner_optimizer": inner, "name": self.name}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None) -> Any:
        """Make an optimizer from what ``get_config`` returned."""
        inner = keras.saving.deserialize_keras_object(config.pop("inner_optimizer"), custom_objects)
        return cls(inner, **config)


def _innermost(optimizer: Any) -> Any:
    # A LossScaleOptimizer has no state of the parameters.
    while isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer = optimizer.inner_optimizer
    return optimizer


def index_of(optimizer: Any, parameter: Any) -> int:
    """Return which of an optimizer's parameters this is, or raise a ValueError."""
    if not optimizer.built:
        raise ValueError("the optimizer must be built; remedy: optimizer.build(model.trainable_variables)")
    known = isinstance(parameter, tf.Variable | keras.Variable)
    if not known or optimizer._var_key(parameter) not in optimizer._trainable_variables_indices:
        raise ValueError("parameter must be one that the optimizer was given; got another variable")
    return int(optimizer._get_variable_index(parameter))


def where_trainable(trainable_mask: Any, gradient: Any) -> tf.Tensor:
    """Return a gradient that is 0 in frozen elements, whatever it was there, and dense."""
    gradient = tf.convert_to_tensor(gradient)
    return tf.where(tf.convert_to_tensor(trainable_mask), gradient, tf.zeros_like(gradient))
