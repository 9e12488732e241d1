"""input_gradients, input_jacobians: every sample's own derivative at once, or a refusal where samples mix."""

import gc
from functools import partial
from types import MethodType
from weakref import ref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradtricks import reference
from gradtricks.reference.sensitivities import CallLog
from transforms import numerical_second_vjp

WEIGHTS = np.random.default_rng(7).normal(size=(2, 3))


def cubes(backend, weights=WEIGHTS):
    """Return ``x -> (x @ weights) ** 3`` for a framework; its third derivatives are constant."""
    weights = backend.tensor(weights)
    return lambda x: (
        (x @ backend.framework.cast(weights, x.dtype)) ** 3 if is_tf(backend) else cubed(x, weights)
    )


def cubed(x, weights):
    return (x @ weights.to(x.dtype)) ** 3


def numpy_cubes(x, weights=WEIGHTS):
    return (x @ weights) ** 3


def is_tf(backend):
    return backend.name == "tensorflow"


def total(backend, x):
    """Sum over the last axis."""
    return backend.framework.reduce_sum(x, -1) if is_tf(backend) else x.sum(-1)


def over_batch(backend, operation, x):
    """Mix the samples of x in one of several ways."""
    framework = backend.framework
    if operation == "mean":
        return x - (framework.reduce_mean(x, 0) if is_tf(backend) else x.mean(0))
    if operation == "softmax":
        return framework.nn.softmax(x, 0) if is_tf(backend) else x.softmax(0)
    if operation == "cumulative":
        return framework.cumsum(x, 0) if is_tf(backend) else x.cumsum(0)
    if operation == "backwards":
        return framework.cumsum(x, 0, reverse=True) if is_tf(backend) else x.flip(0).cumsum(0).flip(0)
    if operation == "first":
        return x * x[:1]
    if operation == "last":
        return x * x[-1:]
    return x * (framework.roll(x, 1, 0) if is_tf(backend) else x.roll(1, 0))


OPERATIONS = ["mean", "softmax", "cumulative", "backwards", "first", "last", "neighbour"]


@given(
    seed=st.integers(0, 2**31),
    batch=st.integers(0, 4),
    inner=st.sampled_from([(2,), (3, 2), (0, 2)]),
    column=st.booleans(),
)
def test_gradients_agree_with_the_reference(backend, seed, batch, inner, column):
    x = np.random.default_rng(seed).normal(size=(batch, *inner))

    def function(x):
        value = total(backend, cubes(backend)(x))
        value = total(backend, value) if len(inner) == 2 else value
        return value[:, None] if column else value

    def in_numpy(x):
        return numpy_cubes(x).reshape(batch, int(np.prod(inner[:-1])) * 3).sum(-1)

    found = backend.tricks.input_gradients(function, backend.tensor(x), check_every=1)
    np.testing.assert_allclose(
        backend.array(found), reference.input_gradients(in_numpy, x), rtol=1e-10, atol=1e-12
    )


@given(seed=st.integers(0, 2**31), batch=st.integers(0, 4), inner=st.sampled_from([(2,), (3, 2), (0, 2)]))
def test_jacobians_agree_with_the_reference(backend, seed, batch, inner):
    x = np.random.default_rng(seed).normal(size=(batch, *inner))
    found = backend.tricks.input_jacobians(cubes(backend), backend.tensor(x), check_every=1)
    np.testing.assert_allclose(
        backend.array(found), reference.input_jacobians(numpy_cubes, x), rtol=1e-10, atol=1e-12
    )


def test_no_outputs_have_empty_jacobians(backend):
    found = backend.tricks.input_jacobians(lambda x: x[:, :0], backend.tensor(np.ones((2, 3))))
    assert tuple(found.shape) == (2, 0, 3)


def test_a_scalar_for_each_sample(backend):
    found = backend.tricks.input_gradients(lambda x: x**2, backend.tensor(np.arange(3.0)))
    np.testing.assert_array_equal(backend.array(found), [0.0, 2.0, 4.0])


