"""The book's machinery: results and formulas on pages, and that its parts fit together."""

import ast
import doctest
import html
import json
import math
import re
import shlex
from datetime import date, datetime
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import yaml
from sphinx_external_toc.parsing import parse_toc_yaml
from typer.testing import CliRunner

pytest.importorskip("sphinx")
pytest.importorskip("myst_parser")

from gradtricks.agents.muzero import RootFnOutput, search
from gradtricks.book import formulas
from gradtricks.book.cards import command_of
from gradtricks.book.moving import curves, drawable
from gradtricks.book.numbers import format_result
from gradtricks.cli import app
from gradtricks.lab.commands.publishing import plan_book, plan_sweeps
from gradtricks.lab.encoding import encode
from gradtricks.lab.notebooks.schema import check_parameters, read_notebook, read_parameters
from gradtricks.lab.notebooks.texts import literal
from gradtricks.lab.results.quoting import RecordError, result_from
from notebooks import write_notebook

ROOT = Path(__file__).resolve().parents[2]
BOOK = ROOT / "book"
EXPERIMENTS = ROOT / "experiments"
SITE = ROOT / "_build" / "html"
FRAMEWORKS = {"torch": "PyTorch", "tensorflow": "TensorFlow"}
BACKENDS = tuple(FRAMEWORKS)
STEMS = sorted(p.stem for p in (ROOT / "src/gradtricks").glob("**/reference/[a-z]*.py"))
PAGES = sorted(p for p in BOOK.rglob("*.md") if "experiments" not in p.relative_to(BOOK).parts)


# Results


@pytest.mark.parametrize(
    ("value", "spec", "shown"),
    [
        (0.97, ".1%", ("97.0%", None)),
        (1234567, ",", ("1,234,567", None)),
        (0.30000000000000004, "", ("0.3", None)),
        (-0.5, "", ("−0.5", None)),
        (-3, "d", ("−3", None)),
        (1.25e-7, ".2e", ("1.25 × 10", "−7")),
        (3e38, ".0e", ("3 × 10", "38")),
        (-1e-7, "", ("−1 × 10", "−7")),
        (float("nan"), ".1%", ("NaN", None)),
        (float("inf"), "", ("∞", None)),
        (float("-inf"), ".3f", ("−∞", None)),
        (True, "", ("True", None)),
        (None, "", ("None", None)),
        ("refused", "", ("refused", None)),
        ("semi-dry", "", ("semi-dry", None)),
    ],
)
def test_a_result_is_formatted_for_running_text(value, spec, shown):
    assert format_result(value, spec) == shown


@pytest.mark.parametrize(
    ("value", "spec", "message"),
    [
        ([1, 2], "", "expected one value; got a list of 2"),
        ({"a": 1}, "", "expected one value; got a dict of 1"),
        ("high", ".1%", "expected a format that fits 'high'; got '.1%'"),
        (1.5, "d", "expected a format that fits 1.5; got 'd'"),
    ],
)
def test_a_result_that_cannot_be_shown_is_refused(value, spec, message):
    with pytest.raises(RecordError, match=re.escape(message)):
        format_result(value, spec)


RESULTS = {"curve": [0.1, 0.9], "norms": {"hidden": 2.0, "0.5": {"root": 7}}, "name": "deep"}


@pytest.mark.parametrize(
    ("name", "value"),
    [("curve.1", 0.9), ("curve.-1", 0.9), ("norms.hidden", 2.0), ("norms.0.5.root", 7), ("name", "deep")],
)
def test_a_part_of_a_result_is_found(name, value):
    assert result_from(RESULTS, name) == value


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("curves", "expected one of: curve, norms, name; got 'curves'"),
        ("curve.2", "expected a position below 2; got '2'"),
        ("curve.last", "expected a position below 2; got 'last'"),
        ("norms.state", "expected one of: hidden, 0.5; got 'state'"),
        ("name.0", "expected the name to end before '0'; got the value 'deep'"),
    ],
)
def test_an_unknown_part_is_refused_with_what_there_is(name, message):
    with pytest.raises(RecordError, match=re.escape(message)):
        result_from(RESULTS, name)


# Figures that move


GRID = {
    "sliders": [{"name": "scale", "values": [0.5, 1.0]}, {"name": "K", "values": [1, 3, "all"]}],
    "x": [0, 1],
    "curves": [
        {"name": "a", "y": [[[1 / 3, 2.0], [3, float("nan")], [4]], [[5, 6], [-7, 8], [None, 1e-5]]]},
        {"name": "b", "y": [0.0, 1234567.0], "low": [-1.0, 1e6], "high": [1 / 3, 2e6]},
    ],
}
LABELS = {"x": "step", "y": "norm"}


def test_recorded_curves_are_shortened_for_the_page():
    data = curves(drawable(GRID), **LABELS, start="1, all")
    assert data["sliders"] == [
        {"name": "scale", "values": ["0.5", "1"], "start": 1},
        {"name": "K", "values": ["1", "3", "all"], "start": 2},
    ]
    assert data["curves"] == [
        {"name": "a", "y": [[[0.3333, 2], [3, None], [4]], [[5, 6], [-7, 8], [None, 1e-5]]]},
        {"name": "b", "y": [0, 1235000], "low": [-1, 1000000], "high": [0.3333, 2000000]},
    ]
    assert (data["x"], data["labels"], data["log"]) == ([0, 1], ["step", "norm"], "")


