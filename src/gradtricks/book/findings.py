"""The doctor's findings as a page, of what ``gradtricks doctor --explain`` prints of each."""

import re

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from gradtricks.doctor.rules import IDS, explain

__all__ = ["Findings", "setup"]


class Findings(SphinxDirective):
    """``{findings}``: a section for each id, with a link to its chapter."""

    def run(self) -> list[nodes.Node]:
        """Build the sections."""
        text = "\n\n".join(map(explain, IDS.values()))
        text = re.sub(r"^## (Wrong|Right)$", r"\1:", text, flags=re.MULTILINE)
        text = re.sub(r"^# (GT\d+)", r"(\1)=\n## \1", text, flags=re.MULTILINE)
        text = re.sub(r"^Chapter: (.*)$", r"Chapter: {doc}`\1`", text, flags=re.MULTILINE)
        return self.parse_text_to_nodes(text, allow_section_headings=True)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("findings", Findings)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
