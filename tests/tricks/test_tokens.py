"""group_advantages, token_policy_loss, kl_penalty, importance_weights and average_tokens."""

from functools import partial
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from agreeing import assert_close, assert_refused
from domains import SCALAR, choice, floating, mask, number
from gradtricks import reference
from gradtricks.reference._arrays import log_softmax
from suites import Domains, Loss, Row, Suite

TOLERANCE = {"rtol": 1e-10, "atol": 1e-10}
RATIOS, NORMALIZATIONS = ["token", "sequence", "sequence_mean", "none"], ["token", "sequence", "batch"]
LEVELS, ESTIMATORS = RATIOS[:3], ["k1", "k2", "k3"]
BASELINES, SCALES = ["mean", "leave_one_out", "none"], ["none", "group", "batch"]


def drawn(seed=0, shape=(3, 2, 4)):
    """Return log-probabilities now and then, advantages and a mask, in which one answer has no token."""
    random = np.random.default_rng(seed)
    log_probs, old = -random.exponential(size=(2, *shape))
    mask = random.random(shape) < 0.7
    mask[0, 0] = False
    return log_probs, old, random.normal(size=shape[:-1]), mask


def answers(random, shape):
    """Draw log-probabilities now and then, advantages and weights, of which some are 0."""
    log_probs, old = -2 * random.random((2, *shape))
    return [log_probs, old, random.normal(size=shape[:-1]), random.choice([0.0, 1.0, 0.25], shape)]


def by_token(random, shape):
    log_probs, old, _, weights = answers(random, shape)
    return [log_probs, old, random.choice([-1.5, 0.0, 0.5], shape), weights]


def two(random, shape):
    return [*(-6 * random.random((2, *shape)))]


def three(random, shape):
    return [*(-6 * random.random((3, *shape)))]


def impossible(random, shape):
    never = random.random(shape) < 0.5
    return [np.where(never, -np.inf, x) for x in two(random, shape)]


def far_apart(random, shape):
    """Draw log-probabilities so far apart that ratios overflow, and impossible ones."""
    return [random.choice([-np.inf, -2000.0, -900.0, -3.0, 0.0], shape) for _ in range(3)]


NORMALIZE = {"normalize": choice(*NORMALIZATIONS)}
OF_LOSS = {"log_probs": floating(), "old_log_probs": floating("log_probs"), "mask": mask}
OF_LOSS |= {"advantages": floating("log_probs without its last axis"), "ratio": choice(*RATIOS)}
OF_LOSS |= {"clip": number(0, tensor=SCALAR), "surrogate": choice("ppo", "cispo")} | NORMALIZE
OF_PENALTY = {"log_probs": floating(), "reference_log_probs": floating("log_probs")}
OF_PENALTY |= dict.fromkeys(["estimator", "slope"], choice(*ESTIMATORS))
OF_PENALTY |= {"old_log_probs": floating("log_probs"), "ratio": choice("constant", "differentiated")}
OF_WEIGHTS = {name: OF_LOSS[name] for name in ("log_probs", "old_log_probs", "mask")}
OF_WEIGHTS |= {"level": choice(*LEVELS), "truncate": number(0)}
AVERAGED = {"tensors": 4, "ranks": (1, 3), "empties": False}
CHOICES = [("sequence", (0.1, 0.3), "sequence"), ("sequence_mean", None, "batch"), ("none", None, "token")]
CHOICES += [("token", (0.1, 0.3, 1.5), "token"), ("sequence", (0.2, 0.2, 0.5), "sequence")]
CISPO = [
    ("token", (1.0, 0.5), "token"),
    ("sequence_mean", 0.2, "sequence"),
    ("sequence", (0.1, 2.0), "batch"),
]


