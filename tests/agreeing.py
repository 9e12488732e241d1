"""A trick beside its reference."""

import numpy as np

from gradtricks import reference


def assert_agrees(way, name, inputs, cotangent, *others, rtol=1e-10, atol=1e-10, **options):
    """Compare the value, and the gradient of each input; ``others`` come after the inputs."""
    value, gradients = way.value_and_vjp(
        lambda *tensors: getattr(way.tricks, name)(*tensors, *others, **options), inputs, cotangent
    )
    expected = getattr(reference, name)(*inputs, *others, **options)
    np.testing.assert_allclose(value, expected, rtol=rtol, atol=atol)
    expected = getattr(reference, f"{name}_vjp")(cotangent, *inputs, *others, **options)
    for found, right in zip(gradients, expected if isinstance(expected, tuple) else [expected]):
        np.testing.assert_allclose(found, right, rtol=rtol, atol=atol)