OTHER_CURVES = (
    "expected the curve 'a' to have y, or y, low and high, each with 1 to 2 numbers, or [2, 3] lists"
)


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"y": []}, {}, "y: Extra inputs are not permitted"),
        ({"sliders": [{"name": "K", "values": [1]}]}, {}, "sliders.0.values: List should have at least 2"),
        ({"x": ["0", "1"]}, {}, "x.0: Input should be a valid number; x.1: Input"),
        ({"curves": GRID["curves"] * 3}, {}, "curves: List should have at most 4 items"),
        ({"curves": [{"name": "a", "y": [[[1], [2], [3]]]}]}, {}, OTHER_CURVES),
        ({"curves": [{"name": "a", "y": [1, 2, 3]}]}, {}, OTHER_CURVES),
        ({"curves": [{"name": "a", "y": [True]}]}, {}, OTHER_CURVES),
        ({"curves": [{"name": "a", "y": [1], "low": [0]}]}, {}, OTHER_CURVES),
        ({}, {"start": "1"}, "one value of each slider, of [['0.5', '1'], ['1', '3', 'all']]; got '1'"),
        ({}, {"start": "1, 2"}, "got '1, 2'"),
        ({}, {"log": "z"}, "expected the options x, y, and log as x, y or xy; got 'step', 'norm', 'z'"),
        ({}, {"y": ""}, "expected the options x, y, and log"),
    ],
)
def test_curves_of_another_form_are_refused(change, options, message):
    with pytest.raises(RecordError, match=re.escape(message)):
        curves(drawable(GRID) | change, **LABELS | options)


# Pages of a small project


def write_record(folder, name, results, **rest):
    stem, backend = name.rsplit("-", 1)
    record = {"schema_version": 1, "stem": stem, "status": "finished", "results": results}
    record |= {"parameters": {"backend": backend, "seed": 0, "learning_rate": 1e-05, "label": "<b>"}, **rest}
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(record))


def make_project(folder, forks):
    """Make a Sphinx project and a function that builds it with one page: (exit status, messages, HTML)."""
    source = folder / "source"
    source.mkdir()
    (source / "conf.py").write_text(
        'extensions = ["myst_parser", "gradtricks.book.extension"]\n'
        'html_math_renderer = "katex"\nmyst_enable_extensions = ["dollarmath", "amsmath"]\n'
        f"html_static_path = [{str(BOOK / '_assets')!r}]\n"
    )
    write_record(
        source / "experiments",
        "masking-torch",
        {
            "accuracy": 0.9,
            "loss": {"$float": "nan"},
            "note": "<script>",
            "grid": encode(GRID, "grid"),
            "day": encode(date(2026, 1, 31), "day"),
            "times": [["what", "ratio"], ["`norm`", 0.12345], ["sum", 1e-7]],
        },
        varying={"seconds": 1.25},
        figures={"curve": 'a "curve" <up>'},
        provenance={
            **{"processor": "<i>fast</i>", "commit": "0123456789abcdef", "dirty": True, "threads": 2},
            "python": "3.11",
        },
        inputs={"versions": {"torch": "2.13"}},
        started="2026-01-31T12:00:00+00:00",
        duration_s=1.25,
    )
    (source / "experiments" / "masking-torch").mkdir()
    (source / "_assets" / "moving").mkdir(parents=True)
    for name in ("trial", "curves"):
        (source / "_assets" / "moving" / f"{name}.js").write_text("")
    svg = '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>'
    (source / "experiments" / "masking-torch" / "curve.svg").write_text(svg)

    def build(page, *options):
        (source / "index.md").write_text(page)
        return build_again(*options)

    def build_again(*options):
        done = forks.run("sphinx", "-b", "html", "-q", "-n", *options, source, folder / "html")
        page = folder / "html" / "index.html"
        return done.returncode, done.stderr, page.read_text() if page.exists() else ""

    build.again = build_again
    build.source = source
    return build


@pytest.fixture
def project(tmp_path, forks):
    """A project of a test's own."""
    return make_project(tmp_path, forks)


@pytest.fixture(scope="module")
def shown(tmp_path_factory, forks):
    """Build one project with all of SHOWN, and return a function that reads a page of it."""
    folder = tmp_path_factory.mktemp("shown")
    project = make_project(folder, forks)
    for name, text in SHOWN.items():
        (project.source / f"{name}.md").write_text(f"# Page\n\n{text}")
    for name, standing in (("same", "the same numbers"), ("other", "other numbers")):
        origin = {"started": "2026-01-02 03:04 UTC", "processor": "<i>fast</i>", "libraries": ""}
        record = {"sweep": name, "published": True, "results": {}, "origin": origin, "standing": standing}
        record["command"] = f"gradtricks publish experiments/{name}.sweep.yaml"
        (project.source / "experiments" / f"{name}-sweep.json").write_text(json.dumps(record))
    contents = "\n".join(SHOWN)
    assert project(f"# Book\n\n```{{toctree}}\n{contents}\n```\n", "-W")[:2] == (0, "")
    return lambda name: (folder / "html" / f"{name}.html").read_text()


