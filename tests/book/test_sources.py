"""Pages of the book: from finished runs and sweeps to sources, and the build that replaces the old book."""

import csv
import json
import pickle
import re
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
from bs4 import BeautifulSoup

pytest.importorskip("sphinx")

from gradtricks.book import site as module
from gradtricks.book import sources
from gradtricks.book.building import build_book
from gradtricks.book.quotes import published_record
from gradtricks.book.site import BuildError, build
from gradtricks.book.sources import lay_out
from gradtricks.book.sweeppages import sweep_files
from gradtricks.lab.commands.publishing import plan_book, plan_sweeps
from gradtricks.lab.notebooks.schema import ParameterError
from gradtricks.lab.results.quoting import result_from
from gradtricks.lab.results.tables import runs_of
from gradtricks.lab.runs.execution import execute_run
from gradtricks.lab.runs.many import Run
from gradtricks.lab.runs.planning import plan_run
from gradtricks.lab.storage.store import Store
from gradtricks.lab.sweeps.sweep import read_sweep
from notebooks import write_notebook
from synthetic import make_run, make_sweep, put

QUOTED = """{result}`small/tensorflow/any:.1f`

```{run-figure} small/tensorflow/sizes
```

```{result-table} small/tensorflow/any
```

```{run-card} small/tensorflow
```
"""
ALONE = "seed: int = 0  # seeds nothing\nbackend: str = 'mine'  # no framework"


@pytest.fixture
def notebook(tmp_path, monkeypatch):
    """Return the path of a small experiment in a project of its own, which needs no framework."""
    monkeypatch.setattr("gradtricks.lab.runs.kernels.LIBRARIES", {})
    return write_notebook(tmp_path / "experiments" / "small.ipynb")


@pytest.fixture
def pages(tmp_path):
    """Return the folder of the generated sources."""
    return tmp_path / "book" / "experiments"


@pytest.fixture
def execute(kernels, tmp_path):
    """Return a function that executes a run, and keeps it in a store in the folder."""
    return lambda run: execute_run(run, Store(tmp_path / "runs"), kernels)


def publish_sweep(sweep, runs, pages):
    """Lay out the page of one sweep, and return it."""
    lay_out({}, pages, sweeps=[(sweep, runs)])
    return (pages / f"{sweep.name}-sweep.md").read_text()


