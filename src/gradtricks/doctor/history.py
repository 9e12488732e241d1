"""The history of the training steps that were watched: models, backward passes, clips and updates."""

import math
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from gradtricks.doctor.operations import Operation, SourceLine
from gradtricks.doctor.reports import Cause, GradientReport, InputReport

_STEP = 2.0**-24  # between the smallest numbers of float16
_FIRST = 8  # of these steps, of which something is left where something was lost
SMALL = 2.0**-14  # below it, float16 has fewer digits


@dataclass
class Weight:
    """One parameter in one update."""

    name: str
    dtype: str
    trainable: bool = True
    gradient: str = "fine"  # status of what the optimizer was given
    size: float = 1.0  # the largest magnitude in that, where it is finite
    moved: float | None = 1.0  # share of its elements with a gradient that changed; None where none has one
    drifted: bool = False  # whether an element without a gradient changed
    masked: SourceLine | None = None  # where the user's code edited the gradient
    leftover: bool = False  # whether the gradient still held that of the update before
    frozen: SourceLine | None = None  # where it was told to want no gradient
    emptied: SourceLine | None = None  # where its gradient was reset after the backward pass
    alike: bool = False  # whether its rows are all the same, and so are their gradients
    lost: float = 0.0  # share of the gradient's elements that float16 made 0

    def look_for_underflow(self, gradient: Any) -> None:
        """See whether a small gradient, an array or a tensor, went through float16 without a scale."""
        steps = abs(gradient / _STEP)
        # Down there bfloat16 has finer steps, and so has what was scaled.
        if bool((steps == steps.round()).all()) and float(steps[steps > 0].min()) < _FIRST:
            self.lost = float((gradient == 0).sum()) / math.prod(gradient.shape)

    def compare(self, before: Any, after: Any, gradient: Any) -> None:
        """See what an update made of the values; arrays or tensors, a gradient is None or dense."""
        changed = before != after
        if self.gradient == "nan" or not changed.any():
            self.moved = 0.0
        elif not self.trainable or gradient is None:
            self.moved, self.drifted = None, True
        elif self.masked or self.short:
            has = gradient != 0
            self.drifted = bool((changed & ~has).any())
            self.moved = float((changed & has).sum() / has.sum()) if bool(has.any()) else None

    @property
    def short(self) -> bool:
        """Whether its numbers have 16 bits."""
        return self.dtype in ("float16", "bfloat16")


@dataclass
class Update:
    """One update of the weights by an optimizer."""

    weights: list[Weight]  # those that the optimizer holds, as often as it holds them
    rate: float  # the largest learning rate
    place: SourceLine | None = None
    invariant: bool = False  # whether gradients that are all twice as large would give the same


@dataclass
class Event:
    """Something that happened in between."""

    kind: str  # such as "backward", "reset", "update", "skip" or "clip"
    place: SourceLine | None = None
    # Of a clip, how many gradients it was given; of a backward pass, how many elements its loss weighs alike,
    # 0 where that isn't known.
    size: int = 0
    share: float = 1.0  # of a backward pass, what these weights add up to: 1 for a mean
    cancels: bool = False  # of a backward pass, whether what its loss adds up cancels
    unused: bool = False  # of a clip, whether an update took what it was given, and not what it returned
    source: SourceLine | None = None  # of a backward pass, where its loss was computed
    # Names of layers; of a backward pass, of the parameters that it reached, with an empty one for others; of
    # a clip or an update, of those that it was given; of a skipped update, of those whose gradient isn't
    # finite whatever the loss is multiplied by.
    subjects: tuple[str, ...] = ()


@dataclass
class Backward:
    """The outcome of a backward pass that didn't go well."""

    report: GradientReport | None  # None where the framework couldn't differentiate a second time
    loss: str = "fine"  # status of what was differentiated
    spoilt: SourceLine | None = None  # where a tensor was read that wasn't finite to begin with
    error: str = ""  # of the framework, if it failed
    place: SourceLine | None = None
    stale: SourceLine | None = None  # where a tensor was read whose graph an earlier pass had freed
    factor: Operation | None = None  # of which a factor came that is 0 everywhere
    lost: tuple[str, ...] = ()  # whose gradient is zero only because float16 has no smaller numbers

    @property
    def entries(self) -> tuple[InputReport, ...]:
        """The verdicts on the parameters."""
        return self.report.inputs if self.report else ()


@dataclass
class History:
    """All that was seen of some training steps, in its order."""

    trainable: list[str] = field(default_factory=list)  # names of the model's trainable parameters
    frozen: list[str] = field(default_factory=list)  # names of its others
    reached: set[str] = field(default_factory=set)  # names of those that a gradient has reached
    held: dict[str, int] = field(default_factory=dict)  # how often optimizers hold each
    unknown: list[str] = field(default_factory=list)  # parameters that they hold and the model doesn't
    unregistered: list[SourceLine] = field(
        default_factory=list
    )  # where parameters were used that neither knows
    updates: list[Update] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    unwell: list[Backward] = field(default_factory=list)
    chain: dict[str, float] = field(default_factory=dict)  # largest gradients in weights that follow another
    moments: list[float] = field(default_factory=list)  # the same for uses of one weight
    chained: SourceLine | None = None  # where those uses are
    schedule: SourceLine | None = None  # where a schedule has set the rates
    told: list[Cause] = field(default_factory=list)  # causes that were plain when they were seen
    stopped: bool = False  # whether the program failed, so that what it didn't come to says nothing

    @property
    def place(self) -> SourceLine | None:
        """Where the weights are updated."""
        return self.updates[0].place if self.updates else None

    def of_held(self) -> "History":
        """Leave out models that no optimizer holds a parameter of, unless it holds none of any."""
        models = {_model_of(name) for name in self.held if name}
        if models:
            self.trainable = [name for name in self.trainable if _model_of(name) in models]
        return self

    def tell(self, cause: Cause) -> None:
        """Keep a cause that was plain when it was seen, once for each line."""
        if not any((cause.kind, cause.place) == (other.kind, other.place) for other in self.told):
            self.told.append(cause)

    def first(self, kind: str) -> Event | None:
        """Return the first event of a kind."""
        return next((event for event in self.events if event.kind == kind), None)

    @property
    def backwards(self) -> list[Event]:
        """The backward passes that went through."""
        return [event for event in self.events if event.kind == "backward"]

    def passes(self) -> list[Event]:
        """Return the backward passes since the last update."""
        later = takewhile(lambda event: event.kind not in ("update", "skip"), reversed(self.events))
        return [event for event in later if event.kind == "backward"]

    @property
    def skips(self) -> list[Event]:
        """The updates that the scaling of the loss left out."""
        return [event for event in self.events if event.kind == "skip"]

    @property
    def hopeless(self) -> list[Event]:
        """Those that a lower scale won't bring back."""
        return [event for event in self.skips if event.subjects]

    def weights(self) -> dict[str, list[Weight]]:
        """Return what became of each weight in each update that it had a part in."""
        found: dict[str, list[Weight]] = {}
        for update in self.updates:
            for weight in {weight.name: weight for weight in update.weights}.values():
                found.setdefault(weight.name, []).append(weight)
        return found


def _model_of(name: str) -> str:
    head, colon, _ = name.partition(":")
    return head if colon else ""
