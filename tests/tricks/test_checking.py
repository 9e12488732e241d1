"""Checks of gradients: correct, wrong, not differentiable, surrogate, inconclusive."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from backends import ForeignTensor
from domains import floating, integer, number
from gradtricks import reference
from gradtricks._core import checking
from gradtricks._core.checks import check_integer
from gradtricks._core.verdicts import CORRECT, INCONCLUSIVE, NOT_DIFFERENTIABLE, SURROGATE, WRONG
from suites import Domains, Row

AT = np.array([0.5, -1.3, 2.0])


def check(function, gradient, x, **options):
    """Check an elementwise function in NumPy; ``gradient(x)`` is what's claimed of its derivative."""
    with np.errstate(all="ignore"):
        return checking.compare_with_differences(
            function, lambda cotangent, x: [cotangent * gradient(x)], [np.asarray(x, float)], **options
        )


# What has a derivative


@pytest.mark.parametrize(
    ("function", "derivative", "x"),
    [
        (np.sin, np.cos, [0.5, 2.0, -1e3, 1e-5, 0.0]),
        (np.exp, np.exp, [-30.0, 0.0, 30.0]),
        (np.tanh, lambda x: 1 - np.tanh(x) ** 2, AT),
        (np.log, lambda x: 1 / x, [1e-10, 1e-3, 5.0, 1e8]),
        (lambda x: np.abs(x) ** 1.5, lambda x: 1.5 * np.abs(x) ** 0.5 * np.sign(x), [0.0, 1.0]),
        (lambda x: x**4, lambda x: 4 * x**3, [0.0, 1e-8, 3.0]),
        (lambda x: np.maximum(x, 0), lambda x: x > 0, [0.5, 1e-5, -1e-7]),
        (lambda x: np.sin(1e4 * x), lambda x: 1e4 * np.cos(1e4 * x), [0.3, 1.0]),
        (lambda x: np.sin(2048 * np.pi * x), lambda x: 2048 * np.pi * np.cos(2048 * np.pi * x), [0.3, 1.0]),
        (lambda x: x**2 + 1e6, lambda x: 2 * x, [0.3, 1.0]),
        (lambda x: (x + 1e8) - 1e8, np.ones_like, [0.3, 1.0]),
        (lambda x: 0 * x + 3, np.zeros_like, AT),
        (np.floor, np.zeros_like, [0.5, -1.3]),
    ],
)
def test_a_right_gradient_is_correct(function, derivative, x):
    report = check(function, derivative, x)
    assert report.verdict == CORRECT, str(report)
    assert report.relative_error < 1e-4
    wrong = check(function, lambda x: derivative(x) + 0.01 * (1 + np.abs(derivative(x))), x)
    assert wrong.verdict in (WRONG, SURROGATE), str(wrong)


@settings(max_examples=25)
@given(data=st.data(), size=st.sampled_from([0.1, 1.0, 30.0]))
def test_random_polynomials(backend, data, size):
    shape = data.draw(array_shapes(min_dims=0, max_dims=2, min_side=1, max_side=3))
    x, w = (data.draw(arrays(np.float64, shape, elements=st.floats(-size, size))) for _ in range(2))
    report = backend.tricks.check_gradient(
        lambda x, w: w * x**3 - 2 * x, [backend.tensor(x), backend.tensor(w)], num_samples=4
    )
    assert report.verdict == CORRECT, str(report)
    assert report.num_elements == 2 * x.size
    assert report.num_checked == min(4, 2 * x.size)


@pytest.mark.parametrize("factor", [1.0, 0.5, -1.0, 0.0])
@pytest.mark.parametrize("declared", [False, True])
def test_agrees_with_the_reference(backend, factor, declared):
    # The oracle takes complex steps, so it can contradict.
    def cube(x):
        return x**3 - x

    function = backend.declared(cube, lambda x: factor * (3 * x**2 - 1))
    options = {"surrogate": lambda x: 0.5 * cube(x)} if declared else {}
    report = backend.tricks.check_gradient(function, backend.tensor(AT), **options)
    assert report.verdict == reference.check_gradient(
        cube, lambda cotangent, x: [cotangent * factor * (3 * x**2 - 1)], [AT], **options
    )


