"""The book's machinery: results and formulas on pages, and that its parts fit together."""

import ast
import doctest
import html
import json
import math
import re
import shlex
import subprocess
import sys
from datetime import date, datetime
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

import papermill.cli
import pytest
import yaml
from click.testing import CliRunner

pytest.importorskip("sphinx")
pytest.importorskip("myst_parser")

from gradtricks.lab import sphinx
from gradtricks.lab.notebooks.literals import literal
from gradtricks.lab.pages import katex
from gradtricks.lab.pages.building import plan_book, plan_sweeps
from gradtricks.lab.results.quoting import RecordError, format_result, published_record, result_from

ROOT = Path(__file__).resolve().parents[1]
BOOK = ROOT / "book"
EXPERIMENTS = ROOT / "experiments"
SITE = ROOT / "_build" / "html"
BACKENDS = ("torch", "tensorflow")
STEMS = sorted(p.stem for p in (ROOT / "src/gradtricks/reference").glob("[a-z]*.py"))
PAGES = sorted(p for p in BOOK.rglob("*.md") if "experiments" not in p.relative_to(BOOK).parts)


# Results


@pytest.mark.parametrize(
    ("value", "spec", "shown"),
    [
        (0.97, ".1%", ("97.0%", None)),
        (1234567, ",", ("1,234,567", None)),
        (0.30000000000000004, "", ("0.3", None)),
        (-0.5, "", ("−0.5", None)),
        (-3, "d", ("−3", None)),
        (1.25e-7, ".2e", ("1.25 × 10", "−7")),
        (3e38, ".0e", ("3 × 10", "38")),
        (-1e-7, "", ("−1 × 10", "−7")),
        (float("nan"), ".1%", ("NaN", None)),
        (float("inf"), "", ("∞", None)),
        (float("-inf"), ".3f", ("−∞", None)),
        (True, "", ("True", None)),
        (None, "", ("None", None)),
        ("refused", "", ("refused", None)),
        ("semi-dry", "", ("semi-dry", None)),
    ],
)
def test_a_result_is_formatted_for_running_text(value, spec, shown):
    assert format_result(value, spec) == shown


@pytest.mark.parametrize(
    ("value", "spec", "message"),
    [
        ([1, 2], "", "expected one value; got a list of 2"),
        ({"a": 1}, "", "expected one value; got a dict of 1"),
        ("high", ".1%", "expected a format that fits 'high'; got '.1%'"),
        (1.5, "d", "expected a format that fits 1.5; got 'd'"),
        (10**400, ".2f", "got '.2f' (int too large to convert to float)"),
        pytest.param(10**5000, "", "got '' (Exceeds the limit", id="too many digits"),
    ],
)
def test_a_result_that_cannot_be_shown_is_refused(value, spec, message):
    with pytest.raises(RecordError, match=re.escape(message)):
        format_result(value, spec)


RESULTS = {"curve": [0.1, 0.9], "norms": {"hidden": 2.0, "0.5": {"root": 7}}, "name": "deep"}


@pytest.mark.parametrize(
    ("name", "value"),
    [("curve.1", 0.9), ("curve.-1", 0.9), ("norms.hidden", 2.0), ("norms.0.5.root", 7), ("name", "deep")],
)
def test_a_part_of_a_result_is_found(name, value):
    assert result_from(RESULTS, name) == value


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("curves", "expected one of: curve, norms, name; got 'curves'"),
        ("curve.2", "expected a position below 2; got '2'"),
        ("curve.last", "expected a position below 2; got 'last'"),
        ("norms.state", "expected one of: hidden, 0.5; got 'state'"),
        ("name.0", "expected the name to end before '0'; got the value 'deep'"),
    ],
)
def test_an_unknown_part_is_refused_with_what_there_is(name, message):
    with pytest.raises(RecordError, match=re.escape(message)):
        result_from(RESULTS, name)


def test_a_missing_record_is_refused_with_the_records_there_are(tmp_path):
    write_record(tmp_path, "masking-torch", {})
    with pytest.raises(RecordError, match=r"got the records: masking-torch; remedy: run `make book`"):
        published_record(tmp_path / "masking-jax.json")


