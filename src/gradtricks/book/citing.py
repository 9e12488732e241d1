"""How to cite the project: BibTeX and a line of text, from its CITATION.cff."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

__all__ = ["Citation", "as_bibtex", "as_text", "authors_of", "setup"]

_SPECIAL = re.compile(r"([\\{}&%$#_~^])")
_WRITTEN = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}


def as_bibtex(citation: Mapping[str, Any]) -> str:
    """Write a citation as an entry of BibTeX.

    Args:
        citation: What a CITATION.cff says.

    Returns:
        ``@software``, which biblatex knows and BibTeX takes for ``@misc``.
    """
    title, day = str(citation["title"]), str(citation["date-released"])
    fields = {
        "author": " and ".join(f"{{{_escaped(name)}}}" for name in authors_of(citation)),
        "title": f"{{{_escaped(title)}}}",
        "version": _escaped(str(citation["version"])),
        "year": day[:4],
        "date": day,
        "license": _escaped(str(citation.get("license", ""))),
        "doi": str(citation.get("doi", "")),
        "url": str(citation.get("url") or citation.get("repository-code") or ""),
    }
    lines = [f"  {name} = {{{value}}}," for name, value in fields.items() if value]
    return "\n".join([f"@software{{{title.partition(':')[0].split()[0].lower()},", *lines, "}"])


def as_text(citation: Mapping[str, Any]) -> str:
    """Write a citation for a list of references.

    Args:
        citation: What a CITATION.cff says.

    Returns:
        One line.
    """
    authors, year = ", ".join(authors_of(citation)), str(citation["date-released"])[:4]
    where = citation.get("doi") or citation.get("url") or citation.get("repository-code")
    line = f"{authors} ({year}). {citation['title']} (version {citation['version']}) [computer software]."
    return f"{line} {where}" if where else line


def authors_of(citation: Mapping[str, Any]) -> list[str]:
    """Name the authors; people have names of two parts or more, others one.

    Args:
        citation: What a CITATION.cff says.

    Returns:
        Their names, in order.
    """
    parts = ("given-names", "name-particle", "family-names", "name-suffix")
    return [a.get("name") or " ".join(a[part] for part in parts if part in a) for a in citation["authors"]]


class Citation(SphinxDirective):
    """``{citation}``: how to cite the project whose CITATION.cff lies beside the book's folder."""

    def run(self) -> list[nodes.Node]:
        """Build a paragraph and an entry of BibTeX."""
        path = Path(self.env.srcdir).parent / "CITATION.cff"
        self.env.note_dependency(str(path))
        if not path.is_file():
            raise self.error(f"expected {path.name} beside the book's folder; got none; remedy: write one")
        citation = yaml.safe_load(path.read_text(encoding="utf-8"))
        return [
            nodes.paragraph("", as_text(citation)),
            nodes.literal_block("", as_bibtex(citation), language="bibtex"),
        ]


def _escaped(text: str) -> str:
    return _SPECIAL.sub(lambda found: _WRITTEN.get(found[1], f"\\{found[1]}"), text)


def setup(app: Sphinx) -> None:
    """Register the directive."""
    app.add_directive("citation", Citation)
