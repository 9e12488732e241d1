"""Drawings of computation graphs: what their lines say, where nodes stand, and what can be read of them."""

import re
import xml.etree.ElementTree as ET
from itertools import combinations, pairwise
from pathlib import Path

import pytest

pytest.importorskip("docutils")
pytest.importorskip("sphinx")

from gradtricks.book.drawings import drawn
from gradtricks.book.graphs import GraphError, read_panels

PAGES = sorted((Path(__file__).resolve().parents[2] / "book").glob("*.md"))
CUT = """\
panel: A plain chain
x <2x- [square] <1- y <1- [loss] <1- L

panel: With a detach in between
x -> [square] -> y -> [detach] -> z <1- [loss] <1- L
"""
BRANCHES = """\
h₀ <½- [× ½] <1- s₁ <−1- [g] <0- h₁ <NaN- [× ½]#2 <∞- s₂
h₁ <0.25- [head] <1- r₁
h₀ <4- [head]#2 <4- r₀
h₀ <1- [+] <x·g- z & y
s₂ <1- [+]
w <1- [+]
"""


def svgs(text):
    """Draw lines, and return each drawing as a tree of XML."""
    page = drawn(read_panels(text.splitlines()), "what it shows")
    return [ET.fromstring(svg) for svg in re.findall("<svg.*?</svg>", page)]  # noqa: S314, our own text


def kinds(svg):
    """Return the classes of a drawing's paths, without their heads."""
    return [path.get("class") for path in svg.iter("path") if "head" not in path.get("class")]


def boxes(svg):
    """Return where a drawing's nodes are: (left, top, right, bottom)."""
    found = [[float(rect.get(name)) for name in ("x", "y", "width", "height")] for rect in svg.iter("rect")]
    return [(x, y, x + width, y + height) for x, y, width, height in found]


def test_lines_are_chains_whose_equal_names_are_one_node():
    (panel,) = read_panels(BRANCHES.splitlines())
    assert [(e.start.name, e.end.name, e.gradient) for e in panel.chains[1]] == [
        ("h₁", "[head]", "0.25"),
        ("[head]", "r₁", "1"),
    ]
    twice = [node.label for node in panel.places if node.name.startswith("[head]")]
    assert twice == ["head", "head"]
    assert [node.name for node in panel.places].count("h₀") == 1
    assert panel.edges[0].start.box is False
    assert panel.edges[0].end.box is True


def test_only_numbers_are_strengths_of_gradients():
    gradients = {edge.gradient: edge.strength for edge in read_panels(BRANCHES.splitlines())[0].edges}
    assert gradients == {
        **{"½": 0.5, "1": 1, "−1": 1, "0": 0, "0.25": 0.25, "4": 4},
        **dict.fromkeys(("NaN", "∞", "x·g")),
    }


def test_columns_follow_the_longest_path_and_sources_stand_beside_targets():
    (panel,) = read_panels(BRANCHES.splitlines())
    columns = {node.name: column for node, (column, _) in panel.places.items()}
    assert [columns[name] for name in ("h₀", "[× ½]", "h₁", "s₂", "[+]", "z & y")] == [0, 1, 4, 6, 7, 8]
    assert columns["w"] == 6


def check_readable(svg):
    """Nodes, labels and arrows are within the drawing and don't cover each other."""
    nodes = boxes(svg)
    left, top, width, height = map(float, svg.get("viewBox").split())
    for x0, y0, x1, y1 in nodes:
        assert left <= x0 < x1 <= left + width
        assert top <= y0 < y1 <= top + height
    for a, b in combinations(nodes, 2):
        assert a[2] + 10 < b[0] or b[2] + 10 < a[0] or a[3] + 10 < b[1] or b[3] + 10 < a[1]
    labels = [
        (float(t.get("x")), float(t.get("y"))) for t in svg.iter("text") if t.get("class") == "gradient"
    ]
    assert len(set(labels)) == len(labels)
    arrows = []  # the middles of their parts
    for path in svg.iter("path"):
        numbers = [float(n) for n in re.findall(r"-?[\d.]+", path.get("d"))]
        corners = list(zip(numbers[::2], numbers[1::2]))
        arrows += [((x0 + x1) / 2, (y0 + y1) / 2) for (x0, y0), (x1, y1) in pairwise(corners)]
    for x, y in labels + arrows:
        assert not [box for box in nodes if box[0] < x < box[2] and box[1] < y < box[3]]


UNROLLED = "o <g- [f] <g- h₀ <g- [g] <g- h₁ <g- [g]#2 <g- h₂\nh₁ <g- [p]#2 <1- L₁\nh₀ <g- [p] <1- L₀"


