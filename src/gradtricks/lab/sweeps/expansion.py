"""From the parts of a sweep file to its configurations, by the types that a notebook declares."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import product
from typing import Any

from gradtricks.lab.notebooks.literals import literal
from gradtricks.lab.notebooks.schema import Parameter, ParameterError, find_parameter
from gradtricks.lab.notebooks.texts import Problems
from gradtricks.lab.sweeps.files import Domain, SweepFile

CASE = ""  # no parameter has this name

Configuration = dict[str, Any]
_Rule = dict[str, list[Any]]  # by name the values of which it must have one


def expand(
    file: SweepFile, declared: Mapping[str, Parameter]
) -> tuple[list[Configuration], dict[str, Domain]]:
    """Expand what a sweep file asks for.

    Args:
        file: What varies.
        declared: What the notebook takes; texts are read by these types.

    Returns:
        The configurations in a stable order; what isn't in them keeps its default. Where the list has names,
        each has its own as `CASE`. Of a search they are what each trial consists of, one for each seed, and
        beside them are its domains, typed.

    Raises:
        ParameterError: Something doesn't fit, there is nothing or too much, or a configuration comes twice;
            all that can be said at once is listed.
    """
    problems = Problems(file.problems())
    reader = _Reader(declared, problems)
    # What is too large isn't touched further.
    given = [] if file.count() > file.max_runs else [factor.given for factor in file.factors()]
    parts = [factor.part for factor in file.factors()]
    factors = [[reader.case(case, part) for case in cases] for part, cases in zip(parts, given)]
    if factors and isinstance(file.cases, dict):
        factors[0] = [{CASE: name} | case for name, case in zip(file.cases, factors[0])]
    factors.insert(0, [reader.case(file.fixed, "fixed")])
    conditions = {name: reader.rule(rule, "only_if") for name, rule in file.only_if.items()}
    excluded = [reader.rule(rule, "exclude") for rule in file.exclude]
    domains = reader.domains(file.optuna.parameters) if file.optuna else {}
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
    if conditions:
        every = [reader.conditioned(each, conditions) for each in every]
        every = list({reader.key(each, names): each for each in every}.values())
    matched = [[reader.holds(rule, each) for rule in excluded] for each in every]
    idle = [n for n, column in enumerate(zip(*matched), 1) if not any(column)]
    if idle:
        raise ParameterError("\n".join(f"exclude: rule {n} matches no configuration" for n in idle))
    left = [configuration for configuration, row in zip(every, matched) if not any(row)]
    if not left:
        raise ParameterError("exclude: expected rules that leave something; got rules that match all")
    return left, domains


class _Reader:
    """Reads what a file holds by the types of a notebook, and notes what doesn't fit."""

    def __init__(self, declared: Mapping[str, Parameter], problems: Problems) -> None:
        self._declared, self._problems = declared, problems

    def case(self, case: Mapping[str, Any], part: str) -> Configuration:
        return self._each(case, part, _read)

    def domains(self, given: Mapping[str, Domain]) -> dict[str, Domain]:
        return self._each(given, "optuna", lambda parameter, domain: domain.typed(parameter))

    def rule(self, rule: Mapping[str, Any], part: str) -> _Rule:
        """Read by name a value, or a list of values."""
        if not rule:
            self._problems.append(f"{part}: expected some parameters in each rule; got none")
        read: _Rule = {}
        for name, raw in rule.items():
            cases = [self.case({name: each}, part) for each in self._alternatives(name, raw)]
            read[name] = [value for case in cases for value in case.values()]
        return read

    def key(self, configuration: Mapping[str, Any], names: Iterable[str]) -> tuple[str, ...]:
        """Return what equal configurations have in common: source tells NaN from all and 0.0 from -0.0."""
        return tuple(literal(self._value(configuration, name)) for name in names)

    def conditioned(self, configuration: Configuration, conditions: Mapping[str, _Rule]) -> Configuration:
        """Take out what doesn't vary here; a condition may hang on another parameter that has one."""
        for _ in conditions:
            out = [name for name, rule in conditions.items() if not self.holds(rule, configuration)]
            configuration = {name: value for name, value in configuration.items() if name not in out}
        return configuration

    def holds(self, rule: _Rule, configuration: Configuration) -> bool:
        return all(
            literal(self._value(configuration, name)) in map(literal, values) for name, values in rule.items()
        )

    def _value(self, configuration: Mapping[str, Any], name: str) -> Any:
        return configuration[name] if name in configuration else self._declared[name].default

    def _each(
        self, given: Mapping[str, Any], part: str, read: Callable[[Parameter, Any], Any]
    ) -> dict[str, Any]:
        found = {}
        for name, raw in given.items():
            with self._problems.noted(part):
                found[name] = read(find_parameter(self._declared, name), raw)
        return found

    def _alternatives(self, name: str, raw: Any) -> list[Any]:
        """Take a list for several values, unless the parameter itself is a list and it fits as one value."""
        try:
            return [_read(find_parameter(self._declared, name), raw)]
        except ParameterError:
            return raw if isinstance(raw, list) else [raw]


def _read(parameter: Parameter, raw: Any) -> Any:
    return parameter.check(parameter.read(raw))
