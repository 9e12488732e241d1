"""Entries of the API pages: one name in both frameworks, signatures side by side, what they say in tabs."""

import re
from pathlib import PurePosixPath
from typing import ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

__all__ = ["InBoth", "setup"]

_FRAMEWORKS = {"torch": "PyTorch", "tensorflow": "TensorFlow"}
_TAB = """\
:::{{tab-item}} {title}
:sync: {framework}

```{{eval-rst}}
.. {directive}:: gradtricks.{framework}.{name}
{options}```
:::
"""
_LINKS = (
    "{{doc}}`Chapter </{stem}>` · {{download}}`tests <{up}/tests/test_{stem}.py>` · code for "
    "{{download}}`PyTorch <{up}/src/gradtricks/torch/{stem}.py>`, "
    "{{download}}`TensorFlow <{up}/src/gradtricks/tensorflow/{stem}.py>`, "
    "{{download}}`NumPy <{up}/src/gradtricks/reference/{stem}.py>`\n"
)


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
            said += nodes.paragraph("", _FRAMEWORKS[framework])
            sides += entry
        return [*parts, sides, *tabs.children]

    def _tabs(self) -> str:
        directive, name = self.arguments
        tabs = "\n".join(
            _TAB.format(
                title=title, framework=key, directive=directive, name=name, options=self._members(key)
            )
            for key, title in _FRAMEWORKS.items()
        )
        return f"::::{{tab-set}}\n:sync-group: framework\n\n{tabs}::::\n"

    def _members(self, framework: str) -> str:
        given = re.findall(r"[\w.]+", self.options.get("members", ""))
        own = [name for name in (n.removeprefix(f"{framework}.") for n in given) if "." not in name]
        return f"   :members: {', '.join(own)}\n" if own else ""


def setup(app: Sphinx) -> None:
    """Register the directive."""
    app.add_directive("in-both", InBoth)
