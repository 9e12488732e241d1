"""discounted_returns, advantages, and the losses of policy gradients."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from agreeing import ARRAY, assert_agrees, assert_agrees_twice, assert_close, assert_refused
from gradtricks import reference
from transforms import TorchForwardOverReverse, TorchJvp

TOLERANCE = {"rtol": 1e-10, "atol": 1e-10}
ACTIONS = np.array([1, 0])
EQUAL = [[0.1] * 7, [0.1] * 100_000, [0.98] * 4096, [5.0], [0.0, 0.0], [1e30] * 3]
WAYS = pytest.mark.parametrize("way", ["value_and_vjp", "graph_value_and_vjp"])


@given(data=st.data(), discount=st.sampled_from([0.0, 0.5, 0.99, 1.0]), value=st.sampled_from([0.0, -2.0]))
@settings(max_examples=40)
def test_returns_agree_with_the_reference(backend, data, discount, value):
    shape = data.draw(array_shapes(min_dims=1, max_dims=2, min_side=0, max_side=40))
    r_t = data.draw(arrays(np.float64, shape, elements=st.sampled_from([0.0, 0.0, 0.0, 1.0, -1.0, 0.25])))
    cotangent = np.cos(np.arange(r_t.size, dtype=float)).reshape(shape)
    assert_agrees(backend, "discounted_returns", [r_t], cotangent, discount, value)
    inputs = [r_t, discount * (r_t == 0), np.full(shape, value)]
    assert_agrees(backend, "discounted_returns", inputs, cotangent)


@WAYS
def test_long_returns_neither_underflow_nor_drift(backend, way):
    rewards = np.random.default_rng(0).normal(size=(2048, 3)).astype(np.float32)
    wide = rewards.astype(np.float64)
    expected = reference.discounted_returns(wide, 0.9), reference.discounted_returns_vjp(wide, wide, 0.9)[0]
    value, gradients = getattr(backend, way)(
        lambda r: backend.tricks.discounted_returns(r, 0.9), [rewards], rewards
    )
    assert_close([value, *gradients], expected, 2e-6, 2e-6)


def estimates(tricks, x, ends):
    """Return all that runs through time, for rewards ``x[1:]`` and values ``x``."""
    return (
        tricks.discounted_returns(x[1:], 0.9),
        tricks.discounted_returns(x[1:], ends, 3.0),
        tricks.truncated_generalized_advantage_estimation(x[1:], ends, 0.75, x),
    )


def check_estimates(values, gradient, x, ends):
    """Compare these, and the gradient of the sum of all, with the reference."""
    ones = np.ones_like(ends)
    through, *_, expected = reference.truncated_generalized_advantage_estimation_vjp(
        ones, x[1:], ends, 0.75 * ones, x
    )
    for discount in (0.9, ends):
        through = through + reference.discounted_returns_vjp(ones, x[1:], discount)[0]
    expected[1:] += through
    assert_close([*values, gradient], [*estimates(reference, x, ends), expected])


@pytest.mark.parametrize("jit_compile", [False, True])
def test_a_time_axis_of_unknown_length_in_a_graph(in_tensorflow, jit_compile):
    tf = in_tensorflow.framework

    def values_and_gradient(x, ends):
        with tf.GradientTape() as tape:
            tape.watch(x)
            values = estimates(in_tensorflow.tricks, x, ends)
        return values, tape.gradient(values, x)

    signature = [tf.TensorSpec([None, 2], tf.float64)] * 2
    graph = tf.function(values_and_gradient, signature, autograph=False, jit_compile=jit_compile)
    for steps in (0, 1, 2, 37, 64):
        x = np.where(np.arange(steps * 2 + 2) % 7 == 0, 1.0, 0.0).reshape(steps + 1, 2)
        ends = 0.9 * (x[1:] == 0)
        check_estimates(*graph(tf.constant(x), tf.constant(ends)), x, ends)


def test_coefficients_may_be_scalar_tensors(backend):
    rewards, discount = np.array([1.0, 2.0, 4.0]), np.array(0.5)
    value, (_, gradient) = backend.value_and_vjp(
        backend.tricks.discounted_returns, [rewards, discount], np.array([1.0, 0.0, 0.0])
    )
    assert value.tolist() == [3.0, 4.0, 4.0]
    assert gradient == 2 + 2 * 0.5 * 4
    rewards, half, values = map(backend.tensor, (rewards, discount, np.array([1.0, 2.0, 4.0, 8.0])))
    estimate = backend.tricks.truncated_generalized_advantage_estimation
    found, expected = (backend.array(estimate(rewards, d, d, values)) for d in (half, 0.5))
    np.testing.assert_array_equal(found, expected)


@given(
    x=arrays(
        np.float64, array_shapes(max_dims=3, min_side=2), elements=st.integers(-1000, 1000), unique=True
    ),
    factor=st.sampled_from([1.0, 1e-200, 1e200]),
)
def test_standardize_agrees_with_the_reference(backend, x, factor):
    x = x * factor
    cotangent = np.cos(np.arange(x.size, dtype=float)).reshape(x.shape)
    value, (gradient,) = backend.value_and_vjp(backend.tricks.standardize, [x], cotangent)
    np.testing.assert_allclose(value, reference.standardize(x), **TOLERANCE)
    slope = reference.standardize_vjp(cotangent, x)
    np.testing.assert_allclose(gradient, slope, rtol=1e-10, atol=1e-10 / factor)


@pytest.mark.parametrize(
    ("way", "x"),
    [("value_and_vjp", x) for x in EQUAL] + [("graph_value_and_vjp", x) for x in EQUAL[:2]],
)
def test_standardize_of_equal_elements_is_zero_with_zero_gradient(backend, way, x):
    x = np.array(x, np.float32)
    ones = np.ones_like(x)
    value, gradients = getattr(backend, way)(backend.tricks.standardize, [x], ones)
    oracle = reference.standardize(x), reference.standardize_vjp(ones, x)
    assert not np.any([value, *gradients, *oracle])


def test_standardize_of_extremes(backend):
    def standardized(x, dtype="float32"):
        return backend.array(backend.tricks.standardize(backend.cast(backend.tensor(x), dtype)))

    assert standardized(np.zeros((0, 3))).shape == (0, 3)
    np.testing.assert_allclose(standardized([1e30, 3e30]), [-1, 1], rtol=1e-6)
    np.testing.assert_array_equal(standardized([100.0, 300.0], "float16"), [-1, 1])
    assert np.isnan(standardized([1.0, np.nan])).all()


@given(data=st.data())
def test_loss_agrees_with_the_reference(backend, data):
    shape = data.draw(array_shapes(max_dims=2, max_side=5))
    finite = st.floats(-20, 20)
    logits = data.draw(arrays(np.float64, (*shape, 4), elements=finite))
    others = [data.draw(arrays(np.int64, shape, elements=st.integers(0, 3)))]
    others += [data.draw(arrays(np.float64, shape, elements=finite)) for _ in range(2)]
    assert_agrees(backend, "policy_gradient_loss", [logits], 1.0, *others)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int32", "uint32", "int64", "uint64"])
def test_actions_of_every_width_and_advantages_of_another(backend, dtype):
    inputs = np.zeros((1, 2), np.float32), np.array([1], dtype), np.array([1.0])
    loss = backend.tricks.policy_gradient_loss(*map(backend.tensor, inputs))
    assert "float32" in str(loss.dtype)
    assert float(loss) == pytest.approx(np.log(2))


def test_the_loss_can_be_mapped_in_torch(in_torch):
    torch, tricks = in_torch.framework, in_torch.tricks
    logits, a_t, adv_t = torch.zeros(3, 1, 2), torch.tensor([[0], [1], [0]]), torch.ones(3, 1)
    losses = torch.func.vmap(tricks.policy_gradient_loss)(logits, a_t, adv_t)
    torch.testing.assert_close(losses, torch.full((3,), np.log(2), dtype=torch.float32))


def test_all_examples_of_a_batch_may_share_discounts_in_torch(in_torch):
    torch, discounted_returns = in_torch.framework, in_torch.tricks.discounted_returns
    r_t, discount_t = torch.rand(3, 4), torch.tensor([0.9, 0.0, 0.5, 1.0])
    mapped = torch.func.vmap(lambda r: discounted_returns(r, discount_t))(r_t)
    torch.testing.assert_close(mapped, torch.stack([discounted_returns(r, discount_t) for r in r_t]))


def test_losses_of_rlax_own_tests(backend):
    # The numbers of rlax/_src/policy_gradients_test.py: PolicyGradientLossTest, EntropyLossTest,
    # ClippedSurrogatePGLossTest.
    logits = np.array([[1.0, 1.0, 1.0], [2.0, 0.0, 0.0], [-1.0, -2.0, -3.0]])
    old_logits = np.array([[1.0, 1.0, 1.0], [2.0, 0.0, 0.0], [-3.0, -2.0, -1.0]])
    weights, advantages = np.array([-2.0, 2.0, 0.0]), np.array([0.3, 0.2, 0.1])
    actions = np.array([[0, 1, 2], [0, 0, 0]])
    cases = [
        (logits, actions[0], advantages, weights, 0.0788835088, 0.288693),
        (logits + 1, actions[1], -advantages, weights - 1, 0.327200909, 1.15422),
    ]
    for *inputs, loss, entropy in cases:
        z, a_t, adv_t, w_t = map(backend.tensor, inputs)
        found = backend.tricks.policy_gradient_loss(z, a_t, adv_t, w_t)
        assert float(found) == pytest.approx(loss, abs=1e-6)
        assert float(backend.tricks.entropy_loss(z, w_t)) == pytest.approx(entropy, abs=1e-5)
    pi, old_pi = (np.exp(z) / np.exp(z).sum(-1, keepdims=True) for z in (logits, old_logits))
    ratio = backend.tensor((pi / old_pi)[np.arange(3), actions[0]])
    for adv_t, loss in [(advantages, -0.17117467), (-advantages, 0.19333333)]:
        clipped = backend.tricks.clipped_surrogate_pg_loss(ratio, backend.tensor(adv_t), 0.2)
        assert float(clipped) == pytest.approx(loss, abs=1e-5)


@pytest.mark.parametrize(
    ("lambda_", "expected"),
    [
        (1.0, [[-1.45118, -4.4557, 2.5396, 0.5249, -0.49], [3.0, 2.0, 1.0, 0.0, -4.9]]),
        (0.7, [[-0.676979, -5.248167, 2.4846, 0.6704, -0.49], [2.2899, 1.73, 1.0, 0.0, -4.9]]),
        (0.4, [[0.56731, -6.042, 2.3431, 0.815, -0.49], [1.725, 1.46, 1.0, 0.0, -4.9]]),
    ],
)
def test_advantages_of_rlax_own_test(backend, lambda_, expected):
    # The numbers of rlax/_src/multistep_test.py, TruncatedGeneralizedAdvantageEstimationTest, [B, T].
    r_t = np.array([[0.0, 0.0, 1.0, 0.0, -0.5], [0.0, 0.0, 0.0, 0.0, 1.0]]).T
    values = np.array([[1.0, 4.0, -3.0, -2.0, -1.0, -1.0], [-3.0, -2.0, -1.0, 0.0, 5.0, -1.0]]).T
    discount_t = np.array([[0.99] * 5, [0.9, 0.9, 0.9, 0.0, 0.9]]).T
    estimate = backend.tricks.truncated_generalized_advantage_estimation
    r_t, discount_t, values = (backend.tensor(x) for x in (r_t, discount_t, values))
    adv_t = estimate(r_t, discount_t, lambda_, values)
    np.testing.assert_allclose(backend.array(adv_t).T, expected, atol=1e-3)


def test_returns_of_rlax_own_test(backend):
    # The numbers of rlax/_src/multistep_test.py, DiscountedReturnsTest.
    r_t = np.array([[1.0, 0.0, -1.0, 0.0, 1.0], [0.5, 0.8, -0.7, 0.0, 2.1]]).T
    discount_t = np.array([[0.5, 0.9, 1.0, 0.5, 0.8], [0.9, 0.5, 0.3, 0.8, 0.7]]).T
    v_t = np.array([[3.0, 1.0, 5.0, -5.0, 3.0], [-1.7, 1.2, 2.3, 2.2, 2.7]]).T
    g_t = backend.tricks.discounted_returns(*(backend.tensor(x) for x in (r_t, discount_t, v_t)))
    expected = [[1.315, 0.63, 0.7, 1.7, 3.4], [1.33592, 0.9288, 0.2576, 3.192, 3.99]]
    np.testing.assert_allclose(backend.array(g_t).T, expected, rtol=1e-6)


@given(data=st.data(), discount=st.sampled_from([0.0, 0.9, 1.0]))
def test_advantages_agree_with_the_reference(backend, data, discount):
    shape = data.draw(array_shapes(min_dims=1, max_dims=2, min_side=0, max_side=9))
    numbers = st.floats(-3, 3)
    r_t, lambda_ = (data.draw(arrays(np.float64, shape, elements=numbers)) for _ in range(2))
    discount_t = data.draw(arrays(np.float64, shape, elements=st.sampled_from([0.0, 0.5, discount])))
    values = data.draw(arrays(np.float64, (shape[0] + 1, *shape[1:]), elements=numbers))
    inputs, cotangent = [r_t, discount_t, lambda_, values], np.cos(np.arange(r_t.size)).reshape(shape)
    assert_agrees(
        backend, "truncated_generalized_advantage_estimation", inputs, cotangent, rtol=1e-9, atol=1e-9
    )


INFINITE = np.where(np.arange(70) == 68, np.inf, 1.0)


@WAYS
def test_the_end_of_an_episode_keeps_an_infinity_back(backend, way):
    # In a graph the recursion is run in another way, with powers of the discount that underflow.
    small = np.full(70, -1e-200)
    small[10] = 0

    def function(rewards):
        discounts = [backend.tensor(np.zeros(70)), 0.0, 1e-200, backend.tensor(small)]
        return backend.framework.stack([backend.tricks.discounted_returns(rewards, d) for d in discounts])

    value, _ = getattr(backend, way)(function, [INFINITE], np.ones((4, 70)))
    alternating = np.where(np.arange(70) % 2, -np.inf, np.inf)  # from step 11 on
    alternating[:11] = 1
    alternating[69] = 1
    expected = [INFINITE, INFINITE, [np.inf] * 69 + [1.0], alternating]
    np.testing.assert_array_equal(value, expected)


@WAYS
def test_what_comes_after_the_end_of_an_episode_does_not_reach_its_advantages(backend, way):
    discounts = np.array([0.5, 0.0, 0.5])

    def estimated(r_t, discount_t, values):
        return backend.tricks.truncated_generalized_advantage_estimation(r_t, discount_t, 1.0, values)

    for value in (np.inf, np.nan):
        values = np.array([1.0, 2.0, value, 4.0])
        adv_t, gradients = getattr(backend, way)(estimated, [np.ones(3), discounts, values], [1.0, 1.0, 0.0])
        np.testing.assert_array_equal(adv_t[:2], [0.5, -1.0])
        np.testing.assert_array_equal(gradients[0], [1.0, 1.5, 0.0])
        np.testing.assert_array_equal(gradients[1], [1.0, 0.0, 0.0])
        np.testing.assert_array_equal(gradients[2], [-1.0, -1.0, 0.0, 0.0])
        oracle = reference.truncated_generalized_advantage_estimation(
            np.ones(3), discounts, np.ones(3), values
        )
        np.testing.assert_array_equal(oracle, adv_t)


def test_the_end_of_an_episode_keeps_an_infinite_gradient_back(backend):
    inputs, cotangent = [np.ones(3), np.array([0.0, 0.5, 0.5])], np.array([np.inf, 1.0, 1.0])
    _, (gradient, _) = backend.value_and_vjp(backend.tricks.discounted_returns, inputs, cotangent)
    np.testing.assert_array_equal(gradient, [np.inf, 1.0, 1.5])
    np.testing.assert_array_equal(reference.discounted_returns_vjp(cotangent, *inputs)[0], gradient)


@WAYS
def test_what_weighs_nothing_may_be_infinite(backend, way):
    logits, a_t = np.array([[0.0, -np.inf], [0.0, 0.0]]), backend.tensor(np.array([1, 0]))
    value, (to_logits, to_weights) = getattr(backend, way)(
        lambda x, w: backend.tricks.policy_gradient_loss(x, a_t, w * 0 + 1, w),
        [logits, np.array([0.0, 2.0])],
        1.0,
    )
    assert value == pytest.approx(np.log(2))
    np.testing.assert_allclose(to_logits, [[0, 0], [-0.5, 0.5]])
    np.testing.assert_allclose(to_weights, [0, np.log(2) / 2])
    value, gradients = getattr(backend, way)(
        lambda *both: backend.tricks.clipped_surrogate_pg_loss(*both, 0.25, use_stop_gradient=False),
        [np.array([np.inf, 1.0]), np.array([0.0, 2.0])],
        1.0,
    )
    assert value == -1
    np.testing.assert_array_equal(gradients, [[0, -1], [0, -0.5]])


def test_tangents_agree_with_the_reference_in_torch(in_torch):
    *inputs, cotangent = np.random.default_rng(0).normal(size=(3, 5))
    assert_agrees(TorchJvp(in_torch), "discounted_returns", inputs, cotangent)
    # Of a gradient, whose recursion runs forward in time.
    second, vjp = TorchForwardOverReverse(in_torch), reference.discounted_returns_vjp
    assert_agrees_twice(second, in_torch.tricks.discounted_returns, inputs, cotangent, vjp)
    # An infinity behind the end of an episode has no tangent.
    rewards, discounts = (in_torch.tensor(np.array(x)) for x in ([1.0, np.inf], [0.0, 0.5]))
    returns = in_torch.tricks.discounted_returns
    _, tangent = in_torch.framework.func.jvp(lambda d: returns(rewards, d), (discounts,), (discounts + 1,))
    assert tangent[0] == 0


@pytest.mark.parametrize("steps", [70, None])
def test_an_infinity_comes_through_in_forward_mode_and_in_unknown_lengths(in_tensorflow, steps):
    tf, tricks = in_tensorflow.framework, in_tensorflow.tricks
    signature = [tf.TensorSpec([steps], tf.float64)]

    def returns(rewards):
        return tricks.discounted_returns(rewards, 1e-200)

    rewards = tf.constant(INFINITE)
    expected = [np.inf] * 69 + [1.0]
    vanished = tf.function(lambda r: returns(tf.cast(r, tf.float32)), signature, autograph=False)
    np.testing.assert_array_equal(vanished(rewards), INFINITE)
    graph = tf.function(returns, signature, autograph=False)
    np.testing.assert_array_equal(graph(rewards), expected)
    with tf.autodiff.ForwardAccumulator(rewards, tf.ones_like(rewards)):
        value = returns(rewards)
    np.testing.assert_array_equal(value, expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_every_width(backend, dtype):
    tricks, wide = backend.tricks, "float64" if dtype == "float64" else "float32"
    r_t, discount_t, values, logits = (
        backend.cast(backend.tensor(x), dtype)
        for x in (np.ones(3), np.full(3, 0.5), np.array([1.0, 2, 4, 8]), np.zeros((3, 2)))
    )
    g_t = tricks.discounted_returns(r_t, 0.5, 4.0)
    adv_t = tricks.truncated_generalized_advantage_estimation(r_t, discount_t, 1.0, values)
    assert g_t.dtype == adv_t.dtype == r_t.dtype
    np.testing.assert_array_equal(backend.array(g_t), [2.25, 2.5, 3.0])
    np.testing.assert_array_equal(backend.array(adv_t), [1.75, 1.5, 1.0])
    for loss in (
        tricks.policy_gradient_loss(logits, backend.tensor(ACTIONS[[0, 1, 1]]), adv_t),
        tricks.clipped_surrogate_pg_loss(r_t, adv_t, 0.2),
        tricks.entropy_loss(logits, adv_t),
    ):
        assert wide in str(loss.dtype)


@pytest.mark.parametrize("stop", [True, False])
def test_targets_can_be_constants(backend, stop):
    tricks, logits, a_t = backend.tricks, backend.tensor(np.zeros((1, 2))), backend.tensor(np.array([0]))
    values = backend.tensor(np.zeros(3))

    def targets(r):
        discounted = r[:1] + r[1:] / 2
        returns = tricks.discounted_returns(r, 0.5, stop_target_gradients=stop)
        estimate = tricks.truncated_generalized_advantage_estimation
        adv_t = estimate(r, 0.5, 1.0, values, stop_target_gradients=stop)
        loss = tricks.policy_gradient_loss(logits, a_t, discounted, use_stop_gradient=stop)
        clipped = tricks.clipped_surrogate_pg_loss(values[:1] - 1, discounted, 2, use_stop_gradient=stop)
        return backend.framework.stack([returns[0], adv_t[0], loss, clipped]) + 0 * r[0]

    for cotangent, slope in zip(np.eye(4), (1, 1, np.log(2), 1)):
        _, (gradient,) = backend.value_and_vjp(targets, [np.zeros(2)], cotangent)
        np.testing.assert_allclose(gradient, [0, 0] if stop else [slope, slope / 2])


@given(data=st.data())
def test_clipped_loss_agrees_with_the_reference(backend, data):
    shape = data.draw(array_shapes(min_dims=0, max_dims=2, max_side=5))
    ratio = data.draw(arrays(np.float64, shape, elements=st.sampled_from([0.0, 0.5, 0.75, 1.0, 1.25, 2.0])))
    adv_t = data.draw(arrays(np.float64, shape, elements=st.sampled_from([-2.0, -1.0, 0.0, 1.0, 3.0])))
    value, gradients = backend.value_and_vjp(
        lambda r, a: backend.tricks.clipped_surrogate_pg_loss(r, a, 0.25, use_stop_gradient=False),
        [ratio, adv_t],
        1.0,
    )
    slopes = reference.clipped_surrogate_pg_loss_vjp(1.0, ratio, adv_t, 0.25)
    assert_close([value, *gradients], [reference.clipped_surrogate_pg_loss(ratio, adv_t, 0.25), *slopes])


@given(data=st.data())
def test_entropy_agrees_with_the_reference(backend, data):
    shape = data.draw(array_shapes(max_dims=2, max_side=4))
    logits = data.draw(arrays(np.float64, (*shape, 3), elements=st.floats(-50, 50) | st.just(-np.inf)))
    logits[..., 0] = 0  # one action is always possible
    inputs = [logits, data.draw(arrays(np.float64, shape, elements=st.floats(-2, 2)))]
    assert_agrees(backend, "entropy_loss", inputs, 1.0)
    unweighted = backend.tricks.entropy_loss(backend.tensor(logits))
    np.testing.assert_allclose(backend.array(unweighted), reference.entropy_loss(logits), **TOLERANCE)


def test_an_impossible_action_in_a_graph_makes_the_loss_nan(in_tensorflow):
    tf, tricks = in_tensorflow.framework, in_tensorflow.tricks
    for jit_compile in (False, True):
        graph = tf.function(tricks.policy_gradient_loss, jit_compile=jit_compile)
        assert np.isnan(graph(tf.zeros((1, 2)), tf.constant([2]), tf.ones(1)).numpy())


LOGITS, ONES = np.zeros((2, 3)), np.ones(2)
NO_NUMBERS = [None, "", [], False, ARRAY]
ERRORS = {
    "discounted_returns": [
        ((np.array([1, 2]), 0.9), TypeError, "r_t must be floating-point; got"),
        ((np.array(1.0), 0.9), ValueError, r"r_t must have shape \[T, ...\], time first; got a scalar"),
        ((ONES, 1.5), ValueError, r"discount_t must lie in \[0, 1\]; got 1.5"),
        ((ONES, np.ones(3)), ValueError, r"discount_t must have the shape of r_t, \(2,\); got \(3,\)"),
        ((ONES, np.array([1, 0])), TypeError, "discount_t must be floating-point; got"),
        ((ONES, 1.0, np.ones(1)), ValueError, r"v_t must have the shape of r_t, \(2,\); got \(1,\)"),
        ((ONES, 1.0, np.nan), ValueError, "v_t must be finite; got nan"),
        *(((ONES, 0.5, v_t), TypeError, "v_t must be a real number; got") for v_t in NO_NUMBERS),
    ],
    "truncated_generalized_advantage_estimation": [
        ((np.float64(0), 1.0, 1.0, ONES), ValueError, r"r_t must have shape \[T, ...\], time first; got a"),
        ((ONES, np.ones((2, 1)), 1.0, np.ones(3)), ValueError, r"discount_t must have the shape of r_t"),
        ((ONES, 1.0, 1.0, ONES), ValueError, r"values .* r_t with one more step, \(3,\); got \(2,\)"),
        ((ONES, 1.0, np.ones(1), np.ones(3)), ValueError, r"lambda_ must have the shape of r_t, \(2,\)"),
        ((ONES, 1.0, 1.5, np.ones(3)), ValueError, r"lambda_ must lie in \[0, 1\]; got 1.5"),
    ],
    "standardize": [((np.array([1, 2]),), TypeError, "x must be floating-point")],
    "policy_gradient_loss": [
        ((np.float64(0), ACTIONS, ONES), ValueError, "got a scalar"),
        ((LOGITS, np.array([0, 3]), ONES), ValueError, r"a_t must lie in \[0, 3\); got values from 0 to 3"),
        ((LOGITS, np.array([0, -1]), ONES), ValueError, "got values from -1 to 0"),
        ((LOGITS, ONES, ONES), TypeError, "a_t must hold integers; got"),
        ((LOGITS, np.array([0]), ONES), ValueError, "a_t must have the shape of logits_t without"),
        ((LOGITS, ACTIONS, np.ones((2, 1))), ValueError, r"adv_t must have the shape .* got \(2, 1\)"),
        ((LOGITS, ACTIONS, ACTIONS), TypeError, "adv_t must be floating-point"),
        ((LOGITS[:0], ACTIONS[:0], ONES[:0]), ValueError, r"logits_t must not be empty, .* got \(0, 3\)"),
    ],
    "clipped_surrogate_pg_loss": [
        ((ACTIONS, ONES, 0.2), TypeError, "prob_ratios_t must be floating-point"),
        ((ONES, np.zeros(3), 0.2), ValueError, r"adv_t must have the shape of prob_ratios_t, \(2,\)"),
        ((ONES, ONES, -0.2), ValueError, r"epsilon must lie in \[0, inf\); got -0.2"),
        ((ONES[:0], ONES[:0], 0.2), ValueError, r"prob_ratios_t must not be empty, .* got \(0,\)"),
    ],
    "entropy_loss": [((LOGITS[:0],), ValueError, r"logits_t must not be empty, .* got \(0, 3\)")],
}


@pytest.mark.parametrize(
    ("name", "arguments", "error", "message"), [(n, *case) for n, cases in ERRORS.items() for case in cases]
)
def test_bad_input_says_what_is_expected(backend, name, arguments, error, message):
    assert_refused(backend, name, arguments, {}, error, message)


ESTIMATE = list(map(np.array, ([1.0, -0.5], [0.9, 0.0], [0.8, 0.5], [0.25, -1.0, 2.0])))
LOSS_INPUTS = [  # logits, advantages, weights, ratios; one ratio is clipped
    np.array([[0.5, -1.0], [2.0, 0.25]]),
    np.array([-1.0, 2.0]),
    np.array([0.5, 1.5]),
    np.array([0.5, 1.125]),
]


def three_losses(tricks, actions, logits, adv_t, w_t, ratio, **options):
    """Add the losses up as an agent does."""
    loss = tricks.policy_gradient_loss(logits, actions, adv_t, w_t, **options)
    clipped = tricks.clipped_surrogate_pg_loss(ratio, adv_t, 0.25, **options)
    return loss + 2 * clipped + 3 * tricks.entropy_loss(logits, w_t)


def three_losses_vjp(cotangent, logits, adv_t, w_t, ratio):
    each = [reference.policy_gradient_loss(z[None], a[None], [1.0]) for z, a in zip(logits, ACTIONS)]
    to_logits = reference.policy_gradient_loss_vjp(cotangent, logits, ACTIONS, adv_t, w_t)
    to_ratio, to_adv_t = reference.clipped_surrogate_pg_loss_vjp(2 * cotangent, ratio, adv_t, 0.25)
    entropy_to_logits, to_w_t = reference.entropy_loss_vjp(3 * cotangent, logits, w_t)
    half = cotangent * np.array(each) / 2
    return to_logits + entropy_to_logits, w_t * half + to_adv_t, adv_t * half + to_w_t, to_ratio


def test_the_recursion_differentiated(common):
    name, cotangent = "truncated_generalized_advantage_estimation", np.array([1.0, -2.0])
    assert_agrees(common, name, ESTIMATE, cotangent, rtol=common.rtol, atol=common.rtol)


def test_the_losses_add_up_in_a_graph(backend):
    actions = backend.tensor(ACTIONS)
    value, gradients = backend.graph_value_and_vjp(
        lambda *x: three_losses(backend.tricks, actions, *x, use_stop_gradient=False), LOSS_INPUTS, 2.0
    )
    expected = three_losses(reference, ACTIONS, *LOSS_INPUTS), *three_losses_vjp(2.0, *LOSS_INPUTS)
    assert_close([value, *gradients], expected)


def test_the_recursion_differentiated_twice(twice):
    inputs = [ESTIMATE[0], np.array([0.9, 0.5]), *ESTIMATE[2:]]
    vjp = reference.truncated_generalized_advantage_estimation_vjp
    estimate = twice.tricks.truncated_generalized_advantage_estimation
    assert_agrees_twice(twice, estimate, inputs, np.array([1.0, -2.0]), vjp)


def test_returns_and_losses_differentiated_twice(twice):
    tricks, actions = twice.tricks, twice.backend.tensor(ACTIONS)

    def function(logits, adv_t, w_t, ratio):
        logits, adv_t = tricks.standardize(logits), tricks.discounted_returns(adv_t, 0.25)
        return three_losses(tricks, actions, logits, adv_t, w_t, ratio, use_stop_gradient=False)

    def vjp(cotangent, logits, adv_t, w_t, ratio):
        returns, standardized = reference.discounted_returns(adv_t, 0.25), reference.standardize(logits)
        to_logits, to_returns, *others = three_losses_vjp(cotangent, standardized, returns, w_t, ratio)
        to_rewards, *_ = reference.discounted_returns_vjp(to_returns, adv_t, 0.25)
        return reference.standardize_vjp(to_logits, logits), to_rewards, *others

    assert_agrees_twice(twice, function, LOSS_INPUTS, np.float64(2.0), vjp)


def test_what_torch_traces_without_values(in_torch):
    torch, tricks = in_torch.framework, in_torch.tricks
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    class Model(torch.nn.Module):
        def forward(self, x, ends):
            return estimates(tricks, x, ends)

    def without_values(device):
        inputs = torch.ones(4, 2, device=device), torch.ones(3, 2, device=device)
        return [tuple(value.shape) for value in estimates(tricks, *inputs)]

    assert without_values("meta") == [(3, 2)] * 3
    with FakeTensorMode():
        assert without_values("cpu") == [(3, 2)] * 3
        loss = tricks.policy_gradient_loss(torch.ones(3, 2), torch.zeros(3, dtype=torch.int64), torch.ones(3))
        assert loss.shape == ()
    z = torch.tensor([1 + 2j, 3 - 4j])
    assert tricks.discounted_returns(z.conj().imag, 0.5).tolist() == [0.0, 4.0]
    blank = torch.ones(4, 2).double(), torch.ones(3, 2).double()
    steps, batch = torch.export.Dim("T", min=2), torch.export.Dim("B", min=2)
    shapes = ({0: steps + 1, 1: batch}, {0: steps, 1: batch})
    exported = torch.export.export(Model(), blank, dynamic_shapes=shapes).module()
    for module, size in ((exported, 8), (make_fx(Model())(*blank), 4)):
        x = np.random.default_rng(0).normal(size=(size, 2))
        ends = 0.9 * (x[1:] < 1)
        inputs = torch.tensor(x, requires_grad=True), torch.tensor(ends)
        values = module(*inputs)
        (gradient,) = torch.autograd.grad(sum(values).sum(), inputs[0])
        check_estimates([value.detach() for value in values], gradient, x, ends)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("policy_gradient_loss", [None, [0], [1.0]]),
        ("truncated_generalized_advantage_estimation", [[0.0], 0.5, 0.5, None]),
        ("token_policy_loss", [None, [0.0], [1.0], [1.0]]),
        ("token_policy_loss", [[0.0], [0.0], None, [1.0]]),
        ("soft_rank", [None]),
        ("average_tokens", [None, [1.0]]),
    ],
)
def test_a_rank_that_a_graph_does_not_know_is_refused(in_tensorflow, name, arguments):
    tf, tricks = in_tensorflow.framework, in_tensorflow.tricks
    options = {"regularization_strength": 1.0} if name == "soft_rank" else {}

    @tf.function(input_signature=[tf.TensorSpec(None, tf.float32)], autograph=False)
    def called(x):
        return getattr(tricks, name)(*(x if a is None else tf.constant(a) for a in arguments), **options)

    with pytest.raises(ValueError, match="must have a known rank; got none"):
        called(tf.ones(1))


def test_xla_takes_lengths_that_it_knows_and_ranks_must_be_known(in_tensorflow):
    tf, tricks = in_tensorflow.framework, in_tensorflow.tricks
    returns = tf.function(lambda r_t: tricks.discounted_returns(r_t, 0.5), jit_compile=True, autograph=False)
    np.testing.assert_array_equal(returns(tf.ones(3)), [1.75, 1.5, 1.0])
    np.testing.assert_array_equal(returns(tf.constant([1.0, np.inf, 1.0])), [np.inf, np.inf, 1.0])
    signature = [tf.TensorSpec(None, tf.float32)]
    unknown = tf.function(returns.python_function, input_signature=signature, autograph=False)
    with pytest.raises(ValueError, match="r_t must have a known rank; got none"):
        unknown(tf.ones(3))
