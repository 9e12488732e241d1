"""One function's value with another's gradient, and a map of gradients for a block."""

import threading
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from gradtricks import reference
from gradtricks._core.overriding import OPERATORS, check_same_structure

X = np.array([-1.0, 2.0, 3.0])
WEIGHTS = np.array([1.0, -2.0, 3.0])
PLAIN, GUIDED, SEVENFOLD = [0.0, -2.0, 3.0], [0.0, 0.0, 3.0], [7.0, -14.0, 21.0]

# Ways in which a map is refused, because there is no rule for them.
FORWARD_MODE = {"func.jvp", "compile of func.jvp", "dual numbers", "func.jacfwd", "func.jvp of func.vjp"} | {
    "accumulator",
    "accumulator in a function",
    "accumulator around a function",
    "accumulator over a tape",
}


# TensorFlow's arithmetic takes subnormal numbers for 0.
NUMBERS = st.floats(-9, 9, allow_subnormal=False)


class Pair(NamedTuple):
    left: object
    right: object


def operator(backend, name):
    """Return the framework's function of an operator."""
    if backend.name == "torch":
        owners = (backend.framework, backend.framework.nn.functional)
    else:
        owners = (backend.framework.math, backend.framework.nn)
    return next(getattr(owner, name) for owner in owners if hasattr(owner, name))


def guided(cotangent, output, x):
    """Guided backpropagation through relu, in the operators that tensors and arrays share."""
    return cotangent * as_floats((cotangent > 0) & (output > 0), cotangent)


def as_floats(mask, like):
    """Convert a mask to the dtype of another tensor or array."""
    if isinstance(mask, np.ndarray):
        return mask.astype(like.dtype)
    return mask.to(like.dtype) if hasattr(mask, "to") else tf_cast(mask, like.dtype)


def tf_cast(mask, dtype):
    import tensorflow as tf

    return tf.cast(mask, dtype)


def sevenfold(cotangent, output, x):
    return 7 * cotangent


def gradient(backend, function, x=X):
    """Return the gradient of ``sum(function(x) * WEIGHTS)``."""
    return backend.value_and_vjp(function, [x], WEIGHTS)[1][0].tolist()


def guiding(backend, rule=guided):
    return backend.tricks.gradient_override_map({operator(backend, "relu"): rule})


# override_gradient


@given(x=arrays(np.float64, array_shapes(min_dims=0, max_dims=3, min_side=0), elements=NUMBERS))
def test_agrees_with_the_reference(backend, x):
    cotangent = np.arange(x.size, dtype=float).reshape(x.shape) - 1.5
    sign, sin = (operator(backend, name) for name in ("sign", "sin"))
    value, (found,) = backend.value_and_vjp(backend.tricks.override_gradient(sign, sin), [x], cotangent)
    np.testing.assert_array_equal(value, reference.override_gradient(np.sign, np.sin)(x))
    expected = reference.override_gradient_vjp(cotangent, lambda c, x: c * np.cos(x), x)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_structures_options_and_objects_pass_through(backend):
    def forward(pair, *, scale, note):
        return {"sum": (pair.left + pair.right) * scale, note: Pair(pair.left, [pair.right])}

    def gradient_of(pair, *, scale, note):
        return {note: Pair(5 * pair.left, [7 * pair.right]), "sum": pair.left * pair.right * scale}

    overridden = backend.tricks.override_gradient(forward, gradient_of)

    def function(left, right):
        result = overridden(Pair(left, right), scale=2.0, note="pair")
        assert isinstance(result["pair"], Pair)
        return result["sum"] + 10 * result["pair"].left + 100 * result["pair"].right[0]

    value, gradients = backend.value_and_vjp(function, [np.array([3.0]), np.array([4.0])], np.ones(1))
    assert value.tolist() == [14.0 + 30.0 + 400.0]
    assert [g.tolist() for g in gradients] == [[8.0 + 50.0], [6.0 + 700.0]]


