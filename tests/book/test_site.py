"""Finishing the book's pages, and the finished site as files: links, anchors, images."""

import html
import json
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbformat
import pytest
import yaml
from bs4 import BeautifulSoup
from fontTools.ttLib import TTFont
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonConsoleLexer, PythonLexer
from pygments.styles import get_style_by_name
from pygments.token import Name, Punctuation, Text, Whitespace

pytest.importorskip("sphinx")

from gradtricks.book import copying, entries, names, trimming
from gradtricks.book.extension import notebook_of
from synthetic import make_run

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "_build" / "html"
needs_the_book = pytest.mark.skipif(
    not SITE.is_dir(), reason="the book hasn't been built; `make book` builds it"
)


# Parts of a page


STYLES = {
    ".used{color:red}": ".used{color:red}",
    ".gone{color:red}": "",
    ".used .gone, #used a{top:0}": ".used .gone, #used a{top:0}",
    "#gone{top:0}": "",
    "a{--used:1; --gone:url(a;b) x;top:0}": "a{--used:1;top:0}",
    ":root{--gone:0}": ":root{}",
    ":root{--line-3:0;--gone-3:0}": ":root{--line-3:0;}",
    "a:not(.gone, :is(.gone)){top:0}": "a:not(.gone, :is(.gone)){top:0}",
    ".gone:is(.used, a){top:0}": "",
    '[class*=".gone"]{top:0}': '[class*=".gone"]{top:0}',
    "@media print{.gone{top:0}.used{top:0}}": "@media print{.used{top:0}}",
    "@font-face{src:url(a.woff2)}": "@font-face{src:url(a.woff2)}",
    "@layer base, theme;.gone{top:0}": "@layer base, theme;",
    "/*! licence */.gone{top:0}/* {why} */": "/*! licence */",
    "@keyframes a{33.3%{top:0}}": "@keyframes a{33.3%{top:0}}",
}


@pytest.mark.parametrize("style", STYLES)
def test_only_rules_that_may_apply_are_left(style):
    assert trimming.trim_style(style, {"used", "--used", "--line-", "--"}) == STYLES[style]


def test_a_figure_keeps_what_it_shows_within_a_hundredth_of_a_point():
    drawn = """<svg>
  <g transform="scale(0.015625)">
   <path id="a" d="M 46.185865 160.996
L 0.001 20.5
z"/>
  </g>
  <use xlink:href="#a" x="20.000001" y="-0.126"/>
  <text>0.0005</text>
</svg>"""
    assert trimming.trim_figure(drawn) == (
        '<svg><g transform="scale(0.015625)"><path id="a" d="M 46.19 161 L 0 20.5 z"/></g>'
        '<use xlink:href="#a" x="20" y="-0.13"/><text>0.0005</text></svg>'
    )


def test_the_lines_of_a_long_signature_are_no_definitions():
    argument, rest = '<em class="sig-param">x</em>,', "<dl><dd>kept</dd></dl><strong>x</strong> -- --help"
    context = {"body": f"<dt>f(<dl>\n<dd>{argument}</dd>\n</dl>)</dt>{rest}"}
    entries._lines(None, "api/x", "", context, None)
    assert (
        context["body"]
        == f'<dt>f(<span class="sig-line">{argument}</span>\n)</dt>{rest.replace(" -- ", " – ")}'
    )


def test_code_breaks_between_names_and_inside_only_the_longest():
    pieces = ["gradient_override_map", "hidden_state=tf.scale_gradient(hidden_state", "a_long_name_" * 3]
    broken = [names.breakable(piece) for piece in pieces]
    assert [re.sub("<(?!wbr).*?>", "", piece) for piece in broken] == [
        "gradient_override_map",
        "hidden_state=<wbr>tf.<wbr>scale_gradient(<wbr>hidden_state",
        "a_<wbr>long_<wbr>name_<wbr>a_<wbr>long_<wbr>name_<wbr>a_<wbr>long_<wbr>name_",
    ]
    assert ['"pre short"' in piece for piece in broken] == [True, False, False]


