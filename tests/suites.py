"""One suite of tests for each shape of trick; a stem's file says by rows which tricks it has.

    class TestEdits(Edit):
        rows = [Row("scale_gradient", lambda random, shape: [random.normal(size=shape), 0.5], ...)]

Every row takes every test of its suite, in each framework; cases and identities of a trick stand in its file.
"""

import inspect
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pytest

from agreeing import as_given, assert_agrees_twice, assert_close, assert_each_agrees
from gradtricks import reference

SHAPE = (2, 3)
DTYPES = ["float16", "bfloat16", "float32", "float64"]
ROUNDING = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-5, "float64": 1e-12}
EXTREMES = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e300, -3e38, 1.0])


@dataclass(frozen=True)
class Row:
    """One trick with one choice of its options."""

    name: str
    draw: object  # draw(random, shape) returns its positional arguments
    inputs: int = 1  # so many of them get a gradient
    tensors: int = 0  # so many are tensors, if there are more than inputs
    options: dict = field(default_factory=dict)
    of_gradient: dict = field(default_factory=dict)  # options that change nothing but the gradient
    of_frameworks: dict = field(default_factory=dict)  # options that the reference doesn't have
    domains: dict = field(default_factory=dict)  # of its arguments, by name
    ranks: tuple = (0, 3)  # the fewest and the most axes that are drawn
    empties: bool = True
    rtol: float = 1e-10
    atol: float = 1e-10
    widens: bool = True  # a loss in half precision comes out in float32
    part: object = staticmethod(lambda value: value)  # of what it returns, which has the gradients

    def __str__(self):
        options = self.options | self.of_gradient
        return "-".join([self.name, *(f"{name}={value}" for name, value in options.items())])

    def example(self, shape=SHAPE, random=None):
        """Return arguments of a shape: arrays, then numbers and functions."""
        drawn = self.draw(random or np.random.default_rng(0), shape)
        count = max(self.inputs, self.tensors)
        others = [x.item() if isinstance(x, np.generic) else x for x in drawn[count:]]
        return [*map(np.asarray, drawn[:count]), *others]

    def drawn(self, seed):
        """Return arguments of a shape drawn by a seed."""
        random = np.random.default_rng(seed)
        rank = random.integers(self.ranks[0], self.ranks[1], endpoint=True)
        fewest = 0 if self.empties and seed % 5 == 0 else 1
        return self.example(tuple(random.integers(fewest, 5, rank)), random)

    def cotangent(self, arguments):
        """Return a cotangent for the value of these arguments."""
        shape = np.shape(self.expected(arguments))
        return 1.0 + np.cos(np.arange(np.prod(shape, dtype=int)), dtype=float).reshape(shape)

    def expected(self, arguments):
        """Return the value of the reference."""
        with np.errstate(all="ignore"):
            return self.part(getattr(reference, self.name)(*arguments, **self.options))

    def slopes(self, cotangent, arguments):
        """Return the gradients of the reference."""
        vjp, options = getattr(reference, f"{self.name}_vjp"), self.options | self.of_gradient
        with np.errstate(all="ignore"):
            slopes = vjp(cotangent, *arguments, **options)
        return slopes[: self.inputs] if isinstance(slopes, tuple) else [slopes]

    def calls(self, tricks):
        """Return the trick as a function of its arguments."""
        options = self.options | self.of_gradient | self.of_frameworks
        trick = getattr(tricks, self.name)
        return lambda *args, **named: self.part(trick(*args, **options | named))

    def assert_agrees(self, way, arguments, **tolerances):
        """Compare the value and the gradients with those of the reference."""
        inputs, others = arguments[: self.inputs], arguments[self.inputs :]
        others, trick = as_given(getattr(way, "backend", way), others), self.calls(way.tricks)
        cotangent = self.cotangent(arguments)
        value, gradients = way.value_and_vjp(lambda *x: trick(*x, *others), inputs, cotangent)
        expected = [self.expected(arguments), *self.slopes(cotangent, arguments)]
        assert_close([value, *gradients], expected, **{"rtol": self.rtol, "atol": self.atol} | tolerances)


class Domains:
    """Refuse wrong values."""

    rows = ()

    def test_wrong_values_are_refused_by_name(self, backend, row):
        trick, options = getattr(backend.tricks, row.name), row.options | row.of_gradient | row.of_frameworks
        bound = inspect.signature(trick).bind(*row.example(), **options).arguments
        for name, domain in row.domains.items():
            for value, error, message in domain(name):
                with pytest.raises(error, match=message):
                    trick(**as_given(backend, bound | {name: value}))


