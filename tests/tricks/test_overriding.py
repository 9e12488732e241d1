"""One function's value with another's gradient, and a map of gradients for a block."""

import threading
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from gradtricks import reference
from gradtricks._core.overriding import OPERATORS

X = np.array([-1.0, 2.0, 3.0])
WEIGHTS = np.array([1.0, -2.0, 3.0])
PLAIN, GUIDED, SEVENFOLD = [0.0, -2.0, 3.0], [0.0, 0.0, 3.0], [7.0, -14.0, 21.0]

# TensorFlow's arithmetic takes subnormal numbers for 0.
NUMBERS = st.floats(-9, 9, allow_subnormal=False)


class Pair(NamedTuple):
    left: object
    right: object


def guided(cotangent, output, x):
    """Guided backpropagation through relu: of a relu, the output over x is 1 or 0."""
    return (cotangent + abs(cotangent)) / 2 * (output / x)


def sevenfold(cotangent, output, x):
    return 7 * cotangent


def gradient(backend, function, x=X):
    """Return the gradient of ``sum(function(x) * WEIGHTS)``."""
    return backend.value_and_vjp(function, [x], WEIGHTS)[1][0].tolist()


def mapped(backend, rule=guided, name="relu"):
    return backend.tricks.gradient_override_map({backend.operator(name): rule})


# override_gradient


@given(x=arrays(np.float64, array_shapes(min_dims=0, max_dims=3, min_side=0), elements=NUMBERS))
def test_agrees_with_the_reference(backend, x):
    cotangent = np.arange(x.size, dtype=float).reshape(x.shape) - 1.5
    overridden = backend.tricks.override_gradient(backend.operator("sign"), backend.operator("sin"))
    value, (found,) = backend.value_and_vjp(overridden, [x], cotangent)
    np.testing.assert_array_equal(value, reference.override_gradient(np.sign, np.sin)(x))
    expected = reference.override_gradient_vjp(cotangent, lambda c, x: c * np.cos(x), x)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_structures_options_and_objects_pass_through(backend):
    def forward(pair, *, scale, note):
        return {0: (pair.left + pair.right) * scale, note: Pair(pair.left, [pair.right])}

    def gradient_of(pair, *, scale, note):
        return {note: Pair(5 * pair.left, [7 * pair.right]), 0: pair.left * pair.right * scale}

    overridden = backend.tricks.override_gradient(forward, gradient_of)

    def function(left, right):
        result = overridden(Pair(left, right), scale=2.0, note="pair")
        assert isinstance(result["pair"], Pair)
        return result[0] + 10 * result["pair"].left + 100 * result["pair"].right[0]

    value, gradients = backend.value_and_vjp(function, [np.array([3.0]), np.array([4.0])], np.ones(1))
    assert value.tolist() == [14.0 + 30.0 + 400.0]
    assert [g.tolist() for g in gradients] == [[8.0 + 50.0], [6.0 + 700.0]]


def test_functions_are_called_once_and_may_close_over_weights(backend):
    calls = []

    def function(weight, bias):
        def forward(x):
            calls.append("forward")
            return x * weight + bias

        def gradient_of(x):
            calls.append("gradient_of")
            return x * weight**2 + 0 * bias

        return backend.tricks.override_gradient(forward, gradient_of)(backend.tensor(np.array([5.0])))

    value, gradients = backend.value_and_vjp(function, [np.array([3.0]), np.array([1.0])], np.ones(1))
    assert calls == ["forward", "gradient_of"]
    assert value.tolist() == [16.0]
    assert [g.tolist() for g in gradients] == [[30.0], [0.0]]


