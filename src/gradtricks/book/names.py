"""Names of code on narrow screens: short ones stay whole, long ones break where a reader would break them."""

import re
from html import unescape
from typing import Any

from sphinx.application import Sphinx

__all__ = ["setup"]

_PIECE = re.compile(r'<span class="pre">([^<]+)</span>')
_JOINT = re.compile(r"(?<=[\w)\]])([./,=(]+)(?=\w)")
_INSIDE = re.compile(r"(?<=\w)(_+)(?=\w)")
_SHORT = 24  # letters that fit on a line of a phone, however far it is indented


def breakable(piece: str) -> str:
    """Write a piece of code, escaped HTML, so that a browser breaks it between names, if at all.

    Only a name that is longer than a line of a phone breaks inside, at its underscores.
    """
    names = _JOINT.sub(r"\1<wbr>", piece).split("<wbr>")
    if len(unescape(piece)) <= _SHORT:  # whole, unless it stands in a table
        return f'<span class="pre short">{"<wbr>".join(names)}</span>'
    joined = (_INSIDE.sub(r"\1<wbr>", name) if len(unescape(name)) > _SHORT else name for name in names)
    return f'<span class="pre">{"<wbr>".join(joined)}</span>'


def _break(app: Sphinx, name: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    if "body" in context:
        context["body"] = _PIECE.sub(lambda piece: breakable(piece[1]), context["body"])


def setup(app: Sphinx) -> None:
    """Take over where names may break."""
    app.connect("html-page-context", _break)
