"""Mathematics rendered by KaTeX while the book is built, so that no page needs a script for it."""

import re
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import sphinxcontrib.katex
from docutils import nodes
from py_mini_racer import MiniRacer
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging
from sphinx.util.math import get_node_equation_number
from sphinx.writers.html5 import HTML5Translator

__all__ = ["katex_script", "setup"]

logger = logging.getLogger(__name__)

_BEHIND = re.compile(r"[.,;:)]+")
# The error is caught here, since in Python it would hold all of the script that threw it.
_RENDER = """
function render(tex, displayMode) {
  try {
    return {html: katex.renderToString(tex, {displayMode, throwOnError: true, strict: "error"})};
  } catch (error) {
    return {error: error.message};
  }
}
"""


def _visit_math(translator: HTML5Translator, node: nodes.math) -> None:
    translator.body.append(translator.starttag(node, "span", "", CLASS="math"))
    translator.body.append(_html(translator, node, display=False) + "</span>")
    raise nodes.SkipNode


def _visit_displaymath(translator: HTML5Translator, node: nodes.math_block) -> None:
    # Long formulas scroll inside their box, and what scrolls must be reachable by keyboard.
    translator.body.append(translator.starttag(node, "div", CLASS="math", tabindex="0"))
    if node["number"]:
        translator.body.append(f'<span class="eqno">({get_node_equation_number(translator, node)})')
        translator.add_permalink_ref(node, "Link to this equation")
        translator.body.append("</span>")
    translator.body.append(_html(translator, node, display=True) + "</div>\n")
    raise nodes.SkipNode


def _html(translator: HTML5Translator, node: nodes.Element, *, display: bool) -> str:
    answer = _katex().call("render", node.get("tex", node.astext()), display)
    if "html" in answer:
        return answer["html"]
    logger.warning("formula %r: %s", node.astext(), answer["error"], location=node, type="katex")
    return f"<code>{translator.encode(node.astext())}</code>"


@cache
def _katex() -> MiniRacer:
    """Start V8, within this process, when the first formula is there."""
    katex = MiniRacer()
    katex.eval(katex_script().read_text(encoding="utf-8") + _RENDER)
    return katex


def _end_katex(*_: Any) -> None:
    """End V8 and its thread: Python 3.13 waits for that for ever when the process is just ending."""
    if _katex.cache_info().currsize:
        _katex().close()
        _katex.cache_clear()


class _Punctuation(SphinxPostTransform):
    """Takes the comma behind a formula into it: browsers break lines between the two."""

    default_priority = 900
    formats = ("html",)

    def run(self, **options: Any) -> None:
        for element in self.document.findall(nodes.TextElement):
            for place, (formula, behind) in enumerate(pairwise(list(element)), 1):
                found = _BEHIND.match(behind.astext()) if isinstance(behind, nodes.Text) else None
                if isinstance(formula, nodes.math) and found:
                    source = formula.astext()
                    formula["tex"] = rf"{source}\text{{{found[0]}}}"
                    formula[:] = [nodes.Text(source + found[0])]  # for the description of the page
                    element[place] = nodes.Text(behind.astext()[found.end() :])


def katex_script() -> Path:
    """Find ``katex.min.js``, which comes with sphinxcontrib-katex."""
    return Path(sphinxcontrib.katex.__file__).with_name("katex.min.js")


def setup(app: Sphinx) -> None:
    """Register the renderer ``katex``; ``html_math_renderer`` selects it."""
    app.add_post_transform(_Punctuation)
    app.connect("build-finished", _end_katex)
    app.add_html_math_renderer(
        "katex", inline_renderers=(_visit_math, None), block_renderers=(_visit_displaymath, None)
    )
