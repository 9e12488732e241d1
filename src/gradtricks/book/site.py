"""The site: built beside the one that is there, and out of it where only the text of chapters has changed."""

import hashlib
import json
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from gradtricks.lab.recording import installed_versions
from gradtricks.lab.runs.execution import RunError

__all__ = ["BuildError", "build", "keeps_what_others_use"]

_QUOTED = ("experiments", "src", "tests")  # folders beside the book from which pages quote
# Beside what Sphinx read, the digests of all that the site was made from; in the site, the digest of these.
_BUILT_FROM = ".built-from"
_SITEMAP = "sitemap.xml"
_CITED = re.compile(r"\{cite[^`]*`([^`]*)`")
_TITLE = re.compile(r"<title>(.*?)</title>", re.DOTALL)
_ANCHOR_OR_FILE = re.compile(r'\b(?:id|src)="([^"]*)"')


class BuildError(RunError):
    """A page can't be built, or Sphinx found something to complain of; the old book is untouched."""


def build(book: Path, site: Path) -> None:
    """Build the book beside the one that is there, and replace that only when nothing is wrong.

    Where nothing has changed since the one that is there was built, it stays. Where only the text of chapters
    has, and nothing that other pages take from them, these are built and the other pages are taken over. A
    BuildError has the warnings of Sphinx.
    """
    fresh, old, read = (site.with_name(f"{site.name}.{name}") for name in ("new", "old", "read"))
    if old.exists() and not site.exists():  # killed between the two renames below
        old.rename(site)
    shutil.rmtree(fresh, ignore_errors=True)
    digests, known = _digests(book.absolute()), _text_of(read / _BUILT_FROM)
    summed = _text_of(site / _BUILT_FROM)
    if summed == _sum_up(digests):
        return
    made = fresh / "_build"
    html = made / "html"
    kept = summed == _sum_up(known)  # what Sphinx read for this site
    chapters = _changed_chapters(book.name, json.loads(known), json.loads(digests)) if kept else []
    if not (chapters and _build_chapters(book, chapters, site, read, fresh)):
        shutil.rmtree(fresh, ignore_errors=True)
        _run_sphinx(book, fresh, "--all")
    if _digests(book.absolute()) != digests:  # something was saved while Sphinx read: read all the next time
        digests = "{}"
    (html / _BUILT_FROM).write_text(_sum_up(digests), encoding="utf-8")
    (made / _BUILT_FROM).write_text(digests, encoding="utf-8")
    for folder in (old, read):
        shutil.rmtree(folder, ignore_errors=True)
    if site.exists():
        site.rename(old)
    html.rename(site)
    made.rename(read)
    for folder in (old, fresh):
        shutil.rmtree(folder, ignore_errors=True)


def _build_chapters(book: Path, chapters: list[str], site: Path, read: Path, fresh: Path) -> bool:
    """Build on what was read and written before; say whether the other pages are right as they are."""
    html = fresh / "_build" / "html"
    # Beside what Sphinx read lie the figures of notebooks: without them it would read all notebooks again.
    shutil.copytree(read, fresh / "_build")
    # Static files are written anew: Sphinx looks at those that are there for the addresses of styles.
    shutil.copytree(site, html, ignore=lambda folder, _: {"_static"} if Path(folder) == site else set())
    _run_sphinx(book, fresh)
    _forget_lost_words(html / "searchindex.js")
    if (site / _SITEMAP).is_file():  # what writes it lists the pages of this call of Sphinx only
        shutil.copyfile(site / _SITEMAP, html / _SITEMAP)
    return all(keeps_what_others_use(chapter, site, html) for chapter in chapters)


def _forget_lost_words(path: Path) -> None:
    """Take the words out of the search that Sphinx left there without a page."""
    from sphinx.search import js_index  # not needed where nothing is built

    if path.is_file():
        index = js_index.loads(path.read_text(encoding="utf-8"))
        for words in ("terms", "titleterms"):
            index[words] = {word: pages for word, pages in index[words].items() if pages != []}
        path.write_text(js_index.dumps(index), encoding="utf-8")


def keeps_what_others_use(chapter: str, then: Path, now: Path) -> bool:
    """Say whether a chapter has its title, its anchors and its files still, and cites what it cited."""
    old, new = ((site / f"{chapter}.html").read_text(encoding="utf-8") for site in (then, now))
    cited = [sorted(_CITED.findall(_text_of(site / "_sources" / f"{chapter}.md"))) for site in (then, now)]
    same = _TITLE.findall(old) == _TITLE.findall(new) and cited[0] == cited[1]
    return same and set(_ANCHOR_OR_FILE.findall(old)) <= set(_ANCHOR_OR_FILE.findall(new))


def _run_sphinx(book: Path, fresh: Path, *options: str) -> None:
    jupyter_book = str(Path(sys.executable).with_name("jupyter-book"))
    options = ("-W", "--keep-going", "-n", "--quiet", "--path-output", str(fresh), *options)
    finished = subprocess.run(
        [jupyter_book, "build", str(book), *options], check=False, capture_output=True, text=True
    )
    if finished.returncode:
        raise BuildError(
            f"{finished.stdout}{finished.stderr}\nThe book wasn't replaced: Sphinx found the above."
        )


def _changed_chapters(book: str, then: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """List the chapters whose text changed; none where anything else did, or where one came or went."""
    changed = [name for name in then.keys() | now.keys() if then.get(name) != now.get(name)]
    chapters = [re.fullmatch(rf"{re.escape(book)}/([^/]+)\.md", name) for name in changed]
    if not all(chapter and name in then and name in now for chapter, name in zip(chapters, changed)):
        return []
    return sorted(chapter[1] for chapter in chapters if chapter)


def _digests(book: Path) -> str:
    """Sum up each of the project's sources, other than hidden and made ones, and what is installed."""
    project = book.parent
    folders = [book, *(project / name for name in _QUOTED)]
    digests = {"<installed>": json.dumps([platform.python_version(), installed_versions()], sort_keys=True)}
    for path in sorted([*project.iterdir(), *(path for folder in folders for path in folder.rglob("*"))]):
        name = path.relative_to(project)
        made = any(part[0] == "." or part.endswith(("__pycache__", ".egg-info")) for part in name.parts)
        if path.is_file() and not made:
            digests[name.as_posix()] = hashlib.sha256(path.read_bytes()).hexdigest()
    return json.dumps(digests)


def _sum_up(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""
