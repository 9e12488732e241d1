"""Draws from intervals and choices."""

import math
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from gradtricks.lab.notebooks.schema import Parameter, ParameterError, shown

_DIGITS = 6


class Axis(BaseModel):
    """What one parameter is drawn from: an interval, its ends included, or a list."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    low: Any = None
    high: Any = None
    log: bool = False  # whether the logarithm is drawn evenly instead of the value
    choices: list[Any] | None = None  # in place of all that

    def typed(self, parameter: Parameter) -> "Axis":
        """Read the ends or the choices by a parameter's type; a ParameterError says that they don't fit.

        The ends are then both int, and only integers are drawn, or both float.
        """
        name, ends = parameter.name, [self.low, self.high]
        listed = bool(self.choices) and ends == [None, None] and not self.log
        if not (listed if self.choices is not None else None not in ends):
            got = shown(self.model_dump(exclude_unset=True))
            raise ParameterError(f"{name}: expected low and high, or choices (at least one); got {got}")
        if self.choices:
            return Axis(choices=[parameter.check(parameter.read(choice)) for choice in self.choices])
        low, high = (parameter.check(parameter.read(end)) for end in ends)
        if not all(type(end) in (int, float) and math.isfinite(end) for end in (low, high)) or low >= high:
            raise ParameterError(f"{name}: expected numbers low < high; got {low!r} and {high!r}")
        if self.log and low <= 0:
            raise ParameterError(f"{name}: expected low above 0 with log; got {low!r}")
        if type(low) is not type(high):
            low, high = float(low), float(high)
        return Axis(low=low, high=high, log=self.log)

    def at(self, share: float) -> Any:
        """Return the value at a share, from 0 to below 1, of a typed axis."""
        if self.choices is not None:
            return self.choices[int(share * len(self.choices))]
        integer = isinstance(self.low, int)
        low, high = self.low, self.high + integer  # each integer gets an equal share, the last one too
        if self.log:
            value = math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
        else:
            value = low + share * (high - low)
        if integer:
            return min(max(math.floor(value), self.low), self.high)
        return self.rounded(min(max(value, self.low), self.high))

    def rounded(self, value: float) -> float:
        """Round a value of a typed axis to six digits where that keeps it there: nobody reads seventeen."""
        short = float(f"{value:.{_DIGITS}g}")
        return short if self.low <= short <= self.high else value


class Samples(BaseModel):
    """Draws of several parameters together."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    samples: Annotated[int, Field(ge=1)]
    seed: Annotated[int, Field(ge=0)] = 0
    parameters: Annotated[dict[str, Axis], Field(min_length=1)]

    def draw(self, axes: Mapping[str, Axis], *, sobol: bool) -> list[dict[str, Any]]:
        """Draw configurations from typed axes, by a scrambled Sobol sequence or independently."""
        if sobol and self.samples.bit_count() != 1:
            below = 1 << (self.samples.bit_length() - 1)
            raise ParameterError(
                "samples: expected a power of two, since others fill the space unevenly; "
                f"got {self.samples}; remedy: {below} or {2 * below}"
            )
        generator = np.random.default_rng(self.seed)
        if sobol and axes:
            from scipy.stats import qmc  # slow to import

            shares = qmc.Sobol(len(axes), rng=generator).random(self.samples)
        else:
            shares = generator.random((self.samples, len(axes)))
        return [{name: axis.at(float(u)) for (name, axis), u in zip(axes.items(), row)} for row in shares]
