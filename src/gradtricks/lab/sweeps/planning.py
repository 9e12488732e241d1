"""Sweeps: many runs of one notebook, planned from a file or from the command line."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gradtricks.lab.notebooks.literals import literal
from gradtricks.lab.notebooks.schema import (
    Parameter,
    ParameterError,
    read_notebook,
    read_parameters,
    split_names,
)
from gradtricks.lab.notebooks.texts import Plain, TextError, read_json, split_values
from gradtricks.lab.runs.planning import Spec, make_title, plan_runs
from gradtricks.lab.sweeps.expansion import Expansion
from gradtricks.lab.sweeps.files import Optuna, explain, read_file, unreadable
from gradtricks.lab.sweeps.sampling import Axis
from gradtricks.lab.sweeps.spaces import Space


@dataclass(frozen=True)
class Sweep:
    """Many runs of one notebook.

    Attributes:
        name: What it is called: its file's name without ``.sweep.yaml``.
        notebook: Path of the notebook.
        runs: In order.
        shown: Results to plot, such as ``results.loss``; empty where nothing is said.
        title: Of its page.
        question: That it answers.
        varied: Parameters that have more than one value, in the order in which they vary, slowest first.
        timeout_s: Seconds that a run may take; None where nothing is said.
        meanings: What results mean, in the words of the file.
        path: Of the file; None where there is none.
        published: Whether the book's build leaves its runs to ``gradtricks publish``.
        changed: Of published runs, what isn't any more what it was when they ran.
        cases: By the request of a run, what its configuration is called; empty where the list has no names.
    """

    name: str
    notebook: Path
    runs: tuple[Spec, ...]
    shown: tuple[str, ...]
    title: str
    question: str
    varied: tuple[str, ...]
    timeout_s: float | None = None
    meanings: Mapping[str, str] = field(default_factory=dict)
    path: Path | None = None
    published: bool = False
    changed: tuple[str, ...] = ()
    cases: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Search:
    """A search for good parameters, checked against its notebook.

    Attributes:
        name: Its file's name without ``.sweep.yaml``.
        notebook: Path of the notebook.
        given: Parameters that don't vary.
        seeds: Values of the parameter ``seed`` that each trial is run with; empty leaves it at its default.
        space: What each parameter is searched in, typed.
        optuna: How to search.
        threads: Of a run; None leaves it to the notebook.
        timeout_s: Seconds that a run may take; None where nothing is said.
        shown: Results to plot.
        title: Of its page.
        question: That it answers.
    """

    name: str
    notebook: Path
    given: dict[str, Any]
    seeds: tuple[int, ...]
    space: dict[str, Axis]
    optuna: Optuna
    threads: int | None
    timeout_s: float | None
    shown: tuple[str, ...]
    title: str
    question: str


def read_sweep(path: Path, *, threads: int | None = None, source: Mapping[str, Any] | None = None) -> Sweep:
    """Read a sweep file.

    Args:
        path: Of a file named ``<name>.sweep.yaml``.
        threads: Of a run; None leaves it to the file.
        source: As for `plan_runs`.

    Returns:
        The sweep, its runs planned.

    Raises:
        FileNotFoundError: There is no such file.
        ParameterError: Something in it is wrong; all of it is listed.
    """
    name, file, problems = read_file(path)
    if file and file.optuna:
        problems.append("optuna: expected a sweep; got a search; remedy: gradtricks.lab.sweep(path) runs it")
    notebook = path.parent / (file.notebook if file else "")
    configurations: list[dict[str, Any]] = []
    cases: list[str] = []
    if file:
        try:
            declared = _declared(notebook)
            configurations = file.configurations(declared)
            cases = file.case_names(declared, configurations)
        except (ParameterError, FileNotFoundError) as error:
            problems.append(str(error))
    if problems or not file:
        raise ParameterError("\n".join([f"{path}: nothing was run.", *problems]))
    threads = file.threads if threads is None else threads
    runs = plan_runs(notebook, configurations, threads=threads, source=source)
    return Sweep(
        name=name,
        notebook=notebook,
        runs=tuple(runs),
        shown=tuple(file.shown),
        title=file.title or name,
        question=file.question,
        varied=_varied(file, runs),
        timeout_s=file.timeout_s,
        meanings=file.shown if isinstance(file.shown, dict) else {},
        path=path,
        published=file.published,
        cases={run.request: case for run, case in zip(runs, cases)},
    )


def read_search(path: Path) -> Search:
    """Read a sweep file that says how to search.

    Args:
        path: Of a file named ``<name>.sweep.yaml``, with ``optuna``.

    Returns:
        The search.

    Raises:
        FileNotFoundError: There is no such file.
        ParameterError: Something in it is wrong; all of it is listed.
    """
    name, file, problems = read_file(path)
    if file and not file.optuna:
        problems.append("optuna: expected how to search; got nothing")
    if not file or not file.optuna:
        raise ParameterError("\n".join([f"{path}: nothing was run.", *problems]))
    notebook = path.parent / file.notebook
    parts = file.parts() | {"optuna": list(file.optuna.parameters)}
    problems += [*file.clashes(parts), *file.seed_problems()]
    unused = [part for part in parts if part not in ("fixed", "seeds", "optuna")]
    others = ("exclude", "only_if", "max_runs", "published")
    unused += [part for part in others if part in file.model_fields_set]
    problems += [f"{part}: not for a search" for part in unused]
    problems += unreadable([file.optuna.objective], "optuna.objective")
    try:
        expansion = Expansion(_declared(notebook))
        given = expansion.read_case(file.fixed, "fixed")
        space = expansion.read_axes(file.optuna.parameters, "optuna")
        seeds = expansion.read_values("seed", file.seed_list(), "seeds")
        problems += expansion.problems
    except (ParameterError, FileNotFoundError) as error:
        problems.append(str(error))
    if problems:
        raise ParameterError("\n".join([f"{path}: nothing was run.", *problems]))
    return Search(
        name=name,
        notebook=notebook,
        given=given,
        seeds=tuple(seeds),
        space=space,
        optuna=file.optuna,
        threads=file.threads,
        timeout_s=file.timeout_s,
        shown=tuple(file.shown),
        title=file.title or name,
        question=file.question,
    )


def plan_sweep(
    notebook: Path,
    *,
    grid: Mapping[str, Iterable[Any]] | Iterable[str] = (),
    zip: Mapping[str, Iterable[Any]] | Iterable[str] = (),  # noqa: A002  # the word of sweep files
    seeds: int | Iterable[int] | None = None,
    given: Mapping[str, Any] | None = None,
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
        given: Parameters that don't vary, of the declared types.
        threads: Of a run; None leaves it to the notebook.
        shown: Results to plot, such as ``results.loss``; ``loss`` does too.
        max_runs: Largest number of runs that is meant; None stands for 100,000.

    Returns:
        The sweep; its name is the notebook's and a digest of what is asked.

    Raises:
        FileNotFoundError: There is no such notebook.
        ParameterError: Something is wrong; all of it is listed.
    """
    shown = tuple(shown)
    problems = unreadable(shown, "shown", short=True)
    try:
        parts: dict[str, Any] = {"grid": _columns(grid), "zip": _columns(zip), "fixed": dict(given or {})}
        parts["seeds"] = seeds if seeds is None or isinstance(seeds, int) else list(seeds)
        parts |= {"max_runs": max_runs} if max_runs is not None else {}
        space = Space.model_validate({name: part for name, part in parts.items() if part not in (None, {})})
        configurations = space.configurations(_declared(notebook))
    except ParameterError as error:
        problems.append(str(error))
    except ValidationError as error:
        problems += explain(error)
    if problems:
        raise ParameterError("\n".join([f"{notebook}: nothing was run.", *problems]))
    runs = plan_runs(notebook, configurations, threads=threads)
    digest = hashlib.sha256("".join(run.request for run in runs).encode()).hexdigest()
    name = f"{make_title(notebook.stem, {}, {})}-{digest[:8]}"
    return Sweep(name, notebook, tuple(runs), shown, name, "", _varied(space, runs))