def visible(page):
    """Return the text of a page."""
    return html.unescape(re.sub("<[^>]+>", "", page))


SCRIPT = '<script src="https://cdn.example/a.js"></script>'  # which doesn't stop the build
RESULTS_AND_FORMULAS = r"""
Accuracy {result}`masking/torch/accuracy:.1%`, loss {result}`masking/torch/loss`,
{result}`masking/torch/note`, {result}`masking/torch/seconds:.1f` s, $x^2$.

$$\frac{a}{b}$$ (ratio)

\begin{align}u &= v\end{align}

{eq}`ratio`

```{run-card} masking/torch
```

```{run-figure} masking/torch/curve
Caption.
```

```{result-table} masking/torch/times:.3g
```

```{raw} html
SCRIPT
```
""".replace("SCRIPT", SCRIPT)
EXPLORED = """
```{moving} curves
:data: masking/torch/grid
:fallback: masking/torch/curve
:x: step </script>
:y: norm
:prompt: Why?

With $x^2$.
```
"""
MOVED = """
```{moving} trial
:alt: what <it> shows
:prompt: What if </script>?
:data: masking/torch/times
:fallback: masking/torch/curve
```
"""
SHOWN = {
    "results": RESULTS_AND_FORMULAS,
    "commas": "With `a`, $x = 1$, `b` or $y$ ($z$); then *so*.\n",
    "cards": "```{run-card} same/sweep\n```\n\n```{run-card} other/sweep\n```\n",
    "sliders": EXPLORED,
    "moved": MOVED,
    "drawn": "```{graph}\n:alt: What it shows.\nx <1- [loss] <1- L\n```\n",
    "plain": "",
}


def test_a_page_shows_results_figures_cards_and_formulas(shown):
    page = shown("results")
    assert '<span class="result">90.0%</span>' in page
    assert '<span class="result">NaN</span>' in page
    assert '<span class="result">1.2</span> s' in page
    assert "<span>&lt;script&gt;</span>" in page  # texts may break
    assert page.count('class="katex"') == 3
    assert page.count('class="katex-display"') == 2
    assert '<span class="eqno">(1)' in page
    assert 'alt="a &quot;curve&quot; &lt;up&gt;"' in page
    assert "&lt;i&gt;fast&lt;/i&gt;" in page
    cells = [re.sub("<[^>]+>", "", cell).strip() for cell in re.findall("<t[dh].*?</t[dh]>", page, re.DOTALL)]
    assert cells[-6:] == ["what", "ratio", "norm", "0.123", "sum", "1\xa0×\xa010⁻⁷"]
    assert re.search("<code.*?>norm<", page.replace("\n", ""))
    assert "0123456789ab with uncommitted changes" in page
    options = "--threads 2 -p backend=torch -p seed=0 -p learning_rate=1e-05 -p 'label=<b>'"
    whole = re.sub(r"\\\n +", "", visible(page))  # as a shell puts its lines together
    assert f"gradtricks run experiments/masking.ipynb {options}" in whole
    assert SCRIPT in page
    assert not re.search("<script[^>]*mathjax", page, re.IGNORECASE)


def test_no_line_begins_with_the_comma_behind_a_formula(shown):
    page = shown("commas")
    assert re.findall(r'encoding="application/x-tex">(.*?)<', page) == [r"x = 1\text{,}", "y", r"z\text{);}"]
    bs4 = pytest.importorskip("bs4")
    paragraph = bs4.BeautifulSoup(page, "html.parser").select_one(".body p")
    for formula in paragraph.select(".math"):
        formula.replace_with("F")
    assert paragraph.get_text() == "With a, F b or F (F then so."


def test_the_card_of_a_sweep_says_how_it_stands(shown):
    for name, card in zip(("same", "other"), shown("cards").split("<details")[1:], strict=True):
        assert f"How the sweep {name} ran" in card
        assert "&lt;i&gt;fast&lt;/i&gt;" in card
        assert f"gradtricks publish experiments/{name}.sweep.yaml" in visible(card)
        assert ('class="changed"' in card) == ("other numbers since" in card) == (name == "other")
        assert ("the same numbers" in visible(card)) == (name == "same")
        assert ("runs it again:" in card) == (name == "same")
        assert ("runs it with what is here now, and finds something else:" in card) == (name == "other")
        assert "libraries" not in card