def test_each_function_is_called_once(backend):
    calls = []

    def counted(name, function):
        return lambda x: calls.append(name) or function(x)

    function = backend.tricks.override_gradient(
        counted("forward", lambda x: -x), counted("gradient_of", lambda x: 3 * x)
    )
    backend.value_and_vjp(function, [np.ones(2)], np.ones(2))
    assert calls == ["forward", "gradient_of"]


def test_what_gradient_of_closes_over_gets_its_gradient(backend):
    def function(weight, bias):
        return backend.tricks.override_gradient(
            lambda x: x * weight + bias, lambda x: x * weight**2 + 0 * bias
        )(backend.tensor(np.array([5.0])))

    value, gradients = backend.value_and_vjp(function, [np.array([3.0]), np.array([1.0])], np.ones(1))
    assert value.tolist() == [16.0]
    assert [g.tolist() for g in gradients] == [[30.0], [0.0]]


def test_forward_may_differentiate_within(backend):
    def slope(x):
        if backend.name == "torch":
            with backend.framework.enable_grad():
                x = x.detach().requires_grad_()
                return backend.framework.autograd.grad((x**2).sum(), x)[0]
        with backend.framework.GradientTape() as tape:
            tape.watch(x)
            y = x**2
        return tape.gradient(y, x)

    value, (found,) = backend.value_and_vjp(
        backend.tricks.override_gradient(slope, lambda x: 3 * x), [np.array([5.0])], np.ones(1)
    )
    assert (value.tolist(), found.tolist()) == ([10.0], [3.0])


@pytest.mark.parametrize(
    ("forward", "gradient_of", "error", "message"),
    [
        (3, abs, TypeError, "forward must be callable; got int"),
        (abs, None, TypeError, "gradient_of must be callable; got NoneType"),
        (lambda x: 1.0, lambda x: x, TypeError, "what forward returns must be a .*Tensor; got float"),
        (lambda x: x, lambda x: 1.0, TypeError, "what gradient_of returns must be a .*Tensor; got float"),
        (lambda x: x, lambda x: (x,), ValueError, r"one tensor; got a tuple with \[0\]"),
        (lambda x: x, lambda x: x > 0, TypeError, "what gradient_of returns must be floating-point; got"),
        (
            lambda x: x,
            lambda x: x[:1],
            ValueError,
            r"what gradient_of returns must have the shape of what forward returns, \(2,\); got \(1,\)",
        ),
        (lambda x: (x, x), lambda x: [x, x], ValueError, r"a tuple with \[0, 1\]; got a list with \[0, 1\]"),
        (lambda x: (x, x), lambda x: (x,), ValueError, r"a tuple with \[0, 1\]; got a tuple with \[0\]"),
        (lambda x: {"a": x}, lambda x: {"b": x}, ValueError, r"a dict with \['a'\]; got a dict with \['b'\]"),
        (lambda x: [x], lambda x: x, ValueError, r"a list with \[0\]; got one tensor"),
        (lambda x: [[x]], lambda x: [[x, x]], ValueError, r"a list with \[0\]; got a list with \[0, 1\]"),
    ],
)
def test_bad_functions_say_what_is_expected(backend, forward, gradient_of, error, message):
    with pytest.raises(error, match=message):
        backend.tricks.override_gradient(forward, gradient_of)(backend.tensor(np.ones(2)))


def test_two_inputs_each_get_their_gradient(backend):
    overridden = backend.tricks.override_gradient(lambda a, b: a + 2 * b, lambda a, b: a**2 * b)
    inputs, cotangent = [np.array([1.5, -2.0]), np.array([0.5, 3.0])], np.array([1.0, -3.0])
    value, gradients = backend.compiled_value_and_vjp(overridden, inputs, cotangent)
    np.testing.assert_allclose(value, inputs[0] + 2 * inputs[1], rtol=1e-10)
    expected = reference.override_gradient_vjp(cotangent, lambda c, a, b: (2 * a * b * c, a**2 * c), *inputs)
    np.testing.assert_allclose(gradients, expected, rtol=1e-10)