@pytest.mark.parametrize(("text", "message"), [("{", "must be JSON"), ("[]", "a record with results")])
def test_a_broken_record_is_refused(tmp_path, text, message):
    (tmp_path / "masking-torch.json").write_text(text)
    with pytest.raises(RecordError, match=message):
        published_record(tmp_path / "masking-torch.json")


# Pages of a small project


def write_record(folder, name, results, **rest):
    stem, backend = name.rsplit("-", 1)
    record = {"schema_version": 1, "stem": stem, "status": "finished", "results": results}
    record |= {"parameters": {"backend": backend, "seed": 0, "learning_rate": 1e-05, "label": "<b>"}, **rest}
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(record))


@pytest.fixture
def project(tmp_path):
    """A Sphinx project with one page, and a function that builds it: (exit status, messages, HTML)."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "conf.py").write_text(
        'extensions = ["myst_parser", "gradtricks.lab.sphinx"]\n'
        'html_math_renderer = "katex"\nmyst_enable_extensions = ["dollarmath", "amsmath"]\n'
    )
    write_record(
        source / "experiments",
        "masking-torch",
        {"accuracy": 0.9, "loss": {"$float": "nan"}, "note": "<script>"},
        varying={"seconds": 1.25},
        figures={"curve": 'a "curve" <up>'},
        provenance={"processor": "<i>fast</i>", "commit": "0123456789abcdef", "dirty": True},
    )
    (source / "experiments" / "masking-torch").mkdir()
    svg = '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>'
    (source / "experiments" / "masking-torch" / "curve.svg").write_text(svg)

    def build(page, *options):
        (source / "index.md").write_text(page)
        return build_again(*options)

    def build_again(*options):
        command = [sys.executable, "-m", "sphinx", "-b", "html", "-q", "-n", *options]
        command += [str(source), str(tmp_path / "html")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        page = tmp_path / "html" / "index.html"
        return done.returncode, done.stderr, page.read_text() if page.exists() else ""

    build.again = build_again
    build.source = source
    return build


PAGE = r"""
# Page

Accuracy {result}`masking/torch/accuracy:.1%`, loss {result}`masking/torch/loss`,
{result}`masking/torch/note`, {result}`masking/torch/seconds:.1f` s, $x^2$.

$$\frac{a}{b}$$ (ratio)

\begin{align}u &= v\end{align}

{eq}`ratio`

```{run-card} masking/torch
```

