"""The book as an EPUB: what is in it, that all its parts fit together, and that it is the same each time."""

import re
from collections import Counter
from pathlib import Path
from posixpath import dirname, join, normpath
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree
from zipfile import ZIP_STORED, ZipFile

import pytest
from typer.testing import CliRunner

pytest.importorskip("bs4")

from gradtricks.lab.cli import app
from gradtricks.lab.pages.building import BuildError
from gradtricks.lab.pages.epub import pack_epub

ROOT = Path(__file__).resolve().parents[1]
XHTML, EPUB = "{http://www.w3.org/1999/xhtml}", "{http://www.idpf.org/2007/ops}"
OPF, DC = "{http://www.idpf.org/2007/opf}", "{http://purl.org/dc/elements/1.1/}"
MATHML = "{http://www.w3.org/1998/Math/MathML}"
CONTENTS = """\
format: jb-book
root: index
parts:
- caption: One & all
  chapters:
  - file: first
    sections:
    - file: experiments/first-torch
- caption: Only runs
  chapters:
  - file: experiments/second-torch
- caption: Two
  chapters:
  - file: api/index
    sections: [{file: api/first}]
"""
CITATION = """\
title: "Tricks: a & b"
authors: [{name: The authors}, {given-names: Ada, family-names: Lovelace}]
version: 1.2.3
date-released: 2026-01-02
"""
PAGE = """<!DOCTYPE html><html><head><title>Book</title><script>alert(1)</script></head><body><nav>aside</nav>
<article class="bd-article"><section id="top">
<h1>{title} &amp; <code>a&lt;b</code><a class="headerlink" href="#top">#</a></h1>
<input checked id="tab-0" name="set" type="radio"><label class="sd-tab-label" for="tab-0">PyTorch</label>
<div id="tab-0-content">torch</div>
<input id="tab-1" name="set" type="radio"><label class="sd-tab-label" for="tab-1">TensorFlow</label>
<div id="tab-1-content">tf</div>
<a href="#top">up</a> <a href="{up}index.html">home</a> <a href="{up}api/first.html#top">deep</a>
<a href="{up}experiments/first-torch.html">run</a> <a download="" href="{up}_downloads/1/a.py">file</a>
<a href="https://example.org/a#b">out</a>
<figure class="explorable"><script type="application/json">{{"a": 1}}</script>
<img src="{up}_images/one.svg" loading="lazy" alt="one"></figure><br>
<span class="katex"><span class="katex-mathml"><math xmlns="http://www.w3.org/1998/Math/MathML"><semantics>
<mi>x</mi><annotation encoding="application/x-tex"> x &lt; 1 </annotation></semantics></math></span>
<span class="katex-html">x<svg></svg></span></span>
<details><summary>Solution<svg></svg></summary>The solution.</details>
<button>Copy</button></section></article></body></html>"""


@pytest.fixture
def site(tmp_path):
    """Return the folder of a small site whose sources are beside it."""
    (tmp_path / "book").mkdir()
    (tmp_path / "book" / "_toc.yml").write_text(CONTENTS)
    (tmp_path / "CITATION.cff").write_text(CITATION)
    site = tmp_path / "_build" / "html"
    files = {"_images/one.svg": '<svg xmlns="http://www.w3.org/2000/svg"/>', "_static/pygments.css": "p {}"}
    files |= {"_static/card.png": "PNG", "_downloads/1/a.py": "1", "_images/unused.svg": "<svg/>"}
    for page in ("index", "first", "experiments/first-torch", "api/index", "api/first"):
        files[f"{page}.html"] = PAGE.format(title=f"Title of {page}", up="../" * page.count("/"))
    for name, text in files.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)
    return site


def pack(site):
    target = site.parent / "tricks.epub"
    pack_epub(site.parents[1] / "book", site, target)
    return target


def parsed(xml):
    return ElementTree.fromstring(xml)  # noqa: S314  # written by the code under test


