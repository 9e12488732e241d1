"""soft_rank and spearman_correlation: ranks with a gradient."""

import multiprocessing
import sys
import threading
import time
import warnings
from functools import partial

import numpy as np
import pytest
from scipy.optimize import isotonic_regression
from scipy.stats import rankdata, spearmanr

from agreeing import assert_agrees, assert_agrees_twice, assert_close
from backends import made
from domains import SCALAR, axes, flag, floating, number
from gradtricks import reference
from gradtricks._core import kernels
from gradtricks._core.kernels._sharing import share
from suites import Recursion, Row, Suite
from transforms import FIRST_ORDER, TorchBatchedCotangents, numerical_vjp

SMALLEST = sys.float_info.min


def distinct(random, shape):
    return [*random.normal(size=(2, *shape))]


def tied(random, shape):
    """Draw rows in which ties, near ties and large gaps occur."""
    return [*random.choice([0.0, 1.0, 1.001, -9.0, 0.5, random.normal()], (2, *shape))]


def alone(draw):
    return lambda *drawn: draw(*drawn)[:1]


STRENGTH = {"regularization_strength": 0.3}
ROWS = {"ranks": (1, 3), "rtol": 1e-9, "atol": 1e-9}
OF_RANKS = {"x": floating(), "regularization_strength": number(SMALLEST, tensor=SCALAR)}
OF_RANKS |= {"axis": axes(2, several=False)}
OF_BOTH, BOTH = OF_RANKS | {"y": floating("x"), "soft_y": flag}, ROWS | {"tensors": 2}


class TestRanks(Recursion):
    rows = (
        Row("soft_rank", alone(distinct), options=STRENGTH, domains=OF_RANKS, widens=False, **ROWS),
        Row("spearman_correlation", distinct, domains=OF_BOTH, **BOTH),
        Row("spearman_correlation", distinct, 2, options=STRENGTH | {"soft_y": True, "axis": 0}, **ROWS),
    )


class TestTies(Suite):
    test_xla_agrees_with_the_reference_in_tensorflow = None  # compiled by TestRanks

    rows = (
        *(
            Row("soft_rank", alone(tied), options={"regularization_strength": s, "axis": a}, **ROWS)
            for s, a in [(0.01, 0), (1.0, -1), (100.0, -1)]
        ),
        Row("spearman_correlation", tied, **BOTH),
        Row("spearman_correlation", tied, 2, options={"soft_y": True, "axis": 0}, **ROWS),
        Row("spearman_correlation", tied, options=STRENGTH, **BOTH),
    )


@pytest.fixture
def on_a_device(monkeypatch):
    """Have hard ranks and slopes on the CPU computed as on a device."""
    for module in ("_loops", "ranking"):
        monkeypatch.setattr(f"gradtricks.torch.{module}.on_cpu", lambda x: False)


FURTHER = {"compile", "vmap of func.vjp", "func.jvp"}
FURTHER = [way for way in FIRST_ORDER if way.framework == "torch" and way.name in FURTHER]


@pytest.mark.usefixtures("on_a_device")
class TestOnADevice:
    rows = (*TestRanks.rows, *TestTies.rows)

    def test_values_and_gradients_are_those_of_the_reference(self, in_torch, row):
        for seed in range(30):
            row.assert_agrees(in_torch, row.drawn(seed))

    @pytest.mark.parametrize("way", FURTHER, ids=lambda way: way.id)
    def test_other_ways_of_differentiating_agree(self, way, row):
        row.assert_agrees(way(made(way.framework)), row.example())

    @pytest.mark.parametrize("extreme", [np.nan, np.inf, -np.inf])
    def test_what_is_not_finite_has_no_rank(self, in_torch, row, extreme):
        for arguments in (row.example(), row.example()[::-1]):
            arguments[0][0, 1] = extreme
            row.assert_agrees(in_torch, arguments)


def test_slopes_stay_on_their_device_in_torch(in_torch):
    from devices_torch import OneDevice
    from gradtricks.torch import ranking

    x = in_torch.framework.ones(2, 3, device="meta")
    with OneDevice():
        assert ranking._hard_rank(x).device == ranking._deviations(x, x.long(), x[0, 0]).device == x.device