def test_single_precision_inside_is_found(backend):
    def inside(x):
        narrow = backend.cast(x, "float32")
        return backend.cast(narrow * narrow * narrow, "float64")

    for function in (inside, lambda x: backend.cast(x, "float32") ** 3):
        report = backend.tricks.check_gradient(function, backend.tensor(AT))
        assert report.verdict == CORRECT, str(report)
        assert 1e-8 < report.noise < 1e-5
        wrong = backend.declared(function, lambda x: 3.1 * x**2)
        assert backend.tricks.check_gradient(wrong, backend.tensor(AT)).verdict == WRONG


def test_several_inputs_and_a_large_result(backend):
    random = np.random.default_rng(0)
    x, w = backend.tensor(random.normal(size=(30, 4))), backend.tensor(random.normal(size=(4, 5)))
    report = backend.tricks.check_gradient(lambda x, w: (x @ w) ** 2, (x, w))
    assert report.verdict == CORRECT, str(report)
    assert report.output_index is None
    assert (report.num_checked, report.num_elements) == (100, 140)
    assert sum(report.counts.values()) == 100 * 100
    assert "a sum of outputs" in str(report)


def test_one_wrong_element_among_many_is_found_and_named(backend):
    x = np.linspace(-1, 1, 12).reshape(3, 4)
    factor = np.ones((3, 4))
    factor[1, 2] = 1.001
    tensor = backend.tensor(factor)
    function = backend.declared(lambda x: x**3, lambda x: 3 * x**2 * tensor)
    report = backend.tricks.check_gradient(lambda a, b: a + function(b), [backend.tensor(x)] * 2)
    assert (report.verdict, report.input, report.index, report.output_index) == (WRONG, 1, (1, 2), (1, 2))
    np.testing.assert_allclose(report.relative_error, 0.001, rtol=0.01)
    assert report.counts[WRONG] == 1
    assert report.reason == "1 of 144 aren't the derivative of the function"


# What is wrong


@pytest.mark.parametrize(
    ("factor", "reason"), [(-1.0, "everywhere -1 times the derivative"), (0.0, "no gradient arrives")]
)
def test_a_common_factor_is_named(backend, factor, reason):
    function = backend.declared(lambda x: x**2, lambda x: factor * 2 * x)
    report = backend.tricks.check_gradient(function, backend.tensor(AT))
    assert report.verdict == WRONG
    assert reason in report.reason
    np.testing.assert_allclose(report.relative_error, abs(1 - factor), rtol=1e-6)


# What has no derivative


@pytest.mark.parametrize(
    ("function", "derivative", "x", "reason"),
    [
        (np.abs, np.sign, [0.5, 0.0], "to the left and to the right differ; the gradient lies"),
        (np.abs, lambda x: np.sign(x) + 2 * (x == 0), [0.5, 0.0], "the gradient does not lie between"),
        (lambda x: np.maximum(x, 0), lambda x: x > 0, [0.0], "slopes to the left and to the right differ"),
        (np.floor, np.zeros_like, [0.5, 2.0], "grows as 1/h, as at a jump"),
        (np.round, np.ones_like, [0.2, 1.5], "grows as 1/h, as at a jump"),
        (lambda x: (x == 2.0) * 1.0, np.zeros_like, [0.5, 2.0], "grows as 1/h, as at a jump"),
        (np.cbrt, lambda x: np.cbrt(x) / (3 * x), [1.0, 0.0], "grows without limit"),
        (np.sqrt, lambda x: 0.5 / np.sqrt(x), [1.0, 0.0], "the function is finite on one side only"),
        (np.log, lambda x: 1 / x, [1.0, -1.0], "the input or the value isn't finite"),
        (lambda x: x * np.inf, lambda x: x * np.inf, [1.0], "the input or the value isn't finite"),
    ],
)
def test_points_without_a_derivative(function, derivative, x, reason):
    report = check(function, derivative, x)
    assert report.verdict == NOT_DIFFERENTIABLE, str(report)
    assert reason in report.reason
    assert report.index == (len(x) - 1,) or report.output_index == (len(x) - 1,)


def test_slopes_on_both_sides_are_told():
    report = check(np.abs, np.sign, [0.0])
    np.testing.assert_allclose([report.left, report.right, report.numerical], [-1, 1, 0], atol=1e-12)
    assert np.isnan(report.relative_error)
    jump = check(np.floor, np.zeros_like, [2.0])
    assert (jump.left > 1e7, jump.right, jump.uncertainty) == (True, 0.0, np.inf)


