"""What programs read of the book: ``llms.txt``, cards of links, and ``sitemap.xml`` if it has an address."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

__all__ = ["setup"]

_CARD = "card.png"  # shown beside a link to a page
_ANSWER = "answer"  # what is kept of a page under this name


def contents(app: Sphinx) -> str:
    """Write what ``llms.txt`` holds: each part of the book with its pages, and the answer of each chapter.

    Args:
        app: A Sphinx that has read all pages.

    Returns:
        Markdown.
    """
    root = app.env.get_doctree(app.config.root_doc)
    about = next(iter(root.findall(nodes.paragraph)), None)
    lines = [f"# {app.config.project}", *(["", f"> {_text(about)}"] if about else [])]
    for toctree in root.findall(addnodes.toctree):
        lines += ["", f"## {toctree.get('caption') or 'Pages'}", ""]
        lines += [_item(app, page) for _, top in toctree["entries"] for page in _below(app, top)]
    return "\n".join(lines) + "\n"


def sitemap(app: Sphinx) -> str:
    """Write what ``sitemap.xml`` holds: the address of every page.

    Args:
        app: A Sphinx with ``html_baseurl``.

    Returns:
        XML.
    """
    base = app.config.html_baseurl.rstrip("/")
    addresses = [f"{base}/{app.builder.get_target_uri(page)}" for page in sorted(app.env.found_docs)]
    urls = "".join(f"<url><loc>{escape(address)}</loc></url>\n" for address in addresses)
    name = "http://www.sitemaps.org/schemas/sitemap/0.9"
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<urlset xmlns="{name}">\n{urls}</urlset>\n'


def _below(app: Sphinx, page: str) -> Iterator[str]:
    if page in app.env.found_docs:
        yield page
        for section in app.env.toctree_includes.get(page, []):
            yield from _below(app, section)


def _item(app: Sphinx, page: str) -> str:
    link = f"- [{app.env.titles[page].astext()}]({app.builder.get_target_uri(page)})"
    said = app.env.metadata[page][_ANSWER]
    return f"{link}: {said}" if said else link


def _answer(page: nodes.document) -> str:
    answers = (a for a in page.findall(nodes.admonition) if "answer" in a["classes"])
    return " ".join(_text(part) for part in next(answers, nodes.admonition()).findall(nodes.paragraph))


def _text(node: nodes.Element) -> str:
    return " ".join(node.astext().split())


def setup(app: Sphinx) -> None:
    """Describe each page, and write the lists when a site is finished."""
    app.connect("doctree-read", _keep_answer)
    app.connect("html-page-context", _describe)
    app.connect("build-finished", _finish)


def _keep_answer(app: Sphinx, doctree: nodes.document) -> None:
    """Keep the answer of a page: to read all pages again when a single one has changed takes a while."""
    app.env.metadata[app.env.docname][_ANSWER] = _answer(doctree)


def _describe(
    app: Sphinx, name: str, template: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    if doctree is not None:
        context["description"] = _answer(doctree) or _text(
            next(iter(doctree.findall(nodes.paragraph)), nodes.paragraph())
        )
    # Those who show it fetch it by an absolute address, or not at all.
    folders = [Path(app.confdir, folder) for folder in app.config.html_static_path]
    if app.config.html_baseurl and any((folder / _CARD).is_file() for folder in folders):
        context["card"] = f"{app.config.html_baseurl.rstrip('/')}/_static/{_CARD}"


def _finish(app: Sphinx, exception: Exception | None) -> None:
    if exception is not None or app.builder.name != "html":
        return
    Path(app.outdir, "llms.txt").write_text(contents(app), encoding="utf-8")
    if app.config.html_baseurl:
        Path(app.outdir, "sitemap.xml").write_text(sitemap(app), encoding="utf-8")
