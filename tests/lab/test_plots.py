"""Statistics over runs, and the figures of a sweep."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib import pyplot, rcParams
from matplotlib.text import Text
from scipy import stats

from gradtricks.lab.results import grouping, statistics
from gradtricks.lab.results.grouping import PlotError, ResultSummary, spell, summarize_results
from gradtricks.lab.results.plots import plot_results, wants_logarithm
from gradtricks.lab.results.statistics import bootstrap_interval, interquartile_mean, paired_difference
from gradtricks.lab.results.tables import tabulate
from synthetic import make_run

INF, NAN = math.inf, math.nan


# Statistics


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40))
def test_the_interquartile_mean_is_scipys_trimmed_mean(values):
    assert interquartile_mean(values) == pytest.approx(stats.trim_mean(values, 0.25), rel=1e-12, abs=1e-9)


@pytest.mark.parametrize(
    ("values", "mean"),
    [
        ([], NAN),
        ([3.0], 3.0),
        ([1.0, 2.0], 1.5),
        ([1.0, 2.0, 4.0, INF], 3.0),
        ([1.0, 2.0, INF], INF),
        ([-INF, INF], NAN),
        ([1.0, 2.0, 3.0, NAN], NAN),
    ],
)
def test_the_interquartile_mean_of_few_and_of_odd_values(values, mean):
    np.testing.assert_equal(float(interquartile_mean(values)), mean)


def test_the_interval_is_scipys():
    values = np.random.default_rng(1).normal(size=11)
    expected = stats.bootstrap(
        (values,),
        lambda x, axis: stats.trim_mean(x, 0.25, axis=axis),
        method="percentile",
        n_resamples=20_000,
        rng=np.random.default_rng(2),
    ).confidence_interval
    np.testing.assert_allclose(bootstrap_interval(values, resamples=20_000), expected, atol=0.02)


@pytest.mark.parametrize(("n", "least", "most"), [(3, 0.65, 0.82), (10, 0.88, 0.97), (20, 0.91, 0.98)])
def test_the_interval_holds_the_truth_as_often_as_is_said(n, least, most, monkeypatch):
    monkeypatch.setattr(statistics, "FEWEST_RUNS", 2)
    values = np.random.default_rng(3).normal(size=(n, 600))  # a simulation in each column
    low, high = bootstrap_interval(values, resamples=400)
    assert least < np.mean((low <= 0) & (high >= 0)) < most


def test_equal_runs_have_equal_intervals_and_few_have_none():
    values = np.random.default_rng(4).normal(size=10)
    assert bootstrap_interval(values) == bootstrap_interval(values)
    assert not np.isnan(bootstrap_interval(values)).any()
    for few in (values[:9], values[:1], [], [1.0, INF, -INF, 2.0] * 3):  # infinities are no warning
        assert np.isnan(bootstrap_interval(few)).all()


def test_a_difference_is_between_means_of_interquartile_means():
    rng = np.random.default_rng(5)
    these, those = rng.normal(size=(3, 12)), rng.normal(size=(2, 12))
    mean, low, high = paired_difference(these, those)  # along the second axis
    assert mean == pytest.approx(
        stats.trim_mean(these, 0.25, axis=1).mean() - stats.trim_mean(those, 0.25, axis=1).mean()
    )
    assert low < mean < high


def test_a_difference_is_paired_by_seed():
    # A seed moves all configurations alike, by far more than they differ.
    seeds = 100 * np.random.default_rng(6).normal(size=10)
    assert paired_difference([seeds + 3, seeds + 1], [seeds]) == pytest.approx((2, 2, 2))
    assert f"{paired_difference([seeds - 2.5], [seeds]):+.1f}" == "−2.5 (−2.5 to −2.5)"
    assert [paired_difference([seeds + shift], [seeds]).sign for shift in (-1, 0, 1)] == [-1, 0, 1]
    _, low, high = paired_difference([seeds], [seeds[::-1]])
    assert high - low > 10


def test_an_interval_of_differences_takes_ten_seeds_of_each():
    assert f"{paired_difference([[1, 2, 3]], [[0, 1, 2]]):+.0f}" == "+1"  # with an interval that is NaN
    with pytest.raises(ValueError, match=r"same seeds; got \[2, 3\]"):
        paired_difference([[1, 2, 3]], [[1, 2]])


def test_what_isnt_finite_is_counted():
    found = statistics.summarize([1.0, 2.0, 3.0, NAN, INF])
    assert (found.n, found.non_finite, found.mean, found.lowest, found.highest) == (3, 2, 2.0, 1.0, 3.0)
    empty = statistics.summarize([NAN])
    assert (empty.n, empty.non_finite) == (0, 1)
    assert np.isnan([empty.mean, empty.low, empty.lowest]).all()


# Figures


def swept(space, found, shown, seeds=5):
    """Make a sweep over a grid, its runs' results from a function of values and seed; None is a failure."""
    runs = []
    for *values, seed in itertools.product(*space.values(), range(seeds)):
        parameters = dict(zip(space, values, strict=True))
        results = found(parameters, seed)
        runs.append(make_run(parameters | {"seed": seed}, results, error=None if results else "no"))
    return tabulate(runs), [*space, "seed"], shown