class TestLosses(Loss):
    rows = (
        Row("token_policy_loss", answers, options={"clip": 0.2}, domains=OF_LOSS, **AVERAGED),
        *(
            Row("token_policy_loss", by_token, options={"ratio": r, "clip": c, "normalize": n}, **AVERAGED)
            for r, c, n in CHOICES
        ),
        Row("kl_penalty", two, tensors=2),
        *(Row("kl_penalty", three, 1, 3, {"estimator": e}, {"ratio": "differentiated"}) for e in ESTIMATORS),
        Row("kl_penalty", two, tensors=2, options={"estimator": "k1"}, of_gradient={"slope": "k2"}),
        Row("kl_penalty", two, tensors=2, options={"estimator": "k2"}, of_gradient={"slope": "k1"}),
    )


def weighed(random, shape):
    return [random.normal(size=shape), random.choice([0.0, 1.0, 0.25], shape)]


class TestConstants(Suite):
    """Constants and substituted slopes have no second derivative that differences of the oracle show."""

    rows = (
        *(
            Row(
                "token_policy_loss",
                by_token,
                options={"ratio": r, "clip": c, "normalize": n, "surrogate": "cispo"},
                **AVERAGED,
            )
            for r, c, n in CISPO
        ),
        Row("kl_penalty", three, tensors=3, domains=OF_PENALTY),
        Row("kl_penalty", three, 1, 3, {"estimator": "k3"}, {"ratio": "differentiated", "slope": "k2"}),
    )


class TestCorners(Suite):
    rows = (
        *(Row("kl_penalty", impossible, tensors=2, options={"estimator": e}) for e in ESTIMATORS),
        *(
            Row("kl_penalty", far_apart, 1, 3, {"estimator": e}, {"ratio": r}, rtol=1e-8)
            for e in ESTIMATORS
            for r in ("constant", "differentiated")
        ),
    )


def far_apart_with_mask(random, shape):
    return [*far_apart(random, shape)[:2], random.choice([0.0, 1.0, 0.25], shape)]


BOUNDS = [{}, {"truncate": 1.5}, {"mask_outside": (0.5, 2.0)}, {"truncate": 2.0, "mask_outside": (0.1, 9.0)}]


class TestWeights(Domains):
    rows = tuple(
        Row("importance_weights", draw, tensors=3, options={"level": level} | bounds, domains=OF_WEIGHTS)
        for draw in (lambda *drawn: [*two(*drawn), weighed(*drawn)[1]], far_apart_with_mask)
        for level in LEVELS
        for bounds in BOUNDS
    )

    def test_weights_agree_with_the_reference_and_are_finite(self, backend, row):
        for seed in range(10):
            arguments = row.example((2, 3), np.random.default_rng(seed))
            trick, tensors = row.calls(backend.tricks), [backend.tensor(x) for x in arguments]
            for found in (trick(*tensors), backend.in_graph(trick)(*tensors)):
                np.testing.assert_allclose(backend.array(found), row.expected(arguments), rtol=1e-8)
                assert np.isfinite(backend.array(found)).all()


class TestAverages(Loss):
    rows = tuple(
        Row(
            "average_tokens",
            weighed,
            1,
            2,
            {"normalize": n},
            domains={"x": floating(), "mask": mask} | NORMALIZE,
            ranks=(1, 3),
            empties=False,
        )
        for n in ("token", "sequence", "batch")
    )


class TestAdvantages(Domains):
    given = {"rewards": floating(), "baseline": choice(*BASELINES), "scale": choice(*SCALES)}
    rows = (Row("group_advantages", lambda *drawn: weighed(*drawn)[:1], domains=given),)


@given(
    rewards=arrays(
        np.float64, array_shapes(min_dims=1, max_dims=3, min_side=2, max_side=5), elements=st.integers(-3, 3)
    ),
    baseline=st.sampled_from(BASELINES),
    scale=st.sampled_from(SCALES),
)
def test_advantages_agree_with_the_reference(backend, rewards, baseline, scale):
    got = backend.tricks.group_advantages(backend.tensor(rewards), baseline=baseline, scale=scale)
    wanted = reference.group_advantages(rewards, baseline=baseline, scale=scale)
    np.testing.assert_allclose(backend.array(got), wanted, **TOLERANCE)