def contents(folder):
    """Return what a folder's files hold, and when they were written."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns) for path in paths}


# Pages of runs


def test_a_page_of_one_framework_leaves_the_other_out(notebook, tmp_path, pages, execute):
    node = nbformat.read(notebook, as_version=4)
    node.cells += [nbformat.v4.new_code_cell("\n".join(["long = 0"] * count)) for count in (30, 31)]
    nbformat.write(node, notebook)
    stored = execute(plan_run(notebook, {}))
    lay_out({"small-torch": stored}, pages)
    node = nbformat.read(pages / "small.ipynb", as_version=4)
    sources = [cell.source for cell in node.cells]
    folded = [cell.source for cell in node.cells if "hide-input" in cell.metadata.get("tags", [])]
    assert [source.partition("\n")[0] for source in folded] == [
        "# Set by gradtricks: the parameters of this run.",
        "long = 0",
    ]
    assert "mine = 'torch'" in sources
    assert "mine = 'tensorflow'" not in sources
    assert sources[-2:] == ["## Where this came from", "```{run-card} small/torch\n```"]
    assert "gradtricks.lab.recording.report()" not in "".join(sources)
    assert (pages / "small-torch" / "sizes.svg").read_text().count("<svg") == 1
    assert json.loads((pages / "small-torch.json").read_text()) == stored.record

    written = contents(pages)
    (pages / "stale.ipynb").write_text("{}")
    lay_out({"small-torch": stored}, pages)
    assert contents(pages) == written


DRAW = """\
import matplotlib.pyplot as plt
from gradtricks.lab import record_figure
figure, axes = plt.subplots()
axes.plot([0, {height}, 9])
record_figure("{name}", figure, alt={alt})
"""


def test_both_frameworks_share_a_page_with_tabs_for_differences(notebook, tmp_path, pages, forks, execute):
    write_notebook(notebook, body="print('alike')")
    node = nbformat.read(notebook, as_version=4)
    new = nbformat.v4.new_code_cell
    guarded = 'if backend == "torch":\n    x = 1\n    y = 2'
    node.cells[-1:] = [
        new("print('of', backend)\n__import__('IPython').display.display(backend)"),
        new(guarded, metadata={"tags": ["torch"]}),
        new(DRAW.format(height="len(backend)", name="far", alt="backend")),
        new(DRAW.format(height="1 + len(backend) * 1e-6", name="near", alt="'by both'")),
    ]
    nbformat.write(node, notebook)
    runs = {spec.name: execute(spec) for spec in plan_book(notebook.parent)}
    lay_out(runs, pages)
    assert sorted(path.name for path in pages.iterdir()) == [
        *("small-tensorflow", "small-tensorflow.json", "small-torch", "small-torch.json", "small.ipynb")
    ]
    (tmp_path / "book" / "conf.py").write_text(
        "extensions = ['myst_nb', 'sphinx_design', 'gradtricks.book.tabs', 'gradtricks.book.cards']\n"
        "nb_execution_mode, myst_enable_extensions = 'off', ['colon_fence']\nroot_doc = 'experiments/small'\n"
    )
    done = forks.run("sphinx", "-b", "html", "-q", "-W", tmp_path / "book", tmp_path / "html")
    assert done.returncode == 0, done.stderr
    page = BeautifulSoup((tmp_path / "html" / "experiments" / "small.html").read_text(), "html.parser")
    tabs = page.select(".sd-tab-set")
    labels = [[label.text.strip() for label in tab.select("label")] for tab in tabs]
    both = ["PyTorch", "TensorFlow"]
    assert labels == [both, both, both, ["Only in PyTorch"], both, both]
    parameters, own, named, alone, figures, cards = ([*tab.select(".sd-tab-content")] for tab in tabs)
    assert "backend = 'tensorflow'" in parameters[1].text
    assert [part.text.strip() for part in own] == ["mine = 'torch'", "mine = 'tensorflow'"]
    assert [part.text.split()[-1] for part in named] == ["'torch'", "'tensorflow'"]
    assert alone[0].text.strip() == "x = 1\ny = 2"  # the tab says for which framework
    assert alone[0].select("span.o")  # and it is still shown as code
    assert [part.img["alt"] for part in figures] == ["torch", "tensorflow"]
    assert [image["alt"] for image in page.select("img")] == ["torch", "tensorflow", "by both"]
    assert ["ran with PyTorch" in cards[0].text, "ran with TensorFlow" in cards[1].text] == [True, True]
    assert page.text.count("alike") == 2  # the code, and what it prints
    assert {label.get("data-sync-group") for label in page.select("label")} == {"framework", None}


@pytest.mark.parametrize("finished", [1, 0])
def test_its_page_and_quotes_name_a_failed_run(notebook, tmp_path, pages, forks, execute, finished):
    specs = plan_book(notebook.parent)
    runs = {spec.name: execute(spec) for spec in specs[:finished]}
    lay_out(runs, pages, failed=[Run(spec, error="Boom: `x`\n  in cell 3") for spec in specs[finished:]])
    (tmp_path / "book" / "index.md").write_text(
        f"# Book\n\n{QUOTED}\n```{{toctree}}\nexperiments/small\n```\n"
    )
    (tmp_path / "book" / "conf.py").write_text(
        "extensions = ['myst_nb', 'sphinx_design', 'sphinxcontrib.bibtex', 'gradtricks.book.extension']\n"
        "nb_execution_mode, myst_enable_extensions, bibtex_bibfiles = 'off', ['colon_fence'], []\n"
    )
    done = forks.run("sphinx", "-b", "html", "-q", "-W", tmp_path / "book", tmp_path / "html")
    assert done.returncode == 0, done.stderr
    index, page = (
        BeautifulSoup((tmp_path / "html" / f"{name}.html").read_text(), "html.parser").text
        for name in ("index", "experiments/small")
    )
    assert index.count("[small-tensorflow failed]") == 4
    assert page.count("The run with TensorFlow failed") == 1
    assert page.count("The run with PyTorch failed") == 1 - finished
    assert page.count("Boom: `x`\n  in cell 3") == 2 - finished
    assert page.count("ran with PyTorch") == finished


def test_a_notebook_without_a_backend_has_one_page(notebook, tmp_path, pages, execute):
    write_notebook(notebook, parameters="seed: int = 0  # seeds nothing", body="'nothing'")
    node = nbformat.read(notebook, as_version=4)
    node.cells = [cell for cell in node.cells if "fate" not in cell.source]
    nbformat.write(node, notebook)
    assert [run.name for run in plan_book(notebook.parent)] == ["small"]
    stored = execute(plan_run(notebook, {}))
    lay_out({"small": stored}, pages)
    sources = [cell.source for cell in nbformat.read(pages / "small.ipynb", as_version=4).cells]
    assert sources[0].startswith("# A small experiment\n")
    assert {"mine = 'torch'", "mine = 'tensorflow'"} <= set(sources)
    assert sources[-1].endswith("```{run-card} small\n```")


def test_the_book_runs_a_notebook_with_its_quick_parameters(notebook):
    node = nbformat.read(notebook, as_version=4)
    node.metadata["gradtricks"] = {"quick": {"seed": 7}, "alone": True, "threads": 2}
    nbformat.write(node, notebook)
    runs = plan_book(notebook.parent)
    assert [run.name for run in runs] == ["small-torch", "small-tensorflow"]
    assert {(run.parameters["seed"], run.alone, run.threads) for run in runs} == {(7, False, 1)}
    full = plan_run(notebook, {})
    assert (full.parameters["seed"], full.alone, full.threads) == (0, True, 2)
    request = plan_run(notebook, {"backend": "torch", "seed": 7}, threads=1).request
    assert request == runs[0].request  # metadata aren't what a run depends on
    for quick, message in (
        ({"sed": 7}, "sed: unknown"),
        (["seed"], "quick: expected a valid dictionary; got"),
    ):
        node.metadata["gradtricks"] = {"quick": quick}
        nbformat.write(node, notebook)
        with pytest.raises(ParameterError, match=message):
            plan_book(notebook.parent)


def test_a_folder_without_notebooks_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="remedy: run in the project's root"):
        plan_book(tmp_path)


# The build


@pytest.fixture
def small_book(tmp_path, monkeypatch, forks):
    """Write a book whose chapters link to each other, and let Jupyter Book run in forks."""
    monkeypatch.setattr(
        "gradtricks.book.site.subprocess",
        SimpleNamespace(run=lambda command, **_: forks.run("jupyter-book", *command[1:])),
    )
    monkeypatch.chdir(tmp_path)
    Path("book").mkdir()
    config = "title: small\nauthor: nobody\nonly_build_toc_files: true\nbibtex_bibfiles: [references.bib]\n"
    config += "execute: {execute_notebooks: 'off'}\n"
    config += "sphinx: {config: {myst_heading_anchors: 3}, extra_extensions: [gradtricks.book.extension]}\n"
    files = {
        "_config.yml": config,
        "pyproject.toml": "[project.urls]\nDocumentation = 'https://book.example/'\n",
        "book/_toc.yml": "format: jb-book\nroot: index\nchapters:\n"
        "- file: other\n- file: sources\n- file: executed\n",
        "book/index.md": "# First\n\nRead {doc}`other`, and [its end](other.md#the-end).\n",
        "book/other.md": "# Other\n\nAs {cite}`one` says.\n\n![A bar](bar.svg)\n\n## The end\n",
        "book/bar.svg": '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>',
        "book/sources.md": "# Sources\n\n```{bibliography}\n```\n",
        "book/references.bib": "@misc{one, author = {A}, title = {B}, year = {2020}}\n"
        "@misc{two, author = {C}, title = {D}, year = {2020}}\n",
    }
    for name, text in files.items():
        Path(name).write_text(text)
    shown = nbformat.v4.new_output("display_data", {"image/svg+xml": files["book/bar.svg"]})
    cells = [
        nbformat.v4.new_markdown_cell("# Executed"),
        nbformat.v4.new_code_cell("draw()", outputs=[shown]),
    ]
    metadata = {"language_info": {"name": "python", "pygments_lexer": "ipython3"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=metadata), "book/executed.ipynb")
    return Path("book")


def texts(folder):
    """Return what a folder's files hold."""
    return {name: data for name, (data, _) in contents(folder).items()}