def texts(figure):
    """Return all that is written in a figure."""
    figure.canvas.draw()
    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


def plots(*arguments, **options):
    return plot_results(summarize_results(*swept(*arguments, **options))).values()


def drawn(*arguments, **options):
    (plot,) = plots(*arguments, **options)
    return plot


def test_a_numeric_parameter_is_an_axis_with_lost_runs_counted():
    def found(values, seed):
        if values["scale"] == 1.0 and seed < 2:
            return None if seed else {"loss": NAN}
        return {"loss": 10 * values["scale"] + seed}

    plot = drawn({"scale": [0.0, 0.5, 1.0]}, found, ["results.loss"])
    assert plot.caption == (
        "Dots are runs, diamonds interquartile means (n = 3 to 5 each) without intervals, which take "
        "10 runs. Not part of it: 1 failed, 1 gave a number that isn't finite."
    )
    assert plot.alt.startswith("Loss against scale, n = 3 to 5 each. Interquartile means: scale = 0: 2; ")
    assert not any("95%" in text for text in texts(plot.figure))
    assert {"Loss", "scale", "0", "0.5", "1"} <= set(texts(plot.figure))
    (axes,) = plot.figure.axes
    found = [seed + 10 * scale for scale in (0, 0.5) for seed in range(5)] + [12.0, 13.0, 14.0]
    assert sorted(axes.lines[0].get_ydata()) == sorted(found)


def test_nothing_but_seeds_is_one_row():
    plot = drawn({}, lambda _, seed: {"loss": float(seed)}, ["loss"])
    assert plot.alt.startswith("Loss, n = 5 each. Interquartile means: 2.")


def test_an_interval_takes_ten_runs():
    def found(values, seed):
        return {"loss": float(seed), "losses": [float(seed), 1.0 + seed]} if seed < values["runs"] else None

    space, shown = {"runs": [9.0, 10.0]}, ["loss", "losses"]
    points, curves = plots(space, found, shown, seeds=10)
    assert "runs = 9: 4; runs = 10: 4.5 (" in points.alt
    assert "95% bootstrap intervals where there are 10 runs. Not" in points.caption
    assert len(points.figure.axes[0].containers[0].lines[2][0].get_segments()) == 2
    assert "95% bootstrap intervals where there are 10 runs. Not" in curves.caption
    assert len(curves.figure.axes[0].collections) == 1, "a band of the ten, none of the nine"


@pytest.mark.parametrize(("seeds", "said"), [(2, "mean"), (3, "mean"), (4, "interquartile mean")])
def test_an_interquartile_mean_of_few_runs_is_called_mean(seeds, said):
    def found(values, seed):
        return {"loss": float(seed**2), "losses": [1.0, float(seed)]}

    points, curves = plots({"rate": [1.0, 2.0]}, found, ["loss", "losses"], seeds=seeds)
    assert f", diamonds {said}s (n = {seeds} each) without" in points.caption
    assert curves.caption.startswith(f"Lines are {said}s (n = {seeds} each)")
    assert f" {said.capitalize()}s: rate = 1: " in points.alt


def test_a_single_run_each_has_no_interval():
    plot = drawn({"rate": [0.001, 0.01, 0.1]}, lambda v, _: {"loss": v["rate"]}, ["loss"], seeds=1)
    assert plot.caption == "Dots are runs."
    means = "rate = 0.001: 0.001; rate = 0.01: 0.01; rate = 0.1: 0.1"
    assert plot.alt == f"Loss against rate, n = 1 each. Means: {means}."
    (axes,) = plot.figure.axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")


