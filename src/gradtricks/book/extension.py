"""Sphinx extension of the book: what its pages quote from runs, and what describes them to programs."""

import tomllib
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any, cast

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.builders.html import StandaloneHTMLBuilder
from sphinx.config import Config

__all__ = ["notebook_of", "setup"]

_PARTS = (
    *("cards", "copying", "drawings", "entries", "findings", "formulas", "images"),
    *("margins", "moving", "names", "quotes", "tabs"),
)
_DESCRIPTION = "og:description"  # under which sphinxext-opengraph looks for it in a page's metadata


def setup(app: Sphinx) -> dict[str, Any]:
    """Register roles, directives and renderers, and what describes the pages and finishes the site."""
    for part in _PARTS:
        app.setup_extension(f"gradtricks.book.{part}")
    app.connect("config-inited", _name_toggles)
    app.connect("doctree-read", _describe)
    app.connect("html-page-context", _announce)
    app.connect("build-finished", _finish)
    urls = _urls(Path(app.srcdir).parent)
    if "Repository" in urls:
        app.config.html_theme_options = app.config.html_theme_options | {"repository_url": urls["Repository"]}
    if "Documentation" in urls:
        app.config.html_baseurl = urls["Documentation"]
        # Neither has anything to say of a book without an address.
        app.setup_extension("sphinx_sitemap")
        app.setup_extension("sphinxext.opengraph")
        app.connect("config-inited", _use_address)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": False}


def notebook_of(project: Path, page: str) -> str | None:
    """Find the notebook behind a chapter or an executed page, by the page's name, for Binder and Colab."""
    stem = page.removeprefix("experiments/")
    notebook = f"experiments/{stem}.ipynb"
    return notebook if "/" not in stem and (project / notebook).is_file() else None


def _urls(project: Path) -> dict[str, str]:
    """Read where the project is published: the one place that says so is ``[project.urls]``."""
    if not (settings := project / "pyproject.toml").is_file():
        return {}
    return tomllib.loads(settings.read_text(encoding="utf-8"))["project"].get("urls", {})


def _announce(app: Sphinx, name: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Tell a page's template its notebook and its neighbours: from chapter to chapter, and back to one."""
    context["launched"] = notebook_of(Path(app.srcdir).parent, name)
    chapters = [app.config.root_doc, *app.env.toctree_includes.get(app.config.root_doc, [])]
    if name in chapters:
        place = chapters.index(name)
        neighbours = [chapters[place - 1 : place], chapters[place + 1 : place + 2]]
    else:
        parents = [page for page in chapters if name in app.env.toctree_includes.get(page, [])]
        # An appendix is written, and leads on as its chapter does; what was executed only leads back.
        places = [chapters.index(page) for page in parents if "/" not in name]
        neighbours = [parents, [page for place in places for page in chapters[place + 1 : place + 2]]]
    for side, pages in zip(("prev", "next"), neighbours):
        links = [{"link": context["pathto"](page), "title": _title(app, page)} for page in pages]
        context[side] = links[0] if links else None
    if name == "search":
        context["answers"] = {
            page: [app.env.titles[page].astext().lower(), app.env.metadata[page]["answer"].lower()]
            for page in chapters
            if app.env.toc_secnumbers.get(page, {}).get("")  # without a number it is no chapter
        }


def _title(app: Sphinx, page: str) -> str:
    return cast(StandaloneHTMLBuilder, app.builder).render_partial(app.env.titles[page])["title"]


def _name_toggles(app: Sphinx, config: Config) -> None:
    config.nb_code_prompt_show, config.nb_code_prompt_hide = "Show code", "Hide code"


def _use_address(app: Sphinx, config: Config) -> None:
    config.sitemap_url_scheme = "{link}"
    config.sitemap_excludes = ["search.html"]
    config.ogp_site_url = config.html_baseurl
    config.ogp_type = "article"
    config.ogp_image = "_static/card.png"
    config.ogp_image_alt = f"{config.project}: a long arrow forward, a short arrow back"
    config.ogp_custom_meta_tags = [
        '<meta property="og:image:width" content="1200" />',
        '<meta property="og:image:height" content="630" />',
        '<meta property="twitter:card" content="summary_large_image" />',
    ]


def _describe(app: Sphinx, page: nodes.document) -> None:
    """Describe a page by its answer, which the extensions would pass over, else by its first paragraph."""
    answers = [box for box in page.findall(nodes.admonition) if "answer" in box["classes"]]
    answer = " ".join(_text(part) for box in answers[:1] for part in box.findall(nodes.paragraph))
    said = answer or _text(next(iter(page.findall(nodes.paragraph)), nodes.paragraph()))
    app.env.metadata[app.env.docname] |= {"answer": answer, _DESCRIPTION: escape(said, quote=False)}
    page.insert(0, nodes.meta("", name="description", content=said))


def _finish(app: Sphinx, exception: Exception | None) -> None:
    if exception is not None or app.builder.name != "html":
        return
    Path(app.outdir, "llms.txt").write_text("\n".join(_contents(app)) + "\n", encoding="utf-8")


def _contents(app: Sphinx) -> Iterator[str]:
    """List the parts of the book with their pages and answers; sphinx-llms-txt has neither."""
    root = app.env.get_doctree(app.config.root_doc)
    yield f"# {app.config.project}\n\n> {_text(next(iter(root.findall(nodes.paragraph)), nodes.paragraph()))}"
    for toctree in root.findall(addnodes.toctree):
        yield f"\n## {toctree.get('caption') or 'Pages'}\n"
        for page in (below for _, top in toctree["entries"] for below in _below(app, top)):
            link = f"- [{app.env.titles[page].astext()}]({app.builder.get_target_uri(page)})"
            yield ": ".join(filter(None, (link, app.env.metadata[page]["answer"])))


def _below(app: Sphinx, page: str) -> Iterator[str]:
    if page in app.env.found_docs:
        yield page
        for section in app.env.toctree_includes.get(page, []):
            yield from _below(app, section)


def _text(node: nodes.Element) -> str:
    return " ".join(node.astext().split())
