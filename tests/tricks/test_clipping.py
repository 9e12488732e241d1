"""Clipping: identity forward and a clipped gradient backward, and the projection that isn't that."""

from collections import defaultdict, namedtuple
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from agreeing import assert_close, assert_each_agrees, assert_refused
from domains import SCALAR, axes, floating, number
from gradtricks import reference
from suites import Edit, Row, Suite, halves
from transforms import numerical_vjp

NUMBERS = st.floats(-9, 9, allow_subnormal=False) | st.sampled_from([0.0, -0.0, 3.0, 4.0])
SHAPES = array_shapes(min_dims=0, max_dims=3, min_side=0)
# What each function does to a gradient.
CASES = {"clip_gradient": (-0.5, 1.0), "clip_gradient_norm": (1.5,), "normalize_gradient": (2.5,)}
State = namedtuple("State", "h c")
X, BOUND, LENGTH = {"x": floating()}, number(tensor=SCALAR), number(low=0, tensor=SCALAR)


def bounded(random, shape):
    return [random.normal(size=shape), *np.sort(halves(random, 2))]


def shrunk(random, shape):
    return [halves(random, shape), random.choice([0.0, 5.0, abs(random.normal())])]


BY_NORM = {"clip_gradient_norm": "max_norm", "normalize_gradient": "norm", "project_to_max_norm": "max_norm"}


class TestEdits(Edit):
    rows = (
        Row("clip_gradient", bounded, rtol=0, domains=X | {"gradient_min": BOUND, "gradient_max": BOUND}),
        *(Row(name, shrunk) for name in [*BY_NORM][:2]),
    )


class TestNorms(Suite):
    # What lies along x cancels in a projection, up to rounding.
    rows = tuple(
        Row(
            name,
            shrunk,
            options={"axis": axis},
            domains=X | {"axis": axes(2), norm: LENGTH},
            ranks=(2, 3),
            atol=1e-13,
        )
        for name, norm in BY_NORM.items()
        for axis in (None, -1, (-2, -1))
    )


def reaching(backend, name, cotangent, *arguments, dtype="float64", **options):
    """Return the value and the gradient of one function at x = 1, 2, 3 ..."""
    cotangent = np.asarray(cotangent)
    x = np.arange(1.0, 1 + cotangent.size).reshape(cotangent.shape)

    def call(x):
        return getattr(backend.tricks, name)(backend.cast(x, dtype), *arguments, **options)

    value, (gradient,) = backend.value_and_vjp(call, [x], cotangent)
    return value, gradient


# Against the reference


@given(data=st.data(), max_norm=st.floats(0, 9, allow_subnormal=False) | st.sampled_from([0.0, 5.0]))
def test_clip_by_global_norm_agrees_with_the_reference(backend, data, max_norm):
    gradients = [data.draw(arrays(np.float64, SHAPES, elements=NUMBERS)) for _ in range(2)]
    clipped, norm = backend.tricks.clip_by_global_norm([backend.tensor(g) for g in gradients], max_norm)
    expected, expected_norm = reference.clip_by_global_norm(gradients, max_norm)
    np.testing.assert_allclose(backend.array(norm), expected_norm, rtol=1e-10)
    assert_close(map(backend.array, clipped), expected, atol=1e-300)


@pytest.mark.parametrize("max_norm", [2.0, 50.0])
def test_the_projections_reference_is_the_derivative_of_its_value(max_norm):
    x, cotangent = np.random.default_rng(0).normal(size=(2, 2, 4))
    gradient = reference.project_to_max_norm_vjp(cotangent, x, max_norm, axis=1)
    project = partial(reference.project_to_max_norm, max_norm=max_norm, axis=1)
    assert_close([gradient], numerical_vjp(project, [x], [cotangent]), rtol=1e-8, atol=1e-8)


