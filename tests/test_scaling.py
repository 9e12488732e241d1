"""scale_gradient: identity forward, scaled backward."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from gradtricks import reference
from transforms import numerical_second_vjp

SCALES = st.floats(-3, 3, allow_subnormal=False) | st.sampled_from([0.0, -1.0, 1 / 3, 0.1, 2.0])
EXTREMES = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 3e38, -1e-45, 1.0], np.float32)


@given(data=st.data(), scale=SCALES)
def test_agrees_with_the_reference(backend, data, scale):
    shapes = array_shapes(min_dims=0, max_dims=3, min_side=0)
    x = data.draw(arrays(np.float64, shapes, elements=st.floats(-9, 9)))
    cotangent = np.arange(x.size, dtype=float).reshape(x.shape) - 1.5
    value, (gradient,) = backend.value_and_vjp(
        lambda t: backend.tricks.scale_gradient(t, scale), [x], cotangent
    )
    np.testing.assert_array_equal(value, reference.scale_gradient(x, scale))
    np.testing.assert_allclose(
        gradient, reference.scale_gradient_vjp(cotangent, x, scale), rtol=1e-15, atol=1e-307
    )


@pytest.mark.parametrize("scale", [1 / 3, 0.1, 2.0, -0.5, 0.0])
@pytest.mark.parametrize("way", ["value_and_vjp", "compiled_value_and_vjp"])
def test_forward_returns_the_same_bits(backend, scale, way):
    x = np.concatenate([EXTREMES, np.random.default_rng(0).normal(size=1000).astype(np.float32)])
    value, _ = getattr(backend, way)(lambda t: backend.tricks.scale_gradient(t, scale), [x], x)
    # A NaN may change its payload on the way through a compiler; everything else is bit for bit.
    numbers = ~np.isnan(x)
    np.testing.assert_array_equal(value[numbers].view(np.int32), x[numbers].view(np.int32))
    assert np.isnan(value[~numbers]).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_keeps_the_dtype(backend, dtype):
    x = backend.cast(backend.tensor(np.array([0.1, -2.0, 300.0])), dtype)
    scaled = backend.tricks.scale_gradient(x, 1 / 3)
    assert scaled.dtype == x.dtype
    np.testing.assert_array_equal(backend.array(scaled), backend.array(x))


@pytest.mark.parametrize("way", ["value_and_vjp", "compiled_value_and_vjp"])
def test_zero_stops_even_infinite_gradients(backend, way):
    cotangent = np.array([np.inf, np.nan, 1.0])
    _, (gradient,) = getattr(backend, way)(
        lambda t: backend.tricks.scale_gradient(t, 0.0), [np.ones(3)], cotangent
    )
    np.testing.assert_array_equal(gradient, np.zeros(3))


@pytest.mark.parametrize("way", ["value_and_vjp", "compiled_value_and_vjp"])
def test_a_tensor_scale_broadcasts_and_gets_no_gradient(backend, way):
    x, scale = np.ones((2, 3)), np.array([[0.0], [-2.0]])
    _, (gradient,) = getattr(backend, way)(
        lambda t: backend.tricks.scale_gradient(t, backend.tensor(scale)), [x], np.full((2, 3), 5.0)
    )
    np.testing.assert_array_equal(gradient, reference.scale_gradient_vjp(np.full((2, 3), 5.0), x, scale))


def test_reversing_twice_is_the_identity(backend):
    scale_gradient = backend.tricks.scale_gradient
    _, (gradient,) = backend.value_and_vjp(
        lambda t: scale_gradient(scale_gradient(t, -1.0), -1.0), [np.arange(3.0)], np.arange(3.0)
    )
    np.testing.assert_array_equal(gradient, np.arange(3.0))


def test_second_derivatives_scale_too(backend):
    # d/dx of scale * 3x**2 is scale * 6x, scaled once more on its way back to x.
    if backend.name == "torch":
        x = backend.framework.tensor(2.0, dtype=backend.framework.float64, requires_grad=True)
        y = backend.tricks.scale_gradient(x, 0.5) ** 3
        first = backend.framework.autograd.grad(y, x, create_graph=True)[0]
        second = backend.framework.autograd.grad(first, x)[0]
    else:
        x = backend.framework.constant(2.0, backend.framework.float64)
        with backend.framework.GradientTape() as outer:
            outer.watch(x)
            with backend.framework.GradientTape() as inner:
                inner.watch(x)
                y = backend.tricks.scale_gradient(x, 0.5) ** 3
            first = inner.gradient(y, x)
        second = outer.gradient(first, x)
    assert (backend.array(first), backend.array(second)) == (6.0, 3.0)


@pytest.mark.parametrize("transform", ["grad", "vmap of grad", "jvp", "hessian", "compiled grad"])
def test_torch_transforms_see_the_scale(transform, compiler):
    torch = pytest.importorskip("torch")
    tricks = pytest.importorskip("gradtricks.torch")

    def cube(x):
        return (tricks.scale_gradient(x, 0.5) ** 3).sum()

    x = torch.tensor([1.0, 2.0], dtype=torch.float64)
    gradient = 1.5 * x**2
    if transform == "grad":
        torch.testing.assert_close(torch.func.grad(cube)(x), gradient)
    elif transform == "vmap of grad":
        torch.testing.assert_close(torch.func.vmap(torch.func.grad(cube))(x), gradient)
    elif transform == "jvp":
        torch.testing.assert_close(torch.func.jvp(cube, (x,), (torch.ones_like(x),))[1], gradient.sum())
    elif transform == "hessian":
        torch.testing.assert_close(torch.func.hessian(cube)(x), torch.diag(1.5 * x))
    else:
        torch.compiler.reset()
        compiled = torch.compile(torch.func.grad(cube), fullgraph=True, backend=compiler)
        torch.testing.assert_close(compiled(x), gradient)


def test_forward_mode_sees_the_scale_in_torch():
    torch = pytest.importorskip("torch")
    tricks = pytest.importorskip("gradtricks.torch")
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(torch.ones(2), torch.tensor([1.0, 2.0]))
        tangent = torch.autograd.forward_ad.unpack_dual(tricks.scale_gradient(dual, 0.5)).tangent
    assert tangent.tolist() == [0.5, 1.0]


@pytest.mark.parametrize("graph", ["none", "around the accumulator", "inside the accumulator"])
def test_forward_mode_sees_the_scale_in_tensorflow(graph):
    tf = pytest.importorskip("tensorflow")
    tricks = pytest.importorskip("gradtricks.tensorflow")
    x = tf.constant([1.0, np.inf])

    def scaled(x):
        return tricks.scale_gradient(x, 0.5)

    scaled = tf.function(scaled) if graph == "inside the accumulator" else scaled

    def tangent():
        with tf.autodiff.ForwardAccumulator(x, tf.constant([1.0, 2.0])) as accumulator:
            return accumulator.jvp(scaled(x))

    tangent = tf.function(tangent) if graph == "around the accumulator" else tangent
    assert tangent().numpy()[0] == 0.5


def test_a_variable_is_read_in_tensorflow():
    tf = pytest.importorskip("tensorflow")
    keras = pytest.importorskip("keras")
    tricks = pytest.importorskip("gradtricks.tensorflow")
    variable = tf.Variable(3.0)
    with tf.GradientTape() as tape:
        y = tricks.scale_gradient(variable, keras.Variable(0.5))
    assert float(tape.gradient(y, variable)) == 0.5


@pytest.mark.parametrize(
    ("x", "scale", "error", "message"),
    [
        ([1, 2], 0.5, TypeError, "x must be floating-point; got"),
        ("array", 0.5, TypeError, "x must be a .*Tensor; got ndarray; remedy"),
        ([1.0], "half", TypeError, "scale must be a real number; got str"),
        ([1.0], True, TypeError, "scale must be a real number; got bool"),
        ([1.0], float("nan"), ValueError, "scale must be finite; got nan"),
        ([1.0], "integers", TypeError, "scale must be floating-point; got"),
        ([1.0], "wide", ValueError, r"scale must broadcast to the shape of x, \(1,\); got \(2,\)"),
    ],
)
def test_bad_input_says_what_is_expected(backend, x, scale, error, message):
    x = np.ones(2) if x == "array" else backend.tensor(x)
    scale = {"wide": backend.tensor([1.0, 2.0]), "integers": backend.tensor([1])}.get(scale, scale)
    with pytest.raises(error, match=message):
        backend.tricks.scale_gradient(x, scale)


def test_under_every_transform(way):
    x, cotangent = np.array([[1.5, -2.0, 0.0]]), np.array([[1.0, -3.0, 2.0]])
    value, (gradient,) = way.value_and_vjp(lambda t: way.tricks.scale_gradient(t, -0.5), [x], cotangent)
    np.testing.assert_allclose(value, reference.scale_gradient(x, -0.5), rtol=way.rtol)
    np.testing.assert_allclose(
        gradient, reference.scale_gradient_vjp(cotangent, x, -0.5), rtol=way.rtol, atol=1e-12
    )


def test_twice_under_every_transform(second):
    x, cotangent, direction = np.array([1.5, -2.0]), np.array([1.0, -3.0]), np.array([0.3, 0.7])

    def vjp(cotangent, x):
        return reference.scale_gradient_vjp(3 * np.square(x) * cotangent, x, -0.5)

    (gradient,) = second.second_vjp(
        lambda t: second.tricks.scale_gradient(t, -0.5) ** 3, [x], cotangent, [direction]
    )
    # The outer derivative meets the scale again.
    (once,) = numerical_second_vjp(vjp, [x], cotangent, [direction])
    np.testing.assert_allclose(gradient, -0.5 * once, rtol=1e-5)