@pytest.mark.parametrize("values", [(303_700.0, 311_500.0), (2_998_000.0,), (0.0, 0.0), (0.0, 0.3, 0.4)])
def test_an_axis_of_results_has_few_numbers_that_stand_apart(values):
    plot = drawn({"of": [*map(str, values)]}, lambda v, _: {"loss": float(v["of"])}, ["loss"], seeds=1)
    plot.figure.canvas.draw()
    (axes,) = plot.figure.axes
    low, high = axes.get_xlim()
    shown = [label for label in axes.get_xticklabels() if low <= label.get_position()[0] <= high]
    boxes = [label.get_window_extent() for label in shown]
    assert 2 <= len(shown) <= 5
    assert all(before.x1 + 5 < after.x0 for before, after in itertools.pairwise(boxes))
    assert -0.03 * high < low <= values[0] < high


def test_texts_keep_the_order_of_runs_and_are_no_formulas():
    labels = ["plain", "a $x^2$ <b>", "日本", None]
    plot = drawn({"label": labels}, lambda v, s: {"loss": len(str(v["label"])) + s}, ["loss"])
    written = texts(plot.figure)
    shown = ["plain", "a $x^2$ <b>", r"\u65e5\u672c", "None"]
    assert list(dict.fromkeys(text for text in written if text in shown)) == shown
    assert "mathtext" not in plot.svg()


def test_lists_are_curves_with_bands_and_names_at_their_ends():
    def found(values, seed):
        if values["scale"] == 1.0 and seed == 0:
            return {"losses": [1.0, INF, 2.0]}
        return {"losses": [10 * values["scale"] + seed + step for step in range(6 - seed % 2)]}

    plot = drawn({"scale": [0.0, 1.0]}, found, ["losses"])
    assert plot.caption == (
        "Lines are interquartile means (n = 4 to 5 each) without intervals, which take 10 runs. "
        "Each line ends with the shortest of its runs: 5 went on for longer. "
        "Not part of it: 1 gave a number that isn't finite."
    )
    assert "scale = 0: from 2 to 6" in plot.alt
    (axes,) = plot.figure.axes
    assert [len(line.get_xdata()) for line in axes.lines] == [5, 5], "as far as all runs go"
    said = "place in the list, counted from 1"
    assert {"Losses, by scale", "0", "1", said} <= set(texts(plot.figure))
    assert not axes.collections


def test_many_curves_have_a_panel_each():
    rates = [10.0**-power for power in range(8)]
    plot = drawn({"rate": rates}, lambda v, s: {"losses": [v["rate"], v["rate"] + s]}, ["losses"], seeds=2)
    assert [len(panel.lines) for panel in plot.figure.axes] == [1] * 8
    assert {"1e−07", "1"} <= {panel.get_title("left").replace("-", "−") for panel in plot.figure.axes}
    assert plot.alt.count("rate = ") == 2, "of many curves the first and the last are named"


def test_a_long_name_of_a_panel_is_broken_not_cut():
    names = ["recipe with a decision every eight frames", *"abcd"]
    plot = drawn({"kind": names}, lambda v, s: {"losses": [1.0, 2.0]}, ["losses"], seeds=1)
    titles = [panel.get_title("left") for panel in plot.figure.axes]
    assert titles[0] == "recipe with a\ndecision every\neight frames"


def test_a_logarithmic_axis_has_more_numbers_than_one():
    losses = {"a": 0.02, "b": 0.1, "c": 0.6}
    plot = drawn({"of": [*losses]}, lambda v, _: {"loss": losses[v["of"]]}, ["loss"], seeds=1)
    assert {"0.02", "0.05", "0.1", "0.2", "0.5"} <= set(texts(plot.figure))


def test_a_parameters_values_are_its_ticks_where_there_is_room():
    for values, spelled, there in (
        ([0, 0.3, 1], "0.3", True),
        ([2**70, 2**71], "2.36118e+21", True),
        ([0, 0.01, 0.3, 1], "0.3", False),
    ):
        plot = drawn({"rate": values}, lambda v, _: {"loss": 1.0}, ["loss"], seeds=1)
        assert (spelled in texts(plot.figure)) == there


def test_titles_are_names_in_words():
    columns = ["results.mean_return.plain", "varying.training_cpu_s", "varying.runs_per_s", "loss"]
    titles = ["Mean return, plain", "Training cpu (s)", "Runs per s", "Loss"]
    assert [ResultSummary(column, (), ()).title for column in columns] == titles


def test_each_configuration_has_a_curve_while_there_is_room():
    space = {"scale": [0.0, 1.0], "rate": [0.1, 0.2]}
    plot = drawn(space, lambda v, s: {"c": [v["scale"], v["rate"] + s]}, ["c"])
    assert "n = 5 each" in plot.caption
    assert {"C, by scale and rate", "0, 0.1", "1, 0.2"} <= set(texts(plot.figure))
    plot = drawn(space | {"rate": [*range(13)]}, lambda v, s: {"c": [v["rate"], s]}, ["c"], seeds=1)
    assert len(plot.figure.axes) == 24
    assert "place in the list, counted from 1; 2 more aren't drawn" in texts(plot.figure)


