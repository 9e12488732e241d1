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
    parse_values,
    read_notebook,
    read_parameters,
    split_names,
)
from gradtricks.lab.notebooks.texts import Plain, TextError, read_json, split_values
from gradtricks.lab.runs.planning import Spec, make_title, plan_runs
from gradtricks.lab.sweeps.files import Optuna, explain, read_file, unreadable
from gradtricks.lab.sweeps.spaces import Space


@dataclass(frozen=True)
class Sweep:
    """Many runs of one notebook: all of them, or, of a search, those that have been proposed so far.

    Attributes:
        name: What it is called: its file's name without ``.sweep.yaml``.
        notebook: Path of the notebook.
        runs: What is to be run, in order.
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
        optuna: Of a search, how to search, with typed axes; None where the runs are known.
        given: Of a search, the parameters of each of a trial's runs that aren't searched.
        threads: Of a run of a search; None leaves it to the notebook.
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
    optuna: Optuna | None = None
    given: tuple[dict[str, Any], ...] = ()
    threads: int | None = None


def read_sweep(path: Path, *, threads: int | None = None, source: Mapping[str, Any] | None = None) -> Sweep:
    """Read a sweep file, of a search too.

    Args:
        path: Of a file named ``<name>.sweep.yaml``.
        threads: Of a run; None leaves it to the file.
        source: As for `plan_runs`.

    Returns:
        The sweep, its runs planned; a search has none yet.

    Raises:
        FileNotFoundError: There is no such file.
        ParameterError: Something in it is wrong; all of it is listed.
    """
    name, file, problems = read_file(path)
    notebook = path.parent / (file.notebook if file else "")
    more: dict[str, Any] = {}
    configurations: list[dict[str, Any]] = []
    cases: list[str] = []
    try:
        if file and file.optuna:
            given, space = file.trial(_declared(notebook), file.optuna.parameters)
            several = ["seed"] if len(given) > 1 else []
            how = file.optuna.model_copy(update={"parameters": space})
            more = {"optuna": how, "given": tuple(given), "varied": (*space, *several)}
        elif file:
            declared = _declared(notebook)
            configurations = file.configurations(declared)
            cases = file.case_names(declared, configurations)
    except (ParameterError, FileNotFoundError) as error:
        problems.append(str(error))
    if problems or not file:
        raise ParameterError("\n".join([f"{path}: nothing was run.", *problems]))
    threads = file.threads if threads is None else threads
    specs = plan_runs(notebook, configurations, threads=threads, source=source) if configurations else []
    about: dict[str, Any] = {
        "name": name,
        "notebook": notebook,
        "runs": tuple(specs),
        "shown": tuple(file.shown) or ((file.optuna.objective,) if file.optuna else ()),
        "title": file.title or name,
        "question": file.question,
        "varied": _varied(file, specs),
        "timeout_s": file.timeout_s,
        "meanings": file.shown if isinstance(file.shown, dict) else {},
        "path": path,
        "published": file.published,
        "cases": {spec.request: case for spec, case in zip(specs, cases)},
        "threads": threads,
    }
    return Sweep(**about | more)


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
        FileNotFoundError: There is no such notebook.
        ParameterError: Something is wrong; all of it is listed.
    """
    shown = tuple(shown)
    problems = unreadable(shown, "shown", short=True)
    fixed: Mapping[str, Any] = {}
    try:
        fixed = given if isinstance(given, Mapping) else parse_values(notebook, given)
    except ParameterError as error:
        problems.append(str(error))
    try:
        parts: dict[str, Any] = {"grid": _columns(grid), "zip": _columns(zip), "fixed": dict(fixed)}
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
    specs = plan_runs(notebook, configurations, threads=threads)
    digest = hashlib.sha256("".join(spec.request for spec in specs).encode()).hexdigest()
    name = f"{make_title(notebook.stem, {}, {})}-{digest[:8]}"
    return Sweep(name, notebook, tuple(specs), shown, name, "", _varied(space, specs))


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
            {"request": spec.request, "title": spec.title}
            | ({"case": sweep.cases[spec.request]} if sweep.cases else {})
            for spec in sweep.runs
        ],
    }


def _declared(notebook: Path) -> dict[str, Parameter]:
    return read_parameters(read_notebook(notebook), str(notebook))


def _varied(space: Space, specs: Iterable[Spec]) -> tuple[str, ...]:
    specs = list(specs)
    names = dict.fromkeys(name for some in space.parts().values() for name in some)
    return tuple(name for name in names if len({literal(spec.parameters.get(name)) for spec in specs}) > 1)


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
