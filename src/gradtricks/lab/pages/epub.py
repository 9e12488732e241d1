"""The book as an EPUB: the articles of its finished pages, each a file of XHTML, packed together."""

import uuid
from collections.abc import Mapping
from html import escape
from pathlib import Path
from posixpath import dirname, join, normpath, relpath
from typing import Any
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo

import yaml
from bs4 import Tag

from gradtricks.lab.pages.articles import chapters, children, follow, read_articles
from gradtricks.lab.pages.citing import authors_of

_TYPES = {".css": "text/css", ".png": "image/png", ".svg": "image/svg+xml", ".xhtml": "application/xhtml+xml"}
_COVER, _COLOURS = "_static/card.png", "_static/pygments.css"  # of the site, beside the pages
_CONTAINER = """\
<?xml version="1.0" encoding="utf-8"?>
<container version="1.0" xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>
<rootfile full-path="EPUB/package.opf" media-type="application/oebps-package+xml"/>
</rootfiles></container>
"""
_PACKAGE = """\
<?xml version="1.0" encoding="utf-8"?>
<package xmlns="http://www.idpf.org/2007/opf" version="3.0" unique-identifier="book" xml:lang="en">
<metadata xmlns:dc="http://purl.org/dc/elements/1.1/">
<dc:identifier id="book">{identifier}</dc:identifier>
<dc:title>{title}</dc:title>
{authors}
<dc:language>en</dc:language>
<meta property="dcterms:modified">{day}T00:00:00Z</meta>
</metadata>
<manifest>
{items}
</manifest>
<spine>
{order}
</spine>
</package>
"""
# The style sheet that colours code does so below this theme.
_PAGE = """\
<?xml version="1.0" encoding="utf-8"?>
<!DOCTYPE html>
<html xmlns="http://www.w3.org/1999/xhtml" xmlns:epub="http://www.idpf.org/2007/ops" lang="en" xml:lang="en" \
data-theme="light">
<head><title>{title}</title>{styles}</head>
<body>{body}</body>
</html>
"""
# Fonts, colours and margins are the reader's own.
_STYLE = """\
h1, h2, h3, h4, dt, summary, .rubric, .tab { break-after: avoid; }
figure, tr, .admonition { break-inside: avoid; }
figure { margin: 1em 0; }
nav ol { list-style: none; }
dd, dd p, td p, th p, .simple p { margin-bottom: 0; margin-top: 0; }
img { max-width: 100%; height: auto; }
code, pre { font-size: .85em; overflow-wrap: anywhere; white-space: pre-wrap; }
a { overflow-wrap: anywhere; }
pre { padding: .4em; }
div.math { overflow-x: auto; }
pre code, h1 code, h2 code, h3 code { font-size: 1em; }
table { border-collapse: collapse; }
td, th { border-bottom: 1px solid #8888; font-size: .85em; padding: .2em .4em; text-align: start; }
.tab, .admonition-title, .rubric, summary { font-weight: bold; }
.admonition, details { border-left: .25em solid #15808f; margin: 1em 0; padding: .1em .8em; }
.eqno { float: right; }
.sig-prename, .sig-line { display: block; }
.sig-line { padding-left: 2em; }
.citation > .label, .citation > .backrefs { display: none; }
"""


def pack_epub(book: Path, site: Path, target: Path) -> None:
    """Pack the chapters of a finished site into one EPUB 3; the same site makes the same file.

    All tabs are shown. What is folded stays so, and readers that know no folding show it open.

    Args:
        book: Folder of the sources; the CITATION.cff beside it says title, authors and day.
        site: Folder of the finished pages.
        target: File to write; what is there is replaced when the new one is finished.

    Raises:
        BuildError: A page isn't there.
    """
    pages = chapters(book)
    articles = read_articles(site, pages)
    for page, article in articles.items():
        _fit_in(article, page, pages)
    citation = yaml.safe_load((book.parent / "CITATION.cff").read_text(encoding="utf-8"))
    contents = yaml.safe_load((book / "_toc.yml").read_text(encoding="utf-8"))
    titles = {page: " ".join((found.h1 or found).get_text().split()) for page, found in articles.items()}
    images = {
        normpath(join(dirname(page), str(image["src"]))) for page in pages for image in articles[page]("img")
    }
    bodies = {"cover": ("Cover", _cover(citation)), "nav": ("Contents", _nav(contents, titles))}
    bodies |= {f"text/{page}": (titles[page], str(article)) for page, article in articles.items()}
    files = {f"{name}.xhtml": _page(name, *body) for name, body in bodies.items()}
    files["style.css"] = _STYLE.encode()
    files |= {f"text/{name}": (site / name).read_bytes() for name in sorted({*images, _COVER, _COLOURS})}
    files["package.opf"] = _package(citation, files)
    _write(target, {f"EPUB/{name}": data for name, data in files.items()})