def read_pages(site, since):
    """Return the pages that Sphinx has read since a moment."""
    environment = site.with_name("html.read") / "_build" / ".doctrees" / "environment.pickle"
    with environment.open("rb") as file:
        when = pickle.load(file).all_docs  # noqa: S301 - Sphinx has just written it
    return {page for page, time in when.items() if time > since * 1e6}


def test_a_book_built_again_equals_the_book_built_anew(small_book):
    again, anew = Path("_build/html"), Path("_anew/html")
    build(small_book, again)
    assert "<img" in (again / "executed.html").read_text()
    other = small_book / "other.md"
    for old, new in (("# Other", "# Another"), ("{cite}`one` says", "{cite}`two` wrote")):
        before = time.time()
        other.write_text(other.read_text().replace(old, new))
        build(small_book, again)
        assert read_pages(again, before) == {"other"}
    build(small_book, anew)
    assert texts(again) == texts(anew)
    assert sorted(path.name for path in again.parent.iterdir()) == ["html", "html.read"]


def test_a_warning_leaves_the_old_book_and_is_found_again(small_book, monkeypatch):
    site, other = Path("_build/html"), small_book / "other.md"
    build(small_book, site)
    written = texts(site)
    site.rename(site.with_name("html.old"))  # as if killed between the renames
    other.write_text("# Other\n\nAs {cite}`one` says.\n")
    for _ in range(2):
        with pytest.raises(BuildError, match=r"(?s)the-end.*The book wasn't replaced"):
            build(small_book, site)  # the link is on a page that hasn't changed
        assert texts(site) == written
    other.write_text("# Other\n\nAs {cite}`one` says.\n\n## The end\n")
    build(small_book, site)
    before = time.time()
    monkeypatch.setattr(module, "tools", lambda: "others")
    build(small_book, site)
    assert read_pages(site, before) == {"index", "other", "sources", "executed"}


