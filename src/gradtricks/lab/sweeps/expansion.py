"""From the parts of a space to its configurations."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from typing import Any

from gradtricks.lab.notebooks.literals import literal
from gradtricks.lab.notebooks.schema import Parameter, ParameterError, find_parameter
from gradtricks.lab.notebooks.texts import TextError, read
from gradtricks.lab.sweeps.sampling import Axis, Samples, read_value

_TWINS = 3  # that a message shows

Configuration = dict[str, Any]
Rule = dict[str, list[Any]]  # by name the values of which it must have one


class Reader:
    """Reads what a space holds by the types of a notebook, notes what doesn't fit, and multiplies."""

    def __init__(self, declared: Mapping[str, Parameter]) -> None:
        self._declared = declared
        self._problems: list[str] = []

    def refuse(self, problems: Sequence[str]) -> None:
        """Raise what was wrong before, and what didn't fit."""
        if problems := [*problems, *self._problems]:
            raise ParameterError("\n".join(dict.fromkeys(problems)))

    def values(self, name: str, values: Sequence[Any], part: str) -> list[Any]:
        """Read the values of one parameter."""
        fitting = []
        for raw in values:
            with self._noting(part):
                fitting.append(read_value(find_parameter(self._declared, name), raw))
        return fitting

    def case(self, case: Mapping[str, Any], part: str) -> Configuration:
        """Read one value for each of some parameters."""
        return {name: value for name, raw in case.items() for value in self.values(name, [raw], part)}

    def axes(self, axes: Mapping[str, Axis], part: str) -> dict[str, Axis]:
        """Read what parameters are drawn from."""
        typed = {}
        for name, axis in axes.items():
            with self._noting(part):
                typed[name] = axis.typed(find_parameter(self._declared, name))
        return typed

    def draw(self, samples: Samples, part: str) -> list[Configuration]:
        """Draw configurations, each once however often it was drawn."""
        axes = self.axes(samples.parameters, part)
        with self._noting(part):
            drawn = samples.draw(axes, sobol=part == "sobol")
            return list({self.key(each, list(axes)): each for each in drawn}.values())
        return []

    def rule(self, rule: Mapping[str, Any], part: str) -> Rule:
        """Read a rule: by name a value, or a list of values."""
        if not rule:
            self._problems.append(f"{part}: expected some parameters in each rule; got none")
        return {name: self.values(name, self._alternatives(name, raw), part) for name, raw in rule.items()}

    def key(self, configuration: Mapping[str, Any], names: Sequence[str]) -> tuple[str, ...]:
        """Return what equal configurations have in common: source tells NaN from all and 0.0 from -0.0."""
        return tuple(literal(self._value(configuration, name)) for name in names)

    def expand(
        self,
        factors: Sequence[list[Configuration]],
        conditions: Mapping[str, Rule],
        excluded: Sequence[Rule],
    ) -> list[Configuration]:
        """Multiply the parts out, and leave out what isn't meant."""
        every = [{n: value for part in choice for n, value in part.items()} for choice in product(*factors)]
        names = list(dict.fromkeys(name for factor in factors for part in factor for name in part))
        keys = [self.key(configuration, names) for configuration in every]
        _refuse_twins(every, keys)
        if conditions:
            every = [self._conditioned(configuration, conditions) for configuration in every]
            every = list({self.key(configuration, names): configuration for configuration in every}.values())
        matched = [[self._holds(rule, configuration) for rule in excluded] for configuration in every]
        idle = [n for n, column in enumerate(zip(*matched), 1) if not any(column)]
        if idle:
            raise ParameterError("\n".join(f"exclude: rule {n} matches no configuration" for n in idle))
        left = [configuration for configuration, row in zip(every, matched) if not any(row)]
        if not left:
            raise ParameterError("exclude: expected rules that leave something; got rules that match all")
        return left

    def _conditioned(self, configuration: Configuration, conditions: Mapping[str, Rule]) -> Configuration:
        """Take out what doesn't vary here; a condition may hang on another parameter that has one."""
        for _ in conditions:
            out = [name for name, rule in conditions.items() if not self._holds(rule, configuration)]
            configuration = {name: value for name, value in configuration.items() if name not in out}
        return configuration

    def _holds(self, rule: Rule, configuration: Configuration) -> bool:
        return all(
            literal(self._value(configuration, name)) in map(literal, values) for name, values in rule.items()
        )

    def _value(self, configuration: Mapping[str, Any], name: str) -> Any:
        return configuration[name] if name in configuration else self._declared[name].default

    def _alternatives(self, name: str, raw: Any) -> list[Any]:
        """Take a list for several values, unless the parameter itself is a list and it fits as one value."""
        if not isinstance(raw, list):
            return [raw]
        try:
            parameter = find_parameter(self._declared, name)
            parameter.check(read(raw, parameter.type))
        except (ParameterError, TextError):
            return raw
        return [raw]

    @contextmanager
    def _noting(self, part: str) -> Iterator[None]:
        try:
            yield
        except ParameterError as error:
            self._problems.append(f"{part}: {error}")


def _refuse_twins(every: Sequence[Configuration], keys: Sequence[tuple[str, ...]]) -> None:
    times = Counter(keys)
    twins = [configuration for key, configuration in dict(zip(keys, every)).items() if times[key] > 1]
    if twins:
        said = [", ".join(f"{n} = {literal(v)}" for n, v in twin.items()) for twin in twins[:_TWINS]]
        more = f"\n… and {len(twins) - _TWINS} more" if len(twins) > _TWINS else ""
        raise ParameterError(
            "\n".join(f"expected each configuration once; got twice: {t}" for t in said)
            + f"{more}\nremedy: take out values that come twice, also those that are the same number"
        )
