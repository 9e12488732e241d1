"""What was seen of some training steps, and the diagnosis that is made of it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

from gradtricks._core.recorded import Place
from gradtricks._core.reports import GradientReport, InputReport

_NAMED = 4


@dataclass(frozen=True)
class Cause:
    """One thing that is wrong with the gradients of a training.

    Attributes:
        kind: In a few words, such as "never zeroed"; the same in both frameworks.
        subjects: Names of the parameters or layers that it concerns; empty where it concerns all.
        seen: What was seen, in a sentence.
        place: Line of the user's code to look at, where known.
        remedy: What to do, in the framework's words.
    """

    kind: str
    subjects: tuple[str, ...]
    seen: str
    place: Place | None
    remedy: str = ""

    def lines(self) -> Iterator[str]:
        more = len(self.subjects) - _NAMED
        names = ", ".join(self.subjects[:_NAMED]) + (f" and {more} more" if more > 0 else "")
        yield f"{self.kind}: {names}" if names else self.kind
        yield f"  seen: {self.seen}"
        yield from self.place.lines() if self.place else ()
        yield f"  remedy: {self.remedy}"


@dataclass(frozen=True)
class Diagnosis:
    """What is wrong with the gradients of a training; ``print`` it.

    Attributes:
        causes: What was found, what breaks the training first; empty where nothing was.
        num_updates: How many updates of the weights were watched.
        num_skipped: How many updates the scaling of the loss left out, for gradients that weren't finite.
    """

    causes: tuple[Cause, ...]
    num_updates: int
    num_skipped: int = 0

    @property
    def healthy(self) -> bool:
        """Whether nothing was found."""
        return not self.causes

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of the causes, in their order."""
        return tuple(cause.kind for cause in self.causes)

    def __str__(self) -> str:
        updates = f"{self.num_updates} update{'' if self.num_updates == 1 else 's'} watched"
        updates += f", {self.num_skipped} skipped by the scaling of the loss" if self.num_skipped else ""
        if self.healthy:
            return f"{updates}, nothing found"
        lines = [f"{updates}, {len(self.causes)} found"]
        for number, cause in enumerate(self.causes, 1):
            first, *rest = cause.lines()
            lines += [f"{number}. {first}", *rest]
        return "\n".join(lines)


@dataclass
class Weight:
    """What became of one parameter in one update."""

    name: str
    dtype: str
    trainable: bool = True
    gradient: str = "fine"  # status of what the optimizer was given
    moved: float | None = 1.0  # share of its elements with a gradient that changed; None where none has one
    drifted: bool = False  # whether an element without a gradient changed
    masked: Place | None = None  # where the user's code edited the gradient
    leftover: bool = False  # whether the gradient still held that of the update before

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
        return self.dtype in ("float16", "bfloat16")


@dataclass
class Update:
    """One update of the weights by an optimizer."""

    weights: list[Weight]  # those that the optimizer holds, as often as it holds them
    rate: float  # the largest learning rate
    place: Place | None = None


@dataclass
class Event:
    """Something that happened in between."""

    kind: str  # such as "backward", "reset", "update", "skip" or "clip"
    place: Place | None = None
    # Of a clip, how many gradients it was given; of a backward pass, how many elements its loss weighs alike,
    # 0 where that isn't known.
    size: int = 0
    share: float = 1.0  # of a backward pass, what these weights add up to: 1 for a mean
    cancels: bool = False  # of a backward pass, whether what its loss adds up cancels
    unused: bool = False  # of a clip, whether an update took what it was given, and not what it returned
    # Names of layers; of a backward pass, of the parameters that it reached; of a skipped update, of those
    # whose gradient isn't finite whatever the loss is multiplied by.
    subjects: tuple[str, ...] = ()


@dataclass
class Backward:
    """What a backward pass came to, where it didn't go well."""

    report: GradientReport | None  # None where the framework couldn't differentiate a second time
    loss: str = "fine"  # status of what was differentiated
    spoilt: Place | None = None  # where a tensor was read that wasn't finite to begin with
    error: str = ""  # of the framework, if it failed
    place: Place | None = None

    @property
    def entries(self) -> tuple[InputReport, ...]:
        """The verdicts on the parameters."""
        return self.report.inputs if self.report else ()


@dataclass
class Record:
    """All that was seen of some training steps, in its order."""

    trainable: list[str] = field(default_factory=list)  # names of the model's trainable parameters
    reached: set[str] = field(default_factory=set)  # names of those that a gradient has reached
    held: dict[str, int] = field(default_factory=dict)  # how often optimizers hold each
    unknown: list[str] = field(default_factory=list)  # parameters that they hold and the model doesn't
    unregistered: list[Place] = field(default_factory=list)  # where parameters were used that neither knows
    updates: list[Update] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    unwell: list[Backward] = field(default_factory=list)
    chain: dict[str, float] = field(default_factory=dict)  # largest gradients in weights that follow another
    moments: list[float] = field(default_factory=list)  # the same for uses of one weight
    chained: Place | None = None  # where those uses are
    stopped: bool = False  # whether the program failed, so that what it didn't come to says nothing

    @property
    def place(self) -> Place | None:
        """Where the weights are updated."""
        return self.updates[0].place if self.updates else None

    def of_held(self) -> "Record":
        """Leave out models that no optimizer holds a parameter of, unless it holds none of any."""
        models = {_model_of(name) for name in self.held if name}
        if models:
            self.trainable = [name for name in self.trainable if _model_of(name) in models]
        return self

    def first(self, kind: str) -> Event | None:
        return next((event for event in self.events if event.kind == kind), None)

    @property
    def backwards(self) -> list[Event]:
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


@contextmanager
def noted(record: Record, remedies: Mapping[str, str]) -> Iterator[None]:
    """Add to an error what was found until then."""
    try:
        yield
    except Exception as error:  # whatever a step raises, which is raised again
        found = diagnosed(record, remedies)
        if not found.healthy:
            error.add_note(f"Until then: {found}")
        raise


def diagnosed(record: Record, remedies: Mapping[str, str]) -> Diagnosis:
    """Say what is wrong, of what was seen; ``remedies`` are for each kind, in the framework's words."""
    from gradtricks._core.causes import CAUSES

    found = [cause for find in CAUSES for cause in find(record)]
    told = [cause if cause.remedy else replace(cause, remedy=remedies[cause.kind]) for cause in found]
    return Diagnosis(tuple(told), len(record.updates), len(record.skips))
