"""What roles and directives of a page name: a run, and a result or a figure of it."""

import re
from pathlib import Path
from typing import Any

from sphinx.environment import BuildEnvironment

from gradtricks.lab.results.quoting import RecordError, published_record, result_from

__all__ = ["CURVES", "FIGURE", "RESULT", "RUN", "figure_of", "page_of", "record_of"]

# A notebook without a backend has one run; the page of a sweep is quoted as if "sweep" were its backend.
_RUN = r"(?P<stem>[A-Za-z0-9][A-Za-z0-9_.-]*)(?:/(?P<backend>[a-z]+))?"
RUN = re.compile(_RUN)
FIGURE = re.compile(_RUN + r"/(?P<name>[a-z][a-z0-9_]*)")
RESULT = re.compile(_RUN + r"/(?P<name>[^:]+)(?::(?P<spec>.*))?")
CURVES = re.compile(_RUN + r"/(?P<name>[^:]+)")


def page_of(target: re.Match[str]) -> str:
    """Name the generated page of a run.

    Args:
        target: A match of one of the patterns above.

    Returns:
        Such as ``masking-torch``.
    """
    return "-".join(filter(None, (target["stem"], target["backend"])))


def record_of(env: BuildEnvironment, target: re.Match[str]) -> dict[str, Any]:
    """Read the record of a run; the page that is being read is built again when the record changes.

    Args:
        env: Of the page.
        target: A match of one of the patterns above.

    Returns:
        The record.

    Raises:
        RecordError: It isn't there.
    """
    path = Path(env.srcdir, "experiments", f"{page_of(target)}.json")
    # Noted before it is read: a page that quotes a missing record is built again once the record is there.
    env.note_dependency(str(path))
    return published_record(path)


def figure_of(env: BuildEnvironment, name: str) -> tuple[str, str]:
    """Look up a figure or a film of a run.

    Args:
        env: Of the page.
        name: Such as ``masking/torch/learning_curve``.

    Returns:
        Its address within the book, and the text for those who can't see it.

    Raises:
        RecordError: There is no such figure.
    """
    target = FIGURE.fullmatch(name)
    if target is None:
        raise RecordError("expected stem/backend/figure; remedy: masking/torch/learning_curve")
    alt = result_from(record_of(env, target).get("figures", {}), target["name"])
    folder = f"/experiments/{page_of(target)}"
    film = Path(env.srcdir, folder[1:], f"{target['name']}.png").is_file()
    return f"{folder}/{target['name']}.{'png' if film else 'svg'}", alt