@pytest.mark.usefixtures("on_a_device")
@pytest.mark.parametrize("shape", [(2, 0), (0, 3), (0, 0)])
def test_of_nothing_there_are_no_ranks_on_a_device(in_torch, shape):
    x = in_torch.framework.zeros(shape)
    assert in_torch.tricks.soft_rank(x, regularization_strength=1.0).shape == shape
    correlation = in_torch.tricks.spearman_correlation(x, x)
    assert correlation.tolist() == [0.0] * shape[0]


def test_a_doubled_row_takes_thirty_operations_more_on_a_device(in_torch):
    from devices_torch import calls_of

    counts = []
    for n in (64, 128, 1024):
        x = in_torch.framework.ones(2, n, device="meta")
        counts.append(len(calls_of(lambda x=x: in_torch.tricks.soft_rank(x, regularization_strength=1.0))))
    assert counts[1] - counts[0] == (counts[2] - counts[1]) / 3 <= 32


X = np.array([[1.5, -2.0, 0.1, 0.3], [0.2, 0.25, 0.9, -0.4]])
Y = np.array([[1.0, 3.0, 2.0, 2.0], [0.0, 1.0, -1.0, 5.0]])
WAYS = pytest.mark.parametrize("way", ["value_and_vjp", "graph_value_and_vjp"])
COTANGENT = np.array([[1.0, -3.0, 2.0, 0.5], [0.3, 0.1, -2.0, 1.0]])


@WAYS
def test_near_elements_of_a_target_arent_equal(backend, way):
    x, y = np.array([[0.0, 1.0, 1.0, 1.0], X[0]]), np.array([[0.0, 2e-35, 1.0, 1.0], Y[0]])
    target, cotangent = backend.tensor(y), np.array([1.0, -2.0])
    value, gradients = getattr(backend, way)(
        lambda t: backend.tricks.spearman_correlation(t, target), [x], cotangent
    )
    slope, _ = reference.spearman_correlation_vjp(cotangent, x, y)
    assert_close([value, *gradients], [reference.spearman_correlation(x, y), slope], atol=1e-12)


@pytest.mark.parametrize("strength", [1e-3, 0.1, 1.0])
def test_the_reference_is_isotonic_regression(strength):
    x = np.random.default_rng(0).normal(size=50)
    order = np.argsort(x)
    excess = x[order] / strength - np.arange(1, 51)
    expected = x[order] / strength - isotonic_regression(excess).x
    np.testing.assert_allclose(
        reference.soft_rank(x, regularization_strength=strength)[order], expected, rtol=1e-10
    )


@pytest.mark.parametrize("soft_y", [False, True])
@pytest.mark.parametrize("strength", [None, 0.17])
def test_the_references_gradients_are_right(strength, soft_y):
    options = {"regularization_strength": strength, "soft_y": soft_y}
    inputs, cotangent = [X, Y[:, ::-1] + X], np.array([1.0, -2.0])
    gradients = reference.spearman_correlation_vjp(cotangent, *inputs, **options)
    numerical = numerical_vjp(partial(reference.spearman_correlation, **options), inputs, [cotangent])
    assert_close(gradients, numerical, rtol=1e-7, atol=1e-8)


# Numbers that other libraries print: the README of fast-soft-sort, torchsort's issue 60, and fast-soft-sort's
# issue 14, where the ranks were taken for a bug.
PUBLISHED = [
    ([[5.0, 1.0, 2.0], [2.0, 1.0, 5.0]], 2.0, [[3.0, 1.25, 1.75], [1.75, 1.25, 3.0]]),
    ([[5.0, 1.0, 2.0], [2.0, 1.0, 5.0]], 1.0, [[3.0, 1.0, 2.0], [2.0, 1.0, 3.0]]),
    ([[1.0, -2.0, 2.0, 3.0, 0.5, -1.0]], 1.0, [[3.875, 1.0, 4.875, 5.875, 3.375, 2.0]]),
    ([[1.0, -2.0, 2.0, 3.0, 0.5, -1.0]], 0.1, [[4.0, 1.0, 5.0, 6.0, 3.0, 2.0]]),
    ([[1.0, -2.0, 2.0, 3.0, 0.5, -1.0]], 10.0, [[3.5417, 3.2417, 3.6417, 3.7417, 3.4917, 3.3417]]),
    ([[0.8495, 0.5939, 0.6640, 0.4471]], 0.1, [[4.0, 2.1495, 2.8505, 1.0]]),
    ([[0.8322, 0.0047, 0.2805, 0.2584]], 0.1, [[4.0, 1.0, 2.6105, 2.3895]]),
]