def test_the_published_example_of_batch_jacobian(backend):
    # tensorflow.org/api_docs/python/tf/GradientTape, batch_jacobian of x * x.
    x = backend.tensor(np.array([[1.0, 2.0], [3.0, 4.0]]))
    found = backend.array(backend.tricks.input_jacobians(lambda x: x * x, x))
    np.testing.assert_array_equal(found, [[[2, 0], [0, 4]], [[6, 0], [0, 8]]])


def test_equals_a_loop_over_the_samples(backend):
    x = np.random.default_rng(0).normal(size=(5, 2))
    each = [
        backend.value_and_vjp(lambda x: total(backend, cubes(backend)(x)), [row[None]], np.ones(1))[1][0][0]
        for row in x
    ]
    found = backend.tricks.input_gradients(lambda x: total(backend, cubes(backend)(x)), backend.tensor(x))
    np.testing.assert_allclose(backend.array(found), each, rtol=1e-12)


def test_what_belongs_to_each_sample_may_be_closed_over(backend):
    labels = backend.tensor(np.array([[0.0, 1.0], [1.0, 0.0], [0.0, 1.0]]))
    x = backend.tensor(np.arange(6.0).reshape(3, 2))
    found = backend.tricks.input_gradients(lambda x: total(backend, x * labels), x, check_every=1)
    np.testing.assert_array_equal(backend.array(found), backend.array(labels))


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("batch", [2, 5, 64])
def test_coupled_samples_are_refused(backend, operation, batch):
    x = backend.tensor(np.random.default_rng(0).normal(size=(batch, 3)))

    def function(x):
        return over_batch(backend, operation, x) ** 3

    with pytest.raises(
        ValueError, match=r"each sample by itself; got samples with a part .*; remedy: .*check_ev"
    ):
        backend.tricks.input_gradients(lambda x: total(backend, function(x)), x)
    with pytest.raises(ValueError, match="function must treat each sample by itself"):
        backend.tricks.input_jacobians(function, x)


@pytest.mark.parametrize("trick", ["input_gradients", "input_jacobians"])
def test_compiled_code_cannot_raise_so_coupled_samples_give_nan(backend, trick):
    def function(x):
        value = over_batch(backend, "mean", x) ** 3
        return total(backend, value) if trick == "input_gradients" else value

    def coupled(x):
        return getattr(backend.tricks, trick)(function, x)

    shape = (4, 2) if trick == "input_gradients" else (4, 2, 2)
    value, _ = backend.compiled_value_and_vjp(
        coupled, [np.ones((4, 2)) * [[1], [2], [0], [5]]], np.ones(shape)
    )
    assert np.isnan(value).all()


def test_check_every_0_is_the_gradient_of_the_sum(backend):
    x = np.random.default_rng(0).normal(size=(4, 3))

    def function(x):
        return total(backend, over_batch(backend, "mean", x) ** 3)

    found = backend.tricks.input_gradients(function, backend.tensor(x), check_every=0)
    _, (of_sum,) = backend.value_and_vjp(function, [x], np.ones(4))
    np.testing.assert_allclose(backend.array(found), of_sum, rtol=1e-12)


def test_softmax_outputs_whose_sum_is_constant_are_seen_through(backend):
    x = backend.tensor(np.random.default_rng(0).normal(size=(4, 3)))
    softmax = backend.framework.nn.softmax if is_tf(backend) else partial(backend.framework.softmax, dim=-1)
    backend.tricks.input_jacobians(softmax, x, check_every=1)
    with pytest.raises(ValueError, match="each sample by itself"):
        backend.tricks.input_jacobians(lambda x: softmax(over_batch(backend, "mean", x)), x)


@pytest.mark.parametrize("trick", ["input_gradients", "input_jacobians"])
def test_infinite_slopes_are_not_taken_for_coupling(backend, trick):
    def roots(x):
        value = x**0.5
        return total(backend, value) if trick == "input_gradients" else value

    x = np.array([[1.0, 4.0], [0.0, 1.0], [0.0, 0.0], [4.0, 0.0]])
    found = backend.array(getattr(backend.tricks, trick)(roots, backend.tensor(x), check_every=1))
    assert found.reshape(-1)[0] == 0.5
    assert np.isinf(found).any()


