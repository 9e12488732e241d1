"""Hessian-vector products and norms of Hessians."""

from collections import OrderedDict, defaultdict, namedtuple
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from agreeing import assert_close, assert_refused
from backends import TRACER
from domains import choice, floating, integer
from gradtricks import reference
from gradtricks._core.curvature import HessianNorm, norm_of_products
from gradtricks._core.structures import leaves, rebuilt
from suites import Domains, Row

MATRIX = np.array([[2.0, -1.0, 0.5], [-1.0, 0.0, 3.0], [0.5, 3.0, -4.0]])


def summed(backend, x):
    return backend.total(backend.framework.reshape(x, [-1]))


def product_of_two(x):
    return x[0] * x[1]


def by_both_methods(backend, function, x, **options):
    """Return the norm by exact products, and by differences of gradients."""
    methods = "exact", "finite_difference"
    return [backend.tricks.hessian_norm(function, x, method=method, **options) for method in methods]


def quartic(backend):
    """Return sum(x**4) / 12 + x.Mx / 2, whose third derivative is 2x on the diagonal and 0 elsewhere."""
    matrix = backend.tensor(MATRIX)

    def function(x):
        product = backend.total(matrix * x)
        return backend.total(x**4) / 12 + 0.5 * backend.total(x * product)

    return function


def quartic_gradient(x):
    return x**3 / 3 + MATRIX @ x


def softmax(x):
    exponentials = np.exp(x - x.real.max())
    return exponentials / exponentials.sum()


def log_sum_exp_hessian(x):
    p = softmax(x)
    return np.diag(p) - np.outer(p, p)


def test_under_every_transform(way):
    x, vector, cotangent = np.array([1.5, -2.0, 0.5]), np.array([0.3, 1.0, -0.7]), np.array([1.0, -3.0, 2.0])
    function = quartic(way.backend)
    value, gradients = way.value_and_vjp(
        lambda x, vector: way.tricks.hessian_vector_product(function, x, vector), [x, vector], cotangent
    )
    product = reference.hessian_vector_product(quartic_gradient, x, vector)
    expected = reference.hessian_vector_product_vjp(cotangent, quartic_gradient, x, vector)
    np.testing.assert_allclose(product, np.square(x) * vector + MATRIX @ vector, rtol=1e-14)
    np.testing.assert_allclose(expected[0], 2 * x * vector * cotangent, rtol=1e-11, atol=1e-11)
    assert_close([value, *gradients], [product, *expected], way.rtol, way.rtol)


def test_twice_under_every_transform(second):
    x, vector, direction = np.array([1.5, -2.0, 0.5]), np.array([0.3, 1.0, -0.7]), np.array([0.3, 0.7, -1.1])
    cotangent, function = np.array([1.0, -3.0, 2.0]), quartic(second.backend)
    along = second.backend.tensor(vector)

    def product(x):
        return second.tricks.hessian_vector_product(function, x, along)

    (gradient,) = second.second_vjp(product, [x], cotangent, [direction])
    np.testing.assert_allclose(gradient, 2 * vector * cotangent * direction, rtol=1e-10)


