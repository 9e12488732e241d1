"""What Optuna is asked for, and what its proposals mean to a notebook."""

import hashlib
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from gradtricks.lab.sweeps.planning import Search
from gradtricks.lab.sweeps.sampling import Axis

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

_DIGITS = 6  # nobody reads seventeen


class Proposals:
    """Translates between a search and Optuna.

    Args:
        spec: What is searched.
        optuna: The library.
    """

    def __init__(self, spec: Search, optuna: ModuleType) -> None:
        self._spec = spec
        self._optuna = optuna
        self._labels = {name: _labels(axis) for name, axis in spec.space.items() if axis.choices is not None}

    def distributions(self) -> dict[str, "BaseDistribution"]:
        """Return what Optuna may propose for each parameter."""
        return {name: self._distribution(name, axis) for name, axis in self._spec.space.items()}

    def sampler(self, number: int) -> Any:
        """Make the sampler of one trial: one that is seeded once would repeat itself after a restart.

        Args:
            number: Of trials so far.

        Returns:
            The sampler.
        """
        text = f"{self._spec.optuna.seed} {number}"
        seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")
        samplers = self._optuna.samplers
        makers = {"tpe": samplers.TPESampler, "random": samplers.RandomSampler, "gp": samplers.GPSampler}
        return makers[self._spec.optuna.sampler](seed=seed)

    def are_whole(self, proposed: Mapping[str, Any]) -> bool:
        """Say whether every parameter has been proposed; a kill may come in between.

        Args:
            proposed: Parameters of a trial.

        Returns:
            Whether none is missing.
        """
        return proposed.keys() == self._spec.space.keys()

    def givens(self, proposed: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Say what is to be run for a trial.

        Args:
            proposed: Its parameters.

        Returns:
            Parameters for the notebook, once for each seed.
        """
        values = {name: self._value(name, value) for name, value in proposed.items()}
        seeds: list[dict[str, int]] = [{"seed": seed} for seed in self._spec.seeds] or [{}]
        return [self._spec.given | values | seed for seed in seeds]

    def _distribution(self, name: str, axis: Axis) -> "BaseDistribution":
        made = self._optuna.distributions
        if axis.choices is not None:
            return made.CategoricalDistribution(tuple(self._labels[name]))
        kind = made.IntDistribution if isinstance(axis.low, int) else made.FloatDistribution
        return kind(axis.low, axis.high, log=axis.log)

    def _value(self, name: str, proposed: Any) -> Any:
        axis = self._spec.space[name]
        if axis.choices is not None:
            return self._labels[name][proposed]
        if isinstance(axis.low, int):
            return proposed
        rounded = float(f"{proposed:.{_DIGITS}g}")
        return rounded if axis.low <= rounded <= axis.high else proposed


def _labels(axis: Axis) -> dict[str, Any]:
    """Name choices: databases know numbers and texts only, and 1, 1.0 and True as one."""
    return {repr(choice): choice for choice in axis.choices or ()}
