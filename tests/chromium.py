"""Chromium, for the tests that look at pages in a browser."""

import shutil

import pytest

from gradtricks.book.pdf import BROWSERS

CHROMIUM = next(filter(None, map(shutil.which, BROWSERS)), None)
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None,
    reason="there is no Chromium; `apt-get install chromium`, as root, installs Debian's",
)
