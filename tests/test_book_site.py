"""What finishes the book's pages, and the finished site as files: links, anchors, images."""

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

pytest.importorskip("sphinx")
pytest.importorskip("tinycss2")

from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from fontTools.ttLib import TTFont

from gradtricks.lab.pages import images, signatures, trimming

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / "_build" / "html"
needs_the_book = pytest.mark.skipif(
    not SITE.is_dir(), reason="the book hasn't been built; `make book` builds it"
)


# Weight


@pytest.mark.parametrize(
    ("style", "left"),
    [
        (".used{color:red}", ".used{color:red}"),
        (".gone{color:red}", ""),
        (".used .gone, #used a{top:0}", "#used a{top:0}"),
        ("#gone{top:0}", ""),
        ("a:not(.gone), p{top:0}", "a:not(.gone),p{top:0}"),
        (":is(.gone, a){top:0}", ":is(.gone, a){top:0}"),
        ('[class*="gone"]{top:0}', '[class*="gone"]{top:0}'),
        ("@media print{.gone{top:0}}", ""),
        ("@media print{.gone{top:0}.used{top:0}}", "@media print{.used{top:0}}"),
        ("@font-face{src:url(a.woff2)}", "@font-face{src:url(a.woff2)}"),
        ("@keyframes turn{from{top:0}}", "@keyframes turn{from{top:0}}"),
        ("/*! licence */a{top:0}/* why */", "/*! licence */a{top:0}"),
    ],
)
def test_only_rules_that_may_apply_are_left(style, left):
    assert trimming.trim_style(style, {"used"}.__contains__).replace("\n", "") == left


def write_font(path):
    """Make a font with the letters a and b and a picture in the private area."""
    glyphs = {"a": 0x61, "b": 0x62, "icon": 0xF001}
    builder = FontBuilder(1000, isTTF=True)
    builder.setupGlyphOrder([".notdef", *glyphs])
    builder.setupCharacterMap({code: name for name, code in glyphs.items()})
    pen = TTGlyphPen(None)
    pen.moveTo((0, 0))
    pen.lineTo((500, 0))
    pen.lineTo((0, 500))
    pen.closePath()
    builder.setupGlyf(dict.fromkeys([".notdef", *glyphs], pen.glyph()))
    builder.setupHorizontalMetrics(dict.fromkeys([".notdef", *glyphs], (600, 0)))
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    builder.setupNameTable({"familyName": "Test", "styleName": "Regular"})
    builder.setupOS2()
    builder.setupPost()
    builder.font.flavor = "woff2"
    builder.save(path)


@pytest.fixture
def site(tmp_path):
    """A page with a script, a style sheet and fonts."""
    site = tmp_path / "site"
    (site / "_static").mkdir(parents=True)
    (site / "index.html").write_text(
        '<p class="shown">caf&eacute;</p><script src="_static/a.js?v=1"></script>'
        '<script src="searchindex.js"></script>'
    )
    (site / "_static" / "a.js").write_text("p.classList.add('added'); p.classList.add(`tip-${place}`)")
    (site / "_static" / "unloaded.js").write_text("'unloaded'")
    (site / "searchindex.js").write_text("'indexed'")
    rules = [f".{name}{{top:0}}" for name in ("shown", "added", "tip-left", "unloaded", "indexed")]
    (site / "_static" / "a.css").write_text("\n".join([*rules, 'i::before{content:"\\f001"}']))
    write_font(site / "_static" / "a.woff2")
    return site


def test_rules_stay_for_what_pages_hold_and_loaded_scripts_mention(site):
    trimming.trim(site)
    style = (site / "_static" / "a.css").read_text()
    assert re.findall(r"^\.([\w-]+)", style, re.MULTILINE) == ["shown", "added", "tip-left"]


def characters_of(path):
    with TTFont(path) as font:
        return set(font.getBestCmap())


def test_fonts_keep_what_pages_and_style_sheets_show(site):
    font = site / "_static" / "a.woff2"
    trimming.trim(site)
    # Letters stay whether they are shown or not: a search shows any of them.
    assert characters_of(font) == {0x61, 0x62, 0xF001}
    (site / "_static" / "a.css").write_text("")
    trimming.trim(site)
    assert characters_of(font) == {0x61, 0x62}


def test_a_trimmed_site_stays_the_same(site):
    trimming.trim(site)
    before = {path: path.read_bytes() for path in site.rglob("*") if path.is_file()}
    trimming.trim(site)
    assert {path: path.read_bytes() for path in site.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ('<svg xmlns="x" width="432pt" height="288pt">', (576, 384)),
        ('<?xml version="1.0"?>\n<svg height="1"\n width="90" height="20px">', (90, 20)),
        ('<svg viewBox="0 0 9 9">', None),
    ],
)
def test_an_image_says_its_size(tmp_path, text, size):
    (tmp_path / "a.svg").write_text(text)
    assert images.size_of(tmp_path / "a.svg") == size


def test_only_svgs_that_are_there_have_a_size(tmp_path):
    (tmp_path / "a.png").write_bytes(b"\x89PNG")
    assert images.size_of(tmp_path / "a.png") is None
    assert images.size_of(tmp_path / "b.svg") is None


def test_the_lines_of_a_long_signature_are_no_definitions():
    argument, rest = '<em class="sig-param">x</em>,', "<dl><dd>kept</dd></dl>"
    context = {"body": f"<dt>f(<dl>\n<dd>{argument}</dd>\n</dl>)</dt>{rest}"}
    signatures._lines(None, "", "", context, None)
    assert context["body"] == f'<dt>f(<span class="sig-line">{argument}</span>\n)</dt>{rest}'


# Links


class _Page(HTMLParser):
    """Collect what a page links to, what can be linked to on it, and images without a text."""

    def __init__(self, path):
        super().__init__()
        self.links, self.anchors, self.silent = [], set(), []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        self.links += [given[name] for name in ("href", "src", "data-src") if name in given]
        if tag == "img" and not given.get("alt", "").strip():
            self.silent.append(given.get("src", ""))


def dead_links(site):
    """List the links within a site that lead nowhere, and the images without a text: (page, link)."""
    site = site.resolve()
    paths = [path for path in sorted(site.rglob("*.html")) if path.relative_to(site).parts[0] != "_static"]
    pages = {path: _Page(path) for path in paths}
    found = []
    for path, page in pages.items():
        name = str(path.relative_to(site))
        found += [(name, f"no alt: {source}") for source in page.silent]
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchor = unquote(parts.fragment)
            there = target.is_file() and target.is_relative_to(site)
            if not there or (anchor and target in pages and anchor not in pages[target].anchors):
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
    assert [link for _, link in dead_links(tmp_path)] == [
        "no alt: b.html",
        "#gone",
        "b.html#gone",
        "gone.ipynb",
        "gone.svg",
        "../c.html",
        "gone.css",
    ]


@needs_the_book
def test_every_link_of_the_book_leads_somewhere_and_every_image_has_a_text():
    assert dead_links(SITE) == []


# Spelling


def misspelled(*paths):
    """List the known misspellings in files; pyproject.toml has the words that only look like one."""
    pytest.importorskip("codespell_lib")
    command = [
        sys.executable,
        "-m",
        "codespell_lib",
        "--toml",
        str(ROOT / "pyproject.toml"),
        *map(str, paths),
    ]
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
