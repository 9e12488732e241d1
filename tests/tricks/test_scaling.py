"""scale_gradient: identity forward, scaled backward."""

import pickle
from collections import namedtuple
from functools import partial

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


@pytest.mark.parametrize("scale", [1 / 3, 0.1, 0.5, 0.0, 2.0])
def test_the_line_that_the_chapter_gives_to_copy_is_exact_but_for_infinities(backend, scale):
    def line(x):
        return backend.stop(x) + scale * (x - backend.stop(x))

    x = np.random.default_rng(0).normal(size=10_000).astype(np.float32)
    x = np.concatenate([x, EXTREMES[np.isfinite(EXTREMES)]])
    if backend.name == "tensorflow":  # whose arithmetic takes subnormal numbers for 0
        x = x[(x == 0) | (np.abs(x) >= np.finfo(np.float32).tiny)]
    value, (gradient,) = backend.value_and_vjp(line, [x], np.ones_like(x))
    np.testing.assert_array_equal(value, x)
    np.testing.assert_array_equal(gradient, np.full_like(x, scale))
    value, (gradient,) = backend.value_and_vjp(line, [np.array([np.inf, 1.0])], np.array([1.0, np.inf]))
    assert np.isnan(value[0])
    assert np.isnan(gradient[1]) == (scale == 0)


@pytest.mark.parametrize(("scale", "least", "most"), [(1 / 3, 0.28, 0.33), (0.1, 0.28, 0.33), (0.5, 0, 0)])
def test_the_textbook_formula_changes_values_by_a_rounding_as_the_chapter_says(backend, scale, least, most):
    x = np.random.default_rng(0).normal(size=10_000).astype(np.float32)
    value, _ = backend.value_and_vjp(lambda t: t * scale + backend.stop(t) * (1 - scale), [x], x)
    assert least <= np.mean(value != x) <= most
    np.testing.assert_allclose(value, x, rtol=2**-23)


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


@pytest.mark.parametrize("backend_of_compile", ["aot_eager", "eager"])
def test_dual_numbers_in_a_compiled_function_are_never_ignored_in_torch(backend_of_compile):
    torch = pytest.importorskip("torch")
    tricks = pytest.importorskip("gradtricks.torch")
    forward_ad = torch.autograd.forward_ad
    torch.compiler.reset()
    compile_ = partial(torch.compile, backend=backend_of_compile)
    whole, broken = (compile_(lambda x: tricks.scale_gradient(x, 0.5), fullgraph=f) for f in (True, False))
    whole(torch.ones(2))
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(torch.ones(2), torch.tensor([1.0, 2.0]))
        with pytest.raises(RuntimeError, match="scale_gradient must not meet dual numbers"):
            whole(dual)
        # Where the compiler may give up, Python takes over.
        assert forward_ad.unpack_dual(broken(dual)).tangent.tolist() == [0.5, 1.0]
    assert whole(torch.ones(2)).tolist() == [1, 1]


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
    np.testing.assert_array_equal(tangent(), [0.5, 1.0])


@pytest.mark.parametrize("graph", [False, True])
def test_a_tape_around_vectorized_map_sees_the_scale_in_tensorflow(graph):
    tf = pytest.importorskip("tensorflow")
    tricks = pytest.importorskip("gradtricks.tensorflow")

    def value_and_gradient(x, incoming):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.vectorized_map(lambda row: tricks.scale_gradient(row, -0.5), x)
        return y, tape.gradient(y, x, incoming)

    value_and_gradient = tf.function(value_and_gradient) if graph else value_and_gradient
    x = np.stack([EXTREMES, EXTREMES[::-1]])
    y, gradient = value_and_gradient(tf.constant(x), tf.range(16.0)[:, None][:2] + tf.ones((2, 8)))
    assert y.numpy().tobytes() == x.tobytes()
    np.testing.assert_array_equal(gradient, -0.5 * np.array([[1.0], [2.0]]) * np.ones((2, 8)))


def test_a_function_in_vectorized_map_raises_in_tensorflow():
    tf = pytest.importorskip("tensorflow")
    tricks = pytest.importorskip("gradtricks.tensorflow")
    halved = tf.function(lambda row: tricks.scale_gradient(row, 0.5))
    halved(tf.ones(2))
    x = tf.ones((3, 2))
    with tf.GradientTape() as tape:
        tape.watch(x)
        with pytest.raises(LookupError, match=r"scale_gradient in a tf\.function in a tf\.vectorized_map"):
            tf.vectorized_map(halved, x)


