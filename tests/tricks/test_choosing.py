"""Choices: relaxed and hard ones of Gumbel noise, and the rotation trick."""

import numpy as np
import pytest

from domains import BROADCAST, flag, floating, number
from gradtricks import reference
from suites import Loss, Row, Suite

NOISE = {"gumbel": floating("logits"), "temperature": number(1e-6, tensor=BROADCAST), "hard": flag}


def logits_and_noise(random, shape):
    shape = (*shape, 4)
    return [random.normal(size=shape), random.gumbel(size=shape), random.uniform(0.2, 3.0)]


def vectors(random, shape):
    return [random.normal(size=(*shape, 3)) for _ in range(2)]


class TestRelaxed(Loss):
    rows = tuple(
        Row(
            "gumbel_softmax",
            logits_and_noise,
            tensors=2,
            options={"hard": hard},
            domains={"logits": floating()} | NOISE,
            ranks=(0, 2),
            widens=False,
        )
        for hard in (False, True)
    )


class TestRotation(Suite):
    rows = (
        Row(
            "rotation_trick",
            vectors,
            tensors=2,
            domains={"x": floating(), "code": floating("x")},
            ranks=(0, 2),
        ),
    )


@pytest.mark.parametrize("name", ["gumbel_softmax", "rotation_trick"])
@pytest.mark.parametrize("shape", [(), (3, 0)])
def test_a_choice_of_nothing_is_refused(backend, name, shape):
    x = backend.tensor(np.zeros(shape))
    with pytest.raises(ValueError, match="must have a last axis of at least 1; got "):
        getattr(backend.tricks, name)(x, x, *([1.0] if name == "gumbel_softmax" else []))


def test_hard_choices_come_as_often_as_softmax_says(backend):
    logits, count = np.array([0.0, 1.0, -2.0, -np.inf]), 40_000
    noise = np.random.default_rng(0).gumbel(size=(count, 4))
    y = backend.tricks.gumbel_softmax(
        *map(backend.tensor, (np.tile(logits, (count, 1)), noise)), 0.5, hard=True
    )
    y = backend.array(y)
    assert np.unique(y).tolist() == [0, 1]
    assert (y.sum(-1) == 1).all()
    expected = np.exp(logits) / np.exp(logits).sum()
    np.testing.assert_allclose(y.mean(0), expected, atol=4 * 0.5 / np.sqrt(count))


@pytest.mark.parametrize("temperature", [1e-6, 1e30])
def test_temperatures_at_their_extremes_keep_choices_finite(backend, temperature):
    x, noise = np.array([3e38, 3e38, -3e38, -np.inf]), np.array([0.5, 0.25, 1.0, 2.0])
    value, (gradient,) = backend.value_and_vjp(
        lambda t: backend.tricks.gumbel_softmax(t, backend.tensor(noise), temperature), [x], np.arange(4.0)
    )
    assert np.isfinite(value).all()
    assert np.isfinite(gradient).all()
    assert value.sum() == pytest.approx(1)


def rotated(backend, x, code, cotangent):
    """Return the value, and the gradient that x gets."""
    value, (gradient,) = backend.value_and_vjp(
        lambda t: backend.tricks.rotation_trick(t, backend.tensor(code)), [x], cotangent
    )
    return value, gradient


@pytest.mark.parametrize("scale", [1e-300, 1.0, 1e300])
@pytest.mark.parametrize(
    ("x", "code", "expected"),
    [
        # Without an angle the gradient passes.
        ([3, 4], [0, 0], [1, -3]),
        ([0, 0], [3, 4], [1, -3]),
        ([3, 4], [3, 4], [1, -3]),
        ([0, 2], [4, 0], [6, 2]),
        ([3, 0], [-6, 0], [-2, -6]),  # opposite ones: a reflection
    ],
)
def test_rotations_at_their_extremes(backend, x, code, expected, scale):
    x, code = scale * np.array(x, float), scale * np.array(code, float)
    value, gradient = rotated(backend, x, code, np.array([1.0, -3.0]))
    np.testing.assert_array_equal(value, code)
    np.testing.assert_allclose(gradient, expected, atol=1e-12)


def test_the_rotation_keeps_angles_and_scales_lengths(backend):
    x, code, cotangent = np.random.default_rng(1).normal(size=(3, 5, 8))
    _, gradient = rotated(backend, x, code, cotangent)

    def norm(vectors):
        return np.linalg.norm(vectors, axis=-1)

    ratio = norm(code) / norm(x)
    np.testing.assert_allclose(norm(gradient), ratio * norm(cotangent))
    # The angle to the code, before, is the angle to x, after.
    before, after = (cotangent * code).sum(-1) / norm(code), (gradient * x).sum(-1) / norm(x)
    np.testing.assert_allclose(after, ratio * before)


def test_half_precision_is_turned_in_float32(backend):
    x, code, cotangent = np.random.default_rng(2).normal(size=(3, 1, 64))

    def function(t):
        half, codes = (backend.cast(tensor, "float16") for tensor in (t, backend.tensor(code)))
        turned = backend.tricks.rotation_trick(half, codes)
        assert "float16" in str(turned.dtype)
        return backend.cast(turned, "float64")

    _, (gradient,) = backend.value_and_vjp(function, [x], cotangent)
    expected = reference.rotation_trick_vjp(cotangent, x, code)
    np.testing.assert_allclose(gradient, expected, rtol=1e-2, atol=1e-2)