def test_the_check_is_made_at_first_and_then_every_so_often(backend):
    passes = []

    def counted(x):
        if is_tf(backend):

            @backend.framework.custom_gradient
            def identity(x):
                return backend.framework.identity(x), lambda gradient: passes.append(1) or gradient
        else:

            def identity(x):
                y = x.clone()
                y.register_hook(lambda gradient: passes.append(1))
                return y

        return total(backend, identity(x))

    x = backend.tensor(np.ones((3, 2)))
    made = []
    for _ in range(9):
        passes.clear()
        backend.tricks.input_gradients(counted, x, check_every=4)
        made.append(len(passes))
    assert made == [2, 1, 1, 1, 2, 1, 1, 1, 2]


def test_a_new_flag_is_noticed_at_once(backend):
    x = backend.tensor(np.random.default_rng(0).normal(size=(4, 3)))
    training = False

    def function(x):
        return total(backend, (over_batch(backend, "mean", x) if training else x) ** 3)

    backend.tricks.input_gradients(function, x)
    training = True
    for _ in range(2):  # and a refusal isn't forgotten
        with pytest.raises(ValueError, match="each sample by itself"):
            backend.tricks.input_gradients(function, x)
    training = False
    backend.tricks.input_gradients(function, x)


def test_hidden_state_is_noticed_in_the_end(backend):
    x = backend.tensor(np.random.default_rng(0).normal(size=(4, 3)))
    hidden = {"training": False}

    def function(x):
        return total(backend, (over_batch(backend, "mean", x) if hidden["training"] else x) ** 3)

    backend.tricks.input_gradients(function, x, check_every=3)
    hidden["training"] = True
    backend.tricks.input_gradients(function, x, check_every=3)
    backend.tricks.input_gradients(function, x, check_every=3)
    with pytest.raises(ValueError, match="each sample by itself"):
        backend.tricks.input_gradients(function, x, check_every=3)


def test_torch_layers():
    torch = pytest.importorskip("torch")
    tricks = pytest.importorskip("gradtricks.torch")
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
    tricks.input_gradients(model, x, check_every=1)  # dropout couples nothing
    after = torch.get_rng_state()
    torch.set_rng_state(state)
    model(x)
    assert torch.equal(torch.get_rng_state(), after)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert x.grad is None
    assert not x.requires_grad


def test_keras_layers():
    tf = pytest.importorskip("tensorflow")
    keras = pytest.importorskip("keras")
    tricks = pytest.importorskip("gradtricks.tensorflow")
    keras.utils.set_random_seed(0)
    norm = keras.layers.BatchNormalization()
    model = keras.Sequential([keras.layers.Dense(4), norm, keras.layers.Dropout(0.5), keras.layers.Dense(1)])
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
    tricks.input_gradients(lambda x: model(x, training=True), x, check_every=1)  # dropout couples nothing
    seed = model.layers[2].seed_generator.state.numpy()
    tricks.input_gradients(lambda x: model(x, training=True), x, check_every=1)
    model(x, training=True)
    drawn = model.layers[2].seed_generator.state.numpy() - seed
    np.testing.assert_array_equal(drawn % 2, 0)  # both calls drew equally often


def test_keras_mixed_precision():
    tf = pytest.importorskip("tensorflow")
    keras = pytest.importorskip("keras")
    tricks = pytest.importorskip("gradtricks.tensorflow")
    layer = keras.layers.Dense(1, dtype="mixed_float16")
    x = tf.random.normal((8, 3), seed=1)
    found = tricks.input_gradients(layer, x, check_every=1)
    assert found.dtype == tf.float32
    np.testing.assert_allclose(found, np.tile(layer.kernel.numpy().T, (8, 1)), rtol=1e-2)


def test_torch_autocast():
    torch = pytest.importorskip("torch")
    tricks = pytest.importorskip("gradtricks.torch")
    torch.manual_seed(0)
    model, x = (
        torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)),
        torch.randn(8, 3),
    )
    exact = tricks.input_jacobians(model, x)
    with torch.autocast("cpu", torch.bfloat16):
        found = tricks.input_jacobians(model, x, check_every=1)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, exact, rtol=0.05, atol=0.02)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("trick", ["input_gradients", "input_jacobians"])