# Pages of sweeps

SWEEP = "notebook: small.ipynb\ntitle: Rates\nshown: [results.rate]\ngrid: {rate: [0.1, 0.2]}\nseeds: 2\n"


def test_sweep_files_are_planned_and_their_runs_looked_up(notebook, tmp_path, execute):
    (notebook.parent / "small.sweep.yaml").write_text(SWEEP)
    (sweep,) = plan_sweeps(notebook.parent)
    assert (sweep.name, len(sweep.specs)) == ("small", 4)
    store = Store(tmp_path / "runs")
    assert runs_of(store, sweep.specs) == []
    stored = execute(sweep.specs[2])
    put(tmp_path / "runs", [make_run({"seed": 0}, {"loss": 1.0})])  # of no sweep
    assert [run.location for run in runs_of(store, sweep.specs)] == [stored.location]


def test_a_build_lists_all_faults_of_notebooks_and_sweeps(notebook, monkeypatch):
    monkeypatch.chdir(notebook.parents[1])
    node = nbformat.read("experiments/small.ipynb", as_version=4)
    for name in ("threads", "alone"):
        node.metadata["gradtricks"] = {name: "some"}
        nbformat.write(node, f"experiments/{name}.ipynb")
    for name in ("gird", "sead"):
        Path(f"experiments/{name}.sweep.yaml").write_text(f"notebook: small.ipynb\n{name}: 1\n")
    with pytest.raises(ParameterError) as caught:
        build_book()
    said = str(caught.value)
    assert [name for name in ("threads: e", "alone: e", "gird: unk", "sead: unk") if name not in said] == []