def test_a_sparse_gradient_is_scaled_in_tensorflow():
    tf = pytest.importorskip("tensorflow")
    tricks = pytest.importorskip("gradtricks.tensorflow")
    table = tf.Variable([[1.0], [2.0], [3.0]])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.gather(tricks.scale_gradient(table, 0.5), [0, 0, 2]))
    np.testing.assert_array_equal(tape.gradient(loss, table), [[1.0], [0.0], [0.5]])


Pair = namedtuple("Pair", "first second")


def test_structures_are_kept(backend):
    one, other = backend.tensor([1.0]), backend.tensor([[2.0, 3.0]])
    tree = {"pair": Pair(one, [other]), "rest": (one,)}
    scaled = backend.tricks.scale_gradient(tree, 0.5)
    assert isinstance(scaled["pair"], Pair)
    assert isinstance(scaled["pair"].second, list)
    assert isinstance(scaled["rest"], tuple)
    np.testing.assert_array_equal(backend.array(scaled["pair"].second[0]), [[2.0, 3.0]])
    _, gradients = backend.value_and_vjp(
        lambda a, b: sum(backend.tricks.reverse_gradient((a, b))), [np.ones(2), np.ones(2)], np.arange(2.0)
    )
    np.testing.assert_array_equal(gradients, -np.stack([np.arange(2.0)] * 2))


def test_the_layer_scales_and_can_be_set_anew(backend):
    layer = backend.tricks.ScaleGradient(0.5)
    for scale in (0.5, -2.0, 0.0):
        layer.scale = scale
        assert layer.scale == scale
        x = np.float32([1.0, np.inf, -0.0])
        value, (gradient,) = backend.value_and_vjp(layer, [x], np.float32([1, 2, np.inf]))
        assert value.tobytes() == x.tobytes()
        np.testing.assert_array_equal(gradient, reference.scale_gradient_vjp([1, 2, np.inf], x, scale))


@pytest.mark.parametrize(
    ("scale", "error"), [("half", TypeError), (True, TypeError), (float("inf"), ValueError)]
)
def test_the_layer_checks_its_scale(backend, scale, error):
    with pytest.raises(error, match="scale must be"):
        backend.tricks.ScaleGradient(scale)
    layer = backend.tricks.ScaleGradient(1.0)
    with pytest.raises(error, match="scale must be"):
        layer.scale = scale
    assert layer.scale == 1


def test_the_module_shows_its_scale_and_compiles_in_torch():
    torch = pytest.importorskip("torch")
    tricks = pytest.importorskip("gradtricks.torch")
    torch.compiler.reset()
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), tricks.ScaleGradient(-0.25))
    assert "ScaleGradient(scale=-0.25)" in repr(model)
    assert pickle.loads(pickle.dumps(model))[1].scale == -0.25  # noqa: S301
    assert list(model.state_dict()) == ["0.weight", "0.bias"]
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for scale in (-0.25, 3.0):
        model[1].scale = scale
        model.zero_grad()
        compiled(torch.ones(1, 2)).sum().backward()
        assert model[0].bias.grad.tolist() == [scale, scale]


