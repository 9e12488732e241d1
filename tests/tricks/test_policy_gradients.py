"""discounted_returns, advantages, and the losses of policy gradients."""

import numpy as np
import pytest

from agreeing import assert_agrees, assert_agrees_twice, assert_close, assert_refused
from backends import made
from domains import ARRAY, SCALAR, floating, integers, number
from gradtricks import reference
from suites import Loss, Recursion, Row, Suite
from transforms import FIRST_ORDER, TorchForwardOverReverse, TorchJvp

LIKE_REWARDS = "have the shape of r_t"
DISCOUNT, LIKE_ACTIONS = number(0, 1, tensor=LIKE_REWARDS), floating("logits_t without its last axis")


def rewarded(random, shape):
    """Draw rewards, discounts of which some end an episode, and values."""
    return [random.normal(size=shape), random.choice([0.0, 0.5, 0.99, 1.0], shape), random.normal(size=shape)]


def estimated(random, shape):
    rewards, discounts, lambdas = rewarded(random, shape)
    return [rewards, discounts, lambdas, random.normal(size=(shape[0] + 1, *shape[1:]))]


class TestRecursions(Recursion):
    of_returns = {"r_t": floating(), "discount_t": DISCOUNT, "v_t": number(tensor=LIKE_REWARDS)}
    of_estimates = of_returns | {"lambda_": DISCOUNT, "values": floating("r_t with one more step")}
    del of_estimates["v_t"]
    once = {"ranks": (1, 2), "widens": False}
    rows = (
        Row("discounted_returns", rewarded, inputs=3, domains=of_returns, **once),
        Row("discounted_returns", lambda r, shape: [r.normal(size=shape), 0.9, -2.0], **once),
        Row("truncated_generalized_advantage_estimation", estimated, inputs=4, domains=of_estimates, **once),
    )


BEYOND = {"compile", "vmap of func.vjp", "func.jvp"}
BEYOND = [way for way in FIRST_ORDER if way.framework == "torch" and way.name in BEYOND]


def by_doubling(monkeypatch):
    """Have recursions on the CPU computed as on a device."""
    monkeypatch.setattr("gradtricks.torch._loops.on_cpu", lambda x: False)


class TestDoubling:
    rows = TestRecursions.rows

    def test_values_and_gradients_are_those_of_the_reference(self, in_torch, row, monkeypatch):
        by_doubling(monkeypatch)
        for seed in range(30):
            row.assert_agrees(in_torch, row.drawn(seed))
        row.assert_agrees(in_torch, row.example((257, 3)))

    @pytest.mark.parametrize("way", BEYOND, ids=lambda way: way.id)
    def test_other_ways_of_differentiating_agree(self, way, row, monkeypatch):
        by_doubling(monkeypatch)
        row.assert_agrees(way(made(way.framework)), row.example())


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("steps", [0, 1, 2, 7, 300])
def test_infinities_go_as_far_as_step_by_step_in_torch(in_torch, steps, transposed):
    from gradtricks._core import kernels
    from gradtricks.torch._recursions import doubled

    random = np.random.default_rng(0)
    x = random.choice([1.0, -2.0, np.inf, -np.inf, np.nan], (steps, 5), p=[0.5, 0.47, 0.01, 0.01, 0.01])
    carry = random.choice([0.0, 1e-30, 0.9, np.nan], (steps, 5), p=[0.02, 0.48, 0.49, 0.01])
    for factor in (carry, np.array(0.0), np.array(1e-30), np.array(0.9)):
        found = doubled(in_torch.tensor(x), in_torch.tensor(factor), transposed)
        expected = kernels.policy_gradients.accumulate(x, factor, transposed)
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def chosen(random, shape):
    """Draw logits, actions, advantages and weights."""
    logits = 5 * random.normal(size=(*shape, 4))
    return [logits, random.integers(0, 4, shape), random.normal(size=shape), random.normal(size=shape)]


def possible(random, shape):
    """Draw logits of which some are impossible, and weights."""
    logits = random.choice([0.0, 1.0, -30.0, -np.inf], (*shape, 3))
    logits[..., 0] = 0
    return [logits, random.normal(size=shape)]


def at_the_bounds(random, shape):
    """Draw ratios and advantages, often where the clip begins."""
    ratios = random.choice([0.0, 0.5, 0.75, 1.0, 1.25, 2.0], shape)
    return [ratios, random.choice([-2.0, -1.0, 0.0, 1.0, 3.0], shape), 0.25]


def compared(random, shape):
    return [random.uniform(0.5, 1.5, shape), random.normal(size=shape), 0.25]


WITHOUT_STOP = {"inputs": 2, "of_frameworks": {"use_stop_gradient": False}, "empties": False}