def test_differentiated_ratios_give_k3_the_slope_of_k2(backend):
    arguments = three(np.random.default_rng(0), (3, 2, 4))
    others, penalty = [backend.tensor(x) for x in arguments[1:]], backend.tricks.kl_penalty
    value, (slope,), wanted, (constant,) = (
        part
        for options in ({"ratio": "differentiated"}, {"slope": "k2"})
        for part in backend.value_and_vjp(
            partial(lambda options, x: penalty(x, *others, **options), options),
            arguments[:1],
            np.cos(arguments[0]),
        )
    )
    assert_close([value, slope], [wanted, constant])


def test_a_ratio_of_one_has_a_slope_if_differentiated(backend):
    log_probs, other, _ = three(np.random.default_rng(0), (4,))
    _, (slope,) = backend.value_and_vjp(
        lambda x: backend.tricks.kl_penalty(x, backend.tensor(other), x, ratio="differentiated"),
        [log_probs],
        np.ones(4),
    )
    np.testing.assert_allclose(slope, log_probs - other)


@pytest.mark.parametrize("level", LEVELS)
def test_weights_have_no_gradient_and_padding_may_hold_anything(backend, level):
    log_probs, old, _, mask = drawn()
    spoilt = np.where(mask, log_probs, np.nan)
    weights = backend.tricks.importance_weights
    found = weights(backend.tensor(spoilt), backend.tensor(old), backend.tensor(mask), level=level)
    wanted = reference.importance_weights(log_probs, old, mask, level=level)
    np.testing.assert_allclose(backend.array(found), wanted)
    assert not backend.array(found)[~mask].any()
    _, (gradient,) = backend.value_and_vjp(
        lambda x: x + weights(x, backend.tensor(old), backend.tensor(mask), level=level),
        [log_probs],
        np.ones_like(log_probs),
    )
    assert (gradient == 1).all()


def test_a_clipped_token_learns_with_cispo_alone(backend):
    old, advantages = np.full((1, 2), -3.0), np.array([[1.0, -1.0]])
    others = [backend.tensor(x) for x in (old, advantages, np.ones((1, 2)))]

    def slope(**options):
        loss = backend.tricks.token_policy_loss
        return backend.value_and_vjp(
            lambda x: loss(x, *others, normalize="batch", **options), [old + np.log([[3.0, 8.0]])], 1.0
        )[1][0]

    np.testing.assert_allclose(slope(clip=(0.2, 0.5)), [[0, 8]])
    np.testing.assert_allclose(slope(clip=(0.2, 0.5, 2.0)), [[0, 0]])  # dual: a punished ratio of 3 at most
    np.testing.assert_allclose(slope(clip=(0.2, 0.5), surrogate="cispo"), [[-1.5, 1.5]])


def test_a_ratio_that_overflows_weighs_its_bound_with_cispo(backend):
    others = [backend.tensor(np.array([x])) for x in ([-900.0, -1.0], [1.0, -1.0], [1.0, 1.0])]
    value, (gradient,) = backend.value_and_vjp(
        lambda x: backend.tricks.token_policy_loss(x, *others, clip=(1.0, 4.0), surrogate="cispo"),
        [np.array([[-1.0, -900.0]])],
        1.0,
    )
    assert value == pytest.approx(2.5)
    np.testing.assert_allclose(gradient, [[-2.5, 0.0]], atol=1e-150)


def test_gspo_by_token_is_gspo_with_one_advantage_each(backend):
    log_probs, old, advantages, mask = drawn()
    old_ratio = reference.importance_weights(log_probs, old, mask, level="sequence_mean")

    def gradient(loss):
        return backend.value_and_vjp(loss, [log_probs], 1.0)[1][0]

    options, others = {"normalize": "sequence"}, [backend.tensor(x) for x in (old, advantages, mask)]
    of_answers = gradient(
        lambda x: backend.tricks.token_policy_loss(x, *others, ratio="sequence_mean", **options)
    )
    by_token = backend.tensor(advantages[..., None] * old_ratio)
    of_tokens = gradient(
        lambda x: backend.tricks.token_policy_loss(x, others[0], by_token, others[2], ratio="none", **options)
    )
    np.testing.assert_allclose(of_tokens, of_answers, atol=1e-12)


