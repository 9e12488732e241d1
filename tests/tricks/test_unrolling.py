"""unroll and muzero_loss."""

from collections import defaultdict
from functools import partial

import numpy as np
import pytest

from agreeing import as_given, assert_close, assert_refused
from domains import floating, number
from gradtricks import reference
from suites import Loss, Row, Suite
from transforms import numerical_vjp

STEPS, BATCH, STATE = 4, 3, 5


def recurrent(framework, weights):
    """Make a small nonlinear dynamics: next_state = tanh((state + action) W), output = next_state ** 2."""

    def recurrent_fn(state, action):
        next_state = framework.tanh((state + action[:, None]) @ weights)
        return next_state**2, next_state

    return recurrent_fn


def recurrent_vjp(weights):
    """Return its vector-Jacobian product, by hand."""

    def pull_back(output_cotangent, state_cotangent, state, action):
        inputs = state + action[:, None]
        next_state = np.tanh(inputs @ weights)
        before_tanh = (state_cotangent + 2 * next_state * output_cotangent) * (1 - next_state**2)
        return before_tanh @ weights.T, inputs.T @ before_tanh

    return pull_back


def test_the_reference_is_right_by_finite_differences():
    random = np.random.default_rng(1)
    shapes = (BATCH, STATE), (STATE, STATE), (STEPS, BATCH)
    root, weights, actions = (random.normal(size=shape) for shape in shapes)
    cotangents = np.ones((STEPS, BATCH, STATE)), np.ones((BATCH, STATE))

    def unrolled(root, weights):
        return reference.unroll(recurrent(np, weights), root, actions)

    functions = recurrent(np, weights), recurrent_vjp(weights)
    gradients = reference.unroll_vjp(*cotangents, *functions, root, actions, hidden_scale=1.0)
    assert_close(gradients, numerical_vjp(unrolled, [root, weights], cotangents), rtol=1e-7, atol=1e-7)


PREDICT = np.array([[0.5, -1.0], [2.0, 0.25]])
ROOT, WEIGHTS = np.array([[0.5, -0.25]]), np.array([[0.75, -1.0], [0.5, 1.25]])
TWO_ACTIONS = np.array([[0.5], [-1.0]])


def unrolled(backend, hidden_scale=0.25, **options):
    """Make a function of root and weights that lays outputs, predictions and the last state end to end."""
    predict, actions = backend.tensor(PREDICT), backend.tensor(TWO_ACTIONS)

    def function(root, weights):
        (outputs, predictions), state = backend.tricks.unroll(
            recurrent(backend.framework, weights),
            root,
            actions,
            hidden_scale=hidden_scale,
            prediction_fn=lambda state: state @ predict,
            **options,
        )
        return backend.joined(outputs, predictions, state)

    return function


def unrolled_vjp(cotangent, root, weights, hidden_scale=0.25, **options):
    return reference.unroll_vjp(
        cotangent[:4].reshape(2, 1, 2),
        cotangent[8:].reshape(1, 2),
        recurrent(np, weights),
        recurrent_vjp(weights),
        root,
        TWO_ACTIONS,
        hidden_scale=hidden_scale,
        predictions_cotangent=cotangent[4:8].reshape(2, 1, 2),
        prediction_vjp=lambda gradient, state: gradient @ PREDICT.T,
        **options,
    )


def check_unroll(backend, rtol=1e-10, **options):
    cotangent = np.cos(np.arange(10.0))
    (outputs, predictions), state = reference.unroll(
        recurrent(np, WEIGHTS), ROOT, TWO_ACTIONS, prediction_fn=lambda state: state @ PREDICT
    )
    function = unrolled(getattr(backend, "backend", backend), **options)
    value, gradients = backend.value_and_vjp(function, [ROOT, WEIGHTS], cotangent)
    expected = np.concatenate([x.ravel() for x in (outputs, predictions, state)])
    slopes = unrolled_vjp(cotangent, ROOT, WEIGHTS, **options)
    assert_close([value, *gradients], [expected, *slopes], rtol, rtol)


