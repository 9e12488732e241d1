"""Adam for a changing set of trainable elements."""

import math
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from gradtricks._checks import check_broadcast, check_number, check_shape
from gradtricks.tensorflow._tensors import TENSORS, as_floating, as_tensor, at_least_float32


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
        TypeError: A tensor is of the wrong dtype, or isn't one.
        ValueError: A shape isn't that of ``parameter``, or ``trainable_mask`` doesn't broadcast to it.

    References:
        Adam, https://arxiv.org/abs/1412.6980; AdamW, https://arxiv.org/abs/1711.05101;
        AMSGrad, https://openreview.net/forum?id=ryQu7f-RZ.
    """
    parameter, gradient = as_floating("parameter", parameter), as_floating("gradient", gradient)
    m, v, step = as_floating("m", m), as_floating("v", v), as_tensor("step", step)
    for name, tensor in {"gradient": gradient, "m": m, "v": v, "step": step}.items():
        check_shape(name, tensor.shape, parameter.shape, "parameter")
    trainable_mask = _as_mask(trainable_mask, parameter)
    if isinstance(learning_rate, TENSORS):
        learning_rate = tf.cast(learning_rate, m.dtype)  # of a number, this would take digits away
    # What a frozen element's gradient holds must not reach anything, the backward pass included.
    gradient = at_least_float32(_where_trainable(trainable_mask, -gradient if maximize else gradient))
    new_m = beta_1 * m + (1 - beta_1) * gradient
    new_v = beta_2 * v + (1 - beta_2) * tf.square(gradient)
    new_v_max = None if v_max is None else tf.maximum(v_max, new_v)
    new_step = step + 1
    second = (new_v if new_v_max is None else new_v_max) / _bias_correction(beta_2, new_step, m)
    moving = second > 0  # at 0 the root has no slope; there it counts as 0
    one, zero = tf.ones([], m.dtype), tf.zeros([], m.dtype)
    root = tf.where(moving, tf.sqrt(tf.where(moving, second, one)), zero)
    update = learning_rate * new_m / _bias_correction(beta_1, new_step, m) / (root + epsilon)
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
        **options: ``name``, ``clipnorm``, ``clipvalue``, ``global_clipnorm`` and ``loss_scale_factor`` of
            every optimizer of the framework; frozen elements don't count when norms are taken.

    Raises:
        TypeError: An option isn't a number.
        ValueError: An option is out of range, or would move frozen elements.

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
        for name, neutral in {"use_ema": False, "gradient_accumulation_steps": None}.items():
            if options.get(name, neutral) != neutral:
                raise ValueError(
                    f"{name} would move frozen elements; got {options[name]}; remedy: leave it out"
                )
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
        if not _is_known(self, parameter):
            raise ValueError("parameter must be one that the optimizer was given; got another variable")
        if trainable_mask is None:
            trainable_mask = tf.constant(True)
        trainable_mask = _as_mask(trainable_mask, parameter)
        index = self._get_variable_index(parameter)
        self._trainable_mask[index].assign(tf.broadcast_to(trainable_mask, parameter.shape))

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> Any:
        """Take one step; Keras calls this, and everybody who has gradients at hand.

        Args:
            grads: One for each variable, in order.
            trainable_variables: None means those that the optimizer was built with.

        Returns:
            What the base class returns.
        """
        if trainable_variables is not None:
            self.build(list(trainable_variables))
        variables = self._trainable_variables if trainable_variables is None else trainable_variables
        masked = [
            g if g is None else _where_trainable(self._trainable_mask[self._get_variable_index(v)], g)
            for g, v in zip(grads, variables, strict=True)
        ]
        return super().apply(masked, trainable_variables)

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
            **self._options | ({} if self._use_weight_decay(variable) else {"weight_decay": 0.0}),
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


def _is_known(optimizer: Any, variable: Any) -> bool:
    variables = (tf.Variable, keras.Variable)
    return isinstance(variable, variables) and (
        optimizer._var_key(variable) in optimizer._trainable_variables_indices
    )


def _where_trainable(trainable_mask: Any, gradient: Any) -> tf.Tensor:
    gradient = tf.convert_to_tensor(gradient)
    return tf.where(tf.convert_to_tensor(trainable_mask), gradient, tf.zeros_like(gradient))


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