def faults(path):
    """List what an EPUB 3 may not be: as far as that can be seen without a schema."""
    with ZipFile(path) as archive:
        infos = archive.infolist()
        files = {info.filename: archive.read(info) for info in infos}
    found = [f"twice: {name}" for name, n in Counter(i.filename for i in infos).items() if n > 1]
    first = infos[0]
    if (first.filename, first.compress_type, first.extra) != ("mimetype", ZIP_STORED, b""):
        found.append("mimetype isn't the first, stored")
    if files["mimetype"] != b"application/epub+zip":
        found.append("mimetype is another one")
    container = parsed(files["META-INF/container.xml"])
    package = container.find(".//{*}rootfile").get("full-path")
    found += package_faults(package, files)
    pages = {name: parsed(data) for name, data in files.items() if name.endswith(".xhtml")}
    anchors = {name: [e.get("id") for e in page.iter() if e.get("id")] for name, page in pages.items()}
    for name, page in pages.items():
        found += [f"{name} has #{anchor} twice" for anchor, n in Counter(anchors[name]).items() if n > 1]
        found += [
            f"{name} has a {tag}"
            for tag in ("script", "input", "svg")
            if page.find(f".//{{*}}{tag}") is not None
        ]
        for element in page.iter():
            if element.tag == f"{XHTML}img" and not element.get("alt"):
                found.append(f"{name} has an image without a text")
            for attribute in {"src", "href"} & set(element.keys()):
                link = urlsplit(element.get(attribute))
                if link.scheme or link.netloc:
                    if attribute == "src" or element.tag != f"{XHTML}a":
                        found.append(f"{name} fetches {link.geturl()}")
                    continue
                target = normpath(join(dirname(name), unquote(link.path))) if link.path else name
                if target not in files or (
                    link.fragment and unquote(link.fragment) not in anchors.get(target, ())
                ):
                    found.append(f"{name} leads nowhere: {link.geturl()}")
    return found


def package_faults(name, files):
    package, folder = parsed(files[name]), dirname(name)
    said = {
        tag: [e.text for e in package.iter(f"{DC}{tag}")]
        for tag in ("identifier", "title", "language", "creator")
    }
    found = [f"no {tag}" for tag, texts in said.items() if not all(texts) or not texts]
    names = {e.get("id") for e in package.iter(f"{DC}identifier")}
    if package.get("unique-identifier") not in names:
        found.append("no unique identifier")
    changed = [e.text for e in package.iter(f"{OPF}meta") if e.get("property") == "dcterms:modified"]
    if len(changed) != 1 or not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", changed[0]):
        found.append(f"changed when? {changed}")
    items = {item.get("id"): item for item in package.iter(f"{OPF}item")}
    listed = {normpath(join(folder, item.get("href"))): item for item in items.values()}
    there = set(files) - {"mimetype", "META-INF/container.xml", name}
    found += [f"not both listed and there: {other}" for other in sorted(there ^ set(listed))]
    types = {
        ".xhtml": "application/xhtml+xml",
        ".css": "text/css",
        ".png": "image/png",
        ".svg": "image/svg+xml",
    }
    for path, item in listed.items():
        if item.get("media-type") != types[Path(path).suffix]:
            found.append(f"{path} is said to be {item.get('media-type')}")
        if b"<math" in files.get(path, b"") and "mathml" not in item.get("properties", ""):
            found.append(f"{path}: formulas aren't announced")
    order = [items[ref.get("idref")].get("href") for ref in package.iter(f"{OPF}itemref")]
    if sorted(order) != sorted(i.get("href") for i in items.values() if i.get("href").endswith(".xhtml")):
        found.append("the order leaves pages out")
    for wanted in ("nav", "cover-image"):
        if sum(wanted in item.get("properties", "").split() for item in items.values()) != 1:
            found.append(f"not one {wanted}")
    return found


def parse(path, name):
    with ZipFile(path) as archive:
        return parsed(archive.read(f"EPUB/{name}"))


def text_of(element):
    return "".join(element.itertext())


def test_all_parts_fit_together(site):
    assert faults(pack(site)) == []


@pytest.mark.parametrize(
    ("name", "old", "new", "fault"),
    [
        ("mimetype", "epub", "zip", "mimetype is another one"),
        ("EPUB/text/first.xhtml", "first.xhtml#top", "first.xhtml#bottom", "leads nowhere"),
        ("EPUB/text/first.xhtml", "<figure", '<figure id="top"', "has #top twice"),
        ("EPUB/text/first.xhtml", "_images/one.svg", "https://example.org/one.svg", "fetches https"),
        ("EPUB/text/first.xhtml", "<body>", "<body><script/>", "has a script"),
        ("EPUB/text/first.xhtml", 'alt="one"', "", "an image without a text"),
        ("EPUB/package.opf", "text/first.xhtml", "text/last.xhtml", "not both listed and there"),
        ("EPUB/package.opf", "T00:00:00Z", "", "changed when"),
        ("EPUB/package.opf", ' properties="nav"', "", "not one nav"),
        ("EPUB/package.opf", ' properties="mathml"', "", "formulas aren't announced"),
        ("EPUB/package.opf", '<itemref idref="file2"/>', "", "the order leaves pages out"),
    ],
)
def test_what_is_wrong_would_be_found(site, name, old, new, fault):
    right = pack(site)
    wrong = right.with_name("wrong.epub")
    with ZipFile(right) as source, ZipFile(wrong, "w") as target:
        for info in source.infolist():
            data = source.read(info)
            target.writestr(info, data.replace(old.encode(), new.encode()) if info.filename == name else data)
    assert any(fault in found for found in faults(wrong))