@pytest.mark.parametrize(
    ("name", "extreme", "reason"),
    [
        # The gradient of the other output with respect to the zero is 0 / 0; that's no error of its own.
        ("sqrt", 0.0, "the function is finite on one side only"),
        *(("tanh", extreme, "the input or the value isn't finite") for extreme in (np.inf, -np.inf, np.nan)),
    ],
)
def test_only_one_element_is_without_a_derivative(backend, name, extreme, reason):
    report = backend.tricks.check_gradient(backend.operator(name), backend.tensor([0.5, extreme]))
    assert (report.verdict, report.reason) == (NOT_DIFFERENTIABLE, reason)
    assert 1 in report.index + report.output_index
    assert report.counts[CORRECT] >= 1
    assert WRONG not in report.counts


@pytest.mark.parametrize("size", [1e300, 1e-300])
def test_large_and_small_values(backend, size):
    report = backend.tricks.check_gradient(lambda x: x * size, backend.tensor(AT), atol=0.0)
    assert report.verdict == CORRECT, str(report)
    np.testing.assert_allclose(report.numerical, size, rtol=1e-9)


# What was declared


@pytest.mark.parametrize("levels", [1, 255, 1e4])
def test_a_staircase_with_a_gradient_is_a_surrogate(backend, levels):
    rounding = backend.framework.round
    function = backend.declared(lambda x: rounding(x * levels) / levels, lambda x: 1.0)
    x = backend.tensor(AT + 0.123456)
    report = backend.tricks.check_gradient(function, x)
    assert report.verdict == SURROGATE, str(report)
    assert (report.relative_error, report.numerical) == (1.0, 0.0)
    weighted = backend.tricks.check_gradient(lambda x, w: w * function(x), [x, x])
    assert (weighted.verdict, weighted.input) == (SURROGATE, 0)
    assert weighted.counts[SURROGATE] == 3
    assert WRONG not in weighted.counts


@pytest.mark.parametrize(("size", "verdicts"), [(1.0, {SURROGATE}), (0.03, {SURROGATE, CORRECT})])
def test_stairs_as_fine_as_rounding_noise_are_not_called_wrong(size, verdicts):
    # At some points the noise that is measured is that of the stairs, at others they are too wide for it.
    for seed in range(20):
        x = size * np.random.default_rng(seed).normal(size=3)
        report = check(lambda x: x.astype(np.float16).astype(float), np.ones_like, x, seed=seed)
        assert report.verdict in verdicts, str(report)


@pytest.mark.parametrize("name", ["scale", "reverse", "rounded"])
def test_a_declared_surrogate(backend, name):
    tricks, x = backend.tricks, backend.tensor(AT)
    rounding = backend.framework.round
    function, surrogate = {
        "scale": (lambda x: tricks.scale_gradient(x, 0.5) ** 2, lambda x: 0.5 * x**2),
        "reverse": (lambda x: tricks.reverse_gradient(x) ** 2, lambda x: -(x**2)),
        "rounded": (backend.declared(rounding, lambda x: 1.0), lambda x: x),
    }[name]
    report = tricks.check_gradient(function, x, surrogate=surrogate)
    assert report.verdict == SURROGATE, str(report)
    assert report.reason == "the gradient is the derivative of the declared surrogate"
    other = tricks.check_gradient(function, x, surrogate=lambda x: 3 * surrogate(x))
    assert other.verdict == WRONG
    assert "times the derivative of the declared surrogate" in other.reason
    kinked = tricks.check_gradient(function, x, surrogate=lambda x: abs(x - 2.0))
    assert kinked.verdict in (NOT_DIFFERENTIABLE, WRONG)


# What can't be said


def test_nothing_to_compare(backend):
    for function, x, size in [(lambda x: x * 2, np.zeros((2, 0)), 0), (lambda x: x[:0], np.ones(2), 2)]:
        report = backend.tricks.check_gradient(function, backend.tensor(x))
        assert (report.verdict, report.num_checked, report.num_elements) == (INCONCLUSIVE, 0, size)
        assert "nothing compared" in str(report)


def test_a_scalar_and_its_report(backend):
    report = backend.tricks.check_gradient(lambda x: x * x, backend.cast(backend.tensor(1.5), "float16"))
    assert report.noise < 1e-14  # inputs are widened
    assert str(report).splitlines()[:2] == [
        "correct: the gradient agrees with the differences",
        f"  at input 0 [], output []: analytic 3, numerical 3 ± {report.uncertainty:.1g}",
    ]
    assert str(report).endswith("1 correct; moved 1 of 1 elements")