def test_each_configuration_has_a_row_of_runs_and_mean():
    space = {"scale": [0.0, 1.0], "kind": ["relu", "tanh"], "size": [1, -2]}

    def found(values, seed):
        bad = values["kind"] == "relu" and values["scale"] == 0
        return None if bad else {"loss": values["scale"] + seed}

    plot = drawn(space, found, ["loss"], seeds=2)
    (axes,) = plot.figure.axes
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names[2:6] == ["0, tanh, −2", "0, tanh, 1", "1, relu, −2", "1, relu, 1"]
    rows = np.arange(2, 8)
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), rows.repeat(2))
    np.testing.assert_array_equal(axes.containers[0].lines[0].get_xdata(), [0.5, 0.5, 1.5, 1.5, 1.5, 1.5])
    assert plot.caption == (
        "Dots are runs, diamonds means (n = 0 to 2 each) without intervals, which take 10 runs. "
        "Not part of it: 4 failed."
    )


def test_long_names_make_a_figure_taller_not_narrower():
    names = [f"a_parameter_with_a_long_name_{n}" for n in range(9)]
    space = {name: [f"a value of {n} words"] for n, name in enumerate(names)} | {"end": [*range(3)]}
    plot, curves = plots(space, lambda _, s: {"loss": s, "c": [s, 1]}, ["loss", "c"], seeds=2)
    assert "a_parameter_with_a_long_name_8" in " ".join(texts(plot.figure))
    (axes,) = plot.figure.axes
    boxes = [label.get_window_extent() for label in axes.get_yticklabels()]
    assert all(below.y1 < above.y0 for above, below in itertools.pairwise(boxes))
    assert curves.figure.axes[0].bbox.height > 150


def test_very_many_configurations_stand_against_each_parameter():
    runs = [make_run({"rate": 10**-n, "kind": "ab"[n % 2], "seed": 0}, {"loss": float(n)}) for n in range(61)]
    (plot,) = plot_results(summarize_results(tabulate(runs), ["rate", "kind"], ["loss"])).values()
    assert [panel.get_xscale() for panel in plot.figure.axes] == ["log", "linear"]
    assert [len(panel.lines[0].get_xdata()) for panel in plot.figure.axes] == [61, 61]
    assert {"a", "b", "rate", "kind"} <= set(texts(plot.figure))


def test_an_axis_of_results_is_plain_and_begins_at_zero():
    plot = drawn({"of": ["a", "b"]}, lambda v, _: {"loss": 0.0 if v["of"] == "a" else 3e6}, ["loss"], seeds=1)
    written = texts(plot.figure)
    (axes,) = plot.figure.axes
    assert "3,000,000" in written
    assert -0.03 * 3e6 < axes.get_xlim()[0] < 0


def test_labels_name_configurations_and_the_places_of_a_list():
    found = ResultSummary("results.losses", [grouping.Axis("case", ("a b",), numeric=False)], ())
    worded = grouping.in_words(found, {"results.losses=position": "tenth of the training"})
    assert worded.counted == "tenth of the training"
    assert isinstance(worded.axes[0].values[0], grouping.Word)


def test_all_that_failed_is_drawn_as_nothing_without_a_warning():
    found = {"loss": NAN, "losses": [NAN], "other": 1.0}
    for space in ({"a": [1, 2]}, {"a": [1, 2], "b": [1, 2]}, {"a": [1, 2], "b": [1, 2], "c": [1, 2]}):
        for plot in plots(space, lambda *_: found, ["loss", "losses"]):
            assert "no run gave it" in plot.alt
            plot.svg()


def test_results_that_are_not_there_or_no_numbers_are_refused():
    def found(_, seed):
        odd = {"odd": "x" if seed == 3 else 1.0, "mixed": [1.0] if seed == 3 else 1.0}
        return {"loss": {"end": 1.0}, "text": "x", "c": [[1]], **odd}

    frame, varied, _ = swept({"a": [1]}, found, [])
    for shown, message in {
        "results.los": "got 'results.los'; there are: results.loss.end, results.text, results.c",
        "loss": "got 'loss'; there are: results.loss.end$",
        "text": "results.text must be numbers, or lists of numbers, to be shown; got 'x'",
        "c": "results.c must be numbers",
        "odd": "to be shown; got 'x'$",
        "mixed": "to be shown; got both$",
        "": "expected a recorded result; got ''",
    }.items():
        with pytest.raises(PlotError, match=message):
            summarize_results(frame, varied, [shown])
    with pytest.raises(PlotError, match="expected runs to show; got none"):
        summarize_results(frame[:0], ["a"], ["loss.end"])
    with pytest.raises(PlotError, match="expected a table with the parameter b"):
        summarize_results(frame, ["b"], ["loss.end"])


