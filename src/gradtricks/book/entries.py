"""Entries of the API pages: one name in both frameworks, signatures side by side, what they say in tabs.

They are read from the sources, so that Sphinx imports neither framework.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import is_dataclass
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.ext.napoleon.docstring import GoogleDocstring
from sphinx.util.docutils import SphinxDirective

from gradtricks.book.tabs import FRAMEWORKS, in_tabs

__all__ = ["InBoth", "setup"]

_TAB = "``````{{eval-rst}}\n{}\n``````\n"
_LINKS = (
    "{{doc}}`Chapter </{stem}>` · {{download}}`tests <{up}/tests/{tests}/test_{stem}.py>` · code for "
    "{{download}}`PyTorch <{up}/src/{package}/torch/{stem}.py>`, "
    "{{download}}`TensorFlow <{up}/src/{package}/tensorflow/{stem}.py>`, "
    "{{download}}`NumPy <{up}/src/{package}/reference/{stem}.py>`\n"
)

# Sphinx writes the arguments of a long signature as a list of definitions that define nothing.
_LIST = re.compile(r'<dl>\s*(<dd><em class="sig-param">.*?)</dl>', re.DOTALL)


class InBoth(SphinxDirective):
    """``{in-both} autofunction name``: what both frameworks' modules say of a name, side by side.

    The page is named after the stem, and so are the modules. ``:members:`` are methods of a class; one that
    only one framework has is written ``torch.forward``. ``:room: doctor`` is for modules in that folder, and
    ``:module: _flight`` for a name that stands in another module than the stem's.
    """

    required_arguments = 2
    option_spec: ClassVar[dict] = dict.fromkeys(("members", "module", "room"), directives.unchanged)

    def run(self) -> list[nodes.Node]:
        """Build the links, both signatures, and a tab for what each framework says."""
        self.stem, room = PurePosixPath(self.env.docname).name, self.options.get("room", "")
        self.package = PurePosixPath("gradtricks", room)
        up = "/".join([".."] * len(PurePosixPath(self.env.docname).parts))
        links = _LINKS.format(stem=self.stem, up=up, tests=room or "tricks", package=self.package)
        parts = self.parse_text_to_nodes(links)
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
        return in_tabs({key: _TAB.format("\n".join(self._entry(key))) for key in FRAMEWORKS})

    def _entry(self, framework: str) -> Iterator[str]:
        """Write in Sphinx's own directives what autodoc would."""
        kind, name = self.arguments[0].removeprefix("auto"), self.arguments[1]
        module = self.options.get("module", self.stem)
        path = Path(self.env.srcdir).parent / f"src/{self.package}/{framework}/{module}.py"
        node = self._defined(path, name)
        yield from self._described(framework, kind, name, node)
        given = re.findall(r"[\w.]+", self.options.get("members", ""))
        for member in (n for n in (n.removeprefix(f"{framework}.") for n in given) if "." not in n):
            method = self._named(member, node.body, f"{name} of {framework}")
            kind = "property" if "property" in map(ast.unparse, method.decorator_list) else "method"
            for line in self._described(framework, kind, f"{name}.{member}", method):
                yield f"   {line}"

    def _defined(self, path: Path, name: str) -> Any:
        """Find a function or class in a module, or in the one that it is imported from."""
        self.env.note_dependency(str(path))
        body = ast.parse(path.read_text(encoding="utf-8")).body
        for node in body:
            if isinstance(node, ast.ImportFrom) and name in (alias.name for alias in node.names):
                return self._defined(path.with_name(f"{str(node.module).rpartition('.')[2]}.py"), name)
        return self._named(name, body, str(path))

    def _named(self, name: str, body: Sequence[ast.stmt], place: str) -> Any:
        node = next((node for node in body if getattr(node, "name", "") == name), None)
        if node is None:
            raise self.error(f"expected a name that {place} defines; got {name!r}")
        return node

    def _described(self, framework: str, kind: str, name: str, node: Any) -> Iterator[str]:
        functions = [part for part in ast.walk(node) if isinstance(part, ast.FunctionDef)]
        if kind == "class":
            functions = [part for part in functions if part.name == "__init__"]
        arguments, returned = _signature(kind, functions[0]) if functions else ("()", None)
        shown = "" if kind == "property" else f"{arguments} -> {returned}" if returned else arguments
        yield f".. py:{kind}:: {name}{shown}"
        yield f"   :module: {'.'.join(self.package.parts)}.{framework}"
        if kind == "property":
            yield f"   :type: {returned}"
        said = GoogleDocstring(ast.get_docstring(node) or "", self.config, self.env.app, kind, name)
        yield from ("", *(f"   {line}" for line in said.lines()), "")


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
    return None if function is None else _signature(what, function)


def _signature(kind: str, function: ast.FunctionDef) -> tuple[str, str | None]:
    if kind in ("class", "method"):
        (function.args.posonlyargs or function.args.args).pop(0)
    written = None if kind == "class" or function.returns is None else ast.unparse(function.returns)
    return f"({ast.unparse(function.args)})", written


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
    app.setup_extension("sphinx.ext.napoleon")
    app.add_directive("in-both", InBoth)
    app.connect("autodoc-process-signature", _written)
    app.connect("html-page-context", _lines)
