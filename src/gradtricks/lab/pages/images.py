"""Images that are fetched when they are about to be seen, in a place that is kept for them."""

import re
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

__all__ = ["setup", "size_of"]

_SIZE = re.compile(r'<svg\b[^>]*?\bwidth="([\d.]+)(pt|px)?"[^>]*?\bheight="([\d.]+)(?:pt|px)?"', re.DOTALL)
_HEAD = 4096  # bytes in which an SVG says how large it is
_PX_PER_PT = 4 / 3


def size_of(path: Path) -> tuple[int, int] | None:
    """Read how large an SVG is.

    Args:
        path: Of the image.

    Returns:
        Width and height in CSS pixels; None where it isn't an SVG that says so.
    """
    if path.suffix != ".svg" or not path.is_file():
        return None
    with path.open(encoding="utf-8") as file:
        found = _SIZE.search(file.read(_HEAD))
    if found is None:
        return None
    width, unit, height = found.groups()
    scale = _PX_PER_PT if unit == "pt" else 1.0
    return round(float(width) * scale), round(float(height) * scale)


def _visit(translator: HTML5Translator, node: nodes.image) -> None:
    first = node.document is not None and next(node.document.findall(nodes.image)) is node
    size = size_of(Path(translator.builder.srcdir, node["uri"]))
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
