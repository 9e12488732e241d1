"""The site: built beside the one that is there; Sphinx reads again what changed, and writes all pages."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

from gradtricks.lab.identity import PACKAGE, bytes_below
from gradtricks.lab.recording import installed_versions
from gradtricks.lab.runs.execution import RunError

__all__ = ["BuildError", "build", "tools"]

_TOOLS = ".tools"  # with what was read what lies beside it


class BuildError(RunError):
    """A page can't be built, or Sphinx found something to complain of; the old book is untouched."""


def build(book: Path, site: Path) -> None:
    """Build the book beside the one that is there, and replace that only when nothing is wrong.

    Pages that nothing changed are taken as Sphinx read them for the last book, unless other tools did. A
    BuildError has the warnings of Sphinx; the next build then reads all pages, so that it has them too.
    """
    fresh, old, read = (site.with_name(f"{site.name}.{name}") for name in ("new", "old", "read"))
    if old.exists() and not site.exists():  # killed between the two renames below
        old.rename(site)
    shutil.rmtree(fresh, ignore_errors=True)
    now = tools()
    # Moved, not copied: after a kill or a warning nothing is left that the next build would trust.
    if (read / _TOOLS).is_file() and (read / _TOOLS).read_text(encoding="utf-8") == now:
        read.rename(fresh)
    _run_sphinx(book, fresh)
    (fresh / _TOOLS).write_text(now, encoding="utf-8")
    shutil.rmtree(old, ignore_errors=True)
    if site.exists():
        site.rename(old)
    (fresh / "_build" / "html").rename(site)
    for folder in (old, read):
        shutil.rmtree(folder, ignore_errors=True)
    fresh.rename(read)


def tools() -> str:
    """Sum up what makes pages: the book's and the lab's sources, and what is installed."""
    made_with = [*(bytes_below(PACKAGE / room) for room in ("book", "lab")), installed_versions()]
    return json.dumps(made_with, sort_keys=True)


def _run_sphinx(book: Path, fresh: Path) -> None:
    jupyter_book = str(Path(sys.executable).with_name("jupyter-book"))
    options = ("-W", "--keep-going", "-n", "--quiet", "--path-output", str(fresh))
    finished = subprocess.run(
        [jupyter_book, "build", str(book), *options], check=False, capture_output=True, text=True
    )
    if finished.returncode:
        raise BuildError(
            f"{finished.stdout}{finished.stderr}\nThe book wasn't replaced: Sphinx found the above."
        )
