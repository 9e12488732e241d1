"""Names of code on narrow screens: short ones stay whole, long ones break where a reader would break them."""

import re
from typing import Any

from sphinx.application import Sphinx

__all__ = ["setup"]

_PIECE = re.compile(r'<span class="pre">([^<]+)</span>')
_JOINT = re.compile(r"(?<=[\w)\]])([._/,]+)(?=\w)")
_SHORT = 20  # letters that fit on any screen beside a word


def breakable(piece: str) -> str:
    """Write a piece of code, escaped HTML, so that a browser breaks it at its joints, if at all."""
    if len(piece) <= _SHORT:
        return f'<span class="pre short">{piece}</span>'
    joined = _JOINT.sub(r"\1<wbr>", piece)
    return f'<span class="pre">{joined}</span>'


def _break(app: Sphinx, name: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    if "body" in context:
        context["body"] = _PIECE.sub(lambda piece: breakable(piece[1]), context["body"])


def setup(app: Sphinx) -> None:
    """Take over where names may break."""
    app.connect("html-page-context", _break)