@pytest.mark.parametrize(("page", "script"), [("sliders", "curves"), ("moved", "trial")])
def test_a_figure_that_moves_brings_its_data_and_its_scripts(page, script, shown):
    page = shown(page)
    (figure,) = re.findall(f'<figure class="[^"]*moving moving-{script}.*?</figure>', page, re.DOTALL)
    (data,) = re.findall('<script type="application/json">(.*?)</script>', figure)
    told = json.loads(data, parse_constant=pytest.fail)  # browsers know no NaN
    if script == "curves":
        rest = curves(drawable(GRID), x="step </script>", y="norm")
        assert told == {"alt": 'a "curve" <up>', "prompt": "Why?", **rest}
        assert 'alt="a &quot;curve&quot; &lt;up&gt;"' in figure
        assert 'class="katex"' in figure
    else:
        assert (told["alt"], told["prompt"]) == ("what <it> shows", "What if </script>?")
        assert told["data"] == [["what", "ratio"], ["`norm`", 0.1235], ["sum", 1e-7]]
        assert 'alt="what &lt;it&gt; shows"' in figure
    assert 'loading="lazy"' in figure
    loaded = ["moving.css", "figures.js", f"moving/{script}.js"]
    assert re.findall(r"_static/((?:figures|moving)[\w/.]*)", page) == loaded
    assert "moving" not in shown("plain")


def test_drawings_are_inline_and_every_page_has_their_style(shown):
    drawing = '<div class="graph" role="img" aria-label="What it shows."><div><div class="graph-panel"><svg'
    assert drawing in shown("drawn")
    assert "_static/graph.css" in shown("plain")  # the PDF has the head of the first page


def test_pages_are_listed_with_their_answers(project):
    (project.source / "second.md").write_text(
        "# Why?\n\n```{admonition} Answer\n:class: answer\nBecause, $x$.\n```\n\n```{toctree}\nthird\n```\n"
    )
    (project.source / "third.md").write_text("# How\n")
    page = "# Book\n\nWhat it is.\n\n```{toctree}\n:caption: Part\nsecond\n```\n"
    assert project(page, "-W", "-D", "project=Tricks")[:2] == (0, "")
    site = project.source.parent / "html"
    assert (site / "llms.txt").read_text() == (
        "# Tricks\n\n> What it is.\n\n## Part\n\n- [Why?](second.html): Because, x.\n- [How](third.html)\n"
    )
    assert not (site / "sitemap.xml").exists()


BOTH = """
extensions += ["sphinx_design"]
myst_enable_extensions += ["colon_fence"]
"""
# Entries are read: no module is there to be imported, and none of the frameworks may be.
SMALL = '''
import no_such_framework
from gradtricks.NAME._layers import Layer as Layer

def scale(x, *, by_NAME=1.0):
    """Scales in NAME.

    Args:
        x: What is scaled.
    """
'''
LAYERS = '''
class Layer(no_such_framework.Layer):
    """A layer of NAME."""

    def __init__(self, size: int, *, name: str = "NAME") -> None:
        self.size = size

    @property
    def shared(self) -> float:
        """The base of both."""

    def METHOD(self, x):
        """A layer of NAME."""
'''
METHODS = {"torch": "forward", "tensorflow": "call"}
ENTRIES = """# Small

```{in-both} autofunction scale
```

```{in-both} autoclass Layer
:members: shared, torch.forward, tensorflow.call
```
"""
BOOK_OF_BOTH = "# Book\n\n```{toctree}\nsmall\napi/small\n```\n"


@pytest.fixture
def with_both(project):
    """The same project, with a module of each framework and a page for a stem of theirs."""
    pytest.importorskip("sphinx_design")
    with (project.source / "conf.py").open("a") as file:
        file.write(BOTH)
    (project.source / "small.md").write_text("# What is small?\n")
    (project.source / "api").mkdir()
    sources = {"tests/tricks/test_small.py": "", "src/gradtricks/reference/small.py": ""}
    for backend, method in METHODS.items():
        for module, code in (("small", SMALL), ("_layers", LAYERS)):
            code = code.replace("NAME", backend).replace("METHOD", method)
            sources[f"src/gradtricks/{backend}/{module}.py"] = code
    for name, code in sources.items():
        path = project.source.parent / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {name}\n{code}")
    return project


def test_an_entry_has_both_signatures_and_links_to_its_sources(with_both):
    (with_both.source / "api" / "small.md").write_text(ENTRIES)
    assert with_both(BOOK_OF_BOTH, "-W")[:2] == (0, "")
    api = with_both.source.parent / "html" / "api"
    _, function, layer = (api / "small.html").read_text().split('class="entry-links')
    assert 'href="../small.html"' in function
    linked = re.findall(r'href="(\.\./_downloads/[^"]+)"', function)
    assert [(api / path).read_text().splitlines()[0] for path in linked] == [
        "# tests/tricks/test_small.py"
    ] + [f"# src/gradtricks/{name}/small.py" for name in (*BACKENDS, "reference")]
    sides, tabs = function.split('class="sd-tab-set')
    for backend in BACKENDS:
        assert f'id="gradtricks.{backend}.scale"' in sides
        assert f"by_{backend}" in sides
        assert f"<dd><p>{FRAMEWORKS[backend]}</p>" in sides
        assert f"Scales in {backend}." in tabs
    assert "sig-object" not in tabs
    sides, tabs = layer.split('class="sd-tab-set')
    assert "size" in sides
    assert "self" not in sides
    methods = re.findall(r'id="(gradtricks[\w.]+)"', tabs)
    shown = {"torch": ("forward", "shared"), "tensorflow": ("call", "shared")}
    expected = [f"gradtricks.{backend}.Layer.{name}" for backend, names in shown.items() for name in names]
    assert sorted(methods) == sorted(expected)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("autofunction gone", r"expected a name that .*torch/small\.py defines; got 'gone'"),
        ("autoclass Layer\n:members: gone", "expected a name that Layer of torch defines; got 'gone'"),
    ],
)
def test_an_entry_that_is_not_there_fails_the_build(with_both, entry, message):
    (with_both.source / "api" / "small.md").write_text(f"# Small\n\n```{{in-both}} {entry}\n```\n")
    status, messages, _ = with_both(BOOK_OF_BOTH, "-W")
    assert status != 0
    assert re.search(message, messages)


