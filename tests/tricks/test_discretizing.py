"""Steps with a gradient: straight through, soft, and with ramps."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from agreeing import assert_agrees, assert_close, assert_refused
from domains import ARRAY, BROADCAST, flag, floating, integer, number
from gradtricks import reference
from suites import Row, Substitute, Suite, halves

# TensorFlow's arithmetic takes subnormal numbers for 0.
NUMBERS = st.floats(-99, 99, allow_subnormal=False)
X = {"x": floating()}


def steps(low, high):
    """Return how to draw numbers, off the stairs' edges, and an option between two bounds."""
    return lambda random, shape: [20 * random.normal(size=shape), random.uniform(low, high)]


def at_halves(random, shape):
    return [halves(random, shape)]


class TestSteps(Substitute):
    rows = (
        Row("floor_straight_through", at_halves, domains=X),
        Row("round_straight_through", at_halves, domains=X),
        Row("soft_floor", steps(0.05, 3.0), domains=X | {"temperature": number(1e-30, tensor=BROADCAST)}),
        Row("soft_floor", steps(0.01, 0.24)),
        Row(
            "piecewise_linear_floor",
            steps(0.01, 1.0),
            domains=X | {"width": number(1e-30, 1, tensor=BROADCAST)},
        ),
        Row(
            "fake_quantize",
            lambda random, shape: [20 * random.normal(size=shape), random.uniform(0.1, 3.0), -4, 3],
            domains=X | {"scale": number(1e-30), "quant_max": integer(1), "normalize": flag},
        ),
    )


def scaled(random, shape):
    """Draw numbers, and scales of either sign, some of them 0, that broadcast to them."""
    lengths = [length if random.random() < 0.5 else 1 for length in shape[random.integers(len(shape) + 1) :]]
    scale = random.normal(size=lengths) * random.integers(0, 4, lengths)
    return [4 * random.normal(size=shape), scale, -2, 1]


class TestLearnedScales(Suite):
    rows = tuple(
        Row(
            "fake_quantize",
            scaled,
            inputs=2,
            of_gradient={"normalize": normalize},
            domains={"scale": number(1e-30, tensor=BROADCAST)},
        )
        for normalize in (True, False)
    )


def shaped(elements):
    """Return float64 arrays of all small shapes, 0-d and empty ones too."""
    return arrays(np.float64, array_shapes(min_dims=0, max_dims=3, min_side=0), elements=elements)


@given(x=shaped(NUMBERS))
def test_straight_through_agrees_with_the_reference(backend, x):
    cotangent = np.arange(x.size, dtype=float).reshape(x.shape) - 1.5
    hard = np.where(x > 1, np.inf, -x)
    value, gradients = backend.value_and_vjp(
        lambda h, s: backend.tricks.straight_through(h, s) + 0 * h, [-x, x], cotangent
    )
    np.testing.assert_array_equal(value, reference.straight_through(-x, x))
    np.testing.assert_array_equal(gradients, reference.straight_through_vjp(cotangent, -x, x))
    value, _ = backend.value_and_vjp(
        lambda s: backend.tricks.straight_through(backend.tensor(hard), s), [x], cotangent
    )
    np.testing.assert_array_equal(value, hard)


@pytest.mark.parametrize(("hard", "expected"), [("bool", "float32"), ("bfloat16", "bfloat16")])
def test_dtypes_may_differ(backend, hard, expected):
    hard = backend.cast(backend.tensor([0.0, 1.0]), hard)

    def function(t):
        value = backend.tricks.straight_through(hard, backend.cast(t, "float32"))
        assert expected in str(value.dtype)
        return value

    value, (gradient,) = backend.value_and_vjp(function, [np.array([0.3, np.nan])], np.array([2.0, 4.0]))
    np.testing.assert_array_equal(value, [0.0, 1.0])
    np.testing.assert_array_equal(gradient, [2.0, 4.0])
    assert reference.straight_through([False, True], [0.3, 0.4]).dtype == np.float64


@pytest.mark.parametrize("temperature", [1e-30, 1e-3])
def test_a_cold_soft_floor_is_the_floor_off_the_integers(backend, temperature):
    x = np.linspace(-3.95, 3.95, 80)
    value = backend.tricks.soft_floor(backend.tensor([*x, 2.0]), temperature)
    np.testing.assert_allclose(backend.array(value), [*np.floor(x), 1.5], rtol=0, atol=1e-20)


def test_a_soft_floor_takes_twice_the_operations_of_its_line(in_torch):
    from devices_torch import calls_of

    torch, x = in_torch.framework, in_torch.framework.ones(4, device="meta", requires_grad=True)
    ours, line = (
        calls_of(lambda y=y: torch.autograd.grad(y(), x, torch.ones_like(x)))
        for y in (
            lambda: in_torch.tricks.soft_floor(x, 0.05),
            lambda: x.detach().floor() + torch.sigmoid((x - x.detach().floor() - 0.5) / 0.05),
        )
    )
    made = ["aten.promote_types.default", "aten.ones_like.default"]  # of dtypes, and the tests' own
    counts = [sum(name not in made for name in names) for names in (ours, line)]
    assert counts[0] <= 2 * counts[1]