# gradient_override_map


# Where the framework can't, it raises.
REFUSED = {"checkpoint": "different number of tensors was saved", "export": "can't be exported"}


def test_gradient_override_map_under_every_transform(way):
    relu = operator(way.backend, "relu")
    x, cotangent = np.array([[1.5, -2.0, 0.5]]), np.array([[1.0, -3.0, -2.0]])

    # Linear in the cotangent, because some ways ask for the Jacobian first.
    def rule(cotangent, output, x):
        return cotangent * (x - 3 * output)

    with way.tricks.gradient_override_map({relu: rule}):
        if way.name in FORWARD_MODE:
            with pytest.raises(Exception, match="no rule"):
                way.value_and_vjp(lambda t: 2 * relu(t), [x], cotangent)
            return
        if way.name in REFUSED:
            with pytest.raises(Exception, match=REFUSED[way.name]):
                way.value_and_vjp(lambda t: 2 * relu(t), [x], cotangent)
            return
        value, (found,) = way.value_and_vjp(lambda t: 2 * relu(t), [x], cotangent)
    np.testing.assert_allclose(value, 2 * np.maximum(x, 0), rtol=way.rtol)
    expected = reference.gradient_override_map_vjp(2 * cotangent, rule, lambda x: np.maximum(x, 0), x)
    if way.name == "reentrant checkpoint":  # called again outside of the block, as the docstring warns
        expected = 2 * cotangent * (x > 0)
    np.testing.assert_allclose(found, expected, rtol=way.rtol)


def test_gradient_override_map_twice_under_every_transform(second):
    tanh = operator(second.backend, "tanh")
    x, cotangent, direction = np.array([1.5, -0.5]), np.array([1.0, -3.0]), np.array([0.3, 0.7])
    # The output is a function of x too, whose gradient is overridden in its turn.
    with second.tricks.gradient_override_map({tanh: lambda c, y, x: c * x**2 * y}):
        if second.name in FORWARD_MODE:
            with pytest.raises((NotImplementedError, RuntimeError), match="no rule"):
                second.second_vjp(tanh, [x], cotangent, [direction])
            return
        (found,) = second.second_vjp(tanh, [x], cotangent, [direction])
    expected = cotangent * direction * (2 * x * np.tanh(x) + x**2 * (x**2 * np.tanh(x)))
    np.testing.assert_allclose(found, expected, rtol=1e-10)


@pytest.mark.parametrize("name", OPERATORS)
def test_every_operator_keeps_its_value(backend, name):
    function, x = operator(backend, name), np.array([0.3, 1.7, 2.6])
    plain, _ = backend.value_and_vjp(lambda t: function(t) + 0 * t, [x], WEIGHTS)
    with backend.tricks.gradient_override_map({function: sevenfold}):
        value, (found,) = backend.value_and_vjp(function, [x], WEIGHTS)
    np.testing.assert_array_equal(value, plain)
    np.testing.assert_array_equal(found, SEVENFOLD)


def torch_spellings():
    torch = pytest.importorskip("torch")
    functional, module = torch.nn.functional, torch.nn.ReLU(inplace=True)
    return {
        "torch": torch.relu,
        "torch, by keyword": lambda x: torch.relu(input=x),
        "functional": functional.relu,
        "functional, by keyword": lambda x: functional.relu(input=x, inplace=False),
        "functional, in place": lambda x: functional.relu(1 * x, True),
        "functional_": lambda x: functional.relu_(1 * x),
        "torch_": lambda x: torch.relu_(1 * x),
        "method": lambda x: x.relu(),
        "method_": lambda x: (1 * x).relu_(),
        "module": torch.nn.ReLU(),
        "module, in place": lambda x: module(1 * x),
        "aten": torch.ops.aten.relu,
        "aten overload": torch.ops.aten.relu.default,
        "aten, by keyword": lambda x: torch.ops.aten.relu.default(self=x),
    }