@pytest.mark.parametrize(("x", "strength", "ranks"), PUBLISHED)
def test_published_numbers(backend, x, strength, ranks):
    found = backend.tricks.soft_rank(backend.tensor(x), regularization_strength=strength)
    np.testing.assert_allclose(backend.array(found), ranks, atol=6e-5)


def test_ranks_in_float32_are_exact_however_small_the_strength(backend):
    # Issue 74 of torchsort: for 2,000 values in [0, 1] no strength gave the ranks.
    x = np.random.default_rng(0).random(2000, np.float32)
    for strength in (1e-9, 1e-30, 1e-300):
        ranks = backend.tricks.soft_rank(backend.tensor(x), regularization_strength=strength)
        np.testing.assert_array_equal(backend.array(ranks), rankdata(x))


def test_neither_an_offset_nor_outliers_cost_the_others_digits(backend):
    x = np.array([[1e-30, 0.0, 1.0, 1.0], [1e9, 1e9 + 1e-6, 0.0, 1e9 + 3e-6]])
    for row, strength in zip(x, (2e-30, 2e-6)):
        found = backend.tricks.soft_rank(backend.tensor(row), regularization_strength=strength)
        expected = reference.soft_rank(row, regularization_strength=strength)
        np.testing.assert_allclose(backend.array(found), expected, rtol=1e-10)


@WAYS
def test_extreme_values(backend, way):
    rows = np.array(
        [
            [1e308, -1e308, 9e307, 0.0, -0.0],
            [-0.0, 1e-45, 0.0, 3e38, -1e-45],
            [1e30, 1e30 * (1 + 2**-52), -1e30, 1.0, 0.0],
            [np.nan, 1.0, 2.0, 3.0, 4.0],
            [np.inf, 1.0, 2.0, 3.0, 4.0],
            [-np.inf, 1.0, 2.0, 3.0, np.nan],
            [0.1, 0.1, 0.1, 0.2, 0.2],
        ]
    )

    def ranked(x):
        return backend.tricks.soft_rank(x, regularization_strength=2.3e-308)

    cotangent = np.ones_like(rows)
    value, (gradient,) = getattr(backend, way)(ranked, [rows], cotangent)
    finite = np.isfinite(rows).all(-1)
    np.testing.assert_array_equal(value[finite], rankdata(rows[finite], axis=-1))
    assert np.isnan(value[~finite]).all()
    assert np.isnan(gradient[~finite]).all()
    np.testing.assert_array_equal(gradient[finite], 0)


@WAYS
def test_huge_strengths_and_infinite_slopes(backend, way):
    def ranked(x):
        huge = backend.tricks.soft_rank(x, regularization_strength=1.5e308)
        return backend.framework.stack([huge, backend.tricks.soft_rank(x, regularization_strength=1e-200)])

    x, cotangent = np.array([1.5e308, -1.5e308, 0.0]), np.array([[0.0] * 3, [np.inf, 1.0, np.nan]])
    value, (gradient,) = getattr(backend, way)(ranked, [x], cotangent)
    np.testing.assert_allclose(value, [[3, 1, 2]] * 2, rtol=1e-15)
    np.testing.assert_array_equal(gradient, np.zeros(3))  # with a tiny strength each is alone in its block