@pytest.mark.parametrize("temperature", [0.05, 0.2, 1.0])
def test_a_soft_floor_is_differentiated_again(in_torch, temperature):
    torch = in_torch.framework
    x = torch.linspace(-1.3, 1.3, 12, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: in_torch.tricks.soft_floor(x, temperature), x)


def test_sigmoids_and_waves_meet(backend):
    x = backend.tensor(np.linspace(-2, 2, 41))
    below, above = (backend.tricks.soft_floor(x, 0.25 + shift) for shift in (-1e-15, 0.0))
    np.testing.assert_allclose(backend.array(below), backend.array(above), atol=1e-13)


@pytest.mark.parametrize("width", [1e-7, 2e-6, 1e-3, 0.6])
def test_a_narrow_ramp_keeps_its_shape_in_float32(backend, width):
    # 1 - width has few digits left of a narrow width.
    x = (1 - width * np.array([1.5, 0.75, 0.5, 0.25])).astype(np.float32)
    x = np.concatenate([x, np.float32([-1e-30, 1.0])])
    value = backend.array(backend.tricks.piecewise_linear_floor(backend.tensor(x), width))
    expected = reference.piecewise_linear_floor(x.astype(np.float64), width)
    np.testing.assert_allclose(value, expected, atol=1e-6)
    assert (np.diff(value[[0, 1, 2, 3, 5]]) >= 0).all()


def test_the_optimizer_of_graphs_keeps_a_narrow_ramp(in_tensorflow):
    tf, x = in_tensorflow.framework, np.float32([1 - 6e-8])
    ramp = tf.function(lambda x: in_tensorflow.tricks.piecewise_linear_floor(x, 1e-6), autograph=False)
    expected = reference.piecewise_linear_floor(x.astype(np.float64), 1e-6)
    np.testing.assert_allclose(ramp(tf.constant(x)), expected, rtol=1e-6)


@pytest.mark.parametrize("name", ["soft_floor", "piecewise_linear_floor"])
def test_narrow_steps_keep_their_shape_around_0(backend, name):
    # Little of such an x is left in its distance to -1.
    x, width = np.array([-3e-20, -1e-20, -5e-21, 5e-21]), 1e-20
    expected, slopes = np.array([-1, -1, -0.5, 0]), np.array([0, 1, 1, 0])
    if name == "soft_floor":
        rise = 1 / (1 + np.exp(-x / width))
        expected, slopes = rise - 1, rise * (1 - rise)
    assert_agrees(backend, name, [x], np.ones(4), width)
    value, (gradient,) = backend.value_and_vjp(
        lambda t: getattr(backend.tricks, name)(t, width), [x], np.full(4, width)
    )
    assert_close([value, gradient], [expected, slopes])


@pytest.mark.parametrize(
    ("name", "option", "x", "expected", "slopes"),
    [
        # Values that aren't finite stay, with a slope of 0.
        ("soft_floor", 0.5, [np.inf, -np.inf, np.nan], [np.inf, -np.inf, np.nan], [0, 0, 0]),
        ("piecewise_linear_floor", 0.5, [np.inf, -np.inf, np.nan], [np.inf, -np.inf, np.nan], [0, 0, 0]),
        # Where floats are whole numbers there is no fraction left; the half is rounded.
        ("soft_floor", 0.1, [2.0**54, -3e300], [2.0**54, -3e300], [2.5, 2.5]),
        ("soft_floor", 1e6, [-4, 0.25, 4], [-4.5, -0.25, 3.5], [1, 1, 1]),
        ("piecewise_linear_floor", 1.0, [-3, -0.25, 0.5], [-3, -0.25, 0.5], [1, 1, 1]),
        ("piecewise_linear_floor", 0.25, [-2, 0.5, -0.4], [-2, 0, -1], [0, 0, 0]),
        ("piecewise_linear_floor", 0.25, [2.0**53, 1e300], [2.0**53, 1e300], [0, 0]),
    ],
)
def test_floors_at_their_extremes(backend, name, option, x, expected, slopes):
    value, (gradient,) = backend.value_and_vjp(
        lambda t: getattr(backend.tricks, name)(t, option), [np.float64(x)], np.ones(len(x))
    )
    np.testing.assert_allclose(value, expected, atol=1e-12)
    np.testing.assert_allclose(gradient, slopes, rtol=1e-3)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_unknown_shapes_are_checked_at_run_in_tensorflow(in_tensorflow, jit_compile):
    tf = in_tensorflow.framework
    function = tf.function(
        lambda hard, soft: in_tensorflow.tricks.straight_through(hard, soft),
        input_signature=[tf.TensorSpec([None], tf.float32)] * 2,
        jit_compile=jit_compile,
        autograph=False,  # whose copies of functions aren't traced for coverage
    )
    assert function(tf.ones(2), tf.ones(2)).shape == (2,)
    with pytest.raises(tf.errors.InvalidArgumentError):
        function(tf.ones(2), tf.ones(1))