def _fit_in(article: Tag, page: str, pages: list[str]) -> None:
    for formula in article.select("math"):  # readers that can't show it show its source
        formula["alttext"] = " ".join(source.get_text().strip() for source in formula.select("annotation"))
    for element in article.select(".katex-html, annotation, input, svg"):
        element.decompose()
    for label in article.select("label"):  # of a tab
        label.name, label.attrs = "p", {"class": "tab"}
    for link in article.select("a[href]"):
        path, fragment = follow(page, str(link["href"])) or (None, "")
        if path in pages:
            link["href"] = relpath(f"{path}.xhtml", dirname(page) or ".") + (fragment and f"#{fragment}")
        elif path is not None:
            link.unwrap()


def _page(name: str, title: str, body: str) -> bytes:
    styles = "".join(
        f'<link rel="stylesheet" type="text/css" href="{relpath(style, dirname(name) or ".")}"/>'
        for style in (f"text/{_COLOURS}", "style.css")
    )
    return _PAGE.format(title=escape(title), styles=styles, body=body).encode()


def _cover(citation: Mapping[str, Any]) -> str:
    authors = escape(", ".join(authors_of(citation)))
    about = f"{authors}, version {citation['version']}, {citation['date-released']}"
    return f'<section><img src="text/{_COVER}" alt="{escape(citation["title"])}"/><p>{about}</p></section>'


def _nav(contents: Mapping[str, Any], titles: Mapping[str, str]) -> str:
    items = _item(contents["root"], titles) + _items(contents, titles)
    return f'<nav epub:type="toc"><h1>Contents</h1><ol>\n{items}</ol></nav>'


def _items(entry: Mapping[str, Any], titles: Mapping[str, str]) -> str:
    """List what stands below an entry and is in the book; a part is a heading above its pages."""
    written = ""
    for child in children(entry):
        below = _items(child, titles)
        nested = below and f"<ol>\n{below}</ol>"
        if child.get("file") in titles:
            written += _item(child["file"], titles, nested)
        elif nested:
            written += f"<li><span>{escape(child['caption'])}</span>{nested}</li>\n"
    return written


def _item(page: str, titles: Mapping[str, str], nested: str = "") -> str:
    return f'<li><a href="text/{page}.xhtml">{escape(titles[page])}</a>{nested}</li>\n'


def _package(citation: Mapping[str, Any], files: Mapping[str, bytes]) -> bytes:
    special = {name: "mathml" for name, data in files.items() if b"<math" in data}
    special |= {"nav.xhtml": "nav", f"text/{_COVER}": "cover-image"}
    items, order = [], []
    for number, name in enumerate(files):
        kind, properties = (
            _TYPES[Path(name).suffix],
            f' properties="{special[name]}"' if name in special else "",
        )
        items.append(f'<item id="file{number}" href="{name}" media-type="{kind}"{properties}/>')
        if name.endswith(".xhtml"):
            order.append(f'<itemref idref="file{number}"/>')
    return _PACKAGE.format(
        identifier=uuid.uuid5(uuid.NAMESPACE_URL, citation["title"]).urn,
        title=escape(citation["title"]),
        authors="\n".join(f"<dc:creator>{escape(name)}</dc:creator>" for name in authors_of(citation)),
        day=citation["date-released"],
        items="\n".join(items),
        order="\n".join(order),
    ).encode()


def _write(target: Path, files: Mapping[str, bytes]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f".{target.name}.new")
    with ZipFile(unfinished, "w") as archive:
        # A ZipInfo of its own has no date of today. What kind of file it is must come first, as it is.
        archive.writestr(ZipInfo("mimetype"), "application/epub+zip", ZIP_STORED)
        for name, data in {"META-INF/container.xml": _CONTAINER.encode(), **files}.items():
            archive.writestr(ZipInfo(name), data, ZIP_DEFLATED)
    unfinished.replace(target)