@pytest.mark.parametrize("spelling", torch_spellings())
def test_every_spelling_is_followed_in_torch(spelling):
    torch = pytest.importorskip("torch")
    tricks = pytest.importorskip("gradtricks.torch")
    function, x = torch_spellings()[spelling], torch.tensor(X, requires_grad=True)
    torch.compiler.reset()
    with tricks.gradient_override_map({torch.nn.functional.relu: guided}):
        for call in (function, torch.compile(function, fullgraph=True, backend="aot_eager")):
            (found,) = torch.autograd.grad(call(x), x, torch.tensor(WEIGHTS))
            assert found.tolist() == GUIDED


def tensorflow_spellings():
    tf = pytest.importorskip("tensorflow")
    keras = pytest.importorskip("keras")
    return {
        "nn": tf.nn.relu,
        "raw op": lambda x: tf.raw_ops.Relu(features=x),
        "keras op": keras.ops.relu,
        "activation": keras.activations.relu,
        "activation layer": keras.layers.Activation("relu", dtype="float64"),
        "layer": keras.layers.ReLU(dtype="float64"),
        "dense layer": keras.Sequential(
            [keras.layers.Dense(3, "relu", kernel_initializer="identity", dtype="float64")]
        ),
    }


@pytest.mark.parametrize("spelling", tensorflow_spellings())
def test_every_spelling_is_followed_in_tensorflow(spelling):
    tf = pytest.importorskip("tensorflow")
    keras = pytest.importorskip("keras")
    tricks = pytest.importorskip("gradtricks.tensorflow")
    function, x = tensorflow_spellings()[spelling], tf.constant(X[None])
    function(x)
    with tricks.gradient_override_map({keras.ops.relu: guided}):
        for call in (function, tf.function(function)):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = call(x)
            assert tape.gradient(y, x, WEIGHTS[None]).numpy()[0].tolist() == GUIDED


def test_other_names_of_an_operator_are_followed_in_torch(backend):
    if backend.name != "torch":
        pytest.skip("Only PyTorch has them.")
    torch = backend.framework
    with backend.tricks.gradient_override_map({torch.abs: sevenfold, torch.sigmoid: sevenfold}):
        for function in (abs, torch.absolute, torch.special.expit, torch.nn.Sigmoid()):
            assert gradient(backend, function) == SEVENFOLD


def test_options_go_to_the_operator(backend):
    leaky_relu = operator(backend, "leaky_relu")
    with backend.tricks.gradient_override_map({leaky_relu: sevenfold}):
        value, (found,) = backend.value_and_vjp(lambda x: leaky_relu(x, 0.5), [X], WEIGHTS)
    assert (value.tolist(), found.tolist()) == ([-0.5, 2.0, 3.0], SEVENFOLD)


@pytest.mark.parametrize("way", ["value_and_vjp", "compiled_value_and_vjp"])
def test_what_counts_is_where_the_operator_is_called(backend, way):
    # One function, compiled once by its user: outside, inside, inside another, outside again.
    relu = operator(backend, "relu")
    if way == "value_and_vjp":
        function = relu
    elif backend.name == "torch":
        backend.framework.compiler.reset()
        function = backend.framework.compile(lambda x: relu(x), fullgraph=True, backend="aot_eager")
    else:
        function = backend.framework.function(lambda x: relu(x), jit_compile=True, autograph=False)
    for _ in range(2):
        assert gradient(backend, function) == PLAIN
        with guiding(backend):
            assert gradient(backend, function) == GUIDED
        with guiding(backend, sevenfold):
            assert gradient(backend, function) == SEVENFOLD
            with guiding(backend):
                assert gradient(backend, function) == GUIDED
            assert gradient(backend, function) == SEVENFOLD