def test_keeps_the_dtype(backend, dtype, trick):
    x = backend.cast(backend.tensor(np.array([[1.0, 2.0], [3.0, 4.0]])), dtype)
    function = (lambda x: x * x) if trick == "input_jacobians" else lambda x: total(backend, x * x)
    found = getattr(backend.tricks, trick)(function, x, check_every=1)
    assert found.dtype == x.dtype
    assert backend.array(found).sum() == 20


def test_in_torch_the_result_is_differentiable_while_gradients_are_enabled():
    torch = pytest.importorskip("torch")
    tricks = pytest.importorskip("gradtricks.torch")
    model, x = torch.nn.Linear(3, 1, bias=False), torch.ones(4, 3)
    penalty = tricks.input_gradients(lambda x: model(x) ** 2, x).square().sum()
    penalty.backward()
    weight = model.weight.detach()[0]
    # The gradient is 2 s w with s the sum of w, so the penalty is 4 * 4 s**2 |w|**2.
    expected = 16 * (2 * weight.sum() * weight.square().sum() + weight.sum() ** 2 * 2 * weight)
    torch.testing.assert_close(model.weight.grad[0], expected)
    with torch.no_grad():
        assert not tricks.input_gradients(lambda x: model(x) ** 2, x).requires_grad
    with torch.inference_mode(), pytest.raises(ValueError, match="no_grad instead of"):
        tricks.input_gradients(model, x)


def test_in_torch_the_graph_is_kept_only_where_somebody_could_use_it():
    torch = pytest.importorskip("torch")
    tricks = pytest.importorskip("gradtricks.torch")
    x, weight = torch.ones(4, 3), torch.ones(3, requires_grad=True)

    def shared(x):
        y = x * x
        return (y + y).sum(-1)

    assert not tricks.input_gradients(shared, x).requires_grad
    assert tricks.input_gradients(shared, x.clone().requires_grad_()).requires_grad
    assert tricks.input_gradients(lambda x: shared(x * weight), x).requires_grad
    hidden = 2 * weight
    assert tricks.input_gradients(lambda x: shared(x * hidden), x).requires_grad


def test_in_torch_other_ways_to_x_stay_constant():
    torch = pytest.importorskip("torch")
    tricks = pytest.importorskip("gradtricks.torch")
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    doubled = 2 * x
    assert tricks.input_gradients(lambda x: x * doubled, x).tolist() == [2.0, 4.0]


def test_in_tensorflow_unknown_shapes():
    tf = pytest.importorskip("tensorflow")
    tricks = pytest.importorskip("gradtricks.tensorflow")
    signature = [tf.TensorSpec([None, None], tf.float32)]
    jacobians = tf.function(lambda x: tricks.input_jacobians(lambda x: x * x, x), input_signature=signature)
    gradients = tf.function(
        lambda x: tricks.input_gradients(lambda x: tf.reduce_sum(x * x, -1), x), input_signature=signature
    )
    for x in (tf.constant([[1.0, 2.0], [3.0, 4.0]]), tf.zeros((0, 2)), tf.ones((1, 2))):
        np.testing.assert_array_equal(gradients(x), 2 * x)
        np.testing.assert_array_equal(jacobians(x), tf.linalg.diag(2 * x))


@pytest.mark.parametrize("trick", ["input_gradients", "input_jacobians"])
def test_in_tensorflow_an_unknown_rank_is_refused(trick):
    tf = pytest.importorskip("tensorflow")
    tricks = pytest.importorskip("gradtricks.tensorflow")
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


def test_a_method_of_an_object_with_another_model_is_checked_anew():
    tf = pytest.importorskip("tensorflow")
    keras = pytest.importorskip("keras")
    tricks = pytest.importorskip("gradtricks.tensorflow")

    class Critic:
        def __init__(self, *layers):
            self.model = keras.Sequential([keras.layers.Dense(3), *layers, keras.layers.Dense(1)])

        def score(self, x):
            return self.model(x, training=True)

    x = tf.random.normal((8, 3), seed=1)
    tricks.input_gradients(Critic().score, x)
    with pytest.raises(ValueError, match="as in batch normalization while training"):
        tricks.input_gradients(Critic(keras.layers.BatchNormalization()).score, x)