@given(data=st.data())
def test_agrees_with_the_reference(backend, data):
    shape = data.draw(array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
    x, vector, weights = (data.draw(arrays(np.float64, shape, elements=st.floats(-3, 3))) for _ in range(3))
    tensor = backend.tensor(weights)
    product = backend.tricks.hessian_vector_product(
        lambda x: summed(backend, tensor * x**3) * summed(backend, x),
        backend.tensor(x),
        backend.tensor(vector),
    )

    def gradient(x):
        return 3 * weights * x**2 * x.sum() + (weights * x**3).sum()

    expected = reference.hessian_vector_product(gradient, x, vector)
    np.testing.assert_allclose(backend.array(product), expected, rtol=1e-10, atol=1e-10)
    assert backend.array(product).shape == shape


Layer = namedtuple("Layer", ["kernel", "bias"])


def test_structures(backend):
    layers = {"b": [Layer(np.array([2.0]), np.array(3.0))], "a": (np.array([[1.0, -1.0]]),)}

    def function(layers):
        (layer,), (kernel,) = layers["b"], layers["a"]
        return summed(backend, layer.kernel**2 * layer.bias) + summed(backend, kernel**3)

    x = rebuilt(layers, map(backend.tensor, leaves(layers)))
    product = backend.tricks.hessian_vector_product(function, x, x)
    assert isinstance(product["b"][0], Layer)
    got = [backend.array(leaf) for leaf in leaves(product)]
    # For k**2 b: 2b k + 2k b along k and 2k k along b; for a**3: 6a a.
    assert_close(got, [[24.0], 8.0, [[6.0, 6.0]]])
    dense = np.zeros((4, 4))
    dense[:2, :2], dense[2, 2], dense[3, 3] = [[6, 4], [4, 0]], 6, -6
    norm = backend.tricks.hessian_norm(function, x)
    np.testing.assert_allclose(norm, (np.linalg.norm(dense), 0.0), rtol=1e-12)


def test_dicts_go_by_key_and_stay_what_they_are(backend):
    one, two = backend.tensor([1.0, 1.0]), backend.tensor([5.0, -5.0])
    a, b = backend.tensor([1.0, 2.0]), backend.tensor([3.0, 4.0])
    for kind in (dict, OrderedDict, partial(defaultdict, list)):
        x = kind(a=a, b=b)
        product = backend.tricks.hessian_vector_product(
            lambda x: summed(backend, x["a"] ** 2 * x["b"]), x, {"b": two, "a": one}
        )
        assert (type(product), list(product)) == (type(x), ["a", "b"])
        assert x["a"] is a
        np.testing.assert_allclose(backend.array(product["a"]), [6 + 2 * 5, 8 - 4 * 5])
        np.testing.assert_allclose(backend.array(product["b"]), [2, 4])


def test_a_tensor_that_comes_twice_is_two_arguments(backend):
    x, zero = backend.tensor([2.0, 3.0]), backend.tensor([0.0, 0.0])
    one = backend.tensor([1.0, 1.0])
    product = backend.tricks.hessian_vector_product(
        lambda x: summed(backend, x[0] * x[1]), [x, x], [one, zero]
    )
    np.testing.assert_array_equal([backend.array(part) for part in product], [[0, 0], [1, 1]])
    norm = backend.tricks.hessian_norm(lambda x: summed(backend, x[0] * x[1]), [x, x])
    np.testing.assert_allclose(norm, (2, 0))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_low_precision_stays(backend, dtype):
    x = backend.cast(backend.tensor([1.0, 2.0, -1.5]), dtype)
    vector = backend.tensor([1.0, -1.0, 0.5])
    product = backend.tricks.hessian_vector_product(lambda x: summed(backend, x**3), x, vector)
    assert product.dtype == x.dtype
    np.testing.assert_allclose(backend.array(product), [6.0, -12.0, -4.5], rtol=1e-2)
    for norm in by_both_methods(backend, lambda x: summed(backend, x**3), x):
        np.testing.assert_allclose(norm, (np.sqrt(36 + 144 + 81), 0.0), rtol=0.1)


@pytest.mark.parametrize("extreme", [np.inf, np.nan, 1e200])
def test_what_is_not_finite_shows(backend, extreme):
    x = backend.tensor([1.0, extreme])

    def function(x):
        return summed(backend, x**4)

    product = backend.tricks.hessian_vector_product(function, x, backend.tensor([1.0, 1.0]))
    assert not np.isfinite(backend.array(product)[1])
    for order in ("fro", 2):
        assert np.isnan(backend.tricks.hessian_norm(function, x, ord=order).value)
        assert not np.isfinite(backend.tricks.hessian_norm(function, x, ord=order, samples=1).value)


def test_what_is_linear_or_unconnected_has_no_curvature(backend):
    x, vector = backend.tensor([1.0, 2.0]), backend.tensor([1.0, -1.0])
    for function in (lambda x: summed(backend, 3 * x), lambda x: backend.tensor(1.5)):
        product = backend.tricks.hessian_vector_product(function, x, vector)
        np.testing.assert_array_equal(backend.array(product), [0.0, 0.0])
        assert backend.tricks.hessian_norm(function, x, method="finite_difference").value < 1e-9
        for samples in (1, 2, 3):
            for order in ("fro", 2):
                assert backend.tricks.hessian_norm(function, x, ord=order, samples=samples).value == 0.0


def test_empty_tensors_have_no_curvature(backend):
    x = backend.tensor(np.zeros((0, 2)))
    for order in ("fro", 2):
        norms = by_both_methods(backend, lambda x: summed(backend, x**2), x, ord=order)
        assert norms == [HessianNorm(0.0, 0.0)] * 2


def test_declared_gradients_count(backend):
    # d/dx of 0.5 * 3x**2 is 3x, and it passes the scale once more on its way back.
    x, vector = backend.tensor([2.0, -1.0]), backend.tensor([1.0, 1.0])
    product = backend.tricks.hessian_vector_product(
        lambda x: summed(backend, backend.tricks.scale_gradient(x, 0.5) ** 3), x, vector
    )
    np.testing.assert_allclose(backend.array(product), 0.5 * 0.5 * 6 * np.array([2.0, -1.0]))


def test_hooks_count_in_torch(in_torch):
    torch, tricks = in_torch.framework, in_torch.tricks

    def function(x):
        y = x * 1.0
        y.register_hook(lambda gradient: 3 * gradient)
        return (y**3).sum()

    x = torch.tensor([2.0, -1.0])
    # The gradient is 3 * 3x**2, and going backward through that meets the hook again. Forward mode would have
    # left it out.
    product = tricks.hessian_vector_product(function, x, torch.ones(2))
    torch.testing.assert_close(product, 54 * x)
    point = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(function(point), point, create_graph=True)
    torch.testing.assert_close(product, torch.autograd.grad(gradient.sum(), point)[0])


def test_without_gradients_in_torch(in_torch):
    torch, tricks = in_torch.framework, in_torch.tricks
    x = torch.tensor([2.0, -1.0], dtype=torch.float64)
    for without in (torch.no_grad, torch.inference_mode):
        with without():
            product = tricks.hessian_vector_product(lambda x: (x**3).sum(), x, torch.ones(2))
            np.testing.assert_allclose(product, [12.0, -6.0])
            for norm in by_both_methods(in_torch, lambda x: (x**3).sum(), x):
                np.testing.assert_allclose(norm.value, np.hypot(12, 6), rtol=1e-6)


def test_what_torch_func_would_refuse(in_torch):
    torch = in_torch.framework
    from torch.utils.checkpoint import checkpoint

    cube = in_torch.declared(lambda x: x**3, lambda x: 3 * x**2)
    x, layer = torch.tensor([2.0, -1.0], dtype=torch.float64), torch.nn.BatchNorm1d(2).double()
    rows = torch.tensor([[1.0, 2.0], [3.0, -1.0], [0.5, 0.0]], dtype=torch.float64)
    for function in (
        lambda x: cube(x).sum(),
        lambda x: (layer(rows * x) ** 3).sum(),
        lambda x: checkpoint(lambda x: (x**3).sum(), x, use_reentrant=False),
    ):
        exact, difference = by_both_methods(in_torch, function, x)
        np.testing.assert_allclose(exact.value, difference.value, rtol=1e-4, atol=1e-4)


def test_what_a_function_reads_elsewhere_is_constant(in_tensorflow):
    tf, tricks = in_tensorflow.framework, in_tensorflow.tricks
    layer = tf.keras.layers.Dense(1)
    layer.build((1, 2))
    weights = layer.trainable_variables
    elsewhere = tricks.hessian_norm(lambda _: tf.reduce_sum(layer(tf.ones((1, 2))) ** 2), weights)
    through = tricks.hessian_norm(
        lambda weights: tf.reduce_sum(layer.stateless_call(weights, [], tf.ones((1, 2)))[0] ** 2), weights
    )
    np.testing.assert_allclose([elsewhere.value, through.value], [0, 6], rtol=1e-6)


def test_a_variable_is_read_in_tensorflow(in_tensorflow):
    tf, tricks = in_tensorflow.framework, in_tensorflow.tricks
    variable = tf.Variable([2.0, -1.0])
    product = tricks.hessian_vector_product(lambda x: tf.reduce_sum(x**3), variable, tf.ones(2))
    np.testing.assert_allclose(product, [12.0, -6.0])
    table = tricks.hessian_vector_product(
        lambda x: tf.reduce_sum(tf.gather(x, [1, 1]) ** 3), variable, tf.ones(2)
    )
    np.testing.assert_allclose(table, [0.0, -12.0])


def test_mixed_precision_in_keras(in_tensorflow):
    tf, tricks = in_tensorflow.framework, in_tensorflow.tricks
    layer = tf.keras.layers.Dense(3, "tanh", dtype="mixed_bfloat16")
    x = tf.constant([[0.5, -1.0]])
    layer.build(x.shape)

    def loss(weights):
        y, _ = layer.stateless_call(weights, [], x)
        return tf.reduce_sum(tf.cast(y, tf.float32) ** 2)

    weights = [variable.value for variable in layer.trainable_variables]
    product = tricks.hessian_vector_product(loss, weights, [tf.ones_like(w) for w in weights])
    assert [p.dtype for p in product] == [tf.float32, tf.float32]
    assert np.isfinite(by_both_methods(in_tensorflow, loss, weights)).all()


@pytest.mark.parametrize("order", ["fro", 2])
def test_the_norm_is_that_of_the_seeds_probes(backend, order):
    x = np.random.default_rng(2).normal(size=40)
    matrix, function, options = log_sum_exp_hessian(x), backend.log_sum_exp, {"ord": order, "seed": 5}
    norm = backend.tricks.hessian_norm(function, backend.tensor(x), samples=40, **options)
    np.testing.assert_allclose(norm, reference.hessian_norm(softmax, x, ord=order), rtol=1e-10, atol=1e-14)
    for samples in (1, 7):
        norm = backend.tricks.hessian_norm(function, backend.tensor(x), samples=samples, **options)
        expected = norm_of_products(lambda z: matrix @ z, 40, samples=samples, **options)
        np.testing.assert_allclose(norm, expected, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("order", ["fro", 2])
@pytest.mark.parametrize("method", ["exact", "finite_difference"])
def test_the_norm_waits_for_a_device_once_in_torch(in_torch, monkeypatch, order, method):
    waits, kind = [], in_torch.framework.Tensor
    x, norm = in_torch.tensor(np.linspace(-1, 1, 12)), in_torch.tricks.hessian_norm
    options = {"ord": order, "method": method, "samples": 9}
    # After five Lanczos steps nothing is left.
    expected = norm(lambda x: (x[:5] ** 4).sum(), x, **options)
    monkeypatch.setattr("gradtricks.torch.curvature.on_cpu", lambda x: False)
    for name in ("numpy", "item", "tolist", "__float__", "__bool__"):
        read = getattr(kind, name)
        monkeypatch.setattr(kind, name, lambda x, read=read, **named: (waits.append(x), read(x, **named))[1])
    found = norm(lambda x: (x[:5] ** 4).sum(), x, **options)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)
    assert len(waits) == 1


def test_the_standard_error_covers_the_truth():
    matrix = log_sum_exp_hessian(np.random.default_rng(3).normal(size=60))

    def norm_with(seed, samples=20):
        return norm_of_products(lambda z: matrix @ z, 60, ord="fro", samples=samples, seed=seed)

    truth, norms = np.linalg.norm(matrix), [norm_with(seed) for seed in range(200)]
    scores = [(norm.value - truth) / norm.standard_error for norm in norms]
    assert 0.85 < np.mean(np.abs(scores) < 2) <= 1.0
    assert np.isnan(norm_with(0, samples=1).standard_error)


def test_the_spectral_residual_bounds_the_error():
    random = np.random.default_rng(4)
    square = random.normal(size=(80, 80))
    matrix = square + square.T
    values = np.abs(np.linalg.eigvalsh(matrix))
    for samples in (2, 5, 15, 40):
        norm = norm_of_products(lambda z: matrix @ z, 80, ord=2, samples=samples, seed=0)
        assert np.abs(values - norm.value).min() <= norm.standard_error * (1 + 1e-9)
    np.testing.assert_allclose(norm.value, values.max(), rtol=1e-6)


def test_the_spectral_norm_sees_a_difference_of_two(backend):
    x = backend.tensor(np.zeros(100))
    norm = backend.tricks.hessian_norm(lambda x: 50 * (x[0] - x[1]) ** 2, x, ord=2)
    np.testing.assert_allclose(norm.value, 200)


@pytest.mark.parametrize("order", ["fro", 2])
@pytest.mark.parametrize("samples", [2, 3])
@pytest.mark.parametrize("size", [1e200, 1e-200])
def test_large_and_small_curvature(backend, order, samples, size):
    # Squares of such numbers overflow or vanish. Of two Lanczos steps the first exhausts the space.
    norm = backend.tricks.hessian_norm(
        lambda x: summed(backend, size * x**2), backend.tensor(np.ones(3)), ord=order, samples=samples
    )
    np.testing.assert_allclose(norm.value, size * (2 * np.sqrt(3) if order == "fro" else 2), rtol=1e-14)
    assert norm.standard_error <= 1e-14 * size


def test_finite_differences_fail_across_a_kink(backend):
    # |x| has no curvature where it has a derivative; a difference across the kink sees 1 / h.
    x = backend.tensor(np.array([1e-7, 1.0]))
    exact, difference = by_both_methods(backend, lambda x: summed(backend, abs(x)), x)
    assert exact.value == 0.0
    assert difference.value > 1e4


def test_of_what_a_compiler_made(backend):
    function, x = backend.log_sum_exp, backend.tensor(np.array([0.5, -1.0, 2.0]))
    norm = backend.tricks.hessian_norm(function, x)
    again = backend.tricks.hessian_norm(backend.compiled(function), x, method="finite_difference")
    np.testing.assert_allclose(again, norm, rtol=1e-6)


def test_pytorch_refuses_second_derivatives_of_what_it_compiled(in_torch):
    torch, tricks = in_torch.framework, in_torch.tricks
    torch.compiler.reset()
    once, x = torch.compile(lambda x: (x**3).sum(), backend=TRACER), torch.ones(2)
    assert tricks.hessian_norm(once, x, method="finite_difference").value == pytest.approx(72**0.5, rel=0.01)
    with pytest.raises(RuntimeError, match="double backward"):
        tricks.hessian_vector_product(once, x, x)


def test_a_norm_says_where_it_cannot_run(backend):
    def product(x):
        backend.tricks.hessian_norm(backend.log_sum_exp, x)
        return x * 1.0

    with pytest.raises(Exception, match="hessian_norm must run eagerly"):
        backend.compiled_value_and_vjp(product, [np.array([0.5, -1.0])], np.ones(2))
    with pytest.raises(RuntimeError, match="hessian_norm must run eagerly"):
        backend.traced(lambda x: backend.tricks.hessian_norm(lambda x: x, x), [1.0])


class TestArguments(Domains):
    of_norm = {"ord": choice("fro", 2), "method": choice("exact", "finite_difference")}
    of_norm |= {"samples": integer(1), "seed": integer(0), "x": floating()}
    of_product = {"x": floating(), "vector": floating("x")}
    rows = (
        Row("hessian_norm", lambda *_: [product_of_two, np.ones(2)], 0, domains=of_norm),
        Row(
            "hessian_vector_product",
            lambda *_: [product_of_two, np.ones(2), np.ones(2)],
            0,
            domains=of_product,
        ),
    )


X, TREE = np.array([1.0, 2.0]), {"a": np.array(1.0), "b": [np.array([2.0])]}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((product_of_two, [], X), ValueError, "x must hold at least one tensor; got none"),
        ((product_of_two, X, [X, X]), TypeError, "vector must be a .*Tensor; got list; remedy"),
        ((abs, X, X), ValueError, r"return a scalar; got shape \(2,\); remedy: sum it"),
        ((len, X, X), TypeError, "function's result must be a .*Tensor; got int"),
        ((len, TREE, {"c": X, "b": X}), ValueError, r"of x, .*; got the entries \['c', 'b'\]"),
        ((len, TREE, X), ValueError, r"the entries of x, \['a', 'b'\]; got .*Tensor"),
        ((len, TREE, TREE | {"b": [X, X]}), ValueError, r"of x\['b'\], \[0\]; got the"),
    ],
)
def test_structures_and_functions_that_do_not_fit_are_refused(backend, arguments, error, message):
    assert_refused(backend, "hessian_vector_product", arguments, {}, error, message)
