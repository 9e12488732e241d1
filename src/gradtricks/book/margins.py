"""Notes in the margin: the source that a paragraph cites, the run that drew a figure.

On narrow screens the first isn't shown, since it is a link away, and the second stands below its figure.
"""

from collections.abc import Iterator
from typing import cast

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinxcontrib.bibtex.domain import BibtexDomain
from sphinxcontrib.bibtex.transforms import BibliographyTransform, node_text_transform

from gradtricks.book.tabs import FRAMEWORKS

__all__ = ["provenance", "setup"]


class _Cited(SphinxPostTransform):
    """Puts a source beside the first paragraph of a chapter that cites it."""

    default_priority = 6  # before Sphinx resolves references, which loses their keys
    formats = ("html",)

    def run(self, **options: object) -> None:
        cited = [(paragraph, [*_cited(paragraph)]) for paragraph in self.document.findall(nodes.paragraph)]
        if not any(keys for _, keys in cited):
            return  # a project that cites nothing has no bibliography to ask
        domain = cast(BibtexDomain, self.env.get_domain("cite"))
        entries = {each.key: each.formatted_entry for each in domain.citations}
        noted: set[str] = set()
        for paragraph, found in cited:
            keys = [key for key in found if key in entries and key not in noted]
            # Elsewhere, in lists and boxes, there is no margin.
            if keys and isinstance(paragraph.parent, nodes.section):
                noted.update(keys)
                notes = [BibliographyTransform.backend.paragraph(entries[key]) for key in keys]
                aside = nodes.container("", *notes, classes=["cited"], is_div=True)
                node_text_transform(aside)  # or else addresses are no links
                paragraph.parent.insert(paragraph.parent.index(paragraph), aside)


def provenance(stem: str, backend: str | None, page: str) -> nodes.legend:
    """Say below a figure which run it is of, with a link to the run's page."""
    of = f"{stem}, {FRAMEWORKS.get(backend, backend)}" if backend else stem
    link = addnodes.pending_xref(
        "", nodes.inline("", of), refdomain="std", reftype="doc", reftarget=page, refexplicit=True
    )
    return nodes.legend("", nodes.paragraph("", "Run: ", link), classes=["provenance"])


def _cited(paragraph: nodes.paragraph) -> Iterator[str]:
    for reference in paragraph.findall(addnodes.pending_xref):
        if reference.get("refdomain") == "cite":
            yield from (key.strip() for key in reference["reftarget"].split(","))


def setup(app: Sphinx) -> None:
    """Register the transform."""
    app.add_post_transform(_Cited)