def test_no_gradients_have_the_norm_zero(backend):
    clipped, norm = backend.tricks.clip_by_global_norm([], 1.0)
    assert (clipped, backend.array(norm)) == ([], 0)
    assert reference.clip_by_global_norm([], 1.0) == ([], 0.0)
    assert reference.clip_by_global_norm_vjp(([], 1.0), [], 1.0) == []


# Batches and structures

ROWS = np.array([[3.0, 4.0], [0.3, 0.4], [-6.0, 8.0]])


def test_each_tensor_of_a_structure_is_projected_alone(backend):
    assert_each_agrees(backend, "project_to_max_norm", 1.5)


def test_structures_and_missing_gradients_are_kept(backend):
    # Keys that have no order, a defaultdict and a namedtuple, in which frameworks' own walkers differ.
    tree = {"layer": (backend.tensor([3.0]), None), "rest": [backend.tensor([[4.0]])]}
    tree |= {0: defaultdict(list, b=None, a=None), 1: State(backend.tensor([0.0]), None)}
    clipped, norm = backend.tricks.clip_by_global_norm(tree, 1.0)
    assert float(norm) == 5
    assert [*clipped, *clipped[0]] == ["layer", "rest", 0, 1, "b", "a"]
    assert (type(clipped[0]), type(clipped[1])) == (defaultdict, State)
    assert clipped["layer"][1] is None
    np.testing.assert_allclose(backend.array(clipped["layer"][0]), [0.6])
    np.testing.assert_allclose(backend.array(clipped["rest"][0]), [[0.8]])


# Extremes


EXTREMES = [
    ([1e20, 1e20], [0.5**0.5, 0.5**0.5]),
    ([3e38, -3e38], [0.5**0.5, -(0.5**0.5)]),
    ([1e-40, 0.0], [1e-40, 0.0]),
    ([np.inf, 1.0], [1.0, 0.0]),
    ([np.inf, -np.inf], [0.5**0.5, -(0.5**0.5)]),
    ([np.nan, 1.0], [np.nan, np.nan]),
    ([np.nan, np.inf], [np.nan, np.nan]),
    ([np.inf, np.finfo(np.float32).max], [0.5**0.5, 0.5**0.5]),
    ([np.nan, np.nan], [np.nan, np.nan]),
    ([0.0, -0.0], [0.0, -0.0]),
]


@pytest.mark.parametrize(("gradient", "clipped"), EXTREMES)
def test_extreme_gradients_together(backend, gradient, clipped):
    gradient = np.array(gradient, np.float32)
    together, norm = backend.tricks.clip_by_global_norm([backend.tensor(g) for g in gradient], 1.0)
    np.testing.assert_allclose([backend.array(g) for g in together], clipped, rtol=1e-6, atol=1e-38)
    exact = np.sqrt(np.sum(np.square(gradient.astype(np.float64))))
    exact = exact if exact < 3.4e38 else np.inf if exact == exact else np.nan
    np.testing.assert_allclose(backend.array(norm), exact, rtol=1e-6, atol=1e-38)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("gradient", [*(gradient for gradient, _ in EXTREMES), [3.0, 4.0], [0.3, 0.4]])
def test_a_device_clips_together_as_a_cpu_in_torch(in_torch, monkeypatch, gradient, dtype):
    clip, tensors = in_torch.tricks.clip_by_global_norm, [in_torch.tensor(np.float32(g)) for g in gradient]
    tensors[0] = in_torch.cast(tensors[0], dtype)
    expected = clip(tensors, 1.0)
    for module in ("_tensors", "_together"):
        monkeypatch.setattr(f"gradtricks.torch.{module}.on_cpu", lambda x: False)
    in_torch.framework.testing.assert_close(clip(tensors, 1.0), expected, rtol=1e-6, atol=0, equal_nan=True)