def plan_of(sweep: Sweep) -> dict[str, Any]:
    """Say which runs belong to a sweep, as a store keeps it.

    Args:
        sweep: The sweep.

    Returns:
        JSON.
    """
    return {
        "name": sweep.name,
        "notebook": str(sweep.notebook),
        "title": sweep.title,
        "question": sweep.question,
        "shown": list(sweep.shown),
        "varied": list(sweep.varied),
        "runs": [
            {"request": run.request, "title": run.title}
            | ({"case": sweep.cases[run.request]} if sweep.cases else {})
            for run in sweep.runs
        ],
    }


def _declared(notebook: Path) -> dict[str, Parameter]:
    return read_parameters(read_notebook(notebook), str(notebook))


def _varied(space: Space, runs: Iterable[Spec]) -> tuple[str, ...]:
    runs = list(runs)
    names = dict.fromkeys(name for some in space.parts().values() for name in some)
    return tuple(name for name in names if len({literal(run.parameters.get(name)) for run in runs}) > 1)


def _columns(given: Mapping[str, Iterable[Any]] | Iterable[str]) -> dict[str, list[Any]]:
    if isinstance(given, Mapping):
        return {name: list(values) for name, values in given.items()}
    return {name: [_unquoted(v) for v in split_values(text)] for name, text in split_names(given).items()}


def _unquoted(text: str) -> str:
    """Read a text in double quotes as JSON does, so that it may hold commas; others are plain."""
    if not text.startswith('"'):
        return Plain(text)
    try:
        return str(read_json(text))
    except TextError as error:
        raise ParameterError(str(error)) from error