@pytest.mark.parametrize(
    ("function", "gradient", "x", "verdict", "reason"),
    [
        # A rectifier is flat at each of these points, but not everywhere: a forgotten mask is no surrogate.
        (lambda x: np.maximum(x, 0), np.ones_like, [-0.5, -1e-5, -1.0], WRONG, "3 of 9"),
        (lambda x: np.max(x)[None], np.ones_like, [0.1, 0.7, -2.0], WRONG, "2 of 3 aren't the derivative"),
        # As are functions with a slope that is far away, or short.
        (lambda x: np.maximum(x - 10, 0), np.ones_like, AT, WRONG, "3 of 9 aren't the derivative"),
        (lambda x: np.clip(x, 0, 0.1), np.ones_like, AT, WRONG, "3 of 9 aren't the derivative"),
        (np.square, lambda x: np.where(x > 1, np.nan, 2 * x), AT, WRONG, "aren't the derivative of the"),
        # Where a staircase can't be told.
        (lambda x: np.where(np.abs(x - 0.5) < 0.2, 1.0, np.nan), np.ones_like, [0.5], WRONG, "1 of 1 aren't"),
        (lambda x: x.astype(np.float16).astype(float), np.ones_like, AT + 1e-4, SURROGATE, "flat wherever"),
        (lambda x: np.sin(1e9 * x), lambda x: 1e9 * np.cos(1e9 * x), [0.3, 1.0], INCONCLUSIVE, "too rough"),
        (lambda x: np.sin(x) + 1e3 * np.sin(1e12 * x), np.cos, [0.3], INCONCLUSIVE, "too rough"),
    ],
)
def test_what_is_wrong_or_can_not_be_said(function, gradient, x, verdict, reason):
    report = check(function, gradient, x)
    assert report.verdict == verdict, str(report)
    assert reason in report.reason


# Environments


def test_of_functions_that_differentiate_and_functions_that_a_compiler_made(backend):
    def halved(x):
        return backend.tricks.scale_gradient(x, 0.5) ** 2

    x = backend.tensor(AT)
    assert backend.tricks.check_gradient(backend.slope(lambda x: x**3), x).verdict == CORRECT
    report = backend.tricks.check_gradient(backend.compiled(halved), x, surrogate=lambda x: 0.5 * x**2)
    assert report.verdict == SURROGATE, str(report)
    assert backend.tricks.check_gradient(backend.tricks.standardize, x).verdict == CORRECT
    # An output that is cut off from its input.
    report = backend.tricks.check_gradient(lambda x: backend.tensor(backend.array(x) ** 2), x)
    assert (report.verdict, report.reason[:19]) == (WRONG, "no gradient arrives")


def test_switched_off_gradients_and_false_surrogates_count_in_torch(in_torch):
    torch, check_gradient = in_torch.framework, in_torch.tricks.check_gradient
    for without in (torch.no_grad, torch.inference_mode):
        with without():
            assert check_gradient(torch.sin, torch.tensor(AT)).verdict == CORRECT
    function = torch.func.vmap(torch.func.grad(lambda x: x**4))
    assert check_gradient(function, torch.tensor(AT)).verdict == CORRECT
    identity = torch.nn.Sequential()
    assert not identity
    report = check_gradient(torch.nn.ReLU(), torch.tensor(AT[AT > 0]), surrogate=identity)
    assert report.verdict == SURROGATE


def test_nothing_is_left_behind(backend):
    x = backend.tensor(AT)
    state, theirs = np.random.get_state()[1].copy(), backend.random_state()
    backend.tricks.check_gradient(lambda x: x * x, x)
    np.testing.assert_array_equal(np.random.get_state()[1], state)
    np.testing.assert_array_equal(backend.random_state(), theirs)
    np.testing.assert_array_equal(backend.array(x), AT)
    assert not getattr(x, "requires_grad", False)