def test_backpropagation_may_happen_later(backend):
    relu, x = operator(backend, "relu"), backend.tensor(X)
    if backend.name == "torch":
        x.requires_grad_()
        with guiding(backend):
            y = relu(x)
        (found,) = backend.framework.autograd.grad(y, x, backend.tensor(WEIGHTS))
    else:
        with backend.framework.GradientTape() as tape:
            tape.watch(x)
            with guiding(backend):
                y = relu(x)
        found = tape.gradient(y, x, backend.tensor(WEIGHTS))
    assert backend.array(found).tolist() == GUIDED


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_map_inside_a_recomputed_function_is_seen_in_torch(use_reentrant):
    torch = pytest.importorskip("torch")
    tricks = pytest.importorskip("gradtricks.torch")

    def function(x):
        with tricks.gradient_override_map({torch.relu: guided}):
            return torch.relu(x)

    x = torch.tensor(X, requires_grad=True)
    y = torch.utils.checkpoint.checkpoint(function, x, use_reentrant=use_reentrant)
    y.backward(torch.tensor(WEIGHTS))
    assert x.grad.tolist() == GUIDED


def test_a_map_inside_a_recomputed_function_is_seen_in_tensorflow():
    tf = pytest.importorskip("tensorflow")
    tricks = pytest.importorskip("gradtricks.tensorflow")

    @tf.recompute_grad
    def function(x):
        with tricks.gradient_override_map({tf.nn.relu: guided}):
            return tf.nn.relu(x)

    x = tf.constant(X)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    assert tape.gradient(y, x, WEIGHTS).numpy().tolist() == GUIDED


def test_an_error_within_the_block_ends_the_map(backend):
    with pytest.raises(ZeroDivisionError), guiding(backend):
        raise ZeroDivisionError
    assert gradient(backend, operator(backend, "relu")) == PLAIN


def test_a_map_can_be_entered_again_and_within_itself(backend):
    block, relu = guiding(backend), operator(backend, "relu")
    for _ in range(2):
        with block:
            assert gradient(backend, relu) == GUIDED
            with block:
                assert gradient(backend, relu) == GUIDED
            assert gradient(backend, relu) == GUIDED
    assert gradient(backend, relu) == PLAIN


def test_an_inner_map_leaves_other_operators_to_the_outer_one(backend):
    relu, tanh = operator(backend, "relu"), operator(backend, "tanh")
    with guiding(backend), backend.tricks.gradient_override_map({tanh: sevenfold}):
        assert gradient(backend, relu) == GUIDED
        assert gradient(backend, tanh) == SEVENFOLD


def test_other_threads_are_left_alone(backend):
    found, relu = [], operator(backend, "relu")
    with guiding(backend):
        thread = threading.Thread(target=lambda: found.append(gradient(backend, relu)))
        thread.start()
        thread.join()
    assert found == [PLAIN]


def test_integers_have_no_gradient_to_override(backend):
    absolute = operator(backend, "abs")
    with backend.tricks.gradient_override_map({absolute: sevenfold}):
        assert backend.array(absolute(backend.tensor([-3, 4]))).tolist() == [3, 4]


@pytest.mark.parametrize("name", ["abs", "exp"])
def test_complex_numbers_are_followed(backend, name):
    function, x = operator(backend, name), backend.tensor(np.array([3 + 4j]))
    with backend.tricks.gradient_override_map({function: sevenfold}):
        if backend.name == "torch":
            x.requires_grad_()
            found = backend.framework.autograd.grad(backend.framework.view_as_real(function(x) + 0j).sum(), x)
            found = backend.array(found[0])
        else:
            with backend.framework.GradientTape() as tape:
                tape.watch(x)
                y = backend.framework.math.real(function(x))
            found = backend.array(tape.gradient(y, x))
    assert found.real.tolist() == [7.0]


def test_a_rule_may_return_another_dtype(backend):
    relu = operator(backend, "relu")
    with guiding(backend, lambda c, y, x: 7 * backend.cast(c, "float32")):
        assert gradient(backend, lambda t: relu(1 * t)) == SEVENFOLD