BLOCK = "if x:\n    pass\n\n\n@d\nclass A:\n    pass\n# so\nx"
LOOP = ">>> for i in [1, 2]:\n...     if i:\n...\n...         print(i)\n1\n\n...\n2\n>>> (3 +\n... 4)\n7"
CODE = {
    "x = 1\n\ny = 2": "x = 1\n\ny = 2",
    "def f():\n    x = 1\n\n    return x\ny = f()": "def f():\n    x = 1\n    return x\n\ny = f()",
    BLOCK: BLOCK.replace("# so", "\n# so"),
    'def f():\n    """A\n\n    text."""\n\n    x': 'def f():\n    """A\n\n    text."""\n    x',
    LOOP: "for i in [1, 2]:\n    if i:\n        print(i)\n\n(3 +\n4)",
    "for x in": "for x in",
    ">>> !ls\nfile": "!ls",
}


@pytest.mark.parametrize("shown", CODE)
def test_what_is_copied_runs_at_a_prompt(shown):
    lexer = PythonConsoleLexer(stripnl=False) if shown.startswith(">>>") else PythonLexer(stripnl=False)
    page = BeautifulSoup(copying.mark(highlight(shown, lexer, HtmlFormatter()), shown), "html.parser")
    for hidden in page.select(".uncopied"):
        hidden.decompose()
    assert page.text.strip("\n") == CODE[shown]


# A small book, built twice

SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="90" height="20"><rect width="90" height="20"/></svg>'
BASE = "https://book.example/tricks"
EXECUTED = "experiments/masking"
BOOK = {
    "_toc.yml": "format: jb-book\nroot: index\nchapters:\n"
    + "".join(f"- file: {page}\n" for page in ("second", "executed", "masking", "api/masking", EXECUTED)),
    "references.bib": "@misc{one, author = {An Author}, title = {A Title}, year = {2026}}\n",
    "bar.svg": SVG,
    "points.svg": SVG.replace('width="90" height="20"', 'width="90pt" height="30pt"', 1),
    "picture.svg": SVG.replace("<rect", '<image href="data:," width="9" height="9"/><rect'),
    "letters.svg": SVG.replace(
        "<rect", '<g transform="scale(0.12 -0.12)"/><g transform="scale(0.015 -0.015)"/><rect'
    ),
    "texts.svg": SVG.replace("<rect", '<text font-size="2">a</text><text font-size="13.5">b</text><rect'),
    "sizeless.svg": SVG.replace('width="90" height="20"', 'viewBox="0 0 9 9"', 1),
    "experiments/small-torch.json": json.dumps(make_run({"seed": 0}, {"n": 3}).record),
    "index.md": """# A small book

What it holds, <3.

::::{tab-set}
:sync-group: framework

:::{tab-item} PyTorch
:sync: torch
$x^2$ and {result}`small/torch/n`
:::

:::{tab-item} TensorFlow
:sync: tensorflow
{cite}`one`
:::
::::

```{figure} bar.svg
:alt: a bar
```

```{figure} points.svg
:alt: in points
```

```{figure} letters.svg
:alt: small letters
```

```{figure} texts.svg
:alt: small texts
```

```{figure} picture.svg
:alt: a picture
```

```{figure} sizeless.svg
:alt: of no size
```
""",
    "second.md": """# Why?

:::{admonition} Answer
:class: answer
Because of {term}`this`.
:::

:::{glossary}
this
  What it is, as --help and <https://github.com/someone/tricks/issues/1> say.
:::

```{run-card} small/torch
```

```{bibliography}
```
""",
    **{f"{page}.md": f"# The page {page}\n" for page in ("masking", "api/masking", EXECUTED)},
}


URLS = f"""[project.urls]
Documentation = "{BASE}/"
Repository = "https://github.com/someone/tricks"
"""


