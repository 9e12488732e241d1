"""Code that is copied from a page runs wherever it is pasted, a prompt of Python 3.11 included.

There an empty line ends a statement that has a body, and nothing else does. So none is copied inside of such
a statement, and one is copied behind it. Prompts, and what was printed, stay on the page.
"""

import ast
from collections.abc import Iterator
from itertools import pairwise

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

__all__ = ["mark", "setup"]

_PYTHON = ("python", "python3", "ipython3", "pycon", "default")
_FIRST, _NEXT = ">>> ", "... "


def mark(html: str, source: str) -> str:
    """Mark in highlighted Python what isn't copied of it, and what is copied but not shown."""
    lines, (opening, rest) = source.removesuffix("\n").split("\n"), html.split("<pre>", 1)
    shown, closing = rest.rsplit("</pre>", 1)
    code = dict(_code(lines))
    inside, ends = _statements("\n".join(code.values()))
    places = dict(enumerate(code, start=1))  # where a line of the code stands among those that are shown
    left_out = {*range(len(lines))} - {*code} | {places[number] for number in inside}
    ended = {places[number] for number in ends}
    marked = [_mark(line, i in left_out, i in ended) for i, line in enumerate(shown.splitlines())]
    return f"{opening}<pre>{''.join(marked)}</pre>{closing}"


def _code(lines: list[str]) -> Iterator[tuple[int, str]]:
    """List the lines of code, and where they stand: all of them, or those behind a prompt."""
    if not lines[0].startswith(_FIRST):
        yield from enumerate(lines)
        return
    of_code = False
    for i, line in enumerate(lines):
        of_code = line.startswith(_FIRST) or (of_code and line.startswith(_NEXT.strip()))
        if of_code:
            yield i, line[len(_FIRST) :]


def _statements(code: str) -> tuple[set[int], set[int]]:
    """Number the empty lines inside of statements with a body, and the last lines of those that need one."""
    try:
        body = ast.parse(code).body
    except SyntaxError:  # of a notebook's shell, or no whole statement
        return set(), set()
    lines = code.split("\n")
    blocks = [statement for statement in body if hasattr(statement, "body") or hasattr(statement, "cases")]
    texts = {
        number
        for node in ast.walk(ast.Module(blocks, []))
        if isinstance(node, ast.Constant | ast.JoinedStr)
        for number in range(node.lineno, node.end_lineno or 0)
    }
    inside = {n for block in blocks for n in range(block.lineno, block.end_lineno or 0)} - texts
    ends = {block.end_lineno or 0 for block in blocks}
    followed = {n for n, (_, after) in enumerate(pairwise(lines), start=1) if after.strip()}
    return {n for n in inside if not lines[n - 1].strip()}, ends & followed


def _mark(line: str, left_out: bool, ended: bool) -> str:
    if left_out:
        return f'<span class="uncopied">{line}\n</span>'
    prompt = line.replace('class="gp"', 'class="gp uncopied"', 1)
    return prompt + "\n" + ('<span class="copied">\n</span>' if ended else "")


def _visit(translator: HTML5Translator, node: nodes.literal_block) -> None:
    try:
        type(translator).visit_literal_block(translator, node)
    finally:  # it raises SkipNode where it has highlighted
        if node.get("language", "default") in _PYTHON and node.rawsource == node.astext():
            translator.body[-1] = mark(translator.body[-1], node.rawsource)


def _depart(translator: HTML5Translator, node: nodes.literal_block) -> None:
    type(translator).depart_literal_block(translator, node)


def setup(app: Sphinx) -> None:
    """Take over how code is written to HTML."""
    for node in (nodes.literal_block, nodes.doctest_block):
        app.add_node(node, override=True, html=(_visit, _depart))
