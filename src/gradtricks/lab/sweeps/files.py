"""Sweep files: their keys, and the lists that they combine."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, Field, ValidationError, WrapValidator
from pydantic_core import PydanticCustomError

from gradtricks.lab.notebooks.schema import ParameterError, excerpt, faults
from gradtricks.lab.notebooks.texts import Problems
from gradtricks.lab.storage.manifests import CASE
from gradtricks.lab.sweeps.plain_yaml import read_yaml

ENDING = ".sweep.yaml"
MAX_RUNS = 100_000

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}")
_RESULT = re.compile(r"(results|varying)(\.\w+)+")
_SHORT_RESULT = re.compile(r"\w+(\.\w+)*")


class Factor(NamedTuple):
    """One of the lists whose product the configurations are."""

    part: str  # that it is of, as a file calls it
    names: list[str]  # of the parameters that it sets
    size: int
    given: Iterable[Mapping[str, Any]]  # as the file has it


def _check_seeds(given: Any, validate: Any) -> Any:
    seeds = validate(given)  # which takes a bool for a number
    if isinstance(given, bool) or seeds == [] or (isinstance(seeds, int) and seeds < 1):
        raise PydanticCustomError("seeds", "Input should be a number above 0, or a list of them")
    return seeds


class SweepFile(BaseModel, extra="forbid", frozen=True):
    """The keys of a sweep file: what varies, and what is to be done with it.

    The configurations are the product of ``list``, ``zip``, ``grid`` and ``seeds``, of which the last varies
    fastest; what is ``fixed`` is in each of them.
    """

    fixed: dict[str, Any] = {}
    # Configurations one by one, or by names that stand for them in figures.
    cases: list[dict[str, Any]] | dict[str, dict[str, Any]] | None = Field(None, alias="list")
    # Values that vary together, and that vary freely.
    zipped: Annotated[dict[str, list[Any]], Field(min_length=1)] | None = Field(None, alias="zip")
    grid: Annotated[dict[str, list[Any]], Field(min_length=1)] | None = None
    # Values of the parameter ``seed``; a number stands for as many, from 0 on.
    seeds: Annotated[int | list[Any] | None, WrapValidator(_check_seeds)] = None
    exclude: list[dict[str, Any]] = []  # rules: configurations that match one aren't run
    notebook: str  # its path, relative to the file
    title: str = ""  # of the sweep's page
    question: str = ""  # that it answers
    shown: tuple[str, ...] | dict[str, str] = ()  # results to plot; as a mapping, with what each means
    # Words for results, parameters and their values, ``name=value``, that stand on the sweep's page instead.
    labels: dict[str, str] = {}
    threads: Annotated[int, Field(ge=1)] | None = None  # of a run
    published: bool = False  # its runs take too long for the book's build, which shows those that are kept
    gpu: bool = False  # its runs need a GPU: ``gradtricks publish`` leaves them out where there is none

    def factors(self) -> Iterator[Factor]:
        """Yield the lists whose product the configurations are; those that could be long aren't made yet."""
        if self.cases is not None:
            cases = list(self.cases.values()) if isinstance(self.cases, dict) else self.cases
            yield Factor("list", list(dict.fromkeys(chain(*cases))), len(cases), cases)
        if self.zipped:
            rows = [dict(zip(self.zipped, row)) for row in zip(*self.zipped.values())]
            yield Factor("zip", list(self.zipped), max(map(len, self.zipped.values())), rows)
        for name, values in (self.grid or {}).items():
            yield Factor("grid", [name], len(values), [{name: value} for value in values])
        if self.seeds is not None:
            seeds = range(self.seeds) if isinstance(self.seeds, int) else self.seeds
            yield Factor("seeds", ["seed"], len(seeds), ({"seed": seed} for seed in seeds))

    def parts(self) -> dict[str, list[str]]:
        """Return the names of the parameters that each part sets, for the parts that are there."""
        parts = {"fixed": list(self.fixed)} if self.fixed else {}
        for factor in self.factors():
            parts[factor.part] = parts.get(factor.part, []) + factor.names
        return parts

    def count(self) -> int:
        """Return the number of configurations before ``exclude``, without making them."""
        return math.prod(factor.size for factor in self.factors())

    def problems(self) -> Iterator[str]:
        """Yield what is wrong whatever notebook it is for."""
        parts = self.parts()
        if not parts.keys() - {"fixed"}:
            yield "expected something that varies: list, zip, grid or seeds; got none of them"
        yield from (f"{part}: expected some parameters; got none" for part in parts if not parts[part])
        times = Counter(chain(*parts.values()))
        for name in (name for name in times if times[name] > 1):
            both = " and ".join(part for part, names in parts.items() if name in names)
            yield f"{name}: expected in one part; got it in {both}"
        for part, lists in {"zip": self.zipped or {}, "grid": self.grid or {}}.items():
            yield from (f"{part} {name}: expected values; got none" for name in lists if not lists[name])
        lengths = {name: len(values) for name, values in (self.zipped or {}).items()}
        if len(set(lengths.values())) > 1:
            said = ", ".join(f"{length} of {name}" for name, length in lengths.items())
            yield f"zip: expected equally many values of each; got {said}"
        if isinstance(self.cases, dict) and "" in self.cases:
            yield "list: expected a name for each configuration; got an empty one"
        for part in (part for part in ("zip", "grid") if CASE in parts.get(part, [])):
            if isinstance(self.cases, dict):
                yield (
                    f"{part}: expected no {CASE} beside named configurations, whose names tables call so; "
                    f"got {CASE}; remedy: write list without names"
                )
        if (count := self.count()) > MAX_RUNS:
            yield f"expected at most {MAX_RUNS} runs; got {count}; remedy: vary less"