def test_in_tensorflow_several_outputs_where_shapes_are_unknown_give_nan():
    tf = pytest.importorskip("tensorflow")
    tricks = pytest.importorskip("gradtricks.tensorflow")
    unknown = tf.TensorSpec([None, None], tf.float32)
    gradients = tf.function(lambda x: tricks.input_gradients(lambda x: x * x, x), input_signature=[unknown])
    np.testing.assert_array_equal(gradients(tf.constant([[3.0], [4.0]])), [[6.0], [8.0]])
    assert np.isnan(gradients(tf.ones((2, 3)))).all()


@pytest.mark.parametrize(
    ("trick", "function", "x", "error", "message"),
    [
        ("input_gradients", "sum", "array", TypeError, "x must be a .*Tensor; got ndarray; remedy"),
        ("input_jacobians", "square", "integers", TypeError, "x must be floating-point; got"),
        (
            "input_gradients",
            "sum",
            "scalar",
            ValueError,
            r"x must have shape \[B, ...\], samples first; got a sc",
        ),
        ("input_jacobians", "square", "scalar", ValueError, r"x must have shape \[B, ...\], samples first"),
        (
            "input_gradients",
            "square",
            "x",
            ValueError,
            r"one number for each sample.*got \(3, 2\); remedy: input_j",
        ),
        ("input_gradients", "cube", "x", ValueError, r"one number for each sample.*got \(3, 1, 1\)"),
        (
            "input_gradients",
            "mean",
            "x",
            ValueError,
            r"a row for each of the 3 samples; got shape \(\); remedy",
        ),
        ("input_jacobians", "half", "x", ValueError, r"a row for each of the 3 samples; got shape \(2, 2\)"),
        ("input_gradients", "array", "x", TypeError, r"function\(x\) must be a .*Tensor; got ndarray"),
        ("input_gradients", "integers", "x", TypeError, r"function\(x\) must be floating-point"),
        ("input_gradients", "constant", "x", ValueError, "must return what depends on x; .*explain_gradient"),
        ("input_gradients", "unused", "x", ValueError, "must return what depends on x; .*explain_gradient"),
        ("input_jacobians", "constant", "x", ValueError, "must return what depends on x; .*explain_gradient"),
    ],
)
def test_bad_input_says_what_is_expected(backend, trick, function, x, error, message):
    framework = backend.framework
    constant = backend.tensor(np.ones(3))
    other = constant.clone().requires_grad_() if not is_tf(backend) else constant
    functions = {
        "sum": lambda x: total(backend, x),
        "square": lambda x: x * x,
        "cube": lambda x: total(backend, x)[:, None, None],
        "mean": lambda x: framework.reduce_mean(x) if is_tf(backend) else x.mean(),
        "half": lambda x: x[:2],
        "array": lambda x: np.ones(3),
        "integers": lambda x: backend.cast(total(backend, x), "int32"),
        "constant": lambda x: constant,
        "unused": lambda x: other * 2,
    }
    values = {
        "array": np.ones((3, 2)),
        "integers": backend.tensor(np.ones((3, 2), int)),
        "scalar": backend.tensor(np.array(1.0)),
        "x": backend.tensor(np.ones((3, 2))),
    }
    with pytest.raises(error, match=message):
        getattr(backend.tricks, trick)(functions[function], values[x])


@pytest.mark.parametrize("trick", ["input_gradients", "input_jacobians"])
@pytest.mark.parametrize(
    ("check_every", "error", "message"),
    [
        (-1, ValueError, "check_every must be at least 0; got -1"),
        (1.5, TypeError, "check_every must be an integer; got float"),
        (True, TypeError, "check_every must be an integer; got bool"),
    ],
)
def test_bad_check_every(backend, trick, check_every, error, message):
    with pytest.raises(error, match=message):
        getattr(backend.tricks, trick)(lambda x: x, backend.tensor(np.ones(3)), check_every=check_every)


class Layer:
    def __init__(self):
        self.training = False

    def __call__(self):
        return self.training

    def method(self):
        return self.training


