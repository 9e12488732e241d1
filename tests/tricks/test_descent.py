"""gradient_descent_step: parameter minus learning rate times gradient."""

from collections import OrderedDict, defaultdict, namedtuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from gradtricks import reference
from transforms import numerical_second_vjp

NUMBERS = st.floats(-9, 9)
RATES = st.floats(0, 3) | st.sampled_from([0.0, 1e-45, 1.0, 1e30])
EXTREMES = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 3e38, -2e-38, 1.0], np.float32)
Layer = namedtuple("Layer", ["weight", "bias"])


@given(data=st.data(), rate=RATES)
def test_agrees_with_the_reference(backend, data, rate):
    shape = data.draw(array_shapes(min_dims=0, max_dims=3, min_side=0))
    parameter, gradient, cotangent = (data.draw(arrays(np.float64, shape, elements=NUMBERS)) for _ in "123")
    value, gradients = backend.value_and_vjp(
        backend.tricks.gradient_descent_step, [parameter, gradient, np.float64(rate)], cotangent
    )
    np.testing.assert_allclose(
        value, reference.gradient_descent_step(parameter, gradient, rate), rtol=1e-14, atol=1e-14
    )
    expected = reference.gradient_descent_step_vjp(cotangent, parameter, gradient, rate)
    for ours, theirs in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)


