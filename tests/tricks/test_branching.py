"""safe_where: a function inside its domain, a fallback outside; where_gradients: what flows where."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from agreeing import assert_agrees_twice, assert_close, assert_compiled_for_all_numbers
from domains import LONG, bools, floating, number
from gradtricks import reference
from suites import Domains, Row


def root(x):
    return x**0.5


def root_slope(x):
    return 0.5 * x**-0.5


def root_curvature(x):
    return -0.25 * x**-1.5


def inverse(x):
    return 1 / x


def inverse_slope(x):
    return -1 / x**2


X = np.array([4.0, 0.0, -1.0, 0.25])
COTANGENT = np.array([1.0, -3.0, 2.0, 0.5])


@given(data=st.data())
@pytest.mark.parametrize(("function", "slope"), [(root, root_slope), (inverse, inverse_slope)])
def test_agrees_with_the_reference(backend, data, function, slope):
    shape = data.draw(array_shapes(min_dims=0, max_dims=3, min_side=0))
    elements = st.floats(-9, 9).filter(lambda v: v == 0 or abs(v) > 1e-3)
    x, cotangent = (data.draw(arrays(np.float64, shape, elements=elements)) for _ in "12")
    narrow = data.draw(st.sampled_from([shape, shape[1:], (1,) * len(shape)]))
    fallback = data.draw(arrays(np.float64, narrow, elements=st.floats(-9, 9)))
    condition = x > data.draw(st.sampled_from([0.0, 3.0, 9.0]))
    value, gradients = backend.value_and_vjp(
        lambda t, f: backend.tricks.safe_where(backend.tensor(condition), t, function, f),
        [x, fallback],
        cotangent,
    )
    slopes = reference.safe_where_vjp(cotangent, condition, x, slope, fallback)
    np.testing.assert_allclose(value, reference.safe_where(condition, x, function, fallback), rtol=1e-10)
    assert_close(gradients, slopes, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_keeps_the_dtype(backend, dtype):
    x = backend.cast(backend.tensor(X), dtype)
    for fallback in (-2.0, backend.tensor(-2.0)):
        result = backend.tricks.safe_where(x > 0, x, root, fallback)
        assert result.dtype == x.dtype
        np.testing.assert_array_equal(backend.array(result), [2.0, -2.0, -2.0, 0.5])


@pytest.mark.parametrize("name", ["fallback", "safe_value"])
def test_a_compiler_takes_any_number(in_torch, name):
    x, safe_where = in_torch.tensor(-X), in_torch.tricks.safe_where
    numbers = {"fallback": 0.0, "safe_value": 1.0}
    assert_compiled_for_all_numbers(
        in_torch.framework, lambda number: safe_where(x > 9, x, root, **numbers | {name: number})
    )


def test_a_fallback_beyond_the_dtype_is_infinite(backend):
    x = backend.tensor(np.float32(X))
    found = backend.array(backend.tricks.safe_where(x > 0, x, root, -1e300))
    np.testing.assert_array_equal(found, [2.0, -np.inf, -np.inf, 0.5])


@pytest.mark.parametrize("way", ["value_and_vjp", "compiled_value_and_vjp"])
def test_extremes_outside_the_condition_leave_no_trace(backend, way):
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 2e-38, 3e38, 4.0], np.float32)
    good = np.isfinite(x) & (x > 0)
    _, (gradient,) = getattr(backend, way)(
        lambda t: backend.tricks.safe_where(backend.tensor(good), t, backend.operator("log"), 0.0),
        [x],
        np.ones_like(x),
    )
    np.testing.assert_array_equal(gradient[~good], 0)
    np.testing.assert_allclose(gradient[good], 1 / x[good], rtol=1e-6, atol=1e-37)


@pytest.mark.parametrize("fallback", [np.inf, -np.inf, np.nan])
def test_a_fallback_need_not_be_finite(backend, fallback):
    value, (gradient,) = backend.value_and_vjp(
        lambda t: backend.tricks.safe_where(t > 0, t, root, fallback), [X], np.ones(4)
    )
    np.testing.assert_array_equal(value, [2, fallback, fallback, 0.5])
    np.testing.assert_array_equal(gradient, [0.25, 0, 0, 1])


# The stand-in, of which only what the function closes over can tell


def weight_gradient(backend, condition, function, *, way="value_and_vjp", **options):
    """Return the gradient of a weight that the function closes over."""

    def weighted(weight):
        x = backend.tensor(X)
        return backend.tricks.safe_where(condition(x), x, lambda t: weight * function(t), 0.0, **options)

    return getattr(backend, way)(weighted, [np.float64(3.0)], np.ones(4))[1][0]


@pytest.mark.parametrize("way", ["value_and_vjp", "compiled_value_and_vjp"])
def test_closed_over_weights_stay_free_of_nan(backend, way):
    # tensorflow/tensorflow issue 27684. Neither 0 nor 1 is in the domain of this function; the largest
    # element that qualifies is.
    log = backend.operator("log")
    gradient = weight_gradient(backend, lambda x: x > 2, lambda t: log(t - 2), way=way)
    assert gradient == pytest.approx(np.log(2))


def test_where_nothing_qualifies_the_stand_in_is_one_or_yours(backend):
    log = backend.operator("log")
    assert weight_gradient(backend, lambda x: x > 9, log) == 0
    assert np.isnan(weight_gradient(backend, lambda x: x > 9, lambda t: log(t - 9)))
    assert weight_gradient(backend, lambda x: x > 9, lambda t: log(t - 9), safe_value=10) == 0


def test_safe_values_must_be_finite_in_the_dtype(backend):
    x = backend.cast(backend.tensor(X), "float16")
    with pytest.raises(ValueError, match=r"safe_value must lie in \[-65504, 65504\]; got 70000"):
        backend.tricks.safe_where(x > 0, x, root, 0.0, safe_value=7e4)
    backend.tricks.safe_where(x > 0, x, root, 0.0, safe_value=65504)


# Published cases: each is an issue in which the plain where gave NaN


@pytest.mark.parametrize(
    ("condition", "function", "fallback", "x", "expected"),
    [
        # tensorflow/tensorflow issue 118674
        (lambda x: x > 0, "sqrt", lambda x: 0.0, [-1, 0, 1, 4], [0, 0, 0.5, 0.25]),
        # tensorflow/tensorflow issue 2540: select(x > 0, 0, exp(x)) at 1e10
        (lambda x: x <= 0, "exp", lambda x: 0.0, [1e10], [0]),
        # pytorch/pytorch issue 23395: where(x == 0, x / 2, sqrt(x))
        (lambda x: x > 0, "sqrt", lambda x: x / 2, [16, 0], [0.125, 0.5]),
    ],
)
def test_published_cases(backend, condition, function, fallback, x, expected):
    function = backend.operator(function)
    _, (gradient,) = backend.value_and_vjp(
        lambda t: backend.tricks.safe_where(condition(t), t, function, fallback(t)),
        [np.array(x, np.float64)],
        np.ones(len(x)),
    )
    np.testing.assert_allclose(gradient, expected, rtol=1e-12)


# where_gradients


@pytest.mark.parametrize("compiled", [False, True])
def test_what_flows_where_is_the_chain_rule(backend, compiled):
    def report(x):
        return backend.tricks.where_gradients(x > 0, x, backend.operator("log"), 0.0)

    report = backend.compiled(report) if compiled else report
    flow = map(backend.array, report(backend.tensor(X)))
    assert_close(flow, reference.where_gradients(X > 0, X, inverse, 0.0), rtol=1e-12, atol=0)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_tensorflow_hides_the_nan_of_a_root_except_in_xla(in_tensorflow, jit_compile):
    tf, tricks = in_tensorflow.framework, in_tensorflow.tricks

    @tf.function(jit_compile=jit_compile)
    def poisoned(x):
        return tricks.where_gradients(x > 0, x, tf.sqrt, 0.0).poisoned

    assert poisoned(tf.constant([0.0, 4.0])).numpy().tolist() == [jit_compile, False]


def test_a_sparse_gradient_is_made_dense_in_tensorflow(in_tensorflow):
    tf, x = in_tensorflow.framework, in_tensorflow.tensor([4.0, 0.0])
    flow = in_tensorflow.tricks.where_gradients(x > 0, x, lambda t: tf.gather(t, [1, 1]), 0.0)
    np.testing.assert_array_equal(flow.derivative.numpy(), [0, 2])


def test_a_fallback_tensor_gets_what_the_function_does_not(backend):
    x = backend.tensor(X)
    flow = backend.tricks.where_gradients(x > 0, x, inverse, 2 * x)
    np.testing.assert_array_equal(backend.array(flow.to_function), [1, 0, 0, 1])
    np.testing.assert_array_equal(backend.array(flow.to_fallback), [0, 1, 1, 0])


# Errors


def elementwise(name):
    """Take functions of each element."""
    yield 1.0, TypeError, f"{name} must be callable; got float; remedy: hand over sqrt, not"
    yield (lambda t: t[None]), ValueError, rf"{name}\(x\) must have the shape of x, \(2, 3\); got \(1, 2, 3\)"
    yield (lambda t: t > 0), TypeError, rf"{name}\(x\) must be floating-point; got"


def fallback(name):
    """Take any number, and tensors that broadcast."""
    yield "none", TypeError, f"{name} must be a .*Tensor; got str"
    yield np.array(1), TypeError, f"{name} must be floating-point; got"
    yield LONG, ValueError, rf"{name} must broadcast to the shape of x, \(2, 3\); got \(7,\)"


CONDITION = bools("be bool; got .*float.*; remedy: a comparison", "broadcast to the shape of x")
GIVEN = {"condition": CONDITION, "x": floating(), "function": elementwise, "fallback": fallback}
GIVEN |= {"safe_value": number()}


def positive(random, shape):
    return [np.ones(shape) > 0, np.ones(shape), root, 0.0]


class TestArguments(Domains):
    rows = tuple(Row(name, positive, tensors=2, domains=GIVEN) for name in ("safe_where", "where_gradients"))


# Transforms


def test_what_flows_where_in_common_ways(common):
    # It differentiates by what test_sensitivities.py takes through every transform.
    def safe_gradient(t):
        return common.tricks.where_gradients(t > 0, t, root, 0.0).safe_gradient

    value, (gradient,) = common.value_and_vjp(safe_gradient, [X], COTANGENT)
    flow = reference.where_gradients(X > 0, X, root_slope, 0.0)
    np.testing.assert_allclose(value, flow.safe_gradient, rtol=common.rtol)
    expected = reference.where_gradients_vjp(COTANGENT, X > 0, X, root_curvature)
    np.testing.assert_allclose(gradient, expected, rtol=common.rtol)


def test_what_flows_where_twice_in_common_ways(twice):
    def vjp(cotangent, x):
        return reference.where_gradients_vjp(cotangent, X > 0, x, root_curvature)

    def safe_gradient(t):
        return twice.tricks.where_gradients(t > 0, t, root, 0.0).safe_gradient

    assert_agrees_twice(twice, safe_gradient, [X], COTANGENT, vjp, atol=1e-5)