@pytest.mark.parametrize(
    ("name", "option"), [("soft_floor", [0.1, 0.1, 0.7, 1e-30, 0.3]), ("piecewise_linear_floor", 0.25)]
)
def test_an_option_may_be_a_tensor(backend, name, option):
    x, cotangent = np.array([1.3, -2.6, 0.9, 0.45, np.inf]), np.arange(5.0)
    each = zip(cotangent, x, np.broadcast_to(option, x.shape))
    rule, vjp = getattr(reference, name), getattr(reference, f"{name}_vjp")
    expected, slopes = np.transpose([(rule(x, o), vjp(c, x, o)) for c, x, o in each])

    def function(t, o):
        return getattr(backend.tricks, name)(t, o) + 0 * o

    for call in (function, backend.compiled(function)):
        value, (gradient, unused) = backend.value_and_vjp(call, [x, np.array(option)], cotangent)
        assert_close([value, gradient], [expected, slopes], atol=1e-300)
        assert not np.any(unused)


# At and around the bounds of -2 and 1, a half beyond the level of each too.
AROUND = np.array([-2.4, -2.0, -1.6, 0.0, 0.6, 1.0, 1.25, 7.0])


def test_what_is_at_a_bound_of_the_range_still_learns(backend):
    ones, options = np.ones(8), {"normalize": False}
    value, (passed, of_scale) = backend.value_and_vjp(
        lambda x, s: backend.tricks.fake_quantize(x, s, -2, 1, **options), [AROUND / 2, np.full(8, 0.5)], ones
    )
    np.testing.assert_array_equal(value, [-1, -1, -1, 0, 0.5, 0.5, 0.5, 0.5])
    np.testing.assert_array_equal(passed, [0, 1, 1, 1, 1, 1, 0, 0])
    np.testing.assert_allclose(of_scale, [-2, 0, -0.4, 0, 0.4, 0, 1, 1], atol=1e-15)


@pytest.mark.parametrize("normalize", [True, False])
def test_common_ways_reach_the_scale_too(common, normalize):
    scale = np.array([[0.5], [1.7]])
    x, cotangent = np.stack([AROUND, AROUND]) * scale, np.arange(16.0).reshape(2, 8)
    value, gradients = common.value_and_vjp(
        lambda x, s: common.tricks.fake_quantize(x, s, -2, 1, normalize=normalize), [x, scale], cotangent
    )
    expected = reference.fake_quantize_vjp(cotangent, x, scale, -2, 1, normalize=normalize)
    assert_close([value, *gradients], [reference.fake_quantize(x, scale, -2, 1), *expected])


def test_nan_stays_and_spoils_its_own_scale_alone(backend):
    x, scale = np.array([[np.nan, 0.2], [np.inf, 0.2]]), np.array([[0.5], [0.5]])
    value, (passed, of_scale) = backend.value_and_vjp(
        lambda x, s: backend.tricks.fake_quantize(x, s, -2, 1), [x, scale], np.ones((2, 2))
    )
    np.testing.assert_array_equal(value, [[np.nan, 0], [0.5, 0]])
    np.testing.assert_array_equal(passed, [[0, 1], [0, 1]])
    np.testing.assert_allclose(of_scale, [[np.nan], [0.6 / np.sqrt(2)]])


@pytest.mark.parametrize(
    ("lowest", "error", "message"),
    [
        (-2.0, TypeError, "quant_min must be an integer; got float"),
        (1, ValueError, r"quant_min must lie in \[-2147483648, 0\]; got 1"),
    ],
)
def test_a_range_without_0_is_refused(backend, lowest, error, message):
    assert_refused(backend, "fake_quantize", (ONE, 0.5, lowest, 1), {}, error, message)


ONE, TWO = np.ones(1), np.ones(2)


@pytest.mark.parametrize(
    ("hard", "soft", "error", "message"),
    [
        (ARRAY, ONE, TypeError, "hard must be a .*Tensor; got ndarray; remedy"),
        (ONE, np.ones(1, int), TypeError, "soft must be floating-point; got"),
        (1j * ONE, ONE, TypeError, "hard must be real; got .*complex128; remedy"),
        (ONE, TWO, ValueError, r"hard must have the shape of soft, \(2,\); got \(1,\)"),
    ],
)
def test_straight_through_refuses_what_does_not_fit(backend, hard, soft, error, message):
    assert_refused(backend, "straight_through", (hard, soft), {}, error, message)