@pytest.mark.parametrize("hidden_scale", [0.5, 0.0, 1.0, 1 / 3])
@pytest.mark.parametrize("options", [{}, {"scale_predictions": True}, {"scale_root_state": True}])
def test_each_variant_of_the_unroll_agrees_with_the_reference(backend, hidden_scale, options):
    check_unroll(backend, hidden_scale=hidden_scale, **options)


def test_unroll_in_common_ways(common):
    check_unroll(common, common.rtol)


def test_unroll_twice_in_common_ways(twice):
    # h_1 = w h_0 and h_2 = w scaled(h_1), so the slope of h_2 is scaled(h_1) + 0.25 w h_0, and the slope of
    # that meets the scale again: 2 * 0.25 h_0.
    def last_state(w):
        root = twice.backend.tensor(np.array([3.0]))
        actions = twice.backend.tensor(np.zeros((2, 1)))
        return twice.tricks.unroll(lambda h, _: (h * w, h * w), root, actions, hidden_scale=0.25)[0][1]

    (gradient,) = twice.second_vjp(last_state, [np.array([0.5])], np.array([2.0]), [np.array([1.0])])
    np.testing.assert_allclose(gradient, [2 * 2 * 0.25 * 3])


@pytest.mark.parametrize("kind", [dict, partial(defaultdict, list)])
def test_outputs_and_states_may_be_structures(backend, kind):
    def recurrent_fn(state, action):
        h, c = state["h"] + action, state["c"] * 2
        return (h, {"twice": 2 * c, 0: c}), kind(h=h, c=c)

    root = kind(h=backend.tensor(np.zeros(2)), c=backend.tensor(np.ones(2)))
    (h, rest), state = backend.tricks.unroll(recurrent_fn, root, backend.tensor(np.ones((3, 2))))
    assert type(state) is type(root)
    assert backend.array(h)[:, 0].tolist() == [1, 2, 3]
    assert backend.array(rest["twice"])[:, 0].tolist() == [4, 8, 16]
    assert backend.array(state["c"]).tolist() == [8, 8]


def predictions(random, shape, bins=()):
    """Draw predictions and targets for steps and a batch: scalars, or logits and distributions."""
    steps, batch = shape
    shapes = [(steps + 1, batch, *bins), (steps, batch, *bins), (steps + 1, batch, 2)]
    drawn = [random.normal(size=shape) for shape in shapes]
    targets = [random.random(shape) for shape in shapes]
    targets = [t if t.ndim == 2 else t / t.sum(-1, keepdims=True) for t in targets]
    targets[2][-1] = 0  # beyond the end of the episode there is no policy to learn
    return drawn + targets


def categorical(random, shape):
    return predictions(random, shape, bins=(4,))


VARIANTS = [{}, {"loss_scale": 1.0}, {"loss_scale": 0.0}, {"scale_root_loss": True}]
VARIANTS += [{"loss_scale": 0.25, "scale_root_loss": True}]
WEIGHTS_OF_LOSS = {"value_weight": 0.25, "reward_weight": 2.0, "policy_weight": -1.0}


class TestLoss(Loss):
    names = ("value", "reward", "policy_logits", "target_value", "target_reward", "target_policy")
    given = dict.fromkeys(names, floating()) | {"target_value": floating("value")}
    given |= {"loss_scale": number(tensor=r"have the shape of \[B\] of reward")}
    given |= dict.fromkeys(WEIGHTS_OF_LOSS, number())
    two = {"inputs": 3, "tensors": 6, "ranks": (2, 2), "empties": False}
    rows = (
        Row("muzero_loss", predictions, domains=given, **two),
        Row("muzero_loss", categorical, of_gradient=VARIANTS[-1], options=WEIGHTS_OF_LOSS, **two),
    )


class TestVariants(Suite):
    rows = tuple(
        Row("muzero_loss", draw, 3, 6, of_gradient=options, ranks=(2, 2), empties=False)
        for draw in (predictions, categorical)
        for options in VARIANTS
    )