def test_the_pages_of_the_api_are_built_without_a_framework(forks, tmp_path):
    extensions = "myst_parser,sphinx_design,gradtricks.book.entries"
    settings = {"extensions": extensions, "root_doc": "api/index", "include_patterns": "api/*"}
    given = [f"-D{name}={value}" for name, value in settings.items()]
    options = "-b", "html", "-C", "-q", "-Dmyst_enable_extensions=colon_fence"
    done = forks.run("sphinx", *options, *given, BOOK, tmp_path / "html")
    assert done.returncode == 0, done.stderr
    for name in ("MaskedOptimizer.set_trainable_mask", "ScaleGradient.scale", "explain_gradient"):
        page, room = {"M": ("masking", ""), "S": ("scaling", ""), "e": ("tracing", "doctor.")}[name[0]]
        built = (tmp_path / "html" / "api" / f"{page}.html").read_text()
        assert [b for b in BACKENDS if f'id="gradtricks.{room}{b}.{name}"' not in built] == []


def test_a_build_that_imports_a_framework_fails(project):
    with (project.source / "conf.py").open("a") as file:
        file.write('import sys\nsys.modules["torch"] = sys\n')
    status, messages, _ = project("# Page\n")
    assert (status, messages) == (1, "expected Sphinx to import no framework; it has torch\n")


# The command on a card

PARAMETERS = """\
text: str = ""
word: str = ""
quoted: str = ""
none: int | None = 1
on: bool = False
integer: int = 0
floats: list[float] = []
infinite: float = 0.0
texts: list[str] = []
shares: dict[str, list[int | None]] = {}
day: date = date(2000, 1, 1)
days: list[date] = []
at: datetime = datetime(2000, 1, 1)
"""
CARRIED = {
    "text": "3",
    "word": "None",
    "quoted": 'it\'s a "$x" – 😀',
    "none": None,
    "on": True,
    "integer": -3,
    "floats": [1e-05, 1e22, math.inf, -math.inf, -0.0, 1.0],
    "infinite": -math.inf,
    "texts": ["yes", "12:30", "1e5", "2026-01-31", "a\nb"],
    "shares": {"a": [1, None], "b": [1, None]},
    "day": date(2026, 1, 31),
    "days": [date(2026, 1, 31)],
    "at": datetime(2026, 1, 31, 12),
}


def test_the_command_on_a_card_asks_for_the_same_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_notebook(tmp_path / "experiments" / "masking.ipynb", PARAMETERS, "")
    asked = {}
    monkeypatch.setattr("gradtricks.lab.run", lambda *a, **rest: asked.update(rest, given=a))
    record = {"parameters": CARRIED, "provenance": {"threads": 3}}
    command = command_of("masking", record)
    assert max(map(len, command.splitlines())) <= 76
    assert command.count("\n") > 2
    program, *arguments = shlex.split(command.replace("\\\n", ""))  # as a shell does first
    assert program == "gradtricks"
    CliRunner().invoke(app, arguments)
    notebook, texts = asked["given"]
    assert (notebook, asked["threads"]) == (Path("experiments/masking.ipynb"), 3)
    values = check_parameters(read_parameters(read_notebook(notebook), "masking"), texts)
    assert values == CARRIED
    assert list(map(literal, values.values())) == list(map(literal, CARRIED.values()))


