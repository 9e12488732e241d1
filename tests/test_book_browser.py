"""The book in a real browser: the finished one where there is one, and always a small one."""

import functools
import http.server
import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

sync_api = pytest.importorskip("playwright.sync_api")
pytest.importorskip("jupyter_book")

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / "_build" / "html"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
THEMES = ("light", "dark")
WIDTHS = (1280, 390)

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")

LONG = "a_name_that_goes_on_and_on_" * 6
PAGE = f"""
# A page

:::{{admonition}} Answer
:class: answer
Nothing here is wider than the page, not even `{LONG}`.
:::

$$
x = {" + ".join(f"x_{{{n}}}" for n in range(60))}
$$

| a | b |
|---|---|
| {LONG} | $\\sum_{{i=0}}^n {" + ".join(f"y_{{{n}}}" for n in range(30))}$ |

::::{{tab-set}}
:sync-group: framework

:::{{tab-item}} PyTorch
:sync: torch
```python
{LONG} = "{LONG}"
```
:::

:::{{tab-item}} TensorFlow
:sync: tensorflow
Text of the second tab.
:::
::::

```{{figure}} wide.svg
:alt: a bar that is wider than a phone
```

```{{eval-rst}}
.. py:function:: f({", ".join(f"argument_number_{n}: float = 0.0" for n in range(12))}) -> None
```
"""
SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="900" height="90">'
    '<rect width="900" height="90" fill="#68717d"/></svg>'
)


@pytest.fixture(scope="session")
def small_site(tmp_path_factory):
    """One page, built with the book's own configuration and assets."""
    root = tmp_path_factory.mktemp("small")
    (root / "_config.yml").write_text((ROOT / "_config.yml").read_text())
    book = root / "book"
    shutil.copytree(ROOT / "book" / "_assets", book / "_assets")
    (book / "index.md").write_text(PAGE)
    (book / "wide.svg").write_text(SVG)
    (book / "references.bib").write_text("")
    (book / "_toc.yml").write_text("format: jb-book\nroot: index\n")
    command = [str(Path(sys.executable).with_name("jupyter-book")), "build", str(book), "-W", "-n", "--all"]
    command += ["--keep-going", "--path-output", str(root / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return root / "out" / "_build" / "html"


@pytest.fixture(scope="module")  # while Playwright is there, an event loop runs in this process
def browser():
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture
def serve():
    """Serve folders on this machine; storage and search work as on a web server."""
    servers = []

    def start(folder):
        handler = functools.partial(_Quiet, directory=str(folder))
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def page(browser):
    context = browser.new_context(viewport={"width": WIDTHS[0], "height": 900})
    yield context.new_page()
    context.close()


@pytest.fixture
def findings(page):
    """What goes wrong on the page, as it happens: the list grows while the page is used."""
    found = []
    page.on(
        "console", lambda m: found.append(f"console: {m.text}") if m.type in ("error", "warning") else None
    )
    page.on("pageerror", lambda error: found.append(f"script: {error}"))
    page.on("requestfailed", lambda request: found.append(f"failed: {request.url}"))
    page.on("response", lambda r: found.append(f"{r.status}: {r.url}") if r.status >= 400 else None)
    page.on(
        "request", lambda r: None if r.url.startswith(("http://127.0.0.1", "data:")) else found.append(r.url)
    )
    return found


def look(page, address):
    """Open a page in both themes and widths and list what is wrong with how it is laid out."""
    page.goto(address, wait_until="load")
    found = []
    for theme in THEMES:
        page.evaluate("theme => { document.documentElement.dataset.theme = theme }", theme)
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            sticking_out = page.evaluate(
                "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            )
            if sticking_out > 0:
                found.append(f"{address}, {theme}, {width} px: {sticking_out} px stick out")
    nameless = page.evaluate(
        "[...document.querySelectorAll('img:not([alt]), img[alt=\"\"]')].map(i => i.src)"
    )
    broken = page.evaluate("[...document.images].filter(i => !i.naturalWidth).map(i => i.src)")
    found += [f"{address}: no alt text: {src}" for src in nameless]
    found += [f"{address}: image doesn't show: {src}" for src in broken]
    return found


def test_a_small_page_of_our_configuration_is_sound(small_site, serve, page, findings):
    assert look(page, f"{serve(small_site)}/index.html") + findings == []


def test_the_look_finds_what_sticks_out_and_a_missing_image(tmp_path, serve, page, findings):
    (tmp_path / "page.html").write_text('<img src="gone.png"><div style="width: 1500px">wide</div>')
    found = " ".join(look(page, f"{serve(tmp_path)}/page.html"))
    assert "390 px: 1118 px stick out" in found
    assert "no alt text" in found
    assert "image doesn't show" in found
    assert any("404" in finding for finding in findings)


def test_figures_have_no_box_behind_them_in_dark(small_site, serve, page):
    page.goto(f"{serve(small_site)}/index.html")
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    style = page.evaluate(
        "(({backgroundColor, padding}) => [backgroundColor, padding])"
        "(getComputedStyle(document.querySelector('figure img')))"
    )
    assert style == ["rgba(0, 0, 0, 0)", "0px"]


def test_focus_is_to_be_seen(small_site, serve, page):
    page.goto(f"{serve(small_site)}/index.html")
    for _ in range(12):
        page.keyboard.press("Tab")
        outline = page.evaluate(
            "(({outlineStyle, outlineWidth, boxShadow}) => [outlineStyle, outlineWidth, boxShadow])"
            "(getComputedStyle(document.activeElement))"
        )
        assert outline[0] != "none" or outline[2] != "none", page.evaluate("document.activeElement.outerHTML")


def built_pages():
    # _static holds templates of the theme, which are no pages.
    paths = [p.relative_to(SITE) for p in SITE.rglob("*.html")]
    return sorted(str(p) for p in paths if p.parts[0] != "_static")


needs_the_book = pytest.mark.skipif(
    not SITE.is_dir(), reason="the book hasn't been built; `make book` builds it"
)


@needs_the_book
def test_every_page_of_the_book_is_sound(serve, page, findings):
    root = serve(SITE)
    found = [finding for path in built_pages() for finding in look(page, f"{root}/{path}")]
    assert found + findings == []


@needs_the_book
def test_tabs_are_in_step_across_pages(serve, page):
    root = serve(SITE)
    page.goto(f"{root}/scaling.html")
    page.locator("label.sd-tab-label", has_text="TensorFlow").first.click()
    page.goto(f"{root}/api/scaling.html")
    page.wait_for_load_state("load")
    chosen = page.locator("input:checked + label.sd-tab-label").all_inner_texts()
    assert chosen
    assert set(chosen) == {"TensorFlow"}


@needs_the_book
@pytest.mark.parametrize("name", ["scale_gradient", "MaskedAdam", "discounted_returns", "muzero_loss"])
def test_search_finds_every_stem(name, serve, page):
    page.goto(f"{serve(SITE)}/search.html?q={name}")
    page.wait_for_selector("#search-results li a", timeout=10_000)
    stems = {"scale_gradient": "scaling", "MaskedAdam": "masking", "discounted_returns": "policy_gradients"}
    links = page.evaluate("[...document.querySelectorAll('#search-results li a')].map(a => a.href)")
    assert any(stems.get(name, "unrolling") in link for link in links), json.dumps(links)
