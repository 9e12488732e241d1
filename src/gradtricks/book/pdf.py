"""The book as one PDF: the articles of its finished pages in one document, which Chromium prints."""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

from bs4 import BeautifulSoup, Tag
from sphinx_external_toc.parsing import parse_toc_yaml

from gradtricks.book.site import BuildError

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
_FLAGS = [
    "--headless",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-sync",
]
_LONGEST_S = 600
_EXECUTED = "experiments/"  # notebooks: hundreds of pages that are there to be run
_FOR_THE_SCREEN = ".headerlink, script, button, dialog, .prev-next-footer"
_REFERRING = ("id", "for", "name", "aria-labelledby", "aria-describedby")


def chapters(book: Path) -> list[str]:
    """List the pages that are printed, in order: no executed notebooks, no sweeps."""
    return [page for page in parse_toc_yaml(book / "_toc.yml") if not page.startswith(_EXECUTED)]


def print_pdf(site: Path, pages: Sequence[str], target: Path) -> None:
    """Print pages of a finished site into one PDF, with bookmarks and with links that stay within it.

    All tabs are shown and all that is folded is open. A BuildError says that there is no Chromium, or that it
    didn't print; the file that is there is then left alone.
    """
    text = assemble(site, pages)
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise BuildError(
            f"expected a browser that prints, one of {', '.join(BROWSERS)}; got none on the path; "
            "remedy: install Chromium"
        )
    with TemporaryDirectory(dir=target.parent.absolute()) as folder:  # on one disk: the last step is one
        document, printed = Path(folder, "book.html"), Path(folder, "book.pdf")
        document.write_text(text, encoding="utf-8")
        command = [browser, *_FLAGS, f"--user-data-dir={folder}/profile", "--no-pdf-header-footer"]
        command += ["--generate-pdf-document-outline", f"--print-to-pdf={printed}", document.as_uri()]
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            command.insert(1, "--no-sandbox")  # Chromium refuses to sandbox what the superuser started
        try:
            done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_LONGEST_S)
        except subprocess.TimeoutExpired as error:
            raise BuildError(f"expected {browser} to print within {_LONGEST_S} s; it didn't") from error
        if done.returncode or not printed.is_file():
            raise BuildError(f"expected {browser} to print; got exit code {done.returncode}:\n{done.stderr}")
        printed.replace(target)


def assemble(site: Path, pages: Sequence[str]) -> str:
    """Put the articles of pages into one document, with the first one's head.

    It needs nothing but the site's own files, wherever it lies.
    """
    if missing := [page for page in pages if not (site / f"{page}.html").is_file()]:
        raise BuildError(
            f"expected the finished book in {site}; got no {', '.join(missing)}; remedy: gradtricks book"
        )
    texts = {page: (site / f"{page}.html").read_text(encoding="utf-8") for page in pages}
    parsed = {page: BeautifulSoup(text, "html.parser") for page, text in texts.items()}
    anchors = {page: page.replace("/", "-") for page in pages}
    bodies = [_fit_in(html, site, page, anchors) for page, html in parsed.items()]
    first = parsed[pages[0]]
    for element in first.select("head script"):
        element.decompose()
    for element in first.select("head link[href]"):
        element["href"] = _uri(site, pages[0], str(element["href"]))
    body = "\n".join(bodies)
    return f'<!DOCTYPE html>\n<html lang="en" data-theme="light">{first.head}<body>{body}</body></html>\n'


def _fit_in(html: BeautifulSoup, site: Path, page: str, anchors: Mapping[str, str]) -> str:
    """Make of a page's article a part of the document; leave out what only a screen has a use for."""
    article = html.select_one("article.bd-article")
    if article is None:
        raise BuildError(f"expected an article on {page}; got none; remedy: gradtricks book")
    for element in article.select(_FOR_THE_SCREEN):
        element.decompose()
    for element in article.find_all(True):
        # What is unique on its page isn't in the whole book.
        for attribute in set(_REFERRING) & set(element.attrs):
            words = str(element[attribute]).split()
            element[attribute] = " ".join(f"{anchors[page]}--{word}" for word in words)
        if element.name == "details":
            element["open"] = ""
        if "src" in element.attrs:
            element["src"] = _uri(site, page, str(element["src"]))
            element.attrs.pop("loading", None)
        if "href" in element.attrs:
            _lead_within(element, page, anchors)
    article["id"] = anchors[page]
    return str(article)


def _uri(site: Path, page: str, link: str) -> str:
    parts = urlsplit(link)
    return link if parts.scheme else ((site / page).parent / parts.path).resolve().as_uri()


def _lead_within(element: Tag, page: str, anchors: Mapping[str, str]) -> None:
    """Turn a link to another page into one within the document; where that isn't in it, into plain text."""
    parts = urlsplit(str(element["href"]))
    if parts.scheme:
        return
    path = os.path.normpath(Path(page).parent / parts.path) if parts.path else page
    anchor = anchors.get(path.removesuffix(".html"))
    if anchor is None:
        del element["href"]
        return
    element["href"] = f"#{anchor}" + (f"--{parts.fragment}" if parts.fragment else "")
