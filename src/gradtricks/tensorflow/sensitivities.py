"""Derivatives of each sample's output with respect to its own input, for a whole batch at once.

Where ``y_i = function(x)_i`` depends on ``x_i`` alone, and this is how the check knows::

    d (y_1 + ... + y_B) / d x_i = d y_i / d x_i        d (w_1 y_1 + ... + w_B y_B) / d x_i = w_i d y_i / d x_i
"""

import math
from collections.abc import Callable
from functools import partial

import tensorflow as tf

from gradtricks.tensorflow._tensors import as_ranked, finfo
from gradtricks.tensorflow._vjp import refuse_stopped_tapes

_GOLDEN = 0.6180339887498949  # its multiples modulo 1 are spread evenly and repeat nowhere
_ROUNDING = 64  # a difference below this many units in the last place is rounding, not coupling
_MARGIN = 16  # and one below this many times the rounding of the function itself


def input_gradients(
    function: Callable[[tf.Tensor], tf.Tensor], x: tf.Tensor, *, check: bool = True
) -> tf.Tensor:
    """Differentiate each sample's number with respect to its own input: ``d function(x)_i / d x_i``.

    One forward and one backward pass of the sum. That is right only if no sample has a part in another's
    output, so it is checked, for the price of a second backward pass: where each output has a weight of its
    own, each gradient must have grown by the weight of its own sample. ``function`` itself runs once, and
    the check changes no state.

    Inside another tape the result can be differentiated again, as a gradient penalty has to be.

    Args:
        function: Maps ``[B, ...]`` to ``[B]`` or ``[B, 1]``, row by row.
        x: ``[B, ...]``, floating-point.
        check: Refuse coupled samples, as by batch normalization while training; that asks for float32 at
            least. A difference up to 64 units in the last place of the sample's largest derivative, and one
            of the batch's, counts as rounding; a function that rounds more is allowed more. A coupling whose
            parts cancel under the weights passes too. Without, the derivatives are those of
            sums over the samples. In a graph a check costs two backward passes; an eager one waits for a GPU.

    Returns:
        Shape and dtype of ``x``. In a graph, where nothing can be raised on every device, coupled samples
        make it NaN.

    Raises:
        NotImplementedError: Called inside a function that `tf.recompute_grad` runs.

    References:
        The sum trick: https://www.tensorflow.org/api_docs/python/tf/gradients says that it returns sums.

    Example:
        >>> x = tf.constant([[1.0, 2.0], [3.0, 4.0]])
        >>> input_gradients(lambda x: tf.reduce_sum(x**2, -1), x).numpy()
        array([[2., 4.],
               [6., 8.]], dtype=float32)
    """
    value, pull = _vjp(function, x, check)
    if value.shape.rank > 2 or value.shape[1:].num_elements() not in {None, 1}:
        raise ValueError(
            f"function must return one number for each sample, [B] or [B, 1]; got {tuple(value.shape)}; "
            "remedy: input_jacobians, or select one output"
        )
    ones = tf.ones_like(value)
    if value.shape.rank == 2:
        ones = tf.where(tf.shape(value)[1] == 1, ones, tf.constant(math.nan, value.dtype))
    gradients = pull(ones)
    return _unless_coupled(gradients, ones, pull) if check else gradients


def input_jacobians(
    function: Callable[[tf.Tensor], tf.Tensor], x: tf.Tensor, *, check: bool = True
) -> tf.Tensor:
    """Differentiate each sample's outputs with respect to its own input: ``d function(x)_i / d x_i``.

    One forward pass, and one backward pass for each output of a sample, all samples together; in a graph
    the backward passes are vectorised.
    Coupled samples are refused as by `input_gradients`.

    Args:
        function: Maps ``[B, I...]`` to ``[B, O...]``, row by row.
        x: ``[B, I...]``, floating-point.
        check: As for `input_gradients`.

    Returns:
        ``[B, O..., I...]`` in the dtype of ``x``; NaN as by `input_gradients`.

    Example:
        >>> x = tf.constant([[1.0, 2.0], [3.0, 4.0]])
        >>> input_jacobians(lambda x: tf.stack([x[:, 0] + x[:, 1], x[:, 0] * x[:, 1]], -1), x).numpy()
        array([[[1., 1.],
                [2., 1.]],
        <BLANKLINE>
               [[1., 1.],
                [4., 3.]]], dtype=float32)
    """
    value, pull = _vjp(function, x, check)
    outputs = tf.shape(value)[1:]
    units = tf.eye(tf.reduce_prod(outputs), dtype=value.dtype)
    units = tf.reshape(units, tf.concat([tf.shape(units)[:1], [1], outputs], 0)) * tf.ones_like(value)
    jacobians = pull(units, batched=True)
    if check:
        jacobians = _unless_coupled(jacobians, units, partial(pull, batched=True), axis=1)
    jacobians = tf.transpose(jacobians, [1, 0, *range(2, jacobians.shape.rank)])
    jacobians = tf.reshape(jacobians, tf.concat([tf.shape(value), tf.shape(x)[1:]], 0))
    jacobians.set_shape([*value.shape, *x.shape[1:]])  # an accumulator can't trace through ensure_shape
    return jacobians


