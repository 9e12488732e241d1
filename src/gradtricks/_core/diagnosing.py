"""What was seen of some training steps, and the diagnosis that is made of it."""

from collections.abc import Iterator, Mapping
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
        """Yield the cause as lines of text."""
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
    """

    causes: tuple[Cause, ...]
    num_updates: int

    @property
    def healthy(self) -> bool:
        """Whether nothing was found."""
        return not self.causes

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of the causes, in their order."""
        return tuple(cause.kind for cause in self.causes)

    def __str__(self) -> str:
        """Return the diagnosis as text."""
        updates = f"{self.num_updates} update{'' if self.num_updates == 1 else 's'} watched"
        if self.healthy:
            return f"{updates}, nothing found"
        lines = [f"{updates}, {len(self.causes)} found"]
        for number, cause in enumerate(self.causes, 1):
            first, *rest = cause.lines()
            lines += [f"{number}. {first}", *rest]
        return "\n".join(lines)


@dataclass
class Weight:
    """What became of one parameter in one update.

    Attributes:
        name: What the user calls it.
        dtype: Its type.
        trainable: Whether it wants gradients.
        gradient: Status of the gradient that the optimizer was given.
        moved: Share of its elements with a gradient that changed; None where none has one.
        drifted: Whether an element without a gradient changed.
        masked: Where the user's code edited the gradient; None where it didn't.
        leftover: Whether the gradient still held that of the update before.
    """

    name: str
    dtype: str
    trainable: bool = True
    gradient: str = "fine"
    moved: float | None = 1.0
    drifted: bool = False
    masked: Place | None = None
    leftover: bool = False

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
        """Whether it has 16 bits."""
        return self.dtype in ("float16", "bfloat16")


@dataclass
class Update:
    """One update of the weights by an optimizer.

    Attributes:
        weights: Those that the optimizer holds, as often as it holds them.
        rate: The largest learning rate.
        place: Line of the user's code that asked for it.
    """

    weights: list[Weight]
    rate: float
    place: Place | None = None


@dataclass
class Event:
    """Something that happened in between, in the order in which it happened.

    Attributes:
        kind: "backward", "update", "clip", "unscale", "evaluated", "trained", "coupled", "checkpointed",
            "redrawn" or "accumulated".
        place: Line of the user's code.
        size: Of a clip, how many gradients it was given; of a backward pass, how many elements its loss
            weighs alike, 0 where that isn't known.
        share: Of a backward pass, what these weights add up to: 1 for a mean.
        cancels: Of a backward pass, whether what its loss adds up cancels.
        unused: Of a clip, whether an update took what the clip was given, and not what it returned.
        subjects: Names of the layers.
    """

    kind: str
    place: Place | None = None
    size: int = 0
    share: float = 1.0
    cancels: bool = False
    unused: bool = False
    subjects: tuple[str, ...] = ()


@dataclass
class Backward:
    """What a backward pass came to, where it didn't go well.

    Attributes:
        report: Verdict on each parameter; None where the framework couldn't differentiate a second time.
        loss: Status of what was differentiated.
        spoilt: Where a tensor was read that wasn't finite to begin with.
        error: What the framework said when it failed.
        place: Line of the user's code.
    """

    report: GradientReport | None
    loss: str = "fine"
    spoilt: Place | None = None
    error: str = ""
    place: Place | None = None

    @property
    def entries(self) -> tuple[InputReport, ...]:
        """The verdicts on the parameters."""
        return self.report.inputs if self.report else ()


@dataclass
class Record:
    """All that was seen of some training steps.

    Attributes:
        trainable: Names of the model's trainable parameters, in their order.
        reached: Names of those that a gradient has reached.
        held: How often optimizers hold each.
        unknown: Names of parameters that the optimizers hold and the model doesn't.
        unregistered: Lines on which parameters were used that neither knows.
        updates: In their order.
        events: In their order.
        unwell: Backward passes that didn't go well.
        chain: Largest gradients in weights that follow one another, from the input to the output.
        moments: The same for uses of one weight, from the first to the last.
        chained: Where those uses are.
    """

    trainable: list[str] = field(default_factory=list)
    reached: set[str] = field(default_factory=set)
    held: dict[str, int] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)
    unregistered: list[Place] = field(default_factory=list)
    updates: list[Update] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    unwell: list[Backward] = field(default_factory=list)
    chain: dict[str, float] = field(default_factory=dict)
    moments: list[float] = field(default_factory=list)
    chained: Place | None = None

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
        """Return the first event of a kind."""
        return next((event for event in self.events if event.kind == kind), None)

    @property
    def backwards(self) -> list[Event]:
        """The backward passes that went through."""
        return [event for event in self.events if event.kind == "backward"]

    def passes(self) -> list[Event]:
        """Return the backward passes since the last update."""
        later = takewhile(lambda event: event.kind != "update", reversed(self.events))
        return [event for event in later if event.kind == "backward"]

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


class EnoughSeen(BaseException):
    """Leaves a program that is watched; no handler of the program's is meant to catch it."""


def diagnosed(record: Record, remedies: Mapping[str, str]) -> Diagnosis:
    """Say what is wrong, of what was seen.

    Args:
        record: What was seen.
        remedies: What to do about each kind, in the framework's words.

    Returns:
        The diagnosis.
    """
    from gradtricks._core.causes import CAUSES

    found = [cause for find in CAUSES for cause in find(record)]
    told = [cause if cause.remedy else replace(cause, remedy=remedies[cause.kind]) for cause in found]
    return Diagnosis(tuple(told), len(record.updates))
