"""mixture_density_nll: finite values and gradients where the plain formula gives NaN."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agreeing import assert_agrees, assert_close
from domains import SCALAR, floating, number
from gradtricks import reference
from suites import Loss, Row

NLL, FLOOR = "mixture_density_nll", 1e-3


def example(random=None, shape=(2,), components=3, dims=None):
    """Draw logits, loc, scale and y."""
    random = random or np.random.default_rng(0)
    vector = () if dims is None else (dims,)
    return (
        random.normal(size=(*shape, components)),
        random.normal(size=(*shape, components, *vector)),
        random.uniform(0.2, 2, size=(*shape, components, *vector)),
        random.normal(size=(*shape, *vector)),
    )


def of_any_size(random, shape):
    return example(random, shape, components=random.integers(1, 5), dims=random.choice([None, 0, 1, 3]))


class TestLoss(Loss):
    given = {"logits": floating(), "loc": floating("logits"), "scale": floating("loc")}
    given |= {"y": floating("loc without its axis K"), "scale_floor": number(0, tensor=SCALAR)}
    rows = (
        Row(NLL, example, inputs=4, ranks=(0, 2), options={"scale_floor": FLOOR}, domains=given),
        *(
            Row(NLL, of_any_size, inputs=4, ranks=(0, 2), options={"scale_floor": floor})
            for floor in (0.0, 1.0)
        ),
    )


def nll(tricks, floor=FLOOR):
    """Return the loss as a function of its tensors alone."""
    return lambda *tensors: tricks.mixture_density_nll(*tensors, scale_floor=floor)


def test_the_floor_may_be_a_tensor(backend):
    inputs = example()
    found = backend.value_and_vjp(nll(backend.tricks, backend.tensor(np.float64(0.5))), inputs, np.ones(2))
    expected = backend.value_and_vjp(nll(backend.tricks, 0.5), inputs, np.ones(2))
    assert_close([found[0], *found[1]], [expected[0], *expected[1]], rtol=0, atol=0)
    with pytest.raises(ValueError, match=r"scale_floor must have the shape of a scalar, \(\); got \(3,\)"):
        nll(backend.tricks, backend.tensor(np.ones(3)))(*map(backend.tensor, inputs))


@given(
    gap=st.sampled_from([0.0, 1e2, 1e4, -1e4]),
    small=st.sampled_from([0.0, 5e-324, 1e-300, 1e-30, 1e-8]),
    y=st.sampled_from([0.0, -0.0, 1.0, -1e20, 1e120, 1e308]),
    floor=st.sampled_from([1e-12, 1e-3]),
)
def test_extremes_agree_with_the_reference(backend, gap, small, y, floor):
    inputs = [np.array(a) for a in ([[0.0, gap]], [[0.5, -1.0]], [[small, 1.0]], [y])]
    value, gradients = backend.value_and_vjp(nll(backend.tricks, floor), inputs, np.ones(1))
    assert all(np.isfinite(a).all() for a in (value, *gradients))
    assert_agrees(backend, NLL, inputs, np.ones(1), scale_floor=floor)


@pytest.mark.parametrize("way", ["value_and_vjp", "compiled_value_and_vjp"])
def test_everything_is_finite_in_float32(backend, way):
    # Every pairing of a tiny or ordinary sigma, a gap between the logits and a distance.
    gaps, sigmas = [0.0, 1e2, 1e4, -1e4], [0.0, 1e-45, 1e-30, 1e-20, 1e-8, 1.0]
    distances = [0.0, 1.0, 1e5, 1e20, 3e38]
    rows = [(g, s, t, d) for g in gaps for s in sigmas for t in sigmas for d in distances]
    gap, first, second, y = np.array(rows, np.float32).T
    zero = np.zeros_like(gap)
    inputs = [np.stack([zero, gap], 1), np.stack([zero, zero + 0.5], 1), np.stack([first, second], 1), y]
    value, gradients = getattr(backend, way)(nll(backend.tricks, 1e-12), inputs, np.ones_like(y))
    assert value.dtype == np.float32
    assert all(np.isfinite(a).all() for a in (value, *gradients))


@pytest.mark.parametrize(("dtype", "y"), [(np.float32, 3000.0), (np.float64, 1e9)])
def test_components_share_the_gradient_however_far_y_is(backend, dtype, y):
    # The exponential of a large loss would multiply its rounding.
    inputs = [np.array(a, dtype) for a in ([0.0, 0.0], [0.0, 0.0], [1.0, 1.0], y)]
    _, found = backend.value_and_vjp(nll(backend.tricks, 0.0), inputs, np.ones((), dtype))
    for gradients in (found, reference.mixture_density_nll_vjp(1.0, *inputs, scale_floor=0.0)):
        assert_close(gradients[1::2], [[-y / 2, -y / 2], y], rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_component_without_responsibility_gets_no_gradient(backend, dtype):
    # The plain formula gives a finite loss and a NaN gradient here: 0 responsibility times an infinite slope.
    inputs = [np.array(a, dtype) for a in ([0.0, 0.0], [0.0, 0.0], [1e-20, 1.0], 1.0)]
    value, gradients = backend.value_and_vjp(nll(backend.tricks, 0.0), inputs, np.array(1.0, dtype))
    normal = 0.5 + np.log(2 * np.pi) / 2
    np.testing.assert_allclose(value, normal + np.log(2), rtol=1e-6)
    assert_close(gradients, [[0.5, -0.5], [0.0, -1.0], [0.0, 0.0], 1.0], atol=1e-6)


def test_a_scale_below_the_floor_still_gets_a_gradient(backend):
    inputs = [np.array(a) for a in ([0.0], [0.0], [0.0], 1.0)]
    _, (_, _, gradient, _) = backend.value_and_vjp(nll(backend.tricks), inputs, np.array(1.0))
    assert gradient[0] < -1e8  # minimising raises the scale


def test_minus_infinity_takes_a_component_out(backend):
    logits, loc, scale, y = example(components=2)
    one = [logits[:, :1], loc[:, :1], scale[:, :1], y]
    logits[:, 1] = -np.inf
    value, gradients = backend.value_and_vjp(nll(backend.tricks), [logits, loc, scale, y], np.ones(2))
    np.testing.assert_allclose(value, nll(reference)(*one))
    for gradient in gradients[:3]:
        np.testing.assert_array_equal(gradient[:, 1], 0)


def test_equals_the_mixture_of_torch_distributions(in_torch):
    torch = in_torch.framework
    logits, loc, scale, y = (torch.tensor(a) for a in example(shape=(5,), dims=2))
    peer = torch.distributions.MixtureSameFamily(
        torch.distributions.Categorical(logits=logits),
        torch.distributions.Independent(torch.distributions.Normal(loc, scale), 1),
    )
    mine = nll(in_torch.tricks, 0.0)(logits, loc, scale, y)
    torch.testing.assert_close(mine, -peer.log_prob(y), rtol=1e-12, atol=1e-12)


def test_compiled_code_cannot_raise_so_a_wrong_scale_is_nan(backend):
    logits, loc, scale, y = example(shape=(4,))
    scale[:3, 0] = -1.0, np.nan, np.inf
    value, _ = backend.compiled_value_and_vjp(nll(backend.tricks), [logits, loc, scale, y], np.ones(4))
    assert np.isnan(value).tolist() == [True, True, True, False]


@pytest.mark.parametrize(
    ("index", "value", "floor", "message"),
    [
        (0, np.array(1.0), FLOOR, r"logits must have shape \[..., K\] with .* 1; got \(\)"),
        (0, np.ones((2, 0)), FLOOR, r"K of at least 1; got \(2, 0\)"),
        (1, np.ones((2, 4, 5)), FLOOR, r"loc must .*\(2, 3, 5\); got \(2, 4, 5\)"),
        (2, np.full((2, 3), -0.5), FLOOR, "scale must be finite and at least 0; got -0.5; r"),
        (2, np.zeros((2, 3)), 0.0, "above 0 as scale_floor is 0; got 0.0; remedy: a softplus"),
    ],
)
def test_ranks_and_scales_that_do_not_fit_are_refused(backend, index, value, floor, message):
    tensors = [backend.tensor(value if place == index else x) for place, x in enumerate(example())]
    with pytest.raises(ValueError, match=message):
        backend.tricks.mixture_density_nll(*tensors, scale_floor=floor)


def test_a_floor_that_vanishes_in_float32_is_named(backend):
    tensors = [backend.cast(backend.tensor(a), "float32") for a in example()]
    tensors[2] = tensors[2] * 0
    with pytest.raises(ValueError, match=r"scale must be .* above 0 as scale_floor is 1e-60; got 0"):
        backend.tricks.mixture_density_nll(*tensors, scale_floor=1e-60)


def test_second_derivatives_stay_finite_beside_a_tiny_sigma(twice):
    inputs = [np.array(a) for a in ([0.0, 1.0], [0.0, 0.5], [1e-200, 1.0], 1.0)]
    directions = [np.ones_like(a) for a in inputs]
    found = twice.second_vjp(nll(twice.tricks, 0.0), inputs, np.array(1.0), directions)
    assert all(np.isfinite(gradient).all() for gradient in found)