def _vjp(
    function: Callable[[tf.Tensor], tf.Tensor], x: tf.Tensor, check: bool
) -> tuple[tf.Tensor, Callable[..., tf.Tensor]]:
    x = _as_batch(x, check)
    with tf.GradientTape(persistent=True, watch_accessed_variables=False) as tape:
        # An alias, so that what the function knows of x by other ways than its argument stays constant.
        inner = tf.identity(x)
        tape.watch(inner)
        value = _as_value(function(inner), x)

    def pull(cotangent: tf.Tensor, batched: bool = False) -> tf.Tensor:
        if batched and tf.executing_eagerly() and len(cotangent):
            return tf.stack([pull(row) for row in cotangent])  # vectorised, it would be traced by every call
        if batched:
            return tf.vectorized_map(pull, cotangent)
        found = tape.gradient(value, inner, cotangent)
        if found is None:
            refuse_stopped_tapes()
            raise ValueError(
                "function must return what depends on x; got a result that gradients can't trace back to x; "
                "remedy: explain_gradient names the cut"
            )
        return tf.convert_to_tensor(found)

    return value, pull


def _unless_coupled(
    derivatives: tf.Tensor, cotangents: tf.Tensor, pull: Callable[..., tf.Tensor], axis: int = 0
) -> tf.Tensor:
    found, batch = tf.stop_gradient(derivatives), derivatives.shape[axis]
    if found.shape.num_elements() == 0 or batch == 1:
        return derivatives
    spread = tf.cast(tf.range(tf.shape(found)[axis]), tf.float64) * _GOLDEN % -1
    # From 1/2 to 1, and bent, since on a line what one neighbour adds the other may take away.
    weights = tf.cast(2**spread, cotangents.dtype)

    def error_with(weights: tf.Tensor) -> tf.Tensor:
        together = tf.stop_gradient(pull(_along(weights, cotangents, axis) * cotangents))
        return _largest(together - tf.cast(_along(weights, found, axis), found.dtype) * found, axis)

    error, sizes = error_with(weights), _largest(found, axis)
    # The largest of all adds one unit, for gradients that are nothing but the rounding of what cancels.
    precision = float(finfo(found.dtype).eps)
    rounding = precision * (_ROUNDING * sizes + tf.reduce_max(sizes))
    raises = tf.executing_eagerly()
    if raises and tf.reduce_all(error <= rounding):
        return derivatives
    # Where the function itself rounds more, one weight for all shows by how much. A sample may do so by
    # chance in one pass only, so what any sample shows counts for all; not what its own gradient explains.
    noise = _MARGIN * error_with(tf.fill(tf.shape(weights), tf.cast(_GOLDEN, weights.dtype)))
    unexplained = tf.reduce_max(tf.where(noise > rounding, noise, tf.zeros_like(noise)))
    coupled = tf.reduce_any(error > rounding + unexplained)
    if not raises:
        return tf.where(coupled, tf.constant(math.nan, derivatives.dtype), derivatives)
    if coupled:
        raise ValueError(
            "function must treat each sample by itself; got samples with a part in each other's outputs, as "
            "in batch normalization while training; remedy: training=False, or check=False for the "
            "derivatives of sums over the samples"
        )
    return derivatives


def _along(weights: tf.Tensor, like: tf.Tensor, axis: int) -> tf.Tensor:
    return tf.reshape(weights, [-1, *[1] * (like.shape.rank - axis - 1)])


def _largest(x: tf.Tensor, axis: int) -> tf.Tensor:
    # Of each sample. Where a slope is infinite, a weight times it says nothing.
    finite = tf.where(tf.math.is_finite(x), tf.abs(x), tf.zeros_like(x))
    return tf.reduce_max(finite, list(range(axis + 1, x.shape.rank)))


def _as_batch(x: tf.Tensor, check: bool) -> tf.Tensor:
    x = as_ranked("x", x)
    if x.shape.rank == 0:
        raise ValueError("x must have shape [B, ...], samples first; got a scalar")
    if check and x.dtype.size < 4:
        raise TypeError(
            "x must be float32 or wider for a check, since rounding in half precision hides couplings; "
            f"got {x.dtype.name}; remedy: check the function once in float32, then check=False"
        )
    return x


def _as_value(value: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    value = as_ranked("function(x)", value)
    given, found = x.shape[0], value.shape[0] if value.shape.rank else 0
    if value.shape.rank == 0 or (given is not None and found is not None and given != found):
        raise ValueError(
            f"function must return a row for each of the {given} samples; got shape {tuple(value.shape)}; "
            "remedy: no reduction over the samples"
        )
    return value