```{run-figure} masking/torch/curve
Caption.
```
"""


def test_a_page_shows_results_figures_cards_and_formulas(project):
    status, messages, page = project(PAGE, "-W")
    assert (status, messages) == (0, "")
    assert '<span class="result">90.0%</span>' in page
    assert '<span class="result">NaN</span>' in page
    assert '<span class="result">1.2</span> s' in page
    assert '<span class="result">&lt;script&gt;</span>' in page
    assert page.count('class="katex"') == 3
    assert page.count('class="katex-display"') == 2
    assert '<span class="eqno">(1)' in page
    assert 'alt="a &quot;curve&quot; &lt;up&gt;"' in page
    assert "&lt;i&gt;fast&lt;/i&gt;" in page
    assert "0123456789ab with uncommitted changes" in page
    card = html.unescape(re.sub("<[^>]+>", "", page))
    options = "-r backend torch -p seed 0 -p learning_rate 1e-05 -r label '<b>'"
    assert f"papermill experiments/masking.ipynb out.ipynb {options}" in card
    assert not re.search("<script[^>]*mathjax", page, re.IGNORECASE)


def test_pages_are_listed_with_their_answers(project):
    (project.source / "second.md").write_text(
        "# Why?\n\n```{admonition} Answer\n:class: answer\nBecause, $x$.\n```\n\n```{toctree}\nthird\n```\n"
    )
    (project.source / "third.md").write_text("# How\n")
    page = "# Book\n\nWhat it is.\n\n```{toctree}\n:caption: Part\nsecond\n```\n"
    assert project(page, "-W", "-D", "project=Tricks")[:2] == (0, "")
    site = project.source.parent / "html"
    assert (site / "llms.txt").read_text() == (
        "# Tricks\n\n> What it is.\n\n## Part\n\n- [Why?](second.html): Because, x.\n- [How](third.html)\n"
    )
    assert not (site / "sitemap.xml").exists()
    project.again("-D", "html_baseurl=https://book.example/a/")
    found = re.findall("<loc>(.*)</loc>", (site / "sitemap.xml").read_text())
    assert found == [f"https://book.example/a/{name}.html" for name in ("index", "second", "third")]


INF = math.inf
TARGET = sphinx._RUN_TARGET.fullmatch("masking/torch")
CARRIED = {
    "text": "3",
    "word": "None",
    "quoted": 'it\'s a "$x" – 😀',
    "none": None,
    "bool": True,
    "integer": -3,
    "floats": [1e-05, 1e22, INF, -INF, -0.0, 1.0],
    "float": 1e22,
    "infinite": -INF,
    "texts": ["yes", "12:30", "1e5", "2026-01-31", "a\nb"],
    "shares": {"a": [1, None], "b": [1, None]},
}


def test_papermill_gets_the_parameters_exactly_from_the_command(monkeypatch):
    got = {}
    monkeypatch.setattr("papermill.cli.execute_notebook", lambda parameters, **_: got.update(parameters))
    program, *arguments = shlex.split(sphinx._command(TARGET, {"parameters": CARRIED}))
    assert program == "papermill"
    done = CliRunner().invoke(papermill.cli.papermill, arguments)
    assert done.exit_code == 0, done.output
    assert list(map(literal, got.values())) == [literal(CARRIED[name]) for name in got]
    assert got.keys() == CARRIED.keys()


@pytest.mark.parametrize(
    ("parameters", "command"),
    [
        ({"day": date(2026, 1, 31), "label": "it's"}, "-p day=2026-01-31 -p 'label=it'\"'\"'s'"),
        ({"days": [date(2026, 1, 31)], "x": INF}, "-p 'days=[\"2026-01-31\"]' -p x=inf"),
        ({"at": datetime(2026, 1, 31, 12)}, "-p 'at=2026-01-31 12:00:00'"),
        ({"many": 16**5000, "seed": 3, "on": True}, f"-p many=0x1{'0' * 5000} -p seed=3 -p on=True"),
    ],
)
def test_what_papermill_cant_be_given_is_a_command_of_the_lab(parameters, command):
    said = sphinx._command(TARGET, {"parameters": parameters})
    assert said == f"gradtricks run experiments/masking.ipynb {command}"


WRONG = {
    "{result}`masking/torch/acuracy`": "expected one of: accuracy, loss, note, seconds; got 'acuracy'",
    "{result}`masking/jax/accuracy`": "expected the record masking-jax.json; got the records: masking-torch",
    "{result}`accuracy`": "expected stem/backend/name",
    "{result}`masking/torch/accuracy:.d`": "expected a format that fits 0.9; got '.d'",
    "```{run-card} masking/jax\n```": "expected the record masking-jax.json",
    "```{run-card} masking\n```": "expected the record masking.json",
    "```{run-card} masking/torch/accuracy\n```": "expected stem/backend",
    "```{run-figure} masking/torch/kurve\n```": "expected one of: curve; got 'kurve'",
    "```{run-figure} kurve\n```": "expected stem/backend/figure",
    "$\\frac{1$": "formula '\\\\frac{1'",
}


def test_a_wrong_reference_or_formula_fails_the_build_and_says_where(project):
    page = "# Page\n\n" + "\n\n".join(WRONG) + "\n"
    status, messages, _ = project(page, "-W", "--keep-going")
    assert status == 1
    for wrong, message in WRONG.items():
        line = page[: page.index(wrong)].count("\n") + 1
        assert any(message in m for m in messages.splitlines() if f"index.md:{line}:" in m), messages


def test_an_incremental_build_notices_a_changed_record(project):
    _, _, page = project("# Page\n\n{result}`masking/torch/accuracy`\n")
    assert ">0.9</span>" in page
    write_record(project.source / "experiments", "masking-torch", {"accuracy": 0.75})
    _, _, page = project.again()
    assert ">0.75</span>" in page


def test_an_incremental_build_notices_a_record_that_appears(project):
    status, _, _ = project("# Page\n\n{result}`scaling/torch/share`\n", "-W")
    assert status != 0
    write_record(project.source / "experiments", "scaling-torch", {"share": 0.25})
    status, messages, page = project.again("-W")
    assert (status, messages) == (0, "")
    assert ">0.25</span>" in page


def test_the_style_sheet_of_formulas_fits_the_renderer():
    script, style = katex.katex_script().read_text(), (BOOK / "_assets/katex/katex.min.css").read_text()
    (version,) = re.findall(r'version:"(\d[\d.]+)"', script)
    assert f'content:"{version}"' in style


# No request leaves the site


class _Requests(HTMLParser):
    """Collect the addresses that a browser fetches to show a page; links to follow aren't among them."""

    PASSIVE = frozenset(
        {"canonical", "alternate", "author", "license", "next", "prev", "index", "search", "help"}
    )

    def __init__(self):
        super().__init__()
        self.addresses = []
        self._in_style = False

    def handle_starttag(self, tag, attrs):
        given = {name: value or "" for name, value in attrs}
        self._in_style = tag == "style"
        if tag == "link" and not set(given.get("rel", "").split()) <= self.PASSIVE:
            self.addresses.append(given.get("href", ""))
        self.addresses += [given[name] for name in ("src", "data", "poster") if name in given]
        self.addresses += [part.split()[0] for part in given.get("srcset", "").split(",") if part.strip()]
        if tag in ("use", "image"):
            self.addresses += [given[name] for name in ("href", "xlink:href") if name in given]
        self.addresses += _style_addresses(given.get("style", ""))

    def handle_data(self, data):
        if self._in_style:
            self.addresses += _style_addresses(data)

    def handle_endtag(self, tag):
        self._in_style = self._in_style and tag != "style"