def write_book(root):
    """Write a book with the project's own configuration, an address and a repository."""
    shutil.copyfile(ROOT / "_config.yml", root / "_config.yml")
    (root / "pyproject.toml").write_text(URLS)
    (root / "experiments").mkdir()
    for name in ("CHANGELOG.md", "experiments/masking.ipynb"):
        shutil.copyfile(ROOT / name, root / name)
    for folder in ("_assets", "_templates"):
        shutil.copytree(ROOT / "book" / folder, root / "book" / folder)
    for name, text in BOOK.items():
        (root / "book" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "book" / name).write_text(text)
    outputs = [
        nbformat.v4.new_output("execute_result", {"image/svg+xml": SVG, "text/plain": "a bar"}),
        nbformat.v4.new_output("stream", text="printed\n"),
    ]
    cells = [nbformat.v4.new_markdown_cell("# Executed", id="a")]
    cells += [
        nbformat.v4.new_code_cell(
            "for n in range(2):\n    draw(n)", id="b", outputs=outputs, execution_count=1
        )
    ]
    metadata = {
        "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
        "language_info": {"name": "python", "pygments_lexer": "ipython3"},
    }
    executed = nbformat.v4.new_notebook(cells=cells, metadata=metadata)
    nbformat.write(executed, root / "book" / "executed.ipynb")


def build_book(root, seed):
    """Build the small book in a folder and return its site."""
    pytest.importorskip("jupyter_book")
    write_book(root)
    jupyter_book = Path(sys.executable).with_name("jupyter-book")
    command = [jupyter_book, "build", root / "book", "-W", "-n", "--all", "--path-output", root / "out"]
    environment = os.environ | {"PYTHONHASHSEED": seed}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return root / "out" / "_build" / "html"


@pytest.fixture(scope="module")
def twice(tmp_path_factory):
    """Build the same small book in two places, with another order of sets, and return both sites."""
    return [build_book(tmp_path_factory.mktemp("book"), seed) for seed in ("1", "2")]


def test_the_same_sources_make_the_same_bytes(twice):
    one, other = ({p.relative_to(s): p.read_bytes() for p in s.rglob("*") if p.is_file()} for s in twice)
    assert one.keys() == other.keys()
    assert [str(path) for path in sorted(one) if one[path] != other[path]] == []
    assert sum(path.suffix == ".html" for path in one) >= 5


def test_a_page_says_what_a_link_to_it_shows(twice):
    site = twice[0]
    start, second = (
        {
            meta.get("property") or meta.get("name"): meta.get("content")
            for meta in BeautifulSoup((site / f"{name}.html").read_text(), "html.parser").select("meta")
        }
        for name in ("index", "second")
    )
    assert start["og:title"] == "A small book"
    assert start["og:url"] == f"{BASE}/index.html"
    assert start["og:description"] == start["description"] == "What it holds, <3."
    assert second["og:description"] == "Because of this."
    assert "as --help and" in (site / "second.html").read_text(), "two hyphens are no dash"
    image = start["og:image"].removeprefix(f"{BASE}/")
    header = (site / image).read_bytes()[:24]
    assert header[:8] == b"\x89PNG\r\n\x1a\n"
    size = [int.from_bytes(header[at : at + 4], "big") for at in (16, 20)]
    assert size == [int(start[f"og:image:{side}"]) for side in ("width", "height")] == [1200, 630]


def characters_of(path):
    with TTFont(path) as font:
        return set(font.getBestCmap())


def test_only_icons_that_are_shown_are_left(twice):
    static = twice[0] / "_static"
    style = (static / "styles" / "pydata-sphinx-theme.css").read_text()
    assert ".fa-download:before" in style
    assert ".fa-tram:before" not in style
    (font,) = static.rglob("fa-solid-900.woff2")
    assert {0xF019, 0xF7DA} & characters_of(font) == {0xF019}
    assert font.stat().st_size < 20_000


def test_only_letters_that_pages_have_are_left(twice):
    static = twice[0] / "_static"
    kept, whole = (
        characters_of(folder / "fonts" / "serif.woff2") for folder in (static, ROOT / "book" / "_assets")
    )
    assert set(map(ord, "What is in Ünïcode?")) & whole - kept == set(map(ord, "Üï"))