class Suite(Domains):
    """Agree with the reference; for every shape of trick."""

    def test_values_and_gradients_are_those_of_the_reference(self, backend, row):
        for seed in range(30):
            row.assert_agrees(backend, row.drawn(seed))

    def test_a_graph_agrees_with_the_reference(self, backend, row):
        row.assert_agrees(Way(backend, backend.graph_value_and_vjp), row.example())

    def test_shapes_unknown_until_run_in_tensorflow(self, in_tensorflow, row):
        tf, expected = in_tensorflow.framework, row.expected(row.example())
        called, arrays = of_arrays(row.calls(in_tensorflow.tricks), row.example())
        shapes = [[None] * array.ndim for array in arrays]
        # Lengths are taken; of each tensor in turn the rank is taken too, or asked for.
        for unknown in (None, *range(len(arrays))):
            given = [None if place == unknown else shape for place, shape in enumerate(shapes)]
            signature = [tf.TensorSpec(shape, array.dtype) for shape, array in zip(given, arrays)]
            try:
                found = tf.function(called, signature, autograph=False)(*map(tf.constant, arrays))
            except ValueError as error:
                assert unknown is not None
                assert "known rank; got " in str(error)  # noqa: PT017 (others are computed)
            else:
                np.testing.assert_allclose(found, expected, rtol=row.rtol, atol=row.atol)

    def test_data_stays_on_its_device_in_torch(self, in_torch, row):
        from devices_torch import on_a_device

        called, arrays = of_arrays(row.calls(in_torch.tricks), row.example())
        on_a_device(called, arrays, row.inputs)

    def test_data_stays_on_its_device_in_tensorflow(self, in_tensorflow, row):
        from devices_tensorflow import on_a_device

        row.assert_agrees(Way(in_tensorflow, partial(on_a_device, in_tensorflow)), row.example())

    def test_xla_agrees_with_the_reference_in_tensorflow(self, in_tensorflow, row):
        row.assert_agrees(Way(in_tensorflow, in_tensorflow.compiled_value_and_vjp), row.example())


@dataclass(frozen=True)
class Way:
    """Let a backend differentiate in another way."""

    backend: object
    value_and_vjp: object

    @property
    def tricks(self):
        """Return the functions under test."""
        return self.backend.tricks


class Edit(Suite):
    """Identity forward; a rule backward."""

    test_xla_agrees_with_the_reference_in_tensorflow = None  # the extreme gradients are compiled too

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_the_value_stays_bit_for_bit(self, backend, row, dtype):
        others = row.example()[1:]
        x = backend.cast(backend.tensor(np.concatenate([EXTREMES, [1e-45, 0.1]])), dtype)
        trick, expected = row.calls(backend.tricks), backend.array(x)
        for call in (trick, backend.in_graph(lambda t: trick(t, *others))):
            y = call(x, *others) if call is trick else call(x)
            assert y.dtype == x.dtype
            # A compiler may give a NaN another payload.
            seen = slice(None) if call is trick else ~np.isnan(expected)
            assert backend.array(y)[seen].tobytes() == expected[seen].tobytes()
            assert np.isnan(backend.array(y)).tolist() == np.isnan(expected).tolist()

    def test_each_tensor_of_a_structure_is_edited_alone(self, backend, row):
        assert_each_agrees(backend, row.name, *row.example()[1:])

    @pytest.mark.parametrize("way", ["value_and_vjp", "compiled_value_and_vjp"])
    def test_extreme_gradients_agree_with_the_reference(self, backend, row, way):
        x, *others = row.example(EXTREMES.shape)
        trick = row.calls(backend.tricks)
        for cotangent in (EXTREMES, np.where(np.isnan(EXTREMES), 2, EXTREMES), EXTREMES[:2].repeat(4)):
            _, (gradient,) = getattr(backend, way)(lambda t: trick(t, *others), [x], cotangent)
            assert_close([gradient], row.slopes(cotangent, [x, *others]), atol=1e-300)

    def test_options_may_be_tensors_and_get_no_gradient(self, backend, row):
        inputs = [np.asarray(x, np.float64) for x in row.example() if not callable(x)]
        trick, callables = row.calls(backend.tricks), [x for x in row.example() if callable(x)]

        def edited(x, *numbers):
            return trick(x, *callables, *numbers) + 0 * sum(numbers)

        cotangent = row.cotangent(row.example())
        expected = backend.value_and_vjp(lambda x: trick(x, *row.example()[1:]), inputs[:1], cotangent)
        value, (gradient, *unused) = backend.value_and_vjp(edited, inputs, cotangent)
        assert_close([value, gradient], [expected[0], *expected[1]])
        assert not any(map(np.any, unused))