def _style_addresses(style):
    urls = re.findall(r"url\(\s*[\"']?([^\"')]+)", style)
    return urls + re.findall(r"@import\s+[\"']([^\"']+)", style)


def external_requests(site):
    """List what pages and style sheets under a folder would fetch from another host: (file, address)."""
    found = []
    for path in sorted(site.rglob("*")):
        if path.suffix == ".html":
            parser = _Requests()
            parser.feed(path.read_text(encoding="utf-8"))
            addresses = parser.addresses
        elif path.suffix in (".css", ".svg"):
            addresses = _style_addresses(path.read_text(encoding="utf-8"))
        else:
            continue
        found += [(path.name, address) for address in addresses if urlsplit(address).netloc]
    return found


@pytest.mark.parametrize(
    "page",
    [
        '<script src="https://cdn.example/a.js"></script>',
        '<script src="//cdn.example/a.js"></script>',
        '<link rel="stylesheet" href="https://cdn.example/a.css">',
        '<link rel="preconnect" href="https://fonts.example">',
        '<img src="http://cdn.example/a.png">',
        '<img srcset="a.png 1x, https://cdn.example/b.png 2x">',
        '<iframe src="https://cdn.example/"></iframe>',
        '<p style="background: url(https://cdn.example/a.png)"></p>',
        "<style>@import 'https://cdn.example/a.css';</style>",
        '<object data="https://cdn.example/a.svg"></object>',
    ],
)
def test_the_check_finds_a_request_to_another_host(tmp_path, page):
    (tmp_path / "page.html").write_text(page)
    assert len(external_requests(tmp_path)) == 1


def test_the_check_finds_a_request_of_a_style_sheet(tmp_path):
    (tmp_path / "a.css").write_text('@font-face{src:url("https://fonts.example/a.woff2")}')
    assert external_requests(tmp_path) == [("a.css", "https://fonts.example/a.woff2")]


def test_the_check_lets_links_and_own_files_be(tmp_path):
    (tmp_path / "page.html").write_text(
        '<a href="https://arxiv.org/">paper</a><link rel="canonical" href="https://book.example/">'
        '<img src="data:image/png;base64,AA=="><img src="_images/a.svg"><script src="../a.js?v=1"></script>'
    )
    assert external_requests(tmp_path) == []


def test_our_own_assets_ask_no_other_host():
    assert external_requests(BOOK / "_assets") == []


@pytest.mark.skipif(not SITE.is_dir(), reason="the book hasn't been built; `make book` builds it")
def test_the_built_book_asks_no_other_host():
    assert external_requests(SITE) == []


# Parts that have to fit


def table_of_contents():
    toc = yaml.safe_load((BOOK / "_toc.yml").read_text())
    entries = [toc["root"]]
    pending = list(toc["parts"])
    while pending:
        item = pending.pop()
        pending += item.get("chapters", []) + item.get("sections", [])
        entries += [item["file"]] if "file" in item else []
    return entries