GIVEN = ":prompt: Why?\n:x: a\n:y: b\n"
CURVES = "```{moving} curves\n:data: "
WRONG = {
    "{result}`masking/torch/acuracy`": "accuracy, loss, note, grid, day, times, seconds; got 'acuracy'",
    "{result}`masking/jax/accuracy`": "got the records: masking-torch; remedy: run `make book`",
    "{result}`accuracy`": "expected stem/backend/name",
    "{result}`masking/torch/accuracy:.d`": "expected a format that fits 0.9; got '.d'",
    "```{run-card} masking/jax\n```": "expected the record masking-jax.json",
    "```{run-card} masking\n```": "expected the record masking.json",
    "```{run-card} masking/torch/accuracy\n```": "expected stem/backend",
    "```{result-table} masking/torch/note\n```": "expected rows of one length, heads first; got",
    "```{result-table} times\n```": "expected stem/backend/name",
    "```{run-figure} masking/torch/kurve\n```": "expected one of: curve; got 'kurve'",
    "```{run-figure} kurve\n```": "expected stem/backend/figure",
    f"{CURVES}masking/torch/girds\n:fallback: masking/torch/curve\n{GIVEN}```": "got 'girds'",
    f"{CURVES}masking/torch/note\n:fallback: masking/torch/curve\n{GIVEN}```": (
        "expected a result with sliders, x and curves; it: Input should be a valid dictionary"
    ),
    f"{CURVES}masking/torch/grid\n:fallback: masking/torch/kurve\n{GIVEN}```": "got 'kurve'",
    f"{CURVES}grid\n:fallback: masking/torch/curve\n{GIVEN}```": "expected stem/backend/name",
    "```{moving} gone\n:alt: a\n:prompt: b\n```": "expected one of: ",
    "```{moving} trial\n:prompt: b\n```": "the options prompt, and alt or fallback",
    "```{moving} trial\n:alt: a\n:prompt: b\n:data: times\n```": "expected stem/backend/name",
    "```{moving} trial\n:alt: c\n:prompt: b\n:data: masking/torch/day\n```": "a result that JSON can say",
    "x <1- y -> x\n```": "expected no way from y back to itself",
    "```{graph}\n\nx <1- y\n```": "graph: expected the option alt",
    "$\\frac{1$": "formula '\\\\frac{1'",
}


def test_wrong_references_and_formulas_fail_the_build_and_say_where(project):
    # The line of a drawing is named, not its first one.
    drawing = "```{graph}\n:alt: a\npanel: one\n"
    page = "# Page\n\n" + "\n\n".join(drawing * w.startswith("x ") + w for w in WRONG) + "\n"
    status, messages, _ = project(page, "-W", "--keep-going")
    assert status == 1
    for wrong, message in WRONG.items():
        line = page[: page.index(wrong)].count("\n") + 1
        assert any(message in m for m in messages.splitlines() if f"index.md:{line}:" in m), messages


def test_an_incremental_build_notices_new_and_changed_records(project):
    status, _, _ = project("# Page\n\n{result}`scaling/torch/share`\n", "-W")
    assert status != 0
    for share in (0.25, 0.75):
        write_record(project.source / "experiments", "scaling-torch", {"share": share})
        status, messages, page = project.again("-W")
        assert (status, messages) == (0, "")
        assert f">{share}</span>" in page


def test_the_style_sheet_of_formulas_fits_the_renderer():
    script, style = formulas.katex_script().read_text(), (BOOK / "_assets/katex/katex.min.css").read_text()
    (version,) = re.findall(r'version:"(\d[\d.]+)"', script)
    assert f'content:"{version}"' in style


# Parts that have to fit


def test_every_page_is_in_the_table_of_contents():
    pages = [str(p.relative_to(BOOK).with_suffix("")) for p in PAGES]
    runs = [*{f"experiments/{run.stem}" for run in plan_book(EXPERIMENTS)}]
    sweeps = [f"experiments/{sweep.name}-sweep" for sweep in plan_sweeps(EXPERIMENTS)]
    assert sorted(parse_toc_yaml(BOOK / "_toc.yml")) == sorted(pages + runs + sweeps)


def test_the_next_question_of_a_chapter_is_the_next_chapter():
    parts = [part for part in yaml.safe_load((BOOK / "_toc.yml").read_text())["parts"] if "numbered" in part]
    chapters = [chapter for part in parts for chapter in part["chapters"]]
    wrong = []
    for chapter, following in pairwise(chapters):
        text = (BOOK / f"{chapter['file']}.md").read_text()
        said = re.findall(r"\bNext(?: question)?:\s+\{doc\}`(\w+)`", text)
        wrong += [(chapter["file"], name) for name in said if name != following["file"]]
    assert wrong == []


def test_every_chapter_on_a_trick_names_the_two_edits():
    chapters = {*STEMS, "pong", "muzero"} - {"editing"}
    assert {
        stem for stem in chapters if "`two edits <editing>`" not in (BOOK / f"{stem}.md").read_text()
    } == set()


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_public_name_is_documented(backend):
    stubs = [ROOT / "src/gradtricks" / room / backend / "__init__.pyi" for room in ("", "doctor")]
    nodes = [node for stub in stubs for node in ast.parse(stub.read_text()).body]
    names = [alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names]
    text = "\n".join(p.read_text() for p in (BOOK / "api").glob("*.md"))
    documented = re.findall(r"^```\{in-both\} auto(?:function|class) (\w+)$", text, re.MULTILINE)
    assert sorted(documented) == sorted(names)


def test_every_citation_is_in_the_bibliography_once():
    keys = re.findall(r"^@\w+\{([^,\s]+),", (BOOK / "references.bib").read_text(), re.MULTILINE)
    sources = [p.read_text() for p in (*PAGES, *EXPERIMENTS.glob("*.ipynb"))]
    groups = [group for source in sources for group in re.findall(r"\{cite(?::\w+)?\}`([^`]+)`", source)]
    cited = {key.strip() for group in groups for key in group.split(",")}
    assert len(keys) == len(set(keys))
    assert cited == set(keys)


