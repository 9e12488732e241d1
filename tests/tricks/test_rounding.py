"""Weights of 16 bits: unbiased rounding, and sums that carry their rounding errors on."""

import importlib

import numpy as np
import pytest

from agreeing import as_given
from domains import floating
from suites import Row, Step, Suite

HALVES = ["bfloat16", "float16"]
DIGITS = {"bfloat16": 8, "float16": 11}
LARGEST = {"bfloat16": (2 - 2.0**-7) * 2.0**127, "float16": 65504.0}


def dtype_of(tricks, name):
    """Return a dtype of the framework that these tricks are of."""
    return getattr(importlib.import_module(tricks.__name__.rpartition(".")[2]), name)


class Rounding(Row):
    """A row of the reference's name of a dtype, for which each framework has an object."""

    def cotangent(self, arguments):
        """Return numbers that have 8 digits, since the gradient of 16 bits comes in 16 bits."""
        return np.arange(arguments[0].size).reshape(arguments[0].shape) % 16 - 7.0

    def calls(self, tricks):
        dtype = dtype_of(tricks, self.options["dtype"])
        return lambda x, noise: tricks.round_stochastically(x, noise, dtype)


def weights_and_noise(random, shape):
    return [random.normal(size=shape) * 10.0 ** random.integers(-9, 4, shape), random.uniform(size=shape)]


class TestRounding(Suite):
    rows = tuple(
        Rounding("round_stochastically", weights_and_noise, tensors=2, options={"dtype": dtype})
        for dtype in HALVES
    )

    def test_wrong_values_are_refused_by_name(self, backend, row):
        dtype = dtype_of(backend.tricks, row.options["dtype"])
        given = {"x": np.ones((2, 3)), "noise": np.ones((2, 3))}
        for name, domain in {"x": floating(), "noise": floating("x")}.items():
            for value, error, message in domain(name):
                with pytest.raises(error, match=message):
                    backend.tricks.round_stochastically(
                        **as_given(backend, given | {name: value}), dtype=dtype
                    )


def sums(random, shape):
    return [random.normal(size=shape), 1e-3 * random.normal(size=shape), 1e-9 * random.normal(size=shape)]


def first(pair):
    return pair[0]


class TestCompensated(Step):
    rows = (
        Row(
            "add_compensated",
            sums,
            3,
            domains={
                "weights": floating(),
                "update": floating("weights"),
                "compensation": floating("weights"),
            },
            widens=False,
            part=first,
        ),
    )


@pytest.mark.parametrize("dtype", ["float64", "float32", "int16"])
def test_rounding_to_another_dtype_is_refused(backend, dtype):
    x = backend.tensor(np.ones(2))
    with pytest.raises(ValueError, match="dtype must be one of .*bfloat16.*, .*float16.*; got .*" + dtype):
        backend.tricks.round_stochastically(x, x, dtype_of(backend.tricks, dtype))


@pytest.mark.parametrize("dtype", HALVES)
def test_noise_with_too_few_values_is_refused(backend, dtype):
    x = backend.tensor(np.ones(2))
    with pytest.raises(TypeError, match=f"noise must be float32 or float64, since .*{dtype} has .*; remedy"):
        backend.tricks.round_stochastically(x, backend.cast(x, dtype), dtype_of(backend.tricks, dtype))


def rounded(backend, x, noise, dtype):
    """Return what a framework makes of arrays, in float32, which has all numbers of 16 bits."""
    tensors = map(backend.tensor, (x, noise))
    return backend.array(backend.tricks.round_stochastically(*tensors, dtype_of(backend.tricks, dtype)))


