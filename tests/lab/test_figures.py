"""The book's figures: style, fonts, and names beside lines."""

import io
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest
from fontTools.ttLib import TTFont
from matplotlib import font_manager, pyplot
from matplotlib.text import Text

from gradtricks.lab import figures
from gradtricks.lab.figures import GREY, draw_band, draw_bars, draw_ranges, label_lines, new_figure, set_ticks

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _closed():
    with pyplot.rc_context():
        yield
    pyplot.close("all")


def svg_of(figure):
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def box_of(text):
    return text.get_window_extent(text.figure.canvas.get_renderer())


def walks(count, seed, length=60):
    return np.random.default_rng(seed).normal(size=(count, length)).cumsum(axis=1)


def labels_of(axes):
    axes.figure.draw_without_rendering()
    return [(text.get_text(), box_of(text)) for text in axes.texts]


def assert_apart(labels, figure):
    assert not [(a, b) for (a, one), (b, other) in combinations(labels, 2) if one.overlaps(other)]
    for name, box in labels:
        assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1, name
        assert figure.bbox.y0 <= box.y0 < box.y1 <= figure.bbox.y1, name


@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_names_cover_neither_each_other_nor_leave_the_figure(seed, at_end):
    figure, panels = new_figure(1, 2)
    for axes, count in zip(panels, (2, 7), strict=True):
        for index, walk in enumerate(walks(count, seed)):
            axes.plot(walk, label=f"walk {index}")
    label_lines(*panels, at_end=at_end)
    labels = [label for axes in panels for label in labels_of(axes)]
    assert {name for name, _ in labels} == {f"walk {index}" for index in range(7)}
    assert len(labels) == 9
    assert_apart(labels, figure)


def test_a_name_covers_no_line_dot_or_bar():
    _figure, axes = new_figure()
    steps = np.linspace(0, 1, 50)
    axes.plot(steps, steps, label="rises", color="C3")
    axes.errorbar(steps[::10], 1 - steps[::10], 0.1, label="falls")
    axes.scatter(steps[::7], np.full(8, 0.1), label="dots")
    axes.bar([0.9], [0.6], 0.1, label="bar")
    axes.axhline(1.2, color=GREY, label="bound")
    label_lines(axes)
    labels = dict(labels_of(axes))
    assert set(labels) == {"rises", "falls", "dots", "bound", "bar"}
    for box in labels.values():
        assert axes.bbox.x0 <= box.x0 < box.x1 <= axes.bbox.x1
        for line in axes.get_lines():
            points = line.get_transform().transform(line.get_xydata())
            dense = [np.linspace(*ends, 200) for ends in pairwise(points)]
            assert not any(box.contains(x, y) for x, y in np.concatenate([points, *dense]))
        assert not box.overlaps(axes.patches[0].get_window_extent())
    assert [text.get_color() for text in axes.texts if text.get_text() == "rises"] == ["C3"]


def test_a_name_stands_where_its_line_is_alone():
    _figure, axes = new_figure()
    axes.plot([0, 1, 2], [0, 0, 3], label="upper")
    axes.plot([0, 1, 2], [0, 0, -3], label="lower")
    label_lines(axes)
    labels = dict(labels_of(axes))
    middle = axes.transData.transform((1.2, 0))
    assert labels["upper"].y0 > middle[1] > labels["lower"].y1
    assert min(labels["upper"].x0, labels["lower"].x0) > middle[0] - labels["upper"].width


def test_names_without_room_stand_behind_the_ends_in_their_order():
    figure, axes = new_figure(height=2)
    for level in (3, 1, 2, 0, 4):
        axes.plot(np.linspace(0, level / 1000, 5), label=f"{level}")
        axes.plot(np.random.default_rng(level).uniform(-1, 1, 400).repeat(2)[:400] * np.ones(400))
    label_lines(axes)
    labels = labels_of(axes)
    assert all(box.x0 >= axes.bbox.x1 for _, box in labels)
    assert [name for name, _ in sorted(labels, key=lambda label: label[1].y0)] == [*"01234"]
    assert_apart(labels, figure)