def test_a_large_parameter(backend):
    parameter, gradient = np.random.default_rng(0).normal(size=(2, 1000, 1000))
    stepped = backend.tricks.gradient_descent_step(backend.tensor(parameter), backend.tensor(gradient), 0.1)
    expected = reference.gradient_descent_step(parameter, gradient, 0.1)
    np.testing.assert_allclose(backend.array(stepped), expected, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("rate", [0.0, 0.5, 1e-30, 1e38])
def test_the_arithmetic_is_ieee(backend, rate):
    parameter, gradient = (a.copy() for a in np.broadcast_arrays(EXTREMES[:, None], EXTREMES))
    stepped = backend.tricks.gradient_descent_step(backend.tensor(parameter), backend.tensor(gradient), rate)
    with np.errstate(all="ignore"):
        expected = reference.gradient_descent_step(parameter, gradient, np.float32(rate))
    np.testing.assert_allclose(backend.array(stepped), expected, rtol=1e-6, atol=1e-37)


def test_a_rate_of_zero_does_not_hide_a_gradient_that_is_not_finite(backend):
    gradients = backend.tensor(np.array([np.nan, np.inf, 1.0]))
    stepped = backend.tricks.gradient_descent_step(backend.tensor(np.ones(3)), gradients, 0.0)
    np.testing.assert_array_equal(backend.array(stepped), [np.nan, np.nan, 1.0])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("as_number", [True, False])
def test_keeps_the_dtype_and_computes_halves_in_float32(backend, dtype, as_number):
    # The product 120000 overflows float16; the result doesn't.
    x = backend.cast(backend.tensor(60000.0), dtype)
    rate = 2.0 if as_number else backend.cast(backend.tensor(2.0), dtype)
    stepped = backend.tricks.gradient_descent_step(x, x, rate)
    assert stepped.dtype == x.dtype
    assert float(backend.array(stepped)) == -float(backend.array(x))


def test_a_gradient_of_another_precision_is_converted(backend):
    parameter, gradient = backend.tensor(np.float32(1.0)), backend.cast(backend.tensor(2.0), "float16")
    stepped = backend.tricks.gradient_descent_step(parameter, gradient, 0.25)
    assert stepped.dtype == parameter.dtype
    assert float(backend.array(stepped)) == 0.5


def structures(make):
    one, two = make([1.0, 2.0]), make(3.0)
    return {
        "tensor": one,
        "list": [one, two],
        "tuple": (one, two),
        "named tuple": Layer(one, two),
        "dict": {"b": one, "a": two},
        "ordered dict": OrderedDict(b=one, a=two),
        "default dict": defaultdict(list, b=one, a=two),
        "nested": {"layers": [Layer(one, two), (two,)], "scale": two},
        "empty": [],
    }


@pytest.mark.parametrize("kind", structures(np.array))
def test_structures_are_kept(backend, kind):
    tensors, array = structures(backend.tensor)[kind], structures(np.array)[kind]
    stepped = backend.tricks.gradient_descent_step(tensors, tensors, 0.5)
    expected = reference.gradient_descent_step(array, array, 0.5)

    def compare(one, other):
        if isinstance(other, dict):
            assert list(one) == list(other)
            one, other = list(one.values()), list(other.values())
        if isinstance(other, list | tuple):
            assert len(one) == len(other)
            for a, b in zip(one, other):
                compare(a, b)
        else:
            np.testing.assert_array_equal(backend.array(one), other)

    assert type(stepped) is type(tensors)
    compare(stepped, expected)


def test_a_list_of_parameters_takes_a_tuple_of_gradients(backend):
    one = backend.tensor(1.0)
    (stepped,) = backend.tricks.gradient_descent_step([one], (one,), 0.25)
    assert float(stepped) == 0.75


def test_without_a_gradient_a_parameter_stays(backend):
    one = backend.tensor(1.0)
    kept, stepped = backend.tricks.gradient_descent_step([one, one], [None, one], 0.25)
    assert (float(kept), float(stepped)) == (1.0, 0.75)
    kept, stepped = reference.gradient_descent_step([1.0, 1.0], [None, 1.0], 0.25)
    assert (kept, stepped) == (1.0, 0.75)


def test_the_arguments_stay_as_they_are(backend):
    parameter, gradient = backend.tensor([1.0, 2.0]), backend.tensor([3.0, 4.0])
    backend.tricks.gradient_descent_step(parameter, gradient, 0.5)
    np.testing.assert_array_equal(backend.array(parameter), [1, 2])
    np.testing.assert_array_equal(backend.array(gradient), [3, 4])


def test_two_half_steps_along_one_gradient_are_one_step(backend):
    step, tensor = backend.tricks.gradient_descent_step, backend.tensor(np.arange(3.0))
    np.testing.assert_array_equal(
        backend.array(step(step(tensor, tensor, 0.25), tensor, 0.25)),
        backend.array(step(tensor, tensor, 0.5)),
    )


# Differentiating through a step, as meta-learning does, in closed form: for a loss a p**2 / 2 and an outer
# loss (p' - 1)**2 / 2 with p' = p - rate * a * p.
POINT, CURVATURE, RATE = 2.0, 0.75, 0.5
MISS = POINT * (1 - RATE * CURVATURE) - 1
META = [MISS * (1 - RATE * CURVATURE), -MISS * RATE * POINT, -MISS * CURVATURE * POINT]


def test_meta_gradients_in_torch():
    torch = pytest.importorskip("torch")
    tricks = pytest.importorskip("gradtricks.torch")
    inputs = [torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (POINT, CURVATURE, RATE)]
    point, curvature, rate = inputs
    gradients = torch.autograd.grad(curvature * point**2 / 2, [point], create_graph=True)
    (moved,) = tricks.gradient_descent_step([point], gradients, rate)
    meta = torch.autograd.grad((moved - 1) ** 2 / 2, inputs)
    np.testing.assert_allclose([float(g) for g in meta], META, rtol=1e-12)


def test_meta_gradients_in_tensorflow():
    tf = pytest.importorskip("tensorflow")
    tricks = pytest.importorskip("gradtricks.tensorflow")
    inputs = [tf.Variable(v, dtype=tf.float64) for v in (POINT, CURVATURE, RATE)]
    point, curvature, rate = inputs
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            loss = curvature * point**2 / 2
        gradients = inner.gradient(loss, [point])
        (moved,) = tricks.gradient_descent_step([point], gradients, rate)
        outer_loss = (moved - 1) ** 2 / 2
    meta = outer.gradient(outer_loss, inputs)
    np.testing.assert_allclose([float(g) for g in meta], META, rtol=1e-12)


# What layers, embeddings and mixed precision hand over


def test_sparse_gradients_are_made_dense_in_torch():
    torch = pytest.importorskip("torch")
    tricks = pytest.importorskip("gradtricks.torch")
    embedding = torch.nn.Embedding(4, 2, sparse=True)
    loss = embedding(torch.tensor([1, 1, 3])).sum()
    parameters = dict(embedding.named_parameters())
    gradients = dict(zip(parameters, torch.autograd.grad(loss, list(parameters.values()))))
    assert gradients["weight"].is_sparse
    moved = parameters["weight"] - tricks.gradient_descent_step(parameters, gradients, 1.0)["weight"]
    np.testing.assert_allclose(moved.detach().sum(1), [0, 4, 0, 2], atol=1e-6)


def test_sparse_gradients_are_made_dense_in_tensorflow():
    tf = pytest.importorskip("tensorflow")
    tricks = pytest.importorskip("gradtricks.tensorflow")
    table = tf.Variable(tf.zeros([4, 2]))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.gather(table, [1, 1, 3]))
    gradients = tape.gradient(loss, [table])
    assert isinstance(gradients[0], tf.IndexedSlices)
    (moved,) = tricks.gradient_descent_step([table], gradients, 1.0)
    np.testing.assert_array_equal(moved.numpy().sum(1), [0, -4, 0, -2])


