"""Adam for a changing set of trainable elements."""

import math
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import keras
import tensorflow as tf

from gradtricks._core.checks import check_broadcast, check_number, check_shape
from gradtricks._core.kernels.bias_corrections import table, table_length
from gradtricks.tensorflow._tensors import TENSORS, as_floating, as_tensor, at_least_float32

_LARGE = 2**14  # elements from which on XLA's fusion is worth its compilation
_HAS_XLA = sys.platform != "darwin"


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
        TypeError: A tensor is of the wrong dtype, or isn't one; an option isn't a number.
        ValueError: A shape isn't that of ``parameter``, ``trainable_mask`` doesn't broadcast to it, or an
            option is out of range.

    References:
        Adam, https://arxiv.org/abs/1412.6980; AdamW, https://arxiv.org/abs/1711.05101;
        AMSGrad, https://openreview.net/forum?id=ryQu7f-RZ.
    """
    parameter, gradient = as_floating("parameter", parameter), as_floating("gradient", gradient)
    m, v, step = as_floating("m", m), as_floating("v", v), _as_counts(step)
    largest = v if v_max is None else as_floating("v_max", v_max)
    for name, tensor in {"gradient": gradient, "m": m, "v": v, "step": step, "v_max": largest}.items():
        check_shape(name, tensor.shape, parameter.shape, "parameter")
    _check_options(learning_rate, beta_1, beta_2, epsilon, weight_decay)
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

    Large parameters are updated by a computation that XLA compiles, in eager code and in graphs. The count in
    the state, ``step``, was true when the mask was set; trainable elements have taken ``since`` more. Under a
    ``LossScaleOptimizer`` set the mask of its ``inner_optimizer``; it skips a step where any gradient isn't
    finite, a frozen element's included.

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
        for name, neutral in {"use_ema": False, "gradient_accumulation_steps": None}.items():
            if options.get(name, neutral) != neutral:
                raise ValueError(
                    f"{name} would move frozen elements; got {options[name]}; remedy: leave it out"
                )
        _check_options(
            0.0 if callable(learning_rate) else learning_rate, beta_1, beta_2, epsilon, weight_decay
        )
        options.setdefault("name", "masked_adam")
        super().__init__(learning_rate=learning_rate, **options)
        # The base class would decay frozen elements too, so it never learns of the weight decay.
        self._options = {"beta_1": float(beta_1), "beta_2": float(beta_2), "epsilon": float(epsilon)}
        self._options |= {"weight_decay": float(weight_decay), "maximize": bool(maximize)}
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
        self._since = [self.add_variable((), "zeros", "int32", name="since") for _ in variables]
        self._common = [self.add_variable((), "zeros", "int32", name="common") for _ in variables]
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
        step, since, old_mask = self._step[index], self._since[index], self._trainable_mask[index]
        step.assign(tf.where(tf.convert_to_tensor(old_mask), step + since, step))
        since.assign(0)
        old_mask.assign(tf.broadcast_to(trainable_mask, parameter.shape))
        self._common[index].assign(_common_count(tf.convert_to_tensor(step), trainable_mask))

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
        if self.clipnorm is not None or self.global_clipnorm is not None:
            variables = self._trainable_variables if trainable_variables is None else trainable_variables
            grads = [
                g if g is None else _where_trainable(self._trainable_mask[self._get_variable_index(v)], g)
                for g, v in zip(grads, variables, strict=True)
            ]
        return super().apply(grads, trainable_variables)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Take one step of one variable; Keras calls this.

        Args:
            gradient: Shape of ``variable``.
            variable: One of the optimizer's parameters.
            learning_rate: Size of the step.
        """
        index = self._get_variable_index(variable)
        state = [self._m[index], self._v[index], *([self._v_max[index]] if self._amsgrad else [])]
        m, v, *v_max = (tf.convert_to_tensor(tensor) for tensor in state)
        large = _HAS_XLA and variable.shape.num_elements() >= _LARGE
        take_step: Callable[..., list[tf.Tensor]] = _step_by_xla if large else _step_by_tensors
        new_values = take_step(
            tf.convert_to_tensor(variable),
            tf.convert_to_tensor(gradient),
            m,
            v,
            *(tf.convert_to_tensor(x[index]) for x in (self._step, self._since, self._common)),
            tf.convert_to_tensor(self._trainable_mask[index]),
            v_max=v_max[0] if v_max else None,
            learning_rate=tf.cast(learning_rate, m.dtype),
            **self._options | ({} if self._use_weight_decay(variable) else {"weight_decay": 0.0}),
        )
        for old, new in zip([variable, *state], new_values, strict=True):
            self.assign(old, new)
        self._since[index].assign_add(1)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that make an equal optimizer.

        Returns:
            Keyword arguments of the class.
        """
        return {**super().get_config(), **self._options, "amsgrad": self._amsgrad}

    def _add_moments(self, variables: Sequence[Any], name: str) -> list[Any]:
        return [self.add_variable(v.shape, "zeros", _wide_dtype(v), name=name) for v in variables]


def _step_by_tensors(
    parameter: tf.Tensor,
    gradient: tf.Tensor,
    m: tf.Tensor,
    v: tf.Tensor,
    step: tf.Tensor,
    since: tf.Tensor,
    common: tf.Tensor,
    trainable_mask: tf.Tensor,
    **options: Any,
) -> list[tf.Tensor]:
    parameter, m, v, _, v_max = masked_adam_step(
        parameter, gradient, m, v, step + since, trainable_mask, **options
    )
    return [parameter, m, v, *([] if v_max is None else [v_max])]


def _step_by_xla(
    parameter: tf.Tensor,
    gradient: tf.Tensor,
    m: tf.Tensor,
    v: tf.Tensor,
    step: tf.Tensor,
    since: tf.Tensor,
    common: tf.Tensor,
    trainable_mask: tf.Tensor,
    **options: Any,
) -> list[tf.Tensor]:
    learning_rate, v_max = options.pop("learning_rate"), options.pop("v_max")
    compiled_step = _compiled(tuple(parameter.shape), parameter.dtype.name, **options)

    def with_count(count: tf.Tensor) -> Callable[[], list[tf.Tensor]]:
        return lambda: compiled_step(
            parameter, gradient, m, v, count, since, trainable_mask, learning_rate, v_max
        )

    # Where the trainable elements agree on their count, the bias corrections are two numbers.
    return tf.cond(common >= 0, with_count(common), with_count(step))


@cache
def _compiled(shape: tuple[int, ...], dtype: str, **options: Any) -> Callable[..., list[tf.Tensor]]:
    # One function for each shape, because TensorFlow warns of a function that is traced often.
    del shape, dtype
    return tf.function(partial(_fused_step, **options), jit_compile=True, autograph=False)


def _fused_step(
    parameter: tf.Tensor,
    gradient: tf.Tensor,
    m: tf.Tensor,
    v: tf.Tensor,
    count: tf.Tensor,
    since: tf.Tensor,
    trainable_mask: tf.Tensor,
    learning_rate: tf.Tensor,
    v_max: tf.Tensor | None,
    *,
    beta_1: float,
    beta_2: float,
    epsilon: float,
    weight_decay: float,
    maximize: bool,
) -> list[tf.Tensor]:
    # What masked_adam_step does, without a care for slopes. XLA makes one loop of each result; that of the
    # parameter reads less when the moments are chosen first.
    gradient = at_least_float32(-gradient if maximize else gradient)
    new_m = tf.where(trainable_mask, beta_1 * m + (1 - beta_1) * gradient, m)
    new_v = tf.where(trainable_mask, beta_2 * v + (1 - beta_2) * tf.square(gradient), v)
    largest = new_v if v_max is None else tf.where(trainable_mask, tf.maximum(v_max, new_v), v_max)
    rate = learning_rate / _bias_correction(beta_1, count + since + 1, m)
    inverse_root = 1 / tf.sqrt(_bias_correction(beta_2, count + since + 1, m))
    update = rate * new_m / (tf.sqrt(largest) * inverse_root + epsilon)
    moved = at_least_float32(parameter) * (1 - learning_rate * weight_decay) - update
    new_parameter = tf.where(trainable_mask, tf.cast(moved, parameter.dtype), parameter)
    return [new_parameter, new_m, new_v, *([] if v_max is None else [largest])]


def _common_count(step: tf.Tensor, trainable_mask: tf.Tensor) -> tf.Tensor:
    low = tf.reduce_min(tf.where(trainable_mask, step, step.dtype.max))
    high = tf.reduce_max(tf.where(trainable_mask, step, -1))
    return tf.where(low == high, low, -1)


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
    if table_length(beta, like.dtype.name) <= (step.shape.num_elements() or 0):
        corrections = table(beta, like.dtype.name)
        return tf.gather(corrections, tf.minimum(step, len(corrections) - 1))
    # 1 - beta**t in float32 would lose four digits at t = 1; the steps differ between elements.
    return -tf.math.expm1(tf.cast(step, like.dtype) * (math.log(beta) if beta else -math.inf))


def _check_options(
    learning_rate: float | tf.Tensor, beta_1: float, beta_2: float, epsilon: float, weight_decay: float
) -> None:
    if not isinstance(learning_rate, TENSORS):
        check_number("learning_rate", learning_rate, low=0)
    check_number("beta_1", beta_1, low=0, high=math.nextafter(1, 0))
    check_number("beta_2", beta_2, low=0, high=math.nextafter(1, 0))
    check_number("epsilon", epsilon, low=0)
    check_number("weight_decay", weight_decay, low=0)


def _as_counts(step: tf.Tensor) -> tf.Tensor:
    step = as_tensor("step", step)
    if not step.dtype.is_integer:
        raise TypeError(f"step must hold integers; got {step.dtype.name}; remedy: tf.cast(step, tf.int32)")
    return step


def _as_mask(trainable_mask: tf.Tensor, parameter: tf.Tensor) -> tf.Tensor:
    parameter = as_floating("parameter", parameter)
    trainable_mask = as_tensor("trainable_mask", trainable_mask)
    if trainable_mask.dtype != tf.bool:
        raise TypeError(f"trainable_mask must be bool (True = trainable); got {trainable_mask.dtype.name}")
    check_broadcast("trainable_mask", trainable_mask.shape, parameter.shape, "parameter")
    return trainable_mask
