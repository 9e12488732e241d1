"""The likelihood of a mixture density network.

With responsibilities ``r = softmax(log pi + log N(y; loc, sigma))`` and ``sigma = scale + scale_floor``::

    loss = -logsumexp(log pi + log N(y; loc, sigma))
    gradients: pi - r for the logits, and r times those of -log N for each loc and sigma
"""

import math

import tensorflow as tf

from gradtricks._core.checks import check_shape
from gradtricks.tensorflow._edits import is_readable
from gradtricks.tensorflow._tensors import as_ranked, as_scalar, at_least_float32, finfo


def mixture_density_nll(
    logits: tf.Tensor, loc: tf.Tensor, scale: tf.Tensor, y: tf.Tensor, *, scale_floor: float | tf.Tensor
) -> tf.Tensor:
    """Minus the log-density of ``y`` in a Gaussian mixture with weights ``softmax(logits)``.

    Backward, each component gets its own gradient times its responsibility for ``y``; one that has none
    gets exactly 0, however small its sigma.

    Sigma is ``scale + scale_floor``: use that to sample, too. Below a maximum of the two a scale would get no
    gradient. The floor has the units of ``y``: try a thousandth of its spread.

    Args:
        logits: ``[..., K]``, unnormalised log-probabilities, floating-point; ``-inf`` takes a component out.
        loc: ``[..., K]``, or ``[..., K, D]`` for vectors ``y`` and diagonal covariances.
        scale: Shape of ``loc``, at least 0, say a softplus. Others raise; on a GPU and in a graph they
            make the loss NaN.
        y: ``[...]``, or ``[..., D]``.
        scale_floor: Smallest sigma, a number of at least 0, or a scalar tensor, which isn't checked. At 0 the
            density is unbounded, and scales must be positive.

    Returns:
        ``[...]``, one value for each example, not averaged, in the dtype of ``logits`` or float32 if that is
        wider. It is finite for finite ``y - loc``: beyond 7e12 sigmas (float64: 6e102), where squares begin
        to overflow, it goes on as a logarithm. So is the gradient, from a floor of 1e-12 on.

    References:
        Bishop, Mixture density networks, 1994, https://publications.aston.ac.uk/id/eprint/373/.

    Example:
        >>> logits, loc, scale = tf.zeros((1, 2)), tf.constant([[-1.0, 1.0]]), tf.ones((1, 2))
        >>> mixture_density_nll(logits, loc, scale, tf.constant([0.0]), scale_floor=1e-3).numpy().round(4)
        array([1.4189], dtype=float32)
    """
    logits = at_least_float32(as_ranked("logits", logits))
    if len(logits.shape) == 0 or logits.shape[-1] == 0:
        raise ValueError(f"logits must have shape [..., K] with K of at least 1; got {tuple(logits.shape)}")
    loc, scale, y = _as_components(logits, loc, scale, y)
    sigma = _as_sigma(scale, scale_floor)
    distance, log_pi = y[..., None, :] - loc, tf.nn.log_softmax(logits)
    # Where a component has no responsibility, its own gradient may overflow, and 0 * inf is NaN. It is
    # therefore taken out before its density, not after.
    joint = tf.stop_gradient(log_pi) + _log_density(tf.stop_gradient(distance), tf.stop_gradient(sigma))
    idle = tf.nn.softmax(joint) == 0
    distance = tf.where(idle[..., None], tf.zeros_like(distance), distance)
    sigma = tf.where(idle[..., None], tf.ones_like(sigma), sigma)
    joint = tf.where(idle, tf.constant(-math.inf, log_pi.dtype), log_pi + _log_density(distance, sigma))
    return -tf.reduce_logsumexp(joint, -1)


def _log_density(distance: tf.Tensor, sigma: tf.Tensor) -> tf.Tensor:
    limit = float(finfo(sigma.dtype).max) ** (1 / 3)
    one = tf.ones([], sigma.dtype)
    far = tf.abs(distance) > limit * sigma
    z = tf.where(far, tf.zeros_like(distance), distance) / sigma
    excess = tf.math.log(tf.where(far, tf.abs(distance), one)) - tf.math.log(
        tf.where(far, limit * sigma, one)
    )
    square = tf.where(far, limit**2 * (1 + 2 * excess), tf.square(z))
    return -tf.reduce_sum(square / 2 + tf.math.log(sigma) + math.log(2 * math.pi) / 2, -1)


def _as_components(
    logits: tf.Tensor, loc: tf.Tensor, scale: tf.Tensor, y: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    loc, scale, y = (
        tf.cast(as_ranked(name, value), logits.dtype)
        for name, value in {"loc": loc, "scale": scale, "y": y}.items()
    )
    univariate = loc.shape.rank <= logits.shape.rank
    vector = () if univariate else tuple(loc.shape[-1:])
    check_shape("loc", loc.shape, (*logits.shape, *vector), "logits, plus an axis D if y holds vectors")
    check_shape("scale", scale.shape, loc.shape, "loc")
    check_shape("y", y.shape, (*logits.shape[:-1], *vector), "loc without its axis K")
    return (loc[..., None], scale[..., None], y[..., None]) if univariate else (loc, scale, y)


def _as_sigma(scale: tf.Tensor, scale_floor: float | tf.Tensor) -> tf.Tensor:
    floor = as_scalar("scale_floor", scale_floor, scale, low=0)
    sigma = scale + floor
    possible = (scale >= 0) & (sigma > 0) & (sigma < math.inf)
    if is_readable(possible) and not tf.reduce_all(possible):
        wrong = float(scale[~possible][0])
        vanishes = floor < float(finfo(sigma.dtype).tiny)
        least = f"above 0 as scale_floor is {float(scale_floor):g}" if vanishes else "at least 0"
        raise ValueError(f"scale must be finite and {least}; got {wrong}; remedy: a softplus")
    return tf.where(possible, sigma, tf.constant(math.nan, sigma.dtype))
