"""The book as one PDF: the articles of its finished pages in one document, which Chromium prints."""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

from bs4 import BeautifulSoup, Tag

from gradtricks.lab.pages.articles import follow, read_articles
from gradtricks.lab.pages.building import BuildError

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
_FLAGS = (
    "--headless",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-sync",
)
_LONGEST_S = 600
_REFERRING = ("id", "for", "name", "aria-labelledby", "aria-describedby")


def print_pdf(site: Path, pages: Sequence[str], target: Path) -> None:
    """Print pages of a finished site into one PDF, with bookmarks and with links that stay within it.

    All tabs are shown and all that is folded is open.

    Args:
        site: Folder of the finished pages.
        pages: Their names, in order.
        target: File to write; what is there is replaced when the new one is finished.

    Raises:
        BuildError: A page isn't there, there is no Chromium, or it didn't print.
    """
    text = assemble(site, pages)
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise BuildError(
            f"expected a browser that prints, one of {', '.join(BROWSERS)}; got none on the path; "
            "remedy: install Chromium"
        )
    with TemporaryDirectory() as folder:
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
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = target.with_name(f".{target.name}.new")
        shutil.copyfile(printed, unfinished)
        unfinished.replace(target)


def assemble(site: Path, pages: Sequence[str]) -> str:
    """Put the articles of pages into one document.

    Args:
        site: Folder of the finished pages.
        pages: Their names, in order; the first one lends its head, with title and style sheets.

    Returns:
        HTML that needs nothing but the site's own files, wherever it lies.

    Raises:
        BuildError: A page isn't there.
    """
    anchors = {page: page.replace("/", "-") for page in pages}
    articles = read_articles(site, pages)
    for page, article in articles.items():
        _fit_in(article, site, page, anchors)
    first = BeautifulSoup((site / f"{pages[0]}.html").read_text(encoding="utf-8"), "html.parser")
    for element in first.select("head script"):
        element.decompose()
    for element in first.select("head link[href]"):
        element["href"] = _uri(site, pages[0], str(element["href"]))
    bodies = "\n".join(map(str, articles.values()))
    return f'<!DOCTYPE html>\n<html lang="en" data-theme="light">{first.head}<body>{bodies}</body></html>\n'


def _fit_in(article: Tag, site: Path, page: str, anchors: Mapping[str, str]) -> None:
    for element in article.find_all(True):
        # What is unique on its page isn't in the whole book.
        for attribute in set(_REFERRING) & set(element.attrs):
            words = str(element[attribute]).split()
            element[attribute] = " ".join(f"{anchors[page]}--{word}" for word in words)
        if element.name == "details":
            element["open"] = ""
        if "src" in element.attrs:
            element["src"] = _uri(site, page, str(element["src"]))
        if "href" in element.attrs:
            _lead_within(element, page, anchors)
    article["id"] = anchors[page]


def _uri(site: Path, page: str, link: str) -> str:
    parts = urlsplit(link)
    return link if parts.scheme else ((site / page).parent / parts.path).resolve().as_uri()


def _lead_within(element: Tag, page: str, anchors: Mapping[str, str]) -> None:
    """Turn a link to another page into one within the document; where that isn't in it, into plain text."""
    link = follow(page, str(element["href"]))
    if link is None:
        return
    path, fragment = link
    if path not in anchors:
        del element["href"]
        return
    element["href"] = f"#{anchors[path]}" + (f"--{fragment}" if fragment else "")
