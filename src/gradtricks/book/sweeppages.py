"""The page of a sweep: its question, figures, a table of values, and where they came from."""

import json
import os
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gradtricks.book.markup import code, escape
from gradtricks.book.numbers import markdown_table, number_text
from gradtricks.book.origins import costs_of, origin_of, period_of
from gradtricks.book.tabs import FRAMEWORKS
from gradtricks.lab.encoding import encode
from gradtricks.lab.results import tables
from gradtricks.lab.results.captions import listed, summary_columns
from gradtricks.lab.results.columns import split_name
from gradtricks.lab.results.grouping import (
    Group,
    ResultSummary,
    Word,
    in_words,
    key_of,
    summarize_results,
    text_of,
    varying,
)
from gradtricks.lab.results.plots import PlotResult, plot_results
from gradtricks.lab.runs.planning import Spec
from gradtricks.lab.storage.manifests import CASE
from gradtricks.lab.storage.records import StoredRun
from gradtricks.lab.sweeps.files import ENDING
from gradtricks.lab.sweeps.sweep import Sweep

__all__ = ["sweep_files"]

_JUDGED = {
    "": (
        "The notebook's quick runs can't judge today's code: there are no results of then, other parameters "
        "now, or no run that finished."
    ),
    "the same numbers": "In the notebook's quick run, today's code gives the same numbers, bit for bit.",
    "the same within tolerance": (
        "In the notebook's quick run, today's code gives the same numbers up to one part in 100,000."
    ),
    "another processor": (
        "In the notebook's quick run, today's code gives other numbers on another processor: that says "
        "nothing of the code."
    ),
    "other numbers": "In the notebook's quick run, today's code gives other numbers.",
}
_MOST_ROWS = 100


def sweep_files(sweep: Sweep, runs: Sequence[StoredRun], pages: Path) -> dict[Path, str]:
    """Write the page of a sweep and what belongs to it, as texts by file; equal runs have equal texts."""
    page = f"{sweep.name}-sweep"
    frame = tables.tabulate(runs, sweep.cases)
    done = any(run.status == "finished" for run in runs)
    results = summarize_results(frame, sweep.varied, sweep.shown) if done else []
    plots = plot_results(in_words(each, _labels(sweep)) for each in results)
    card = json.dumps(_summary(sweep, runs, results, plots), indent=1, ensure_ascii=False, allow_nan=False)
    return {
        **{pages / page / f"{name}.svg": plot.svg() for name, plot in plots.items()},
        pages / page / "runs.csv": tables.as_csv(frame),
        pages / f"{page}.json": f"{card}\n",
        pages / f"{page}.md": "\n\n".join(_page(sweep, runs, plots)) + "\n",
    }


def _labels(sweep: Sweep) -> dict[str, str]:
    """Return the words that stand for names and values on the page of a sweep."""
    backends = {f"backend={backend}": name for backend, name in FRAMEWORKS.items()}
    return {"backend": "framework", **backends, **sweep.labels}


def _summary(
    sweep: Sweep, runs: Sequence[StoredRun], results: Sequence[ResultSummary], plots: Mapping[str, PlotResult]
) -> dict[str, Any]:
    """Collect the numbers that other pages quote as ``name/sweep/…``, and what its card says."""
    quoted: dict[str, Any] = {}
    for each, plot in zip(results, plots.values()):
        label = each.label if each.label not in quoted else each.column
        quoted[label] = dict(_quoted(each, plot.result.parts))
    records = [run.record for run in runs]
    counts = {"planned": len(_meant(sweep, runs)), **_counted(runs), **costs_of(records)}
    parameters = runs[0].parameters if runs else {}
    fixed = [f"{name} {text_of(value)}" for name, value in parameters.items() if name not in sweep.varied]
    verb = "publish" if sweep.published else "sweep"
    return {
        "sweep": sweep.name,
        "published": sweep.published,
        "command": f"gradtricks {verb} {shlex.quote(_from_root(sweep, _file(sweep)))}",
        "origin": {"other parameters": ", ".join(fixed)} | origin_of(records),
        "standing": sweep.standing,
        "results": encode({"runs": counts, **quoted}, "results"),
        "figures": {name: plot.alt for name, plot in plots.items()},
    }