class TestLosses(Loss):
    given = {"logits_t": floating(), "a_t": integers("have the shape of logits_t without its last axis")}
    given |= {"adv_t": LIKE_ACTIONS, "w_t": LIKE_ACTIONS}
    ratios = {"prob_ratios_t": floating(), "adv_t": floating("prob_ratios_t")}
    ratios |= {"epsilon": number(0, tensor=SCALAR)}
    weighed = {"logits_t": floating(), "w_t": LIKE_ACTIONS}
    rows = (
        Row("standardize", lambda r, shape: [r.normal(size=shape)], domains={"x": floating()}, widens=False),
        Row("policy_gradient_loss", chosen, tensors=4, ranks=(1, 2), empties=False, domains=given),
        Row("clipped_surrogate_pg_loss", compared, domains=ratios, **WITHOUT_STOP),
        Row("entropy_loss", lambda *drawn: chosen(*drawn)[::3], inputs=2, empties=False, domains=weighed),
    )


@pytest.fixture
def small_blocks(monkeypatch, pytestconfig):
    """Have large logits taken as a vocabulary's: here by two rows of four at a time."""
    monkeypatch.setattr(f"gradtricks.{pytestconfig.option.framework}._blocks._ELEMENTS", 8)


@pytest.mark.usefixtures("small_blocks")
class TestBlocks(Loss):
    rows = tuple(row for row in TestLosses.rows if row.name in ("policy_gradient_loss", "entropy_loss"))
    rows += (Row("entropy_loss", possible, inputs=2, empties=False, ranks=(1, 2)),)


BY_BLOCKS = {
    "policy_gradient_loss": lambda tricks, logits, actions, ones: tricks.policy_gradient_loss(
        logits, actions, ones, ones
    ),
    "entropy_loss": lambda tricks, logits, actions, ones: tricks.entropy_loss(logits, ones),
}


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("name", BY_BLOCKS)
def test_blocks_make_nothing_larger_than_the_logits_in_torch(in_torch, name):
    from torch.utils._python_dispatch import TorchDispatchMode

    torch, sizes = in_torch.framework, []

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **kwargs or {})
            sizes.extend([result.untyped_storage().nbytes()] if isinstance(result, torch.Tensor) else [])
            return result

    logits, ones = torch.randn(100, 4, dtype=torch.bfloat16), torch.ones(100)
    actions = torch.zeros(100, dtype=torch.int64)
    narrow, wide = (x.clone().requires_grad_() for x in (logits, logits.double()))
    with Sizes():
        loss = BY_BLOCKS[name](in_torch.tricks, narrow, actions, ones)
        (gradient,) = torch.autograd.grad(loss, narrow)
    assert max(sizes) == logits.nbytes
    loss = BY_BLOCKS[name](in_torch.tricks, wide, actions, ones.double())
    (expected,) = torch.autograd.grad(loss, wide)
    torch.testing.assert_close(gradient, expected.bfloat16(), rtol=1e-2, atol=1e-6)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("name", BY_BLOCKS)
def test_blocks_take_batches_of_gradients_in_torch(in_torch, name):
    torch = in_torch.framework
    logits, scale = torch.randn(6, 4, requires_grad=True), torch.tensor([1.0, -3.0])
    loss = BY_BLOCKS[name](in_torch.tricks, logits, torch.zeros(6, dtype=torch.int64), torch.ones(6))
    (one,) = torch.autograd.grad(loss, logits, retain_graph=True)
    (both,) = torch.autograd.grad(loss, logits, scale, is_grads_batched=True)
    torch.testing.assert_close(both, torch.stack([one, -3 * one]))