def read_file(path: Path) -> tuple[str, SweepFile | None, Problems]:
    """Read a sweep file, whatever is wrong with it.

    Returns the sweep's name; what the file holds, without what can't be understood; and what is wrong so far.
    """
    if not path.is_file():
        raise FileNotFoundError(f"expected a sweep file at {path}; got nothing there")
    name, file, problems = path.name.removesuffix(ENDING), None, Problems()
    if name == path.name or not _NAME.fullmatch(name):
        problems.append(
            f"expected a file named NAME{ENDING}, NAME of letters, digits, '_', '-' and '.'; got {path.name}"
        )
    with problems.noted():
        file = understand(_read(path), problems)
    if file:
        problems += unreadable(file.shown, "shown")
    return name, file, problems


def _read(path: Path) -> dict[str, Any]:
    try:
        raw = read_yaml(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise ParameterError(str(error)) from error
    if not isinstance(raw, dict):
        raise ParameterError(f"expected 'notebook: PATH' and what varies; got {excerpt(raw)}")
    return raw


def understand(raw: Mapping[str, Any], problems: Problems) -> SweepFile | None:
    """Understand as much of a file as can be, or of what stands for one; the rest is noted and left out."""
    try:
        return SweepFile.model_validate(raw)
    except ValidationError as error:
        problems += dict.fromkeys(faults(error, SweepFile))
        wrong = {detail["loc"][0] for detail in error.errors()}
    with suppress(ValidationError):  # without a notebook there is nothing to check against
        return SweepFile.model_validate({key: part for key, part in raw.items() if key not in wrong})
    return None


def unreadable(results: Iterable[str], part: str, *, short: bool = False) -> list[str]:
    """Say which names can't be those of results; a short one is ``loss`` for ``results.loss``."""
    pattern = _SHORT_RESULT if short else _RESULT
    return [
        f"{part}: expected the name of a result, such as results.loss; got {excerpt(name)}"
        for name in results
        if not pattern.fullmatch(name)
    ]
