"""Adam for a changing set of trainable elements."""

import math
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from gradtricks._checks import check_broadcast, check_number
from gradtricks.tensorflow._tensors import as_floating, as_tensor, at_least_float32


def masked_adam_step(
    parameter: tf.Tensor,
    gradient: tf.Tensor,
    m: tf.Tensor,
    v: tf.Tensor,
    step: tf.Tensor,
    trainable_mask: tf.Tensor,
    *,
    v_max: tf.Tensor | None = None,
    learning_rate: float | tf.Tensor = 1e-3,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-8,
    weight_decay: float = 0.0,
    maximize: bool = False,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor | None]:
    """Take one Adam step on the trainable elements; leave everything of the frozen ones as it was.

    A frozen element keeps its parameter, moments and own step count, whatever its gradient (NaN too), and
    thaws as if nothing had happened. A pure function: nothing is edited in place.

    Args:
        parameter: Any shape, floating-point.
        gradient: Shape of ``parameter``.
        m: First moments, shape of ``parameter``, float32 or wider.
        v: Second moments, likewise.
        step: Steps that each element has taken so far, shape of ``parameter``, int32.
        trainable_mask: True where an element may move; bool, broadcasts to the shape of ``parameter``.
        v_max: Largest second moments so far; given, it selects AMSGrad.
        learning_rate: Size of a step.
        beta_1: Decay of the first moment, within [0, 1).
        beta_2: Decay of the second moment, within [0, 1).
        epsilon: Added to the root of the second moment, after its bias correction.
        weight_decay: Decoupled (AdamW).
        maximize: Climb instead of descend.

    Returns:
        ``parameter, m, v, step, v_max`` after the step; ``v_max`` is None where it was None.

    Raises:
        TypeError: ``parameter`` isn't a floating-point tensor, or ``trainable_mask`` isn't a bool tensor.
        ValueError: ``trainable_mask`` doesn't broadcast to the shape of ``parameter``.

    References:
        Adam, https://arxiv.org/abs/1412.6980; AdamW, https://arxiv.org/abs/1711.05101;
        AMSGrad, https://openreview.net/forum?id=ryQu7f-RZ.
    """
    trainable_mask = _as_mask(trainable_mask, parameter)
    if isinstance(learning_rate, tf.Tensor | tf.Variable | keras.Variable):
        learning_rate = tf.cast(
            learning_rate, m.dtype
        )  # a number would lose digits here, a float32 has none left
    gradient = at_least_float32(-gradient if maximize else gradient)
    new_m = beta_1 * m + (1 - beta_1) * gradient
    new_v = beta_2 * v + (1 - beta_2) * tf.square(gradient)
    new_v_max = None if v_max is None else tf.maximum(v_max, new_v)
    new_step = step + 1
    second = (new_v if new_v_max is None else new_v_max) / _bias_correction(beta_2, new_step, m)
    update = learning_rate * new_m / _bias_correction(beta_1, new_step, m) / (tf.sqrt(second) + epsilon)
    moved = at_least_float32(parameter) * (1 - learning_rate * weight_decay) - update
    return (
        tf.where(trainable_mask, tf.cast(moved, parameter.dtype), parameter),
        tf.where(trainable_mask, new_m, m),
        tf.where(trainable_mask, new_v, v),
        tf.where(trainable_mask, new_step, step),
        None if v_max is None or new_v_max is None else tf.where(trainable_mask, new_v_max, v_max),
    )