def rates(count=3, **given):
    """Make a sweep over two rates: one run failed, one gave no number, and one hasn't run."""
    runs = []
    for rate in (0.25, 0.5):
        for seed in range(count):
            results = {"loss": rate + seed, "curve": [1.0, rate, float(seed)]}
            if (rate, seed) == (0.5, 1):
                results["loss"] = float("nan")
            error = "ValueError: too fast\nmore" if (rate, seed) == (0.5, 0) else None
            runs.append(
                make_run({"rate": rate, "seed": seed, "label": "a"}, results, error=error, second=seed)
            )
    planned = [*runs, make_run({"rate": 0.5, "seed": 99, "label": "a"})]
    sweep = make_sweep(planned, ["rate", "seed"], ["results.loss", "results.curve"], **given)
    return sweep, runs


def test_the_page_of_a_sweep_has_results_and_origin(pages):
    about = {"title": "Which rate?", "question": "How fast may it go?"}
    page = publish_sweep(*rates(**about, meanings={"results.loss": "What it *costs*."}), pages)
    begin = "# Which rate?\n\nHow fast may it go?\n\n7 runs of `experiments/small.ipynb` with different"
    assert page.startswith(begin)
    assert "5 finished, 1 failed, 1 not run yet" in page
    assert "## Loss\n\nWhat it \\*costs\\*.\n\n```{run-figure} small/sweep/loss" in page
    assert "| rate | mean | lowest | highest | runs | failed | not finite |" in page
    assert "| 0.25 | 1.25 | 0.25 | 2.25 | 3 | 0 | 0 |" in page
    assert "| 0.5 | 2.5 | 2.5 | 2.5 | 1 | 1 | 1 |" in page
    assert "| 0.25 | 3 | 1 | 1 | 3 | 0 |" in page
    assert "95%" not in page, "three runs are too few for an interval"
    assert "| `ValueError: too fast` |" in page
    assert page.endswith("```{run-card} small/sweep\n```\n")
    card = json.loads((pages / "small-sweep.json").read_text())
    assert card["command"] == "gradtricks sweep experiments/small.sweep.yaml"
    for said in ("label a", "a processor", "0123456789ab", "8 s in all", "3.11.7", "2026-01-31 12:00 UTC"):
        assert said in " ".join(card["origin"].values())
    figure = (pages / "small-sweep" / "loss.svg").read_text()
    assert figure.count("<svg") == 1
    rows = list(csv.DictReader((pages / "small-sweep" / "runs.csv").read_text().splitlines()))
    assert [row["status"] for row in rows].count("failed") == 1
    assert [row["results.loss"] for row in rows][:2] == ["0.25", "1.25"]
    assert len(rows) == 6


def test_a_sweep_with_ten_runs_each_has_intervals(pages):
    page = publish_sweep(*rates(count=12), pages)
    heads = "| rate | interquartile mean | 95% interval | lowest | highest | runs | failed | not finite |"
    assert heads in page
    assert re.search(r"\| 0\.25 \| 5\.75 \| \S+\xa0to\xa0\S+ \| 0\.25 \| 11\.2 \| 12 \| 0 \| 0 \|", page)
    assert re.search(r"\| 0\.25 \| 3 \| 1 \| 5\.5 \| \S+\xa0to\xa0\S+ \| 12 \| 0 \|", page)


def test_a_sweep_with_one_run_each_has_no_statistics(pages):
    assert "| rate | value | failed |\n| --- | --- | --- |\n| 0.25 | 0.25 | 0 |" in publish_sweep(
        *rates(1), pages
    )


def test_pages_of_sweeps_have_words_and_quotes_have_names(pages):
    labels = {"rate": "learning rate", "rate=0.25": "ours", "results.loss": "What is lost"}
    page = publish_sweep(*rates(labels=labels), pages)
    assert "with different learning rate (2 values) and seed" in page
    assert "## What is lost\n\n```{run-figure} small/sweep/loss\n" in page
    assert "| learning rate | mean |" in page
    assert "| ours | 1.25 |" in page
    assert "## Curve\n" in page
    record = json.loads((pages / "small-sweep.json").read_text())
    assert record["results"]["loss"].keys() == {"rate=0.25", "rate=0.5"}
    assert record["figures"]["loss"].startswith("What is lost against learning rate, n = 1 to 3 each. ")
    assert "learning rate = ours: 1.25" in record["figures"]["loss"]


