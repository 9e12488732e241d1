"""Sweeps: which runs of a notebook a file, or the command line, asks for."""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from gradtricks.lab.notebooks.schema import (
    Parameter,
    ParameterError,
    by_name,
    excerpt,
    find_parameter,
)
from gradtricks.lab.notebooks.texts import Plain, Problems, literal, together
from gradtricks.lab.runs.planning import Spec, make_title, parse_notebook, plan_runs
from gradtricks.lab.storage.manifests import Witness
from gradtricks.lab.storage.store import Store
from gradtricks.lab.sweeps.files import MAX_RUNS, SweepFile, read_file, understand, unreadable
from gradtricks.lab.sweeps.plain_yaml import read_yaml

Configuration = dict[str, Any]
_ITS_NAME = ""  # no parameter is called so
_Rule = dict[str, list[Any]]  # by name the values of which it must have one


@dataclass(frozen=True)
class Sweep:
    """Many runs of one notebook."""

    name: str  # its file's name without ``.sweep.yaml``
    notebook: Path
    specs: tuple[Spec, ...]  # in order
    shown: tuple[str, ...]  # results to plot, such as ``results.loss``; empty where nothing is said
    title: str  # of its page
    question: str  # that it answers
    varied: tuple[str, ...]  # parameters with several values, in the order in which they vary, slowest first
    meanings: Mapping[str, str] = field(default_factory=dict)  # of results, in the words of the file
    labels: Mapping[str, str] = field(default_factory=dict)  # words for names and values on its page
    path: Path | None = None  # of the file
    published: bool = False  # whether the book's build leaves its runs to ``gradtricks publish``
    gpu: bool = False  # whether its runs need a GPU
    witnesses: Mapping[str, Witness] = field(default_factory=dict)  # of published runs, to judge them by
    standing: str = ""  # of published runs, how today's quick runs judge them
    replanned: bool = False  # whether the published runs are others than its file asks for now
    cases: Mapping[str, str] = field(default_factory=dict)  # by request, what its configuration is called
    threads: int | None = None  # of a run; None leaves it to the notebook


def read_sweep(path: Path, *, threads: int | None = None, source: Mapping[str, Any] | None = None) -> Sweep:
    """Read a sweep file, and plan its runs.

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

    Returns:
        The sweep; its name is the notebook's and a digest of what is asked.

    Raises:
        ParameterError: Something is wrong; all of it is listed.
    """
    shown, file = tuple(shown), None
    problems = Problems(unreadable(shown, "shown", short=True))
    said: dict[str, Any] = {"fixed": by_name(given, problems)}
    before = len(problems)
    said |= {"grid": _columns(grid, problems), "zip": _columns(zip, problems)}
    if said["grid"] or said["zip"] or seeds or len(problems) == before:  # else nobody knows what varies
        said |= {"seeds": seeds if seeds is None or isinstance(seeds, int) else list(seeds)}
        said |= {"threads": threads, "shown": shown, "notebook": str(notebook)}
        file = understand({name: part for name, part in said.items() if part not in (None, {})}, problems)
    sweep = _plan(notebook, notebook.stem, notebook, file, problems)
    digest = hashlib.sha256("".join(spec.request for spec in sweep.specs).encode()).hexdigest()
    name = f"{make_title(notebook.stem, {}, {})}-{digest[:8]}"
    return replace(sweep, name=name, title=name)


def freeze(planned: Sweep, store: Store) -> None:
    """Write down in a store which runs belong to a sweep, for `status`, `table` and `plot`."""
    runs = [
        {"request": spec.request, "title": spec.title, "case": planned.cases.get(spec.request, "")}
        for spec in planned.specs
    ]
    plan = {"runs": runs, "shown": planned.shown, "varied": planned.varied}
    if planned.path:
        plan["file"] = str(planned.path.resolve())
    store.write_plan(planned.name, plan)


def _plan(
    where: Path,
    name: str,
    notebook: Path,
    file: SweepFile | None,
    problems: Problems,
    source: Mapping[str, Any] | None = None,
) -> Sweep:
    refused = f"{where}: nothing was run."
    if file is None:
        raise problems.error(refused)
    try:
        parsed = parse_notebook(notebook)
        declared = parsed.parameters
        known = {*declared, *file.shown, "case"}
        wrong = [name for name in file.labels if name.partition("=")[0] not in known]
        problems += [f"labels: expected a parameter or a result that is shown; got {name}" for name in wrong]
        configurations = expand(file, declared)
    except (ParameterError, FileNotFoundError) as error:
        problems.append(str(error))
    if problems:
        raise problems.error(refused)
    cases = [each.pop(_ITS_NAME) for each in configurations if _ITS_NAME in each]
    specs = plan_runs(parsed, configurations, threads=file.threads, source=source)
    names = dict.fromkeys(name for some in file.parts().values() for name in some)
    values = {name: {literal(spec.parameters.get(name)) for spec in specs} for name in names}
    return Sweep(
        name=name,
        notebook=notebook,
        specs=tuple(specs),
        shown=tuple(file.shown),
        title=file.title or name,
        question=file.question,
        varied=tuple(name for name in names if len(values[name]) > 1),
        meanings=file.shown if isinstance(file.shown, dict) else {},
        labels=file.labels,
        published=file.published,
        gpu=file.gpu,
        cases={spec.request: case for spec, case in zip(specs, cases)},
        threads=file.threads,
    )


