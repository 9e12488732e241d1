"""The articles of finished pages, for what else is made of them: which there are, and where links lead."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml
from bs4 import BeautifulSoup, Tag

from gradtricks.lab.pages.building import BuildError

_EXECUTED = "experiments/"  # notebooks: hundreds of pages that are there to be run
_FOR_THE_SCREEN = ".headerlink, script, button, dialog, .prev-next-footer"


def children(entry: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Go through what stands right below an entry of the table of contents.

    Args:
        entry: What ``_toc.yml`` says, or a part or a page of it.

    Yields:
        Parts, which have a ``caption``, or pages, which have a ``file``.
    """
    for kind in ("parts", "chapters", "sections"):
        yield from entry.get(kind, ())


def chapters(book: Path) -> list[str]:
    """List the pages that are printed, in the order of the table of contents.

    Args:
        book: Folder of the sources.

    Returns:
        Their names, such as ``api/masking``; executed notebooks and the pages of sweeps aren't among them.
    """
    contents = yaml.safe_load((book / "_toc.yml").read_text(encoding="utf-8"))
    return [contents["root"], *(page for page in _files(contents) if not page.startswith(_EXECUTED))]


def read_articles(site: Path, pages: Sequence[str]) -> dict[str, Tag]:
    """Parse the articles of pages, without what only a screen has a use for, such as buttons and scripts.

    Args:
        site: Folder of the finished pages.
        pages: Their names.

    Returns:
        The articles, by name and in the order of the names.

    Raises:
        BuildError: A page isn't there, or has no article.
    """
    missing = [page for page in pages if not (site / f"{page}.html").is_file()]
    if missing:
        raise BuildError(
            f"expected the finished book in {site}; got no {', '.join(missing)}; remedy: gradtricks book"
        )
    return {page: _article(site / f"{page}.html") for page in pages}


def follow(page: str, link: str) -> tuple[str, str] | None:
    """Find where a link leads.

    Args:
        page: Name of the page that has it.
        link: As it stands there.

    Returns:
        The name of a page, or the path of another file, and the fragment or "". None: it leaves the site.
    """
    parts = urlsplit(link)
    if parts.scheme:
        return None
    path = os.path.normpath(Path(page).parent / parts.path) if parts.path else page
    return path.removesuffix(".html"), parts.fragment


def _files(entry: Mapping[str, Any]) -> Iterator[str]:
    for child in children(entry):
        if "file" in child:
            yield child["file"]
        yield from _files(child)


def _article(path: Path) -> Tag:
    page = BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")
    found = page.select_one("article.bd-article")
    if found is None:
        raise BuildError(f"expected an article in {path}; got none; remedy: gradtricks book")
    for element in found.select(_FOR_THE_SCREEN):
        element.decompose()
    for image in found.select("[loading]"):
        del image["loading"]
    return found