def test_a_sparse_cotangent_reaches_the_rule_dense():
    tf = pytest.importorskip("tensorflow")
    tricks = pytest.importorskip("gradtricks.tensorflow")
    x = tf.constant(X)
    with tricks.gradient_override_map({tf.nn.relu: guided}):
        for function in (tf.nn.relu, tf.function(tf.nn.relu)):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = tf.gather(function(x), [1, 1])
            assert tape.gradient(y, x).numpy().tolist() == [0.0, 2.0, 0.0]


def test_what_writes_into_a_given_tensor_goes_to_the_operator_in_torch():
    torch = pytest.importorskip("torch")
    tricks = pytest.importorskip("gradtricks.torch")
    out = torch.empty(3, dtype=torch.float64)
    with tricks.gradient_override_map({torch.abs: sevenfold}):
        assert torch.abs(torch.tensor(X), out=out) is out
        with pytest.raises(RuntimeError, match="don't support automatic differentiation"):
            torch.abs(torch.tensor(X, requires_grad=True), out=out)
    assert out.tolist() == [1.0, 2.0, 3.0]


def test_an_export_is_refused_in_torch():
    torch = pytest.importorskip("torch")
    tricks = pytest.importorskip("gradtricks.torch")
    refused = pytest.raises(NotImplementedError, match="gradient_override_map can't be exported")
    with tricks.gradient_override_map({torch.relu: guided}), refused:
        torch.export.export(torch.nn.ReLU(), (torch.ones(3),))


def test_an_operator_must_not_come_twice(backend):
    if backend.name == "torch":
        twice = backend.framework.relu, backend.framework.nn.functional.relu
    else:
        twice = backend.framework.nn.relu, pytest.importorskip("keras").ops.relu
    with pytest.raises(ValueError, match="gradients must map each operator once; got relu, relu"):
        backend.tricks.gradient_override_map(dict.fromkeys(twice, guided))


def test_keys_of_several_types_are_compared():
    check_same_structure({1: 0, "a": 0}, {"a": 0, 1: 0})
    with pytest.raises(ValueError, match="a dict with"):
        check_same_structure({1: 0, "a": 0}, {"a": 0, 2: 0})


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_works_in_half_precision(backend, dtype):
    relu = operator(backend, "relu")
    with guiding(backend):
        assert gradient(backend, lambda t: relu(backend.cast(t, dtype))) == GUIDED


def test_a_guided_layer_under_keras_mixed_precision():
    tf = pytest.importorskip("tensorflow")
    keras = pytest.importorskip("keras")
    tricks = pytest.importorskip("gradtricks.tensorflow")
    layer, x = keras.layers.ReLU(dtype="mixed_float16"), tf.constant(X[None], tf.float32)
    with tricks.gradient_override_map({tf.nn.relu: guided}), tf.GradientTape() as tape:
        tape.watch(x)
        y = layer(x)
    weights = tf.cast(WEIGHTS[None], y.dtype)
    assert tape.gradient(y, x, weights).numpy()[0].tolist() == GUIDED


def test_loops_and_branches_of_a_graph_are_followed():
    tf = pytest.importorskip("tensorflow")
    tricks = pytest.importorskip("gradtricks.tensorflow")

    @tf.function
    def looped(x):
        for _ in tf.range(2):
            x = tf.nn.relu(x) if tf.reduce_sum(x) > 0 else x
        return x

    x = tf.constant(X)
    with tricks.gradient_override_map({tf.nn.relu: sevenfold}), tf.GradientTape() as tape:
        tape.watch(x)
        y = looped(x)
    assert tape.gradient(y, x).numpy().tolist() == [49.0] * 3


def test_a_variable_and_a_mapped_function_get_the_gradient():
    tf = pytest.importorskip("tensorflow")
    tricks = pytest.importorskip("gradtricks.tensorflow")
    variable = tf.Variable(X)
    with tricks.gradient_override_map({tf.nn.relu: sevenfold}), tf.GradientTape() as tape:
        y = tf.vectorized_map(tf.nn.relu, variable[None])[0] + tf.nn.relu(variable)
    assert tf.convert_to_tensor(tape.gradient(y, variable)).numpy().tolist() == [14.0] * 3