def gradient_in_tensorflow(backend, name, logits):
    """Return the gradient of a loss whose actions are all 0 and whose factors are all 1."""
    tf = backend.framework
    ones = tf.ones(tf.shape(logits)[:-1], tf.float64 if logits.dtype == tf.float64 else tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        loss = BY_BLOCKS[name](backend.tricks, logits, tf.zeros_like(ones, tf.int64), ones)
    return tape.gradient(loss, logits)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("name", BY_BLOCKS)
def test_blocks_make_nothing_larger_than_the_logits_in_tensorflow(in_tensorflow, name, request):
    from tensorflow.python.framework import op_callbacks

    tf, made_by = in_tensorflow.framework, {}

    def note(operator, inputs, attributes, outputs, *_):
        for x in outputs:
            made_by.setdefault(x.shape.num_elements() * x.dtype.size, set()).add(operator)

    logits = tf.cast(tf.random.stateless_normal((100, 4), (0, 0)), tf.bfloat16)
    expected = gradient_in_tensorflow(in_tensorflow, name, tf.cast(logits, tf.float64))
    request.addfinalizer(lambda: tf.config.run_functions_eagerly(False))
    tf.config.run_functions_eagerly(True)  # so that each operation is seen
    op_callbacks.add_op_callback(note)
    request.addfinalizer(lambda: op_callbacks.remove_op_callback(note))
    found = gradient_in_tensorflow(in_tensorflow, name, logits)
    assert max(made_by) == 100 * 4 * 2
    assert "TensorScatterUpdate" in made_by[max(made_by)]
    assert_close([tf.cast(found, tf.float64).numpy()], [expected.numpy()], 1e-2, 1e-6)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("name", BY_BLOCKS)
def test_blocks_of_a_graph_with_an_axis_of_unknown_length(in_tensorflow, name):
    tf = in_tensorflow.framework
    signature = [tf.TensorSpec([None, 3, 4], tf.float64)]
    graph = tf.function(lambda logits: gradient_in_tensorflow(in_tensorflow, name, logits), signature)
    for length in (1, 5):
        logits = tf.random.stateless_normal((length, 3, 4), (0, 0), dtype=tf.float64)
        expected = gradient_in_tensorflow(in_tensorflow, name, logits)
        assert_close([graph(logits).numpy()], [expected.numpy()])


class TestCorners(Suite):
    rows = (
        Row("clipped_surrogate_pg_loss", at_the_bounds, **WITHOUT_STOP),
        Row("entropy_loss", possible, inputs=2, empties=False, ranks=(1, 2)),
        Row("entropy_loss", lambda *drawn: chosen(*drawn)[:1], empties=False),
    )


EQUAL = [[0.1] * 7, [0.1] * 100_000, [0.98] * 4096, [5.0], [0.0, 0.0], [1e30] * 3]
WAYS = pytest.mark.parametrize("way", ["value_and_vjp", "graph_value_and_vjp"])


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


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int32", "uint32", "int64", "uint64"])
def test_actions_of_every_width_and_advantages_of_another(backend, dtype):
    inputs = np.zeros((1, 2), np.float32), np.array([1], dtype), np.array([1.0])
    loss = backend.tricks.policy_gradient_loss(*map(backend.tensor, inputs))
    assert "float32" in str(loss.dtype)
    assert float(loss) == pytest.approx(np.log(2))


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
def test_later_episodes_do_not_reach_advantages(backend, way):
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
def test_infinities_come_through_forward_mode_and_unknown_lengths(in_tensorflow, steps):
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


def test_an_impossible_action_in_a_graph_makes_the_loss_nan(in_tensorflow):
    tf, tricks = in_tensorflow.framework, in_tensorflow.tricks
    for jit_compile in (False, True):
        graph = tf.function(tricks.policy_gradient_loss, jit_compile=jit_compile)
        assert np.isnan(graph(tf.zeros((1, 2)), tf.constant([2]), tf.ones(1)).numpy())


LOGITS, ONES, ACTIONS = np.zeros((2, 3)), np.ones(2), np.array([1, 0])
RETURNS, ESTIMATES = "discounted_returns", "truncated_generalized_advantage_estimation"
LOSS, CLIPPED = "policy_gradient_loss", "clipped_surrogate_pg_loss"


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        (RETURNS, (np.array(1.0), 0.9), r"r_t must have shape \[T, ...\], time first; got a scalar"),
        *((RETURNS, (ONES, 0.5, v_t), "v_t must be a real number; got") for v_t in (None, [], ARRAY)),
        (ESTIMATES, (np.float64(0), 1.0, 1.0, ONES), r"r_t must have shape \[T, ...\], time first; got a"),
        (LOSS, (np.float64(0), ACTIONS, ONES), "got a scalar"),
        (LOSS, (LOGITS, np.array([0, 3]), ONES), r"a_t must lie in \[0, 3\); got values from 0 to 3"),
        (LOSS, (LOGITS, np.array([0, -1]), ONES), "got values from -1 to 0"),
        (LOSS, (LOGITS[:0], ACTIONS[:0], ONES[:0]), r"logits_t must not be empty, .* got \(0, 3\)"),
        (CLIPPED, (ONES[:0], ONES[:0], 0.2), r"prob_ratios_t must not be empty, .* got \(0,\)"),
        ("entropy_loss", (LOGITS[:0],), r"logits_t must not be empty, .* got \(0, 3\)"),
    ],
)
def test_ranks_and_values_that_do_not_fit_are_refused(backend, name, arguments, message):
    assert_refused(backend, name, arguments, {}, (TypeError, ValueError), message)


def test_exported_estimates_take_any_length_in_torch(in_torch):
    torch, tricks = in_torch.framework, in_torch.tricks
    from torch.fx.experimental.proxy_tensor import make_fx

    class Model(torch.nn.Module):
        def forward(self, x, ends):
            return estimates(tricks, x, ends)

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


def test_xla_takes_lengths_that_it_knows(in_tensorflow):
    tf, tricks = in_tensorflow.framework, in_tensorflow.tricks
    returns = tf.function(lambda r_t: tricks.discounted_returns(r_t, 0.5), jit_compile=True, autograph=False)
    np.testing.assert_array_equal(returns(tf.ones(3)), [1.75, 1.5, 1.0])
    np.testing.assert_array_equal(returns(tf.constant([1.0, np.inf, 1.0])), [np.inf, np.inf, 1.0])
    ended = tf.function(tricks.discounted_returns, jit_compile=True, autograph=False)
    ends = tf.constant([0.0, 0.5, 0.5])
    np.testing.assert_array_equal(ended(tf.constant([1.0, np.inf, 1.0]), ends), [1.0, np.inf, 1.0])
