"""discounted_returns, standardize, policy_gradient_loss."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from gradtricks import reference

TOLERANCE = {"rtol": 1e-10, "atol": 1e-10}
WAYS = pytest.mark.parametrize("way", ["value_and_vjp", "compiled_value_and_vjp"])


@given(
    rewards=arrays(
        np.float64,
        array_shapes(min_dims=1, max_dims=2, min_side=0, max_side=40),
        elements=st.sampled_from([0.0, 0.0, 0.0, 1.0, -1.0, 0.25]),
    ),
    discount=st.sampled_from([0.0, 0.5, 0.9, 0.99, 1.0]),
    reset=st.booleans(),
)
def test_returns_agree_with_the_reference(backend, rewards, discount, reset):
    cotangent = np.cos(np.arange(rewards.size, dtype=float)).reshape(rewards.shape)
    value, (gradient,) = backend.value_and_vjp(
        lambda r: backend.tricks.discounted_returns(r, discount, reset_at_rewards=reset), [rewards], cotangent
    )
    expected = reference.discounted_returns(rewards, discount, reset_at_rewards=reset)
    slope = reference.discounted_returns_vjp(cotangent, rewards, discount, reset_at_rewards=reset)
    np.testing.assert_allclose(value, expected, **TOLERANCE)
    np.testing.assert_allclose(gradient, slope, **TOLERANCE)


@WAYS
def test_long_returns_neither_underflow_nor_drift(backend, way):
    rewards = np.random.default_rng(0).normal(size=(2048, 3)).astype(np.float32)
    value, _ = getattr(backend, way)(lambda r: backend.tricks.discounted_returns(r, 0.9), [rewards], rewards)
    expected = reference.discounted_returns(rewards.astype(np.float64), 0.9)
    np.testing.assert_allclose(value, expected, rtol=2e-6, atol=2e-6)


def test_a_time_axis_of_unknown_length_in_a_graph():
    tf = pytest.importorskip("tensorflow")
    tricks = pytest.importorskip("gradtricks.tensorflow")
    signature = [tf.TensorSpec([None, 2], tf.float64)]
    graph = tf.function(lambda r: tricks.discounted_returns(r, 0.9, reset_at_rewards=True), signature)
    for steps in (0, 1, 2, 37):
        rewards = np.where(np.arange(steps * 2) % 7 == 0, 1.0, 0.0).reshape(steps, 2)
        expected = reference.discounted_returns(rewards, 0.9, reset_at_rewards=True)
        np.testing.assert_allclose(graph(tf.constant(rewards)).numpy(), expected, **TOLERANCE)


def test_returns_of_a_game_of_two_points(backend):
    rewards = backend.tensor(np.array([0.0, 0.0, 1.0, 0.0, -1.0], np.float32))
    returns = backend.tricks.discounted_returns(rewards, 0.5, reset_at_rewards=True)
    assert backend.array(returns).tolist() == [0.25, 0.5, 1.0, -0.5, -1.0]


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


@WAYS
@pytest.mark.parametrize("x", [[0.1] * 7, [0.1] * 100_000, [0.98] * 4096, [5.0], [0.0, 0.0], [1e30] * 3])
def test_standardize_of_equal_elements_is_zero_with_zero_gradient(backend, way, x):
    x = np.array(x, np.float32)
    value, (gradient,) = getattr(backend, way)(backend.tricks.standardize, [x], np.ones_like(x))
    np.testing.assert_array_equal(value, np.zeros_like(x))
    np.testing.assert_array_equal(gradient, np.zeros_like(x))
    np.testing.assert_array_equal(value, reference.standardize(x))
    np.testing.assert_array_equal(gradient, reference.standardize_vjp(np.ones_like(x), x))


def test_standardize_of_extremes(backend):
    standardize = backend.tricks.standardize
    assert backend.array(standardize(backend.tensor(np.zeros((0, 3), np.float32)))).shape == (0, 3)
    np.testing.assert_allclose(
        backend.array(standardize(backend.tensor(np.array([1e30, 3e30], np.float32)))), [-1, 1], rtol=1e-6
    )
    half = standardize(backend.cast(backend.tensor(np.array([100.0, 300.0])), "float16"))
    np.testing.assert_array_equal(backend.array(half), [-1, 1])
    assert np.isnan(backend.array(standardize(backend.tensor(np.array([1.0, np.nan]))))).all()


@given(data=st.data())
def test_loss_agrees_with_the_reference(backend, data):
    shape = data.draw(array_shapes(max_dims=2, max_side=5))
    finite = st.floats(-20, 20)
    logits = data.draw(arrays(np.float64, (*shape, 4), elements=finite))
    a_t = data.draw(arrays(np.int64, shape, elements=st.integers(0, 3)))
    adv_t, w_t = (data.draw(arrays(np.float64, shape, elements=finite)) for _ in range(2))

    def loss(x):
        tensors = (backend.tensor(y) for y in (a_t, adv_t, w_t))
        return backend.tricks.policy_gradient_loss(x, *tensors)

    value, (gradient,) = backend.value_and_vjp(loss, [logits], 1.0)
    np.testing.assert_allclose(value, reference.policy_gradient_loss(logits, a_t, adv_t, w_t), **TOLERANCE)
    slope = reference.policy_gradient_loss_vjp(1.0, logits, a_t, adv_t, w_t)
    np.testing.assert_allclose(gradient, slope, **TOLERANCE)


def test_the_reference_takes_integers():
    assert reference.discounted_returns([1, 1, 1], 0.5).tolist() == [1.75, 1.5, 1.0]
    assert reference.discounted_returns_vjp([1, 0, 0], [1, 1, 1], 0.5).tolist() == [1.0, 0.5, 0.25]
    assert reference.standardize([1, 3]).tolist() == [-1.0, 1.0]
    assert reference.scale_gradient_vjp([2, 2], [1, 1], 0.5).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32", "int64"])
def test_actions_of_every_width_and_advantages_of_another(backend, dtype):
    logits = backend.tensor(np.zeros((1, 2), np.float32))
    loss = backend.tricks.policy_gradient_loss(
        logits, backend.tensor(np.array([1], dtype)), backend.tensor(np.array([1.0]))
    )
    assert "float32" in str(loss.dtype)
    assert float(backend.array(loss)) == pytest.approx(np.log(2))


def test_the_loss_can_be_mapped_in_torch():
    torch = pytest.importorskip("torch")
    tricks = pytest.importorskip("gradtricks.torch")
    logits, a_t, adv_t = torch.zeros(3, 1, 2), torch.tensor([[0], [1], [0]]), torch.ones(3, 1)
    losses = torch.func.vmap(tricks.policy_gradient_loss)(logits, a_t, adv_t)
    torch.testing.assert_close(losses, torch.full((3,), np.log(2), dtype=torch.float32))


def test_loss_of_rlax_own_test(backend):
    # The numbers of rlax' _src/policy_gradients_test.py, PolicyGradientTest.
    logits = np.array([[0, 1], [0, 1], [1, 1], [0, 100], [0, 50]], float)
    a_t, adv_t = np.array([1, 0, 1, 0, 1]), np.array([-1, 2, -3, 4, 5], float)
    log_pi = reference.policy_gradient_loss(logits[:1], a_t[:1], np.ones(1))
    assert log_pi == pytest.approx(np.log1p(np.exp(-1)))
    value = backend.tricks.policy_gradient_loss(*(backend.tensor(x) for x in (logits, a_t, adv_t)))
    by_hand = [np.log1p(np.exp(-1)) * -1, np.log1p(np.exp(1)) * 2, np.log(2) * -3, 100 * 4, 0]
    assert float(backend.array(value)) == pytest.approx(np.mean(by_hand))


def test_a_negative_advantage_lowers_the_probability_whatever_the_sign_of_the_loss(backend):
    logits, a_t, adv_t = np.zeros((1, 2)), backend.tensor(np.array([0])), backend.tensor(np.array([-1.0]))
    loss, (gradient,) = backend.value_and_vjp(
        lambda x: backend.tricks.policy_gradient_loss(x, a_t, adv_t), [logits], 1.0
    )
    assert loss < 0
    descended = logits - gradient
    assert descended[0, 0] < descended[0, 1]


@pytest.mark.parametrize("stop", [True, False])
def test_advantages_are_constants_unless_told_otherwise(backend, stop):
    logits, a_t = backend.tensor(np.zeros((1, 2))), backend.tensor(np.array([0]))

    def loss(logits, adv_t):
        return backend.tricks.policy_gradient_loss(logits, a_t, adv_t, use_stop_gradient=stop) + 0 * adv_t[0]

    _, (_, gradient) = backend.value_and_vjp(loss, [backend.array(logits), np.ones(1)], 1.0)
    assert gradient[0] == pytest.approx(0 if stop else np.log(2))


def test_an_impossible_action_in_a_graph_makes_the_loss_nan():
    tf = pytest.importorskip("tensorflow")
    tricks = pytest.importorskip("gradtricks.tensorflow")
    for jit_compile in (False, True):
        graph = tf.function(tricks.policy_gradient_loss, jit_compile=jit_compile)
        assert np.isnan(graph(tf.zeros((1, 2)), tf.constant([2]), tf.ones(1)).numpy())


def test_bad_rewards_say_what_is_expected(backend):
    returns = backend.tricks.discounted_returns
    with pytest.raises(TypeError, match="rewards must be floating-point; got"):
        returns(backend.tensor([1, 2]), 0.9)
    with pytest.raises(ValueError, match=r"rewards must have shape \[T, ...\], time first; got a scalar"):
        returns(backend.tensor(1.0), 0.9)
    with pytest.raises(ValueError, match=r"discount must lie in \[0, 1\]; got 1.5"):
        returns(backend.tensor([1.0]), 1.5)
    with pytest.raises(TypeError, match="x must be floating-point"):
        backend.tricks.standardize(backend.tensor([1, 2]))


@pytest.mark.parametrize(
    ("logits", "a_t", "adv_t", "error", "message"),
    [
        (np.float64(0), [0], [1.0], ValueError, "got a scalar"),
        (
            np.zeros((2, 3)),
            [0, 3],
            [1.0, 1.0],
            ValueError,
            r"a_t must lie in \[0, 3\); got values from 0 to 3",
        ),
        (np.zeros((2, 3)), [0, -1], [1.0, 1.0], ValueError, "got values from -1 to 0"),
        (np.zeros((2, 3)), [0.0, 1.0], [1.0, 1.0], TypeError, "a_t must hold integers; got"),
        (np.zeros((2, 3)), [0], [1.0, 1.0], ValueError, "a_t must have the shape of logits_t without"),
        (np.zeros((2, 3)), [0, 1], [[1.0], [1.0]], ValueError, r"adv_t must have the shape .* got \(2, 1\)"),
        (np.zeros((2, 3)), [0, 1], [1, 1], TypeError, "adv_t must be floating-point"),
    ],
)
def test_bad_losses_say_what_is_expected(backend, logits, a_t, adv_t, error, message):
    with pytest.raises(error, match=message):
        backend.tricks.policy_gradient_loss(*(backend.tensor(x) for x in (logits, a_t, adv_t)))
