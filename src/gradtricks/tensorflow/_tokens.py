"""Shared by what averages over tokens: masks, differences of log-probabilities, clipped ratios, averages."""

import math
from typing import Any

import tensorflow as tf

from gradtricks._core.checks import check_choice, check_log_probability, check_shape
from gradtricks.tensorflow._edits import is_readable, substitute
from gradtricks.tensorflow._tensors import (
    as_floating,
    as_ranked,
    as_scalar,
    as_tensor,
    at_least_float32,
    finfo,
    nonzero,
)


def averaged(x: tf.Tensor, weight: tf.Tensor, normalize: str) -> tf.Tensor:
    """Average over the last axis and over the others, as `average_tokens` says."""
    sums, weights = tf.reduce_sum(x * weight, -1), tf.reduce_sum(weight, -1)
    if normalize == "token":
        return tf.reduce_sum(sums) / nonzero(tf.reduce_sum(weights))
    return tf.reduce_mean(sums / nonzero(weights) if normalize == "sequence" else sums)


def log_ratio_of(log_pi: tf.Tensor, old: tf.Tensor, counted: tf.Tensor, level: str) -> tf.Tensor:
    """Return the bounded logarithm of the ratio of each token, of its answer, or its mean over the answer."""
    log_ratio = tf.where(counted, bounded(difference(log_pi, old)), 0)
    if level == "token":
        return log_ratio
    sums = tf.reduce_sum(log_ratio, -1, keepdims=True)
    if level == "sequence_mean":
        sums /= nonzero(tf.reduce_sum(tf.cast(counted, sums.dtype), -1, keepdims=True))
    return bounded(sums)


def clipped_ratio(log_ratio: tf.Tensor, costs: tf.Tensor, clip: Any) -> tf.Tensor:
    """Return the ratio that costs are multiplied with: bounded on the side to which they push it."""
    if clip is not None:
        lowest, highest, *most = _bounds(clip, log_ratio, "two or three", (2, 3))
        log_ratio = tf.where(costs < 0, tf.minimum(log_ratio, highest), tf.maximum(log_ratio, lowest))
        for bound in most:
            log_ratio = tf.where(costs > 0, tf.minimum(log_ratio, bound), log_ratio)
    return tf.exp(log_ratio)


def clipped_weight(log_ratio: tf.Tensor, clip: Any) -> tf.Tensor:
    """Return the ratio as a constant, bounded on both sides."""
    lowest, highest = _bounds(clip, log_ratio, "two", (2,))
    return tf.exp(tf.stop_gradient(tf.minimum(tf.maximum(log_ratio, lowest), highest)))


def difference(log_pi: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
    """Subtract log-probabilities; an impossible one is the least number, and has no gradient."""
    least = log_pi.dtype.min
    return tf.maximum(log_pi, least) - tf.maximum(other, least)


def bounded(d: tf.Tensor, *, above: bool = True) -> tf.Tensor:
    """Bound logarithms below, and above, so that products of two exponentials don't overflow."""
    limit = math.log(finfo(d.dtype).max) / 2
    return tf.minimum(tf.maximum(d, -limit), limit if above else math.inf)


def _k3(d: tf.Tensor) -> tf.Tensor:
    d = bounded(d, above=False)
    return tf.math.expm1(-d) + d


ESTIMATORS = {"k1": lambda d: d, "k2": lambda d: tf.square(d) / 2, "k3": _k3}


def estimated(d: tf.Tensor, estimator: str, slope: str | None) -> tf.Tensor:
    """Return the value of one estimator of a divergence, with the slope of another where it is named."""
    value = ESTIMATORS[estimator](d)
    return value if slope is None else substitute(value, ESTIMATORS[slope](d))


def check_surrogate(surrogate: object, ratio: str, clip: object) -> None:
    """Raise unless clip and ratio are those of the surrogate."""
    check_choice("surrogate", surrogate, ("ppo", "cispo"))
    if surrogate == "cispo" and (clip is None or ratio == "none"):
        needed = 'surrogate="cispo" must have a ratio and a clip, as in clip=(1.0, 4.0)'
        raise ValueError(f"{needed}; got ratio={ratio!r} and clip={clip}")
    if ratio == "none" and clip is not None:
        raise ValueError(f'clip must be None with ratio="none", which has no ratio; got {clip}')


def check_axis(name: str, x: tf.Tensor) -> None:
    """Raise unless there is a last axis, and something in it."""
    if x.shape.rank == 0 or x.shape.num_elements() == 0:
        raise ValueError(f"{name} must have at least one axis and one element; got {tuple(x.shape)}")


def as_tokens(name: str, x: object) -> tf.Tensor:
    """Return a floating-point tensor that has a last axis, and something in it."""
    given = as_ranked(name, x)
    check_axis(name, given)
    return given


def check_log_probs(counted: tf.Tensor, **values: tf.Tensor) -> None:
    """Raise if a token that counts has a log-probability above 0, where values can be looked at."""
    for name, value in values.items():
        x = tf.convert_to_tensor(value)
        if is_readable(x) and not tf.reduce_max(x) <= 0:  # padding may be NaN
            highest = tf.reduce_max(tf.where(counted, x, -1))
            check_log_probability(name, float(highest), finfo(x.dtype).eps)


def as_mask(mask: Any, given: tf.Tensor) -> tf.Tensor:
    """Return a mask as weights of the tokens, without a gradient."""
    mask = as_tensor("mask", mask)
    if mask.dtype != tf.bool and not mask.dtype.is_floating:
        remedy = "tf.cast(mask, tf.bool)"
        raise TypeError(f"mask must be bool or floating-point; got {mask.dtype.name}; remedy: {remedy}")
    check_shape("mask", mask.shape, given.shape, "the tokens")
    return tf.stop_gradient(tf.cast(mask, at_least_float32(given).dtype))


def as_other(name: str, value: Any, given: tf.Tensor) -> tf.Tensor:
    """Return a tensor in the shape of ``log_probs``, without a gradient."""
    value = as_floating(name, value)
    check_shape(name, value.shape, given.shape, "log_probs")
    return tf.stop_gradient(tf.cast(value, at_least_float32(given).dtype))


def costs_of(advantages: Any, counted: tf.Tensor, given: tf.Tensor) -> tf.Tensor:
    """Return minus the advantage of each token that counts, from one for each answer or for each token."""
    advantages = as_ranked("advantages", advantages)
    if advantages.shape.rank < given.shape.rank:
        check_shape("advantages", advantages.shape, given.shape[:-1], "log_probs without its last axis")
        advantages = tf.broadcast_to(advantages[..., None], tf.shape(given))
    return tf.where(counted, -as_other("advantages", advantages, given), 0)


def _bounds(clip: Any, log_ratio: tf.Tensor, words: str, counts: tuple[int, ...]) -> list[tf.Tensor]:
    # The logarithms of 1 - low, of 1 + high, and of 1 + the bound of a dual clip.
    bounds = tuple(clip) if isinstance(clip, tuple | list) else (clip, clip)
    if len(bounds) not in counts:
        raise ValueError(f"clip must be a number or {words} of them; got {len(bounds)} of them")
    low, *others = (as_scalar("clip", bound, log_ratio, low=0) for bound in bounds)
    return [tf.math.log1p(-tf.minimum(low, 1)), *(tf.math.log1p(bound) for bound in others)]