class Substitute(Suite):
    """One value forward, another's slope backward."""

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_the_dtype_is_kept_and_extremes_agree(self, backend, row, dtype):
        x, *others = row.example()
        x = backend.cast(backend.tensor(np.concatenate([[0.1, -2.0, 7.9], EXTREMES])), dtype)
        value = row.calls(backend.tricks)(x, *others)
        assert value.dtype == x.dtype
        expected = row.expected([backend.array(x).astype(float), *others])
        expected = backend.array(backend.cast(backend.tensor(expected), dtype))
        np.testing.assert_allclose(backend.array(value), expected, rtol=ROUNDING[dtype], atol=ROUNDING[dtype])

    def test_each_tensor_of_a_structure_is_taken_alone(self, backend, row):
        assert_each_agrees(backend, row.name, *row.example()[1:])

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_a_sparse_gradient_arrives_dense(self, backend, row, dtype):
        def looked_up(x):
            y = row.calls(backend.tricks)(backend.cast(x, dtype), *row.example()[1:])
            return backend.take(y, backend.tensor([1, 1]))

        _, (gradient,) = backend.value_and_vjp(looked_up, [np.full((3, 1), 0.95)], np.ones((2, 1)))
        assert (gradient > 0).tolist() == [[False], [True], [False]]


class Loss(Suite):
    """Computed in float32 at least; in any tracer, with shapes that nobody knows yet, and twice."""

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_half_precision_is_widened_or_kept(self, backend, row, dtype):
        arguments = row.example()
        inputs = [backend.cast(backend.tensor(x), dtype) for x in arguments[: row.inputs]]
        others = arguments[row.inputs :]
        value = row.calls(backend.tricks)(*inputs, *as_given(backend, others))
        kept = dtype == "float64" or not row.widens
        assert (dtype if kept else "float32") in str(value.dtype)
        expected = row.expected([*(backend.array(x).astype(float) for x in inputs), *others])
        rounding = ROUNDING[dtype if kept else "float32"]
        np.testing.assert_allclose(backend.array(value), expected, rtol=rounding, atol=rounding)

    def test_nan_is_shown_or_refused(self, backend, row):
        for index in range(row.inputs):
            given = [np.full_like(x, np.nan) if i == index else x for i, x in enumerate(row.example())]
            try:
                value = backend.array(row.calls(backend.tricks)(*as_given(backend, given)))
            except ValueError as error:
                value = float(str(error).partition("got ")[2][:3])
            assert np.isnan(value).any()

    def test_second_derivatives_are_those_of_the_reference(self, twice, row):
        inputs, others = row.example()[: row.inputs], row.example()[row.inputs :]
        trick, given = row.calls(twice.tricks), as_given(twice.backend, others)
        cotangent = np.asarray(row.cotangent(row.example()))

        def vjp(cotangent, *tensors):
            return row.slopes(cotangent, [*tensors, *others])

        assert_agrees_twice(twice, lambda *x: trick(*x, *given), inputs, cotangent, vjp)

    def test_tracers_without_values_compute_the_same_in_torch(self, in_torch, row):
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.fx.experimental.proxy_tensor import make_fx

        torch, mode = in_torch.framework, FakeTensorMode()
        called, arrays = of_arrays(row.calls(in_torch.tricks), row.example())
        tensors = [torch.tensor(array) for array in arrays]
        expected = called(*tensors)
        with mode:
            assert called(*map(mode.from_tensor, tensors)).shape == expected.shape
        blank = [(torch.ones_like if x.is_floating_point() else torch.zeros_like)(x) for x in tensors]
        torch.testing.assert_close(make_fx(called)(*blank)(*tensors), expected)


def of_arrays(trick, arguments):
    """Return a trick as a function of the arrays among its arguments, and these."""
    places = [place for place, x in enumerate(arguments) if isinstance(x, np.ndarray)]

    def called(*tensors):
        given = dict(zip(places, tensors))
        return trick(*(given.get(place, x) for place, x in enumerate(arguments)))

    return called, [arguments[place] for place in places]


class Recursion(Loss):
    """Loops, whose slope is written by hand."""

    test_xla_agrees_with_the_reference_in_tensorflow = None  # one of the common ways

    def test_common_ways_of_differentiating_agree(self, common, row):
        tolerance = max(common.rtol, row.rtol)
        row.assert_agrees(common, row.example(), rtol=tolerance, atol=tolerance)


class Step(Loss):
    """Arithmetic of optimizers: pure functions."""

    def test_arguments_stay_as_they_were(self, backend, row):
        given = as_given(backend, row.example())
        row.calls(backend.tricks)(*given)
        for after, before in zip(given, row.example()):
            np.testing.assert_array_equal(backend.array(after), before)


def halves(random, shape):
    """Draw numbers that are often equal, or 0, or whole."""
    return random.integers(-9, 10, shape) / 2