@pytest.mark.parametrize("nested", [False, True])
def test_a_concrete_function_from_outside_is_refused(nested):
    tf = pytest.importorskip("tensorflow")
    tricks = pytest.importorskip("gradtricks.tensorflow")
    x = tf.constant(X)
    concrete = tf.function(lambda x: tf.nn.relu(x)).get_concrete_function(x)
    function = tf.function(lambda x: concrete(x)) if nested else concrete
    refused = pytest.raises(RuntimeError, match="can't reach the Relu of a function traced outside of it")
    with tricks.gradient_override_map({tf.nn.relu: guided}), refused:
        function(x)
    with tricks.gradient_override_map({tf.tanh: guided}):
        assert concrete(x).numpy().tolist() == [0.0, 2.0, 3.0]


def test_a_map_sees_operators_after_other_callbacks_were_removed():
    tf = pytest.importorskip("tensorflow")
    tricks = pytest.importorskip("gradtricks.tensorflow")
    x = tf.constant(X)
    with tricks.gradient_override_map({tf.nn.relu: guided}):
        pass
    tricks.explain_gradient(lambda x: tf.nn.relu(x), x)  # has callbacks of its own
    concrete = tf.function(lambda x: tf.nn.relu(x)).get_concrete_function(x)
    refused = pytest.raises(RuntimeError, match="can't reach the Relu")
    with tricks.gradient_override_map({tf.nn.relu: guided}), refused:
        concrete(x)


@pytest.mark.parametrize(("name", "layer"), [("sigmoid", "LSTM"), ("tanh", "RNN")])
def test_recurrent_layers_are_refused_in_torch(name, layer):
    torch = pytest.importorskip("torch")
    tricks = pytest.importorskip("gradtricks.torch")
    refused = pytest.raises(NotImplementedError, match=f"can't reach the {name} within")
    with tricks.gradient_override_map({getattr(torch, name): guided}), refused:
        getattr(torch.nn, layer)(3, 2)(torch.ones(1, 3))


def test_every_python_function_that_holds_an_operator_is_refused_in_torch():
    torch = pytest.importorskip("torch")
    overriding = pytest.importorskip("gradtricks.torch.overriding")
    # What a newer PyTorch builds of an operator shows here. Attention takes its root of a Python number.
    functions = {f for fs in torch.overrides.get_overridable_functions().values() for f in fs}
    functions -= {torch.nn.functional.multi_head_attention_forward}
    for name in OPERATORS:
        spelled = {name, f"{name}_"}
        holding = {f for f in functions if hasattr(f, "__code__") and spelled & {*f.__code__.co_names}}
        assert holding - {*overriding._spellings(name)} <= {*overriding._fused(name)}, name


def test_a_map_made_while_compiling_is_refused_in_torch(monkeypatch):
    torch = pytest.importorskip("torch")
    tricks = pytest.importorskip("gradtricks.torch")

    @torch.compile(fullgraph=True, backend="eager")
    def made_inside(x):
        with tricks.gradient_override_map({torch.relu: guided}):
            return torch.relu(x)

    torch.compiler.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match="can't be made while compiling; remedy"):
        made_inside(torch.ones(2))
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    with pytest.raises(NotImplementedError, match="can't be made while compiling; remedy"):
        tricks.gradient_override_map({torch.relu: guided})


def test_a_compiled_function_refuses_dual_numbers_in_a_map():
    torch = pytest.importorskip("torch")
    tricks = pytest.importorskip("gradtricks.torch")
    torch.compiler.reset()
    compiled = torch.compile(lambda x: torch.relu(x), backend="eager", fullgraph=True)
    refused = pytest.raises(Exception, match="must not meet dual numbers")
    with torch.autograd.forward_ad.dual_level(), tricks.gradient_override_map({torch.relu: guided}), refused:
        compiled(torch.autograd.forward_ad.make_dual(torch.ones(2), torch.ones(2)))