def test_under_autocast_in_torch():
    torch = pytest.importorskip("torch")
    tricks = pytest.importorskip("gradtricks.torch")
    layer = torch.nn.Linear(2, 1, bias=False)
    with torch.autocast("cpu", torch.bfloat16):
        gradients = torch.autograd.grad(layer(torch.ones(1, 2)).sum(), list(layer.parameters()))
        (moved,) = tricks.gradient_descent_step(list(layer.parameters()), gradients, 0.5)
    assert moved.dtype == torch.float32
    torch.testing.assert_close(moved, layer.weight - 0.5)


def test_under_mixed_precision_in_keras():
    keras = pytest.importorskip("keras")
    tf = pytest.importorskip("tensorflow")
    tricks = pytest.importorskip("gradtricks.tensorflow")
    layer = keras.layers.Dense(1, use_bias=False, dtype="mixed_float16")
    layer.build((None, 2))
    before = layer.kernel.numpy()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(tf.ones([1, 2])))
    gradients = tape.gradient(loss, [v.value for v in layer.trainable_variables])
    (moved,) = tricks.gradient_descent_step(layer.trainable_variables, gradients, keras.Variable(0.5))
    assert moved.dtype == tf.float32
    np.testing.assert_allclose(moved.numpy(), before - 0.5, rtol=1e-6)


# Published numbers


def test_the_cases_of_sonnet(backend):
    # sonnet/src/optimizers/sgd_test.py: testDense, testVariableLearningRate;
    # sonnet/src/optimizers/optimizer_tests.py: testNoneUpdate
    step = backend.tricks.gradient_descent_step
    parameters = [backend.tensor([1.0, 2.0]), backend.tensor([3.0, 4.0])]
    updates = [backend.tensor([5.0, 5.0]), backend.tensor([3.0, 3.0])]
    parameters = step(parameters, updates, backend.tensor(3.0))
    np.testing.assert_allclose([backend.array(p) for p in parameters], [[-14, -13], [-6, -5]])
    parameters = step(parameters, updates, backend.tensor(2.0))
    np.testing.assert_allclose([backend.array(p) for p in parameters], [[-24, -23], [-12, -11]])
    assert float(step([backend.tensor(1.0), backend.tensor(2.0)], [None, backend.tensor(3.0)], 3.0)[0]) == 1


def test_the_case_of_keras(backend):
    # keras/src/optimizers/sgd_test.py: test_single_step
    stepped = backend.tricks.gradient_descent_step(
        backend.tensor([1.0, 2.0, 3.0, 4.0]), backend.tensor([1.0, 6.0, 7.0, 2.0]), 0.5
    )
    np.testing.assert_allclose(backend.array(stepped), [0.5, -1.0, -0.5, 3.0])


def test_agrees_with_torch_sgd():
    torch = pytest.importorskip("torch")
    tricks = pytest.importorskip("gradtricks.torch")
    parameters = [torch.nn.Parameter(torch.randn(3, generator=torch.Generator().manual_seed(0)))]
    stepped = parameters
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    for _ in range(5):
        stepped = tricks.gradient_descent_step(stepped, [2 * p for p in stepped], 0.1)
        parameters[0].grad = 2 * parameters[0].detach()
        optimizer.step()
    torch.testing.assert_close(stepped[0], parameters[0], rtol=1e-6, atol=0)


