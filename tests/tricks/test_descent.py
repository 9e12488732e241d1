"""gradient_descent_step: parameter minus learning rate times gradient."""

from collections import OrderedDict, defaultdict, namedtuple

import numpy as np
import pytest

from agreeing import assert_refused
from domains import SCALAR, floating, number
from gradtricks import reference
from gradtricks._core.structures import pairs
from suites import Row, Step

EXTREMES = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 3e38, -2e-38, 1.0], np.float32)


def drawn(random, shape):
    """Draw parameters, gradients and a rate."""
    rate = random.choice([0.0, 1e-45, 1.0, 1e30, random.random()])
    return [*random.normal(size=(2, *shape)), np.asarray(rate)]


class TestStep(Step):
    given = {"parameters": floating(), "gradients": floating("parameters")}
    given |= {"learning_rate": number(0, tensor=SCALAR)}
    rows = (Row("gradient_descent_step", drawn, 3, domains=given, widens=False, rtol=1e-12, atol=1e-12),)


Layer = namedtuple("Layer", ["weight", "bias"])


@pytest.mark.parametrize("rate", [0.0, 0.5, 1e-30, 1e38])
def test_the_arithmetic_is_ieee(backend, rate):
    parameter, gradient = (a.copy() for a in np.broadcast_arrays(EXTREMES[:, None], EXTREMES))
    stepped = backend.tricks.gradient_descent_step(backend.tensor(parameter), backend.tensor(gradient), rate)
    with np.errstate(all="ignore"):
        expected = reference.gradient_descent_step(parameter, gradient, np.float32(rate))
    np.testing.assert_allclose(backend.array(stepped), expected, rtol=1e-6, atol=1e-37)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_keeps_the_dtype_and_computes_halves_in_float32(backend, dtype):
    # The product 120000 overflows float16; the result doesn't.
    x = backend.cast(backend.tensor(60000.0), dtype)
    for rate in (2.0, backend.cast(backend.tensor(2.0), dtype)):
        stepped = backend.tricks.gradient_descent_step(x, x, rate)
        assert stepped.dtype == x.dtype
        assert float(backend.array(stepped)) == -float(backend.array(x))
    # A gradient of another precision is converted, as under mixed precision.
    wide = backend.tensor(np.float32(1.0))
    stepped = backend.tricks.gradient_descent_step(wide, backend.cast(wide, dtype), 0.25)
    assert (stepped.dtype, float(stepped)) == (wide.dtype, 0.75)


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
def test_structures_are_kept_and_arguments_too(backend, kind):
    tensors, array = structures(backend.tensor)[kind], structures(np.array)[kind]
    stepped = backend.tricks.gradient_descent_step(tensors, tensors, 0.5)
    assert type(stepped) is type(tensors)
    for found, expected in [(stepped, reference.gradient_descent_step(array, array, 0.5)), (tensors, array)]:
        for _, one, other in pairs("found", found, "expected", expected):
            np.testing.assert_array_equal(backend.array(one), other)


def test_a_parameter_without_a_gradient_stays(backend):
    one = backend.tensor(1.0)
    kept, stepped = backend.tricks.gradient_descent_step([one, one], (None, one), 0.25)
    assert (float(kept), float(stepped)) == (1.0, 0.75)
    assert reference.gradient_descent_step([1.0, 1.0], [None, 1.0], 0.25) == [1.0, 0.75]


def test_sparse_gradients_are_made_dense(backend):
    table = backend.parameter(np.zeros((4, 2)))
    gradient = backend.sparse_gradient(table, [1, 1, 3])
    moved = backend.tricks.gradient_descent_step({"w": table}, {"w": gradient}, 1.0)["w"]
    np.testing.assert_array_equal(backend.array(moved).sum(1), [0, -4, 0, -2])


def test_tensors_of_one_dtype_move_together_in_torch(in_torch):
    torch = in_torch.framework
    parameters = [torch.ones(n, dtype=dtype) for n in range(20) for dtype in (torch.float32, torch.float64)]
    with torch.profiler.profile() as profile:
        stepped = in_torch.tricks.gradient_descent_step(parameters, parameters, 0.25)
    assert [event.name for event in profile.events()].count("aten::_foreach_mul") == 2
    assert all(torch.equal(new, 0.75 * old) for new, old in zip(stepped, parameters))
    assert [new.dtype for new in stepped] == [old.dtype for old in parameters]


# Errors


ONE = np.ones(1)


@pytest.mark.parametrize(
    ("parameters", "gradients", "rate", "error", "message"),
    [
        ([ONE, np.ones(1, int)], [ONE, ONE], 0.1, TypeError, r"parameters\[1\] must be floating-point; got"),
        ({"w": ONE}, {"w": np.ones(1, int)}, 0.1, TypeError, r"gradients\['w'\] must be floating-point; got"),
        ([ONE], [ONE[0]], 0.1, ValueError, r"the shape of parameters\[0\], \(1,\); got"),
        ([ONE], ONE, 0.1, ValueError, r"hold the entries of parameters, \[0\]; got \w*Tensor"),
        (ONE, [ONE], 0.1, TypeError, "gradients must be a .*Tensor; got list"),
        ({"w": ONE}, {"v": ONE}, 0.1, ValueError, r"parameters, \['w'\]; got the entries \['v'\]"),
        ([{"w": ONE}], [{}], 0.1, ValueError, r"entries of parameters\[0\], \['w'\]; got"),
        ([ONE, ONE], [None, None], 0.1, ValueError, "got only None; remedy: explain_gradient says why"),
        (iter([1.0]), [ONE], 0.1, TypeError, r"Tensor; got list_iterator; remedy: list\(parameters\)"),
    ],
)
def test_structures_that_do_not_fit_are_refused(backend, parameters, gradients, rate, error, message):
    arguments = parameters, gradients, rate
    assert_refused(backend, "gradient_descent_step", arguments, {}, error, message)
