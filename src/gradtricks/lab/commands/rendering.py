"""An executed notebook as one page of HTML, to be read in a browser without Jupyter."""

import json
from base64 import b64encode
from collections.abc import Iterator
from html import escape
from typing import Any

from markdown_it import MarkdownIt
from nbformat import NotebookNode
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

# What a run printed may hold anything. default-src doesn't cover where forms go and what links are relative
# to; where a <meta> or a link leads, no policy of a page can say.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'none'; base-uri 'none'"
_CSS = """\
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; font: 1rem/1.5 system-ui, sans-serif; }
pre { overflow-x: auto; padding: .5rem .8rem; background: #f6f6f4; border-radius: .3rem; }
pre.error { background: #fdeeee; }
img { max-width: 100%; }
table { border-collapse: collapse; } td, th { padding: .2rem .6rem; border: 1px solid #ccc; }
"""


def to_html(node: NotebookNode, title: str) -> str:
    """Render a notebook, executed or not, as a page that runs no script, loads nothing and sends no form."""
    formatter = HtmlFormatter(style="friendly")
    body = "\n".join(part for cell in node.cells for part in _cell(cell, formatter))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f"<style>\n{_CSS}{formatter.get_style_defs('.highlight')}\n</style></head>\n"
        f"<body><h1>{escape(title)}</h1>\n{body}\n</body></html>\n"
    )


def _cell(cell: NotebookNode, formatter: Any) -> Iterator[str]:
    if cell.cell_type == "markdown":
        yield MarkdownIt("commonmark", {"html": False}).enable("table").render(cell.source)
    elif cell.cell_type == "code":
        yield highlight(cell.source, PythonLexer(), formatter)
        for output in cell.get("outputs", []):
            yield _output(output)


def _output(output: NotebookNode) -> str:
    if output.output_type == "stream":
        return f"<pre>{escape(output.text)}</pre>"
    if output.output_type == "error":
        return f'<pre class="error">{escape(f"{output.ename}: {output.evalue}")}</pre>'
    data = output.get("data", {})
    svg, png = data.get("image/svg+xml"), data.get("image/png")
    if svg or png:  # as an image, so that what is SVG is neither script nor style of this page
        encoded = b64encode(svg.encode()).decode() if svg else png.replace("\n", "")
        source = f"data:image/{'svg+xml' if svg else 'png'};base64,{encoded}"
        return f'<p><img src="{source}" alt="{escape(data.get("text/plain", ""))}"></p>'
    if "text/html" in data:
        return str(data["text/html"])
    return f"<pre>{escape(str(data.get('text/plain', json.dumps(data, indent=1))))}</pre>"
