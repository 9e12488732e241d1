"""Entries of the API pages: one name in both frameworks, signatures side by side, what they say in tabs."""

import ast
import inspect
import re
import textwrap
from dataclasses import is_dataclass
from pathlib import PurePosixPath
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from gradtricks.book.tabs import FRAMEWORKS, in_tabs

__all__ = ["InBoth", "setup"]

_TAB = """\
```{{eval-rst}}
.. {directive}:: gradtricks.{framework}.{name}
{options}```
"""
_LINKS = (
    "{{doc}}`Chapter </{stem}>` · {{download}}`tests <{up}/tests/tricks/test_{stem}.py>` · code for "
    "{{download}}`PyTorch <{up}/src/gradtricks/torch/{stem}.py>`, "
    "{{download}}`TensorFlow <{up}/src/gradtricks/tensorflow/{stem}.py>`, "
    "{{download}}`NumPy <{up}/src/gradtricks/reference/{stem}.py>`\n"
)

# Sphinx writes the arguments of a long signature as a list of definitions that define nothing.
_LIST = re.compile(r'<dl>\s*(<dd><em class="sig-param">.*?)</dl>', re.DOTALL)


class InBoth(SphinxDirective):
    """``{in-both} autofunction name``: what both frameworks' modules say of a name, side by side.

    The page is named after the stem. ``:members:`` are methods of a class; one that only one framework has is
    written ``torch.forward``.
    """

    required_arguments = 2
    option_spec: ClassVar[dict] = {"members": directives.unchanged}

    def run(self) -> list[nodes.Node]:
        """Build the links, both signatures, and a tab for what each framework says."""
        stem = PurePosixPath(self.env.docname).name
        up = "/".join([".."] * len(PurePosixPath(self.env.docname).parts))
        parts = self.parse_text_to_nodes(_LINKS.format(stem=stem, up=up))
        for part in parts:
            part["classes"].append("entry-links")
        tabs = nodes.container("", *self.parse_text_to_nodes(self._tabs()))
        sides = nodes.container(classes=["signatures"], is_div=True)
        entries = list(tabs.findall(addnodes.desc))
        methods = [m for entry in entries for m in entry.findall(addnodes.desc, include_self=False)]
        for entry in (e for e in entries if e not in methods):
            said = next(iter(entry.findall(addnodes.desc_content)))
            entry.replace_self(nodes.container("", *said.children, classes=["entry"], is_div=True))
            # A list that defines nothing would puzzle who has it read aloud.
            framework = entry[0]["module"].rpartition(".")[2]
            said.clear()
            said += nodes.paragraph("", FRAMEWORKS[framework])
            sides += entry
        return [*parts, sides, *tabs.children]

    def _tabs(self) -> str:
        directive, name = self.arguments
        return in_tabs(
            {
                key: _TAB.format(framework=key, directive=directive, name=name, options=self._members(key))
                for key in FRAMEWORKS
            }
        )

    def _members(self, framework: str) -> str:
        given = re.findall(r"[\w.]+", self.options.get("members", ""))
        own = [name for name in (n.removeprefix(f"{framework}.") for n in given) if "." not in name]
        return f"   :members: {', '.join(own)}\n" if own else ""


def _written(
    app: Sphinx, what: str, name: str, item: Any, options: Any, signature: str | None, returned: str | None
) -> tuple[str, str | None] | None:
    """Show a signature as it is written: ``ArrayLike``, not the union of eight types behind it."""
    if is_dataclass(item):  # nobody wrote it, and its users get such an object, they don't make one
        return "", None
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
    if name.startswith("api/"):
        # Sphinx counts on a dash to be made of two signs, which are none in the options of commands.
        context["body"] = context["body"].replace(" -- ", " – ")


def _as_lines(found: re.Match[str]) -> str:
    return found[1].replace("<dd>", '<span class="sig-line">').replace("</dd>", "</span>")


def setup(app: Sphinx) -> None:
    """Register the directive; take over how signatures are found and how long ones are written."""
    app.setup_extension("sphinx.ext.autodoc")
    app.add_directive("in-both", InBoth)
    app.connect("autodoc-process-signature", _written)
    app.connect("html-page-context", _lines)