def test_questions_with_numbers_are_cited_at_their_addresses():
    entries = (BOOK / "references.bib").read_text().split("\n@")
    asked = [(n, e) for e in entries for n in re.findall(r"(?:Exchange|Overflow), question (\d+)", e)]
    sites = ("stackoverflow", "datascience.stackexchange")
    assert len(asked) > 10
    assert [e for n, e in asked if not any(f"https://{site}.com/questions/{n}" in e for site in sites)] == []


def test_the_landing_page_leads_to_the_chapter_of_every_stem():
    text = (BOOK / "index.md").read_text()
    questions = text[text.index("class-container: questions") : text.index("class-container: results")]
    linked = re.findall(r"\[[^]]+\]\((\w+)\.md\)", questions)
    assert set(STEMS) - set(linked) == set()
    assert len(linked) == len(set(linked))


@cache
def recorded_names(stem, backend):
    """Names of what a notebook records with one backend, results and figures; None where code decides."""
    names = {"record": set(), "record_figure": set()}
    others = set(BACKENDS) - {backend}
    for cell in json.loads((EXPERIMENTS / f"{stem}.ipynb").read_text())["cells"]:
        if cell["cell_type"] != "code" or others & set(cell["metadata"].get("tags", [])):
            continue
        for node in ast.walk(ast.parse("".join(cell["source"]))):
            called = getattr(node.func, "id", None) if isinstance(node, ast.Call) else None
            if called in ("record", "record_varying"):
                names["record"] |= {keyword.arg for keyword in node.keywords}
            elif called in ("record_figure", "record_film"):
                names["record_figure"].add(
                    node.args[0].value if isinstance(node.args[0], ast.Constant) else None
                )
    return names


RESULT = r"(?:\{result\}`|\{result-table\} )(\w+)(?:/(torch|tensorflow|sweep))?/([^./:`\n]+)"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_every_quoted_result_and_figure_is_recorded_by_its_notebook(page):
    text = page.read_text()
    figures = (
        r"\{run-figure\} (\w+)(?:/(\w+))?/(\w+)",
        r":fallback: (\w+)(?:/(\w+))?/(\w+)",
        r"\{(?:figure|image)\} /experiments/(\w+)-(\w+)/(\w+)\.svg",
    )
    curves = re.findall(r":data: (\w+)(?:/(\w+))?/(\w+)", text)
    quoted = [("record", *q) for q in re.findall(RESULT, text) + curves]
    quoted += [("record_figure", *q) for pattern in figures for q in re.findall(pattern, text)]
    # What a sweep's page holds is made by the sweep; the build itself checks it.
    quoted = [q for q in quoted if q[2] != "sweep"]
    unknown = {q for q in quoted if not {q[3], None} & recorded_names(*q[1:3])[q[0]]}
    assert not unknown


@pytest.mark.parametrize("path", sorted(EXPERIMENTS.glob("*.sweep.yaml")), ids=lambda path: path.name)
def test_pages_of_sweeps_have_words_for_all_names(path):
    said = yaml.safe_load(path.read_text())
    named = {*said["shown"], *said.get("grid", {})} - {"backend"}
    assert named - set(said["labels"]) == set()
    absent = [name for name, values in said.get("grid", {}).items() if None in values]
    assert [name for name in absent if f"{name}=None" not in said["labels"]] == []


def test_every_chapter_with_results_says_how_they_came_about():
    quoting = r"(?:\{run-figure\}|:data:) ((?:\w+)(?:/(?:torch|tensorflow|sweep))?)\b"
    missing = {}
    for page in set(PAGES) - {BOOK / "index.md"}:  # which leads to the chapters
        text = page.read_text()
        quoted = {"/".join(filter(None, found[:2])) for found in re.findall(RESULT, text)}
        quoted |= set(re.findall(quoting, text))
        missing[str(page.relative_to(ROOT))] = quoted - set(re.findall(r"\{run-card\} (\S+)", text))
    assert {page: runs for page, runs in missing.items() if runs} == {}


def test_symptoms_lead_to_every_trick_and_name_real_diagnoses():
    text = (BOOK / "symptoms.md").read_text()
    linked = set(re.findall(r"\{doc\}`(?:[^`<]*<)?(\w+)>?`", text))
    # Two chapters are about functions that one wants, not about something that went wrong.
    assert set(STEMS) - linked == {"editing", "overriding"}
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    named = {kind for row in rows if row[3:] for kind in re.findall("`([^`]+)`", row[3])} - {"diagnose"}
    causes = "".join(path.read_text() for path in (ROOT / "src/gradtricks/doctor").glob("*.py"))
    assert len(named) > 10
    assert {kind for kind in named if f'"{kind}"' not in causes} == set()