@pytest.mark.parametrize("draw", [predictions, categorical])
def test_each_trajectory_may_have_its_scale(backend, draw):
    arguments, scale = draw(np.random.default_rng(0), (STEPS, BATCH)), np.array([0.5, 1.0, 0.0])
    others = as_given(backend, arguments[3:])
    _, gradients = backend.value_and_vjp(
        lambda *p: backend.tricks.muzero_loss(*p, *others, loss_scale=backend.tensor(scale)),
        arguments[:3],
        scale,
    )
    assert_close(gradients, reference.muzero_loss_vjp(scale, *arguments, loss_scale=scale))


@pytest.mark.parametrize(
    ("index", "shape", "message"),
    [
        (0, (STEPS, BATCH), r"shape of \[K\+1, B\] of reward, \(5, 3\); got \(4, 3\)"),
        (0, (STEPS + 1,), r"value must have shape \[K\+1, B\] or \[K\+1, B, N\]; got \(5,\)"),
        (1, (0, BATCH), r"reward must have shape \[K, B\] or \[K, B, N\] with K >= 1; got \(0, 3\)"),
        (2, (STEPS + 1, BATCH), r"policy_logits must have shape \[K\+1, B, A\]; got \(5, 3\)"),
        (3, (STEPS + 1, BATCH + 1), r"target_value must have the shape of value, \(5, 3\); got \(5, 4\)"),
    ],
)
def test_shapes_of_predictions_that_do_not_fit_are_refused(backend, index, shape, message):
    arguments = predictions(np.random.default_rng(0), (STEPS, BATCH))
    arguments[index] = np.zeros(shape)
    assert_refused(backend, "muzero_loss", arguments, {}, ValueError, message)


def test_an_impossible_class_adds_nothing(backend):
    arguments = categorical(np.random.default_rng(0), (STEPS, BATCH))
    drawn, targets = arguments[:3], arguments[3:]
    for logits, target in zip(drawn[::2], targets[::2]):
        logits[..., 0], target[..., 0] = -np.inf, 0
    targets[0][..., 1] = 0
    value, gradients = backend.value_and_vjp(backend.tricks.muzero_loss, drawn + targets, np.ones(BATCH))
    assert np.isfinite(value).all()
    assert all(np.isfinite(g).all() for g in gradients)
    # A target that is 0 for a possible class has a slope all the same.
    assert (gradients[3][..., 1] != 0).all()
    targets[0][0, 0, 0] = 0.5
    value, _ = backend.value_and_vjp(backend.tricks.muzero_loss, drawn + targets, np.ones(BATCH))
    np.testing.assert_array_equal(np.isinf(value), np.arange(BATCH) == 0)  # a target says that it happened


UNROLL = {"root_state": np.zeros(2), "actions": np.zeros((3, 2)), "recurrent_fn": lambda s, _: (s, s)}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"actions": [1, 2]}, TypeError, "actions must be a .*Tensor; got list; remedy"),
        ({"actions": np.zeros((0, 2))}, ValueError, r"shape \[K, B, ...\] with K >= 1; got \(0, 2\)"),
        ({"hidden_scale": np.inf}, ValueError, "hidden_scale must be finite"),
        ({"hidden_scale": np.array(1)}, TypeError, "hidden_scale must be floating-point"),
        ({"root_state": np.array([1, 2])}, TypeError, "x must be floating-point"),
        ({"scale_predictions": True}, ValueError, "scale_predictions needs prediction_fn, .*; got None"),
        ({"recurrent_fn": lambda s, _: ("y", s)}, TypeError, "each output must be a .*Tensor; got str; rem"),
        ({"recurrent_fn": lambda s, _: (s, (s, s))}, ValueError, "the same structure; got .*'tensor'"),
    ],
)
def test_bad_unrolls_say_what_is_expected(backend, change, error, message):
    assert_refused(backend, "unroll", (), UNROLL | change, error, message)
