"""Draws from intervals and choices."""

import math
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from gradtricks.lab.notebooks.schema import Parameter, ParameterError, shown
from gradtricks.lab.notebooks.texts import TextError, read

_DIGITS = 6


class Axis(BaseModel):
    """What one parameter is drawn from: an interval or a list.

    Attributes:
        low: Lower end, included.
        high: Upper end, included.
        log: Whether the logarithm is drawn evenly instead of the value.
        choices: The list, in place of all that.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    low: Any = None
    high: Any = None
    log: bool = False
    choices: list[Any] | None = None

    def typed(self, parameter: Parameter) -> "Axis":
        """Read the ends or the choices by a parameter's type.

        Args:
            parameter: That is drawn.

        Returns:
            The same axis; its ends are both int, and then only integers are drawn, or both float.

        Raises:
            ParameterError: They don't fit the parameter, or make no axis.
        """
        got = shown(self.model_dump(exclude_unset=True))
        if self.choices is not None:
            if self.low is not None or self.high is not None or self.log or not self.choices:
                raise ParameterError(
                    f"{parameter.name}: expected low and high, or choices (at least one); got {got}"
                )
            return Axis(choices=[read_value(parameter, choice) for choice in self.choices])
        if self.low is None or self.high is None:
            raise ParameterError(f"{parameter.name}: expected low and high, or choices; got {got}")
        low, high = read_value(parameter, self.low), read_value(parameter, self.high)
        if not all(type(end) in (int, float) and math.isfinite(end) for end in (low, high)) or low >= high:
            raise ParameterError(f"{parameter.name}: expected numbers low < high; got {low!r} and {high!r}")
        if self.log and low <= 0:
            raise ParameterError(f"{parameter.name}: expected low above 0 with log; got {low!r}")
        if type(low) is not type(high):
            low, high = float(low), float(high)
        return Axis(low=low, high=high, log=self.log)

    def at(self, share: float) -> Any:
        """Return the value at a place on a typed axis.

        Args:
            share: How far along, at least 0 and below 1.

        Returns:
            The value; floats are rounded to six digits where that keeps them on the axis.
        """
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
    """Draws of several parameters together.

    Attributes:
        samples: How many.
        seed: Of the draws.
        parameters: What each parameter is drawn from.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    samples: Annotated[int, Field(ge=1)]
    seed: Annotated[int, Field(ge=0)] = 0
    parameters: Annotated[dict[str, Axis], Field(min_length=1)]

    def draw(self, axes: Mapping[str, Axis], *, sobol: bool) -> list[dict[str, Any]]:
        """Draw.

        Args:
            axes: The parameters' axes, typed.
            sobol: Whether to draw a scrambled Sobol sequence instead of independently.

        Returns:
            As many configurations as there are samples.

        Raises:
            ParameterError: A Sobol sequence of that length isn't even.
        """
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


def read_value(parameter: Parameter, raw: Any) -> Any:
    """Read and check a value of a sweep file.

    Args:
        parameter: Says which type is expected.
        raw: As `texts.read` takes it.

    Returns:
        The value.

    Raises:
        ParameterError: It doesn't fit.
    """
    try:
        value = read(raw, parameter.type)
    except TextError:
        value = raw
    return parameter.check(value)