def test_a_groups_loss_is_zero_without_a_zero_gradient(backend):
    log_probs, _, _, mask = drawn()
    mask[0, 0] = True
    advantages = reference.group_advantages([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]], scale="group")
    value, (gradient,) = backend.value_and_vjp(
        lambda x: backend.tricks.token_policy_loss(
            x, x, backend.tensor(advantages), backend.tensor(mask), clip=0.2, normalize="sequence"
        ),
        [log_probs],
        1.0,
    )
    assert abs(value) < 1e-15
    assert np.abs(gradient).sum() > 0.5


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("normalize", NORMALIZATIONS)
def test_padding_may_hold_anything(backend, ratio, normalize):
    log_probs, old, advantages, mask = drawn()

    def value_and_gradient(log_probs, *others):
        others = [backend.tensor(x) for x in (*others, mask)]
        return backend.value_and_vjp(
            lambda x: backend.tricks.token_policy_loss(x, *others, ratio=ratio, normalize=normalize),
            [log_probs],
            1.0,
        )

    spoilt = (log_probs, -np.inf), (old, np.nan), (advantages[..., None], np.nan)
    value, gradients = value_and_gradient(*(np.where(mask, x, y) for x, y in spoilt))
    each = np.broadcast_to(advantages[..., None], mask.shape)
    expected, slopes = value_and_gradient(log_probs, old, each)
    assert_close([value, *gradients], [expected, *slopes], rtol=0, atol=0)
    whole = value_and_gradient(log_probs, old, np.where(mask.any(-1), advantages, np.nan))
    assert_close([value, *gradients], [whole[0], *whole[1]], rtol=1e-14, atol=1e-15)
    averages = (
        backend.tricks.average_tokens(backend.tensor(x), backend.tensor(mask), normalize=normalize)
        for x in (np.where(mask, log_probs, np.nan), log_probs)
    )
    assert len(set(map(float, averages))) == 1