def _columns(given: Mapping[str, Iterable[Any]] | Iterable[str], problems: Problems) -> dict[str, list[Any]]:
    """List values by name; texts are what stands between the brackets in a file."""
    columns = {}
    for name, values in by_name(given, problems).items():
        if not isinstance(values, Plain):
            columns[name] = list(values)
            continue
        try:
            columns[name] = read_yaml(f"[{values}]") or [Plain("")]
        except ParameterError:
            problems.append(
                f"{name}: expected values such as 1,2 or a,b; got {excerpt(str(values))}; "
                'remedy: put texts with signs in double quotes, such as "a, b","c: d"'
            )
    return columns


def expand(file: SweepFile, declared: Mapping[str, Parameter]) -> list[Configuration]:
    """Expand what a sweep file asks for; texts are read by the types that a notebook declares.

    Returns:
        The configurations in a stable order; what isn't in them keeps its default. Where the list has names,
        each has its own as `_ITS_NAME`. A ParameterError lists what doesn't fit, is nothing, too much, or
        there twice, as far as it can be said at once.
    """
    problems = Problems(file.problems())
    reader = _Reader(declared, problems)
    # What is too large isn't touched further.
    given = [] if file.count() > MAX_RUNS else [factor.given for factor in file.factors()]
    parts = [factor.part for factor in file.factors()]
    factors = [[reader.read(case, part) for case in cases] for part, cases in zip(parts, given)]
    if factors and isinstance(file.cases, dict):
        factors[0] = [{_ITS_NAME: name} | case for name, case in zip(file.cases, factors[0])]
    factors.insert(0, [reader.read(file.fixed, "fixed")])
    excluded = list(map(reader.rule, file.exclude))
    problems.refuse()
    every = [{n: value for part in choice for n, value in part.items()} for choice in product(*factors)]
    names = [name for factor in file.factors() for name in factor.names]
    times = Counter(keys := [reader.key(each, names) for each in every])
    if twins := list({key: each for key, each in zip(keys, every) if times[key] > 1}.values()):
        said = ", ".join(f"{name} = {literal(value)}" for name, value in twins[0].items() if name)
        more = f", and {len(twins) - 1} more" if len(twins) > 1 else ""
        raise ParameterError(
            f"expected each configuration once; got twice: {said}{more}; "
            "remedy: take out values that come twice, also those that are the same number"
        )
    matched = [[reader.holds(rule, each) for rule in excluded] for each in every]
    idle = [n for n, column in enumerate(zip(*matched), 1) if not any(column)]
    if idle:
        raise ParameterError("\n".join(f"exclude: rule {n} matches no configuration" for n in idle))
    left = [configuration for configuration, row in zip(every, matched) if not any(row)]
    if not left:
        raise ParameterError("exclude: expected rules that leave something; got rules that match all")
    return left


class _Reader:
    """Reads what a file holds by the types of a notebook, and notes what doesn't fit."""

    def __init__(self, declared: Mapping[str, Parameter], problems: Problems) -> None:
        self._declared, self._problems = declared, problems

    def read(
        self, given: Mapping[str, Any], part: str, by: Callable[[Parameter, Any], Any] = Parameter.read
    ) -> dict[str, Any]:
        found = {}
        for name, raw in given.items():
            with self._problems.noted(part):
                found[name] = by(find_parameter(self._declared, name), raw)
        return found

    def rule(self, rule: Mapping[str, Any]) -> _Rule:
        """Read by name a value, or a list of values."""
        if not rule:
            self._problems.append("exclude: expected some parameters in each rule; got none")
        return self.read(rule, "exclude", _alternatives)

    def key(self, configuration: Mapping[str, Any], names: Iterable[str]) -> tuple[str, ...]:
        """Return what equal configurations have in common: source tells NaN from all and 0.0 from -0.0."""
        return tuple(literal(self._value(configuration, name)) for name in names)

    def holds(self, rule: _Rule, configuration: Configuration) -> bool:
        return all(
            literal(self._value(configuration, name)) in map(literal, values) for name, values in rule.items()
        )

    def _value(self, configuration: Mapping[str, Any], name: str) -> Any:
        return configuration[name] if name in configuration else self._declared[name].default


def _alternatives(parameter: Parameter, raw: Any) -> list[Any]:
    """Take a list for several values, unless the parameter itself is a list and it fits as one value."""
    if not isinstance(raw, list):
        return [parameter.read(raw)]
    if parameter.is_typed:
        with suppress(ParameterError):
            return [parameter.read(raw)]
    return together(*(partial(parameter.read, each) for each in raw))
