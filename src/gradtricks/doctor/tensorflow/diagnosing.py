"""Naming what is wrong with the gradients of a training.

A healthy step is ``w <- w - rate * f(dL/dw)``: once for each weight, with this step's gradient alone, where
``0 < |dL/dw| < infinity`` and the sum isn't rounded away. What breaks any of this is named, with its line.
"""

from collections.abc import Callable, Iterable
from typing import Any

import keras
import tensorflow as tf

from gradtricks._core.checks import check_callable, check_integer
from gradtricks.doctor.diagnosing import diagnosed, noted
from gradtricks.doctor.reports import Diagnosis
from gradtricks.doctor.tensorflow._watching import Watch
from gradtricks.doctor.watching import as_several

REMEDIES = {
    "not finite, data": "look at the batch: tf.debugging.assert_all_finite; or at weights that were loaded",
    "not finite, backward": "keep arguments off 0 before a root, a norm, a logarithm or a division",
    "dead term": "take a differentiable stand-in for what only counts: log probabilities for an accuracy",
    "broadcast": "give both the same shape: tf.squeeze(predictions, 1), or targets[:, None]",
    "logits expected": "give the loss what goes into the softmax or sigmoid",
    "penalty left out": "add the penalties to the loss: loss += tf.add_n(model.losses)",
    "not registered": "make these layers attributes of a model, or freeze them: layer.trainable = False",
    "underflow": "keras.optimizers.LossScaleOptimizer(optimizer), and its scale_loss for the loss",
    "skipped updates": "mend what makes these gradients NaN or infinite; the scaling only leaves them out",
    "no backward pass": "call tape.gradient(loss, model.trainable_variables) in the step",
    "not in the optimizer": "give tape.gradient and optimizer.apply all of model.trainable_variables",
    "twice in the optimizer": "give each variable once",
    "never updated": "call optimizer.apply(gradients, variables) after tape.gradient",
    "never zeroed": "start each update from the gradients of its own batch",
    "clip unused": "gradients, _ = tf.clip_by_global_norm(gradients, norm), and apply those",
    "clip after the update": "clip between tape.gradient and optimizer.apply",
    "clip before unscaling": "let the optimizer clip: LossScaleOptimizer(Adam(global_clipnorm=1.0))",
    "frozen but moving": "gradtricks.tensorflow.MaskedAdam; or leave it out of what is applied",
    "learning rate of 0": "look at optimizer.learning_rate and the schedule",
    "rounded away": "keep the variables in float32: the dtype policy 'mixed_bfloat16'",
    "training in evaluation mode": "model(x, training=True) in the training step",
    "evaluation in training mode": "model(x, training=False) in an evaluation",
    "coupled samples": "use LayerNormalization, or training=False where you take gradients of samples",
    "parts not averaged": "gradtricks.tensorflow.accumulate_gradients",
    "parts of unequal weight": "gradtricks.tensorflow.accumulate_gradients",
    "vanishing": "residual connections, normalization, another activation or initialization",
    "exploding": "a smaller initialization, normalization, or Adam(global_clipnorm=1.0)",
    "zero factor": "advantages are 0 where all rewards of a group are equal: draw more answers, from prompts "
    "that are solved sometimes; a mask must leave something",
    "loss of 0": "nothing to mend where advantages are meant to cancel, as in GRPO: watch the reward",
}


def diagnose(
    step: Callable[[], Any],
    model: keras.Layer | Iterable[keras.Layer],
    optimizer: keras.optimizers.Optimizer | Iterable[keras.optimizers.Optimizer],
    *,
    num_steps: int = 3,
) -> Diagnosis:
    """Watch some training steps; say what is wrong with their gradients, where, and what to do.

    The steps are part of the training: weights, state of the optimizer and random numbers come out as they
    would have, bit for bit, where the step runs eagerly. A `tf.function` is run eagerly meanwhile, which may
    round and draw otherwise than its graph. All tensors of a step are kept until its end, so it takes more
    memory. The sums that end in the loss are differentiated once more, and where a gradient is missing, zero
    everywhere or not finite, all of the step. A reentrant checkpoint that passes nothing on is a mistake of
    PyTorch only: variables that `tf.recompute_grad` reads get gradients.

    Args:
        step: Takes one whole training step with an optimizer, without arguments: forward, backward, update.
        model: The models or layers whose gradients are judged, built.
        optimizer: Those that the step uses.
        num_steps: How often the step is called; some things show in the second only.

    Returns:
        What was found, in the order in which it should be mended; print it.

    Raises:
        Exception: The step raised it; a note says what was found until then.
        RuntimeError: Called within a `tf.function`.

    References:
        What it finds is collected from trackers: ``tests/doctor/issues_tensorflow.py`` names the threads.

    Example:
        >>> model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
        >>> optimizer = keras.optimizers.SGD(0.1)
        >>> def step():
        ...     with tf.GradientTape() as tape:
        ...         loss = tf.reduce_mean(tf.round(model(tf.ones([4, 2]))))
        ...     gradients = tape.gradient(loss, model.trainable_variables)
        >>> diagnose(step, model, optimizer).kinds
        ('cut', 'never updated')
    """
    if not tf.executing_eagerly():
        raise RuntimeError(
            "diagnose must be called eagerly; got a call within tf.function; "
            "remedy: call it outside, around the whole step"
        )
    check_callable("step", step)
    check_integer("num_steps", num_steps, low=1)
    as_several("optimizer", optimizer, keras.optimizers.Optimizer)
    watch = Watch()
    watch.add_all(as_several("model", model, keras.Layer))
    with noted(watch.history, REMEDIES), watch:
        for _ in range(num_steps):
            step()
            watch.end_step()
    return diagnosed(watch.history, REMEDIES)
