"""Binder and Colab: which source notebook a page leads to, in a book whose repository has an address."""

from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

__all__ = ["setup"]


def notebook_of(project: Path, page: str) -> str | None:
    """Find the notebook behind a chapter or an executed page.

    Args:
        project: The folder that holds ``experiments``.
        page: Its name in the book, such as ``masking`` or ``experiments/masking-torch``.

    Returns:
        The notebook's path in the repository; None where the page has no notebook of its own.
    """
    executed = page.removeprefix("experiments/")
    stem = executed.removesuffix("-torch").removesuffix("-tensorflow")
    notebook = f"experiments/{stem}.ipynb"
    return notebook if "/" not in stem and (project / notebook).is_file() else None


def _announce(app: Sphinx, name: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    context["launched"] = notebook_of(Path(app.srcdir).parent, name)


def setup(app: Sphinx) -> None:
    """Tell each page its notebook; the buttons are in the template of the header."""
    app.connect("html-page-context", _announce)
