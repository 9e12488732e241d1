"""From the parts of a space to its configurations, by the types that a notebook declares."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from typing import Any

from gradtricks.lab.notebooks.literals import literal
from gradtricks.lab.notebooks.schema import Parameter, ParameterError, find_parameter
from gradtricks.lab.notebooks.texts import Problems
from gradtricks.lab.sweeps.files import Domain
from gradtricks.lab.sweeps.spaces import Factor, Space, clashes

CASE = ""  # no parameter has this name

_TWINS = 3  # that a message shows

Configuration = dict[str, Any]
Rule = dict[str, list[Any]]  # by name the values of which it must have one


def expand(space: Space, declared: Mapping[str, Parameter]) -> list[Configuration]:
    """Expand a space.

    Args:
        space: Its parts.
        declared: What the notebook takes; texts are read by these types.

    Returns:
        The configurations in a stable order; what isn't in them keeps its default. Where the list has names,
        each has its own as `CASE`.

    Raises:
        ParameterError: Something doesn't fit, the space is empty or too large, or it holds a configuration
            twice; all that can be said at once is listed.
    """
    problems = Problems(space.problems())
    reader = _Reader(declared, problems)
    # A space that is too large isn't touched further.
    factors = [] if space.count() > space.max_runs else [reader.factor(each) for each in space.factors()]
    if factors and isinstance(space.cases, dict):
        factors[0] = [{CASE: name} | case for name, case in zip(space.cases, factors[0])]
    factors.insert(0, [reader.case(space.fixed, "fixed")])
    conditions = {name: reader.rule(rule, "only_if") for name, rule in space.only_if.items()}
    excluded = [reader.rule(rule, "exclude") for rule in space.exclude]
    problems.refuse()
    every = [{n: value for part in choice for n, value in part.items()} for choice in product(*factors)]
    names = [name for factor in space.factors() for name in factor.names]
    _refuse_twins(every, [reader.key(each, names) for each in every])
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
    return left


def expand_trial(
    space: Space, domains: Mapping[str, Domain], declared: Mapping[str, Parameter]
) -> tuple[list[Configuration], dict[str, Domain]]:
    """Expand what all trials of a search have in common: the seeds, and what is fixed.

    Returns the parameters of each of a trial's runs that aren't searched, and the domains, typed. A
    ParameterError lists all that doesn't fit.
    """
    problems = Problems(clashes(space.parts() | {"optuna": list(domains)}))
    reader = _Reader(declared, problems)
    fixed, typed = reader.case(space.fixed, "fixed"), reader.domains(domains)
    seeds = [seed for factor in space.factors() if factor.part == "seeds" for seed in reader.factor(factor)]
    problems.refuse()
    return [fixed | seed for seed in seeds or [{}]], typed


class _Reader:
    """Reads what a space holds by the types of a notebook, and notes what doesn't fit."""

    def __init__(self, declared: Mapping[str, Parameter], problems: Problems) -> None:
        self._declared, self._problems = declared, problems

    def factor(self, factor: Factor) -> list[Configuration]:
        return [self.case(case, factor.part) for case in factor.given]

    def case(self, case: Mapping[str, Any], part: str) -> Configuration:
        return self._each(case, part, _read)

    def domains(self, given: Mapping[str, Domain]) -> dict[str, Domain]:
        return self._each(given, "optuna", lambda parameter, domain: domain.typed(parameter))

    def rule(self, rule: Mapping[str, Any], part: str) -> Rule:
        """Read by name a value, or a list of values."""
        if not rule:
            self._problems.append(f"{part}: expected some parameters in each rule; got none")
        read: Rule = {}
        for name, raw in rule.items():
            cases = [self.case({name: each}, part) for each in self._alternatives(name, raw)]
            read[name] = [value for case in cases for value in case.values()]
        return read

    def key(self, configuration: Mapping[str, Any], names: Iterable[str]) -> tuple[str, ...]:
        """Return what equal configurations have in common: source tells NaN from all and 0.0 from -0.0."""
        return tuple(literal(self._value(configuration, name)) for name in names)

    def conditioned(self, configuration: Configuration, conditions: Mapping[str, Rule]) -> Configuration:
        """Take out what doesn't vary here; a condition may hang on another parameter that has one."""
        for _ in conditions:
            out = [name for name, rule in conditions.items() if not self.holds(rule, configuration)]
            configuration = {name: value for name, value in configuration.items() if name not in out}
        return configuration

    def holds(self, rule: Rule, configuration: Configuration) -> bool:
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


def _refuse_twins(every: Sequence[Configuration], keys: Sequence[tuple[str, ...]]) -> None:
    times = Counter(keys)
    twins = [configuration for key, configuration in dict(zip(keys, every)).items() if times[key] > 1]
    if twins:
        said = [", ".join(f"{n} = {literal(v)}" for n, v in twin.items() if n) for twin in twins[:_TWINS]]
        more = f"\n… and {len(twins) - _TWINS} more" if len(twins) > _TWINS else ""
        raise ParameterError(
            "\n".join(f"expected each configuration once; got twice: {t}" for t in said)
            + f"{more}\nremedy: take out values that come twice, also those that are the same number"
        )
