"""What a sweep varies: parts whose product are the configurations."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from gradtricks.lab.notebooks.schema import Parameter
from gradtricks.lab.sweeps.expansion import Configuration, Reader
from gradtricks.lab.sweeps.sampling import Axis, Samples

MAX_RUNS = 100_000


def _no_bool(seeds: Any) -> Any:
    if isinstance(seeds, bool):  # which pydantic would take for a number
        raise PydanticCustomError("seeds", "Input should be a number above 0, or a list of them")
    return seeds


class Space(BaseModel):
    """Parts of a space, in a sweep file's own words.

    The configurations are the product of ``list``, ``zip``, ``grid``, ``random``, ``sobol`` and ``seeds``, of
    which the last varies fastest; what is ``fixed`` is in each of them.

    Attributes:
        fixed: Values that don't vary.
        cases: Configurations one by one, or by names that stand for them in figures; ``list`` in a file.
        zipped: Values that vary together; ``zip`` in a file.
        grid: Values that vary freely.
        random: Independent draws; equal ones are one.
        sobol: Draws that fill the space evenly; likewise.
        seeds: Values of the parameter ``seed``; a number stands for as many, from 0 on.
        exclude: Configurations that match one of these rules aren't run.
        only_if: A parameter varies only where its rule holds; elsewhere it keeps its default, and
            configurations that become equal are one.
        max_runs: Largest number of configurations that is meant.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    fixed: dict[str, Any] = {}
    cases: list[dict[str, Any]] | dict[str, dict[str, Any]] | None = Field(None, alias="list")
    zipped: dict[str, list[Any]] | None = Field(None, alias="zip")
    grid: dict[str, list[Any]] | None = None
    random: Samples | None = None
    sobol: Samples | None = None
    seeds: Annotated[int | list[Any] | None, BeforeValidator(_no_bool)] = None
    exclude: list[dict[str, Any]] = []
    only_if: dict[str, dict[str, Any]] = {}
    max_runs: Annotated[int, Field(ge=1)] = MAX_RUNS

    def parts(self) -> dict[str, list[str]]:
        """Return the names of the parameters that each part sets, for the parts that are there."""
        parts = {
            "fixed": list(self.fixed) or None,
            "list": None if self.cases is None else list(dict.fromkeys(chain(*self._cases()))),
            "zip": None if self.zipped is None else list(self.zipped),
            "grid": None if self.grid is None else list(self.grid),
            "random": list(self.random.parameters) if self.random else None,
            "sobol": list(self.sobol.parameters) if self.sobol else None,
            "seeds": None if self.seeds is None else ["seed"],
        }
        return {part: names for part, names in parts.items() if names is not None}

    def count(self) -> int:
        """Return the number of configurations before ``exclude`` and ``only_if``, without making them."""
        sizes = [len(values) for values in (self.grid or {}).values()]
        sizes += [len(self.cases)] if self.cases is not None else []
        sizes += [max(map(len, self.zipped.values()), default=0)] if self.zipped is not None else []
        sizes += [part.samples for part in (self.random, self.sobol) if part]
        sizes += [self.seeds if isinstance(self.seeds, int) else len(self.seeds or [0])]
        return math.prod(sizes)

    def configurations(self, declared: Mapping[str, Parameter]) -> list[dict[str, Any]]:
        """Expand the space.

        Args:
            declared: What the notebook takes; texts are read by these types.

        Returns:
            The configurations in a stable order; what isn't in them keeps its default.

        Raises:
            ParameterError: Something doesn't fit, the space is empty or too large, or it holds a
                configuration twice; all that can be said at once is listed.
        """
        reader = Reader(declared)
        problems = list(self._problems())
        # A space that is too large isn't touched further.
        factors = [] if self.count() > self.max_runs else list(self._factors(reader))
        fixed = reader.case(self.fixed, "fixed")
        conditions = {name: reader.rule(rule, "only_if") for name, rule in self.only_if.items()}
        excluded = [reader.rule(rule, "exclude") for rule in self.exclude]
        varying = {name for part, some in self.parts().items() if part != "fixed" for name in some}
        problems += [
            f"only_if: expected parameters that vary; got {name}"
            for name in self.only_if
            if name not in varying
        ]
        reader.refuse(problems)
        return reader.expand([[fixed], *factors], conditions, excluded)

    def case_names(
        self, declared: Mapping[str, Parameter], configurations: Iterable[Mapping[str, Any]]
    ) -> list[str]:
        """Name each configuration as the list does.

        Args:
            declared: What the notebook takes.
            configurations: From `configurations`.

        Returns:
            As many names; none where the list has none.
        """
        if not isinstance(self.cases, dict):
            return []
        reader, names = Reader(declared), self.parts()["list"]
        known = {reader.key(reader.case(case, "list"), names): name for name, case in self.cases.items()}
        return [known[reader.key(configuration, names)] for configuration in configurations]

    def trial(
        self, declared: Mapping[str, Parameter], axes: Mapping[str, Axis]
    ) -> tuple[list[dict[str, Any]], dict[str, Axis]]:
        """Expand what all trials of a search have in common: the seeds, and what is fixed.

        Args:
            declared: What the notebook takes.
            axes: What is searched, as in the file.

        Returns:
            The parameters of each of a trial's runs that aren't searched, and the axes, typed.

        Raises:
            ParameterError: Something doesn't fit; all of it is listed.
        """
        reader, parts = Reader(declared), self.parts() | {"optuna": list(axes)}
        wrong = [*_clashes(parts), *self._seed_problems()]
        wrong += [f"{part}: not for a search" for part in parts if part not in ("fixed", "seeds", "optuna")]
        fixed, typed = reader.case(self.fixed, "fixed"), reader.axes(axes, "optuna")
        seeds = [{"seed": seed} for seed in reader.values("seed", self._seed_list(), "seeds")]
        reader.refuse(wrong)
        return [fixed | seed for seed in seeds or [{}]], typed

    def _problems(self) -> Iterator[str]:
        """Yield what is wrong whatever notebook the space is for."""
        parts = self.parts()
        if not parts.keys() - {"fixed"}:
            yield "expected something that varies: list, zip, grid, random, sobol or seeds; got none of them"
        yield from (f"{part}: expected some parameters; got none" for part in parts if not parts[part])
        yield from _clashes(parts)
        for part, lists in {"zip": self.zipped or {}, "grid": self.grid or {}}.items():
            yield from (f"{part} {name}: expected values; got none" for name in lists if not lists[name])
        lengths = {name: len(values) for name, values in (self.zipped or {}).items()}
        if len(set(lengths.values())) > 1:
            said = ", ".join(f"{length} of {name}" for name, length in lengths.items())
            yield f"zip: expected equally many values of each; got {said}"
        yield from self._seed_problems()
        if isinstance(self.cases, dict) and "" in self.cases:
            yield "list: expected a name for each configuration; got an empty one"
        if isinstance(self.cases, dict) and (unclear := sorted(self.only_if.keys() & set(parts["list"]))):
            yield f"only_if: expected parameters that no named configuration sets; got {', '.join(unclear)}"
        if self.count() > self.max_runs:
            yield (
                f"expected at most {self.max_runs} runs; got {self.count()}; remedy: vary less, draw "
                f"samples, or say max_runs: {self.count()} if so many are meant"
            )

    def _seed_problems(self) -> Iterator[str]:
        if self.seeds == [] or (isinstance(self.seeds, int) and self.seeds < 1):
            yield f"seeds: expected a number above 0, or a list of them; got {self.seeds}"

    def _seed_list(self) -> list[Any]:
        return list(range(self.seeds)) if isinstance(self.seeds, int) else self.seeds or []

    def _cases(self) -> list[dict[str, Any]]:
        return list(self.cases.values()) if isinstance(self.cases, dict) else self.cases or []

    def _factors(self, reader: "Reader") -> Iterator[list[Configuration]]:
        """Yield the lists whose product the space is."""
        if self.cases is not None:
            yield [reader.case(case, "list") for case in self._cases()]
        if self.zipped:
            columns = {name: reader.values(name, some, "zip") for name, some in self.zipped.items()}
            yield [dict(zip(columns, row)) for row in zip(*columns.values())]
        for name, values in (self.grid or {}).items():
            yield [{name: value} for value in reader.values(name, values, "grid")]
        for part, samples in (("random", self.random), ("sobol", self.sobol)):
            if samples:
                yield reader.draw(samples, part)
        if self.seeds is not None:
            yield [{"seed": seed} for seed in reader.values("seed", self._seed_list(), "seeds")]


def _clashes(parts: Mapping[str, list[str]]) -> Iterator[str]:
    """Yield the names that several parts set."""
    times = Counter(name for names in parts.values() for name in names)
    for name in (name for name in times if times[name] > 1):
        both = " and ".join(part for part, names in parts.items() if name in names)
        yield f"{name}: expected in one part; got it in {both}"