def test_code_that_looks_as_its_block_does_isnt_marked(twice):
    (code,) = BeautifulSoup((twice[0] / "executed.html").read_text(), "html.parser").select(".cell_input pre")
    assert code.text == "for n in range(2):\n    draw(n)\n"
    assert [(span["class"], span.text) for span in code.select("span[class]:not(.copied)")] == [
        *((["k"], "for"), (["ow"], "in"), (["nb"], "range"), (["mi"], "2")),
    ]
    settings = yaml.safe_load((ROOT / "_config.yml").read_text())["sphinx"]["config"]
    for theme in ("light", "dark"):
        style = get_style_by_name(settings["html_theme_options"][f"pygments_{theme}_style"])
        looks = [style.style_for_token(kind) for kind in (Text, Name, Punctuation, Whitespace)]
        assert looks[1:] == looks[:1] * 3


def test_images_keep_their_place_and_later_ones_are_lazy(twice):
    page = (twice[0] / "index.html").read_text()
    bar, points, sizeless = (
        re.search(f'<img [^>]*alt="{text}"[^>]*>', page)[0] for text in ("a bar", "in points", "of no size")
    )
    assert 'width="90" height="20"' in bar
    assert 'width="120" height="40"' in points
    assert [text for text in ("width", "height", "lazy") if text in sizeless] == []
    assert ["lazy" in image for image in (bar, points)] == [False, True]


def test_figures_with_small_letters_scroll_at_a_readable_width(twice):
    page = (twice[0] / "index.html").read_text()
    box = r'<span class="wide-figure" style="([^"]*)" tabindex="0"><img [^>]*alt="([^"]*)"[^>]*>\s*</span>'
    # 90 pixels of width for letters of 1.5 pt, 2 pixels; then for texts of 2 pixels.
    assert re.findall(box, page) == [("--least: 495px", "small letters"), ("--least: 495px", "small texts")]


def test_figures_that_hold_pictures_are_marked(twice):
    page = (twice[0] / "index.html").read_text()
    assert re.findall('<img class="pictures" [^>]*alt="([^"]*)"', page) == ["a picture"]


def test_a_book_with_an_address_lists_its_pages(twice):
    addresses = re.findall("<loc>(.*?)</loc>", (twice[0] / "sitemap.xml").read_text())
    pages = ("api/masking", "executed", EXECUTED, "index", "masking", "second")
    assert addresses == [f"{BASE}/{name}.html" for name in pages]


LAUNCH = re.compile(r'https://(?:mybinder\.org|colab\.research\.google\.com)/[^"]*')


def launches(site):
    """List what Binder and Colab are asked to open: addresses by page."""
    pages = {str(path.relative_to(site)): path.read_text() for path in sorted(site.rglob("*.html"))}
    return {page: found for page, text in pages.items() if (found := LAUNCH.findall(text))}


def test_notebooks_open_in_binder_and_colab_given_a_repository(twice):
    path = "experiments/masking.ipynb"
    addresses = [
        f"https://mybinder.org/v2/gh/someone/tricks/main?labpath={path}",
        f"https://colab.research.google.com/github/someone/tricks/blob/main/{path}",
    ]
    assert launches(twice[0]) == {f"{EXECUTED}.html": addresses, "masking.html": addresses}
    assert (ROOT / path).is_file()
    assert (ROOT / "environment.yml").is_file()  # what Binder installs
    assert dead_links(twice[0]) == []


@pytest.mark.parametrize("path", sorted((ROOT / "experiments").glob("*.ipynb")), ids=lambda path: path.stem)
def test_pages_lead_to_the_notebook_in_the_repository(path):
    for page in (path.stem, f"experiments/{path.stem}"):
        assert notebook_of(ROOT, page) == f"experiments/{path.name}"
    for page in (f"api/{path.stem}", f"experiments/{path.stem}-sweep", "index"):
        assert notebook_of(ROOT, page) is None


def neighbour(page, side):
    """Return the page to which the foot of a page of the book leads."""
    found = re.search(rf'<a class="{side}"\s+href="([^"#]+)', (SITE / page).read_text())
    return os.path.normpath(Path(page).parent / found[1]) if found else None


