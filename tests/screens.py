"""Pictures of pages, small and grey: a broken layout shows in them, another number hardly."""

import io
from pathlib import Path

import matplotlib
import numpy as np
from PIL import Image

BLOCK = 8  # pixels of the screen for one of a picture
SQUARE = 16  # of those: larger than a line of text, smaller than a figure
FONTS = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
STYLES = {
    "": "normal normal",
    "-Bold": "bold normal",
    "-Oblique": "normal italic",
    "-BoldOblique": "bold italic",
}


def _face(family, style):
    weight, slant = STYLES[style].split()
    source = f"url(/pinned/DejaVu{family}{style}.ttf)"
    return f"@font-face {{font-family: {family}; font-weight: {weight}; font-style: {slant}; src: {source}}}"


# Lines break where the widths of letters say. Those depend on the machine's fonts, and browsers round them.
PINNED = "\n".join(
    [
        *(_face(family, style) for family in ("Sans", "SansMono") for style in STYLES),
        ":root {--pst-font-family-base-system: Sans !important}",
        ":root {--pst-font-family-monospace-system: SansMono !important}",
        "* {text-rendering: geometricPrecision !important}",
    ]
)
READY = """async (where) => {
    document.querySelector("#pst-primary-sidebar").scrollTop = 0;
    for (const image of document.images) image.loading = "eager";
    await Promise.allSettled([...document.images].map((image) => image.decode()));
    await document.fonts.ready;
    document.querySelector(where).scrollIntoView();
    // What is highlighted in the table of contents follows a little later.
    await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
}"""


def pin_fonts(page):
    """Let every page that is opened find the fonts that ``photograph`` gives it."""
    page.route("**/pinned/*", lambda route: route.fulfill(path=FONTS / Path(route.request.url).name))


def photograph(page, where, style=""):
    """Take a PNG of what is on the screen when a page has come to rest and ``where`` is at its top."""
    page.add_style_tag(content=PINNED + style)
    page.evaluate(READY, where)
    return page.screenshot(animations="disabled")


def reduce(png):
    """Return a picture that holds the grey of each block."""
    return Image.open(io.BytesIO(png)).convert("L").reduce(BLOCK)


def difference(picture, path):
    """Return by how much of 255 the grey of the most changed square is another than in a stored picture."""
    changes = np.asarray(picture, dtype=float) - np.asarray(Image.open(path), dtype=float)
    squares = np.lib.stride_tricks.sliding_window_view(changes, (SQUARE, SQUARE))
    return abs(squares.mean(axis=(2, 3))).max()
