"""What readers load, cut down: styles and fonts to what pages use, pages and figures to what is seen."""

import html
import logging
import re
from pathlib import Path

from fontTools import subset
from sphinx.application import Sphinx

__all__ = ["setup", "trim_style"]

_COMMENT_OR_RULE = re.compile(r"/\*.*?\*/|([^{};/]+)\{([^{}]*)\}", re.DOTALL)
_INSIDE = re.compile(r"\([^()]*\)|\[[^\]]*\]")  # what stands in :not() or :is() isn't needed
_NEEDED = re.compile(r"[.#](-?[a-zA-Z_][\w-]*)")
_PROPERTY = re.compile(r"(?<![^;])\s*(--[\w-]+):(?:url\([^)]*\)|[^;])*;?")
_ASKED = re.compile(r"var\(\s*(--[\w-]+)")
_WORD = re.compile(r"[\w-]+")
_LOADED = re.compile(r"([\w.-]+\.(?:js|css|woff2))\b")
_ICON = re.compile(r"\\([0-9a-f]{2,6})")
# Names, marks and spaces of code look as its block does: half of what a notebook's page weighs.
_PLAIN = re.compile(r'<span class="[npw]">([^<]*)</span>')
_PLACES = re.compile(r'\s(?:d|x|y)="[^"]*"')  # not what scales: 1/64 must stay
_DIGITS = re.compile(r"\d+\.\d{3,}")
_INDENTED = re.compile(r"\s*\n\s*")
_FEATURES = ["calt", "ccmp", "kern", "liga", "mark", "tnum"]  # the last one is what our style asks for


def trim_style(text: str, words: set[str]) -> str:
    """Drop comments, rules that need a class or an id which isn't in the words, and custom properties.

    Words are those of pages and scripts, and what styles ask for by ``var``. A script may put a property's
    name together, of ``--line-`` and a number for example. Licences, which begin with ``/*!``, stay.
    """
    begun = tuple(word for word in words if word.startswith("--") and word.endswith("-") and word.strip("-"))

    def needed(declared: re.Match[str]) -> str:
        return declared[0] if declared[1] in words or declared[1].startswith(begun) else ""

    def kept(found: re.Match[str]) -> str:
        if found[1] is None:
            return found[0] if found[0].startswith("/*!") else ""
        selectors = _INSIDE.sub("", _INSIDE.sub("", found[1])).split(",")
        if not any(words.issuperset(_NEEDED.findall(selector)) for selector in selectors):
            return ""
        return f"{found[1]}{{{_PROPERTY.sub(needed, found[2])}}}"

    return _COMMENT_OR_RULE.sub(kept, text)


def trim_figure(svg: str) -> str:
    """Round the places in a drawing to hundredths of a point, and put it on one line."""

    def short(number: re.Match[str]) -> str:
        return f"{float(number[0]):.2f}".rstrip("0").rstrip(".")

    rounded = _PLACES.sub(lambda places: _DIGITS.sub(short, places[0]), svg)
    return _INDENTED.sub(" ", rounded).replace("> <", "><")


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
    paths = [path for path in site.rglob("*.html") if path.relative_to(site).parts[0] != "_static"]
    for path in paths:
        if (shorter := _PLAIN.sub(r"\1", text := _read(path))) != text:
            path.write_text(shorter, encoding="utf-8")
    for path in (site / "_images").glob("*.svg"):
        path.write_text(trim_figure(_read(path)), encoding="utf-8")
    pages = [_read(path) for path in paths]
    styles = {path: _read(path) for path in site.rglob("*.css")}
    loaded = {name for text in (*pages, *styles.values()) for name in _LOADED.findall(text)}
    # The search's index holds the words of the text, which are no names.
    scripts = [_read(path) for path in site.rglob("*.js") if path.name in loaded - {"searchindex.js"}]
    words = {word for text in (*pages, *scripts) for word in _WORD.findall(text)}
    for _ in range(2):  # the second time without what only dropped rules asked for
        asked = words.union(*map(_ASKED.findall, styles.values()))
        styles = {path: trim_style(style, asked) for path, style in styles.items() if path.name in loaded}
    for path, style in styles.items():
        path.write_text(style, encoding="utf-8")
    letters = {letter for text in (*map(html.unescape, pages), *scripts, *styles.values()) for letter in text}
    letters |= {chr(int(code, 16)) for style in styles.values() for code in _ICON.findall(style)}
    for path in (path for path in site.rglob("*.woff2") if path.name in loaded):
        _cut_down(path, letters)


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def setup(app: Sphinx) -> None:
    """Trim a site when it is finished; after the extensions that add their style sheets then."""
    app.connect("build-finished", _finish, priority=900)
    logging.getLogger("fontTools").setLevel(logging.ERROR)  # or it tells of every glyph
