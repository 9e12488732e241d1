"""The feed of changes: an entry for each version in CHANGELOG.md."""

import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from markdown_it import MarkdownIt
from sphinx.application import Sphinx

__all__ = ["FEED", "Version", "as_atom", "read_versions", "setup"]

FEED = "feed.xml"
_PAGE = "changes"  # of the book, which shows the changelog to people
_HEADING = re.compile(r"^## \[(?P<version>[^\]]+)\](?: - (?P<day>\d{4}-\d{2}-\d{2}))?\s*$", re.MULTILINE)
_ATOM = "http://www.w3.org/2005/Atom"


@dataclass(frozen=True)
class Version:
    """A version that was released: its name, the day as ``YYYY-MM-DD``, and its changes in Markdown."""

    name: str
    day: str
    changes: str


def read_versions(changelog: str) -> Iterator[Version]:
    """Read the released versions of a changelog, in its order.

    Args:
        changelog: In the form of Keep a Changelog.

    Yields:
        What has a day. What isn't released yet has none, and readers of a feed see an entry only once.
    """
    found = list(_HEADING.finditer(changelog))
    ends = [following.start() for following in found[1:]] + [len(changelog)]
    for heading, end in zip(found, ends):
        if heading["day"]:
            yield Version(heading["version"], heading["day"], changelog[heading.end() : end].strip())


def as_atom(versions: list[Version], *, title: str, author: str, base: str) -> str:
    """Write a feed. It is the same for the same versions, whenever and wherever it is written.

    Args:
        versions: At least one, the latest first.
        title: Of the feed.
        author: Of the changes.
        base: Where the book is, ending with ``/``; or nothing, and links are relative to the feed.

    Returns:
        Atom, as XML.
    """
    feed = ElementTree.Element("feed", xmlns=_ATOM)
    _head(feed, title, f"{base}{_PAGE}.html", title, max(version.day for version in versions))
    ElementTree.SubElement(ElementTree.SubElement(feed, "author"), "name").text = author
    if base:
        ElementTree.SubElement(feed, "link", rel="self", href=f"{base}{FEED}")
    for version in versions:
        entry = ElementTree.SubElement(feed, "entry")
        name = f"{title} {version.name}"
        _head(entry, version.name, f"{base}{_PAGE}.html", name, version.day)
        ElementTree.SubElement(entry, "content", type="html").text = MarkdownIt().render(version.changes)
    ElementTree.indent(feed)
    text = ElementTree.tostring(feed, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n'


def _head(element: ElementTree.Element, title: str, link: str, identity: str, day: str) -> None:
    """Add what a feed and an entry both begin with; its identity stays when the book moves."""
    ElementTree.SubElement(element, "title").text = title
    ElementTree.SubElement(element, "link", rel="alternate", href=link)
    ElementTree.SubElement(element, "id").text = uuid.uuid5(uuid.NAMESPACE_URL, identity).urn
    ElementTree.SubElement(element, "updated").text = f"{day}T00:00:00Z"


def setup(app: Sphinx) -> None:
    """Write the feed when a site is finished, and tell its pages that there is one."""
    app.connect("html-page-context", _announce)
    app.connect("build-finished", _finish)


def _versions(app: Sphinx) -> list[Version]:
    path = Path(app.srcdir).parent / "CHANGELOG.md"
    return list(read_versions(path.read_text(encoding="utf-8"))) if path.is_file() else []


def _announce(app: Sphinx, name: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    context["feed"] = FEED if _versions(app) else None


def _finish(app: Sphinx, exception: Exception | None) -> None:
    versions = _versions(app)
    if exception is not None or app.builder.name != "html" or not versions:
        return
    base = f"{app.config.html_baseurl.rstrip('/')}/" if app.config.html_baseurl else ""
    text = as_atom(versions, title=app.config.project, author=app.config.author, base=base)
    Path(app.outdir, FEED).write_text(text, encoding="utf-8")
