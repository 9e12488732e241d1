"""Images that are fetched when they are about to be seen, in a place that is kept for them."""

from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.images import get_image_size
from sphinx.writers.html5 import HTML5Translator

__all__ = ["setup"]


def _visit(translator: HTML5Translator, node: nodes.image) -> None:
    # A chapter begins with its first image; a notebook's page begins with code.
    chapter = not translator.builder.current_docname.startswith("experiments/")
    first = chapter and node.document is not None and next(node.document.findall(nodes.image)) is node
    path = Path(translator.builder.srcdir, node["uri"])
    size = get_image_size(str(path)) if path.is_file() else None
    # Without its size an image that comes late would push away what is being read.
    if size is not None and not first:
        node["loading"] = "lazy"
    start = len(translator.body)
    type(translator).visit_image(translator, node)
    if size is not None:
        tag = "".join(translator.body[start:])
        translator.body[start:] = [tag.replace("<img ", '<img width="{}" height="{}" '.format(*size), 1)]


def _depart(translator: HTML5Translator, node: nodes.image) -> None:
    type(translator).depart_image(translator, node)


def setup(app: Sphinx) -> None:
    """Take over how images are written to HTML."""
    app.add_node(nodes.image, override=True, html=(_visit, _depart))