def test_the_cheat_sheet_has_every_stem_and_only_real_names():
    text = (BOOK / "cheatsheet.md").read_text()
    ours = text[text.index("## Edit what") :]
    linked = set(re.findall(r"\{doc\}`(?:[^`<]*<)?(\w+)>?`", ours))
    assert set(STEMS) - linked == set()
    names = set(re.findall(r"^\| [^|]+ \| `(?:[\w, ]+ = )?(\w+)\(", ours, re.MULTILINE))
    paths = [p for p in (ROOT / "src/gradtricks").glob("**/torch/[a-z]*.py") if p.stem in STEMS]
    known = {name for path in paths for name in defined_names(path)}
    assert len(names) > 20
    assert names - known == set()


def defined_names(path):
    """Names of the functions and classes of a module."""
    return {getattr(node, "name", None) for node in ast.parse(path.read_text()).body} - {None}


FENCE = re.compile(r"^ *(`{3,})(?:\{code-block\} )?(?:pycon|python)\n(.*?)^ *\1", re.MULTILINE | re.DOTALL)
EXAMPLES = [
    pytest.param(page, code, id="-".join([page.stem, str(number), *(b for b in BACKENDS if b in code)]))
    for page in PAGES
    for number, (_, code) in enumerate(FENCE.findall(page.read_text()))
    if code.lstrip().startswith(">>>")
]


@pytest.mark.parametrize(("page", "code"), EXAMPLES)
def test_the_examples_on_pages_run(page, code):
    for library in [*BACKENDS, "jax", "optax"]:
        if f"import {library}" in code:
            pytest.importorskip(library)
    example = doctest.DocTestParser().get_doctest(code, {}, page.name, str(page), 0)
    report = []
    doctest.DocTestRunner(verbose=False).run(example, out=report.append)
    assert not report, "".join(report)


def shown_lines(page, word):
    """Return what a page's example defines, found by a word in it."""
    (shown,) = [code for _, code in FENCE.findall((BOOK / page).read_text()) if word in code]
    example = doctest.DocTestParser().get_doctest(shown, {}, page, None, 0)
    doctest.DocTestRunner(verbose=False).run(example, clear_globs=False)
    return example.globs


def test_the_chapter_s_thirty_lines_differentiate_as_frameworks_do(backend):
    lines, random = shown_lines("backpropagation.md", "class Value"), np.random.default_rng(0)
    cut = backend.tricks.scale_gradient
    for _ in range(20):
        numbers, places = random.normal(size=3), random.integers(0, 3, (8, 3))

        def loss(x, tanh, cut, places=places):
            values = list(x)
            for kind, first, second in places:
                a, b = values[-1 - first], values[-1 - second]
                values.append([a + b * a, tanh(a * b), cut(a) * b + 2][kind])
            return values[-1] + values[-2] * values[0] + 0 * (x[0] + x[1] + x[2])

        ours = [lines["Value"](number) for number in numbers]
        found = loss(ours, lines["tanh"], lines["detach"])
        lines["backward"](found)
        value, gradients = backend.value_and_vjp(
            lambda *x: loss(x, backend.framework.tanh, lambda a: cut(a, 0.0)), list(numbers), np.float64(1)
        )
        assert found.number == pytest.approx(float(value))
        assert [each.grad for each in ours] == pytest.approx([float(gradient) for gradient in gradients])


def test_no_code_on_a_page_is_wider_than_its_column():
    block = re.compile(r"^(`{3,})(?:\{code-block\} )?\w+\n(.*?)^\1 *$", re.MULTILINE | re.DOTALL)
    wide = []
    for page in PAGES:
        text = page.read_text()
        lines = [line for _, code in block.findall(text) for line in code.splitlines()]
        wide += [(page.stem, line) for line in lines if len(line.partition("  # doctest:")[0]) > 76]
        # The package's lines are wider, and made for an editor: a page has lines of its own, which are run.
        wide += [(page.stem, included) for included in re.findall(r"\{literalinclude\} \S+\.py", text)]
    assert wide == []


def test_the_chapter_s_search_visits_what_the_agents_visit():
    lines = shown_lines("muzero.md", "def simulate")

    def dynamics(state, action):
        return math.sin(3 * state + action), math.cos(5 * state + 2 * action)

    def prediction(state):
        likely = np.exp(state * np.array([0.3, -1.0, 0.5]))
        return dict(enumerate(likely / likely.sum())), state

    def recurrent(states, actions):
        rewards, following = zip(*map(dynamics, states, actions))
        policies, values = zip(*map(prediction, following))
        logits = np.log([list(policy.values()) for policy in policies])
        return np.array(values), np.array(rewards), logits, np.array(following)

    lines.update(dynamics=dynamics, prediction=prediction)
    root = lines["new"](0.3)
    for _ in range(100):
        lines["simulate"](root, 0.97)
    logits = np.log([list(root.policy.values())])
    start = RootFnOutput(logits, np.array([prediction(0.3)[1]]), np.array([0.3]))
    options = {"num_simulations": 100, "discount": 0.97, "qtransform": "by_parent_and_siblings"}
    found = search(start, recurrent, **options)
    assert [root.children[action].visits for action in range(3)] == found.children_visits[0, 0].tolist()
    assert root.mean == pytest.approx(found.node_values[0, 0])
