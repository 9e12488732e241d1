"""Signatures on the API pages: as they are written, and as lists that browsers can read aloud."""

import ast
import inspect
import re
import textwrap
from typing import Any

from sphinx.application import Sphinx

__all__ = ["setup"]

# Sphinx writes the arguments of a long signature as a list of definitions that define nothing.
_LIST = re.compile(r'<dl>\s*(<dd><em class="sig-param">.*?)</dl>', re.DOTALL)


def _written(
    app: Sphinx, what: str, name: str, item: Any, options: Any, signature: str | None, returned: str | None
) -> tuple[str, str | None] | None:
    """Show a signature as it is written: ``ArrayLike``, not the union of eight types behind it."""
    try:
        source = textwrap.dedent(inspect.getsource(item.__init__ if what == "class" else item))
    except (AttributeError, OSError, TypeError):
        return None
    function = next((n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef)), None)
    if function is None:
        return None
    arguments = function.args
    if what in ("class", "method"):
        (arguments.posonlyargs or arguments.args).pop(0)
    written = None if what == "class" or function.returns is None else ast.unparse(function.returns)
    return f"({ast.unparse(arguments)})", written


def _lines(app: Sphinx, name: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    if "body" in context:
        context["body"] = _LIST.sub(_as_lines, context["body"])


def _as_lines(found: re.Match[str]) -> str:
    return found[1].replace("<dd>", '<span class="sig-line">').replace("</dd>", "</span>")


def setup(app: Sphinx) -> None:
    """Take over how signatures are found and how long ones are written."""
    app.setup_extension("sphinx.ext.autodoc")
    app.connect("autodoc-process-signature", _written)
    app.connect("html-page-context", _lines)