def test_every_page_is_in_the_table_of_contents_once_and_the_reverse():
    pages = [str(p.relative_to(BOOK).with_suffix("")) for p in PAGES]
    runs = [f"experiments/{run.name}" for run in plan_book(EXPERIMENTS)]
    sweeps = [f"experiments/{sweep.name}-sweep" for sweep in plan_sweeps(EXPERIMENTS)]
    assert sorted(table_of_contents()) == sorted(pages + runs + sweeps)


@pytest.mark.parametrize("stem", STEMS)
def test_every_stem_has_its_chapter_experiment_and_api_page(stem):
    missing = [
        str(path.relative_to(ROOT))
        for path in (BOOK / f"{stem}.md", EXPERIMENTS / f"{stem}.ipynb", BOOK / "api" / f"{stem}.md")
        if not path.is_file()
    ]
    assert not missing


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_public_name_is_documented(backend):
    tree = ast.parse((ROOT / f"src/gradtricks/{backend}/__init__.pyi").read_text())
    (names,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    text = "\n".join(p.read_text() for p in (BOOK / "api").glob("*.md"))
    entry = rf"^\.\. auto(?:function|class):: gradtricks\.{backend}\.(\w+)$"
    documented = re.findall(entry, text, re.MULTILINE)
    assert sorted(documented) == sorted(names)


def test_every_citation_is_in_the_bibliography_once():
    keys = re.findall(r"^@\w+\{([^,\s]+),", (BOOK / "references.bib").read_text(), re.MULTILINE)
    sources = [p.read_text() for p in (*PAGES, *EXPERIMENTS.glob("*.ipynb"))]
    groups = [group for source in sources for group in re.findall(r"\{cite(?::\w+)?\}`([^`]+)`", source)]
    cited = {key.strip() for group in groups for key in group.split(",")}
    assert len(keys) == len(set(keys))
    assert cited == set(keys)


def recorded_names(stem, backend):
    """What a notebook records with one backend: names of results and of figures; None where code decides."""
    names = {"record": set(), "record_figure": set()}
    others = set(BACKENDS) - {backend}
    for cell in json.loads((EXPERIMENTS / f"{stem}.ipynb").read_text())["cells"]:
        if cell["cell_type"] != "code" or others & set(cell["metadata"].get("tags", [])):
            continue
        for node in ast.walk(ast.parse("".join(cell["source"]))):
            called = getattr(node.func, "id", None) if isinstance(node, ast.Call) else None
            if called in ("record", "record_varying"):
                names["record"] |= {keyword.arg for keyword in node.keywords}
            elif called == "record_figure":
                names[called].add(node.args[0].value if isinstance(node.args[0], ast.Constant) else None)
    return names


RESULT = r"\{result\}`(\w+)(?:/(torch|tensorflow|sweep))?/([^./:`]+)"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_every_quoted_result_and_figure_is_recorded_by_its_notebook(page):
    text = page.read_text()
    figures = (
        r"\{run-figure\} (\w+)(?:/(\w+))?/(\w+)",
        r"\{(?:figure|image)\} /experiments/(\w+)-(\w+)/(\w+)\.svg",
    )
    quoted = [("record", *q) for q in re.findall(RESULT, text)]
    quoted += [("record_figure", *q) for pattern in figures for q in re.findall(pattern, text)]
    # What a sweep's page holds is made by the sweep; the build itself checks it.
    quoted = [q for q in quoted if q[2] != "sweep"]
    unknown = {q for q in quoted if not {q[3], None} & recorded_names(*q[1:3])[q[0]]}
    assert not unknown


FENCE = re.compile(r"^ *(`{3,})(?:\{code-block\} )?(?:pycon|python)\n(.*?)^ *\1", re.MULTILINE | re.DOTALL)
EXAMPLES = [
    pytest.param(page, code, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, (_, code) in enumerate(FENCE.findall(page.read_text()))
    if code.lstrip().startswith(">>>")
]


@pytest.mark.parametrize(("page", "code"), EXAMPLES)
def test_the_examples_on_pages_run(page, code):
    for framework in ("torch", "tensorflow"):
        if f"import {framework}" in code:
            pytest.importorskip(framework)
    example = doctest.DocTestParser().get_doctest(code, {}, page.name, str(page), 0)
    report = []
    doctest.DocTestRunner(verbose=False).run(example, out=report.append)
    assert not report, "".join(report)