@pytest.mark.parametrize("text", [CUT, BRANCHES, UNROLLED], ids=["chains", "branches", "unrolled"])
def test_nodes_labels_and_arrows_are_apart_and_within_the_drawing(text):
    for svg in svgs(text):
        check_readable(svg)


def test_what_flows_back_differs_in_more_than_its_colour():
    plain, *_, cut = (svg for svg in svgs(CUT) if svg.get("class") == "wide")
    assert kinds(plain) == ["forward", "back"] * 4
    assert kinds(cut) == [*["forward"] * 4, "stop", *["forward", "back"] * 2]
    branches = kinds(svgs(BRANCHES)[0])
    assert (branches.count("back none"), branches.count("back broken")) == (1, 2)


def test_a_stronger_gradient_is_a_wider_arrow():
    (svg,) = svgs("a <0.25- b <1- c <4- d")
    widths = [float(path.get("stroke-width")) for path in svg.iter("path") if path.get("stroke-width")]
    assert widths == sorted(widths)
    assert widths[0] < widths[1] < widths[2]


def test_without_any_gradient_nothing_is_stopped():
    assert kinds(svgs("x -> [f] -> y")[0]) == ["forward", "forward"]


def test_only_drawings_too_wide_for_phones_are_drawn_downwards_too():
    assert [svg.get("class") for svg in svgs("x <1- y")] == [""]
    assert [svg.get("class") for svg in svgs(CUT)] == ["wide", "narrow"] * 2
    assert all(int(svg.get("width")) <= 340 for svg in svgs(CUT) if svg.get("class") == "narrow")


def test_texts_are_escaped_and_subscripts_are_drawn():
    page = drawn(read_panels(["panel: a < b", "x₁₂ <g'- y&z"]), 'it\'s "x" < y')
    assert 'role="img" aria-label="it&#x27;s &quot;x&quot; &lt; y"' in page
    assert "a &lt; b" in page
    assert "y&amp;z" in page
    assert re.search(r'x<tspan class="low" [^>]*>12</tspan>', page)


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("", 0, "expected 1 to 3 panels; got 0"),
        ("panel: a\nx <1- y\n" * 4, 0, "expected 1 to 3 panels; got 4; remedy: two drawings"),
        (
            "panel: a\nx <1- y\npanel: b\n",
            2,
            "expected a line such as x <1- y in each panel; got none in 'b'",
        ),
        ("x <1- y\n\nz", 2, "expected an arrow, such as x <1- y or x -> y; got 'z'"),
        ("x <1- y\nx<1-z -> a", 1, "got 'x<1-z'; remedy: spaces around each arrow"),
        ("x <1- [floor", 0, "or an operation such as [floor]; got '[floor'"),
        ("x <1- -> y", 0, "expected a value such as x"),
        ("x <1- y -> x", 0, "expected no way from y back to itself; remedy: another node"),
        ("x <1- y\nx -> y", 1, "expected one arrow from x to y; got a second one"),
        ("x <1- [" + "long" * 30 + "]", 0, "expected a panel that is at most 794 px wide from left to right"),
        (
            "x <1- [a wide enough operation] <1- y\nx <1- [another one of them]\nx <1- [and a third one]",
            0,
            "at most 401 px wide downwards, on a phone, so that its labels can be read",
        ),
    ],
)
def test_a_line_that_cannot_be_drawn_is_refused(text, line, message):
    with pytest.raises(GraphError, match=re.escape(message)) as error:
        svgs(text)
    assert error.value.line == line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_drawings_of_the_book_can_be_read_on_a_phone(page):
    fence = re.compile(r"^```\{graph\}\n((?::.*\n)*)((?:.*\n)*?)```$", re.MULTILINE)
    found = fence.findall(page.read_text())
    assert len(found) == page.read_text().count("```{graph}")
    for options, lines in found:
        assert options.startswith(":alt: ")
        for svg in svgs(lines):
            check_readable(svg)


def test_long_chains_have_shorter_arrows_only_from_left_to_right():
    chain = " <1- ".join(f"[operation]#{number}" for number in range(6))
    (long, down), (short, _) = (
        svgs(chain),
        svgs("[operation] <1- [operation]#2 <1- [operation]#3 <1- [operation]#4"),
    )

    def gap(svg, axis):
        first, second, *_ = boxes(svg)
        return second[axis] - first[axis + 2]

    assert gap(long, 0) < gap(short, 0) == gap(down, 1)
    assert int(long.get("width")) <= 794