def test_other_pages_can_quote_a_sweep(pages):
    publish_sweep(*rates(), pages)
    results = published_record(pages / "small-sweep.json")["results"]
    assert result_from(results, "runs.finished") == 5
    assert result_from(results, "loss.rate=0.25.mean") == 1.25
    assert result_from(results, "curve.rate=0.25.mean.-1") == 1.0
    assert result_from(results, "loss.rate=0.5.failed") == 1


def test_equal_runs_are_equal_pages_and_nothing_is_written_twice(pages, tmp_path):
    publish_sweep(*rates(), pages)
    written = contents(pages)
    publish_sweep(*rates(), pages)
    assert contents(pages) == written
    publish_sweep(*rates(), tmp_path / "again")
    assert texts(tmp_path / "again") == texts(pages)


def test_the_page_of_a_sweep_is_redrawn_only_after_changes(pages, monkeypatch):
    drawn = []
    monkeypatch.setattr(sources, "sweep_files", lambda *given: drawn.append(given) or sweep_files(*given))

    def times_drawn(sweep, runs):
        drawn.clear()
        publish_sweep(sweep, runs, pages)
        return len(drawn)

    sweep, runs = rates()
    assert times_drawn(sweep, runs) == 1
    assert times_drawn(sweep, runs) == 0
    sweep = replace(sweep, question="Why?")
    assert times_drawn(sweep, runs) == 1
    results = runs[0].record["results"] | {"loss": 7.0}
    runs = [replace(runs[0], record=runs[0].record | {"results": results}), *runs[1:]]
    assert times_drawn(sweep, runs) == 1
    assert times_drawn(sweep, runs[1:]) == 1
    written = texts(pages)
    (pages / "small-sweep" / "loss.svg").unlink()
    with (pages / "small-sweep.md").open("a") as file:
        file.write("More.\n")
    assert times_drawn(sweep, runs[1:]) == 0
    assert texts(pages) == written
    kept = pages / "small-sweep" / ".made"
    kept.write_bytes(kept.read_bytes()[:100])
    assert times_drawn(sweep, runs[1:]) == 1
    monkeypatch.setattr(sources, "tools", lambda: "others")
    assert times_drawn(sweep, runs[1:]) == 1
    assert {name: text for name, text in texts(pages).items() if not name.endswith(".made")} == {
        name: text for name, text in written.items() if not name.endswith(".made")
    }


def test_pages_of_sweeps_are_published_with_the_others(pages):
    publish_sweep(*rates(name="old"), pages)
    lay_out({}, pages, sweeps=[rates()])
    assert {path.name for path in pages.iterdir()} == {"small-sweep", "small-sweep.json", "small-sweep.md"}


def test_an_unfinished_sweep_has_a_page_without_figures(pages):
    runs = [make_run({"seed": seed}, error="no") for seed in range(2)]
    page = publish_sweep(make_sweep(runs, ["seed"], ["results.loss"]), runs, pages)
    assert "0 finished, 2 failed" in page
    assert "run-figure" not in page
    page = publish_sweep(make_sweep(runs, ["seed"], ["results.loss"]), [], pages)
    assert "2 not run yet" in page


def test_a_sweep_of_one_run_varies_nothing(pages):
    runs = [make_run({"seed": 0}, {"loss": 1.0})]
    page = publish_sweep(make_sweep(runs, [], ["results.loss"]), runs, pages)
    assert "\n\n1 run of `experiments/small.ipynb`: 1 finished.\n\n" in page