def test_a_device_takes_few_operations_for_many_in_torch(in_torch):
    from devices_torch import OneDevice

    def operations(max_norm, dtype):
        gradients = [torch.ones(2, 3, dtype=dtype, device="meta") for _ in range(50)]
        with OneDevice() as device:
            in_torch.tricks.clip_by_global_norm(gradients, max_norm)
        return device.operations

    torch = in_torch.framework
    assert operations(1.0, torch.float32) <= 25
    # A float64 might overflow when squared, and under the largest maximum an infinity stays.
    assert min(operations(1.0, torch.float64), operations(3e38, torch.float32)) > 50
    x = torch.ones(2, 3, device="meta", requires_grad=True)
    y = in_torch.tricks.clip_gradient_norm(x, 1.0)
    with OneDevice() as device:
        torch.autograd.grad(y, x, torch.ones_like(y))
    assert device.operations <= 20


@pytest.mark.parametrize(
    ("name", "arguments", "gradient", "expected"),
    [
        ("normalize_gradient", (5.0,), [1e-300, 0.0], [5.0, 0.0]),
        ("normalize_gradient", (5.0,), [3e-161, 4e-161], [3.0, 4.0]),  # squares have hardly a digit left
        ("normalize_gradient", (5.0,), [1e300, 1e300], [12.5**0.5] * 2),
    ],
)
def test_extremes_of_each_rule(backend, name, arguments, gradient, expected):
    _, found = reaching(backend, name, gradient, *arguments)
    np.testing.assert_allclose(found, expected, atol=1e-300)


LARGEST = np.finfo(np.float32).max


@pytest.mark.parametrize(
    ("gradient", "clipped"),
    [
        ([np.inf, 0.0], [np.inf, 0.0]),  # it counts as the largest number, which fits
        ([np.inf, -np.inf], [LARGEST * 0.5**0.5, -LARGEST * 0.5**0.5]),
        ([LARGEST, LARGEST], [LARGEST * 0.5**0.5] * 2),
        ([LARGEST, 0.0], [LARGEST, 0.0]),
        ([0.0, 0.0], [0.0, 0.0]),
    ],
)
def test_the_largest_maximum_holds_too(backend, gradient, clipped):
    gradient, largest = np.array(gradient, np.float32), float(LARGEST)
    _, (found,) = backend.value_and_vjp(
        lambda t: backend.tricks.clip_gradient_norm(t, largest), [np.ones(2, np.float32)], gradient
    )
    together, _ = backend.tricks.clip_by_global_norm([backend.tensor(gradient)], largest)
    for result in (found, backend.array(together[0]), reference.project_to_max_norm(gradient, largest)):
        np.testing.assert_allclose(result, clipped, rtol=1e-6)


@pytest.mark.parametrize("x", [[0.0, 0.0], [1e-20, 1e-20], [1e-10, 1e-10]])
def test_the_slope_of_what_fits_by_far(backend, x):
    value, (gradient,) = backend.value_and_vjp(
        lambda t: backend.tricks.project_to_max_norm(t, 1e38), [np.array(x, np.float32)], np.array([1.0, 2.0])
    )
    np.testing.assert_array_equal(value, np.array(x, np.float32))
    np.testing.assert_array_equal(gradient, [1.0, 2.0])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_small_types_dont_overflow(backend, dtype):
    _, gradient = reaching(backend, "clip_gradient_norm", np.full(2, 300.0), 1.0, dtype=dtype)
    np.testing.assert_allclose(gradient, np.full(2, 0.5**0.5), rtol=1e-2)
    half = [backend.cast(backend.tensor(np.full(2, 300.0)), dtype), backend.tensor(np.float32([0.0]))]
    (clipped, _), norm = backend.tricks.clip_by_global_norm(half, 1.0)
    assert clipped.dtype == half[0].dtype
    np.testing.assert_allclose(backend.array(clipped), np.full(2, 0.5**0.5), rtol=1e-2)
    np.testing.assert_allclose(backend.array(norm), 300 * 2**0.5, rtol=1e-6)


def test_the_norm_of_infinite_gradients_has_a_gradient(backend):
    # A factor of infinity in the norm would make NaN of every gradient.
    _, (gradient,) = backend.value_and_vjp(
        lambda t: backend.tricks.clip_by_global_norm([t], 1.0)[1], [np.array([np.inf, 1.0])], np.array(0.0)
    )
    np.testing.assert_array_equal(gradient, [0.0, 0.0])


