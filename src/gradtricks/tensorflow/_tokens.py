"""Shared by what averages over tokens: masks, differences of log-probabilities, clipped ratios, averages."""

import math
from typing import Any

import tensorflow as tf

from gradtricks._core.checks import check_choice, check_log_probability, check_shape
from gradtricks.tensorflow._edits import intercept, is_readable, substitute
from gradtricks.tensorflow._tensors import (
    as_floating,
    as_ranked,
    as_scalar,
    as_tensor,
    at_least_float32,
    finfo,
    nonzero,
)


def averaged(weighted: tf.Tensor, weight: tf.Tensor, normalize: str) -> tf.Tensor:
    """Average over the last axis what has been weighted, and over the others, as `average_tokens` says."""
    sums, weights = tf.reduce_sum(weighted, -1), tf.reduce_sum(weight, -1)
    if normalize == "token":
        return tf.reduce_sum(sums) / nonzero(tf.reduce_sum(weights))
    return tf.reduce_mean(sums / nonzero(weights) if normalize == "sequence" else sums)


def log_ratio_of(
    log_pi: tf.Tensor,
    old: tf.Tensor,
    weight: tf.Tensor,
    level: str,
    lowest: float | tf.Tensor = -math.inf,
    highest: float | tf.Tensor = math.inf,
    moves: bool = True,
) -> tf.Tensor:
    """Return the bounded logarithm of the ratio of each token, of its answer, or its mean over the answer.

    That of a token that doesn't count may be anything, NaN too. Bounds are scalars or broadcast to tokens.
    """
    limit = tf.constant(_limit(log_pi), log_pi.dtype)
    lowest, highest = tf.maximum(-limit, lowest), tf.minimum(limit, highest)
    d = difference(tf.stop_gradient(log_pi), old)
    possible = moves and tf.stop_gradient(log_pi) >= log_pi.dtype.min
    if level == "token":
        return _within(log_pi, d, lowest, highest, possible)
    counted = weight != 0
    d = _within(log_pi, tf.where(counted, d, 0), -limit, limit, possible & counted)
    sums = tf.reduce_sum(d, -1, keepdims=True)
    if level == "sequence_mean":
        sums /= nonzero(tf.reduce_sum(tf.cast(counted, sums.dtype), -1, keepdims=True))
    sums += tf.zeros_like(lowest)  # each token may have bounds of its own
    return _within(sums, tf.stop_gradient(sums), lowest, highest, True)


def _within(x: tf.Tensor, value: tf.Tensor, lowest: Any, highest: Any, moving: Any) -> tf.Tensor:
    # The value within bounds, and within them the slope of x where it moves. As one edit this takes half of
    # the time of a maximum and a minimum, each with its slope.
    bounded = tf.minimum(tf.maximum(value, lowest), highest)
    if moving is False:
        return bounded
    inside = (bounded == value) & moving
    return intercept(x, lambda g, inside: tf.where(inside, g, 0), inside, linear=True, value=bounded)


def weighted(x: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
    """Multiply two tensors of one shape, of which the second has no gradient; times 0 anything is 0."""
    return tf.math.multiply_no_nan(x, tf.stop_gradient(weight))


def bounds_of(clip: Any, costs: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the logarithms that bound a ratio on the side to which costs push it, in their shape."""
    infinity = tf.fill(tf.shape(costs), tf.constant(math.inf, costs.dtype))
    if clip is None:
        return -infinity, infinity
    low, high, *most = _bounds(clip, costs, "two or three", (2, 3))
    return tf.where(costs < 0, -infinity, low), tf.where(costs < 0, high, most[0] if most else infinity)


def weights_of(log_pi: tf.Tensor, old: tf.Tensor, weight: tf.Tensor, level: str, clip: Any) -> tf.Tensor:
    """Return ratios as constants, bounded on both sides."""
    lowest, highest = _bounds(clip, log_pi, "two", (2,))
    return tf.exp(log_ratio_of(tf.stop_gradient(log_pi), old, weight, level, lowest, highest, moves=False))


def difference(log_pi: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
    """Subtract log-probabilities; an impossible one is the least number, and has no gradient."""
    least = log_pi.dtype.min
    return tf.maximum(log_pi, least) - tf.maximum(other, least)


def bounded(d: tf.Tensor, *, above: bool = True) -> tf.Tensor:
    """Bound logarithms below, and above, so that products of two exponentials don't overflow."""
    limit = _limit(d)
    return tf.minimum(tf.maximum(d, -limit), limit if above else math.inf)


def _limit(d: tf.Tensor) -> float:
    return math.log(finfo(d.dtype).max) / 2


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


def check_log_probs(weight: tf.Tensor, **values: tf.Tensor) -> None:
    """Raise if a token that counts has a log-probability above 0, where values can be looked at."""
    for name, value in values.items():
        x = tf.convert_to_tensor(value)
        if is_readable(x) and not tf.reduce_max(x) <= 0:  # padding may be NaN
            highest = tf.reduce_max(tf.where(weight != 0, x, -1))
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


def costs_of(advantages: Any, given: tf.Tensor) -> tf.Tensor:
    """Return minus the advantages, one for each token, or one for each answer as ``[..., 1]``."""
    advantages = as_ranked("advantages", advantages)
    if advantages.shape.rank < given.shape.rank:
        check_shape("advantages", advantages.shape, given.shape[:-1], "log_probs without its last axis")
        advantages = advantages[..., None]
    else:
        check_shape("advantages", advantages.shape, given.shape, "log_probs")
    return -tf.stop_gradient(tf.cast(advantages, at_least_float32(given).dtype))


def _bounds(clip: Any, log_ratio: tf.Tensor, words: str, counts: tuple[int, ...]) -> list[tf.Tensor]:
    # The logarithms of 1 - low, of 1 + high, and of 1 + the bound of a dual clip.
    bounds = tuple(clip) if isinstance(clip, tuple | list) else (clip, clip)
    if len(bounds) not in counts:
        raise ValueError(f"clip must be a number or {words} of them; got {len(bounds)} of them")
    low, *others = (as_scalar("clip", bound, log_ratio, low=0) for bound in bounds)
    return [tf.math.log1p(-tf.minimum(low, 1)), *(tf.math.log1p(bound) for bound in others)]