@pytest.mark.parametrize("wide", [np.float32, np.float64])
@pytest.mark.parametrize("dtype", HALVES)
def test_the_mean_over_all_noise_is_exactly_the_number(backend, dtype, wide):
    random, steps = np.random.default_rng(0), 2 ** (24 - DIGITS[dtype])
    gap = 2.0 ** (1 - DIGITS[dtype]) * np.array([1.0, 0.25, 64.0])
    # Every share of a gap that float32 has, in three gaps, on both sides of 0.
    crossed = np.concatenate([[0, 1, steps // 2, steps - 1], random.integers(0, steps, 4)])
    low = np.array([1.0, 0.25, 64.0]) * (1 + np.array([0, 5, 2 ** (DIGITS[dtype] - 1) - 1]) * gap[0])
    x = (low[:, None] + gap[:, None] * crossed / steps)[..., None] * np.array([1, -1])
    noise = np.arange(steps, dtype=wide) / steps
    values = rounded(backend, *np.broadcast_arrays(x.astype(wide)[..., None], noise), dtype).astype(float)
    np.testing.assert_array_equal(values.mean(-1), x)
    variance = gap[:, None] ** 2 * crossed * (steps - crossed) / steps**2
    np.testing.assert_allclose(values.var(-1), variance[..., None] * np.ones(2), rtol=1e-12)
    sides = np.abs(values)
    assert ((sides == low[:, None, None, None]) | (sides == (low + gap)[:, None, None, None])).all()


@pytest.mark.parametrize("dtype", HALVES)
def test_every_number_of_the_dtype_stays_bit_for_bit(backend, dtype):
    bits = backend.tensor(np.arange(-(2**15), 2**15, dtype=np.int16))
    for noise in (0.0, 1 - 2.0**-24):
        x = backend.bits_as(bits, dtype)
        given = backend.cast(x, "float32")
        noises = backend.tensor(np.full(2**16, noise, np.float32))
        y = backend.tricks.round_stochastically(given, noises, x.dtype)
        expected = backend.array(backend.cast(given, dtype))
        assert y.dtype == x.dtype
        np.testing.assert_array_equal(backend.array(y), expected)
        np.testing.assert_array_equal(np.signbit(backend.array(y)), np.signbit(expected))


@pytest.mark.parametrize("noise", [0.0, 0.999])
@pytest.mark.parametrize("dtype", HALVES)
def test_numbers_without_two_neighbours_are_rounded_to_nearest(backend, dtype, noise):
    largest = LARGEST[dtype]
    beyond = largest * (1 + np.array([2.0**-13, 2.0**-8]))
    x = np.array([np.inf, np.nan, 0.0, largest, *beyond, 1e300])
    x = np.concatenate([x, -x])
    expected = np.array([np.inf, np.nan, 0.0, largest, largest, np.inf, np.inf])
    y = rounded(backend, x, np.full(x.shape, noise), dtype)
    np.testing.assert_array_equal(y, np.concatenate([expected, -expected]))
    seen = ~np.isnan(x)
    np.testing.assert_array_equal(np.signbit(y)[seen], np.signbit(x)[seen])


def test_subnormal_numbers_of_float16_have_neighbours_too(backend):
    smallest = 2.0**-24
    x = smallest * np.array([0.25, -0.25, 0.75, 3.5, 1e-30])
    low, high = (rounded(backend, x, np.full(5, noise), "float16") / smallest for noise in (0.9, 0.2))
    assert low.tolist() == [0, -0.0, 0, 3, 0]
    assert high.tolist() == [1, -1, 1, 4, 0]


@pytest.mark.parametrize("wide", ["float16", "bfloat16", "float32", "float64"])
def test_the_gradient_passes_in_the_dtype_of_the_weights(backend, wide):
    dtype = dtype_of(backend.tricks, "bfloat16")

    def function(x):
        y = backend.tricks.round_stochastically(backend.cast(x, wide), 0 * x, dtype)
        assert y.dtype == dtype
        return y

    _, (gradient,) = backend.value_and_vjp(function, [np.array([1.001, -3.0])], np.array([0.5, -2.0]))
    assert gradient.tolist() == [0.5, -2]


@pytest.mark.parametrize("dtype", HALVES)
def test_a_step_below_half_a_gap_is_lost_or_arrives(backend, dtype):
    step, count = 2.0 ** -(DIGITS[dtype] + 3), 256  # an eighth of half the gap above 1
    weights = nearest = backend.cast(backend.tensor(np.ones(4)), dtype)
    rest, update = backend.cast(0 * weights, dtype), backend.tensor(np.full(4, step, np.float32))
    for _ in range(count):
        nearest = backend.cast(backend.cast(nearest, "float32") + update, dtype)
        weights, rest = backend.tricks.add_compensated(weights, update, rest)
        assert weights.dtype == rest.dtype == nearest.dtype
    assert backend.array(nearest).tolist() == [1] * 4
    np.testing.assert_array_equal(backend.array(weights) + backend.array(rest), 1 + count * step)


@pytest.mark.parametrize("dtype", ["float32", *HALVES])
def test_a_thousand_steps_err_by_half_a_gap_at_most(backend, dtype):
    updates = 1e-3 * np.random.default_rng(0).normal(size=(1000, 8)).astype(np.float32)
    weights = backend.cast(backend.tensor(np.ones(8)), dtype)
    rest = 0 * weights
    for update in updates:
        weights, rest = backend.tricks.add_compensated(weights, backend.tensor(update), rest)
    error = backend.array(weights) - (1 + updates.astype(float).sum(0))
    assert np.abs(error).max() < 1.01 * 2.0 ** -({"float32": 24} | DIGITS)[dtype]


def test_weights_that_arent_finite_have_no_compensation(backend):
    x, zero = np.array([np.inf, -np.inf, np.nan, 3e38], np.float32), np.zeros(4, np.float32)
    weights, rest = map(backend.cast, map(backend.tensor, (x, zero)), HALVES[:1] * 2)
    for _ in range(2):
        weights, rest = backend.tricks.add_compensated(weights, backend.tensor(x), rest)
        np.testing.assert_array_equal(backend.array(weights), [np.inf, -np.inf, np.nan, np.inf])
        assert backend.array(rest).tolist() == [0] * 4


def test_compiled_sums_keep_their_rest(backend):
    arrays = np.ones(4, np.float32), np.full(4, 1e-9, np.float32), np.zeros(4, np.float32)
    _, rest = backend.compiled(backend.tricks.add_compensated)(*map(backend.tensor, arrays))
    np.testing.assert_array_equal(backend.array(rest), arrays[1])


@pytest.mark.parametrize("dtype", HALVES)
def test_compiled_rounding_is_the_same(backend, dtype):
    x, noise = weights_and_noise(np.random.default_rng(0), 100)
    given = [backend.tensor(array.astype(np.float32)) for array in (x, noise)]
    half = dtype_of(backend.tricks, dtype)

    def function(x, noise):
        return backend.tricks.round_stochastically(x, noise, half)

    expected = backend.array(function(*given))
    np.testing.assert_array_equal(backend.array(backend.compiled(function)(*given)), expected)