@pytest.mark.parametrize("huge", [1e300, 10**300])
def test_a_bound_beyond_the_dtype_is_its_largest_number(backend, huge):
    gradient = np.array([3.0, 0.0])
    for name, arguments in [("clip_gradient", (-huge, huge)), ("clip_gradient_norm", (huge,))]:
        _, found = reaching(backend, name, gradient, *arguments, dtype="float32")
        np.testing.assert_array_equal(found, gradient)
    _, found = reaching(backend, "normalize_gradient", gradient, huge, dtype="float32")
    np.testing.assert_allclose(found, [LARGEST, 0.0])
    _, (found,) = backend.value_and_vjp(
        lambda t: backend.tricks.project_to_max_norm(t, huge), [np.float32([np.inf, 1.0])], gradient
    )
    assert not np.isnan(found).any()
    (clipped,), _ = backend.tricks.clip_by_global_norm([backend.tensor(gradient)], huge)
    np.testing.assert_array_equal(backend.array(clipped), gradient)


# Identities


@given(data=st.data(), dtype=st.sampled_from(["float16", "bfloat16", "float32", "float64"]))
def test_clipping_twice_is_clipping_once(backend, data, dtype):
    x = data.draw(arrays(np.float64, st.integers(1, 50), elements=st.floats(-100, 100)))
    once = backend.tricks.project_to_max_norm(backend.cast(backend.tensor(x), dtype), 1.7)
    twice = backend.tricks.project_to_max_norm(once, 1.7)
    np.testing.assert_array_equal(backend.array(once), backend.array(twice))


@pytest.mark.parametrize("size", [2, 1000])
def test_a_norm_equal_to_the_maximum_is_left_alone(backend, size):
    gradient = np.random.default_rng(0).normal(size=size).astype(np.float32)
    max_norm = float(np.linalg.norm(gradient))
    (clipped,), _ = backend.tricks.clip_by_global_norm([backend.tensor(gradient)], max_norm)
    np.testing.assert_array_equal(backend.array(clipped), gradient)
    projected = backend.tricks.project_to_max_norm(backend.tensor(gradient), max_norm, axis=0)
    np.testing.assert_array_equal(backend.array(projected), gradient)


# Situations of one framework only


@pytest.mark.parametrize("requires_grad", [False, True])
def test_compiled_where_no_gradient_is_wanted_in_torch(in_torch, requires_grad):
    torch = in_torch.framework
    clip = in_torch.compiled(lambda t: in_torch.tricks.clip_gradient(t, -1.0, 1.0))
    with torch.set_grad_enabled(not requires_grad):
        assert clip(torch.ones(2, requires_grad=requires_grad)).tolist() == [1, 1]


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_read_only_with_values_in_torch(in_torch, name):
    torch = in_torch.framework
    from torch.fx.experimental.proxy_tensor import make_fx

    def gradient(cotangent, **options):
        x = torch.ones(2, dtype=torch.float64, requires_grad=True)
        y = getattr(in_torch.tricks, name)(x, *CASES[name])
        return torch.autograd.grad(y, x, cotangent, **options)[0]

    expected = [getattr(reference, f"{name}_vjp")(row, np.ones(2), *CASES[name]) for row in ROWS]
    traced = make_fx(gradient)(torch.ones(2, dtype=torch.float64))
    np.testing.assert_allclose([traced(torch.tensor(row)) for row in ROWS], expected, rtol=1e-10)
    together = gradient(torch.tensor(ROWS), is_grads_batched=True)
    np.testing.assert_allclose(together, expected, rtol=1e-10)


