"""The book as one PDF: what is put together, and what Chromium makes of it."""

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("bs4")
pytest.importorskip("pypdf")

import pypdf

from chromium import needs_chromium
from gradtricks.book import pdf
from gradtricks.book.drawings import drawn
from gradtricks.book.graphs import read_panels
from gradtricks.book.site import BuildError
from gradtricks.cli import app

ROOT = Path(__file__).resolve().parents[2]

CONTENTS = """\
format: jb-book
root: index
parts:
- caption: One
  chapters:
  - file: first
    sections:
    - file: experiments/first-torch
- caption: Two
  chapters:
  - file: api/index
    sections: [{file: api/first}]
"""
PAGE = """<!DOCTYPE html><html><head><title>Book</title><script>alert(1)</script>
<link rel="stylesheet" href="{up}_static/style.css"></head><body><nav>aside</nav>
<article class="bd-article"><section id="top"><h1>{title}<a class="headerlink" href="#top">#</a></h1>
<input id="tab-0" name="set-0" type="radio"><label for="tab-0">PyTorch</label>
<a href="#top">up</a> <a href="{up}index.html">home</a> <a href="{up}api/first.html#top">deep</a>
<a href="{up}experiments/first-torch.html">run</a> <a href="https://example.org/a#b">out</a>
<img src="{up}_images/one.svg" loading="lazy" alt="one">
<details><summary>Solution</summary>The solution.</details>
<button>Copy</button></section></article></body></html>"""


@pytest.fixture
def site(tmp_path):
    """Return the folder of a small site whose sources are beside it."""
    (tmp_path / "book").mkdir()
    (tmp_path / "book" / "_toc.yml").write_text(CONTENTS)
    site = tmp_path / "_build" / "html"
    for page in ("index", "first", "experiments/first-torch", "api/index", "api/first"):
        path = site / f"{page}.html"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(PAGE.format(title=f"Title of {page}", up="../" * page.count("/")))
    return site


def test_chapters_are_printed_in_order_without_executed_pages(site):
    assert pdf.chapters(site.parents[1] / "book") == ["index", "first", "api/index", "api/first"]


def test_links_stay_within_the_document_and_names_stay_apart(site):
    soup = pdf.BeautifulSoup(pdf.assemble(site, ["index", "api/first"]), "html.parser")
    articles = soup.select("article")
    assert [article["id"] for article in articles] == ["index", "api-first"]
    assert [section["id"] for section in soup.select("section")] == ["index--top", "api-first--top"]
    links = {a.text: a.get("href") for a in articles[1].select("a")}
    assert links == {
        "up": "#api-first--top",
        "home": "#index",
        "deep": "#api-first--top",
        "run": None,
        "out": "https://example.org/a#b",
    }
    tab, label = articles[0].input, articles[0].label
    assert (tab["id"], tab["name"], label["for"]) == ("index--tab-0", "index--set-0", "index--tab-0")


def test_screen_controls_are_dropped_and_folds_are_open(site):
    text = pdf.assemble(site, ["index", "api/first"])
    assert [word for word in ("alert", "aside", "Copy", "headerlink", "loading") if word in text] == []
    soup = pdf.BeautifulSoup(text, "html.parser")
    assert all("open" in details.attrs for details in soup.select("details"))
    assert {image["src"] for image in soup.select("img")} == {(site / "_images" / "one.svg").as_uri()}
    assert soup.link["href"] == (site / "_static" / "style.css").as_uri()


def test_a_page_that_is_not_there_is_named(site, tmp_path):
    (site / "first.html").unlink()
    with pytest.raises(BuildError, match=r"got no first, later; remedy: gradtricks book"):
        pdf.print_pdf(site, ["index", "first", "later"], tmp_path / "book.pdf")


def test_without_a_browser_the_remedy_is_said(site, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError, match="remedy: install Chromium"):
        pdf.print_pdf(site, ["index"], tmp_path / "book.pdf")


def test_a_browser_that_fails_leaves_the_old_file(site, tmp_path, monkeypatch):
    browser = tmp_path / "bin" / "chromium"
    browser.parent.mkdir()
    browser.write_text("#!/bin/sh\necho no display >&2\nexit 3\n")
    browser.chmod(0o755)
    monkeypatch.setenv("PATH", str(browser.parent))
    target = tmp_path / "book.pdf"
    target.write_text("old")
    with pytest.raises(BuildError, match="got exit code 3:\nno display"):
        pdf.print_pdf(site, ["index"], target)
    assert target.read_text() == "old"
    browser.write_text("#!/bin/sh\nexec /bin/sleep 60\n")
    monkeypatch.setattr(pdf, "_LONGEST_S", 0.5)
    with pytest.raises(BuildError, match=r"to print within 0\.5 s"):
        pdf.print_pdf(site, ["index"], target)
    browser.write_text("#!/bin/sh\nexit 0\n")
    monkeypatch.setattr(pdf, "_LONGEST_S", 60)
    with pytest.raises(BuildError, match="got exit code 0"):
        pdf.print_pdf(site, ["index"], target)


@needs_chromium
def test_the_command_prints_the_chapters_with_bookmarks_links_and_drawings(site, monkeypatch):
    monkeypatch.chdir(site.parents[1])
    drawing = drawn(read_panels(["x <1- [sigmoid] <1- y <1- [square] <1- z <1- [loss] <1- L"]), "a chain")
    first = site / "first.html"
    first.write_text(first.read_text().replace("<details>", f"{drawing}<details>"))
    (site / "_static").mkdir()
    shutil.copyfile(ROOT / "book" / "_assets" / "graph.css", site / "_static" / "style.css")
    answer = CliRunner().invoke(app, ["pdf"])
    assert answer.exit_code == 0, answer.output
    reader = pypdf.PdfReader(site.parent / "gradtricks.pdf")
    titles = [mark["/Title"] for mark in reader.outline if not isinstance(mark, list)]
    assert titles == [f"Title of {page}" for page in ("index", "first", "api/index", "api/first")]
    text = "".join(page.extract_text() for page in reader.pages)
    assert text.count("The solution.") == 4
    assert drawing.count("sigmoid") == 2  # once for phones
    assert text.count("sigmoid") == 1
    links = [link.get_object() for page in reader.pages for link in page.get("/Annots", ())]
    within = [link for link in links if "/Dest" in link or link.get("/A", {}).get("/S") == "/GoTo"]
    assert len(within) == 12


@needs_chromium
def test_both_tabs_of_the_book_are_printed(tmp_path):
    built = ROOT / "_build" / "html"
    if not (built / "scaling.html").is_file():
        pytest.skip("the book isn't built")
    pdf.print_pdf(built, ["scaling"], tmp_path / "scaling.pdf")
    text = "".join(page.extract_text() for page in pypdf.PdfReader(tmp_path / "scaling.pdf").pages)
    assert "gradtricks.torch" in text
    assert "gradtricks.tensorflow" in text
