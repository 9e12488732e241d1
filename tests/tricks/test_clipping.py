"""Clipping: identity forward and a clipped gradient backward, and the projection that isn't that."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from gradtricks import reference
from transforms import numerical_second_vjp

NUMBERS = st.floats(-9, 9, allow_subnormal=False) | st.sampled_from([0.0, -0.0, 3.0, 4.0])
SHAPES = array_shapes(min_dims=0, max_dims=3, min_side=0)
NORMS = st.floats(0, 9, allow_subnormal=False) | st.sampled_from([0.0, 5.0])

# What each function does to a gradient, as (arguments, keywords).
CASES = {
    "clip_gradient": ((-0.5, 1.0), {}),
    "clip_gradient_norm": ((1.5,), {}),
    "normalize_gradient": ((2.5,), {}),
}


def reaching(backend, name, cotangent, *arguments, dtype="float64", **options):
    """Return the value and the gradient of one function at x = 1, 2, 3 ..."""
    cotangent = np.asarray(cotangent)
    x = np.arange(1.0, 1 + cotangent.size).reshape(cotangent.shape)

    def call(x):
        return getattr(backend.tricks, name)(backend.cast(x, dtype), *arguments, **options)

    value, (gradient,) = backend.value_and_vjp(call, [x], cotangent)
    return value, gradient


# Against the reference


@given(data=st.data(), bounds=st.tuples(NUMBERS, NUMBERS))
def test_clip_gradient_agrees_with_the_reference(backend, data, bounds):
    cotangent = data.draw(arrays(np.float64, SHAPES, elements=NUMBERS))
    low, high = sorted(bounds)
    value, gradient = reaching(backend, "clip_gradient", cotangent, low, high)
    np.testing.assert_array_equal(value, reference.clip_gradient(value, low, high))
    np.testing.assert_array_equal(gradient, reference.clip_gradient_vjp(cotangent, value, low, high))


@given(data=st.data(), max_norm=NORMS)
def test_clip_gradient_norm_agrees_with_the_reference(backend, data, max_norm):
    cotangent = data.draw(arrays(np.float64, SHAPES, elements=NUMBERS))
    axes = st.sets(st.integers(-cotangent.ndim, -1), min_size=1) if cotangent.ndim else st.none()
    axis = data.draw(st.none() | axes.map(lambda s: s and tuple(s)))
    value, gradient = reaching(backend, "clip_gradient_norm", cotangent, max_norm, axis=axis)
    np.testing.assert_array_equal(value, reference.clip_gradient_norm(value, max_norm, axis=axis))
    expected = reference.clip_gradient_norm_vjp(cotangent, value, max_norm, axis=axis)
    np.testing.assert_allclose(gradient, expected, rtol=1e-10, atol=1e-300)


@given(data=st.data(), norm=NORMS)
def test_normalize_gradient_agrees_with_the_reference(backend, data, norm):
    cotangent = data.draw(arrays(np.float64, SHAPES, elements=NUMBERS))
    value, gradient = reaching(backend, "normalize_gradient", cotangent, norm)
    np.testing.assert_array_equal(value, reference.normalize_gradient(value, norm))
    expected = reference.normalize_gradient_vjp(cotangent, value, norm)
    np.testing.assert_allclose(gradient, expected, rtol=1e-10, atol=1e-300)


@given(data=st.data(), max_norm=NORMS)
def test_project_to_max_norm_agrees_with_the_reference(backend, data, max_norm):
    x = data.draw(arrays(np.float64, SHAPES, elements=st.floats(-9, 9, allow_subnormal=False)))
    axis = data.draw(st.none() | st.integers(-x.ndim, -1)) if x.ndim else None
    cotangent = np.arange(x.size, dtype=float).reshape(x.shape) - 1.5
    value, (gradient,) = backend.value_and_vjp(
        lambda t: backend.tricks.project_to_max_norm(t, max_norm, axis), [x], cotangent
    )
    np.testing.assert_allclose(
        value, reference.project_to_max_norm(x, max_norm, axis), rtol=1e-10, atol=1e-300
    )
    expected = reference.project_to_max_norm_vjp(cotangent, x, max_norm, axis)
    # What lies along x cancels, up to rounding.
    np.testing.assert_allclose(gradient, expected, rtol=1e-10, atol=1e-14 * x.size)


@given(data=st.data(), max_norm=NORMS)
def test_clip_by_global_norm_agrees_with_the_reference(backend, data, max_norm):
    gradients = [data.draw(arrays(np.float64, SHAPES, elements=NUMBERS)) for _ in range(2)]
    clipped, norm = backend.tricks.clip_by_global_norm([backend.tensor(g) for g in gradients], max_norm)
    expected, expected_norm = reference.clip_by_global_norm(gradients, max_norm)
    np.testing.assert_allclose(backend.array(norm), expected_norm, rtol=1e-10)
    for one, other in zip(clipped, expected, strict=True):
        np.testing.assert_allclose(backend.array(one), other, rtol=1e-10, atol=1e-300)


@pytest.mark.parametrize("max_norm", [2.0, 50.0])
def test_the_projections_reference_is_the_derivative_of_its_value(max_norm):
    random = np.random.default_rng(0)
    x, cotangent, direction = random.normal(size=(3, 2, 4))
    step = 1e-6 * direction
    up, down = (reference.project_to_max_norm(x + sign * step, max_norm, 1) for sign in (1, -1))
    numerical = np.sum(cotangent * (up - down)) / 2e-6
    gradient = reference.project_to_max_norm_vjp(cotangent, x, max_norm, 1)
    np.testing.assert_allclose(np.sum(gradient * direction), numerical, rtol=1e-8)


def test_no_gradients_have_the_norm_zero(backend):
    clipped, norm = backend.tricks.clip_by_global_norm([], 1.0)
    assert clipped == []
    assert backend.array(norm) == 0
    assert reference.clip_by_global_norm([], 1.0) == ([], 0.0)
    assert reference.clip_by_global_norm_vjp(([], 1.0), [], 1.0) == []


# Every transform. A rule that isn't linear has no forward mode, and a Jacobian meets it row by row.

FORWARD = ("jvp", "dual", "jacfwd", "accumulator")


def expected_gradient(way, vjp, cotangent):
    """Return what a way has to make of a rule: of the cotangent, or of each row of a Jacobian."""
    if "jac" not in way.name:
        return vjp(cotangent)
    rows = np.eye(cotangent.size).reshape(-1, *cotangent.shape)
    return sum(weight * vjp(row) for weight, row in zip(cotangent.reshape(-1), rows))


def check(way, name, arguments, options, cotangent):
    """Compare one rule under one way with the reference, or see it refused."""
    x, cotangent = np.array([[1.5, -2.0, 0.25]]), np.array(cotangent)

    def function(x):
        return getattr(way.tricks, name)(x, *arguments, **options)

    if any(part in way.name for part in FORWARD):
        with pytest.raises(RuntimeError, match="must be differentiated in reverse mode"):
            way.value_and_vjp(function, [x], cotangent)
        return
    if way.name == "tape around vectorized_map":
        with pytest.raises(LookupError, match="remedy: the tape in the mapped function"):
            way.value_and_vjp(function, [x], cotangent)
        return
    value, (gradient,) = way.value_and_vjp(function, [x], cotangent)
    rule = getattr(reference, f"{name}_vjp")
    expected = expected_gradient(way, lambda c: rule(c, x, *arguments, **options), cotangent)
    np.testing.assert_allclose(value, x, rtol=way.rtol)
    np.testing.assert_allclose(gradient, expected, rtol=way.rtol, atol=1e-12)


def test_clip_gradient_under_every_transform(way):
    check(way, "clip_gradient", (-1.25, 1.25), {}, [[1.0, -3.0, 2.0]])


def test_clip_gradient_norm_under_every_transform(way):
    check(way, "clip_gradient_norm", (0.75,), {"axis": 1}, [[1.0, -3.0, 2.0]])


def test_normalize_gradient_under_every_transform(way):
    check(way, "normalize_gradient", (2.5,), {}, [[1.0, -3.0, 2.0]])


def test_project_to_max_norm_under_every_transform(way):
    max_norm, x, cotangent = 1.5, np.array([[1.5, -2.0, 0.5]]), np.array([[1.0, -3.0, 2.0]])
    value, (gradient,) = way.value_and_vjp(
        lambda t: way.tricks.project_to_max_norm(t, max_norm, -1), [x], cotangent
    )
    np.testing.assert_allclose(value, reference.project_to_max_norm(x, max_norm, -1), rtol=way.rtol)
    expected = reference.project_to_max_norm_vjp(cotangent, x, max_norm, -1)
    np.testing.assert_allclose(gradient, expected, rtol=way.rtol, atol=way.rtol)


def test_clip_by_global_norm_under_every_transform(way):
    max_norm, inputs = 1.5, [np.array([1.5, -2.0]), np.array([0.5, 1.0])]

    def summed(one, other):
        (one, other), norm = way.tricks.clip_by_global_norm((one, other), max_norm)
        return one + 2 * other + norm

    cotangent = np.array([1.0, -3.0])
    value, gradients = way.value_and_vjp(summed, inputs, cotangent)
    (one, other), norm = reference.clip_by_global_norm(inputs, max_norm)
    np.testing.assert_allclose(value, one + 2 * other + norm, rtol=way.rtol)
    expected = reference.clip_by_global_norm_vjp(
        ([cotangent, 2 * cotangent], cotangent.sum()), inputs, max_norm
    )
    np.testing.assert_allclose(gradients, expected, rtol=way.rtol, atol=way.rtol)


def check_twice(second, name, arguments):
    """Compare the derivative of a rule and its second use with the reference, or see them refused."""
    rule = getattr(reference, f"{name}_vjp")
    x, cotangent, direction = np.array([0.9, -0.2]), np.array([0.8, -0.6]), np.array([0.3, 0.7])

    def function(x):
        return getattr(second.tricks, name)(x, *arguments) ** 3

    if "jvp" in second.name or "accumulator" in second.name:
        with pytest.raises(RuntimeError, match="must be differentiated in reverse mode"):
            second.second_vjp(function, [x], cotangent, [direction])
        return

    def vjp(cotangent, x):
        return rule(3 * np.square(x) * cotangent, x, *arguments)

    (gradient,) = second.second_vjp(function, [x], cotangent, [direction])
    # The outer gradient meets the rule again on its way to x.
    (once,) = numerical_second_vjp(vjp, [x], cotangent, [direction])
    np.testing.assert_allclose(gradient, rule(once, x, *arguments), rtol=1e-5)


def test_clip_gradient_twice_under_every_transform(second):
    check_twice(second, "clip_gradient", (-0.5, 1.0))


def test_clip_gradient_norm_twice_under_every_transform(second):
    check_twice(second, "clip_gradient_norm", (1.5,))


def test_normalize_gradient_twice_under_every_transform(second):
    check_twice(second, "normalize_gradient", (2.5,))


def test_clip_by_global_norm_twice_under_every_transform(second):
    x, cotangent, direction = np.array([0.9, -0.2]), np.array([0.8, -0.6]), np.array([0.3, 0.7])

    def cubes(x):
        (one, other), norm = second.tricks.clip_by_global_norm([x, 2 * x], 0.5)
        return one**3 + other + norm

    def vjp(cotangent, x):
        (one, _), _ = reference.clip_by_global_norm([x, 2 * x], 0.5)
        bars = [3 * np.square(one) * cotangent, cotangent], cotangent.sum()
        one_bar, other_bar = reference.clip_by_global_norm_vjp(bars, [x, 2 * x], 0.5)
        return one_bar + 2 * other_bar

    (gradient,) = second.second_vjp(cubes, [x], cotangent, [direction])
    (expected,) = numerical_second_vjp(vjp, [x], cotangent, [direction])
    np.testing.assert_allclose(gradient, expected, rtol=1e-5)


def test_the_projection_twice_under_every_transform(second):
    x, cotangent, direction = np.array([0.9, -0.2]), np.array([0.8, -0.6]), np.array([0.3, 0.7])
    (gradient,) = second.second_vjp(
        lambda t: second.tricks.project_to_max_norm(t, 0.5, None) ** 3, [x], cotangent, [direction]
    )

    def vjp(cotangent, x):
        y = reference.project_to_max_norm(x, 0.5, None)
        return reference.project_to_max_norm_vjp(3 * np.square(y) * cotangent, x, 0.5, None)

    (expected,) = numerical_second_vjp(vjp, [x], cotangent, [direction])
    np.testing.assert_allclose(gradient, expected, rtol=1e-5)


# Batches

ROWS = np.array([[3.0, 4.0], [0.3, 0.4], [-6.0, 8.0]])
CLIPPED_ROWS = np.array([[0.6, 0.8], [0.3, 0.4], [-0.6, 0.8]])


def row_rule(tricks):
    return lambda row: tricks.clip_gradient_norm(row, 1.0)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("order", ["vjp inside", "vjp outside", "backward outside"])
def test_under_vmap_the_norm_is_per_example_in_torch(order, compiled):
    torch = pytest.importorskip("torch")
    rule = row_rule(pytest.importorskip("gradtricks.torch"))
    torch.compiler.reset()
    x, cotangents = torch.ones(3, 2, dtype=torch.float64), torch.tensor(ROWS)

    def compile_(function):
        return torch.compile(function, fullgraph=True, backend="aot_eager") if compiled else function

    if order == "vjp inside":
        gradient = compile_(torch.func.vmap(lambda x, c: torch.func.vjp(rule, x)[1](c)[0]))(x, cotangents)
    elif order == "vjp outside":
        outside = compile_(lambda x, c: torch.func.vjp(torch.func.vmap(rule), x)[1](c)[0])
        gradient = outside(x, cotangents)
    else:
        x.requires_grad_()
        (gradient,) = torch.autograd.grad(compile_(torch.func.vmap(rule))(x), x, cotangents)
    np.testing.assert_allclose(gradient, CLIPPED_ROWS)


@pytest.mark.parametrize(
    ("name", "arguments"), [("clip_gradient", (-0.5, 1.0)), ("normalize_gradient", (2.5,))]
)
def test_under_vmap_the_other_rules_are_per_example(backend, name, arguments):
    framework = backend.framework

    def rule(x):
        return getattr(backend.tricks, name)(x, *arguments)

    def tape(row):
        x, cotangent = row
        with framework.GradientTape() as recorder:
            recorder.watch(x)
            y = rule(x)
        return recorder.gradient(y, x, cotangent)

    x, cotangents = backend.tensor(np.ones((3, 2))), backend.tensor(ROWS)
    if backend.name == "torch":
        found = framework.func.vmap(lambda x, c: framework.func.vjp(rule, x)[1](c)[0])(x, cotangents)
    else:
        found = framework.vectorized_map(tape, (x, cotangents))
    expected = [getattr(reference, f"{name}_vjp")(row, np.ones(2), *arguments) for row in ROWS]
    np.testing.assert_allclose(backend.array(found), expected, rtol=1e-10)


def test_under_vmap_each_example_may_have_its_bound_in_torch():
    torch = pytest.importorskip("torch")
    tricks = pytest.importorskip("gradtricks.torch")

    def gradient(x, cotangent, bound):
        return torch.func.vjp(lambda x: tricks.clip_gradient_norm(x, bound), x)[1](cotangent)[0]

    found = torch.func.vmap(gradient)(
        torch.ones(3, 2), torch.tensor(ROWS).float(), torch.tensor([1.0, 2.0, 5.0])
    )
    np.testing.assert_allclose(found, [[0.6, 0.8], [0.3, 0.4], [-3.0, 4.0]], rtol=1e-6)


@pytest.mark.parametrize("graph", [False, True])
def test_under_vectorized_map_the_norm_is_per_example_in_tensorflow(graph):
    tf = pytest.importorskip("tensorflow")
    rule = row_rule(pytest.importorskip("gradtricks.tensorflow"))

    def one(row):
        x, cotangent = row
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = rule(x)
        return tape.gradient(y, x, cotangent)

    def batch(x, cotangents):
        return tf.vectorized_map(one, (x, cotangents))

    batch = tf.function(batch) if graph else batch
    np.testing.assert_allclose(batch(tf.ones((3, 2), tf.float64), tf.constant(ROWS)), CLIPPED_ROWS)


@pytest.mark.parametrize("inner", ["python", "tf.function"])
@pytest.mark.parametrize("outer", ["python", "tf.function"])
def test_a_tape_around_vectorized_map_is_refused_in_tensorflow(inner, outer):
    tf = pytest.importorskip("tensorflow")
    rule = row_rule(pytest.importorskip("gradtricks.tensorflow"))
    if inner == "tf.function":
        rule = tf.function(rule)
        rule(tf.ones(2))

    def gradient():
        x = tf.ones((3, 2))
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.vectorized_map(rule, x)
        return tape.gradient(y, x)

    # AutoGraph wraps a LookupError in an error of its own.
    with pytest.raises(Exception, match=r"clip_gradient_norm in a tf\.vectorized_map"):
        (tf.function(gradient) if outer == "tf.function" else gradient)()


def test_a_tape_around_map_fn_clips_each_example_in_tensorflow():
    tf = pytest.importorskip("tensorflow")
    rule = row_rule(pytest.importorskip("gradtricks.tensorflow"))
    x = tf.ones((3, 2), tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.map_fn(rule, x)
    np.testing.assert_allclose(tape.gradient(y, x, ROWS), CLIPPED_ROWS)


def test_a_jacobian_meets_the_rule_row_by_row(backend):
    def squares(x):
        return backend.tricks.clip_gradient(x, -1.0, 1.0) ** 2

    x = backend.tensor([0.25, 3.0])
    if backend.name == "torch":
        jacobian = backend.framework.func.jacrev(squares)(x)
    else:
        with backend.framework.GradientTape() as tape:
            tape.watch(x)
            y = squares(x)
        jacobian = tape.jacobian(y, x)
    np.testing.assert_array_equal(backend.array(jacobian), [[0.5, 0.0], [0.0, 1.0]])


def test_an_axis_gives_a_norm_per_example(backend):
    _, gradient = reaching(backend, "clip_gradient_norm", ROWS, 1.0, axis=1)
    np.testing.assert_allclose(gradient, CLIPPED_ROWS)
    _, gradient = reaching(backend, "clip_gradient_norm", ROWS[..., None], 1.0, axis=(1, 2))
    np.testing.assert_allclose(gradient, CLIPPED_ROWS[..., None])


# Forward mode where it is hidden


@pytest.mark.parametrize("around", ["accumulator", "function of accumulator", "tape before", "tape within"])
def test_an_accumulator_around_a_function_is_refused_in_tensorflow(around):
    tf = pytest.importorskip("tensorflow")
    tricks = pytest.importorskip("gradtricks.tensorflow")
    # What AutoGraph rewrites isn't seen by coverage.
    rule = tf.function(lambda x: tricks.clip_gradient_norm(x, 0.5), autograph=False)
    x = tf.constant([1.0, 2.0])

    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = rule(x) ** 2
        return tape.gradient(y, x)

    def tangent(function):
        with tf.autodiff.ForwardAccumulator(x, tf.ones(2)) as accumulator:
            y = function(x)
        return accumulator.jvp(y)

    if around == "tape before":
        gradient(x)
    calls = {
        "function of accumulator": tf.function(lambda: tangent(rule)),
        "tape within": lambda: tangent(tf.function(gradient)),
    }
    for _ in range(2):
        with pytest.raises(RuntimeError, match="clip_gradient_norm must be differentiated in reverse mode"):
            calls.get(around, lambda: tangent(rule))()


@pytest.mark.parametrize("graph", [False, True])
def test_a_tangent_of_the_incoming_gradient_is_welcome_in_tensorflow(graph):
    tf = pytest.importorskip("tensorflow")
    tricks = pytest.importorskip("gradtricks.tensorflow")
    x = tf.ones(2, tf.float64)

    def gradient(weights):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(weights * tricks.clip_gradient_norm(x, 1.0))
        return tape.gradient(loss, x)

    gradient = tf.function(gradient) if graph else gradient
    weights, tangent = tf.constant([3.0, 4.0], tf.float64), tf.constant([1.0, 2.0], tf.float64)
    with tf.autodiff.ForwardAccumulator(weights, tangent) as accumulator:
        found = accumulator.jvp(gradient(weights))
    # The derivative of w / |w| along the tangent.
    np.testing.assert_allclose(found, np.array([1.0, 2.0]) / 5 - np.array([3.0, 4.0]) * 11 / 125)


@pytest.mark.parametrize("fullgraph", [False, True])
def test_dual_numbers_in_a_compiled_function_are_refused_in_torch(fullgraph):
    torch = pytest.importorskip("torch")
    tricks = pytest.importorskip("gradtricks.torch")
    torch.compiler.reset()
    clip = torch.compile(
        lambda x: tricks.clip_gradient(x, -1.0, 1.0), backend="aot_eager", fullgraph=fullgraph
    )
    clip(torch.ones(2))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(torch.ones(2), torch.ones(2))
        with pytest.raises(
            RuntimeError, match=r"must not meet dual numbers|must be differentiated in reverse"
        ):
            clip(dual)
    assert clip(torch.ones(2)).tolist() == [1, 1]


def test_the_compiler_leaves_the_function_unopened_in_torch():
    # The compiler calls this by itself, where no tracer of coverage can look.
    torch = pytest.importorskip("torch")
    clipping = pytest.importorskip("gradtricks.torch.clipping")
    assert clipping._known_to_the_compiler()
    assert torch._dynamo.trace_rules.is_callable_allowed(clipping._apply_unopened)


# Extremes


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("name", CASES)
def test_forward_returns_the_same_bits(backend, name, dtype):
    arguments, options = CASES[name]
    x = backend.cast(backend.tensor(np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 3e38, 1e-45, 0.1])), dtype)
    y = getattr(backend.tricks, name)(x, *arguments, **options)
    assert y.dtype == x.dtype
    assert backend.array(y).tobytes() == backend.array(x).tobytes()


@pytest.mark.parametrize("way", ["value_and_vjp", "compiled_value_and_vjp"])
@pytest.mark.parametrize(
    ("gradient", "clipped"),
    [
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
    ],
)
def test_extreme_gradients(backend, way, gradient, clipped):
    gradient = np.array(gradient, np.float32)
    found = getattr(backend, way)(
        lambda t: backend.tricks.clip_gradient_norm(t, 1.0), [np.ones(2, np.float32)], gradient
    )[1][0]
    # Frameworks may take what is below the normal numbers for zero.
    np.testing.assert_allclose(found, np.array(clipped), rtol=1e-6, atol=1e-38)
    together, norm = backend.tricks.clip_by_global_norm([backend.tensor(g) for g in gradient], 1.0)
    np.testing.assert_allclose([backend.array(g) for g in together], np.array(clipped), rtol=1e-6, atol=1e-38)
    exact = np.sqrt(np.sum(np.square(gradient.astype(np.float64))))
    exact = exact if exact < 3.4e38 else np.inf if exact == exact else np.nan
    np.testing.assert_allclose(backend.array(norm), exact, rtol=1e-6, atol=1e-38)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_small_types_dont_overflow(backend, dtype):
    _, gradient = reaching(backend, "clip_gradient_norm", np.full(2, 300.0), 1.0, dtype=dtype)
    np.testing.assert_allclose(gradient, np.full(2, 0.5**0.5), rtol=1e-2)
    half = [backend.cast(backend.tensor(np.full(2, 300.0)), dtype), backend.tensor(np.float32([0.0]))]
    (clipped, _), norm = backend.tricks.clip_by_global_norm(half, 1.0)
    assert clipped.dtype == half[0].dtype
    np.testing.assert_allclose(backend.array(clipped), np.full(2, 0.5**0.5), rtol=1e-2)
    np.testing.assert_allclose(backend.array(norm), 300 * 2**0.5, rtol=1e-6)


def test_clip_gradient_bounds_infinities_and_keeps_nan(backend):
    _, gradient = reaching(backend, "clip_gradient", [np.inf, -np.inf, np.nan], -1.0, 2.0)
    np.testing.assert_array_equal(gradient, [2.0, -1.0, np.nan])


def test_normalize_gradient_at_extremes(backend):
    for gradient, expected in [
        ([0.0, -0.0], [0.0, -0.0]),
        ([1e-300, 0.0], [5.0, 0.0]),
        ([1e300, 1e300], [12.5**0.5] * 2),
        ([-np.inf, 1.0], [-5.0, 0.0]),
        ([np.nan, 1.0], [np.nan, np.nan]),
    ]:
        _, found = reaching(backend, "normalize_gradient", gradient, 5.0)
        np.testing.assert_allclose(found, expected, atol=1e-300)


def test_the_norm_of_infinite_gradients_has_a_gradient(backend):
    # A factor of infinity in the norm would make NaN of every gradient.
    _, (gradient,) = backend.value_and_vjp(
        lambda t: backend.tricks.clip_by_global_norm([t], 1.0)[1], [np.array([np.inf, 1.0])], np.array(0.0)
    )
    np.testing.assert_array_equal(gradient, [0.0, 0.0])


# Identities


@given(data=st.data(), dtype=st.sampled_from(["float16", "bfloat16", "float32", "float64"]))
def test_clipping_twice_is_clipping_once(backend, data, dtype):
    x = data.draw(arrays(np.float64, st.integers(1, 50), elements=st.floats(-100, 100)))
    x = backend.cast(backend.tensor(x), dtype)
    once = backend.tricks.project_to_max_norm(x, 1.7, None)
    twice = backend.tricks.project_to_max_norm(once, 1.7, None)
    np.testing.assert_array_equal(backend.array(once), backend.array(twice))


@pytest.mark.parametrize("size", [2, 1000])
def test_a_norm_equal_to_the_maximum_is_left_alone(backend, size):
    gradient = np.random.default_rng(0).normal(size=size).astype(np.float32)
    max_norm = float(np.linalg.norm(gradient))
    (clipped,), _ = backend.tricks.clip_by_global_norm([backend.tensor(gradient)], max_norm)
    np.testing.assert_array_equal(backend.array(clipped), gradient)
    projected = backend.tricks.project_to_max_norm(backend.tensor(gradient), max_norm, 0)
    np.testing.assert_array_equal(backend.array(projected), gradient)


def test_a_maximum_of_zero_stops_the_gradient(backend):
    _, gradient = reaching(backend, "clip_gradient_norm", [3.0, -4.0], 0.0)
    np.testing.assert_array_equal(gradient, [0.0, 0.0])


@pytest.mark.parametrize("name", CASES)
def test_bounds_may_be_tensors_and_get_no_gradient(backend, name):
    arguments, _ = CASES[name]
    tensors = [backend.tensor(np.float32(a)) for a in arguments]
    _, gradient = reaching(backend, name, [3.0, -4.0], *tensors)
    _, expected = reaching(backend, name, [3.0, -4.0], *arguments)
    np.testing.assert_allclose(gradient, expected, rtol=1e-6)


def test_structures_and_missing_gradients_are_kept(backend):
    tree = {"layer": (backend.tensor([3.0]), None), "rest": [backend.tensor([[4.0]])]}
    clipped, norm = backend.tricks.clip_by_global_norm(tree, 1.0)
    assert float(norm) == 5
    assert clipped["layer"][1] is None
    np.testing.assert_allclose(backend.array(clipped["layer"][0]), [0.6])
    np.testing.assert_allclose(backend.array(clipped["rest"][0]), [[0.8]])


@pytest.mark.parametrize("huge", [1e300, 10**300])
def test_a_bound_beyond_the_dtype_is_its_largest_number(backend, huge):
    gradient, largest = np.array([3.0, 0.0]), np.finfo(np.float32).max
    for name, arguments in [("clip_gradient", (-huge, huge)), ("clip_gradient_norm", (huge,))]:
        _, found = reaching(backend, name, gradient, *arguments, dtype="float32")
        np.testing.assert_array_equal(found, gradient)
    _, found = reaching(backend, "normalize_gradient", gradient, huge, dtype="float32")
    np.testing.assert_allclose(found, [largest, 0.0])
    _, (found,) = backend.value_and_vjp(
        lambda t: backend.tricks.project_to_max_norm(t, huge, None), [np.float32([np.inf, 1.0])], gradient
    )
    assert not np.isnan(found).any()
    (clipped,), _ = backend.tricks.clip_by_global_norm([backend.tensor(gradient)], huge)
    np.testing.assert_array_equal(backend.array(clipped), gradient)


def test_variables_of_keras_are_clipped_in_tensorflow():
    keras = pytest.importorskip("keras")
    tricks = pytest.importorskip("gradtricks.tensorflow")
    (clipped,), norm = tricks.clip_by_global_norm([keras.Variable(np.float32([3.0, 4.0]))], 1.0)
    np.testing.assert_allclose(clipped, [0.6, 0.8])
    assert norm == 5


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("clip_gradient", (-1.0, 1.0), [[0.0], [1.0], [0.75]]),
        ("clip_gradient_norm", (0.5,), np.array([[0.0], [1.5], [0.75]]) * 0.5 / 2.8125**0.5),
        ("normalize_gradient", (5.0,), np.array([[0.0], [1.5], [0.75]]) * 5 / 2.8125**0.5),
    ],
)
def test_sparse_gradients_become_dense_in_torch(name, arguments, expected):
    torch = pytest.importorskip("torch")
    tricks = pytest.importorskip("gradtricks.torch")
    table = torch.ones(3, 1, requires_grad=True)
    guarded = getattr(tricks, name)(table, *arguments)
    rows = torch.nn.functional.embedding(torch.tensor([1, 1, 2]), guarded, sparse=True)
    (0.75 * rows).sum().backward()
    np.testing.assert_allclose(table.grad, expected, rtol=1e-6)
    with pytest.raises(TypeError, match=r"gradients must be dense; got torch.sparse_coo; remedy: .*to_dense"):
        tricks.clip_by_global_norm([torch.eye(2).to_sparse()], 1.0)


def test_a_changing_bound_doesnt_retrace_in_tensorflow():
    tf = pytest.importorskip("tensorflow")
    tricks = pytest.importorskip("gradtricks.tensorflow")
    traces = []

    @tf.function
    def clipped(x, max_norm):
        traces.append(max_norm)
        return tricks.clip_gradient_norm(x, max_norm)

    for max_norm in (1.0, 2.0, 3.0):
        clipped(tf.ones(2), tf.constant(max_norm))
    assert len(traces) == 1


def test_sparse_gradients_are_clipped_in_tensorflow():
    tf = pytest.importorskip("tensorflow")
    tricks = pytest.importorskip("gradtricks.tensorflow")
    table = tf.Variable([[1.0], [2.0], [3.0]])
    with tf.GradientTape() as tape:
        rows = tf.gather(tricks.clip_gradient(table, -1.0, 1.0), [0, 0, 2])
        loss = tf.reduce_sum(0.75 * rows)
    np.testing.assert_array_equal(tape.gradient(loss, table), [[1.0], [0.0], [0.75]])


def test_an_unknown_rank_has_no_axes_to_name_in_tensorflow():
    tf = pytest.importorskip("tensorflow")
    tricks = pytest.importorskip("gradtricks.tensorflow")

    @tf.function(input_signature=[tf.TensorSpec(None)])
    def whole(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tricks.clip_gradient_norm(x, 1.0)
        return tape.gradient(y, x)

    np.testing.assert_allclose(whole(tf.ones(4)), np.full(4, 0.5))
    named = tf.function(lambda x: tricks.clip_gradient_norm(x, 1.0, axis=0), autograph=False)
    with pytest.raises(ValueError, match="axis must come with an x of known rank; got 0 and none; remedy"):
        named.get_concrete_function(tf.TensorSpec(None))


# Peers


def test_cases_of_peers(backend):
    # TensorFlow, kernel_tests/math_ops/clip_ops_test.py
    x = np.array([[-3.0, 0.0, 0.0], [4.0, 0.0, 3.0]])
    for axis, expected in [(0, [[-2.4, 0, 0], [3.2, 0, 3]]), (1, [[-3, 0, 0], [3.2, 0, 2.4]])]:
        _, gradient = reaching(backend, "clip_gradient_norm", x, 4.0, axis=axis)
        np.testing.assert_allclose(gradient, expected, rtol=1e-12)
        projected = backend.tricks.project_to_max_norm(backend.tensor(x), 4.0, axis)
        np.testing.assert_allclose(backend.array(projected), expected, rtol=1e-12)
    gradients = [backend.tensor([[-2.0, 0.0, 0.0], [4.0, 0.0, 0.0]]), None, backend.tensor([1.0, -2.0])]
    (one, missing, other), norm = backend.tricks.clip_by_global_norm(gradients, 4.0)
    np.testing.assert_allclose(backend.array(one), [[-1.6, 0, 0], [3.2, 0, 0]], rtol=1e-6)
    np.testing.assert_allclose(backend.array(other), [0.8, -1.6], rtol=1e-6)
    assert missing is None
    assert float(norm) == 5
    _, gradient = reaching(backend, "clip_gradient", [[-5.0, 2.0, 3.0], [4.0, 5.0, 6.0]], -4.4, 4.4)
    np.testing.assert_array_equal(gradient, [[-4.4, 2.0, 3.0], [4.0, 4.4, 4.4]])


def test_squares_of_peers(backend):
    # Sonnet 1, clip_gradient_test.py: z = y * y with the gradient clipped to [2, 3]
    _, (gradient,) = backend.value_and_vjp(
        lambda t: backend.tricks.clip_gradient(t, 2.0, 3.0) ** 2, [np.array([[0.5], [2.0]])], np.ones((2, 1))
    )
    np.testing.assert_array_equal(gradient, [[2.0], [3.0]])
    # RLax, clipping_test.py: the clipped square has the gradient of the Huber loss
    xs, slopes = np.array([-2, -1, -0.5, 0, 0.5, 1, 2]), [-1, -1, -0.5, 0, 0.5, 1, 1]
    _, (gradient,) = backend.value_and_vjp(
        lambda t: 0.5 * backend.tricks.clip_gradient(t, -1.0, 1.0) ** 2, [xs], np.ones(7)
    )
    np.testing.assert_array_equal(gradient, slopes)


# Errors


@pytest.mark.parametrize(
    ("name", "arguments", "error", "message"),
    [
        ("clip_gradient", (1.0, -1.0), ValueError, "gradient_min must be <= gradient_max; got 1.0 and -1.0"),
        ("clip_gradient", (float("nan"), 1.0), ValueError, "gradient_min must be finite; got nan"),
        ("clip_gradient", (0.0, True), TypeError, "gradient_max must be a real number; got bool"),
        ("clip_gradient_norm", (-1.0,), ValueError, r"max_norm must lie in \[0, inf\); got -1.0"),
        ("clip_gradient_norm", ("two",), TypeError, "max_norm must be a real number; got str"),
        ("clip_gradient_norm", (float("inf"),), ValueError, "max_norm must be finite; got inf"),
        ("normalize_gradient", (-1.0,), ValueError, r"norm must lie in \[0, inf\); got -1.0"),
        ("project_to_max_norm", (-1.0, None), ValueError, r"max_norm must lie in \[0, inf\); got -1.0"),
        ("project_to_max_norm", (1.0, 2), ValueError, "axis must name different axes of 2; got 2"),
        (
            "project_to_max_norm",
            (1.0, (0, -2)),
            ValueError,
            r"axis must name different axes of 2; got \(0, -2\)",
        ),
        ("project_to_max_norm", (1.0, ()), ValueError, r"axis must name different axes of 2; got \(\)"),
        (
            "project_to_max_norm",
            (1.0, 0.5),
            TypeError,
            "axis must be an integer or a sequence of them; got 0.5",
        ),
        (
            "project_to_max_norm",
            (1.0, True),
            TypeError,
            "axis must be an integer or a sequence of them; got True",
        ),
    ],
)
def test_bad_options_say_what_is_expected(backend, name, arguments, error, message):
    with pytest.raises(error, match=message):
        getattr(backend.tricks, name)(backend.tensor(np.ones((2, 3))), *arguments)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [(name, arguments) for name, (arguments, _) in CASES.items()] + [("project_to_max_norm", (1.0, 0))],
)
def test_bad_tensors_say_what_is_expected(backend, name, arguments):
    function = getattr(backend.tricks, name)
    with pytest.raises(TypeError, match=r"x must be a .*Tensor; got ndarray; remedy"):
        function(np.ones(2), *arguments)
    with pytest.raises(TypeError, match="x must be floating-point; got"):
        function(backend.tensor([1, 2]), *arguments)
    wide, integer = backend.tensor([1.0, 2.0]), backend.tensor(1)
    with pytest.raises(ValueError, match=r"must be a number or have shape \(\); got \(2,\)"):
        function(backend.tensor([1.0, 2.0]), wide, *arguments[1:])
    with pytest.raises(TypeError, match="must be floating-point; got"):
        function(backend.tensor([1.0, 2.0]), integer, *arguments[1:])


def test_bad_gradients_say_what_is_expected(backend):
    with pytest.raises(TypeError, match=r"gradients must be a .*Tensor; got ndarray; remedy"):
        backend.tricks.clip_by_global_norm([np.ones(2)], 1.0)
    with pytest.raises(TypeError, match="gradients must be floating-point; got"):
        backend.tricks.clip_by_global_norm([backend.tensor([1])], 1.0)
    with pytest.raises(ValueError, match=r"max_norm must lie in \[0, inf\); got -1.0"):
        backend.tricks.clip_by_global_norm([backend.tensor([1.0])], -1.0)