@pytest.mark.filterwarnings("ignore:`torch.jit.trace")
@pytest.mark.filterwarnings("ignore:Converting a tensor to a Python boolean")  # whether there are elements
def test_a_torchscript_trace_takes_other_tensors_in_torch(in_torch):
    torch, tricks = in_torch.framework, in_torch.tricks
    x = torch.arange(1.0, 7.0).reshape(2, 3)
    for function in (
        lambda x: tricks.project_to_max_norm(x, 1.0, axis=1),
        lambda x: tricks.discounted_returns(x, 0.5),
    ):
        other = torch.ones(4, 3, requires_grad=True)
        found, expected = (f(other) for f in (torch.jit.trace(function, x), function))
        np.testing.assert_allclose(found.detach(), expected.detach(), rtol=1e-6)
        slopes = (torch.autograd.grad(y.square().sum(), other)[0] for y in (found, expected))
        np.testing.assert_allclose(*slopes, rtol=1e-6, atol=1e-6)


# Of all but the first tensor one process has no element.
CLIP_SHARDS = """
import torch.distributed.tensor as tensors
from gradtricks.torch import clip_by_global_norm

def train():
    mesh = tensors.init_device_mesh("cpu", (2,))
    values, plain = [[2.0, 4.0, 4.0], [24.0], [-torch.inf], [torch.nan]], torch.tensor([9.0])
    shards = [tensors.distribute_tensor(torch.tensor(v), mesh, [tensors.Shard(0)]) for v in values]
    unsummed = tensors.DTensor.from_local(torch.tensor([3.0]), mesh, [tensors.Partial()])
    found = []
    for gradients in ([*shards[:2], unsummed, plain], shards[:3], shards):
        clipped, norm = clip_by_global_norm(gradients, 13.5)
        found.append([getattr(g, "full_tensor", lambda: g)().tolist() for g in clipped])
        found.append([type(g).__name__ for g in (*clipped, norm)])
        found.append(norm.item())
    return found

"""


def test_all_shards_of_a_tensor_count_in_torch(in_torch, tmp_path):
    pytest.importorskip("torch.distributed.tensor")
    for found in in_torch.on_two_ranks(CLIP_SHARDS, tmp_path):
        finite, kinds, norm, infinite, _, infinity, nothing, _, nan = found
        assert (finite, norm) == ([[1.0, 2.0, 2.0], [12.0], [3.0], [4.5]], 27.0)
        assert kinds == ["DTensor", "DTensor", "DTensor", "Tensor", "Tensor"]
        np.testing.assert_allclose(np.concatenate(infinite), [0, 0, 0, 0, -13.5], atol=1e-30)
        assert infinity == np.inf
        assert np.isnan(np.concatenate([*nothing, [nan]])).all()


def test_a_sparse_gradient_in_hand_is_refused_in_torch(in_torch):
    with pytest.raises(TypeError, match=r"gradients must be dense; got torch.sparse_coo; remedy: .*to_dense"):
        in_torch.tricks.clip_by_global_norm([in_torch.framework.eye(2).to_sparse()], 1.0)


def test_wrapped_structures_of_modules_are_walked_in_tensorflow(in_tensorflow):
    tf = in_tensorflow.framework
    for owner in (tf.Module(), tf.keras.layers.Layer()):
        # Both put lists, dicts and tuples of variables into wrappers of their own.
        variable = tf.keras.Variable([3.0])
        owner.all = {"b": [variable], "a": (tf.Variable([0.0]), State(tf.Variable([4.0]), None))}
        clipped, norm = in_tensorflow.tricks.clip_by_global_norm(owner.all, 1.0)
        assert norm == 5
        assert list(clipped) == ["b", "a"]
        np.testing.assert_allclose(clipped["b"][0], [0.6])
        assert type(clipped["a"]) is tuple
        assert type(clipped["a"][1]) is State
        np.testing.assert_allclose(clipped["a"][1].h, [0.8])


# Peers