@needs_the_book
def test_chapters_lead_on_and_executed_pages_lead_back():
    contents = yaml.safe_load((ROOT / "book" / "_toc.yml").read_text())
    chapters = [chapter for part in contents["parts"] for chapter in part["chapters"]]
    reading = ["index.html", *(f"{chapter['file']}.html" for chapter in chapters)]
    assert [neighbour(page, "right-next") for page in reading] == [*reading[1:], None]
    assert [neighbour(page, "left-prev") for page in reading] == [None, *reading[:-1]]
    below = {f"{page['file']}.html": f"{c['file']}.html" for c in chapters for page in c.get("sections", [])}
    assert {page: neighbour(page, "left-prev") for page in below} == below
    # An appendix, which is written, leads on as its chapter does.
    after = {page: None if "/" in page else reading[reading.index(below[page]) + 1] for page in below}
    assert {page: neighbour(page, "right-next") for page in below} == after


# Links


@cache
def parsed(path):
    """Return what a page links to, and what can be linked to on it."""
    text = path.read_text(encoding="utf-8")
    return [
        [*map(html.unescape, re.findall(rf'\s(?:{names})="([^"]*)"', text))]
        for names in ("href|src|data-src", "id|name")
    ]


def dead_links(site):
    """List the links within a site that lead nowhere: (page, link)."""
    site = site.resolve()
    paths = [path for path in sorted(site.rglob("*.html")) if path.relative_to(site).parts[0] != "_static"]
    found = []
    for path in paths:
        name = str(path.relative_to(site))
        for link in parsed(path)[0]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchor = unquote(parts.fragment)
            there = target.is_file() and target.is_relative_to(site)
            if not there or (anchor and target in paths and anchor not in parsed(target)[1]):
                found.append((name, link))
    return found


def test_the_check_finds_what_leads_nowhere(tmp_path):
    (tmp_path / "a.html").write_text(
        '<a id="here" href="#here">x</a><a href="#gone">x</a><a href="b.html#there">x</a>'
        '<a href="b.html#gone">x</a><a href="gone.ipynb" download>x</a><img src="gone.svg" alt="x">'
        '<img src="b.html"><a href="../c.html">x</a>'
        '<a href="https://arxiv.org/gone">x</a><a href="mailto:a@b.example">x</a><link href="gone.css">'
    )
    (tmp_path / "b.html").write_text('<h2 id="there">x</h2>')
    dead = "#gone,b.html#gone,gone.ipynb,gone.svg,../c.html,gone.css"
    assert [link for _, link in dead_links(tmp_path)] == dead.split(",")


@needs_the_book
def test_every_link_of_the_book_leads_somewhere():
    assert dead_links(SITE) == []


@needs_the_book
def test_no_page_names_a_folder_of_the_building_machine():
    naming = [path.name for path in SITE.rglob("*.html") if str(ROOT) in path.read_text(encoding="utf-8")]
    assert naming == []


@needs_the_book
def test_the_film_on_the_start_page_shows_what_is_said():
    shares = json.loads((ROOT / "book/experiments/pong_sign.json").read_text())["results"]["after"]
    assert shares["flipped"] < 0.5 < shares["as_is"], "with its sign flipped, it learns to lose"


@needs_the_book
def test_no_page_shows_a_warning_or_a_place_in_memory():
    texts = {path.name: path.read_text(encoding="utf-8") for path in SITE.rglob("*.html")}
    assert [
        name
        for name, text in texts.items()
        if re.search(r"WARNING:|\bat 0x[0-9a-f]{6}|rel=.(?:preconnect|dns-prefetch)", text)
    ] == []


# Spelling


def misspelled(*paths):
    """List the known misspellings in files; pyproject.toml has the words that only look like one."""
    pytest.importorskip("codespell_lib")
    command = [sys.executable, "-m", "codespell_lib", "--toml", ROOT / "pyproject.toml", *paths]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_a_misspelling_is_found(tmp_path):
    (tmp_path / "a.md").write_text("What I recieve: the Frobenius norm, fro.")  # codespell:ignore
    (finding,) = misspelled(tmp_path)
    assert "recieve ==> receive" in finding  # codespell:ignore


def test_what_people_read_is_spelled_right():
    sources = sorted((ROOT / "src").rglob("*.py")) + sorted((ROOT / "experiments").glob("*.ipynb"))
    prose = [p for p in (ROOT / "book").rglob("*.md") if "experiments" not in p.parts]
    assert misspelled(*prose, *sources, *ROOT.glob("*.md")) == []