# Errors


@pytest.mark.parametrize(
    ("parameters", "gradients", "error", "message"),
    [
        (np.ones(1), "ones", TypeError, "parameters must be a .*Tensor; got ndarray; remedy"),
        ("ones", np.ones(1), TypeError, "gradients must be a .*Tensor; got ndarray; remedy"),
        (["ones", "integers"], ["ones", "ones"], TypeError, r"parameters\[1\] must be floating-point; got"),
        ({"w": "ones"}, {"w": "integers"}, TypeError, r"gradients\['w'\] must be floating-point; got"),
        (
            ["ones"],
            ["scalar"],
            ValueError,
            r"gradients\[0\] must have the shape of parameters\[0\], \(1,\); got",
        ),
        (["ones"], "ones", ValueError, r"hold the entries of parameters, \[0\]; got \w*Tensor"),
        ("ones", ["ones"], TypeError, "gradients must be a .*Tensor; got list"),
        (["ones"], ["ones", "ones"], ValueError, r"entries of parameters, \[0\]; got the entries \[0, 1\]"),
        (["ones"], {0: "ones", 1: "ones"}, ValueError, r"\[0\]; got the entries \[0, 1\]"),
        ({"w": "ones"}, {"v": "ones"}, ValueError, r"parameters, \['w'\]; got the entries \['v'\]"),
        ({"w": "ones"}, ["ones"], ValueError, r"parameters, \['w'\]; got the entries \[0\]"),
        (
            [{"w": "ones"}],
            [{}],
            ValueError,
            r"gradients\[0\] must hold the entries of parameters\[0\], \['w'\]",
        ),
        (["ones", "ones"], [None, None], ValueError, "got only None; remedy: explain_gradient says why"),
        ("ones", None, ValueError, "got only None; remedy: explain_gradient says why"),
    ],
)
def test_bad_structures_say_what_is_expected(backend, parameters, gradients, error, message):
    values = {"ones": [1.0], "scalar": 1.0, "integers": [1]}

    def build(item):
        if isinstance(item, dict):
            return {key: build(value) for key, value in item.items()}
        if isinstance(item, list):
            return [build(value) for value in item]
        return backend.tensor(values[item]) if isinstance(item, str) else item

    with pytest.raises(error, match=message):
        backend.tricks.gradient_descent_step(build(parameters), build(gradients), 0.1)


def test_an_iterator_of_parameters_is_refused(backend):
    one = backend.tensor(1.0)
    with pytest.raises(
        TypeError, match=r"a list rather than an iterator; got \w+; remedy: list\(parameters\)"
    ):
        backend.tricks.gradient_descent_step(iter([one]), [one], 0.1)


def test_lists_of_keras_and_tensorflow_are_lists():
    tf = pytest.importorskip("tensorflow")
    keras = pytest.importorskip("keras")
    tricks = pytest.importorskip("gradtricks.tensorflow")
    one = tf.ones(1)
    model, module = keras.Model(), tf.Module()
    model.weight_list = module.weight_list = [tf.Variable(one)]
    model.by_name = module.by_name = {"w": tf.Variable(one)}
    for owner in (model, module):
        assert float(tricks.gradient_descent_step(owner.weight_list, [one], 0.25)[0][0]) == 0.75
        assert float(tricks.gradient_descent_step(owner.by_name, {"w": one}, 0.25)["w"][0]) == 0.75


