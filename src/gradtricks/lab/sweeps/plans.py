"""Sweeps: many runs of one notebook, planned from a file or from the command line."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gradtricks.lab.notebooks.literals import literal
from gradtricks.lab.notebooks.schema import (
    ParameterError,
    parse_values,
    read_notebook,
    read_parameters,
    split_names,
)
from gradtricks.lab.notebooks.texts import Plain, Problems, read_json, split_values
from gradtricks.lab.runs.planning import Spec, make_title, plan_runs
from gradtricks.lab.sweeps.expansion import CASE, Configuration, expand
from gradtricks.lab.sweeps.files import Optuna, SweepFile, read_file, understand, unreadable


@dataclass(frozen=True)
class Sweep:
    """Many runs of one notebook: all of them, or, of a search, those that have been proposed so far."""

    name: str  # its file's name without ``.sweep.yaml``
    notebook: Path
    runs: tuple[Spec, ...]  # in order
    shown: tuple[str, ...]  # results to plot, such as ``results.loss``; empty where nothing is said
    title: str  # of its page
    question: str  # that it answers
    varied: tuple[str, ...]  # parameters with several values, in the order in which they vary, slowest first
    timeout_s: float | None = None  # of a run
    meanings: Mapping[str, str] = field(default_factory=dict)  # of results, in the words of the file
    labels: Mapping[str, str] = field(default_factory=dict)  # words for names and values on its page
    path: Path | None = None  # of the file
    published: bool = False  # whether the book's build leaves its runs to ``gradtricks publish``
    changed: tuple[str, ...] = ()  # of published runs, what isn't any more what it was when they ran
    cases: Mapping[str, str] = field(default_factory=dict)  # by request, what its configuration is called
    optuna: Optuna | None = None  # of a search, how to search, with typed domains
    given: tuple[Configuration, ...] = ()  # of a search, for each run of a trial, what isn't searched
    threads: int | None = None  # of a run; None leaves it to the notebook


def read_sweep(path: Path, *, threads: int | None = None, source: Mapping[str, Any] | None = None) -> Sweep:
    """Read a sweep file, and plan its runs; a search has none yet.

    Args:
        path: Of a file named ``<name>.sweep.yaml``; a ParameterError lists all that is wrong in it.
        threads: Of a run; None leaves it to the file.
        source: As for `plan_runs`.
    """
    name, file, problems = read_file(path)
    if file and threads is not None:
        file = file.model_copy(update={"threads": threads})
    notebook = path.parent / (file.notebook if file else "")
    return replace(_plan(path, name, notebook, file, problems, source), path=path)


def plan_sweep(
    notebook: Path,
    *,
    grid: Mapping[str, Iterable[Any]] | Iterable[str] = (),
    zip: Mapping[str, Iterable[Any]] | Iterable[str] = (),  # noqa: A002  # the word of sweep files
    seeds: int | Iterable[int] | None = None,
    given: Mapping[str, Any] | Iterable[str] = (),
    threads: int | None = None,
    shown: Iterable[str] = (),
    max_runs: int | None = None,
) -> Sweep:
    """Plan a sweep without a file.

    Args:
        notebook: Path of the source notebook.
        grid: Values by name that vary freely, or texts such as ``scale=0,0.5,1``.
        zip: The same for values that vary together.
        seeds: How many seeds, from 0 on, or a list of them.
        given: Parameters that don't vary, of the declared types, or texts such as ``scale=0.5``.
        threads: Of a run; None leaves it to the notebook.
        shown: Results to plot, such as ``results.loss``; ``loss`` does too.
        max_runs: Largest number of runs that is meant; None stands for 100,000.

    Returns:
        The sweep; its name is the notebook's and a digest of what is asked.

    Raises:
        ParameterError: Something is wrong; all of it is listed.
    """
    shown, file = tuple(shown), None
    problems = Problems(unreadable(shown, "shown", short=True))
    said: dict[str, Any] = {}
    with problems.noted():
        said["fixed"] = parse_values(notebook, given)
    before = len(problems)
    said |= {"grid": _columns(grid, problems), "zip": _columns(zip, problems)}
    if said["grid"] or said["zip"] or seeds or len(problems) == before:  # else nobody knows what varies
        said |= {"seeds": seeds if seeds is None or isinstance(seeds, int) else list(seeds)}
        said |= {"threads": threads, "max_runs": max_runs, "shown": shown, "notebook": str(notebook)}
        file = understand({name: part for name, part in said.items() if part not in (None, {})}, problems)
    sweep = _plan(notebook, notebook.stem, notebook, file, problems)
    digest = hashlib.sha256("".join(spec.request for spec in sweep.runs).encode()).hexdigest()
    name = f"{make_title(notebook.stem, {}, {})}-{digest[:8]}"
    return replace(sweep, name=name, title=name)


def plan_of(sweep: Sweep) -> dict[str, Any]:
    """Say which runs belong to a sweep, as a store keeps it."""
    return {
        "name": sweep.name,
        "notebook": str(sweep.notebook),
        "title": sweep.title,
        "question": sweep.question,
        "shown": list(sweep.shown),
        "varied": list(sweep.varied),
        "runs": [
            {"request": spec.request, "title": spec.title}
            | ({"case": sweep.cases[spec.request]} if sweep.cases else {})
            for spec in sweep.runs
        ],
    }


def _plan(
    where: Path,
    name: str,
    notebook: Path,
    file: SweepFile | None,
    problems: Problems,
    source: Mapping[str, Any] | None = None,
) -> Sweep:
    try:
        declared = read_parameters(read_notebook(notebook), str(notebook)) if file else {}
        known = {*declared, *file.shown, "case"} if file else set()
        wrong = [name for name in (file.labels if file else ()) if name.partition("=")[0] not in known]
        problems += [f"labels: expected a parameter or a result that is shown; got {name}" for name in wrong]
        configurations, domains = expand(file, declared) if file else ([], {})
    except (ParameterError, FileNotFoundError) as error:
        problems.append(str(error))
    if problems or not file:
        raise problems.error(f"{where}: nothing was run.")
    given: tuple[Configuration, ...] = ()
    if optuna := file.optuna:
        optuna = optuna.model_copy(update={"parameters": domains})
        given, configurations = tuple(configurations), []
    cases = [each.pop(CASE) for each in configurations if CASE in each]
    specs = plan_runs(notebook, configurations, threads=file.threads, source=source) if configurations else []
    names = dict.fromkeys(name for some in file.parts().values() for name in some)
    values = {name: {literal(spec.parameters.get(name)) for spec in specs} for name in names}
    return Sweep(
        name=name,
        notebook=notebook,
        runs=tuple(specs),
        shown=tuple(file.shown) or ((optuna.objective,) if optuna else ()),
        title=file.title or name,
        question=file.question,
        varied=(*domains, *["seed"] * (len(given) > 1), *(name for name in names if len(values[name]) > 1)),
        timeout_s=file.timeout_s,
        meanings=file.shown if isinstance(file.shown, dict) else {},
        labels=file.labels,
        published=file.published,
        cases={spec.request: case for spec, case in zip(specs, cases)},
        optuna=optuna,
        given=given,
        threads=file.threads,
    )


def _columns(given: Mapping[str, Iterable[Any]] | Iterable[str], problems: Problems) -> dict[str, list[Any]]:
    if isinstance(given, Mapping):
        return {name: list(values) for name, values in given.items()}
    columns: dict[str, list[Any]] = {}
    for name, text in split_names(given, problems).items():
        with problems.noted():
            columns[name] = [_unquoted(value) for value in split_values(text)]
    return columns


def _unquoted(text: str) -> str:
    """Read a text in double quotes as JSON does, so that it may hold commas; others are plain."""
    return str(read_json(text)) if text.startswith('"') else Plain(text)
