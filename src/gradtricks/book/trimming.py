"""What pages load, cut down to what they use: rules of style sheets, and glyphs of the theme's icons."""

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import tinycss2
from fontTools import subset
from sphinx.application import Sphinx

__all__ = ["setup", "trim_style"]

_NAMES = re.compile(r'\b(?:class|id)="([^"]*)"')
_SCRIPT = re.compile(r"<script\b[^>]*>(.*?)</script>", re.DOTALL)
_LOADED = re.compile(r"([\w.-]+\.js)\b")
_WORD = re.compile(r"[\w-]+")
_SHORTEST = 3  # of what a script puts before a name; a shorter one is a minus sign


def trim_style(text: str, has: Callable[[str], bool]) -> str:
    """Drop the rules that need a class or an id which ``has`` denies; notices of licences stay."""
    return "".join(_kept(tinycss2.parse_stylesheet(text, skip_whitespace=True), has))


def _kept(rules: Sequence[Any], has: Callable[[str], bool]) -> Iterator[str]:
    for rule in rules:
        if rule.type == "qualified-rule":
            alternatives = [a for a in _alternatives(rule.prelude) if all(map(has, _needed(a)))]
            if alternatives:
                selector = ",".join(tinycss2.serialize(a).strip() for a in alternatives)
                yield f"{selector}{{{tinycss2.serialize(rule.content).strip()}}}\n"
        elif (
            rule.type == "at-rule"
            and rule.lower_at_keyword in ("layer", "media", "supports")
            and rule.content
        ):
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


def _used(site: Path) -> Callable[[str], bool]:
    """Collect the names that pages have or scripts mention, there also by their beginnings."""
    names: set[str] = set()
    mentioned: set[str] = set()
    loaded: set[str] = set()
    # In _static lies a template of the theme, which names scripts that no page loads.
    for path in (p for p in site.rglob("*.html") if p.relative_to(site).parts[0] != "_static"):
        page = path.read_text(encoding="utf-8")
        names.update(name for group in _NAMES.findall(page) for name in group.split())
        mentioned.update(word for script in _SCRIPT.findall(page) for word in _WORD.findall(script))
        loaded.update(_LOADED.findall(page))
    for path in site.rglob("*.js"):
        # The index holds the words of the text, which are no names.
        if path.name in loaded - {"searchindex.js"}:
            mentioned.update(_WORD.findall(path.read_text(encoding="utf-8")))
    names |= mentioned
    beginnings = tuple(word for word in mentioned if word.endswith("-") and len(word) >= _SHORTEST)
    return lambda name: name in names or name.startswith(beginnings)


def _cut_down(path: Path, codes: set[int]) -> None:
    # Browsers need neither hinting at today's resolutions nor the names of glyphs.
    options = subset.Options(flavor="woff2", layout_features=["*"], hinting=False, notdef_outline=True)
    with subset.load_font(str(path), options) as font:
        subsetter = subset.Subsetter(options)
        subsetter.populate(unicodes=codes)
        subsetter.subset(font)
        subset.save_font(font, str(path), options)


def _finish(app: Sphinx, exception: Exception | None) -> None:
    if exception is not None or app.builder.name != "html":
        return
    site = Path(app.outdir)
    has, codes = _used(site), set()
    for path in site.rglob("*.css"):
        style = trim_style(path.read_text(encoding="utf-8"), has)
        path.write_text(style, encoding="utf-8")
        codes |= {*map(ord, style)}  # icons among them: what was escaped is written out now
    for path in site.rglob("fa-*.woff2"):
        _cut_down(path, codes)


def setup(app: Sphinx) -> None:
    """Trim a site when it is finished; after the extensions that add their style sheets then."""
    app.connect("build-finished", _finish, priority=900)
    logging.getLogger("fontTools").setLevel(logging.WARNING)  # or it tells of every glyph
