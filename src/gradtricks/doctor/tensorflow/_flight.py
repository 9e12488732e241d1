"""The flight recorder of TensorFlow."""

import pickle
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from gradtricks.doctor.diagnosing import diagnosed
from gradtricks.doctor.flight import Recording
from gradtricks.doctor.operations import calling_line
from gradtricks.doctor.reports import Diagnosis
from gradtricks.doctor.tensorflow._watching import Watch
from gradtricks.doctor.tensorflow.diagnosing import REMEDIES
from gradtricks.doctor.watching import EnoughSeen, as_several


class FlightRecorder(Recording):
    """Looks at the gradients of a long training, and says what broke it when it does.

    Before each update it takes the norm of all gradients, within the step's graph where it has one. Where
    that isn't finite, the update isn't made: the step is done again eagerly with the same batch, weights and
    random numbers, as `diagnose` watches one, and its cause is raised. Nothing else of the training changes.
    Make it before the step is traced. A `LossScaleOptimizer` leaves out updates before they are looked at.

    Random numbers that begin anew are those of Python, NumPy, `tf.random.get_global_generator()` and layers,
    not those of `tf.random.normal` and its like, whose count TensorFlow doesn't give away.

    Args:
        model: The models or layers that are trained, built.
        optimizer: Those that the step uses.
        every: At every how many steps to look; a graph looks at each. Beyond 1, weights may be spoilt by the
            time that it is seen.
        folder: Where snapshots of broken steps go; None keeps none. They are read by `pickle`, which may run
            what is in them, so replay only your own.

    Example:
        >>> model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
        >>> optimizer = keras.optimizers.SGD(0.1)
        >>> def step(x):
        ...     with tf.GradientTape() as tape:
        ...         loss = tf.reduce_mean(model(x) ** 2)
        ...     gradients = tape.gradient(loss, model.trainable_variables)
        ...     optimizer.apply(gradients, model.trainable_variables)
        >>> with FlightRecorder(model, optimizer, folder=None) as recorder:
        ...     for _ in range(3):
        ...         recorder.step(step, tf.ones([4, 2]))
        >>> recorder.num_steps
        3
    """

    def __init__(
        self,
        model: keras.Layer | Iterable[keras.Layer],
        optimizer: keras.optimizers.Optimizer | Iterable[keras.optimizers.Optimizer],
        *,
        every: int = 1,
        folder: Path | str | None = "flight",
    ) -> None:
        super().__init__(every, folder)
        self.models = as_several("model", model, keras.Layer)
        self.optimizers = as_several("optimizer", optimizer, keras.optimizers.Optimizer)
        self.watch: Watch | None = None
        # What a graph has seen.
        self.norm, self.looked, self.spoilt = (tf.Variable(x, trainable=False) for x in (0.0, False, False))
        # What scales the loss hands an update that it makes to the optimizer within.
        self.inner = [getattr(each, "inner_optimizer", each) for each in self.optimizers]
        for each in self.inner:
            each.apply = self._guarded(each)

    def close(self) -> None:
        """Look no more."""
        for each in self.inner:
            vars(each).pop("apply", None)

    def _keep(self) -> None:
        self.spoilt.assign(False)
        self.looked.assign(False)
        self.random: dict[str, Any] = {"python": random.getstate(), "numpy": np.random.get_state()}
        self.kept = [(variable, variable.numpy()) for variable in self._untrained()]

    def _restore(self) -> None:
        random.setstate(self.random["python"])
        np.random.set_state(self.random["numpy"])
        for variable, value in self.kept:
            variable.assign(value)

    def _broken(self) -> bool:
        if bool(self.looked):
            self.norms.append(float(self.norm))
        return bool(self.spoilt)

    def _save(self, path: Path, batch: list[Any]) -> Path:
        file = path.with_suffix(".pickle")
        values = [[v.numpy() for v in each.variables] for each in (*self.models, *self.optimizers)]
        others = [value for _, value in self.kept]
        arrays = tf.nest.map_structure(lambda x: x.numpy() if isinstance(x, tf.Tensor) else x, batch)
        kept = {"values": values, "others": others, "random": self.random, "batch": arrays}
        file.write_bytes(pickle.dumps(kept))
        return file

    def _load(self, path: Path) -> list[Any]:
        kept = pickle.loads(path.read_bytes())  # noqa: S301  # one's own, as the docstring says
        for each in self.optimizers:
            each.build(self._trained())
        for each, values in zip((*self.models, *self.optimizers), kept["values"], strict=True):
            for variable, value in zip(each.variables, values, strict=True):
                variable.assign(value)
        self.random, self.kept = kept["random"], list(zip(self._untrained(), kept["others"], strict=True))
        self._restore()
        return tf.nest.map_structure(
            lambda x: tf.convert_to_tensor(x) if isinstance(x, np.ndarray | np.generic) else x, kept["batch"]
        )

    def _observe(self, again: Callable[[], Any]) -> Diagnosis:
        watch = self.watch = Watch()
        watch.add_all(self.models)
        try:
            with watch:
                again()
        finally:
            self.watch = None
        return diagnosed(watch.history, REMEDIES)

    def _guarded(self, optimizer: keras.optimizers.Optimizer) -> Callable[..., Any]:
        """Return what applies gradients if they are finite, as the optimizer's class has it by then."""

        @tf.autograph.experimental.do_not_convert
        def apply(grads: Any, trainable_variables: Any = None) -> Any:
            grads = list(grads)
            if self.watch:
                variables = self._trained() if trainable_variables is None else trainable_variables
                self.watch.updates.before(optimizer, grads, list(variables), calling_line())
                raise EnoughSeen
            update = type(optimizer).apply
            if tf.executing_eagerly():
                if not self._due or bool(self._look(grads)):
                    return update(optimizer, grads, trainable_variables)
                self._leave()
            with tf.init_scope():
                optimizer.build(self._trained() if trainable_variables is None else trainable_variables)

            def applied() -> tf.Tensor:
                update(optimizer, grads, trainable_variables)
                return tf.constant(True)

            return tf.cond(self._look(grads), applied, lambda: self.spoilt.assign(True))

        return apply

    def _look(self, gradients: list[Any]) -> tf.Tensor:
        """Note the norm of some gradients; return whether all of them are finite."""
        given = [_values(gradient) for gradient in gradients if gradient is not None]
        norm, finite = _reading(given or [tf.zeros(())])
        if tf.executing_eagerly():
            self.norms.append(float(norm))
        else:
            self.norm.assign(norm)
            self.looked.assign(True)
        return finite

    def _trained(self) -> list[Any]:
        return [variable for model in self.models for variable in model.trainable_variables]

    def _untrained(self) -> list[Any]:
        try:
            generators = [tf.random.get_global_generator().state]
        except RuntimeError:  # determinism is asked for, and nobody has set one
            generators = []
        return [*generators, *(v for model in self.models for v in model.non_trainable_variables)]


def _values(gradient: Any) -> tf.Tensor:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


@tf.function(reduce_retracing=True)
def _reading(gradients: list[tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    wide = [tf.cast(gradient, tf.float32) for gradient in gradients]
    # The norm of large finite numbers isn't finite either.
    finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(gradient)) for gradient in gradients])
    return tf.linalg.global_norm(wide), finite
