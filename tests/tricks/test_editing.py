"""edit_gradient: identity forward, any rule backward."""

import numpy as np
import pytest

from domains import floating, function
from suites import Edit, Row


def drawn(random, shape):
    """Return an input and a rule, in NumPy's and both frameworks' operations."""
    return [random.normal(size=shape), lambda gradient: gradient + abs(gradient)]


class TestEdits(Edit):
    rows = (Row("edit_gradient", drawn, rtol=1e-15, domains={"x": floating(), "rule": function}),)


@pytest.mark.parametrize("way", ["value_and_vjp", "compiled_value_and_vjp"])
def test_tensors_of_the_rule_reach_it_and_get_no_gradient(backend, way):
    x, scale = np.ones((2, 3)), np.array([[0.5], [-2.0]])
    value, (gradient, unused) = getattr(backend, way)(
        lambda t, s: (
            backend.tricks.edit_gradient({"t": [t]}, lambda g, factor: g * factor, s)["t"][0] + 0 * s
        ),
        [x, scale],
        np.full((2, 3), 5.0),
    )
    np.testing.assert_array_equal(value, x)
    np.testing.assert_array_equal(gradient, 5 * scale * np.ones((2, 3)))
    np.testing.assert_array_equal(unused, 0)


def test_a_mask_may_be_a_tensor_of_the_rule(backend):
    where, mask = backend.framework.where, backend.tensor(np.array([True, False]))
    _, (gradient,) = backend.value_and_vjp(
        lambda t: backend.tricks.edit_gradient(t, lambda g, allowed: where(allowed, g, 0.0), mask),
        [np.ones(2)],
        np.array([3.0, 3.0]),
    )
    assert gradient.tolist() == [3, 0]


def test_a_rule_may_close_over_tensors_while_compiling(backend):
    def edited(t):
        bound = abs(t) * 0 + 1  # made while compiling
        return backend.tricks.edit_gradient(t, lambda gradient: gradient * bound * 3)

    value, (gradient,) = backend.compiled_value_and_vjp(edited, [np.array([1.0, 2.0])], np.array([4.0, -1.0]))
    np.testing.assert_array_equal(value, [1, 2])
    np.testing.assert_array_equal(gradient, [12, -3])


def test_the_rule_is_differentiated_again(twice):
    def cubed(t):
        return twice.tricks.edit_gradient(t, lambda gradient: gradient * gradient) ** 3

    x, cotangent, direction = np.array([1.5]), np.array([1.0]), np.array([0.3])
    (gradient,) = twice.second_vjp(cubed, [x], cotangent, [direction])
    # The gradient is (3 x**2)**2; its derivative along the direction is squared once more on its way to x.
    np.testing.assert_allclose(gradient, (2 * 3 * x**2 * 6 * x * direction) ** 2)


@pytest.mark.parametrize(
    ("rule", "error", "message"),
    [
        (lambda gradient: 3.0, TypeError, "what the rule returns must be a .*Tensor; got float"),
        (lambda gradient: gradient == 0, TypeError, "what the rule returns must be floating-point; got"),
        (lambda gradient: gradient[None], ValueError, "must have the shape of x"),
    ],
)
def test_what_a_rule_returns_is_checked(backend, rule, error, message):
    with pytest.raises(error, match=message):
        backend.value_and_vjp(lambda t: backend.tricks.edit_gradient(t, rule), [np.ones(1)], np.ones(1))


def test_unknown_shapes_are_checked_at_run_in_tensorflow(in_tensorflow):
    tf, tricks = in_tensorflow.framework, in_tensorflow.tricks

    def gradient(x, scale):
        with tf.GradientTape() as tape:
            tape.watch(x)
            edited = tricks.edit_gradient(tricks.scale_gradient(x, scale), lambda g: tf.repeat(g, len(x), 0))
        return tape.gradient(edited, x)

    for rank in (None, [None]):
        whole = tf.function(gradient, input_signature=2 * [tf.TensorSpec(rank)])
        assert whole(tf.ones(1), tf.ones(1)).shape == [1]
        for shapes in ((1, 3), (3, 3)):  # of the scale, and of what the rule returns
            with pytest.raises(tf.errors.InvalidArgumentError):
                whole(*map(tf.ones, shapes))