def _quoted(result: ResultSummary, shown: Sequence[Group]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name the configurations, such as ``scale=0.5``, and yield their numbers, as they are shown."""
    taken: set[str] = set()
    for named, part in zip(result.parts, shown):
        values = zip(result.axes, named.values)
        name = ",".join(f"{axis.name}={text_of(value)}" for axis, value in values) or "all"
        while name in taken:  # 1 and "1" look the same
            name += "_"
        taken.add(name)
        yield name, part.numbers()


def _page(sweep: Sweep, runs: Sequence[StoredRun], plots: Mapping[str, PlotResult]) -> Iterator[str]:
    yield f"# {escape(sweep.title or sweep.name)}"
    if sweep.question:
        yield escape(sweep.question)
    yield _said(sweep, runs)
    if sweep.published:
        yield _published(sweep, runs)
    if sweep.cases and runs:
        yield _named(sweep, runs)
    for name, plot in plots.items():
        yield f"## {escape(plot.result.title)}"
        if meaning := sweep.meanings.get(".".join(split_name(plot.result.column))):
            yield escape(meaning)
        yield f"```{{run-figure}} {sweep.name}/sweep/{name}\n{escape(plot.caption)}\n```"
        yield _values_table(plot.result)
    if any(run.status == "failed" for run in runs):
        yield f"## Runs that failed\n\n{_failures(runs)}"
    download = f"{{download}}`CSV <{sweep.name}-sweep/runs.csv>`"
    yield f"## All runs\n\nEvery parameter and every result of every run: {download}."
    yield f"## Where this came from\n\n```{{run-card}} {sweep.name}/sweep\n```"


def _values_table(result: ResultSummary) -> str:
    """Write what a figure shows as a table: the first hundred configurations, a line each."""
    columns = {
        escape(axis.name): [_value_text(part.values[place]) for part in result.parts]
        for place, axis in enumerate(result.axes)
    }
    columns |= summary_columns(result, number_text)
    table = markdown_table([list(columns), *zip(*columns.values())][: _MOST_ROWS + 1])
    left_out = len(result.parts) - _MOST_ROWS
    return f"{table}\n\nAnd {left_out} more, which the download holds." if left_out > 0 else table


def _value_text(value: Any) -> str:
    """Write a parameter's value in Markdown: numbers and words as they are, anything else as code."""
    text = text_of(value)
    return escape(text) if value is None or isinstance(value, bool | int | float | Word) else code(text)


def _file(sweep: Sweep) -> Path:
    return sweep.path or sweep.notebook.with_name(sweep.name + ENDING)


def _from_root(sweep: Sweep, path: Path) -> str:
    """Write a path from the project's root, the folder that holds the one with the sweep's file."""
    return Path(os.path.relpath(path, _file(sweep).absolute().parents[1])).as_posix()


def _said(sweep: Sweep, runs: Sequence[StoredRun]) -> str:
    meant, counts = _meant(sweep, runs), _counted(runs)
    varied = [
        f"{escape(_labels(sweep).get(name, name))} ({len({key_of(value) for value in values})} values)"
        for name, values in _varied(sweep, meant).items()
    ]
    different = f" with different {listed(varied)}" if varied else ""
    counts["not run yet"] = len(meant) - sum(counts.values())
    said = [f"{count} {what}" for what, count in counts.items() if count or what == "finished"]
    notebook = code(_from_root(sweep, sweep.notebook))
    several = "" if len(meant) == 1 else "s"
    return f"{len(meant)} run{several} of {notebook}{different}: {', '.join(said)}."


def _counted(runs: Sequence[StoredRun]) -> dict[str, int]:
    return {status: sum(run.status == status for run in runs) for status in ("finished", "failed")}


def _meant(sweep: Sweep, runs: Sequence[StoredRun]) -> Sequence[Spec | StoredRun]:
    """Return the runs that the sweep had when it was run."""
    return runs if sweep.published and runs else sweep.specs


def _published(sweep: Sweep, runs: Sequence[StoredRun]) -> str:
    """Say when a sweep was run that the build leaves alone, and whether the code still gives its numbers."""
    said = "These runs take too long for the build of this book, or want a machine to themselves."
    if not runs:
        return f"{said} They haven't been published yet."
    records = [run.record for run in runs]
    said = f"{said} They were started {period_of(records)}. {_JUDGED[sweep.standing]}"
    if sweep.standing == "other numbers":
        said += f" These runs are of commit {origin_of(records)['commit']}."
    return f"{said} The sweep's file asks for other runs by now." if sweep.replanned else said


def _varied(sweep: Sweep, runs: Sequence[Spec | StoredRun]) -> dict[str, Sequence[Any]]:
    cases = [sweep.cases.get(run.request, "") for run in runs]
    return varying({name: [run.parameters.get(name) for run in runs] for name in sweep.varied}, cases)


def _named(sweep: Sweep, runs: Sequence[StoredRun]) -> str:
    """Say what each name stands for: what isn't as it mostly is."""
    names = [name for name in sweep.varied if name not in _varied(sweep, runs)]
    usual = {n: Counter(key_of(run.parameters.get(n)) for run in runs).most_common(1)[0][0] for n in names}
    rows = {}
    for run in runs:
        different = [name for name in names if key_of(run.parameters.get(name)) != usual[name]]
        said = [_said_of(sweep, name, run.parameters.get(name)) for name in different]
        rows[sweep.cases[run.request]] = ", ".join(said)
    body = [[escape(case), different] for case, different in rows.items()]
    return markdown_table([[escape(_labels(sweep).get(CASE, CASE)), "what is different"], *body])


def _said_of(sweep: Sweep, name: str, value: Any) -> str:
    labels = _labels(sweep)
    word = labels.get(f"{name}={text_of(value)}")
    return f"{escape(labels.get(name, name))} {_value_text(value if word is None else Word(word))}"


def _failures(runs: Sequence[StoredRun]) -> str:
    failed = [run for run in runs if run.status == "failed"]
    rows = [[escape(run.title), code(run.record["error"].strip().partition("\n")[0])] for run in failed]
    return markdown_table([["run", "why"], *rows[:_MOST_ROWS]])
