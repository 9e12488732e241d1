"""Images that come when they are about to be seen, in a place that is kept for them, large enough to read."""

import math
import re
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.images import get_image_size
from sphinx.writers.html5 import HTML5Translator

__all__ = ["setup"]

_SVG = re.compile(r'<svg\b[^>]*?\bwidth="([\d.]+)(pt|px)?"[^>]*?\bheight="([\d.]+)(?:pt|px)?"')
_PX_PER_PT = 4 / 3
# Matplotlib draws each letter at a hundredth of its size in points, upside down. Texts have theirs in pixels.
_LETTERS = re.compile(r'scale\((0\.\d+) -\1\)|font-size="([\d.]+)"')
_SMALLEST = 11  # pixels of a letter that can be read
_PHONE = 366  # pixels of the narrowest screen on which a figure needn't move sideways


def _size_of(path: Path) -> tuple[int, int] | None:
    """Read an image's size in CSS pixels; Sphinx takes a part's size for that of an SVG without one."""
    if path.suffix != ".svg" or not path.is_file():
        return get_image_size(str(path))
    found = _SVG.search(path.read_text(encoding="utf-8"))
    if found is None:
        return None
    scale = _PX_PER_PT if found[2] == "pt" else 1.0
    return round(float(found[1]) * scale), round(float(found[3]) * scale)


def _least_width(path: Path, width: int) -> int:
    """Say how wide a figure has to be shown for all its letters to be read; 0 if it fits on a phone."""
    svg = path.read_text(encoding="utf-8") if path.suffix == ".svg" else ""
    sizes = [float(px or 100 * float(drawn or 0) * _PX_PER_PT) for drawn, px in _LETTERS.findall(svg)]
    least = math.ceil(width * _SMALLEST / min(sizes)) if sizes else 0
    return least if least > _PHONE else 0


def _visit(translator: HTML5Translator, node: nodes.image) -> None:
    # A chapter begins with its first image; a notebook's page begins with code.
    chapter = not translator.builder.current_docname.startswith("experiments/")
    first = chapter and node.document is not None and next(node.document.findall(nodes.image)) is node
    path = Path(translator.builder.srcdir, node["uri"])
    size = _size_of(path)
    # Without its size an image that comes late would push away what is being read.
    if size is not None and not first:
        node["loading"] = "lazy"
    start = len(translator.body)
    type(translator).visit_image(translator, node)
    if size is not None:
        tag = "".join(translator.body[start:])
        tag = tag.replace("<img ", '<img width="{}" height="{}" '.format(*size), 1)
        if path.suffix == ".svg" and "<image" in path.read_text(encoding="utf-8"):
            tag = tag.replace("<img ", '<img class="pictures" ', 1)  # their colours are data
        if least := _least_width(path, size[0]):
            # Not every browser lets the keyboard reach what scrolls.
            tag = f'<span class="wide-figure" style="--least: {least}px" tabindex="0">{tag}</span>'
        translator.body[start:] = [tag]


def setup(app: Sphinx) -> None:
    """Take over how images are written to HTML."""
    app.add_node(nodes.image, override=True, html=(_visit, None))