class Unhashable(Layer):
    __hash__ = None


@pytest.fixture
def log():
    return CallLog(lambda part: part.training if isinstance(part, Layer) else None)


def due(log, function, calls, every=4):
    return [log.is_due(function, every) for _ in range(calls)]


@pytest.mark.parametrize("kind", [Layer, Unhashable])
@pytest.mark.parametrize("wrap", ["itself", "method", "partial", "lambda", "default", "nested"])
def test_the_log_knows_a_function_by_its_state(log, kind, wrap):
    layer = kind()
    inner = lambda: layer()  # noqa: E731
    function = {
        "itself": layer,
        "method": layer.method,
        "partial": partial(lambda layer, flag: layer(), layer, flag=None),
        "lambda": lambda: layer(),
        "default": lambda layer=layer: layer(),
        "nested": lambda: inner(),
    }[wrap]
    assert due(log, function, 5) == [True, False, False, False, True]
    layer.training = True
    assert due(log, function, 2) == [True, False]
    log.forget(function)
    assert due(log, function, 2) == [True, False]
    assert due(log, function, 2, every=1) == [True, True]
    assert due(log, function, 2, every=0) == [False, False]


def test_the_log_knows_other_layers_of_the_same_code(log):
    functions = [lambda layer=layer: layer() for layer in (Layer(), Layer())]
    assert [log.is_due(function, 4) for function in functions] == [True, True]


def test_the_log_doesnt_take_a_new_layer_for_a_dead_one(log):
    # The next layer often gets the address of the last.
    def is_due(layer):
        return log.is_due(lambda: layer(), 4)

    assert all(is_due(Layer()) for _ in range(20))


class Trainer:
    def __init__(self, layer, step=0):
        self.layer = layer
        self.step = step

    def score(self):
        return self.layer()


class CallableTrainer(Trainer):
    def __call__(self):
        return self.layer()


@pytest.mark.parametrize("wrap", ["method", "callable", "closed over", "keyword default", "nested"])
def test_the_log_looks_into_the_attributes_of_objects(log, wrap):
    def wrapped(trainer):
        return {
            "method": trainer.score,
            "callable": trainer,
            "closed over": lambda: trainer.layer(),
            "keyword default": lambda *, layer=trainer.layer: layer(),
            "nested": Trainer(trainer).score,
        }[wrap]

    first, second = CallableTrainer(Layer()), CallableTrainer(Layer())
    assert due(log, wrapped(first), 2) == [True, False]
    assert log.is_due(wrapped(second), 4)
    due(log, wrapped(first), 1)
    first.layer.training = True
    assert due(log, wrapped(first), 2) == [True, False]
    first.step += 1  # a counter isn't a state
    assert not log.is_due(wrapped(first), 4)


class EqualToAll:
    def __eq__(self, other):
        raise TypeError("ambiguous")

    def __hash__(self):
        raise TypeError("unhashable")

    def __call__(self):
        pass


class AnyAttribute:
    def __getattr__(self, name):
        return 3

    def __call__(self):
        pass


@pytest.mark.parametrize(
    "make",
    [
        EqualToAll,
        AnyAttribute,
        lambda: MethodType(partial(lambda self: None), 1),
        lambda: partial(EqualToAll()),
        lambda: "text".upper,
        lambda: lambda: np.zeros(1),
    ],
)
def test_the_log_stands_odd_callables(log, make):
    function, other = make(), make()
    assert due(log, function, 2) == [True, False]
    log.is_due(other, 4)
    log.forget(function)
    assert log.is_due(function, 4)


def test_the_log_keeps_nothing_alive(log):
    layer = Layer()
    alive = ref(layer)
    for function in (layer, layer.method, lambda layer=layer: layer(), Trainer(layer).score):
        log.is_due(function, 4)
    del layer, function
    gc.collect()
    assert alive() is None


def test_the_log_stands_unfilled_cells_and_recursion(log):
    def function():
        return later() or function()

    assert due(log, function, 2) == [True, False]
    later = Layer()
    assert due(log, function, 2) == [True, False]


