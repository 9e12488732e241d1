"""Adam for Keras, in which elements can be frozen and thawed at every step."""

import math
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from gradtricks.tensorflow._adam import as_options, is_small, shaped, stepper, wide_dtype
from gradtricks.tensorflow._masked_optimizer import index_of, where_trainable
from gradtricks.tensorflow._narrowing import as_rounding, check_narrow, rounded_step
from gradtricks.tensorflow._tensors import TENSORS, as_mask


@keras.saving.register_keras_serializable(package="gradtricks")
class MaskedAdam(keras.optimizers.Optimizer):
    """Adam in which elements can be frozen and thawed at every step.

    Zeroing a gradient doesn't freeze under Adam: the moments of earlier steps keep moving the element.
    Here a frozen element keeps everything, and thaws as if nothing had happened.

    Arguments are those of ``keras.optimizers.Adam`` but for ``use_ema`` and ``gradient_accumulation_steps``,
    which would move frozen elements; ``epsilon`` is added after the bias correction, and frozen elements
    don't count when norms are taken. Large parameters are updated by a computation that XLA compiles, small
    ones all in one. Under a ``LossScaleOptimizer`` set the mask of its ``inner_optimizer``; it skips a step
    where any gradient isn't finite, a frozen element's included.

    With ``rounding``, which wants variables of 16 bits, steps are taken in float32. ``"stochastic"`` rounds
    their results as `round_stochastically` does, with noise that follows from ``seed``, the step and the
    variable: replicas draw the same, and so does a training that goes on after a pause. XLA makes other
    noise of a seed, and ``seed=None`` draws one. ``"compensated"`` adds as `add_compensated` does, and keeps
    the compensation of each variable in its dtype.

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
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        amsgrad: bool = False,
        weight_decay: float | None = None,
        *,
        rounding: str | None = None,
        seed: int | None = None,
        **options: Any,
    ) -> None:
        for name in ("use_ema", "gradient_accumulation_steps"):
            if options.get(name):
                raise ValueError(
                    f"{name} would move frozen elements; got {options[name]}; remedy: leave it out"
                )
        if isinstance(learning_rate, TENSORS) and learning_rate.shape.num_elements() != 1:
            got = tuple(learning_rate.shape)
            raise ValueError(f"learning_rate must be a number or have one element; got shape {got}")
        numbers = as_options(learning_rate, beta_1, beta_2, epsilon, weight_decay or 0.0)
        rounding, seed = as_rounding(rounding, seed)
        options.setdefault("name", "masked_adam")
        super().__init__(learning_rate=learning_rate, **options)
        _, self.beta_1, self.beta_2, self.epsilon, decay = numbers
        self.amsgrad = bool(amsgrad)
        # The base class would decay frozen elements too, so it never learns of the weight decay.
        self._decay = None if weight_decay is None else decay
        self.rounding, self.seed = rounding, seed

    def build(self, variables: Sequence[Any]) -> None:
        """Create the state of each variable."""
        if self.built:
            return
        check_narrow(self.rounding, variables)
        super().build(variables)
        self._momentums = [self._add(v, wide_dtype(v), "momentum") for v in variables]
        self._velocities = [self._add(v, wide_dtype(v), "velocity") for v in variables]
        hatted = variables if self.amsgrad else []
        self._velocity_hats = [self._add(v, wide_dtype(v), "velocity_hat") for v in hatted]
        self._step = [self.add_variable((), "zeros", "int32", name="step") for _ in variables]
        # Own steps say nothing until elements differ in them, which is when a mask first changes after a
        # step.
        self._own_steps = [self._add(v, "int32", "own_steps") for v in variables]
        # Small parameters count them from the start, which is less work than to ask.
        known = ["ones" if is_small(v) else "zeros" for v in variables]
        self._differ = [self.add_variable((), how, "bool", name="differ") for how in known]
        self._adopted = False
        self._trainable_mask = [self._add(v, "bool", "trainable_mask", "ones") for v in variables]
        summed = variables if self.rounding == "compensated" else []
        self._compensations = [self._add(v, v.dtype, "compensation") for v in summed]

    def set_trainable_mask(self, parameter: Any, trainable_mask: tf.Tensor | None) -> None:
        """Say which elements of a parameter may move, from the next step on.

        Args:
            parameter: One of the optimizer's parameters.
            trainable_mask: True where an element may move; bool, broadcasts to the shape of ``parameter``.
                None lets all of them move.

        Raises:
            ValueError: A mask for a parameter with a constraint, which would move frozen elements.
        """
        index = index_of(self, parameter)
        if trainable_mask is not None and parameter.constraint is not None:
            raise ValueError(
                "parameter must have no constraint, which would move frozen elements; got "
                f"{type(parameter.constraint).__name__}; remedy: MaskedOptimizer(keras.optimizers.Adam())"
            )
        mask = as_mask(tf.constant(True) if trainable_mask is None else trainable_mask, parameter)
        mask = tf.broadcast_to(mask, parameter.shape)
        old = tf.convert_to_tensor(self._trainable_mask[index])
        taken = tf.convert_to_tensor(self._step[index])
        known = tf.convert_to_tensor(self._differ[index])
        changed = (taken > 0) & ~known & tf.reduce_any(mask != old)
        tf.cond(changed, lambda: self._begin_own_steps(index), tf.no_op)
        self._trainable_mask[index].assign(mask)

    def _begin_own_steps(self, index: int) -> None:
        taken = tf.where(tf.convert_to_tensor(self._trainable_mask[index]), self._step[index].value, 0)
        self._own_steps[index].assign(taken)
        self._differ[index].assign(True)

    def load_own_variables(self, store: Any) -> None:
        """Load the state; Keras calls this."""
        super().load_own_variables(store)
        self._adopt_older_state()

    def _adopt_older_state(self) -> None:
        # Earlier versions kept no own steps of small parameters until a mask changed. What a graph creates
        # has no value before the graph runs, unless it was restored.
        for index, variable in enumerate(self._trainable_variables):
            differ = self._differ[index].value
            if is_small(variable) and differ.is_initialized() and not tf.convert_to_tensor(differ):
                self._begin_own_steps(index)
        self._adopted = True

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> Any:
        """Take one step; Keras calls this, and everybody who has gradients at hand, one for each variable."""
        if trainable_variables is not None:
            self.build(list(trainable_variables))
        if self.clipnorm is not None or self.global_clipnorm is not None:
            variables = self._trainable_variables if trainable_variables is None else trainable_variables
            masks = [self._trainable_mask[self._get_variable_index(v)] for v in variables]
            grads = [g if g is None else where_trainable(m, g) for m, g in zip(masks, grads, strict=True)]
        return super().apply(grads, trainable_variables)

    def _backend_update_step(
        self, grads: Sequence[Any], trainable_variables: Any, learning_rate: Any
    ) -> None:
        # One by one, small variables cost more in calls than in arithmetic. Replicas take theirs one by one.
        together: dict[Any, list[Any]] = {}
        alone = []
        for gradient, variable in zip(grads, trainable_variables, strict=True):
            if is_small(variable) and not tf.distribute.has_strategy():
                kind = gradient.dtype, variable.dtype, self._use_weight_decay(variable)
                together.setdefault(kind, []).append((gradient, variable))
            else:
                alone.append((gradient, variable))
        if together and not self._adopted:
            with tf.init_scope():  # a checkpoint may have been restored meanwhile
                self._adopt_older_state()
        for pairs in together.values():
            self._step_together(pairs, learning_rate)
        if alone:
            given, variables = zip(*alone, strict=True)
            super()._backend_update_step(given, variables, learning_rate)

    def _step_together(self, pairs: Sequence[tuple[Any, Any]], learning_rate: Any) -> None:
        gradients, variables = zip(*pairs, strict=True)
        indices = [self._get_variable_index(variable) for variable in variables]

        def of(state: list[Any]) -> list[Any]:
            return [state[index].value for index in indices]

        def flat(tensors: Sequence[Any]) -> tf.Tensor:
            return tf.concat([shaped(tensor, [-1]) for tensor in tensors], 0)

        sizes = [math.prod(variable.shape) for variable in variables]
        take_step = stepper(rounded_step, sum(sizes), **self._options_of(variables[0]))
        masks, hats = of(self._trainable_mask), of(self._velocity_hats) if self.amsgrad else None
        moments, steps = (of(self._momentums), of(self._velocities)), of(self._own_steps)
        kept = of(self._compensations) if self._compensations else None
        new = take_step(
            *map(flat, (variables, gradients, *moments, steps, masks)),
            None if hats is None else flat(hats),
            tf.cast(learning_rate, moments[0][0].dtype),
            rest=flat(kept) if kept else self._seed_of(indices[0]),
        )
        for state, values in zip((variables, *moments, steps, hats, kept), new, strict=True):
            if state is not None:
                for old, value in zip(state, tf.split(values, sizes), strict=True):
                    old.assign(shaped(value, old.shape))

    def _seed_of(self, index: int) -> Any:
        if self.rounding != "stochastic":
            return None
        turn = tf.cast(self.iterations.value, tf.int64) * len(self._step) + index
        return tf.stack([tf.constant(self.seed, tf.int64), turn])

    def _options_of(self, variable: Any) -> dict[str, Any]:
        decay = (self._decay or 0.0) if self._use_weight_decay(variable) else 0.0
        betas = {"beta_1": self.beta_1, "beta_2": self.beta_2}
        return {**betas, "epsilon": self.epsilon, "weight_decay": decay, "rounding": self.rounding}

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Take one step of one variable; Keras calls this."""
        index, options = self._get_variable_index(variable), self._options_of(variable)
        take_step = stepper(_step_by_tensors, variable.shape.num_elements(), **options)
        moments = self._momentums[index].value, self._velocities[index].value
        v_max = self._velocity_hats[index].value if self.amsgrad else None
        mask, rate = self._trainable_mask[index].value, tf.cast(learning_rate, moments[0].dtype)
        rest = self._compensations[index].value if self._compensations else self._seed_of(index)
        arguments = variable, tf.convert_to_tensor(gradient), *moments, mask, v_max, rate, rest
        step, own_steps = self._step[index].value, self._own_steps[index].value
        tf.cond(
            self._differ[index].value,
            lambda: take_step(own_steps, *arguments, counting=True),
            lambda: take_step(step, *arguments, counting=False),
        )
        step.assign_add(1)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that make an equal optimizer."""
        options = {"beta_1": self.beta_1, "beta_2": self.beta_2, "epsilon": self.epsilon}
        options |= {"amsgrad": self.amsgrad, "weight_decay": self._decay}
        return {**super().get_config(), **options, "rounding": self.rounding, "seed": self.seed}

    def _add(self, like: Any, dtype: str, name: str, initializer: str = "zeros") -> Any:
        return self.add_variable(like.shape, initializer, dtype, name=name)


def _step_by_tensors(step: tf.Variable, *arguments: Any, counting: bool, **options: Any) -> None:
    parameter, gradient, m, v, mask, v_max, rate, rest = arguments
    state = parameter, m, v, step if counting else None, v_max, rest
    given = parameter, gradient, m, v, step, mask, v_max, rate
    for old, value in zip(state, rounded_step(*given, rest=rest, **options), strict=True):
        if old is not None and value is not None:
            old.assign(value)
