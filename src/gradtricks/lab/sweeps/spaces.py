"""What a sweep varies: parts whose product are the configurations."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, WrapValidator
from pydantic_core import PydanticCustomError

MAX_RUNS = 100_000


def _check_seeds(given: Any, validate: Any) -> Any:
    seeds = validate(given)  # which takes a bool for a number
    if isinstance(given, bool) or seeds == [] or (isinstance(seeds, int) and seeds < 1):
        raise PydanticCustomError("seeds", "Input should be a number above 0, or a list of them")
    return seeds


class Factor(NamedTuple):
    """One of the lists whose product a space is."""

    part: str  # that it is of, as a file calls it
    names: list[str]  # of the parameters that it sets
    size: int
    given: Iterable[Mapping[str, Any]]  # as the file has it


class Space(BaseModel):
    """Parts of a space, in a sweep file's own words.

    The configurations are the product of ``list``, ``zip``, ``grid`` and ``seeds``, of which the last varies
    fastest; what is ``fixed`` is in each of them.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    fixed: dict[str, Any] = {}
    # Configurations one by one, or by names that stand for them in figures.
    cases: list[dict[str, Any]] | dict[str, dict[str, Any]] | None = Field(None, alias="list")
    # Values that vary together, and that vary freely.
    zipped: Annotated[dict[str, list[Any]], Field(min_length=1)] | None = Field(None, alias="zip")
    grid: Annotated[dict[str, list[Any]], Field(min_length=1)] | None = None
    # Values of the parameter ``seed``; a number stands for as many, from 0 on.
    seeds: Annotated[int | list[Any] | None, WrapValidator(_check_seeds)] = None
    # Configurations that match one of these rules aren't run.
    exclude: list[dict[str, Any]] = []
    # A parameter varies only where its rule holds, and elsewhere keeps its default.
    only_if: dict[str, dict[str, Any]] = {}
    max_runs: Annotated[int, Field(ge=1)] = MAX_RUNS

    def factors(self) -> Iterator[Factor]:
        """Yield the lists whose product the space is; those that could be long aren't made yet."""
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
        """Return the number of configurations before ``exclude`` and ``only_if``, without making them."""
        return math.prod(factor.size for factor in self.factors())

    def problems(self) -> Iterator[str]:
        """Yield what is wrong whatever notebook the space is for."""
        parts = self.parts()
        if not parts.keys() - {"fixed"}:
            yield "expected something that varies: list, zip, grid or seeds; got none of them"
        yield from (f"{part}: expected some parameters; got none" for part in parts if not parts[part])
        yield from clashes(parts)
        for part, lists in {"zip": self.zipped or {}, "grid": self.grid or {}}.items():
            yield from (f"{part} {name}: expected values; got none" for name in lists if not lists[name])
        lengths = {name: len(values) for name, values in (self.zipped or {}).items()}
        if len(set(lengths.values())) > 1:
            said = ", ".join(f"{length} of {name}" for name, length in lengths.items())
            yield f"zip: expected equally many values of each; got {said}"
        if isinstance(self.cases, dict) and "" in self.cases:
            yield "list: expected a name for each configuration; got an empty one"
        if isinstance(self.cases, dict) and (unclear := sorted(self.only_if.keys() & set(parts["list"]))):
            yield f"only_if: expected parameters that no named configuration sets; got {', '.join(unclear)}"
        varying = {name for part, names in parts.items() if part != "fixed" for name in names}
        yield from (
            f"only_if: expected parameters that vary; got {n}" for n in self.only_if if n not in varying
        )
        if self.count() > self.max_runs:
            yield (
                f"expected at most {self.max_runs} runs; got {self.count()}; remedy: vary less, "
                f"search instead, or say max_runs: {self.count()} if so many are meant"
            )


def clashes(parts: Mapping[str, list[str]]) -> Iterator[str]:
    """Yield what is wrong with names that several parts set."""
    times = Counter(name for names in parts.values() for name in names)
    for name in (name for name in times if times[name] > 1):
        both = " and ".join(part for part, names in parts.items() if name in names)
        yield f"{name}: expected in one part; got it in {both}"