@keras.saving.register_keras_serializable(package="gradtricks")
class MaskedAdam(keras.optimizers.Optimizer):
    """Adam in which elements can be frozen and thawed at every step.

    Zeroing a gradient doesn't freeze under Adam: the moments of earlier steps keep moving the element.
    Here a frozen element keeps everything, and thaws as if nothing had happened.

    Args:
        learning_rate: Size of a step; a number or a schedule.
        beta_1: Decay of the first moment, within [0, 1).
        beta_2: Decay of the second moment, within [0, 1).
        epsilon: Added to the root of the second moment.
        weight_decay: Decoupled (AdamW); never moves a frozen element.
        amsgrad: Divide by the largest second moment so far.
        maximize: Climb instead of descend.
        **options: ``name``, ``clipnorm`` and the other options of every optimizer of the framework.

    Raises:
        TypeError: An option isn't a number.
        ValueError: An option is out of range.

    Example:
        >>> weight = tf.Variable(tf.zeros(2))
        >>> optimizer = MaskedAdam(learning_rate=0.1)
        >>> optimizer.build([weight])
        >>> optimizer.set_trainable_mask(weight, tf.constant([True, False]))
        >>> optimizer.apply([tf.ones(2)])
        >>> weight.numpy().round(4)
        array([-0.1,  0. ], dtype=float32)
    """

    def __init__(
        self,
        learning_rate: Any = 1e-3,
        *,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        maximize: bool = False,
        **options: Any,
    ) -> None:
        if not callable(learning_rate):
            learning_rate = check_number("learning_rate", learning_rate, low=0)
        options.setdefault("name", "masked_adam")
        super().__init__(learning_rate=learning_rate, **options)
        self._options: dict[str, Any] = {
            "beta_1": check_number("beta_1", beta_1, low=0, high=math.nextafter(1, 0)),
            "beta_2": check_number("beta_2", beta_2, low=0, high=math.nextafter(1, 0)),
            "epsilon": check_number("epsilon", epsilon, low=0),
            # The base class would decay frozen elements too, so it never learns of it.
            "weight_decay": check_number("weight_decay", weight_decay, low=0),
            "maximize": bool(maximize),
        }
        self._amsgrad = bool(amsgrad)

    def build(self, variables: Sequence[Any]) -> None:
        """Create the state of each variable.

        Args:
            variables: The model's trainable variables.
        """
        if self.built:
            return
        super().build(variables)
        self._m, self._v = self._add_moments(variables, "m"), self._add_moments(variables, "v")
        self._v_max = self._add_moments(variables, "v_max") if self._amsgrad else []
        self._step = [self.add_variable(v.shape, "zeros", "int32", name="step") for v in variables]
        self._trainable_mask = [
            self.add_variable(v.shape, "ones", "bool", name="trainable_mask") for v in variables
        ]

    def set_trainable_mask(self, parameter: Any, trainable_mask: tf.Tensor | None) -> None:
        """Say which elements of a parameter may move, from the next step on.

        Args:
            parameter: One of the optimizer's parameters.
            trainable_mask: True where an element may move; bool, broadcasts to the shape of ``parameter``.
                None lets all of them move.

        Raises:
            TypeError: ``trainable_mask`` isn't a bool tensor.
            ValueError: The optimizer isn't built, ``parameter`` isn't its own, or the mask doesn't broadcast
                to its shape.
        """
        if not self.built:
            raise ValueError(
                "the optimizer must be built; remedy: optimizer.build(model.trainable_variables)"
            )
        if self._var_key(parameter) not in self._trainable_variables_indices:
            raise ValueError("parameter must be one that the optimizer was given; got another variable")
        if trainable_mask is None:
            trainable_mask = tf.constant(True)
        trainable_mask = _as_mask(trainable_mask, parameter)
        index = self._get_variable_index(parameter)
        self._trainable_mask[index].assign(tf.broadcast_to(trainable_mask, parameter.shape))

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Take one step of one variable; Keras calls this.

        Args:
            gradient: Shape of ``variable``.
            variable: One of the optimizer's parameters.
            learning_rate: Size of the step.
        """
        index = self._get_variable_index(variable)
        state = [self._m[index], self._v[index], self._step[index]]
        state += [self._v_max[index]] if self._amsgrad else []
        m, v, step, *v_max = (tf.convert_to_tensor(tensor) for tensor in state)
        new_values = masked_adam_step(
            tf.convert_to_tensor(variable),
            tf.convert_to_tensor(gradient),
            m,
            v,
            step,
            tf.convert_to_tensor(self._trainable_mask[index]),
            v_max=v_max[0] if v_max else None,
            learning_rate=learning_rate,
            **self._options,
        )
        for old, new in zip([variable, *state], new_values, strict=False):  # v_max is None without AMSGrad
            self.assign(old, new)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that make an equal optimizer.

        Returns:
            Keyword arguments of the class.
        """
        return {**super().get_config(), **self._options, "amsgrad": self._amsgrad}

    def _add_moments(self, variables: Sequence[Any], name: str) -> list[Any]:
        return [self.add_variable(v.shape, "zeros", _wide_dtype(v), name=name) for v in variables]


def _wide_dtype(variable: Any) -> str:
    dtype = tf.as_dtype(variable.dtype)
    return "float32" if dtype.size < 4 else dtype.name


def _bias_correction(beta: float, step: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    # 1 - beta**t in float32 would lose four digits at t = 1; the steps differ between elements.
    return -tf.math.expm1(tf.cast(step, like.dtype) * (math.log(beta) if beta else -math.inf))


def _as_mask(trainable_mask: tf.Tensor, parameter: tf.Tensor) -> tf.Tensor:
    parameter = as_floating("parameter", parameter)
    trainable_mask = as_tensor("trainable_mask", trainable_mask)
    if trainable_mask.dtype != tf.bool:
        raise TypeError(f"trainable_mask must be bool (True = trainable); got {trainable_mask.dtype.name}")
    check_broadcast("trainable_mask", trainable_mask.shape, parameter.shape, "parameter")
    return trainable_mask
