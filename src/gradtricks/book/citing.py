"""How to cite the project: BibTeX and a line of text, from its CITATION.cff."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

__all__ = ["setup"]

_SPECIAL = re.compile(r"[{}&%$#_]")


class _Citation(SphinxDirective):
    """``{citation}``: how to cite the project whose CITATION.cff lies beside the book's folder."""

    def run(self) -> list[nodes.Node]:
        path = Path(self.env.srcdir).parent / "CITATION.cff"
        self.env.note_dependency(str(path))
        if not path.is_file():
            raise self.error(f"expected {path.name} beside the book's folder; got none; remedy: write one")
        citation = yaml.safe_load(path.read_text(encoding="utf-8"))
        return [
            nodes.paragraph("", _as_text(citation)),
            nodes.literal_block("", _as_bibtex(citation), language="bibtex"),
        ]


def _as_bibtex(citation: Mapping[str, Any]) -> str:
    """Write it as ``@software``, which biblatex knows and BibTeX takes for ``@misc``."""
    title, day = str(citation["title"]), str(citation["date-released"])
    fields = {
        "author": " and ".join(f"{{{_escaped(name)}}}" for name in _authors(citation)),
        "title": f"{{{_escaped(title)}}}",
        "version": _escaped(str(citation["version"])),
        "year": day[:4],
        "date": day,
        "license": _escaped(str(citation["license"])),
        "url": _address(citation),
    }
    lines = [f"  {name} = {{{value}}}," for name, value in fields.items() if value]
    return "\n".join([f"@software{{{title.partition(':')[0].split()[0].lower()},", *lines, "}"])


def _as_text(citation: Mapping[str, Any]) -> str:
    """Write what a CITATION.cff says in one line, for a list of references."""
    authors, year = ", ".join(_authors(citation)), str(citation["date-released"])[:4]
    line = f"{authors} ({year}). {citation['title']} (version {citation['version']}) [computer software]."
    return f"{line} {_address(citation)}".strip()


def _authors(citation: Mapping[str, Any]) -> list[str]:
    """Name the authors; people have two names, others one."""
    parts = ("given-names", "family-names", "name")
    return [" ".join(author[part] for part in parts if part in author) for author in citation["authors"]]


def _address(citation: Mapping[str, Any]) -> str:
    return str(citation.get("url") or citation.get("repository-code") or "")


def _escaped(text: str) -> str:
    return _SPECIAL.sub(r"\\\g<0>", text)


def setup(app: Sphinx) -> None:
    """Register the directive."""
    app.add_directive("citation", _Citation)