@pytest.mark.parametrize(
    ("forward", "gradient_of", "error", "message"),
    [
        (3, abs, TypeError, "forward must be callable; got int"),
        (abs, None, TypeError, "gradient_of must be callable; got NoneType"),
        (lambda x: 1.0, lambda x: x, TypeError, "what forward returns must be a .*Tensor; got float"),
        (lambda x: x, lambda x: 1.0, TypeError, "what gradient_of returns must be a .*Tensor; got float"),
        (lambda x: x, lambda x: x > 0, TypeError, "what gradient_of returns must be floating-point; got"),
        (lambda x: x, lambda x: x[:1], ValueError, r"shape of what gradient_of returns, \(1,\); got \(2,"),
        (lambda x: (x, x), lambda x: (x,), ValueError, "what gradient_of returns must hold the entries of"),
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
    relu = way.backend.operator("relu")
    x, cotangent = np.array([[1.5, -2.0, 0.5]]), np.array([[1.0, -3.0, -2.0]])

    # Linear in the cotangent, because some ways ask for the Jacobian first.
    def rule(cotangent, output, x):
        return cotangent * (x - 3 * output)

    with mapped(way.backend, rule):
        if way.takes_tangents or way.name in REFUSED:
            with pytest.raises(Exception, match=REFUSED.get(way.name, "no rule")):
                way.value_and_vjp(lambda t: 2 * relu(t), [x], cotangent)
            return
        value, (found,) = way.value_and_vjp(lambda t: 2 * relu(t), [x], cotangent)
    np.testing.assert_allclose(value, 2 * np.maximum(x, 0), rtol=way.rtol)
    expected = reference.gradient_override_map_vjp(2 * cotangent, rule, lambda x: np.maximum(x, 0), x)
    if way.name == "reentrant checkpoint":  # called again outside of the block, as the docstring warns
        expected = 2 * cotangent * (x > 0)
    np.testing.assert_allclose(found, expected, rtol=way.rtol)


def test_gradient_override_map_twice_under_every_transform(second):
    tanh = second.backend.operator("tanh")
    x, cotangent, direction = np.array([1.5, -0.5]), np.array([1.0, -3.0]), np.array([0.3, 0.7])
    # The output is a function of x too, whose gradient is overridden in its turn.
    with mapped(second.backend, lambda c, y, x: c * x**2 * y, "tanh"):
        if second.takes_tangents:
            with pytest.raises((NotImplementedError, RuntimeError), match="no rule"):
                second.second_vjp(tanh, [x], cotangent, [direction])
            return
        (found,) = second.second_vjp(tanh, [x], cotangent, [direction])
    expected = cotangent * direction * (2 * x * np.tanh(x) + x**2 * (x**2 * np.tanh(x)))
    np.testing.assert_allclose(found, expected, rtol=1e-10)


@pytest.mark.parametrize("name", OPERATORS)
def test_every_operator_keeps_its_value(backend, name):
    function, x = backend.operator(name), np.array([0.3, 1.7, 2.6])
    plain, _ = backend.value_and_vjp(lambda t: function(t) + 0 * t, [x], WEIGHTS)
    with mapped(backend, sevenfold, name):
        value, (found,) = backend.value_and_vjp(function, [x], WEIGHTS)
    np.testing.assert_array_equal(value, plain)
    np.testing.assert_array_equal(found, SEVENFOLD)
    assert f"`{name}`" in (Path(__file__).parents[2] / "book/overriding.md").read_text()


def test_every_spelling_is_followed_in_torch(in_torch):
    torch = in_torch.framework
    functional, aten, module = torch.nn.functional, torch.ops.aten, torch.nn.ReLU(inplace=True)
    spellings = [
        torch.relu,
        lambda x: torch.relu(input=x),
        functional.relu,
        lambda x: functional.relu(input=x, inplace=False),
        lambda x: functional.relu(1 * x, True),
        lambda x: functional.relu_(1 * x),
        lambda x: torch.relu_(1 * x),
        lambda x: x.relu(),
        lambda x: (1 * x).relu_(),
        torch.nn.ReLU(),
        lambda x: module(1 * x),
        aten.relu,
        aten.relu.default,
        lambda x: aten.relu.default(self=x),
    ]
    with in_torch.tricks.gradient_override_map({functional.relu: guided}):
        for spelling in spellings:
            assert gradient(in_torch, spelling) == GUIDED
        together = in_torch.compiled(lambda x: sum(spelling(x) for spelling in spellings))
        assert gradient(in_torch, together) == (len(spellings) * np.array(GUIDED)).tolist()
    with in_torch.tricks.gradient_override_map({torch.abs: sevenfold, torch.sigmoid: sevenfold}):
        for spelling in (abs, torch.absolute, torch.special.expit, torch.nn.Sigmoid()):
            assert gradient(in_torch, spelling) == SEVENFOLD


def test_every_spelling_is_followed_in_tensorflow(in_tensorflow):
    tf, keras = in_tensorflow.framework, in_tensorflow.framework.keras
    dense = keras.layers.Dense(3, "relu", kernel_initializer="identity", dtype="float64")
    spellings = [
        tf.nn.relu,
        lambda x: tf.raw_ops.Relu(features=x),
        keras.ops.relu,
        keras.activations.relu,
        keras.layers.Activation("relu", dtype="float64"),
        keras.layers.ReLU(dtype="float64"),
        lambda x: dense(x[None])[0],
    ]
    with in_tensorflow.tricks.gradient_override_map({keras.ops.relu: guided}):
        for spelling in spellings:
            for call in (spelling, tf.function(spelling)):
                assert gradient(in_tensorflow, call) == GUIDED


def test_options_go_to_the_operator(backend):
    leaky_relu = backend.operator("leaky_relu")
    with mapped(backend, sevenfold, "leaky_relu"):
        value, (found,) = backend.value_and_vjp(lambda x: leaky_relu(x, 0.5), [X], WEIGHTS)
    assert (value.tolist(), found.tolist()) == ([-0.5, 2.0, 3.0], SEVENFOLD)


@pytest.mark.parametrize("compiled", [False, True])
def test_what_counts_is_where_the_operator_is_called(backend, compiled):
    # One function, compiled once by its user: outside, inside, inside another, outside again.
    relu, block, before = backend.operator("relu"), mapped(backend), backend.replaceable()
    function = backend.compiled(lambda x: relu(x)) if compiled else relu
    for _ in range(2):
        assert gradient(backend, function) == PLAIN
        with block:
            assert gradient(backend, function) == GUIDED
            with block:
                assert gradient(backend, function) == GUIDED
            assert gradient(backend, function) == GUIDED
        with mapped(backend, sevenfold):
            assert gradient(backend, function) == SEVENFOLD
            with block:
                assert gradient(backend, function) == GUIDED
            assert gradient(backend, function) == SEVENFOLD
    with pytest.raises(ZeroDivisionError), block:
        raise ZeroDivisionError
    assert gradient(backend, function) == PLAIN
    assert backend.replaceable() == before


def test_an_inner_map_leaves_other_operators_to_the_outer_one(backend):
    with mapped(backend), mapped(backend, sevenfold, "tanh"):
        assert gradient(backend, backend.operator("relu")) == GUIDED
        assert gradient(backend, backend.operator("tanh")) == SEVENFOLD


def test_backpropagation_may_happen_later(backend):
    def inside(x):
        with mapped(backend):
            return backend.operator("relu")(x)

    assert gradient(backend, inside) == GUIDED
    # And the block may be entered anew for each recomputation.
    assert gradient(backend, backend.recomputed(inside)) == GUIDED


def test_a_map_may_be_entered_while_compiling(backend):
    block, relu = mapped(backend), backend.operator("relu")

    def function(x):
        with block:
            y = relu(x)
        return y + relu(x)

    assert gradient(backend, backend.in_graph(function)) == (np.array(GUIDED) + PLAIN).tolist()


def test_threads_have_their_own_maps(backend):
    relu, found = backend.operator("relu"), []
    entered, left = threading.Event(), threading.Event()

    def other():
        found.append(gradient(backend, relu))
        with mapped(backend, sevenfold):
            entered.set()
            assert left.wait(60)
            found.append(gradient(backend, relu))

    thread = threading.Thread(target=other)
    with mapped(backend):
        thread.start()
        assert entered.wait(60)
        found.append(gradient(backend, relu))
    left.set()
    thread.join()
    assert found == [PLAIN, GUIDED, SEVENFOLD]


def test_integers_have_no_gradient_to_override(backend):
    with mapped(backend, sevenfold, "abs"):
        assert backend.array(backend.operator("abs")(backend.tensor([-3, 4]))).tolist() == [3, 4]


@pytest.mark.parametrize("name", ["abs", "exp"])
def test_complex_numbers_are_followed(backend, name):
    function, x = backend.operator(name), np.array([3 + 4j])
    with mapped(backend, sevenfold, name):
        _, (found,) = backend.value_and_vjp(lambda x: backend.operator("real")(function(x)), [x], np.ones(1))
    assert found.real.tolist() == [7.0]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_other_precisions(backend, dtype):
    relu = backend.operator("relu")
    with mapped(backend):
        assert gradient(backend, lambda t: relu(backend.cast(t, dtype))) == GUIDED
    with mapped(backend, lambda c, y, x: 7 * backend.cast(c, dtype)):
        assert gradient(backend, lambda t: relu(1 * t)) == SEVENFOLD


@pytest.mark.parametrize(
    ("gradients", "error", "message"),
    [
        ([abs], TypeError, "gradients must be a mapping; got list"),
        ({abs: guided}, ValueError, r"gradients must map operators of .* \(abs, ceil, .*; got <built-in"),
        (None, TypeError, "the gradient of relu must be callable; got NoneType"),
        (guided, ValueError, "gradients must map each operator once; got relu, relu"),
    ],
)
def test_bad_maps_say_what_is_expected(backend, gradients, error, message):
    if not isinstance(gradients, list | dict):
        gradients = {owner.relu: gradients for owner in backend.spellers}
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
    with mapped(backend, rule), pytest.raises(error, match=message):
        gradient(backend, backend.operator("relu"))


# Situations of one framework only


def test_out_tensors_go_to_the_operator_in_torch(in_torch):
    torch = in_torch.framework
    out = torch.empty(3, dtype=torch.float64)
    with mapped(in_torch, sevenfold, "abs"):
        assert torch.abs(torch.tensor(X), out=out) is out
        with pytest.raises(RuntimeError, match="don't support automatic differentiation"):
            torch.abs(torch.tensor(X, requires_grad=True), out=out)
    assert out.tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(("name", "layer"), [("sigmoid", "LSTM"), ("tanh", "RNN")])
def test_recurrent_layers_are_refused_in_torch(in_torch, name, layer):
    torch = in_torch.framework
    refused = pytest.raises(NotImplementedError, match=f"can't reach the {name} within")
    with mapped(in_torch, guided, name), refused:
        getattr(torch.nn, layer)(3, 2)(torch.ones(1, 3))


def test_functions_that_hold_an_operator_are_refused_in_torch(in_torch):
    from gradtricks.torch import overriding

    # What a newer PyTorch builds of an operator shows here. Attention takes its root of a Python number, and
    # interpolation its floor of sizes.
    torch = in_torch.framework
    functions = {f for fs in torch.overrides.get_overridable_functions().values() for f in fs}
    functional = torch.nn.functional
    functions -= {functional.multi_head_attention_forward, functional.interpolate}
    for name in OPERATORS:
        spelled = {name, f"{name}_"}
        holding = {f for f in functions if hasattr(f, "__code__") and spelled & {*f.__code__.co_names}}
        assert holding - {*overriding._spellings(name)} <= {*overriding._fused(name)}, name


def test_a_map_made_while_compiling_is_refused_in_torch(in_torch, monkeypatch):
    torch = in_torch.framework

    def made_inside(x):
        with mapped(in_torch):
            return torch.relu(x)

    with pytest.raises(torch._dynamo.exc.Unsupported, match="can't be made while compiling; remedy"):
        in_torch.compiled(made_inside)(torch.ones(2))
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    with pytest.raises(NotImplementedError, match="can't be made while compiling; remedy"):
        mapped(in_torch)


def test_compiled_functions_refuse_duals_in_a_map_in_torch(in_torch):
    torch, forward_ad = in_torch.framework, in_torch.framework.autograd.forward_ad
    compiled = in_torch.compiled(lambda x: torch.relu(x))
    # Since 2.15 the compiler refuses them by itself.
    refused = pytest.raises(Exception, match=r"must not meet dual numbers|wrap a dual tensor")
    with forward_ad.dual_level(), mapped(in_torch), refused:
        compiled(forward_ad.make_dual(torch.ones(2), torch.ones(2)))


def test_a_sparse_cotangent_reaches_the_rule_dense_in_tensorflow(in_tensorflow):
    tf = in_tensorflow.framework

    def rows(x):
        return tf.gather(tf.nn.relu(x), [1, 1])

    with mapped(in_tensorflow):
        for function in (rows, tf.function(rows)):
            _, (found,) = in_tensorflow.value_and_vjp(function, [X], np.ones(2))
            assert found.tolist() == [0.0, 2.0, 0.0]


def test_loops_and_branches_of_a_graph_are_followed_in_tensorflow(in_tensorflow):
    tf = in_tensorflow.framework

    @tf.function
    def looped(x):
        for _ in tf.range(2):
            x = tf.nn.relu(x) if tf.reduce_sum(x) > 0 else x
        return x

    with mapped(in_tensorflow, sevenfold):
        assert gradient(in_tensorflow, looped) == (7 * np.array(SEVENFOLD)).tolist()


def test_a_concrete_function_from_outside_is_refused_in_tensorflow(in_tensorflow):
    tf, x = in_tensorflow.framework, in_tensorflow.leaf(X)
    with mapped(in_tensorflow):
        pass
    in_tensorflow.doctor.explain_gradient(lambda x: tf.nn.relu(x), x)  # has callbacks of its own
    concrete = tf.function(lambda x: tf.nn.relu(x)).get_concrete_function(x)
    for function in (concrete, tf.function(lambda x: concrete(x))):
        refused = pytest.raises(RuntimeError, match="can't reach the Relu of a function traced outside of it")
        with mapped(in_tensorflow), refused:
            function(x)
    with mapped(in_tensorflow, guided, "tanh"):
        assert concrete(x).numpy().tolist() == [0.0, 2.0, 3.0]