def test_a_map_may_be_entered_while_compiling(backend):
    block, relu = guiding(backend), operator(backend, "relu")

    def function(x):
        with block:
            y = relu(x)
        return y + relu(x)

    if backend.name == "torch":
        backend.framework.compiler.reset()
        function = backend.framework.compile(function, fullgraph=True, backend="aot_eager")
    else:
        function = backend.framework.function(function)
    assert gradient(backend, function) == (np.array(GUIDED) + PLAIN).tolist()


@pytest.mark.parametrize(
    ("gradients", "error", "message"),
    [
        ([abs], TypeError, "gradients must be a mapping; got list"),
        ({abs: guided}, ValueError, r"gradients must map operators of .* \(abs, ceil, .*; got <built-in"),
        ("no gradient", TypeError, "the gradient of relu must be callable; got NoneType"),
    ],
)
def test_bad_maps_say_what_is_expected(backend, gradients, error, message):
    gradients = {operator(backend, "relu"): None} if gradients == "no gradient" else gradients
    with pytest.raises(error, match=message):
        backend.tricks.gradient_override_map(gradients)


@pytest.mark.parametrize(
    ("rule", "error", "message"),
    [
        (lambda c, y, x: None, TypeError, "the gradient's result must be a .*Tensor; got NoneType"),
        (lambda c, y, x: c[:1], ValueError, r"the gradient's result must have the shape of x, \(3,\); got"),
    ],
)
def test_bad_gradients_say_what_is_expected(backend, rule, error, message):
    with guiding(backend, rule), pytest.raises(error, match=message):
        gradient(backend, operator(backend, "relu"))


def patches(size=4, kernel=3):
    """Return the matrix that takes a flat image to the sums over its patches."""
    corners = [(row, column) for row in range(size - kernel + 1) for column in range(size - kernel + 1)]
    matrix = np.zeros((size, size, len(corners)))
    for index, (row, column) in enumerate(corners):
        matrix[row : row + kernel, column : column + kernel, index] = 1
    return matrix.reshape(size * size, len(corners))


def test_published_numbers_of_peers(backend):
    # Captum, tests/attr/test_guided_backprop.py, test_simple_input_conv_gb, on BasicModel_ConvNet_One_Conv:
    # two filters of ones with biases -50 and -75, a relu, weights of 1 (five) and -1 (three), a relu.
    relu, bias = operator(backend, "relu"), np.repeat([-50.0, -75.0], 4)
    sums, weights = np.tile(patches(), (1, 2)), np.array([[1.0] * 5 + [-1.0] * 3]).T

    def score(image):
        return relu(relu(image @ backend.tensor(sums) + backend.tensor(bias)) @ backend.tensor(weights))

    with guiding(backend):
        _, (found,) = backend.value_and_vjp(score, [np.arange(16.0)[None]], np.ones((1, 1)))
    expected = [[0.0, 1.0, 1.0, 1.0], [1.0, 3.0, 3.0, 2.0], [1.0, 3.0, 3.0, 2.0], [1.0, 2.0, 2.0, 1.0]]
    np.testing.assert_array_equal(found.reshape(4, 4), expected)


def test_blocks_of_two_threads_overlap(backend):
    relu = operator(backend, "relu")
    entered, left = threading.Event(), threading.Event()
    found = []

    def other():
        with backend.tricks.gradient_override_map({relu: lambda cotangent, output, x: 3 * cotangent}):
            entered.set()
            assert left.wait(60)
            found.append(gradient(backend, relu))

    thread = threading.Thread(target=other)
    with backend.tricks.gradient_override_map({relu: lambda cotangent, output, x: 2 * cotangent}):
        thread.start()
        assert entered.wait(60)
        found.append(gradient(backend, relu))
    left.set()
    thread.join()
    np.testing.assert_array_equal(np.array(found[1]) / np.array(found[0]), np.full(np.shape(found[0]), 1.5))
