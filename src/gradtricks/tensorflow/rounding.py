"""Weights of 16 bits: rounding that is right on average, and sums whose rounding errors are carried on.

Between its neighbours ``low`` and ``high``, x becomes ``high`` with probability ``(x - low) / (high - low)``.
A sum keeps what it couldn't take in::

    owed = update + compensation
    weights, compensation = weights + owed, owed - ((weights + owed) - weights)
"""

import tensorflow as tf

from gradtricks._core.checks import check_choice, check_shape
from gradtricks.tensorflow._tensors import as_floating, at_least_float32
from gradtricks.tensorflow.discretizing import straight_through


def round_stochastically(x: tf.Tensor, noise: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Round up or down at random, so that the mean is ``x``; identity backward, the mean's gradient.

    Rounded to nearest, a step smaller than half the gap between two weights is lost each time. Here it
    arrives on average. What ``dtype`` has stays as it is, and so do infinities and NaN. Beyond the largest
    number there is no neighbour, so ``x`` is rounded to nearest.

    Args:
        x: Floating-point, any shape, such as weights in float32 after their step.
        noise: Shape of ``x``, uniform in [0, 1), in float32 or float64: ``tf.random.uniform(x.shape)``. The
            mean is exact to a noise step, 2^-23 of the gap in float32. From float32 to bfloat16 it is exact,
            save for subnormal numbers, which TensorFlow takes for 0.
        dtype: ``tf.bfloat16`` or ``tf.float16``, or its name.

    Returns:
        Shape of ``x``, in ``dtype``. The variance is at most ``gap**2 / 4``.

    References:
        Deep learning with limited numerical precision, https://arxiv.org/abs/1502.02551.

    Example:
        >>> x, noise = tf.constant([1.001, 1.001]), tf.constant([0.1, 0.9])
        >>> [float(y) for y in round_stochastically(x, noise, tf.bfloat16)]
        [1.0078125, 1.0]
    """
    x, noise = as_floating("x", x), _as_noise(noise)
    check_shape("noise", noise.shape, x.shape, "x")
    check_choice("dtype", dtype, (tf.bfloat16, tf.float16))
    exact = tf.abs(at_least_float32(tf.stop_gradient(x)))
    nearest = tf.cast(tf.stop_gradient(x), dtype)
    # Numbers of one sign follow each other as their bits do, and the largest is followed by infinity.
    above = tf.cast(tf.abs(nearest), exact.dtype) > exact
    low = tf.bitcast(nearest, tf.int16) - tf.cast(above, tf.int16)
    high = low + 1
    size, next_size = (tf.cast(tf.abs(tf.bitcast(bits, dtype)), exact.dtype) for bits in (low, high))
    rises = tf.cast(noise, exact.dtype) * (next_size - size) < exact - size
    rounded = tf.bitcast(tf.where(rises, high, low), dtype)
    return straight_through(tf.where(tf.math.is_finite(next_size), rounded, nearest), x)


def add_compensated(
    weights: tf.Tensor, update: tf.Tensor, compensation: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Add as Kahan does: what rounding takes from this sum is returned, and added to the next one.

    Args:
        weights: Floating-point, any shape, such as weights in bfloat16.
        update: Shape of ``weights``, floating-point, such as ``-learning_rate * gradient`` in float32.
        compensation: Shape of ``weights``, floating-point. At first zeros, then what the last call returned.

    Returns:
        New weights and a new compensation, each in its dtype; computed in float32 at least. In 16 bits the
        two have about twice the digits of the weights. Weights that aren't finite have a compensation of 0.

    References:
        Kahan, Further remarks on reducing truncation errors, https://doi.org/10.1145/363707.363723; for
        weights, Revisiting BFloat16 training, https://arxiv.org/abs/2010.06192.

    Example:
        >>> weights, rest = tf.ones(1, tf.bfloat16), tf.zeros(1, tf.bfloat16)
        >>> for _ in range(10):
        ...     weights, rest = add_compensated(weights, tf.constant([0.001]), rest)
        >>> float(weights[0]), round(float(rest[0]), 4)
        (1.0078125, 0.0022)
    """
    weights, update = as_floating("weights", weights), as_floating("update", update)
    compensation = as_floating("compensation", compensation)
    check_shape("update", update.shape, weights.shape, "weights")
    check_shape("compensation", compensation.shape, weights.shape, "weights")
    wide = at_least_float32(weights)
    owed = tf.cast(update, wide.dtype) + tf.cast(compensation, wide.dtype)
    total = tf.cast(wide + owed, weights.dtype)
    rest = owed - (tf.cast(total, wide.dtype) - wide)
    return total, tf.cast(tf.where(tf.math.is_finite(total), rest, 0), compensation.dtype)


def _as_noise(noise: object) -> tf.Tensor:
    tensor = tf.stop_gradient(as_floating("noise", noise))
    if tensor.dtype.size < 4:
        raise TypeError(
            f"noise must be float32 or float64, since {tensor.dtype.name} has too few numbers below 1; "
            "remedy: tf.random.uniform(x.shape)"
        )
    return tensor
