"""What roles and directives of a page name: a run, a result of it, and its figures."""

import json
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.environment import BuildEnvironment
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective, SphinxRole

from gradtricks.lab.recording import decode
from gradtricks.lab.results.quoting import RecordError, result_from

__all__ = ["NAMED", "RUN", "figure_of", "problem", "published_record", "record_of"]

logger = logging.getLogger(__name__)

# A notebook without a backend has one run; the page of a sweep is quoted as if "sweep" were its backend.
_RUN = r"(?P<stem>[A-Za-z0-9][A-Za-z0-9_.-]*)(?:/(?P<backend>[a-z]+))?"
RUN = re.compile(_RUN)
NAMED = re.compile(_RUN + r"/(?P<name>[^:]+)(?::(?P<spec>.*))?")


def published_record(path: Path) -> dict[str, Any]:
    """Read the record of one run, ``<stem>-<backend>.json``; a RecordError says that there is none."""
    try:
        return _parse_record(path, path.stat().st_mtime_ns)
    except FileNotFoundError as error:
        there = ", ".join(sorted(p.stem for p in path.parent.glob("*.json"))) or "none"
        raise RecordError(
            f"expected the record {path.name}; got the records: {there}; remedy: run `make book`, "
            "which runs the notebooks, or mend the name"
        ) from error
    except json.JSONDecodeError as error:
        raise RecordError(f"{path.name} must be JSON; got {error}; remedy: run `make book` again") from error


@lru_cache(maxsize=64)
def _parse_record(path: Path, modified_ns: int) -> dict[str, Any]:
    record = decode(json.loads(path.read_text(encoding="utf-8")))
    if not isinstance(record, dict) or not isinstance(record.get("results"), dict):
        raise RecordError(f"{path} must be a record with results; got {type(record).__name__}")
    return record


def record_of(env: BuildEnvironment, target: re.Match[str]) -> dict[str, Any]:
    """Read the record of a run that a match of the patterns above names.

    The page that is being read is built again when the record changes.
    """
    path = Path(env.srcdir, "experiments", f"{_page_of(target)}.json")
    # Noted before it is read: a page that quotes a missing record is built again once the record is there.
    env.note_dependency(str(path))
    return published_record(path)


def figure_of(env: BuildEnvironment, name: str) -> tuple[str, str]:
    """Look up a figure or a film such as ``masking/torch/learning_curve``: its address and its text."""
    target = NAMED.fullmatch(name)
    if target is None:
        raise RecordError("expected stem/backend/figure; remedy: masking/torch/learning_curve")
    alt = result_from(record_of(env, target).get("figures", {}), target["name"])
    folder = f"/experiments/{_page_of(target)}"
    film = Path(env.srcdir, folder[1:], f"{target['name']}.png").is_file()
    return f"{folder}/{target['name']}.{'png' if film else 'svg'}", alt


def problem(where: SphinxDirective | SphinxRole, text: str, error: RecordError) -> list[nodes.Node]:
    """Warn, which fails the build, and mark the place on the page."""
    logger.warning("%s %r: %s", where.name, text, error, location=where.get_location(), type="result")
    return [nodes.problematic(text, text)]


def _page_of(target: re.Match[str]) -> str:
    """Name the generated page of a run, such as ``masking-torch``."""
    return "-".join(filter(None, (target["stem"], target["backend"])))