def test_a_ratio_that_overflows_is_clipped_without_nan(backend):
    log_probs, old = np.array([[-1.0, -900.0]]), np.array([[-900.0, -1.0]])
    others = [backend.tensor(np.array(x)) for x in (old, [[1.0, -1.0]], [[1.0, 1.0]])]
    value, (gradient,) = backend.value_and_vjp(
        lambda x: backend.tricks.token_policy_loss(x, *others, clip=0.25), [log_probs], 1.0
    )
    assert value == pytest.approx(-(1.25 - 0.75) / 2)
    assert gradient.tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("ratio", LEVELS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_ratio_is_infinite_without_a_clip(backend, ratio, dtype):
    """Infinities of both signs would add up to NaN."""
    log_probs, old = np.array(
        [[[-1, -np.inf, -9e3], [-1, -1, -1]], [[-np.inf, -9e3, -1], [-2, -2, -2]]], dtype
    )
    mask = np.array([[1, 1, 1], [1, 0, 0]], dtype)
    others = [backend.tensor(x) for x in (old, np.array([[1, -1, 2], [-1, -1, -1]], dtype), mask)]
    value, (gradient,) = backend.value_and_vjp(
        lambda x: backend.tricks.token_policy_loss(x, *others, ratio=ratio), [log_probs], dtype(1)
    )
    assert np.isfinite([value, *gradient.ravel()]).all()
    assert value == pytest.approx(
        reference.token_policy_loss(log_probs, *map(backend.array, others), ratio=ratio)
    )
    wanted = reference.token_policy_loss_vjp(1.0, log_probs, *map(backend.array, others), ratio=ratio)
    assert_close(gradient, wanted, rtol=1e-5)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_no_penalty_is_nan_where_one_policy_excludes_a_token(backend, estimator):
    log_probs, other = np.array([[-np.inf, -1.0, -np.inf, -3000.0], [-1.0, -np.inf, -np.inf, -1.0]])
    value, (gradient,) = backend.value_and_vjp(
        lambda x: backend.tricks.kl_penalty(x, backend.tensor(other), estimator=estimator),
        [log_probs],
        np.ones(4),
    )
    with np.errstate(over="ignore"):
        wanted = reference.kl_penalty(log_probs, other, estimator=estimator)
        slope = reference.kl_penalty_vjp(np.ones(4), log_probs, other, estimator=estimator)
    assert not np.isnan([*value, *gradient]).any()
    assert_close([value, np.nan_to_num(gradient)], [wanted, np.nan_to_num(slope)])


def test_an_impossible_token_is_nothing_where_nothing_is_learned(backend):
    old, advantages, mask = np.zeros((2, 2)), np.array([0.0, 1.0]), np.ones((2, 2))
    others = [backend.tensor(x) for x in (old, advantages, mask)]
    value, (gradient,) = backend.value_and_vjp(
        lambda x: backend.tricks.token_policy_loss(x, *others, ratio="none"),
        [np.array([[-np.inf, -1.0], [-1.0, -1.0]])],
        1.0,
    )
    assert value == 0.5
    np.testing.assert_array_equal(gradient, [[0, 0], [-0.25, -0.25]])


def test_bounds_are_scalars_and_a_list_of_two_will_do(backend):
    log_probs, old, *others = (backend.tensor(x) for x in drawn())
    loss = backend.tricks.token_policy_loss
    bounds = (0.1, 0.3), [0.1, 0.3], (backend.tensor(np.float64(0.1)), 0.3)
    both = (loss(log_probs, old, *others, clip=clip) for clip in bounds)
    assert len({float(value) for value in both}) == 1
    with pytest.raises(ValueError, match=r"clip must have the shape of a scalar, \(\); got \(4,\)"):
        loss(log_probs, old, *others, clip=backend.tensor(np.ones(4)))


@pytest.mark.parametrize("clip", [None, 0.25])
def test_a_ratio_that_overflows_is_nothing_where_nothing_is_learned(backend, clip):
    old, advantages, mask = [[-900.0, -1.0], [-1.0, -1.0]], [0.0, 1.0], [[1.0, 1.0], [1.0, 0.0]]
    others = [backend.tensor(np.array(x)) for x in (old, advantages, mask)]
    value, (gradient,) = backend.value_and_vjp(
        lambda x: backend.tricks.token_policy_loss(x, *others, ratio="sequence", clip=clip),
        [np.full((2, 2), -1.0)],
        1.0,
    )
    assert value == pytest.approx(-1 / 3)
    np.testing.assert_allclose(gradient, [[0, 0], [-1 / 3, 0]])


def test_advantages_are_not_the_rewards_themselves_in_torch(in_torch):
    rewards = in_torch.framework.ones(2, 2)
    in_torch.tricks.group_advantages(rewards, baseline="none").zero_()
    assert rewards.min() == 1


@pytest.mark.parametrize("scale", ["group", "batch"])
@pytest.mark.parametrize("rewards", [[[0.1] * 7], [[0.1 + 0.2, 0.3]], [[1e30, 1e30]], [[0.0, 0.0]]])
def test_equal_rewards_have_no_advantage(backend, rewards, scale):
    advantages = backend.tricks.group_advantages(backend.tensor(np.array(rewards)), scale=scale)
    assert not backend.array(advantages).any()


@pytest.mark.parametrize("scale", ["none", "group", "batch"])
@pytest.mark.parametrize(
    "rewards",
    [
        [[1e12, 2e12], [1e-6, 2e-6]],  # each group is measured by its own rewards
        [[1e15, 2e15], [1.0, 2.0]],
        [[1e8, 1e8 + 2**-23]],  # 8 units in the last place, which is rounding
        [[1e8, 1e8 + 2**-20]],  # 64 of them, which aren't
        [[1e-20, 2e-20]],
    ],
)
def test_what_is_rounding_depends_on_how_large_rewards_are(backend, rewards, scale):
    advantages = backend.tricks.group_advantages(backend.tensor(np.array(rewards)), scale=scale)
    wanted = reference.group_advantages(rewards, scale=scale)
    np.testing.assert_allclose(backend.array(advantages), wanted, rtol=1e-7)
    signs = {"none": True, "group": rewards[0][1] - rewards[0][0] != 2**-23}
    if scale in signs:
        assert (np.sign(wanted) == np.array([-1, 1]) * signs[scale]).all()


def test_large_rewards_do_not_overflow(backend):
    rewards = backend.tensor(np.float32([[1e30, 3e30]]))
    advantages = backend.tricks.group_advantages(rewards, scale="group")
    np.testing.assert_allclose(backend.array(advantages), [[-1, 1]], rtol=1e-6)


def test_nothing_that_counts_gives_zero(backend):
    log_probs, old, advantages, mask = (backend.tensor(x) for x in drawn())
    for normalize in NORMALIZATIONS:
        loss = backend.tricks.token_policy_loss(
            log_probs, old, advantages, mask & ~mask, ratio="sequence_mean", normalize=normalize
        )
        assert float(loss) == 0


def test_groups_of_one_and_answers_of_no_token_teach_nothing(backend):
    for scale in SCALES:
        rewards = np.array([[2.0], [5.0]])
        found = backend.array(backend.tricks.group_advantages(backend.tensor(rewards), scale=scale))
        assert not found.any()
        assert not reference.group_advantages(rewards, scale=scale).any()
    log_probs, old, advantages, mask = drawn()
    mask[1:] = False
    others = [backend.tensor(x) for x in (old, advantages, mask)]
    for ratio, normalize in product(RATIOS, NORMALIZATIONS):
        loss = partial(backend.tricks.token_policy_loss, ratio=ratio, normalize=normalize)
        value, (gradient,) = backend.value_and_vjp(
            partial(lambda loss, x: loss(x, *others), loss), [log_probs], 1.0
        )
        assert np.isfinite(value)
        assert np.isfinite(gradient).all()
        assert not gradient[~mask].any()


def test_a_group_of_unknown_size_may_be_one_in_tensorflow(in_tensorflow):
    tf = in_tensorflow.framework

    @tf.function(input_signature=[tf.TensorSpec([None, None])])
    def advantages(rewards):
        return in_tensorflow.tricks.group_advantages(rewards, baseline="leave_one_out")

    assert advantages([[3.0]]).numpy() == 0
    np.testing.assert_allclose(advantages([[3.0, 1.0]]), [[2, -2]])


REMEDY = "remedy: log_softmax of the logits, and of that the entry of each token"


@pytest.mark.parametrize("name", ["token_policy_loss", "importance_weights"])
@pytest.mark.parametrize("place", [0, 1])
def test_log_probabilities_above_zero_are_refused_where_they_count(backend, name, place):
    log_probs, old, advantages, mask = drawn()
    arguments = [log_probs, old, mask] if name == "importance_weights" else [log_probs, old, advantages, mask]
    arguments[place] = np.where(mask, arguments[place], 7.0)  # in padding anything may be
    trick, expected = getattr(backend.tricks, name), getattr(reference, name)
    found = backend.array(trick(*map(backend.tensor, arguments)))
    np.testing.assert_allclose(found, expected(*arguments))
    arguments[place][1, 1, 1], mask[1, 1, 1] = 1e-6, True  # rounding
    assert np.isfinite(backend.array(trick(*map(backend.tensor, arguments)))).all()
    logits = np.array([0.25, 2.0])
    arguments[place][1, 1, 1] = logits[0]
    message = f"{('log_probs', 'old_log_probs')[place]} must be at most 0, .*; got 0.25; {REMEDY}"
    for refusing in (lambda: trick(*map(backend.tensor, arguments)), lambda: expected(*arguments)):
        with pytest.raises(ValueError, match=message):
            refusing()
    arguments[place][1, 1, 1] = log_softmax(logits)[0]
    np.testing.assert_allclose(backend.array(trick(*map(backend.tensor, arguments))), expected(*arguments))


@pytest.mark.parametrize("shape", [(), (0, 3), (2, 0)])
def test_the_reference_refuses_what_is_empty_too(shape):
    x, message = np.zeros(shape), "must have at least one axis and one element"
    for refused in (
        lambda: reference.group_advantages(x),
        lambda: reference.average_tokens(x, x),
        lambda: reference.token_policy_loss(x, x, x, x),
        lambda: reference.importance_weights(x, x, x),
    ):
        with pytest.raises(ValueError, match=message):
            refused()


def test_the_reference_refuses_to_leave_one_of_one_out():
    with pytest.raises(ValueError, match="groups of at least 2 answers; got 1"):
        reference.group_advantages([[1.0]], baseline="leave_one_out")


X, TOKENS, WEIGHTS = np.zeros((2, 3)), "token_policy_loss", "importance_weights"


@pytest.mark.parametrize(
    ("name", "arguments", "options", "message"),
    [
        ("group_advantages", [X[0, 0]], {}, "rewards must have at least one axis and one element"),
        (
            "group_advantages",
            [X[:, :1]],
            {"baseline": "leave_one_out"},
            "groups of at least 2 answers; got 1",
        ),
        (TOKENS, [X] * 4, {"clip": (0.1,)}, "clip must be a number or two or three of them; got 1"),
        (
            TOKENS,
            [X] * 4,
            {"clip": (0.1, 0.2, 0.3), "surrogate": "cispo"},
            "clip must be a number or two of them; got 3",
        ),
        (TOKENS, [X] * 4, {"surrogate": "cispo"}, "must have a ratio and a clip, .*; got ratio='token' and"),
        (
            TOKENS,
            [X] * 4,
            {"surrogate": "cispo", "ratio": "none", "clip": 0.2},
            "must have a ratio and a clip, .*; got ratio='none' and clip=0.2",
        ),
        ("kl_penalty", [X] * 2, {"ratio": "differentiated"}, "must have old_log_probs; got None; remedy: "),
        (WEIGHTS, [X] * 3, {"mask_outside": (2.0, 1.0)}, r"a pair \(low, high\) with low <= high; got \(2.0"),
        (WEIGHTS, [X] * 3, {"mask_outside": 2.0}, "mask_outside must be a pair of numbers; got 2.0"),
        (WEIGHTS, [X] * 3, {"mask_outside": (-1.0, 2.0)}, "mask_outside must lie in .*; got -1.0"),
        (WEIGHTS, [X[:0]] * 3, {}, "log_probs must have at least one axis and one element"),
        (TOKENS, [X] * 4, {"ratio": "none", "clip": 0.2}, 'clip must be None with ratio="none"'),
        ("average_tokens", [X[:0], X[:0]], {}, "x must have at least one axis and one element"),
    ],
)
def test_sizes_and_options_that_do_not_fit_are_refused(backend, name, arguments, options, message):
    assert_refused(backend, name, arguments, options, ValueError, message)


REMEDIES = {"mask.bool()": lambda _, mask: mask.bool()}
REMEDIES |= {"tf.cast(mask, tf.bool)": lambda tf, mask: tf.cast(mask, tf.bool)}


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8])
def test_the_remedy_for_a_mask_of_integers_works(backend, dtype):
    log_probs, _, _, mask = (x[0] for x in drawn())
    integers = backend.tensor(np.array(mask != 0, dtype))
    with pytest.raises(
        TypeError, match=r"mask must be bool or floating-point; got .*int.*; remedy: "
    ) as raised:
        backend.tricks.average_tokens(backend.tensor(log_probs), integers)
    remedy = REMEDIES[str(raised.value).partition("remedy: ")[2]]
    counted = remedy(backend.framework, integers)
    found = backend.array(backend.tricks.average_tokens(backend.tensor(log_probs), counted))
    assert found == pytest.approx(reference.average_tokens(log_probs, mask != 0))