def test_the_contents_have_the_parts_and_what_is_below_them(site):
    nav = parse(pack(site), "nav.xhtml").find(f".//{XHTML}nav")
    assert nav.get(f"{EPUB}type") == "toc"

    def tree(listed):
        return [
            (text_of(item[0]), item[0].get("href"), *(tree(below) for below in item[1:])) for item in listed
        ]

    title = "Title of {} & a<b".format
    assert tree(nav.find(f"{XHTML}ol")) == [
        (title("index"), "text/index.xhtml"),
        ("One & all", None, [(title("first"), "text/first.xhtml")]),
        (
            "Two",
            None,
            [(title("api/index"), "text/api/index.xhtml", [(title("api/first"), "text/api/first.xhtml")])],
        ),
    ]


def test_a_page_shows_both_tabs_formulas_as_mathml_and_no_more_than_can_be_read(site):
    page = parse(pack(site), "text/api/first.xhtml")
    assert [text_of(p) for p in page.iter(f"{XHTML}p") if p.get("class") == "tab"] == [
        "PyTorch",
        "TensorFlow",
    ]
    formula = page.find(f".//{MATHML}math")
    assert formula.get("alttext") == "x < 1"
    assert [part.tag for part in formula.iter()] == [f"{MATHML}{tag}" for tag in ("math", "semantics", "mi")]
    shown = text_of(page.find(f".//{XHTML}article"))
    assert [word for word in ("alert", "aside", "Copy", "#", '"a"') if word in shown] == []
    assert page.find(f".//{XHTML}img").attrib == {"src": "../_images/one.svg", "alt": "one"}


def test_links_lead_to_chapters_and_out_and_else_are_plain_text(site):
    page = parse(pack(site), "text/api/first.xhtml")
    assert {link.text: link.get("href") for link in page.iter(f"{XHTML}a")} == {
        "up": "first.xhtml#top",
        "home": "../index.xhtml",
        "deep": "first.xhtml#top",
        "out": "https://example.org/a#b",
    }
    assert "run file" in text_of(page)


def test_title_authors_and_day_are_those_of_the_citation(site):
    path = pack(site)
    package = parse(path, "package.opf")
    assert [e.text for e in package.iter(f"{DC}title")] == ["Tricks: a & b"]
    assert [e.text for e in package.iter(f"{DC}creator")] == ["The authors", "Ada Lovelace"]
    assert [e.text for e in package.iter(f"{OPF}meta")] == ["2026-01-02T00:00:00Z"]
    assert "The authors, Ada Lovelace, version 1.2.3, 2026-01-02" in text_of(parse(path, "cover.xhtml"))


def test_the_same_site_makes_the_same_bytes(site, monkeypatch):
    first = pack(site).read_bytes()
    monkeypatch.setattr("time.time", lambda: 2e9)
    monkeypatch.setattr("time.localtime", lambda *_: (2033, 5, 18, 3, 33, 20, 2, 138, 0))
    assert pack(site).read_bytes() == first


def test_a_page_that_is_not_there_or_is_none_is_named_and_the_old_file_stays(site):
    target = pack(site)
    old = target.read_bytes()
    (site / "first.html").write_text("<html></html>")
    with pytest.raises(
        BuildError, match=r"expected an article in .*first\.html; got none; remedy: gradtricks"
    ):
        pack(site)
    (site / "first.html").unlink()
    with pytest.raises(BuildError, match="got no first; remedy: gradtricks book"):
        pack(site)
    assert target.read_bytes() == old


def test_the_command_packs_the_chapters(site, monkeypatch):
    monkeypatch.chdir(site.parents[1])
    answer = CliRunner().invoke(app, ["epub"])
    assert answer.exit_code == 0, answer.output
    assert "_build/gradtricks.epub" in answer.output.replace("\n", "")
    assert faults(site.parent / "gradtricks.epub") == []


def test_the_book_fits_together_with_both_frameworks(tmp_path):
    built, target = ROOT / "_build" / "html", tmp_path / "book.epub"
    if not (built / "scaling.html").is_file():
        pytest.skip("the book isn't built")
    pack_epub(ROOT / "book", built, target)
    assert faults(target) == []
    text = text_of(parse(target, "text/scaling.xhtml"))
    assert "gradtricks.torch" in text
    assert "gradtricks.tensorflow" in text
