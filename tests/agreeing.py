"""A trick beside its reference."""

import numpy as np

from gradtricks import reference
from transforms import numerical_second_vjp


def assert_close(found, expected, rtol=1e-10, atol=1e-10):
    """Compare arrays, one with another."""
    for one, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, wanted, rtol=rtol, atol=atol)


def assert_agrees(way, name, inputs, cotangent, *others, rtol=1e-10, atol=1e-10, **options):
    """Compare the value, and the gradient of each input; ``others`` come after the inputs."""
    backend = getattr(way, "backend", way)

    def trick(*tensors):
        rest = (backend.tensor(x) if isinstance(x, np.ndarray) else x for x in others)
        return getattr(way.tricks, name)(*tensors, *rest, **options)

    value, gradients = way.value_and_vjp(trick, inputs, cotangent)
    expected = getattr(reference, name)(*inputs, *others, **options)
    slopes = getattr(reference, f"{name}_vjp")(cotangent, *inputs, *others, **options)
    slopes = slopes[: len(inputs)] if isinstance(slopes, tuple) else [slopes]
    assert_close([value, *gradients], [expected, *slopes], rtol, atol)


def assert_agrees_twice(way, function, inputs, cotangent, vjp, rtol=1e-5, atol=1e-7, step=1e-6):
    """Compare the gradient of a gradient with finite differences of a reference's ``vjp``."""
    directions = [np.sin(1 + np.arange(x.size, dtype=float)).reshape(x.shape) for x in inputs]
    found = way.second_vjp(function, inputs, cotangent, directions)
    assert_close(found, numerical_second_vjp(vjp, inputs, cotangent, directions, step), rtol, atol)