def test_without_a_word_what_can_be_drawn_is_shown():
    results = {"n": 1, "c": [1], "t": ["x"], "s": "x", "d": [[1]], "share": {"0.1": 0.5}}
    frame, varied, _ = swept({"a": [1]}, lambda *_: results, [])
    assert [each.label for each in summarize_results(frame, varied, [])] == ["share.0.1", "n", "c"]
    frame, varied, _ = swept({"a": [1]}, lambda *_: {"s": "x"}, [])
    with pytest.raises(PlotError, match="expected a number, or a list of numbers, among"):
        summarize_results(frame, varied, [])


def test_names_of_figures_are_safe_and_differ():
    found = {"A b": 1.0, "a_b": 2.0, "1": 3.0, "share": {"0.1": 2.0}}
    shown = ["results.A b", "a_b", "1", "results.share.0.1"]
    names = list(plot_results(summarize_results(*swept({"a": [1]}, lambda *_: found, shown))))
    assert names == ["a_b", "a_b_", "result_1", "share_0_1"]


def test_equal_runs_are_equal_texts():
    arguments = {"scale": [0.0, 1.0]}, lambda v, s: {"loss": v["scale"] + s / 7}, ["loss"]
    first, second = (drawn(*arguments).svg() for _ in range(2))
    assert first == second
    assert "<dc:date>" not in first


def test_drawing_leaves_other_styles_alone_and_needs_no_display():
    before = dict(rcParams)
    assert drawn({}, lambda _, s: {"loss": s}, ["loss"]).svg().startswith("<?xml")
    assert dict(rcParams) == before
    assert pyplot.get_fignums() == []


def test_an_axis_is_logarithmic_where_its_values_ask_for_it():
    assert wants_logarithm([1e-4, 1e-3, 1e-2])
    plain = [0.1, 1.0], [0, 0.25, 0.5, 0.75, 1], [1, 3, 5, 10], [1, 250, 500, 1000], [-1, 10, 100, 1000], []
    assert [values for values in plain if wants_logarithm(values)] == []


def test_a_value_is_spelled_in_one_short_line():
    values = [0.1, 1e-5, 0.123456789, 3, True, None, "a\nb", "x" * 30, [1, 2]]
    said = ["0.1", "1e-05", "0.1235", "3", "True", "None", "a b", "x" * 23 + "…", "[1, 2]"]
    assert [spell(value) for value in values] == said


def test_values_that_would_be_written_alike_are_written_in_full():
    values = [0.12345678, 0.12345679, 0.987654321, 1, "1", "https://a.b/c/weights-of-net-1", "x" * 30]
    axis = grouping.Axis("a", (*values, "https://a.b/c/weights-of-net-2"), numeric=False)
    said = ["0.12345678", "0.12345679", "0.9877", "1", "1", values[5], "x" * 23 + "…"]
    assert [axis.spell(value) for value in values] == said
    plot = drawn({"a": values[:2]}, lambda v, s: {"loss": v["a"] + s}, ["loss"])
    assert "a = 0.12345678: 2.12; a = 0.12345679: 2.12" in plot.alt


def test_integers_of_any_size_are_drawn_as_floats():
    found = {"n": 2**70, "huge": 10**400, "curve": [1, 2**70], "curves": [-(10**400), 1]}
    space = {"a": [2**70, 10**400]}
    n, huge, curve, curves = plots(space, lambda *_: found, [*found])
    assert (n.alt.count(": 1.18e21"), curve.alt.count("from 1 to 1.18e21")) == (2, 2)
    assert ["no run gave it" in plot.alt for plot in (huge, curves)] == [True, True]
    assert "Not part of it: 10 gave a number that isn't finite." in huge.caption


def test_numbers_that_python_takes_for_equal_are_told_apart():
    runs = [make_run({"a": a, "seed": s}, {"loss": 1.0}) for a in (1, True, "1") for s in range(2)]
    (found,) = summarize_results(tabulate(runs), ["a", "seed"], ["loss"])
    assert [group.n for group in found.parts] == [2, 2, 2]
