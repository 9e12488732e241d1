"""input_gradients, input_jacobians: every sample's own derivative at once, or a refusal where samples mix."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agreeing import assert_agrees_twice, assert_close
from gradtricks import reference

WEIGHTS = np.random.default_rng(7).normal(size=(2, 3))


def cubes(backend):
    """Return ``x -> (x @ WEIGHTS) ** 3`` for a framework; its third derivatives are constant."""
    weights = backend.tensor(WEIGHTS)
    return lambda x: (x @ backend.cast(weights, dtype_of(x))) ** 3


def numpy_cubes(x):
    return (x @ WEIGHTS) ** 3


def dtype_of(tensor):
    return getattr(tensor.dtype, "name", None) or str(tensor.dtype).removeprefix("torch.")


def mixing(backend, coupling, size):
    """Return what mixes the samples of an x, ``[size, I]``, in one of several ways."""
    one = np.eye(size)
    matrices = {
        "mean": one - 1 / size,
        "cumulative": np.tril(np.ones((size, size))),
        "backwards": np.triu(np.ones((size, size))),
        "first": one + one[:1],
        "last": one + one[-1:],
        "pairs": np.kron(np.eye(size // 2), np.ones((2, 2))),
        "halves": one + np.roll(one, size // 2, 0),
        "one pair": one + np.outer(one[0], one[-1]),
    }
    rolled = isinstance(coupling, int)
    matrix = backend.tensor(np.roll(one, coupling, 0) if rolled else matrices[coupling])

    def mix(x):
        mixed = backend.cast(matrix, dtype_of(x)) @ x
        return x * mixed if rolled else mixed

    return mix


COUPLINGS = ["mean", "cumulative", "backwards", "first", "last", "pairs", "halves", "one pair", 1, 2, 3, 55]
SHAPES = {
    "seed": st.integers(0, 2**31),
    "batch": st.integers(0, 4),
    "inner": st.sampled_from([(2,), (3, 2), (0, 2)]),
}


@given(column=st.booleans(), **SHAPES)
def test_gradients_agree_with_the_reference(backend, seed, batch, inner, column):
    x = np.random.default_rng(seed).normal(size=(batch, *inner))

    def function(x):
        value = backend.total(cubes(backend)(x))
        value = backend.total(value) if len(inner) == 2 else value
        return value[:, None] if column else value

    def in_numpy(x):
        return numpy_cubes(x).reshape(batch, int(np.prod(inner[:-1])) * 3).sum(-1)

    found = backend.tricks.input_gradients(function, backend.tensor(x))
    assert_close([backend.array(found)], [reference.input_gradients(in_numpy, x)], atol=1e-12)


@given(**SHAPES)
def test_jacobians_agree_with_the_reference(backend, seed, batch, inner):
    x = np.random.default_rng(seed).normal(size=(batch, *inner))
    found = backend.tricks.input_jacobians(cubes(backend), backend.tensor(x))
    assert_close([backend.array(found)], [reference.input_jacobians(numpy_cubes, x)], atol=1e-12)


def test_what_belongs_to_each_sample_may_be_closed_over(backend):
    labels, x = (backend.tensor(np.arange(start, start + 6.0).reshape(3, 2)) for start in (0, 3))
    found = backend.tricks.input_gradients(lambda x: backend.total(x * labels), x)
    np.testing.assert_array_equal(backend.array(found), backend.array(labels))


def test_small_outputs(backend):
    found = backend.tricks.input_gradients(lambda x: x**2, backend.tensor(np.arange(3.0)))
    np.testing.assert_array_equal(backend.array(found), [0.0, 2.0, 4.0])
    found = backend.tricks.input_jacobians(lambda x: x[:, :0], backend.tensor(np.ones((2, 3))))
    assert tuple(found.shape) == (2, 0, 3)


@pytest.mark.parametrize(
    ("batch", "coupling"), [(b, c) for b in (2, 4, 64) for c in COUPLINGS if isinstance(c, str) or c < b]
)
def test_coupled_samples_are_refused(backend, batch, coupling):
    x = backend.tensor(np.random.default_rng(0).normal(size=(batch, 3)))
    mix = mixing(backend, coupling, batch)

    def function(x):
        return mix(x) ** 3

    with pytest.raises(ValueError, match=r"each sample by itself; got samples .*; remedy: .*check=F"):
        backend.tricks.input_gradients(lambda x: backend.total(function(x)), x)
    with pytest.raises(ValueError, match="function must treat each sample by itself"):
        backend.tricks.input_jacobians(function, x)


@pytest.mark.parametrize("distance", [1, 21])
def test_one_sample_in_both_of_its_neighbours_is_refused(backend, distance):
    # Evenly spaced weights, such as those that the multiples alone would give to 9, 30 and 51, don't see it.
    matrix = np.eye(64, dtype=np.float32)
    matrix[[30 - distance, 30 + distance], 30] = 1
    matrix, x = backend.tensor(matrix), backend.tensor(np.ones((64, 1), np.float32))
    with pytest.raises(ValueError, match="each sample by itself"):
        backend.tricks.input_gradients(lambda x: matrix @ x, x)


@pytest.mark.parametrize("trick", ["input_gradients", "input_jacobians"])
def test_a_large_gradient_hides_no_coupling_of_other_samples(backend, trick):
    matrix = np.diag(np.float32([1e6, 1, 1, 1]))
    derive, x = getattr(backend.tricks, trick), backend.tensor(np.ones((4, 1), np.float32))
    derive(lambda x: backend.tensor(matrix) @ x, x)
    matrix[2, 3] = 1
    with pytest.raises(ValueError, match="each sample by itself"):
        derive(lambda x: backend.tensor(matrix) @ x, x)


@pytest.mark.parametrize("distance", [1, 46_368, 75_025])
def test_a_large_batch_in_single_precision_is_refused_too(backend, distance):
    x = backend.tensor(np.arange(100_000, dtype=np.float32)[:, None] / 100_000)
    rolled = backend.tensor(np.roll(np.arange(100_000), -distance))
    with pytest.raises(ValueError, match="each sample by itself"):
        backend.tricks.input_gradients(lambda x: x + backend.take(x, rolled), x)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rounding_is_not_taken_for_coupling(backend, dtype):
    # Near one, a saturated softmax has derivatives that are rounding errors and nothing else.
    logits = np.array([[16.0, 0.0, 0.1], [0.2, 16.1, 0.0], [15.8, 0.1, 0.0], [17.0, 0.0, 0.3]])
    x = backend.cast(backend.tensor(logits), dtype)
    found = backend.tricks.input_gradients(lambda x: backend.total(backend.softmax(x) ** 2), x)
    assert np.isfinite(backend.array(found)).all()
    deep = backend.cast(backend.tensor(np.random.default_rng(0).normal(size=(6, 32, 32)) / 4), dtype)

    def layers(x):
        for layer in range(6):
            x = (x @ deep[layer]) ** 2 / 4
        return x

    x = backend.cast(backend.tensor(np.random.default_rng(1).normal(size=(64, 32))), dtype)
    assert tuple(backend.tricks.input_jacobians(layers, x).shape) == (64, 32, 32)


def test_unchecked_they_are_the_gradients_of_sums(backend):
    mix, x = mixing(backend, "mean", 2), backend.tensor(np.array([[1.0], [3.0]]))
    for trick, function in (
        (backend.tricks.input_jacobians, lambda x: mix(x) ** 2),
        (backend.tricks.input_gradients, lambda x: backend.total(mix(x) ** 2)),
    ):
        found = trick(function, x, check=False)  # of (x0 - x1)**2 / 4, twice
        np.testing.assert_allclose(backend.array(found).reshape(-1), [-2.0, 2.0], rtol=1e-12)


def test_what_dynamo_exports_is_refused_in_torch(in_torch, monkeypatch):
    torch, tricks = in_torch.framework, in_torch.tricks
    for question in ("is_exporting", "is_dynamo_compiling"):
        monkeypatch.setattr(torch.compiler, question, lambda: True)
    with pytest.raises(RuntimeError, match="must be exported operation by operation; got strict=True"):
        tricks.input_gradients(lambda x: x, torch.ones(2))


def test_softmax_outputs_whose_sum_is_constant_are_seen_through(backend):
    x = backend.tensor(np.random.default_rng(0).normal(size=(4, 3)))
    softmax, mix = backend.softmax, mixing(backend, "mean", 4)
    backend.tricks.input_jacobians(softmax, x)
    with pytest.raises(ValueError, match="each sample by itself"):
        backend.tricks.input_jacobians(lambda x: softmax(mix(x)), x)


@pytest.mark.parametrize("trick", ["input_gradients", "input_jacobians"])
def test_infinite_slopes_are_not_taken_for_coupling(backend, trick):
    def roots(x):
        value = x**0.5
        return backend.total(value) if trick == "input_gradients" else value

    x = np.array([[1.0, 4.0], [0.0, 1.0], [0.0, 0.0], [4.0, 0.0]])
    found = backend.array(getattr(backend.tricks, trick)(roots, backend.tensor(x)))
    assert found.reshape(-1)[0] == 0.5
    assert np.isinf(found).any()


def test_torch_layers(in_torch):
    torch, tricks = in_torch.framework, in_torch.tricks
    torch.manual_seed(0)
    norm = torch.nn.BatchNorm1d(4)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), norm, torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))
    x = torch.randn(8, 3)
    model.eval()
    tricks.input_gradients(model, x)
    assert norm.num_batches_tracked == 0
    model.train()
    with pytest.raises(ValueError, match="as in batch normalization while training"):
        tricks.input_gradients(model, x)
    assert norm.num_batches_tracked == 1  # one call, as in the sum trick
    norm.eval()
    state = torch.get_rng_state()
    tricks.input_gradients(model, x)  # dropout couples nothing
    after = torch.get_rng_state()
    torch.set_rng_state(state)
    model(x)
    assert torch.equal(torch.get_rng_state(), after)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert x.grad is None
    assert not x.requires_grad


def test_keras_layers(in_tensorflow):
    tf, tricks = in_tensorflow.framework, in_tensorflow.tricks
    tf.keras.utils.set_random_seed(0)
    first, dropout, last = tf.keras.layers.Dense(4), tf.keras.layers.Dropout(0.5), tf.keras.layers.Dense(1)
    norm = tf.keras.layers.BatchNormalization()
    model = tf.keras.Sequential([first, norm, dropout, last])
    x = tf.random.normal((8, 3))
    tricks.input_gradients(model, x)
    still = norm.moving_mean.numpy()
    model(x, training=True)
    once = norm.moving_mean.numpy()
    norm.moving_mean.assign(still)
    with pytest.raises(ValueError, match="as in batch normalization while training"):
        tricks.input_gradients(lambda x: model(x, training=True), x)
    np.testing.assert_allclose(norm.moving_mean.numpy(), once, rtol=1e-5)  # one call, as in the sum trick
    norm.trainable = False
    tricks.input_gradients(lambda x: model(x, training=True), x)  # dropout couples nothing
    seed = dropout.seed_generator.state.numpy()
    tricks.input_gradients(lambda x: model(x, training=True), x)
    model(x, training=True)
    drawn = dropout.seed_generator.state.numpy() - seed
    np.testing.assert_array_equal(drawn % 2, 0)  # both calls drew equally often


def test_keras_mixed_precision(in_tensorflow):
    tf, tricks = in_tensorflow.framework, in_tensorflow.tricks
    layer = tf.keras.layers.Dense(1, dtype="mixed_float16")
    x = tf.random.normal((8, 3), seed=1)
    found = tricks.input_gradients(layer, x)
    assert found.dtype == tf.float32
    np.testing.assert_allclose(found, np.tile(layer.kernel.numpy().T, (8, 1)), rtol=1e-2)


def test_torch_autocast(in_torch):
    torch, tricks = in_torch.framework, in_torch.tricks
    (model, *_), x = in_torch.network(3, 4, 2), torch.randn(8, 3)
    exact = tricks.input_jacobians(model, x)
    with torch.autocast("cpu", torch.bfloat16):
        found = tricks.input_jacobians(model, x)
        with pytest.raises(ValueError, match="each sample by itself"):
            tricks.input_jacobians(lambda x: model(x - x.mean(0)), x)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, exact, rtol=0.05, atol=0.02)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("trick", ["input_gradients", "input_jacobians"])
def test_keeps_the_dtype_and_checks_none_of_half_precision(backend, dtype, trick):
    x = backend.cast(backend.tensor(np.array([[1.0, 2.0], [3.0, 4.0]])), dtype)
    function = (lambda x: x * x) if trick == "input_jacobians" else lambda x: backend.total(x * x)
    derive, half = getattr(backend.tricks, trick), "16" in dtype
    found = derive(function, x, check=not half)
    assert found.dtype == x.dtype
    assert backend.array(found).sum() == 20
    if half:
        with pytest.raises(TypeError, match=rf"x must be float32 .*got .*{dtype}; remedy: .* check=F"):
            derive(function, x)


def test_in_torch_the_result_is_differentiable_while_gradients_are_enabled(in_torch):
    torch, tricks = in_torch.framework, in_torch.tricks
    model, x = torch.nn.Linear(3, 1, bias=False), torch.ones(4, 3)
    penalty = tricks.input_gradients(lambda x: model(x) ** 2, x).square().sum()
    penalty.backward()
    weight = model.weight.detach()[0]
    # The gradient is 2 s w with s the sum of w, so the penalty is 4 * 4 s**2 |w|**2.
    expected = 16 * (2 * weight.sum() * weight.square().sum() + weight.sum() ** 2 * 2 * weight)
    torch.testing.assert_close(model.weight.grad[0], expected)
    with torch.no_grad():
        assert not tricks.input_gradients(lambda x: model(x) ** 2, x).requires_grad
    expected = tricks.input_gradients(model, x).detach()
    with torch.inference_mode():
        assert torch.equal(tricks.input_gradients(model, x), expected)


def test_in_torch_the_graph_stays_only_for_users(in_torch):
    torch, tricks = in_torch.framework, in_torch.tricks
    x, weight = torch.ones(4, 3), torch.ones(3, requires_grad=True)

    def shared(x):
        y = x * x
        return (y + y).sum(-1)

    assert not tricks.input_gradients(shared, x).requires_grad
    assert tricks.input_gradients(shared, x.clone().requires_grad_()).requires_grad
    assert tricks.input_gradients(lambda x: shared(x * weight), x).requires_grad
    hidden = 2 * weight
    assert tricks.input_gradients(lambda x: shared(x * hidden), x).requires_grad


def test_in_torch_other_ways_to_x_stay_constant(in_torch):
    x = in_torch.leaf([1.0, 2.0])
    doubled = 2 * x
    assert in_torch.tricks.input_gradients(lambda x: x * doubled, x).tolist() == [2.0, 4.0]


def test_in_tensorflow_unknown_shapes(in_tensorflow):
    tf, tricks = in_tensorflow.framework, in_tensorflow.tricks
    signature = [tf.TensorSpec([None, None], tf.float32)]
    jacobians = tf.function(lambda x: tricks.input_jacobians(lambda x: x * x, x), input_signature=signature)
    gradients = tf.function(
        lambda x: tricks.input_gradients(lambda x: tf.reduce_sum(x * x, -1), x), input_signature=signature
    )
    for x in (tf.constant([[1.0, 2.0], [3.0, 4.0]]), tf.zeros((0, 2)), tf.ones((1, 2))):
        np.testing.assert_array_equal(gradients(x), 2 * x)
        np.testing.assert_array_equal(jacobians(x), tf.linalg.diag(2 * x))


@pytest.mark.parametrize("trick", ["input_gradients", "input_jacobians"])
def test_in_tensorflow_an_unknown_rank_is_refused(in_tensorflow, trick):
    tf, tricks = in_tensorflow.framework, in_tensorflow.tricks
    derivative = getattr(tricks, trick)
    unknown = tf.function(lambda x: derivative(tf.identity, x), autograph=False)
    with pytest.raises(ValueError, match="x must have a known rank; got none; remedy: tf"):
        unknown.get_concrete_function(tf.TensorSpec(None))
    lost = tf.function(
        lambda x, shape: derivative(lambda x: tf.reshape(x, shape), x),
        input_signature=[tf.TensorSpec([4]), tf.TensorSpec(None, tf.int32)],
        autograph=False,
    )
    with pytest.raises(ValueError, match=r"function\(x\) must have a known rank; got none"):
        lost.get_concrete_function()


def test_in_tensorflow_several_outputs_where_shapes_are_unknown_give_nan(in_tensorflow):
    tf, tricks = in_tensorflow.framework, in_tensorflow.tricks
    unknown = tf.TensorSpec([None, None], tf.float32)
    gradients = tf.function(lambda x: tricks.input_gradients(lambda x: x * x, x), input_signature=[unknown])
    np.testing.assert_array_equal(gradients(tf.constant([[3.0], [4.0]])), [[6.0], [8.0]])
    assert np.isnan(gradients(tf.ones((2, 3)))).all()


X = np.ones((3, 2))
G, J, EXPLAIN = "input_gradients", "input_jacobians", "must return what depends on x; .*explain_gradient"


@pytest.mark.parametrize(
    ("trick", "function", "x", "error", "message"),
    [
        (G, "sum", "no tensor", TypeError, "x must be a .*Tensor; got str; remedy"),
        (J, "square", np.ones((3, 2), int), TypeError, "x must be floating-point; got"),
        (G, "sum", np.array(1.0), ValueError, r"x must have shape \[B, ...\], samples first; got a scalar"),
        (J, "square", np.array(1.0), ValueError, r"x must have shape \[B, ...\], samples first"),
        (G, "square", X, ValueError, r"one number for each sample.*got \(3, 2\); remedy: input_jacobians"),
        (G, "cube", X, ValueError, r"one number for each sample.*got \(3, 1, 1\)"),
        (G, "mean", X, ValueError, r"a row for each of the 3 samples; got shape \(\); remedy"),
        (J, "half", X, ValueError, r"a row for each of the 3 samples; got shape \(2, 2\)"),
        (G, "array", X, TypeError, r"function\(x\) must be a .*Tensor; got ndarray"),
        (G, "integers", X, TypeError, r"function\(x\) must be floating-point"),
        (G, "constant", X, ValueError, EXPLAIN),
        (G, "unused", X, ValueError, EXPLAIN),
        (J, "constant", X, ValueError, EXPLAIN),
    ],
)
def test_bad_input_says_what_is_expected(backend, trick, function, x, error, message):
    other, total = backend.tensor(np.ones(3)), backend.total
    functions = {
        "sum": total,
        "square": lambda x: x * x,
        "cube": lambda x: total(x)[:, None, None],
        "mean": lambda x: total(total(x)[None])[0],
        "half": lambda x: x[:2],
        "array": lambda x: np.ones(3),
        "integers": lambda x: backend.cast(total(x), "int32"),
        "constant": lambda x: other,
        "unused": lambda x: backend.variable(np.ones(3)) * 2,
    }
    with pytest.raises(error, match=message):
        getattr(backend.tricks, trick)(functions[function], x if isinstance(x, str) else backend.tensor(x))


# PyTorch's own tracing looks at the .grad of wrapped tensors.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
@pytest.mark.parametrize("trick", ["input_gradients", "input_jacobians"])
def test_in_torch_export_leaves_the_batch_open(in_torch, trick):
    torch, tricks = in_torch.framework, in_torch.tricks

    class Slopes(torch.nn.Linear):
        def forward(self, x):
            layer = super().forward
            return getattr(tricks, trick)(lambda x: layer(x) ** 3, x)

    model, shapes = Slopes(3, 1).requires_grad_(False), ({0: torch.export.Dim("batch")},)
    exported = torch.export.export(model, (torch.ones(4, 3),), dynamic_shapes=shapes, strict=False).module()
    x = torch.randn(7, 3)
    torch.testing.assert_close(exported(x), model(x))
    with pytest.raises(Exception, match="got strict=True; remedy"):
        torch.export.export(model, (torch.ones(4, 3),), dynamic_shapes=shapes, strict=True)


@pytest.mark.parametrize("trick", ["input_gradients", "input_jacobians"])
def test_in_torch_they_are_traced_with_and_without_values(in_torch, trick):
    torch, derivative = in_torch.framework, getattr(in_torch.tricks, trick)
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    x, mode = torch.tensor([[1.0], [2.0], [3.0], [5.0]]), FakeTensorMode()
    with mode:
        fake = derivative(lambda x: x**3, mode.from_tensor(x))
    expected = derivative(lambda x: x**3, x)
    assert {fake.shape, derivative(lambda x: x**3, x.to("meta")).shape} == {expected.shape}
    traced = make_fx(lambda x: derivative(lambda x: x**3, x))(torch.ones(4, 1))
    torch.testing.assert_close(traced(x), expected)
    coupled = make_fx(lambda x: derivative(lambda x: x * x.roll(2, 0), x))(torch.zeros(4, 1))
    assert coupled(x).isnan().all()


@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize("trick", ["input_gradients", "hessian_vector_product", "where_gradients"])
def test_in_tensorflow_what_recompute_grad_runs_cannot_take_gradients(in_tensorflow, trick, in_graph):
    tf, tricks = in_tensorflow.framework, in_tensorflow.tricks
    derivatives = {
        "input_gradients": lambda x: tricks.input_gradients(lambda x: x**3, x),
        "hessian_vector_product": lambda x: tricks.hessian_vector_product(
            lambda x: tf.reduce_sum(x**3), x, tf.ones_like(x)
        ),
        "where_gradients": lambda x: tricks.where_gradients(x > 0, x, tf.sqrt, 0.0).derivative,
    }
    recomputed = tf.recompute_grad(derivatives[trick])
    with pytest.raises(NotImplementedError, match=r"tf\.recompute_grad runs, .*; remedy: take them outside"):
        (tf.function(recomputed, autograph=False) if in_graph else recomputed)(tf.ones((3,)))


def test_gradients_under_every_transform(way):
    x, cotangent = np.array([[0.5, -1.0], [2.0, 0.3]]), np.array([[1.0, -0.5], [0.7, 2.0]])
    function = cubes(way.backend)

    def in_numpy(x):
        return numpy_cubes(x).sum(-1)

    value, (gradient,) = way.value_and_vjp(
        lambda x: way.tricks.input_gradients(lambda x: way.backend.total(function(x)), x), [x], cotangent
    )
    for found, right, rtol in (
        (value, reference.input_gradients(in_numpy, x), way.rtol),
        (gradient, reference.input_gradients_vjp(cotangent, in_numpy, x), max(way.rtol, 1e-9)),
    ):
        np.testing.assert_allclose(found, right, rtol=rtol, atol=way.rtol * np.abs(right).max())


def test_coupled_samples_are_refused_or_nan_in_common_ways(common):
    x, mix, value = np.array([[0.5, -1.0], [2.0, 0.3]]), mixing(common.backend, "mean", 2), np.nan

    def coupled(x):
        return common.tricks.input_gradients(lambda x: common.backend.total(mix(x) ** 3), x)

    try:
        value, _ = common.value_and_vjp(coupled, [x], np.ones((2, 2)))
    except ValueError as error:
        assert "each sample by itself" in str(error)  # noqa: PT017 (others give NaN)
    assert np.isnan(value).all()


def test_twice_under_every_transform(second):
    x, cotangent = np.array([[0.5, -1.0], [2.0, 0.3]]), np.random.default_rng(0).normal(size=(2, 3, 2))
    function = cubes(second.backend)

    def vjp(cotangent, x):
        return reference.input_jacobians_vjp(cotangent, numpy_cubes, x)

    def jacobians(x):
        return second.tricks.input_jacobians(function, x)

    assert_agrees_twice(second, jacobians, [x], cotangent, vjp, rtol=1e-6, atol=0, step=1e-3)