def test_gradients_under_every_transform(way):
    x = np.array([[0.5, -1.0], [2.0, 0.3]])
    cotangent = np.array([[1.0, -0.5], [0.7, 2.0]])
    function = cubes(way.backend)

    def gradients(x):
        return way.tricks.input_gradients(lambda x: total(way.backend, function(x)), x)

    def in_numpy(x):
        return numpy_cubes(x).sum(-1)

    value, (gradient,) = way.value_and_vjp(gradients, [x], cotangent)
    right = reference.input_gradients(in_numpy, x)
    np.testing.assert_allclose(value, right, rtol=way.rtol, atol=way.rtol * np.abs(right).max())
    expected = reference.input_gradients_vjp(cotangent, in_numpy, x)
    np.testing.assert_allclose(
        gradient, expected, rtol=max(way.rtol, 1e-9), atol=way.rtol * np.abs(expected).max()
    )


def test_jacobians_under_every_transform(way):
    x = np.array([[0.5, -1.0], [2.0, 0.3]])
    cotangent = np.random.default_rng(0).normal(size=(2, 3, 2))
    function = cubes(way.backend)
    value, (gradient,) = way.value_and_vjp(lambda x: way.tricks.input_jacobians(function, x), [x], cotangent)
    right = reference.input_jacobians(numpy_cubes, x)
    np.testing.assert_allclose(value, right, rtol=way.rtol, atol=way.rtol * np.abs(right).max())
    expected = reference.input_jacobians_vjp(cotangent, numpy_cubes, x)
    np.testing.assert_allclose(
        gradient, expected, rtol=max(way.rtol, 1e-9), atol=way.rtol * np.abs(expected).max()
    )


def test_a_gradient_penalty_reaches_the_weights_under_every_transform(way):
    # d/dw of c * d/dx (x w)**3 = d/dw 3 c x**2 w**3.
    x, weight, cotangent = np.array([[0.5], [2.0]]), np.array([[1.5]]), np.array([[1.0], [-2.0]])
    value, (of_x, of_weight) = way.value_and_vjp(
        lambda x, weight: way.tricks.input_gradients(lambda x: (x * weight) ** 3, x), [x, weight], cotangent
    )
    np.testing.assert_allclose(value, 3 * x**2 * weight**3, rtol=way.rtol)
    np.testing.assert_allclose(of_x, cotangent * 6 * x * weight**3, rtol=way.rtol)
    np.testing.assert_allclose(
        of_weight, np.sum(cotangent * 9 * x**2 * weight**2, keepdims=True), rtol=way.rtol
    )


def test_coupled_samples_are_refused_or_nan_under_every_transform(way):
    x = np.array([[0.5, -1.0], [2.0, 0.3]])

    def coupled(x):
        return way.tricks.input_gradients(
            lambda x: total(way.backend, over_batch(way.backend, "mean", x) ** 3), x
        )

    try:
        value, _ = way.value_and_vjp(coupled, [x], np.ones((2, 2)))
    except ValueError as error:
        message = str(error)
    else:
        message = "NaN" if np.isnan(value).all() else "silence"
    assert message == "NaN" or "each sample by itself" in message


@pytest.mark.parametrize("trick", ["input_gradients", "input_jacobians"])
def test_twice_under_every_transform(second, trick):
    x, direction = np.array([[0.5, -1.0], [2.0, 0.3]]), np.array([[0.3, 0.7], [-1.0, 0.2]])
    whole, function = trick == "input_jacobians", cubes(second.backend)
    cotangent = np.random.default_rng(0).normal(size=(2, 3, 2) if whole else (2, 2))

    def derivative(x):
        inner = function if whole else lambda x: total(second.backend, function(x))
        return getattr(second.tricks, trick)(inner, x)

    def vjp(cotangent, x):
        inner = numpy_cubes if whole else lambda x: numpy_cubes(x).sum(-1)
        return getattr(reference, f"{trick}_vjp")(cotangent, inner, x)

    (gradient,) = second.second_vjp(derivative, [x], cotangent, [direction])
    (expected,) = numerical_second_vjp(vjp, [x], cotangent, [direction], step=1e-3)
    np.testing.assert_allclose(gradient, expected, rtol=1e-6)
