"""Random states that imports set up in a fresh process, and that a fork has to draw anew."""

import random
from types import TracebackType
from typing import Any, Self

from gradtricks.warm.libraries import draw_anew

_SEED = random.Random.seed


class Chances:
    """Notes which generators take their seed from the system while modules are imported.

    Without it all forks would draw the same numbers from them, which no fresh process does. What was given a
    seed keeps it. Of compiled generators, those that `libraries` names are drawn anew; one that a module has
    made for itself, as by ``numpy.random.default_rng()``, isn't.
    """

    def __init__(self) -> None:
        self._unseeded: dict[int, random.Random] = {}

    def __enter__(self) -> Self:
        """Begin to note."""
        unseeded = self._unseeded

        def seed(self: random.Random, a: Any = None, *rest: Any, **options: Any) -> None:
            _SEED(self, a, *rest, **options)
            if a is None:
                unseeded[id(self)] = self
            else:
                unseeded.pop(id(self), None)

        random.Random.seed = seed  # type: ignore[method-assign]  # every one that is made is to be heard
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End that."""
        random.Random.seed = _SEED  # type: ignore[method-assign]  # as it was

    def draw(self) -> None:
        """Draw anew."""
        random.seed()
        for generator in self._unseeded.values():
            generator.seed()
        draw_anew()