def test_pooling_by_rounds_agrees_with_the_kernel(in_tensorflow):
    tf, tricks = in_tensorflow.framework, in_tensorflow.tricks
    random, n = np.random.default_rng(0), 3000
    spreads = {
        "normal": random.normal(size=(2, n)),
        "exponential": np.exp(3 * random.normal(size=(2, n))),
        "uniform": random.random((2, n)),
        "ties": np.round(3 * random.normal(size=(2, n))),
        "unit": np.arange(2.0 * n).reshape(2, n),
    }
    ranked = tf.function(
        lambda x, strength: tricks.soft_rank(x, regularization_strength=strength), autograph=False
    )
    for name, x in spreads.items():
        for strength in (5.0, 0.2, 2 / n):
            ours = ranked(tf.constant(x), tf.constant(strength, tf.float64))
            eager = tricks.soft_rank(tf.constant(x), regularization_strength=strength)
            np.testing.assert_allclose(ours, eager, rtol=1e-10, err_msg=name)
    assert ranked.experimental_get_tracing_count() == 1


def test_threads_share_the_rows():
    x = np.random.default_rng(0).normal(size=(5, 2**15))
    ranked = kernels.ranking.soft_ranks
    for alone, shared in zip(ranked(x, 1e-3), ranked(x, 1e-3, threads=3)):
        np.testing.assert_array_equal(alone, shared)


def test_a_fork_has_threads_too():
    def meet():
        barrier = threading.Barrier(2)
        share(lambda start, stop: barrier.wait(20), 2, least=1, threads=2)

    meet()
    child = multiprocessing.get_context("fork").Process(target=meet)
    child.start()
    child.join(60)
    child.kill()
    assert child.exitcode == 0


@pytest.mark.parametrize("failing", [0, 1])
def test_a_failing_thread_stops_all_work(failing):
    barrier, caller, done = threading.Barrier(2), threading.current_thread(), []

    def work(start, stop):
        if start <= 3:
            barrier.wait(20)  # the first two parts: one for each thread
        if (threading.current_thread() is caller) == failing:
            raise ZeroDivisionError
        time.sleep(0.05)
        done.append(start)

    with pytest.raises(ZeroDivisionError):
        share(work, 9, least=1, threads=2)
    before = len(done)
    time.sleep(0.2)
    assert 1 <= len(done) == before