@pytest.mark.parametrize("policy", ["float32", "mixed_float16", "mixed_bfloat16"])
def test_the_layer_trains_in_fit_in_tensorflow(policy, tmp_path):
    keras = pytest.importorskip("keras")
    tricks = pytest.importorskip("gradtricks.tensorflow")
    inputs = keras.Input((2,))
    dense = keras.layers.Dense(1, kernel_initializer="ones", dtype=policy)
    layer = tricks.ScaleGradient(0.0, dtype=policy)
    model = keras.Model(inputs, layer(dense(inputs)))
    model.compile(keras.optimizers.SGD(0.1), "mse")
    x, y = np.ones((4, 2), np.float32), np.zeros((4, 1), np.float32)
    for scale, moved in ((0.0, 0.0), (0.5, -0.2), (-0.5, 0.2)):
        layer.scale = scale
        dense.set_weights([np.ones((2, 1)), np.zeros(1)])
        model.fit(x, y, batch_size=4, verbose=0)
        # The loss is (w1 + w2)**2, its gradient 4.
        np.testing.assert_allclose(dense.get_weights()[0] - 1, moved, atol=1e-2)
    assert model(x).dtype == dense.compute_dtype
    path = tmp_path / "model.keras"
    model.save(path)
    assert keras.saving.load_model(path).layers[-1].scale == -0.5
    assert tricks.ScaleGradient.from_config(layer.get_config()).scale == -0.5


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
        ([1.0], 10**400, ValueError, "scale must be finite; got an integer beyond float64"),
        ([1.0], "integers", TypeError, "scale must be floating-point; got"),
        ([1.0], "wide", ValueError, r"scale must broadcast to the shape of x, \(1,\); got \(2,\)"),
    ],
)
def test_bad_input_says_what_is_expected(backend, x, scale, error, message):
    x = np.ones(2) if x == "array" else backend.tensor(x)
    scale = {"wide": backend.tensor([1.0, 2.0]), "integers": backend.tensor([1])}.get(scale, scale)
    with pytest.raises(error, match=message):
        backend.tricks.scale_gradient(x, scale)


@pytest.mark.parametrize("scale", [-0.5, 0.0])
def test_infinities_under_every_transform(way, scale):
    smallest = 2.0**-149 if way.name == "autocast" else 5e-324
    x, cotangent = np.array([np.inf, -np.inf, -0.0, smallest, 1.5]), np.arange(1.0, 6.0)
    value, (gradient,) = way.value_and_vjp(lambda t: way.tricks.scale_gradient(t, scale), [x], cotangent)
    assert value.tobytes() == x.tobytes()
    np.testing.assert_array_equal(gradient, scale * cotangent)


def test_reverse_gradient_under_every_transform(way):
    x, cotangent = np.array([[1.5, -2.0, 0.0]]), np.array([[1.0, -3.0, 2.0]])
    value, (gradient,) = way.value_and_vjp(way.tricks.reverse_gradient, [x], cotangent)
    np.testing.assert_allclose(value, reference.reverse_gradient(x), rtol=way.rtol)
    np.testing.assert_allclose(gradient, reference.reverse_gradient_vjp(cotangent, x), rtol=way.rtol)


def test_under_every_transform(way):
    x, cotangent = np.array([[1.5, -2.0, 0.0]]), np.array([[1.0, -3.0, 2.0]])
    value, (gradient,) = way.value_and_vjp(lambda t: way.tricks.scale_gradient(t, -0.5), [x], cotangent)
    np.testing.assert_allclose(value, reference.scale_gradient(x, -0.5), rtol=way.rtol)
    np.testing.assert_allclose(
        gradient, reference.scale_gradient_vjp(cotangent, x, -0.5), rtol=way.rtol, atol=1e-12
    )


def test_reverse_gradient_twice_under_every_transform(second):
    x, cotangent, direction = np.array([1.5, -2.0]), np.array([1.0, -3.0]), np.array([0.3, 0.7])
    (gradient,) = second.second_vjp(
        lambda t: second.tricks.reverse_gradient(t) ** 3, [x], cotangent, [direction]
    )
    # Reversed twice: what is left is the second derivative of the cube.
    np.testing.assert_allclose(gradient, 6 * x * cotangent * direction, rtol=1e-10)


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


@pytest.mark.parametrize("scale", [0.0, 0.1, 0.5, 0.9, 1.0, 2.0, -0.5])
def test_squares_of_peers(backend, scale):
    # Sonnet 1, scale_gradient_test.py: the square of 0 ... 5, scaled.
    x = np.arange(6.0)
    value, (gradient,) = backend.value_and_vjp(
        lambda t: backend.tricks.scale_gradient(t * t, scale), [x], np.ones(6)
    )
    np.testing.assert_array_equal(value, x**2)
    np.testing.assert_allclose(gradient, 2 * scale * x)
    # Sonnet 2, scale_gradient_test.py: -1, 0, 1, scaled, then squared.
    x = np.array([-1.0, 0.0, 1.0])
    _, (gradient,) = backend.value_and_vjp(
        lambda t: backend.tricks.scale_gradient(t, scale) ** 2, [x], np.ones(3)
    )
    np.testing.assert_array_equal(gradient, 2 * x * scale)
