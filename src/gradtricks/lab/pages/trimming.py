"""What the pages load, cut down to what they use: rules of style sheets and glyphs of fonts."""

import hashlib
import html
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tinycss2
from fontTools import subset
from sphinx.application import Sphinx

__all__ = ["setup", "trim", "trim_style"]

_NAMES = re.compile(r'\b(?:class|id)="([^"]*)"')
_SCRIPT = re.compile(r"<script\b([^>]*)>(.*?)</script>", re.DOTALL)
_SOURCE = re.compile(r'\bsrc="([^"?]+)')
_LATER = re.compile(r'\.src = "([^"?]+)')  # of a script that another one loads
_WORD = re.compile(r"[\w-]+")
_ESCAPE = re.compile(r"\\([0-9a-fA-F]{1,6})")
_NESTING = ("layer", "media", "supports")
_SHORTEST = 3  # of what a script puts before a name; a shorter one is a minus sign


@dataclass(frozen=True)
class _Used:
    """What is used anywhere: names of classes and ids, beginnings of such names, and characters."""

    names: frozenset[str]
    beginnings: tuple[str, ...]
    characters: frozenset[str]

    def has(self, name: str) -> bool:
        return name in self.names or name.startswith(self.beginnings)


def trim(site: Path, kept: Path) -> None:
    """Drop from a site's style sheets what no page or script names, and from its fonts what isn't shown.

    A rule stays as long as it may apply to a class or an id that a page has or a script mentions, also by
    the beginning of its name. Doing it twice changes nothing.

    Args:
        site: Folder of the finished pages.
        kept: Folder of trimmed fonts: one that is cut down in the same way again is taken from there.
    """
    used = _used(site)
    characters = set(used.characters)
    for path in sorted(site.rglob("*.css")):
        text = trim_style(path.read_text(encoding="utf-8"), used.has)
        path.write_text(text, encoding="utf-8")
        characters |= {*text, *(chr(int(code, 16)) for code in _ESCAPE.findall(text))}
    for path in sorted(site.rglob("*.woff2")):
        _trim_font(path, characters, kept)


def trim_style(text: str, has: Callable[[str], bool]) -> str:
    """Drop the rules that need a class or an id which isn't there; notices of licences stay.

    Args:
        text: A style sheet.
        has: Says of a name whether it is there.

    Returns:
        The style sheet that is left.
    """
    return "".join(_kept(tinycss2.parse_stylesheet(text, skip_whitespace=True), has))


def _kept(rules: Sequence[Any], has: Callable[[str], bool]) -> Iterator[str]:
    for rule in rules:
        if rule.type == "qualified-rule":
            alternatives = [a for a in _alternatives(rule.prelude) if all(map(has, _needed(a)))]
            if alternatives:
                selector = ",".join(tinycss2.serialize(a).strip() for a in alternatives)
                yield f"{selector}{{{tinycss2.serialize(rule.content).strip()}}}\n"
        elif rule.type == "at-rule" and rule.content is not None and rule.lower_at_keyword in _NESTING:
            inner = "".join(_kept(tinycss2.parse_rule_list(rule.content, skip_whitespace=True), has))
            if inner:
                yield f"@{rule.at_keyword}{tinycss2.serialize(rule.prelude)}{{\n{inner}}}\n"
        elif rule.type != "comment" or rule.value.startswith("!"):
            yield f"{rule.serialize()}\n"


def _alternatives(prelude: Sequence[Any]) -> list[list[Any]]:
    alternatives: list[list[Any]] = [[]]
    for part in prelude:
        if part == ",":
            alternatives.append([])
        else:
            alternatives[-1].append(part)
    return alternatives


def _needed(selector: Sequence[Any]) -> Iterator[str]:
    """Name the classes and ids without which it applies to nothing; what stands in ``:not()`` is none."""
    for before, token in zip([None, *selector], selector, strict=False):
        if token.type == "hash" or (token.type == "ident" and before == "."):
            yield token.value


def _used(site: Path) -> _Used:
    names: set[str] = set()
    characters = {chr(code) for code in range(ord(" "), 127)}
    scripts: dict[Path, str] = {}
    for path in sorted(p for p in site.rglob("*.html") if p.relative_to(site).parts[0] != "_static"):
        page = path.read_text(encoding="utf-8")
        names.update(name for group in _NAMES.findall(page) for name in group.split())
        characters.update(html.unescape(page))
        for attributes, text in _SCRIPT.findall(page):
            names.update(_WORD.findall(text))
            for source in _SOURCE.findall(attributes) + _LATER.findall(text):
                script = (path.parent / source).resolve()
                # The index holds the words of the text, which are no names.
                if script not in scripts and script.name != "searchindex.js":
                    scripts[script] = script.read_text(encoding="utf-8")
    mentioned = {word for text in scripts.values() for word in _WORD.findall(text)}
    beginnings = sorted(word for word in mentioned if word.endswith("-") and len(word) >= _SHORTEST)
    return _Used(frozenset(names | mentioned), tuple(beginnings), frozenset(characters))


def _trim_font(path: Path, characters: set[str], kept: Path) -> None:
    """Trim a font in its place; what comes out is kept under the digest of what it comes from."""
    made_from = hashlib.sha256(path.read_bytes())
    made_from.update("".join(sorted(characters)).encode())
    trimmed = kept / f"{made_from.hexdigest()}.woff2"
    if not trimmed.is_file():
        kept.mkdir(parents=True, exist_ok=True)
        _write_trimmed(path, characters, trimmed)
    path.write_bytes(trimmed.read_bytes())


def _write_trimmed(path: Path, characters: set[str], trimmed: Path) -> None:
    # Browsers need neither hinting at today's resolutions nor the names of glyphs.
    options = subset.Options(flavor="woff2", layout_features=["*"], hinting=False, notdef_outline=True)
    with subset.load_font(str(path), options) as font:
        subsetter = subset.Subsetter(options)
        subsetter.populate(unicodes=map(ord, characters))
        subsetter.subset(font)
        subset.save_font(font, str(trimmed), options)


def setup(app: Sphinx) -> None:
    """Trim a site when it is finished; after the extensions that add their style sheets then."""
    app.connect("build-finished", _finish, priority=900)
    logging.getLogger("fontTools").setLevel(logging.WARNING)  # or it tells of every glyph


def _finish(app: Sphinx, exception: Exception | None) -> None:
    if exception is None and app.builder.name == "html":
        trim(Path(app.outdir), Path(app.doctreedir, "fonts"))