def test_the_command_of_a_sweep_names_its_file(notebook, tmp_path, pages):
    path = tmp_path / "some sweeps" / "small.sweep.yaml"
    path.parent.mkdir()
    path.write_text(SWEEP.replace("small.ipynb", "../experiments/small.ipynb"))
    page = publish_sweep(read_sweep(path), [], pages)
    assert "runs of `experiments/small.ipynb` with" in page
    card = json.loads((pages / "small-sweep.json").read_text())
    assert card["command"] == "gradtricks sweep 'some sweeps/small.sweep.yaml'"


def test_runs_that_are_cut_to_the_shortest_are_counted(pages):
    runs = [make_run({"rate": 0.5, "seed": n}, {"curve": [float(n)] * (n + 2)}) for n in range(3)]
    page = publish_sweep(make_sweep(runs, ["seed"], ["results.curve"]), runs, pages)
    assert "runs | cut to this length |" in page
    assert "Each line ends with the shortest of its runs\\: 2 went on for longer." in page


def test_a_result_that_nobody_recorded_fails_the_build(pages):
    sweep, runs = rates()
    with pytest.raises(
        BuildError, match=r"small.sweep.yaml: shown: .*got 'results.lots'; there are: results.loss"
    ):
        publish_sweep(make_sweep(runs, sweep.varied, ["results.lots"]), runs, pages)


def test_a_sweep_of_hundreds_of_configurations_shows_the_first(pages):
    runs = [make_run({"rate": n / 7, "seed": 0}, {"loss": float(n)}) for n in range(130)]
    page = publish_sweep(make_sweep(runs, ["rate"], ["results.loss"]), runs, pages)
    assert "And 30 more, which the download holds." in page
    assert page.count("\n| ") < 130


def test_values_that_look_alike_are_quoted_apart(pages):
    runs = [make_run({"kind": kind, "seed": 0}, {"loss": n}) for n, kind in enumerate([1, "1"])]
    publish_sweep(make_sweep(runs, ["kind"], ["results.loss"]), runs, pages)
    results = published_record(pages / "small-sweep.json")["results"]
    assert [found["mean"] for found in results["loss"].values()] == [0.0, 1.0]


NASTY = [
    "<script>alert(1)</script>",
    "{result}`a/b/c`",
    "a | b `c` $x^2$ **d**",
    "# h\n:::{note}\n[a](b.md)\n```",
    "<!-- \u202e\x00 -->",
    "https://example.org {{ now }} [^1] \\",
]


def test_no_value_becomes_markup_whatever_it_holds(pages, tmp_path, forks):
    runs = [
        make_run(
            {"label": label, "seed": seed, "other": NASTY[0]},
            {"loss": seed + len(label)},
            error=f"ValueError: {label}" if seed == 2 else None,
            processor=f"{NASTY[0]} | {NASTY[1]}",
        )
        for label in NASTY
        for seed in range(3)
    ]
    about = {"title": NASTY[2], "question": NASTY[3], "meanings": {"results.loss": "(x)="}}
    sweep = make_sweep(runs, ["label", "seed"], ["results.loss"], **about)
    publish_sweep(sweep, runs, pages)
    source = pages.parent
    (source / "conf.py").write_text(
        'extensions = ["myst_parser", "gradtricks.book.extension"]\nhtml_math_renderer = "katex"\n'
        'myst_enable_extensions = ["amsmath", "attrs_inline", "colon_fence", "deflist", "dollarmath"]\n'
    )
    (source / "index.md").write_text("# Start\n\n```{toctree}\nexperiments/small-sweep\n```\n")
    done = forks.run("sphinx", "-b", "html", "-q", "-n", "-W", "--keep-going", source, tmp_path / "html")
    assert (done.returncode, done.stderr) == (0, "")
    page = (tmp_path / "html" / "experiments" / "small-sweep.html").read_text()
    body = BeautifulSoup(page, "html.parser").select_one("div.body")
    assert body.select("script, strong, em, aside, math, .katex") == []
    text = " ".join(body.get_text().split())
    for shown in (*NASTY[:3], "# h :::{note} [a](b.md) ```", r"<!-- \u202e\x00 -->", *NASTY[5:]):
        assert text.count(shown) >= 2, shown  # among the values and among the errors
    assert "(x)=" in text
