"""A trick beside its reference."""

import numpy as np
import pytest

from domains import ARRAY
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


def assert_each_agrees(backend, name, *others):
    """Compare what a trick does to a structure with what its reference does to each tensor of it."""

    def trick(h, c):
        state = getattr(backend.tricks, name)({"h": [h], 0: (c,)}, *others)  # keys that can't be sorted
        return state["h"][0] + 10 * state[0][0]

    inputs, cotangent = [np.array([3.3, -4.0]), np.array([-6.4, 8.0])], np.array([1.0, -2.0])
    value, gradients = backend.value_and_vjp(trick, inputs, cotangent)
    h, c = (getattr(reference, name)(x, *others) for x in inputs)
    vjp = getattr(reference, f"{name}_vjp")
    slopes = [vjp(scale * cotangent, x, *others) for x, scale in zip(inputs, (1, 10))]
    slopes = [slope[0] if isinstance(slope, tuple) else slope for slope in slopes]
    assert_close([value, *gradients], [h + 10 * c, *slopes], atol=1e-12)


def assert_agrees_twice(way, function, inputs, cotangent, vjp, rtol=1e-5, atol=1e-7, step=1e-6):
    """Compare the gradient of a gradient with finite differences of a reference's ``vjp``."""
    directions = [np.sin(1 + np.arange(x.size, dtype=float)).reshape(x.shape) for x in inputs]
    found = way.second_vjp(function, inputs, cotangent, directions)
    assert_close(found, numerical_second_vjp(vjp, inputs, cotangent, directions, step), rtol, atol)


def assert_compiled_for_all_numbers(torch, function):
    """Assert that PyTorch compiles ``function(number)`` once for all numbers, after the first."""
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for number in np.linspace(0.1, 0.9, 10).tolist():
        torch.testing.assert_close(compiled(number), function(number))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2


def as_given(backend, value):
    """Make tensors of all arrays in a structure but `ARRAY`."""
    if isinstance(value, dict):
        return {key: as_given(backend, item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(as_given(backend, item) for item in value)
    is_tensor = isinstance(value, np.ndarray | np.generic) and value is not ARRAY
    return backend.tensor(value) if is_tensor else value


def assert_refused(backend, name, arguments, options, error, message):
    """Check what a trick says to arguments in which every other array is a tensor."""
    with pytest.raises(error, match=message):
        getattr(backend.tricks, name)(*as_given(backend, arguments), **as_given(backend, options))