@pytest.mark.parametrize(
    ("rate", "error", "message"),
    [
        ("fast", TypeError, "learning_rate must be a real number; got str"),
        (True, TypeError, "learning_rate must be a real number; got bool"),
        (np.ones(()), TypeError, "learning_rate must be a real number; got ndarray"),
        (float("nan"), ValueError, "learning_rate must be finite; got nan"),
        (-0.1, ValueError, r"learning_rate must lie in \[0, inf\); got -0.1"),
        ("integers", TypeError, "learning_rate must be floating-point; got"),
        ("vector", ValueError, r"learning_rate must have the shape of a scalar, \(\); got \(1,\)"),
    ],
)
def test_bad_rates_say_what_is_expected(backend, rate, error, message):
    if isinstance(rate, str):
        rate = {"integers": backend.tensor(1), "vector": backend.tensor([1.0])}.get(rate, rate)
    with pytest.raises(error, match=message):
        backend.tricks.gradient_descent_step(backend.tensor(1.0), backend.tensor(1.0), rate)


def test_a_rate_as_a_number_retraces_and_a_tensor_does_not():
    tf = pytest.importorskip("tensorflow")
    tricks = pytest.importorskip("gradtricks.tensorflow")
    one = tf.ones(1)
    for as_rate, traces in ((float, 2), (tf.constant, 1)):
        step = tf.function(lambda rate: tricks.gradient_descent_step(one, one, rate))
        assert [float(step(as_rate(rate))[0]) for rate in (0.25, 0.5)] == [0.75, 0.5]
        assert step.experimental_get_tracing_count() == traces


def test_the_other_frameworks_tensor_is_refused(backend):
    other = {"torch": "tensorflow", "tensorflow": "torch"}[backend.name]
    foreign = pytest.importorskip(other)
    foreign = foreign.ones(1) if other == "torch" else foreign.ones([1])
    with pytest.raises(TypeError, match=r"parameters must be a .*Tensor; got .*Tensor; remedy"):
        backend.tricks.gradient_descent_step(foreign, foreign, 0.1)


# Transforms

# A rate of shape [1], because batch_jacobian asks for an axis.
INPUTS = [np.array([1.5, -2.0, 0.25]), np.array([1.0, 0.5, -3.0]), np.array([0.3])]


def test_in_common_ways(common):
    cotangent = np.array([1.0, -3.0, 2.0])

    def step(parameter, gradient, rate):
        return common.tricks.gradient_descent_step(parameter, gradient, rate[0])

    value, gradients = common.value_and_vjp(step, INPUTS, cotangent)
    expected = reference.gradient_descent_step(*INPUTS)
    np.testing.assert_allclose(value, expected, rtol=common.rtol)
    for ours, theirs in zip(gradients, reference.gradient_descent_step_vjp(cotangent, *INPUTS), strict=True):
        np.testing.assert_allclose(ours, np.broadcast_to(theirs, ours.shape), rtol=common.rtol)


def test_a_structure_in_common_ways(common):
    cotangent = np.array([1.0, -3.0, 2.0])

    def through_a_structure(parameter, gradient):
        parameters = {"w": [parameter, 2 * parameter], "b": parameter}
        stepped = common.tricks.gradient_descent_step(parameters, {"b": None, "w": (gradient, gradient)}, 0.3)
        return stepped["w"][0] + stepped["w"][1] + stepped["b"]

    value, gradients = common.value_and_vjp(through_a_structure, INPUTS[:2], cotangent)
    np.testing.assert_allclose(value, 4 * INPUTS[0] - 0.6 * INPUTS[1], rtol=common.rtol)
    for ours, theirs in zip(gradients, [4 * cotangent, -0.6 * cotangent], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=common.rtol)


def test_twice_in_common_ways(twice):
    cotangent = np.array([1.0, -3.0, 2.0])
    directions = [np.array([0.3, 0.7, -0.1]), np.array([0.2, -0.4, 0.6]), np.array([0.5])]

    def function(parameter, gradient, rate):
        return twice.tricks.gradient_descent_step(parameter**3, gradient, rate[0]) ** 2

    def vjp(cotangent, parameter, gradient, rate):
        stepped = reference.gradient_descent_step(parameter**3, gradient, rate)
        outer = 2 * stepped * cotangent
        inner, *rest = reference.gradient_descent_step_vjp(outer, parameter**3, gradient, rate)
        return [3 * np.square(parameter) * inner, *rest]

    gradients = twice.second_vjp(function, INPUTS, cotangent, directions)
    expected = numerical_second_vjp(vjp, INPUTS, cotangent, directions)
    for ours, theirs in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