def test_cases_of_peers(backend):
    # TensorFlow, kernel_tests/math_ops/clip_ops_test.py
    x = np.array([[-3.0, 0.0, 0.0], [4.0, 0.0, 3.0]])
    for axis, expected in [(0, [[-2.4, 0, 0], [3.2, 0, 3]]), (1, [[-3, 0, 0], [3.2, 0, 2.4]])]:
        _, gradient = reaching(backend, "clip_gradient_norm", x, 4.0, axis=axis)
        np.testing.assert_allclose(gradient, expected, rtol=1e-12)
    gradients = [backend.tensor([[-2.0, 0.0, 0.0], [4.0, 0.0, 0.0]]), None, backend.tensor([1.0, -2.0])]
    (one, _, other), norm = backend.tricks.clip_by_global_norm(gradients, 4.0)
    np.testing.assert_allclose(backend.array(one), [[-1.6, 0, 0], [3.2, 0, 0]], rtol=1e-6)
    np.testing.assert_allclose(backend.array(other), [0.8, -1.6], rtol=1e-6)
    assert float(norm) == 5
    _, gradient = reaching(backend, "clip_gradient", [[-5.0, 2.0, 3.0], [4.0, 5.0, 6.0]], -4.4, 4.4)
    np.testing.assert_array_equal(gradient, [[-4.4, 2.0, 3.0], [4.0, 4.4, 4.4]])
    for x, bounds, slopes in (
        # Sonnet 1, clip_gradient_test.py: the square, with the gradient clipped to [2, 3]
        ([0.5, 2.0], (2.0, 3.0), [2.0, 3.0]),
        # RLax, clipping_test.py: the clipped square has twice the gradient of the Huber loss
        ([-2, -1, -0.5, 0, 0.5, 1, 2], (-2.0, 2.0), [-2, -2, -1, 0, 1, 2, 2]),
    ):
        _, (gradient,) = backend.value_and_vjp(
            lambda t, b=bounds: backend.tricks.clip_gradient(t, *b) ** 2, [np.array(x)], np.ones(len(x))
        )
        np.testing.assert_array_equal(gradient, slopes)


# Errors

BAD = [
    ({"gradient_min": 1.0, "gradient_max": -1.0}, "gradient_min must be <= gradient_max; got 1.0 and -1.0"),
    ({"x": iter([1.0])}, r"x must be a .*Tensor; got list_iterator; remedy: list\(x\)"),
]


@pytest.mark.parametrize(("change", "message"), BAD)
def test_bounds_in_the_wrong_order_and_iterators_are_refused(backend, change, message):
    given = {"x": np.ones(2), "gradient_min": -1.0, "gradient_max": 1.0} | change
    assert_refused(backend, "clip_gradient", (), given, (TypeError, ValueError), message)


def test_slopes_at_bounds_do_not_come_from_clamp_in_torch(in_torch, monkeypatch):
    torch, tricks = in_torch.framework, in_torch.tricks
    clamp = torch.Tensor.clamp
    monkeypatch.setattr(
        torch.Tensor, "clamp", lambda x, *bounds, **named: clamp(x.detach(), *bounds, **named)
    )
    x, incoming = torch.tensor([3.0, 4.0], dtype=torch.float16), torch.tensor([1.0, 2.0])
    x.requires_grad_()
    # The largest number is divided by itself, and stands at the bound.
    for shrunk in (tricks.project_to_max_norm(x, 1.0), tricks.clip_by_global_norm([x], 1.0)[0][0]):
        (gradient,) = torch.autograd.grad((shrunk * incoming).sum(), x)
        np.testing.assert_allclose(gradient, [-0.064, 0.048], atol=2e-3)
    x, gradient = torch.zeros(2, requires_grad=True), incoming.clone().requires_grad_()
    (passed,) = torch.autograd.grad(tricks.clip_gradient(x, -1.0, 2.0), x, gradient, create_graph=True)
    assert torch.autograd.grad(passed.sum(), gradient)[0].tolist() == [1, 1]
    log_probs = torch.zeros(1, 2, requires_grad=True)
    loss = tricks.token_policy_loss(log_probs, log_probs, torch.ones(1), torch.ones(1, 2), clip=0.0)
    assert torch.autograd.grad(loss, log_probs)[0].tolist() == [[-0.5, -0.5]]