@pytest.mark.parametrize("random_ties", [False, True])
@pytest.mark.parametrize("n", [2, 3, 10, 200])
def test_small_strengths_give_the_true_correlation(backend, n, random_ties):
    random = np.random.default_rng(n)
    x, y = random.normal(size=(2, 4, n))
    if random_ties:
        x[:, : n // 2], y[:, n // 3 :] = np.round(x[:, : n // 2]), np.round(y[:, n // 3 :])
    found = backend.tricks.spearman_correlation(
        backend.tensor(x), backend.tensor(y), regularization_strength=1e-9
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of SciPy, where all elements are equal and it says NaN
        expected = np.nan_to_num([spearmanr(a, b).statistic for a, b in zip(x, y)])
    np.testing.assert_allclose(backend.array(found), expected, atol=1e-12)


def test_the_default_strength_makes_units_irrelevant(backend):
    def both(x):
        return backend.value_and_vjp(
            lambda t: backend.tricks.spearman_correlation(t, backend.tensor(Y)), [x], np.ones(2)
        )

    value, (gradient,) = both(X)
    for scale in (1e-150, 1024.0, 1e150):
        scaled, (scaled_gradient,) = both(scale * X)
        np.testing.assert_allclose(scaled, value, rtol=1e-12)
        np.testing.assert_allclose(scale * scaled_gradient, gradient, rtol=1e-9)
    np.testing.assert_allclose(both(X + 3.0)[0], value, rtol=1e-12)
    # So the gradient has no component along a change of scale or origin.
    np.testing.assert_allclose([np.sum(gradient * X, -1), np.sum(gradient, -1)], 0, atol=1e-14)


@pytest.mark.parametrize("strength", [None, 0.5])
@pytest.mark.parametrize(("x", "y"), [([2.0, 2.0, 2.0], [1.0, 2.0, 3.0]), ([1.0, 2.0, 3.0], [7.0, 7.0, 7.0])])
def test_a_constant_correlates_with_nothing(backend, x, y, strength):
    value, gradients = backend.value_and_vjp(
        lambda x, y: backend.tricks.spearman_correlation(x, y, regularization_strength=strength, soft_y=True),
        [np.array(x), np.array(y)],
        np.ones(()),
    )
    assert value == 0
    np.testing.assert_array_equal(gradients, np.zeros((2, 3)))


@pytest.mark.parametrize("spoilt", [np.nan, np.inf])
def test_a_row_that_is_not_finite_gives_nan(backend, spoilt):
    x = X.copy()
    x[0, 1] = spoilt
    for inputs in ([x, Y], [Y, x]):
        value, (gradient, _) = backend.value_and_vjp(
            lambda x, y: backend.tricks.spearman_correlation(x, y, soft_y=True), inputs, np.ones(2)
        )
        np.testing.assert_array_equal(np.isnan(value), [True, False])
        expected = reference.spearman_correlation(*inputs, soft_y=True)
        np.testing.assert_allclose(value, expected, rtol=1e-12)  # processors round sums differently
        assert np.isnan(gradient[0]).any()
        assert not np.isnan(gradient[1]).any()
    gradient = reference.soft_rank_vjp(COTANGENT, x, regularization_strength=0.3)
    np.testing.assert_array_equal(np.isnan(gradient), [[True] * 4, [False] * 4])


def test_a_gradient_for_many_cotangents_at_once_in_torch(in_torch):
    x, cotangent = np.vstack([X, [np.nan, 1, 2, 3]]), np.vstack([COTANGENT, COTANGENT[0]])
    way = TorchBatchedCotangents(in_torch)
    assert_agrees(way, "soft_rank", [x], cotangent, regularization_strength=0.5)


def test_a_sparse_gradient_reaches_other_rows(backend):
    rows, strength = backend.tensor(np.array([0, 2])), backend.tensor(np.array(0.3))

    def taken(x):
        return backend.take(backend.tricks.soft_rank(x, regularization_strength=strength, axis=0), rows)

    _, (gradient,) = backend.value_and_vjp(taken, [X.T], np.ones((2, 2)))
    cotangent = np.array([[1.0, 1], [0, 0], [1, 1], [0, 0]])
    expected = reference.soft_rank_vjp(cotangent, X.T, regularization_strength=0.3, axis=0)
    np.testing.assert_allclose(gradient, expected, rtol=1e-10, atol=1e-10)


def test_a_batch_of_strengths_is_refused_in_torch(in_torch):
    torch, tricks = in_torch.framework, in_torch.tricks
    ranked = torch.func.vmap(lambda x, strength: tricks.soft_rank(x, regularization_strength=strength))
    with pytest.raises(ValueError, match=r"must be one number for all rows; got a batch of them; remedy"):
        ranked(torch.ones(2, 3), torch.ones(2))


def test_soft_rank_differentiated_twice(twice):
    # It is linear between the kinks, so the curvature is that of what comes after it.
    def cubed(x):
        return twice.tricks.soft_rank(x, regularization_strength=0.3) ** 3

    def vjp(cotangent, x):
        ranks = reference.soft_rank(x, regularization_strength=0.3)
        return reference.soft_rank_vjp(3 * ranks**2 * cotangent, x, regularization_strength=0.3)

    assert_agrees_twice(twice, cubed, [X], COTANGENT, vjp)


def test_targets_of_equal_numbers_correlate_with_nothing(backend):
    # Their sum rounds, so that their mean isn't the number itself.
    x, y = np.array([0.0, 1, 1, 1, 1, 1, 1]), np.full(7, 1.001)
    assert reference.spearman_correlation(x, y) == 0
    assert float(backend.tricks.spearman_correlation(backend.tensor(x), backend.tensor(y))) == 0


def test_rows_mapped_one_by_one_in_tensorflow(in_tensorflow):
    tf, tricks = in_tensorflow.framework, in_tensorflow.tricks
    x = tf.random.stateless_normal([2, 3, 9], [0, 1], dtype=tf.float64)

    def rank(rows):
        return tricks.soft_rank(rows, regularization_strength=0.5)

    def correlate(rows):
        return tricks.spearman_correlation(rows, rows**2)

    for function in (rank, correlate):
        for mapped in (tf.map_fn(function, x), tf.function(tf.map_fn)(function, x)):
            np.testing.assert_allclose(mapped, function(x), rtol=1e-12)
