"""What pages load, cut down to what they use: rules of style sheets, letters of fonts, digits of figures."""

import html
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tinycss2
from fontTools import subset
from sphinx.application import Sphinx

__all__ = ["setup", "trim_figure", "trim_style"]

_NAMES = re.compile(r'\b(?:class|id)="([^"]*)"')
_SCRIPT = re.compile(r"<script\b[^>]*>(.*?)</script>", re.DOTALL)
_LOADED = re.compile(r"([\w.-]+\.(?:js|css|woff2))\b")
_FACE = re.compile(r'@font-face\s*\{[^}]*?font-family:\s*"?([^";}]+)[^}]*\}')
_WORD = re.compile(r"[\w-]+")
_ASKED = re.compile(r"var\(\s*(--[\w-]+)")
_SHORTEST = 3  # of what a script puts before a name; a shorter one is a minus sign
_PLACES = re.compile(r'\b((?:d|points|[xy][12]?)=")([^"]*)')
_LONG = re.compile(r"\d+\.\d{3,}")
_FEATURES = ["calt", "ccmp", "kern", "liga", "mark", "tnum"]  # the last one is what our style asks for


def trim_style(text: str, has: Callable[[str], bool]) -> str:
    """Drop rules that need a class or an id, and custom properties, which ``has`` denies; licences stay."""
    return "".join(_kept(tinycss2.parse_stylesheet(text, skip_whitespace=True), has))


def trim_figure(text: str) -> str:
    """Write the places in an SVG with two digits after the point; Matplotlib writes six."""
    return re.sub(r">\n\s*<", "><", _PLACES.sub(_shortened, text))


def _shortened(place: re.Match[str]) -> str:
    numbers = _LONG.sub(lambda number: f"{float(number[0]):.2f}".rstrip("0").rstrip("."), place[2])
    return place[1] + re.sub(r"\s*([A-Za-z])\s*", r"\1", " ".join(numbers.split()))


def _kept(rules: Sequence[Any], has: Callable[[str], bool]) -> Iterator[str]:
    for rule in rules:
        if rule.type == "qualified-rule":
            selector = ",".join(_written(a) for a in _split(rule.prelude, ",") if all(map(has, _needed(a))))
            declared = [text for part in _split(rule.content, ";") if (text := _written(part))]
            content = ";".join(d for d in declared if not d.startswith("--") or has(d.partition(":")[0]))
            if selector and content:
                yield f"{selector}{{{content}}}\n"
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


def _split(tokens: Sequence[Any], sign: str) -> list[list[Any]]:
    parts: list[list[Any]] = [[]]
    for token in tokens:
        if token == sign:
            parts.append([])
        elif token.type != "comment":
            parts[-1].append(token)
    return parts


def _written(tokens: Sequence[Any]) -> str:
    return tinycss2.serialize(tokens).strip()


def _needed(selector: Sequence[Any]) -> Iterator[str]:
    """Name the classes and ids without which it applies to nothing; what stands in ``:not()`` is none."""
    for before, token in zip([None, *selector], selector, strict=False):
        if token.type == "hash" or (token.type == "ident" and before == "."):
            yield token.value


def _used(pages: Sequence[str], scripts: Sequence[str]) -> Callable[[str], bool]:
    """Collect the names that pages have or scripts mention, there also by their beginnings."""
    names = {name for page in pages for group in _NAMES.findall(page) for name in group.split()}
    names.update(name for page in pages for name in _ASKED.findall(page))
    parts = [script for page in pages for script in _SCRIPT.findall(page)]
    mentioned = {word for script in (*parts, *scripts) for word in _WORD.findall(script)}
    names |= mentioned
    beginnings = tuple(word for word in mentioned if word.endswith("-") and len(word) >= _SHORTEST)
    return lambda name: name in names or name.startswith(beginnings)


def _trimmed(styles: Mapping[Path, str], has: Callable[[str], bool]) -> dict[Path, str]:
    asked = set(_ASKED.findall("".join(styles.values())))
    return {
        path: trim_style(style, lambda name: has(name) or name in asked) for path, style in styles.items()
    }


def _cut_down(path: Path, letters: set[str]) -> None:
    # Browsers need neither hinting at today's resolutions nor the names of glyphs.
    options = subset.Options(flavor="woff2", layout_features=_FEATURES, hinting=False, notdef_outline=True)
    with subset.load_font(str(path), options) as font:
        subsetter = subset.Subsetter(options)
        subsetter.populate(unicodes=map(ord, letters))
        subsetter.subset(font)
        subset.save_font(font, str(path), options)


def _finish(app: Sphinx, exception: Exception | None) -> None:
    if exception is not None or app.builder.name != "html":
        return
    site = Path(app.outdir)
    # In _static lies a template of the theme, which names scripts that no page loads.
    pages = [_read(path) for path in site.rglob("*.html") if path.relative_to(site).parts[0] != "_static"]
    loaded = {name for text in (*pages, *map(_read, site.rglob("*.css"))) for name in _LOADED.findall(text)}
    # The search's index holds the words of the text, which are no names.
    scripts = [_read(path) for path in site.rglob("*.js") if path.name in loaded - {"searchindex.js"}]
    styles = {path: _read(path) for path in site.rglob("*.css") if path.name in loaded}
    has = _used(pages, scripts)
    # Twice: nobody asks any more for a property for which only a dropped rule asked.
    styles = _trimmed(_trimmed(styles, has), has)
    # A face may escape what others put in quotes: Font Awesome\\ 6 Brands.
    named = _FACE.sub("", "".join(styles.values())).replace("\\", "")
    for path, style in styles.items():
        styles[path] = _FACE.sub(lambda face: face[0] if face[1].replace("\\", "") in named else "", style)
        path.write_text(styles[path], encoding="utf-8")
    # Icons stand in styles: what was escaped there is written out now.
    letters = {letter for text in (*map(html.unescape, pages), *scripts, *styles.values()) for letter in text}
    fonts = {name for style in styles.values() for name in _LOADED.findall(style)}
    for path in (path for path in site.rglob("*.woff2") if path.name in fonts):
        _cut_down(path, letters)
    for path in site.glob("_images/*.svg"):
        path.write_text(trim_figure(_read(path)), encoding="utf-8")


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def setup(app: Sphinx) -> None:
    """Trim a site when it is finished; after the extensions that add their style sheets then."""
    app.connect("build-finished", _finish, priority=900)
    logging.getLogger("fontTools").setLevel(logging.ERROR)  # or it tells of every glyph