def test_variables_and_layers_in_tensorflow(in_tensorflow):
    tf, tricks = in_tensorflow.framework, in_tensorflow.tricks
    keras = tf.keras
    variable = tf.Variable(AT)
    assert tricks.check_gradient(tf.sin, [variable]).verdict == CORRECT
    # A layer casts what it is given to its own dtype: float32.
    report = tricks.check_gradient(keras.layers.Dense(2, "tanh"), tf.constant(AT[None]))
    assert report.verdict == CORRECT, str(report)
    assert report.noise > 1e-8
    assert tricks.check_gradient(keras.layers.Dense(2, dtype="float64"), tf.constant(AT[None])).noise < 1e-14
    with pytest.raises(TypeError, match="function must return float32 or float64; got bfloat16; remedy"):
        tricks.check_gradient(keras.layers.Dense(2, dtype="mixed_bfloat16"), tf.constant(AT[None]))
    with pytest.raises(TypeError, match=r"function must accept float64; got .*; remedy"):
        tricks.check_gradient(lambda x: x @ tf.ones((3, 2)), tf.constant(AT[None]))


def test_modules_in_torch(in_torch):
    torch, tricks = in_torch.framework, in_torch.tricks
    layer, x = torch.nn.Linear(3, 2), torch.tensor(AT[None])
    with pytest.raises(TypeError, match="function must accept float64; got RuntimeError from it; remedy"):
        tricks.check_gradient(layer, x)
    assert tricks.check_gradient(layer.double(), x.float()).verdict == CORRECT
    assert layer.weight.grad is None
    refused = pytest.raises(TypeError, match=r"function must return float32 or float64; got torch\.bfloat16")
    with torch.autocast("cpu", torch.bfloat16), refused:
        tricks.check_gradient(lambda x: layer.float()(x.float()), x)
    with pytest.raises(ZeroDivisionError):
        tricks.check_gradient(lambda x: x * (1 // 0), x)


# Errors


class TestArguments(Domains):
    given = {"inputs": floating(), "rtol": number(0), "atol": number(0), "num_samples": integer(1)}
    rows = (Row("check_gradient", lambda *_: [abs, np.ones(1)], 0, domains=given | {"seed": integer(0)}),)


@pytest.mark.parametrize(
    ("inputs", "function", "options", "error", "message"),
    [
        ([1j, 2], "square", {}, TypeError, "inputs must be floating-point; got"),
        ("foreign", "square", {}, TypeError, "inputs must be a .*Tensor; got ForeignTensor; remedy"),
        ("list", "square", {}, TypeError, r"inputs\[1\] must be a .*Tensor; got ndarray; remedy"),
        ([1.0], "pair", {}, TypeError, "function must return one tensor; got tuple; remedy"),
        ([1.0], "number", {}, TypeError, "function's result must be a .*Tensor; got float"),
        ([1.0], "noise", {}, ValueError, "the same result each time; got two that differ"),
        ([1.0], "square", {"surrogate": lambda x: x[:0]}, ValueError, r"surrogate must return the shape of"),
        (
            [1.0],
            "twice",
            {},
            ValueError,
            r"function must return one shape.*; got \(2,\) and \(1,\); remedy: ",
        ),
        ([0.0, 2.0], "some", {}, ValueError, r"function must return one shape.*; got \(1,\) and \(2,\)"),
    ],
)
def test_bad_input_says_what_is_expected(backend, inputs, function, options, error, message):
    random = np.random.default_rng(0)
    functions = {
        "square": lambda *x: x[0] ** 2,
        "pair": lambda x: (x, x),
        "number": lambda x: 1.0,
        "noise": lambda x: x + random.normal(),
        "twice": lambda x: backend.joined(x, x) if np.all(backend.array(x) >= 1) else x,
        "some": lambda x: x[x > 0],
    }
    if isinstance(inputs, str):
        given = {"list": [backend.tensor([1.0]), np.ones(2)], "foreign": ForeignTensor()}
        inputs = given[inputs]
    else:
        inputs = backend.tensor(inputs)
    with pytest.raises(error, match=message):
        backend.tricks.check_gradient(functions[function], inputs, **options)


def test_a_negative_bit_is_resolved_in_torch(in_torch):
    x = in_torch.tensor(np.array([1.0, 2.0, 4.0]))
    assert in_torch.tricks.check_gradient(lambda x: (x + 1j * x).conj().imag, x).verdict == "correct"


def test_where_torch_transforms_or_tensorflow_traces_it_is_refused(backend):
    with pytest.raises(RuntimeError, match="check_gradient must run eagerly"):
        backend.traced(lambda x: backend.tricks.check_gradient(lambda x: x, x), [1.0])


def test_an_integer_beyond_its_bounds_is_refused():
    with pytest.raises(ValueError, match=r"^steps must lie in \[1, 3\]; got 4$"):
        check_integer("steps", 4, low=1, high=3)