def test_what_has_no_label_or_no_points_is_not_named():
    _figure, axes = new_figure()
    axes.plot([1, 2])
    label_lines(axes)
    assert not axes.texts
    axes.plot([np.nan, np.nan], label="nothing")
    axes.plot([0, 1], [2, np.nan], "o", label="one")
    label_lines(axes)
    assert [text.get_text() for text in axes.texts] == ["one"]


def test_figures_fit_on_a_phone_and_are_equal_bytes_twice():
    drawings = []
    for _ in range(2):
        figure, axes = new_figure(height=2.5)
        for index, walk in enumerate(walks(3, 1)):
            axes.plot(walk, label=f"walk {index}")
            draw_band(axes, range(60), walk - 1, walk + 1, f"C{index}")
        axes.set(xlabel="step", ylabel="place", title="walks")
        label_lines(axes)
        assert figure.get_size_inches().tolist() == [5.4, 2.5]
        sizes = [text.get_fontsize() for text in figure.findobj(Text) if text.get_text()]
        assert min(sizes) >= 11
        drawings.append(svg_of(figure))
    assert drawings[0] == drawings[1]


@pytest.mark.parametrize("name", ["sans", "sans-medium"])
def test_the_figures_font_is_the_pages_own(name):
    ours = TTFont(Path(figures.__file__).parent / "fonts" / f"{name}.ttf")
    pages = TTFont(ROOT / "book" / "_assets" / "fonts" / f"{name}.woff2")
    assert ours.getBestCmap() == pages.getBestCmap()
    glyphs = {letter: pages["glyf"][letter] for letter in pages.getGlyphOrder()}
    assert {letter: ours["glyf"][letter] for letter in ours.getGlyphOrder()} == glyphs
    assert (
        "Fira Sans: Digitized data copyright" in (Path(figures.__file__).parent / "fonts/OFL.txt").read_text()
    )


def test_texts_are_in_the_pages_font_or_a_fallback(capfd, caplog):
    figure, axes = new_figure()
    axes.set(title="β₁ ≤ ½ × −2 → 1", xlabel="✓ ф", ylabel="$10^{-3}$", xscale="log")
    svg = svg_of(figure)
    assert svg.count('id="GradtricksSanssans-') > 10
    assert svg.count('id="DejaVuSans-') == 2
    assert capfd.readouterr().err == ""
    assert caplog.text == ""
    assert len({font.fname for font in font_manager.fontManager.ttflist if "Gradtricks" in font.name}) == 2


def test_a_phase_is_named_inside_where_lines_names_leave_room():
    figure, axes = new_figure()
    axes.plot(range(40), label="height")
    figures.shade(axes, 20, 39, "falling")
    label_lines(axes)
    labels = dict(labels_of(axes))
    assert_apart(labels.items(), figure)
    left, _ = axes.transData.transform((20, 0))
    assert left < labels["falling"].x0 < left + 20
    assert axes.bbox.y1 - 20 < labels["falling"].y1 < axes.bbox.y1


def test_bars_and_ranges_are_named_from_above_with_minus_signs():
    _figure, (left, right) = new_figure(1, 2)
    draw_bars(left, {"one": 0.5, "scale -1": -2.0}, form="{:.1f}")
    draw_ranges(right, {"low": (1.0, 0.5, 1.25), "high": (2.0, 1.5, 2.75)})
    assert [text.get_text() for text in left.get_yticklabels()] == ["one", "scale −1"]
    assert [text.get_text() for text in left.texts] == ["0.5", "−2.0"]
    assert left.get_ylim() == right.get_ylim() == (1.5, -0.5)
    assert [line.get_xydata().tolist() for line in right.get_lines()] == [
        [[0.5, 0.0], [1.25, 0.0]],
        [[1.0, 0.0]],
        [[1.5, 1.0], [2.75, 1.0]],
        [[2.0, 1.0]],
    ]


def test_ticks_are_written_out_on_any_scale():
    _figure, axes = new_figure()
    axes.set(xscale="log", xlim=(0.01, 2000))
    set_ticks(axes, x=[0.01, 1, 1000], y=[-1, 0.5])
    assert [text.get_text() for text in axes.get_xticklabels()] == ["0.01", "1", "1,000"]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["−1", "0.5"]
    assert not axes.get_xticks(minor=True).size
